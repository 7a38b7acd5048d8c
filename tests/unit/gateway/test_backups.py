"""The process that makes a backup in a folder, found without touching its lock."""

import fcntl
import os
from pathlib import Path

import pytest
import trio

from maxam.gateway import backups
from maxam.gateway.backups import Backups, _row_of
from maxam.journal.backup import LOCK, UNFINISHED

NAME = "20261122T030000.000000Z"


def states(folder: Path) -> list[str]:
    """Return the states of all rows, as operators see them."""
    made = Backups(folder / "journal", folder, kept=1)
    return [row.state for row in made._look(folder, None)]


def test_a_backup_is_running_while_somebody_holds_the_lock_of_its_folder(tmp_path: Path) -> None:
    """And no moment longer."""
    (tmp_path / (NAME + UNFINISHED)).mkdir()
    assert states(tmp_path) == ["failed"]
    with (tmp_path / LOCK).open("w") as lock:
        assert states(tmp_path) == ["failed"]
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert states(tmp_path) == ["running"]
    assert states(tmp_path) == ["failed"]


def test_a_lock_of_the_same_number_on_another_disk_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of the journal can be, which the gateway itself holds for as long as it runs."""
    (tmp_path / (NAME + UNFINISHED)).mkdir()
    original = backups._device_of_mount
    with (tmp_path / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        number = os.fstat(lock.fileno()).st_ino
        device = original(Path(f"/proc/self/fdinfo/{lock.fileno()}").read_text())
        assert f" {device}:{number} " in Path("/proc/locks").read_text()
        monkeypatch.setattr(
            backups, "_device_of_mount", lambda _: "ff:ff"
        )  # where this folder would be on another disk
        assert states(tmp_path) == ["failed"]


def test_a_failed_backup_says_why_whatever_it_left(tmp_path: Path) -> None:
    """If a backup cannot remove what it has written, the reason is reported, not its end."""
    made = Backups(tmp_path / "journal", tmp_path, kept=1)
    (tmp_path / (NAME + UNFINISHED)).mkdir()
    made._failures.append(_row_of(NAME, "failed", "no room"))
    [row] = trio.run(made.rows)
    assert (row.state, row.reason) == ("failed", "no room")

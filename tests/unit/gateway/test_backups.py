"""The process that makes a backup in a folder, found without touching its lock."""

import fcntl
import os
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from maxam.config import AdminSettings
from maxam.gateway import backups
from maxam.gateway.backup_timer import BackupTimer
from maxam.gateway.backups import Backups, _row_of
from maxam.journal.backup import LOCK, UNFINISHED

NAME = "20261122T030000.000000Z"


def states(folder: Path) -> list[str]:
    """Return the states of all rows, as operators see them."""
    made = Backups(folder / "journal", AdminSettings(backups=folder))
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
    made = Backups(tmp_path / "journal", AdminSettings(backups=tmp_path))
    (tmp_path / (NAME + UNFINISHED)).mkdir()
    made._failures.append(_row_of(NAME, "failed", "no room"))
    [row] = trio.run(made.rows)
    assert (row.state, row.reason) == ("failed", "no room")


def hooked(folder: Path, script: str, timeout_s: float = 60.0) -> Backups:
    """Return backups whose hook is a script of the shell. `$1` is the backup."""
    (folder / NAME).mkdir()
    command = ("/bin/sh", "-c", script, "hook")
    return Backups(
        folder / "journal",
        AdminSettings(backups=folder, backup_hook=command, backup_hook_timeout_s=timeout_s),
    )


def test_a_hook_gets_the_path_of_the_backup_and_a_restart_knows_what_it_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is absolute, also if the setting is not. A backup that is gone is forgotten."""
    monkeypatch.chdir(tmp_path)
    folder, other = Path("backups"), tmp_path / "other"
    folder.mkdir()
    made = hooked(folder, f'cp -R "$1" {other}')
    assert made.hook is not None
    assert trio.run(made.hook.run, NAME) == ""
    assert other.is_dir()
    assert made.hook.copied() == {NAME}
    (folder / NAME).rmdir()
    later = hooked(folder, "true")
    (folder / "20261122T040000.000000Z").mkdir()
    (folder / NAME).rmdir()
    assert later.hook is not None
    assert trio.run(later.hook.run, "20261122T040000.000000Z") == ""
    assert later.hook.copied() == {"20261122T040000.000000Z"}


@pytest.mark.parametrize(
    ("script", "told"),
    [("echo no room >&2; echo end; exit 3", "no room"), ("kill -TERM $$", "15"), ("exit 9", "9")],
)
def test_a_hook_that_fails_tells_why(tmp_path: Path, script: str, told: str) -> None:
    """The last lines of its output are part of the reason."""
    made = hooked(tmp_path, script)
    assert made.hook is not None
    assert told in trio.run(made.hook.run, NAME)
    assert made.hook.copied() == frozenset()


def test_a_hook_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    """It has failed then."""
    made = hooked(tmp_path, f"mkfifo {tmp_path}/pipe; (exec 3<>{tmp_path}/pipe; read -r line <&3) & wait", 0.5)
    assert made.hook is not None
    assert "killed" in trio.run(made.hook.run, NAME)


def test_a_hook_that_is_no_program_has_failed(tmp_path: Path) -> None:
    """The error of the system is the reason."""
    (tmp_path / NAME).mkdir()
    made = Backups(tmp_path, AdminSettings(backups=tmp_path, backup_hook=("/nowhere/hook",)))
    assert made.hook is not None
    assert "/nowhere/hook" in trio.run(made.hook.run, NAME)


def test_health_names_a_backup_that_is_not_copied(tmp_path: Path) -> None:
    """Also after a restart, until a hook has copied the newest."""
    made = hooked(tmp_path, "exit 1")
    made._looked = True
    for copied, codes in ((None, []), (True, []), (False, ["backup-not-copied"])):
        made.newest = replace(_row_of(NAME, "done"), copied=copied)
        assert [reason.partition(":")[0] for reason in made.degraded()] == codes


def test_the_next_backup_is_due_when_systemd_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is read as UTC, and is asked for once a minute. A timer that is off, or a machine without systemd, has no time."""
    program, asked = tmp_path / "systemctl", tmp_path / "asked"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    async def twice(text: str, timer: str = "backup.timer") -> set[int | None]:
        program.write_text(f'#!/bin/sh\necho "$TZ $*" >> {asked}\necho "{text}"\n')
        program.chmod(0o755)
        one = BackupTimer(timer)
        return {await one.next_at_us(), await one.next_at_us()}

    async def test() -> None:
        assert await twice("Thu 1970-01-01 00:01:00 UTC") == {60_000_000}
        assert len(asked.read_text().splitlines()) == 1
        assert asked.read_text().split()[0] == "UTC"
        assert asked.read_text().split()[-1] == "backup.timer"
        assert await twice("") == await twice("n/a") == {None}
        asked.unlink()
        assert await twice("Thu 1970-01-01 00:01:00 UTC", "") == {None}
        assert not asked.exists()
        monkeypatch.setenv("PATH", str(tmp_path / "none"))
        assert await twice("") == {None}

    trio.run(test)

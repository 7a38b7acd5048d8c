"""The journal of a follower with a kill, a power cut, an error or a full disk at any call ends with the same bytes."""

import contextlib
import errno
import random
from hashlib import sha256
from pathlib import Path

import pytest

from maxam.cluster import keeper
from maxam.cluster.feed import JournalFeed, SchemaTexts, names_digest
from maxam.cluster.keeper import Keeper
from maxam.cluster.ring import Ring
from maxam.errors import MaxamError
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import START, Position
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import RENEW
from maxam.records import Record
from tests.simulation.disk import KILL, Killed, PowerCut, SimulatedDisk
from tests.support.journal_records import SYNC, change

FOLDER = "/journal"
HOW = JournalSettings(segment_bytes_max=5000, reserve_bytes=0)
TEXT = b'"string"'


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Ring]:
    """Return the folder of a closed journal of two incarnations and several segments, with a text, and its ring buffer."""
    folder = str(tmp_path_factory.mktemp("source") / "journal")
    revision, ring = 0, Ring(START, "")
    for number in range(2):
        if number:
            Path(folder, RENEW).touch()
        journal = Journal.open(folder, OsDisk(), HOW, SYNC, f"{number + 1}" * 16)
        for _ in journal.recover():
            pass
        journal.keep_schemas([(sha256(TEXT).hexdigest(), TEXT)])
        Path(folder, "schemas", "notes.avsc").write_text("left by a person")
        for _ in range(4):
            records: list[Record] = [change(revision + each, body=b"v" * 500) for each in (1, 2)]
            revision += 2
            journal.write(journal.encode(records))
        journal.close(seal=number == 0)
        ring = Ring(journal.position, journal.incarnation)
    return folder, ring


def follow(disk: SimulatedDisk, source: tuple[str, Ring]) -> int:
    """Follow to the end, as a gateway does after its start; return the calls of the disk."""
    folder, ring = source
    journal = Journal.open(FOLDER, disk, HOW, bytes(16))
    for _ in journal.recover(following=True):
        pass
    kept = Keeper(journal, journal.position, die=lambda _: None)
    texts = SchemaTexts(folder)
    texts.skip(names_digest(sorted(one for one in disk.names(f"{FOLDER}/schemas") if one.endswith(".avsc"))))
    feed = JournalFeed(folder, ring, journal.position, journal.incarnation)
    try:
        for entry in texts.entries(feed.position):
            assert kept._store(entry)
        while entries := feed.take(1500):
            for entry in entries:
                assert kept._store(entry)
            kept._sync()
    finally:
        feed.close()
    journal.close(seal=False)
    return disk.calls


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    """Return the segments and texts of the follower."""
    found = {path.removeprefix(f"{FOLDER}/"): data for path, data in disk.contents().items()}
    return {path: data for path, data in found.items() if path.startswith(("segments/", "schemas/"))}


def of(folder: str) -> dict[str, bytes]:
    """Return those of the source."""
    root = Path(folder)
    return {
        str(path.relative_to(root)): path.read_bytes()
        for name in ("segments", "schemas")
        for path in (root / name).iterdir()
        if path.name != "notes.avsc"
    }


@pytest.mark.parametrize("fault", [KILL, 0, errno.ENOSPC, errno.EIO])
def test_a_follower_that_fails_at_any_call_goes_on(
    source: tuple[str, Ring], fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest comes again after its start."""
    monkeypatch.setattr(keeper, "_FULL_PAUSE_S", 0.0)
    whole = SimulatedDisk()
    calls = follow(whole, source)
    assert contents(whole) == of(source[0])
    for call in range(1, calls + 1):
        any_of_them = random.Random(call).randrange  # noqa: S311
        for lost in (lambda _: 0, lambda number: number - 1, any_of_them):
            disk = SimulatedDisk({call: fault})
            with contextlib.suppress(Killed, PowerCut, OSError, MaxamError):
                follow(disk, source)
            disk = disk.restarted(lost) if fault == 0 else disk.killed()
            follow(disk, source)
            found = {path: data for path, data in contents(disk).items() if ".torn-" not in path}
            assert found == of(source[0]), (call, disk.log)
            if fault != 0:
                break


def test_a_position_of_a_follower_never_runs_ahead_of_its_disk(
    source: tuple[str, Ring], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut at any call, the journal ends at or after the position that the keeper had called synced."""
    reached: list[Position] = []
    original = Keeper._sync

    def noted(self: Keeper) -> None:
        original(self)
        reached.append(self.synced)

    monkeypatch.setattr(Keeper, "_sync", noted)
    calls = follow(SimulatedDisk(), source)
    for call in range(1, calls + 1):
        reached.clear()
        disk = SimulatedDisk({call: 0})
        with contextlib.suppress(PowerCut):
            follow(disk, source)
        journal = Journal.open(FOLDER, disk.restarted(lambda _: 0), HOW, bytes(16))
        for _ in journal.recover(following=True):
            pass
        assert not reached or journal.position.revision >= reached[-1].revision
        journal.close(seal=False)

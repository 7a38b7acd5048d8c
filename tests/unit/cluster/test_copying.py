"""Copies of a journal: killed, cut off and out of room at any call, of another history, and of a giver that lies."""

import contextlib
import errno
import random
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import cast

import pytest

from maxam.cluster import wire
from maxam.cluster.copying import COPIED, COPYING, REPLACED, files_to_copy, give_copy, place_copy, take_copy
from maxam.cluster.link import Link, LinkLostError
from maxam.config import Limits
from maxam.errors import JournalError, MaxamError
from maxam.gateway.snapshot import build_snapshot
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import list_segments
from maxam.journal.verify import verify
from tests.simulation.disk import KILL, Killed, PowerCut, SimulatedDisk
from tests.support.journal_records import SYNC, change

FOLDER = "/s/journal"
TEXT = b'"string"'
Change = Callable[[list[wire.Frame]], list[bytes]]


def encoded(frames: list[wire.Frame]) -> list[bytes]:
    """Return frames as they are."""
    return [wire.frame(one.type, one.body) for one in frames]


class _Script:
    """The end of the giver: requests that are known, and its answers."""

    def __init__(self, requests: list[wire.Frame]) -> None:
        self.requests = deque(requests)
        self.answers = b""

    def expect(self) -> wire.Frame:
        """Return the next request."""
        if not self.requests:
            raise LinkLostError("no further request")
        return self.requests.popleft()

    def send(self, data: bytes) -> None:
        """Take an answer."""
        self.answers += data

    def pause(self, seconds: float) -> None:
        """Do not wait."""


class Pipe:
    """The end of the taker. The answers are those of `give_copy`, after `changed` has had them."""

    def __init__(self, folder: Path, changed: Change = encoded) -> None:
        self.folder = folder
        self.changed = changed
        self.asked: list[str] = []
        self.frames: deque[wire.Frame] = deque()

    def send(self, data: bytes) -> None:
        """Take requests."""
        for request in wire.FrameReader(large=False).feed(data):
            before = [wire.Frame(wire.LIST, b"")] if request.type == wire.DATA else []
            if request.type == wire.DATA:
                self.asked.append(wire.read_piece(request.body).path)
            script = _Script([*before, request])
            with contextlib.suppress(LinkLostError):
                give_copy(cast("Link", script), str(self.folder), OsDisk(), 2**40)
            answers = wire.FrameReader().feed(script.answers)[len(before) :]
            self.frames += wire.FrameReader().feed(b"".join(self.changed(answers)))

    def expect(self) -> wire.Frame:
        """Return the next answer."""
        if not self.frames:
            raise LinkLostError("the giver ended in the middle")
        return self.frames.popleft()

    def flush(self) -> None:
        """All requests were answered."""


def journal(folder: Path, letter: bytes, incarnation: str) -> Path:
    """Make a journal with two segments, a snapshot, and a text of a schema."""
    how = JournalSettings(segment_bytes_max=4000, durable=False, reserve_bytes=0)
    stored = Journal.open(folder, OsDisk(), how, SYNC, incarnation)
    assert not list(stored.recover())
    stored.keep_schemas([(sha256(TEXT).hexdigest(), TEXT)])
    (folder / "schemas" / "notes.avsc").write_text("left by a person")
    for revision in range(1, 9):
        stored.write(stored.encode([change(revision, destination=b"X/%d" % (revision % 3), body=letter * 1000)]))
        if revision == 6:
            stored.seal_aged(2**62)
            assert build_snapshot(str(folder), OsDisk(), Limits()) is not None
    stored.close()
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a journal to copy."""
    return journal(tmp_path_factory.mktemp("source") / "journal", b"v", "a" * 16)


def fresh() -> SimulatedDisk:
    """Return a disk with an own journal that is to be replaced."""
    disk = SimulatedDisk()
    for path in ("/s", FOLDER):
        disk.make_folder(path)
        disk.fsync_folder(path.rpartition("/")[0] or "/")
    disk.put(f"{FOLDER}/lock", b"")
    disk.put(f"{FOLDER}/own", b"own")
    disk.calls = 0
    return disk


def copy(disk: SimulatedDisk, source: Path, incarnation: str = "a" * 16, changed: Change = encoded) -> Pipe:
    """Copy, and put the copy into its place."""
    pipe = Pipe(source, changed)
    if f"{FOLDER}{COPIED}" not in disk.files:
        take_copy(cast("Link", pipe), FOLDER, disk, incarnation, lambda *_: None)
    place_copy(FOLDER, disk)
    return pipe


@lru_cache
def _read(folder: Path) -> dict[str, bytes]:
    return {path: (folder / path).read_bytes() for path, _ in files_to_copy(str(folder), OsDisk())}


def is_whole(disk: SimulatedDisk, source: Path) -> None:
    """Check that the copy is in its place and equals the source, and that the former journal is beside it."""
    found = disk.contents()
    prefix = f"{FOLDER}/"
    assert {path.removeprefix(prefix): data for path, data in found.items() if path.startswith(prefix)} == _read(source)
    assert [path for path in found if path.startswith(FOLDER + REPLACED) and found[path] == b"own"] == [
        f"{FOLDER}{REPLACED}-1/own"
    ]
    assert not [path for path in disk.files if path.startswith((FOLDER + COPYING, FOLDER + COPIED))]


def calls(source: Path) -> int:
    """Return the number of calls of the disk in a copy that nothing disturbs."""
    disk = fresh()
    copy(disk, source)
    is_whole(disk, source)
    return disk.calls


@pytest.mark.slow
@pytest.mark.parametrize("fault", [KILL, 0, errno.ENOSPC, errno.EIO])
def test_a_copy_that_fails_at_any_call_is_completed(source: Path, fault: int) -> None:
    """Killed, without power, without room, or with an error: the next try completes it, and nothing of the own journal is lost."""
    for call in range(1, calls(source) + 1):
        any_of_them = random.Random(call).randrange  # noqa: S311
        for lost in (lambda _: 0, lambda number: number - 1, any_of_them):
            disk = fresh()
            disk.faults = {call: fault}
            try:
                copy(disk, source)
            except (Killed, PowerCut):
                disk = disk.killed() if fault == KILL else disk.restarted(lost)
            except (OSError, MaxamError):
                assert fault > 0
            disk.faults = {}
            for _ in range(3):  # a damaged file is removed, and copied again by the next try
                try:
                    copy(disk, source)
                    break
                except JournalError:
                    continue
            is_whole(disk, source)
            if fault != 0:
                break


def test_a_copy_waits_for_room(source: Path) -> None:
    """With any room that is too small the copy fails, and goes on when there is enough."""
    size = sum(map(len, _read(source).values()))
    disk = fresh()
    for capacity in range(0, size, 997):
        disk.capacity = capacity
        with pytest.raises((OSError, MaxamError)):
            copy(disk, source)
    disk.capacity = 2 * size
    copy(disk, source)
    is_whole(disk, source)


def test_a_copy_of_another_history_begins_again(source: Path, tmp_path: Path) -> None:
    """Files of both have the same names and sizes, and each is valid by itself. They must not be mixed."""
    other = journal(tmp_path / "other", b"w", "b" * 16)
    assert [(path, len(data)) for path, data in _read(other).items()] == [
        (path, len(data)) for path, data in _read(source).items()
    ]
    for files in range(len(_read(source)) + 1):
        disk, asked = fresh(), 0

        def cut(frames: list[wire.Frame], files: int = files) -> list[bytes]:
            nonlocal asked
            asked += 1
            return encoded(frames) if asked <= files + 1 else []

        if files < len(_read(source)):
            with pytest.raises(LinkLostError):
                copy(disk, source, changed=cut)
            copy(disk, other, "b" * 16)
            is_whole(disk, other)


def test_whole_files_of_the_same_history_are_kept(source: Path) -> None:
    """Only the rest is asked for when a copy is continued."""
    disk, asked = fresh(), 0

    def cut(frames: list[wire.Frame]) -> list[bytes]:
        nonlocal asked
        asked += 1
        return encoded(frames) if asked <= 3 else []

    with pytest.raises(LinkLostError):
        copy(disk, source, changed=cut)
    assert len(copy(disk, source).asked) == len(_read(source)) - 2
    is_whole(disk, source)


def _listing(change: Callable[[list[tuple[str, int]]], list[tuple[str, int]]]) -> Change:
    """Return a giver that lists other files than it has."""

    def changed(frames: list[wire.Frame]) -> list[bytes]:
        return [
            wire.encode_files(change(wire.read_files(one.body)))
            if one.type == wire.FILES
            else wire.frame(one.type, one.body)
            for one in frames
        ]

    return changed


def _data(change: Callable[[wire.Piece], bytes]) -> Change:
    """Return a giver that sends other bytes."""

    def changed(frames: list[wire.Frame]) -> list[bytes]:
        return [
            change(wire.read_piece(one.body)) if one.type == wire.DATA else wire.frame(one.type, one.body)
            for one in frames
        ]

    return changed


def _piece(path: str, offset: int, data: bytes) -> bytes:
    return wire.encode_piece(wire.Piece(path, offset, data))


LIES: dict[str, Change] = {
    **{
        f"path {path!r}": _listing(lambda files, path=path: [(path, 5), *files])  # type: ignore[misc]
        for path in (
            "../evil",
            "segments/../../evil",
            "/etc/evil",
            "segments/a/b",
            "segments/..",
            "segments/.hidden",
            "lock",
            "restoring",
            "damaged/../evil",
            "damaged/a/../b",
            "segments\\evil",
            "segments/a\0b",
            "segments/a\nb",
            "",
        )
    },
    "larger size": _listing(lambda files: [(path, size + 1) for path, size in files]),
    "smaller size": _listing(lambda files: [(path, size - 1) for path, size in files]),
    "huge size": _listing(lambda files: [(path, 2**64 - 1) for path, size in files]),
    "twice": _listing(lambda files: [*files, (files[0][0], 1)]),
    "none of the segments": _listing(lambda files: [one for one in files if "snapshots" in one[0]] and files[:1]),
    "other path": _data(lambda piece: _piece("segments/other", piece.offset, piece.data)),
    "other offset": _data(lambda piece: _piece(piece.path, piece.offset + 1, piece.data)),
    "flipped": _data(lambda piece: _piece(piece.path, piece.offset, piece.data[:-1] + b"?")),
    "more bytes": _data(lambda piece: _piece(piece.path, piece.offset, piece.data + b"?")),
    "fewer bytes": _data(lambda piece: _piece(piece.path, piece.offset, piece.data[:-1])),
    "no digest": lambda frames: [
        wire.encode_done("", bytes(32)) if one.type == wire.DONE else wire.frame(one.type, one.body) for one in frames
    ],
    "entries": lambda frames: [wire.frame(wire.ENTRY, b"") for _ in frames],
    "nothing": lambda _: [],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_giver_that_lies_changes_nothing_outside_its_copy(source: Path, lie: str) -> None:
    """No file is made elsewhere, no such copy comes into the place of the journal, and an honest giver completes it."""
    disk = fresh()
    before = {path: data for path, data in disk.contents().items() if COPYING not in path}
    if lie != "none of the segments":
        for _ in range(3):
            with pytest.raises(MaxamError):
                copy(disk, source, changed=LIES[lie])
        assert {path: data for path, data in disk.contents().items() if COPYING not in path} == before
    for _ in range(3):
        try:
            copy(disk, source)
            break
        except JournalError:
            continue
    is_whole(disk, source)


def test_a_journal_in_use_is_not_replaced(source: Path) -> None:
    """Also if a copy is there: a second gateway was started by mistake."""
    disk = fresh()
    take_copy(cast("Link", Pipe(source)), FOLDER, disk, "a" * 16, lambda *_: None)
    lock = disk.lock(f"{FOLDER}/lock")
    with pytest.raises(JournalError):
        place_copy(FOLDER, disk)
    assert f"{FOLDER}/own" in disk.contents()
    disk.close(lock)
    place_copy(FOLDER, disk)
    is_whole(disk, source)


def test_a_copy_takes_the_older_archive_of_its_source(source: Path) -> None:
    """Sealed segments that a copy lacks, put beside those that it has, make the whole archive. Nothing else has to be done."""
    disk = fresh()
    copy(disk, source)
    older = {path.name: path for path in (source / "segments").glob("*-*.avro")}
    lacking = older.keys() - set(disk.names(f"{FOLDER}/segments"))
    assert lacking
    for name in lacking:
        disk.put(f"{FOLDER}/segments/{name}", older[name].read_bytes())
    assert [one.path for one in verify(FOLDER, disk) if one.problem is not None] == []
    assert list_segments(f"{FOLDER}/segments", disk)[0][0].first == 1

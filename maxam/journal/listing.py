"""The segments of a journal's folder as a reader beside the writer finds them, and reports on parts that cannot be read.

A segment is known by its first revision, which stays when its name changes; an open file is read on whatever it is called.
"""

import errno
import os
import stat
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final, Literal, final

from maxam.errors import JournalDamagedError, JournalError
from maxam.journal.disk import read_at
from maxam.journal.encoding import Position
from maxam.journal.names import Segment, parse_segment_name, parse_snapshot_name
from maxam.journal.scan import ALIGNED_BYTES, HEADER_BYTES, Scanner, written_bytes

Records = Literal["changes", "sessions", "rejected"]
ProblemKind = Literal["torn", "damaged", "missing", "expired", "clock", "unknown-schema", "unreadable"]

REVISION_MAX: Final = (1 << 63) - 1

_LISTINGS_MAX: Final = 20  # a folder whose names never stand still for two listings is no journal
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of an archive that cannot be read, or is odd.

    Attributes:
        kind: `torn`: an unfinished write at the end of the open segment, which was never acknowledged. `damaged`: bytes are not what
            was written. `missing`: a segment between others is not there. `expired`: so is one before all others, as retention
            does. `clock`: the clock that `accepted_at` comes from ran backwards. `unknown-schema`: no text is there to read a
            value by. `unreadable`: the system does not hand out the file, or another version wrote it.
        path: File, or the folder it should be in.
        offset: Byte at which it begins.
        first: First revision concerned, 0 for none.
        last: The last one.
        text: One line with the fault and the lost revisions, without path and offset.
        lost: Something that was in the journal could not be read.
    """

    kind: ProblemKind
    path: str
    offset: int
    first: int
    last: int
    text: str
    lost: bool = True

    def __str__(self) -> str:
        if self.kind in {"missing", "expired"}:  # nothing is wrong with any file that is there
            return f"{self.path}: {self.kind}: {self.text}"
        return f"{self.path}: byte {self.offset}: {self.kind}: {self.text}"


def segments_folder(folder: str | os.PathLike[str], records: Records) -> str:
    """Return where a journal keeps the segments of these records."""
    return f"{os.fspath(folder)}/{'rejected' if records == 'rejected' else 'segments'}"


def snapshot_revision(folder: str | os.PathLike[str]) -> int:
    """Return the last revision that a journal's newest snapshot stands for, 0 when there is none: segments reached so far at least."""
    try:
        names = os.listdir(f"{os.fspath(folder)}/snapshots")  # noqa: PTH208 - names are wanted
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return max((revision for name in names if (revision := parse_snapshot_name(name)) is not None), default=0)


def list_segments(folder: str | os.PathLike[str], records: Records) -> list[Segment]:
    """Return a journal's segments in order of revision.

    A segment that was renamed while the folder was read is in it once, under one of its names.

    Raises:
        JournalError: There is no such folder, or its names do not stand still.
        OSError: It cannot be read.
    """
    path = segments_folder(folder, records)
    names: list[str] | None = None
    for _ in range(_LISTINGS_MAX):
        before = names
        try:
            names = sorted(os.listdir(path))  # noqa: PTH208 - names are wanted
        except FileNotFoundError:
            if records == "rejected":
                return []  # nothing was ever rejected
            raise JournalError(
                f"{os.fspath(folder)} is not the folder of a journal: it holds no folder segments"
            ) from None
        if names == before:  # the first may have been read while a file was renamed, and miss it
            return _segments(path, names)
    raise JournalError(f"{path}: its names change all the time")


def _segments(folder: str, names: list[str]) -> list[Segment]:
    named = [one for name in names if (one := parse_segment_name(folder, name)) is not None]
    # of two names of one segment the sealed one, which is the newer
    segments = {one.first: one for one in sorted(named, key=lambda one: one.last)}
    lasting = [segments[first] for first in sorted(segments)]
    for at, (segment, after) in enumerate(pairwise(lasting)):
        if segment.open:  # the gateway seals a segment before it begins the next: this one is no longer written
            lasting[at] = replace(segment, last=after.first - 1)
    return lasting


def find_segment(folder: str | os.PathLike[str], records: Records, segment: Segment) -> Segment | None:
    """Return a segment as it is called now, or None when it is gone."""
    return next((one for one in list_segments(folder, records) if one.first == segment.first), None)


def size_of(segment: Segment) -> int:
    """Return the bytes of a segment. 0 if it was sealed or removed since it was listed, which opening it will report."""
    try:
        size = os.stat(segment.path).st_size  # noqa: PTH116 - a string is what there is
        if not segment.open or size % ALIGNED_BYTES:
            return size
        file = SegmentFile(segment.path)
    except FileNotFoundError:
        return 0
    try:
        return written_bytes(file.size, file.read)
    finally:
        file.close()


@final
class SegmentFile:
    """A file that is open for reading: stays readable when it is renamed or removed."""

    def __init__(self, path: str) -> None:
        self._handle: Final = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe must not block
        state = os.fstat(self._handle)
        if not stat.S_ISREG(state.st_mode):
            os.close(self._handle)
            raise OSError(errno.EINVAL, "not a regular file", path)
        self.size = state.st_size

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes, fewer than `length` only at the end."""
        return read_at(self._handle, offset, length)


def open_segment(folder: str | os.PathLike[str], records: Records, segment: Segment) -> tuple[Segment, SegmentFile]:
    """Open a segment, under its new name if it has been sealed.

    Raises:
        FileNotFoundError: It is gone.
        OSError: It cannot be read.
    """
    try:
        file = SegmentFile(segment.path)
    except FileNotFoundError:
        found = find_segment(folder, records, segment)
        if found is None:
            raise
        segment, file = found, SegmentFile(found.path)
    if segment.open:
        file.size = written_bytes(file.size, file.read)
    return segment, file


def fault_text(error: JournalDamagedError) -> str:
    """Return what is wrong, without path and offset."""
    return str(error).removeprefix(f"{error.path}: byte {error.offset}: ")


def lost_text(first: int, last: int) -> str:
    """Return the end of a text: which revisions are lost."""
    if first > last:
        return "; no change is lost"
    return f"; lost: revision {first}" if first == last else f"; lost: revisions {first} to {last}"


def lost_from_text(first: int) -> str:
    """Return the same when the number of them is unknown."""
    return f"; all from revision {first} on is lost"


def whole_lost(segment: Segment, kind: ProblemKind, text: str) -> Problem:
    """Return the problem that nothing of a segment can be read."""
    first, last = segment.first, segment.last or segment.first
    lost = lost_from_text(first) if segment.open else lost_text(first, last)
    return Problem(kind, segment.path, 0, first, last, text + lost)


def start_of(segment: Segment) -> Position | None:
    """Return the position in the header of a segment. None if there is no header that can be believed."""
    try:
        file = SegmentFile(segment.path)
    except OSError:
        return None
    try:
        return Scanner(segment.path, file.size, lambda at, length: file.read(at, min(length, HEADER_BYTES))).start
    except (JournalDamagedError, OSError):
        return None
    finally:
        file.close()


def time_text(at_us: int) -> str:
    """Return a time as people and Spark read it; a garbled one as the number it is."""
    try:
        return (_EPOCH + timedelta(microseconds=at_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{at_us} us"

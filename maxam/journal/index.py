"""The contents of a sealed segment in a small file beside it, so that a reader can skip segments that hold nothing it wants.

`index/<first>-<last>.index` holds the figures of `SegmentIndex` and a Bloom filter. The filter has the destinations of the
segment's changes, and the part of each before its first `.` and before its first `/`. An index carries its segment's size and
the check of its last block, and a CRC-32 at its end. It only ever saves time: one that is missing, damaged or of another segment
is ignored.
"""

import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Final, final

from maxam.errors import JournalDamagedError
from maxam.journal.decoding import Decoder
from maxam.journal.disk import Disk, write_file
from maxam.journal.encoding import CHECK_BYTES, SYNC_BYTES
from maxam.journal.names import Segment, sealed_segments
from maxam.journal.scan import Scanner
from maxam.records import Change, Record

_MAGIC: Final = b"maxamix1"
# size and last check of the segment, records, changes, first and last accepted_at, bytes of: lowest destination, highest, filter
_HEAD: Final = struct.Struct(">8sQ8sQQQQIII")
_CRC_BYTES: Final = 4
_SUFFIX: Final = ".index"
# Ten bits for each entry and seven of them set: one answer in 120 is wrong (0.82 %).
_BITS_PER_ENTRY: Final = 10
_BITS_SET: Final = 7
_SEPARATOR: Final = re.compile(rb"[./]")
_LEVELS_MAX: Final = 8  # of a destination that have an entry: a hostile one has hundreds


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The contents of one sealed segment.

    Attributes:
        first: Revision of its first change.
        last: Of its last.
        records: All of them, those of sessions included; the end mark is not counted.
        changes: Values and deletes among them.
        first_at_us: accepted_at of its first record, of whatever kind; microseconds since the epoch.
        last_at_us: Of its last.
        lowest: The lowest destination of its changes in byte order.
        highest: The highest.
        bloom: The filter.
    """

    first: int
    last: int
    records: int
    changes: int
    first_at_us: int
    last_at_us: int
    lowest: bytes
    highest: bytes
    bloom: bytes

    def may_hold(self, destination: bytes) -> bool:
        """Return True if a change of this destination can be in the segment. False is certain."""
        return self.lowest <= destination <= self.highest and _has(self.bloom, destination)

    def may_hold_prefix(self, prefix: bytes) -> bool:
        """Return True if a change of a destination that begins so can be in the segment. False is certain."""
        if prefix > self.highest or self.lowest[: len(prefix)] > prefix:
            return False
        level = _levels(prefix)
        return not level or _has(self.bloom, level[-1])


@final
class IndexBuilder:
    """Gathers the index of one sealed segment."""

    def __init__(self, segment: Segment) -> None:
        self._segment: Final = segment
        self._destinations: Final[set[bytes]] = set()
        self._records = 0
        self._changes = 0
        self._first_at_us = 0
        self._last_at_us = 0

    def add(self, record: Record) -> None:
        """Add the next record of the segment."""
        if not self._records:
            self._first_at_us = record.accepted_at_us
        self._records += 1
        self._last_at_us = record.accepted_at_us
        if type(record) is Change:
            self._changes += 1
            self._destinations.add(record.destination)

    def write(self, folder: str, disk: Disk) -> SegmentIndex:
        """Store the index, once all records of the segment have been added.

        Args:
            folder: The journal's.
            disk: Where it is.

        Raises:
            DiskFullError: Nothing of it is left.
            OSError: The disk fails.
        """
        segment = self._segment
        index = SegmentIndex(
            segment.first,
            segment.last,
            self._records,
            self._changes,
            self._first_at_us,
            self._last_at_us,
            min(self._destinations, default=b""),
            max(self._destinations, default=b""),
            _filter(self._destinations),
        )
        disk.make_folder(f"{folder}/index")
        write_file(disk, index_path(folder, segment), [_encode(index, *_seal(segment, disk))])
        return index


def load(folder: str, segment: Segment, disk: Disk) -> SegmentIndex | None:
    """Return the index of a segment, or None when there is none that can be believed.

    Args:
        folder: The journal's.
        segment: One of its sealed segments.
        disk: Where it is.
    """
    path = index_path(folder, segment)
    try:
        size, check = _seal(segment, disk)
        data = disk.read(path, 0, disk.size(path))
    except OSError:
        return None
    if len(data) < _HEAD.size + _CRC_BYTES or not data.startswith(_MAGIC):
        return None
    if zlib.crc32(memoryview(data)[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "big"):
        return None
    _, stored_size, stored_check, records, changes, first_at_us, last_at_us, lowest, highest, bloom = _HEAD.unpack_from(
        data
    )
    if (stored_size, stored_check) != (size, check) or _HEAD.size + lowest + highest + bloom + _CRC_BYTES != len(data):
        return None
    low_end = _HEAD.size + lowest
    high_end = low_end + highest
    return SegmentIndex(
        segment.first,
        segment.last,
        records,
        changes,
        first_at_us,
        last_at_us,
        data[_HEAD.size : low_end],
        data[low_end:high_end],
        data[high_end : high_end + bloom],
    )


def build(folder: str, segment: Segment, disk: Disk) -> SegmentIndex:
    """Read a sealed segment and store its index.

    Args:
        folder: The journal's.
        segment: One of its sealed segments.
        disk: Where it is.

    Raises:
        JournalDamagedError: The segment is not what was written.
        DiskFullError: There is no room for the index.
        OSError: The disk fails.
    """
    path = segment.path
    scanner = Scanner(path, disk.size(path), lambda offset, length: disk.read(path, offset, length))
    decoder = Decoder(scanner.start.revision, scanner.start.accepted_at_us)
    builder = IndexBuilder(segment)
    while (records := scanner.records(decoder)) is not None:
        for record in records:
            builder.add(record)
    if not scanner.ended or (scanner.start.revision + 1, decoder.revision) != (segment.first, segment.last):
        raise JournalDamagedError(path, scanner.size, "its contents do not match its name")
    return builder.write(folder, disk)


def unindexed(folder: str, disk: Disk) -> list[Segment]:
    """Return the sealed segments that have no index, newest first: those are read most."""
    there = set(disk.names(f"{folder}/index")) if "index" in disk.names(folder) else set()
    return [
        one
        for one in reversed(sealed_segments(folder, disk))
        if index_path(folder, one).rpartition("/")[2] not in there
    ]


def drop_strays(folder: str, disk: Disk) -> None:
    """Remove the indexes of segments that are gone, and what a killed process left unfinished."""
    if "index" not in disk.names(folder):
        return
    names = set(disk.names(f"{folder}/index"))
    kept = {index_path(folder, segment).rpartition("/")[2] for segment in sealed_segments(folder, disk)}
    for name in sorted(names - kept):
        if name.endswith((_SUFFIX, _SUFFIX + ".tmp")):
            disk.unlink(f"{folder}/index/{name}")


def index_path(folder: str, segment: Segment) -> str:
    """Return where the index of a sealed segment is, or would be."""
    return f"{folder}/index/{segment.first:020}-{segment.last:020}{_SUFFIX}"


def _seal(segment: Segment, disk: Disk) -> tuple[int, bytes]:
    """Return a segment's size and the check of its last block, which stands for all before it."""
    size = disk.size(segment.path)
    tail = CHECK_BYTES + SYNC_BYTES
    return size, disk.read(segment.path, max(0, size - tail), CHECK_BYTES).ljust(CHECK_BYTES, b"\0")


def _encode(index: SegmentIndex, size: int, check: bytes) -> bytes:
    lengths = (len(index.lowest), len(index.highest), len(index.bloom))
    head = _HEAD.pack(_MAGIC, size, check, index.records, index.changes, index.first_at_us, index.last_at_us, *lengths)
    data = b"".join((head, index.lowest, index.highest, index.bloom))
    return data + zlib.crc32(data).to_bytes(_CRC_BYTES, "big")


def _levels(text: bytes) -> list[bytes]:
    """Return what begins a destination up to and with each of its first separators."""
    return [text[: one.end()] for one in islice(_SEPARATOR.finditer(text), _LEVELS_MAX)]


def _filter(destinations: Iterable[bytes]) -> bytes:
    entries = set(destinations)
    for parent in {one[: max(one.rfind(b"."), one.rfind(b"/")) + 1] for one in entries}:  # many share one
        entries.update(_levels(parent))
    bits = max(64, len(entries) * _BITS_PER_ENTRY)
    bloom = bytearray((bits + 7) // 8)
    bits = len(bloom) * 8
    for entry in entries:
        place, step = _hashes(entry)
        for _ in range(_BITS_SET):
            bit = place % bits
            bloom[bit >> 3] |= 1 << (bit & 7)
            place += step
    return bytes(bloom)


def _has(bloom: bytes, entry: bytes) -> bool:
    bits = len(bloom) * 8
    place, step = _hashes(entry)
    for _ in range(_BITS_SET):
        bit = place % bits
        if not bloom[bit >> 3] & 1 << (bit & 7):
            return False
        place += step
    return True


def _hashes(entry: bytes) -> tuple[int, int]:
    """Return two independent numbers, of which any number of further ones can be made (Kirsch and Mitzenmacher)."""
    digest = blake2b(entry, digest_size=16).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big") | 1

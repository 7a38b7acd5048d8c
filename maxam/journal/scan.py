"""Scan one file of the journal block by block, believing nothing that its checks do not prove."""

import re
import zlib
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final, final

from maxam.content import read_text, read_unsigned
from maxam.errors import JournalDamagedError
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import (
    CHECK_BYTES,
    FIRST_SCHEMA,
    KIND_END,
    MAGIC,
    SCHEMA,
    SEQUENCES_SCHEMA,
    SYNC_BYTES,
    Position,
    end_block,
    header,
)
from maxam.journal.layout import first_record
from maxam.journal.old_snapshots import with_sequences
from maxam.records import Record

Read = Callable[[int, int], bytes]  # (offset, length) -> the bytes there, fewer only at the end of the file

_BARE_HEADER_BYTES: Final = len(header(Position(0, 0, 0), bytes(SYNC_BYTES), snapshot=False))  # without incarnation
HEADER_BYTES: Final = len(
    header(Position(0, 0, 0), bytes(SYNC_BYTES), snapshot=False, incarnation="0" * 16)
)  # of a segment, at most; no block is so short that it ends before that in a file of an older release
ALIGNED_BYTES: Final = (
    4096  # an open segment whose room is allocated ahead has a multiple of this size, and zeros at its end
)
END_TAIL_BYTES: Final = 128  # more than an end mark and the sync marker before it
_WINDOW_BYTES: Final = 1 << 20  # read at once: blocks can be small
_ZEROS_BYTES: Final = 1 << 16  # read at once to find where zeros begin
_HEADER_BYTES_MAX: Final = 1 << 16
OTHER_VERSION: Final = "written by another version of maxam, with another schema"  # what is wrong with a whole header
_CHECK_ENTRY: Final = b"\x16maxam.check\x10"  # name, and the length of the eight digits
_INCARNATION: Final = re.compile(rb"[0-9a-f]{16}|")
_REVISION: Final = re.compile(rb"[0-9]{20}")
_KINDS: Final = {b"segment": False, b"snapshot": True}
_SNAPSHOT_SCHEMAS: Final = {FIRST_SCHEMA, SEQUENCES_SCHEMA, SCHEMA}  # oldest first
_SEGMENT_SCHEMAS: Final = {FIRST_SCHEMA, SCHEMA}


@final
class Scanner:
    """Reads a file from its header on.

    Attributes:
        path: For the texts of errors.
        size: Bytes of the file, or what was written of it.
        snapshot: True if the header is that of a snapshot.
        start: Position in the header.
        first_offset: Of the first block.
        incarnation: Of the journal, as the header has it; empty in files of older releases.
        floor: Revision above which a snapshot holds all deletes: its own if the header does not have it. Of a segment, 0.
        sync_marker: Of this file.
        outdated: It has the schema of an older release: records of newer kinds must not be added.
        offset: Of the next block.
        chain: Check of the block before.
        ended: The mark of a finished file was read.
    """

    __slots__ = (
        "_old_snapshot",
        "_read",
        "_window",
        "_window_at",
        "chain",
        "ended",
        "first_offset",
        "floor",
        "incarnation",
        "offset",
        "outdated",
        "path",
        "size",
        "snapshot",
        "start",
        "sync_marker",
    )

    def __init__(self, path: str, size: int, read: Read) -> None:
        """Read and check the header.

        Raises:
            JournalDamagedError: It is not a whole, unharmed header of this format.
        """
        self.path: Final = path
        self.size = size
        self._read: Final = read
        self._window = b""
        self._window_at = 0
        head = self._bytes(0, _HEADER_BYTES_MAX)
        place = head.find(_CHECK_ENTRY)
        tail = place + len(_CHECK_ENTRY)
        end = tail + 8 + 1 + SYNC_BYTES
        if not head.startswith(MAGIC) or place < 0 or len(head) < end:
            raise JournalDamagedError(path, 0, "not the header of a journal file")
        if head[tail : tail + 8] != b"%08x" % zlib.crc32(head[tail + 8 : end], zlib.crc32(head[:tail])):
            raise JournalDamagedError(path, 0, "the header does not match its checksum")
        try:
            entries = _metadata(head[:end])
            revision, accepted_at_us, chain = entries[b"maxam.position"].split(b" ")
            self.start: Final = Position(int(revision), int(accepted_at_us), int(chain, 16))
            self.snapshot: Final = _KINDS[entries[b"maxam.file"]]
            incarnation = entries.get(b"maxam.incarnation", b"")
            floor = entries.get(b"maxam.floor", b"%020d" % (self.start.revision if self.snapshot else 0))
        except (ValueError, LookupError):
            raise JournalDamagedError(path, 0, "unknown metadata in the header") from None
        schema = entries.get(b"avro.schema")
        if schema not in (_SNAPSHOT_SCHEMAS if self.snapshot else _SEGMENT_SCHEMAS):
            raise JournalDamagedError(path, 0, OTHER_VERSION)
        self.outdated: Final = schema != SCHEMA
        self._old_snapshot: Final = self.snapshot and schema == FIRST_SCHEMA
        if (
            entries.get(b"avro.codec") != b"null"
            or not _INCARNATION.fullmatch(incarnation)
            or not _REVISION.fullmatch(floor)
        ):
            raise JournalDamagedError(path, 0, "unknown metadata in the header")
        self.incarnation: Final = incarnation.decode()
        self.floor: Final = int(floor)
        self.sync_marker: Final = head[end - SYNC_BYTES : end]
        self.first_offset: Final = end
        self.offset = end
        self.chain = 0 if self.snapshot else self.start.chain
        self.ended = False

    def leave_out_zeros(self) -> None:
        """Take what was written of an open segment for its size."""
        marker = self.sync_marker
        written = written_bytes(self.size, self._read) + len(marker) - len(marker.rstrip(b"\0"))
        self.size = min(self.size, written)

    def next_block(self) -> tuple[bytes, int] | None:
        """Return the bytes of the next block's records and their count, or None at the end of the file.

        Raises:
            JournalDamagedError: It is not what was written here. The scanner stays before it.
        """
        if self.offset == self.size:
            return None
        if self.ended:
            raise JournalDamagedError(self.path, self.offset, "bytes follow the mark of a finished file")
        data, count, check, seed, end = self._block(self.offset)
        if seed != self.chain:
            raise JournalDamagedError(self.path, self.offset, "the block does not follow the one before it")
        self.offset = end
        self.ended = count == 1 and first_record(data)[2] == KIND_END
        if not self.ended:  # the end mark stands outside the chain
            self.chain = check
        return data, count

    def records(self, decoder: Decoder) -> list[Record] | None:
        """Return the records of the next block, or None at the end of the file.

        Raises:
            JournalDamagedError: As of `next_block`, or its records do not follow those before. The decoder is of no further use.
        """
        offset = self.offset
        block = self.next_block()
        if block is None:
            return None
        try:
            records = decoder.decode(*block)
            return with_sequences(records) if self._old_snapshot else records
        except (ValueError, IndexError) as error:
            self.offset = offset
            problem = f"the block is whole, but its records are wrong: {error}"
            raise JournalDamagedError(self.path, offset, problem) from error

    def torn(self) -> bool:
        """Return True if the bytes from `offset` on can be the remains of one write after a crash: they hold no whole block.

        A whole block at the wrong place in the chain, or one after damage, was once committed.
        """
        return self._next_whole(self.offset) is None

    def skip_damage(self) -> bool:
        """Move to the next whole block from `offset` on, wherever in the chain it belongs; return False, and stay, without one."""
        found = self._next_whole(self.offset)
        if found is None:
            return False
        self.offset, self.chain = found
        self.ended = False
        return True

    def _next_whole(self, offset: int) -> tuple[int, int] | None:
        """Return offset and seed of the first whole block from an offset on."""
        found = self._whole(offset)
        if found is not None:
            return found
        behind, check = self._behind(offset)
        found = self._whole(behind)
        if found is not None and found[1] == check:  # only contents are damaged: what they hold is not read
            return found
        places = [
            behind
        ]  # a heap of where blocks begin if the heads before them are right: their markers can be damaged
        markers = self._markers(offset)
        marker = next(markers, self.size)
        while (start := min(marker, *places[:1])) < self.size:
            if start == marker:
                marker = next(markers, self.size)
            while places and places[0] == start:
                heappop(places)
            found = self._whole(start)
            if found is not None:
                return found
            heappush(places, self._behind(start)[0])
        return None

    def _markers(self, offset: int) -> Iterator[int]:
        """Yield where each of the file's sync markers from an offset on ends."""
        at = offset
        while at + SYNC_BYTES < self.size:
            chunk = self._bytes(at, _WINDOW_BYTES)
            place = chunk.find(self.sync_marker)
            while place >= 0:
                yield at + place + SYNC_BYTES
                place = chunk.find(self.sync_marker, place + 1)
            at += max(1, len(chunk) - SYNC_BYTES + 1)  # the next chunk begins with what may be a marker's beginning

    def _behind(self, offset: int) -> tuple[int, int]:
        """Return where the next block is if only contents or marker of the one at an offset are wrong, and the check of this one."""
        head = self._bytes(offset, 20)
        try:
            _, place = read_unsigned(head, 0)
            length, place = read_unsigned(head, place)
        except (ValueError, IndexError):
            return self.size, 0
        if length >> 1 <= CHECK_BYTES:  # zeros, for one
            return self.size, 0
        end = offset + place + (length >> 1)
        return end + SYNC_BYTES, int.from_bytes(self._bytes(end - CHECK_BYTES, 4), "big") if end < self.size else 0

    def _whole(self, offset: int) -> tuple[int, int] | None:
        """Return offset and seed of the block at an offset, if there is a whole one."""
        if offset >= self.size:
            return None
        try:
            return offset, self._block(offset)[3]
        except JournalDamagedError:
            return None

    def _block(self, offset: int) -> tuple[bytes, int, int, int, int]:
        """Return data, count, check and seed of the block at an offset, and where it ends."""
        head = self._bytes(offset, 20)
        try:
            count, place = read_unsigned(head, 0)
            length, place = read_unsigned(head, place)
        except (ValueError, IndexError):
            raise JournalDamagedError(self.path, offset, "not a block") from None
        if (count | length) & 1 or not count or length >> 1 <= CHECK_BYTES:
            raise JournalDamagedError(self.path, offset, "not a block")
        start = offset + place
        end = start + (length >> 1)
        if end + SYNC_BYTES > self.size:
            raise JournalDamagedError(self.path, offset, "the block is cut short")
        data = self._bytes(start, end - start)
        seed = int.from_bytes(data[-4:], "big")
        check = zlib.crc32(memoryview(data)[:-CHECK_BYTES], zlib.crc32(head[:place], seed))
        if int.from_bytes(data[-8:-4], "big") != check:
            raise JournalDamagedError(self.path, offset, "the block does not match its checksum")
        if self._bytes(end, SYNC_BYTES) != self.sync_marker:
            raise JournalDamagedError(self.path, offset, "the block does not end with the file's sync marker")
        return data, count >> 1, check, seed, end + SYNC_BYTES

    def _bytes(self, offset: int, length: int) -> bytes:
        place = offset - self._window_at
        if place < 0 or place + length > len(self._window):
            length = max(0, min(length, self.size - offset))
            self._window = self._read(offset, max(length, _WINDOW_BYTES))
            self._window_at = offset
            place = 0
        return self._window[place : place + length]


def written_bytes(size: int, read: Read) -> int:
    """Return the bytes of an open segment without the zeros of room that was allocated ahead.

    Room is allocated only where no block ends with a zero. In files of older releases, a block can end with one. One file in a million has
    also a multiple of ALIGNED_BYTES. A reader that calls this gets its last block later. `Scanner.leave_out_zeros` is exact.
    """
    end = 0 if size % ALIGNED_BYTES else size
    while end:
        start = max(0, end - _ZEROS_BYTES)
        written = read(start, end - start).rstrip(b"\0")
        if written:
            return start + len(written)
        end = start
    return size


def scan_from(path: str, size: int, read: Read, before: Position, sync_marker: bytes, offset: int) -> Scanner:
    """Return a scanner that stands before the block at an offset, whatever the header of the file looks like.

    Args:
        path: For the texts of errors.
        size: Bytes of the file.
        read: How to get them.
        before: Where that block belongs.
        sync_marker: Of the file.
        offset: Of the block.
    """
    start = header(before, sync_marker, snapshot=False)

    def read_on(at: int, length: int) -> bytes:
        if at >= len(start):
            return read(at, length)
        return start[at : at + length] + read(len(start), max(0, at + length - len(start)))

    scanner = Scanner(path, max(size, len(start)), read_on)
    scanner.offset = offset
    scanner.chain = before.chain
    return scanner


def headless(path: str, size: int, read: Read, revision: int) -> list[Scanner]:
    """Return scanners of a segment whose header cannot be believed, each before the first whole block that it finds.

    The header's place and the end of the file show which marker stands between its blocks.

    Args:
        path: For the texts of errors.
        size: Bytes of the file.
        read: How to get them.
        revision: Of the change before its first.
    """
    if size <= _BARE_HEADER_BYTES:
        return []
    places = [HEADER_BYTES - SYNC_BYTES, _BARE_HEADER_BYTES - SYNC_BYTES, size - SYNC_BYTES]
    markers = list(dict.fromkeys([read(place, SYNC_BYTES) for place in places]))
    before = Position(revision, 0, 0)
    scanners = [scan_from(path, size, read, before, marker, _BARE_HEADER_BYTES) for marker in markers]
    return [scanner for scanner in scanners if scanner.skip_damage()]


def end_position(tail: bytes) -> Position | None:
    """Return the position at the end of a finished file, as its end mark has it; None without a whole one.

    Args:
        tail: The last END_TAIL_BYTES of the file.
    """
    sync_marker = tail[-SYNC_BYTES:]
    place = tail.rfind(sync_marker, 0, len(tail) - SYNC_BYTES) + SYNC_BYTES
    try:
        _, place = read_unsigned(tail, place)  # count
        _, place = read_unsigned(tail, place)  # size
        revision, place = read_unsigned(tail, place)
        accepted_at, _ = read_unsigned(tail, place)
    except (ValueError, IndexError):
        return None
    chain = int.from_bytes(tail[-SYNC_BYTES - CHECK_BYTES // 2 : -SYNC_BYTES], "big")
    end = Position(revision >> 1, accepted_at >> 1, chain)
    return end if tail.endswith(end_block(end, sync_marker)) else None


def _metadata(head: bytes) -> dict[bytes, bytes]:
    """Return the metadata of an Avro container's header; raises ValueError or IndexError if they are not in one block."""
    entries: dict[bytes, bytes] = {}
    count, place = read_unsigned(head, len(MAGIC))
    if count & 1:
        raise ValueError("a block of metadata with its size")
    for _ in range(count >> 1):
        name, place = read_text(head, place)
        entries[name], place = read_text(head, place)
    if head[place : place + 1] != b"\0" or place + 1 + SYNC_BYTES != len(head):
        raise ValueError("more metadata")
    return entries

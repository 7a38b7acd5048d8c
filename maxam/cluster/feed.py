"""A feed: each committed block of a journal after a position, first out of the files, then out of the ring buffer.

A feed sends only what is committed. The end of the ring buffer is the newest committed position. A feed leaves the files as soon as
the ring buffer holds its position.
"""

import os
import re
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Final, final

from maxam.cluster import wire
from maxam.cluster.entry import INCARNATION, SCHEMAS, SEAL, Entry, block_entry, texts_payload
from maxam.cluster.link import Link
from maxam.cluster.ring import Ring
from maxam.errors import JournalDamagedError, MaxamError
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import SYNC_BYTES, Position
from maxam.journal.identity import find_block
from maxam.journal.listing import SegmentFile, list_segments, open_segment, snapshot_revision
from maxam.journal.names import Segment
from maxam.journal.scan import END_TAIL_BYTES, Scanner, end_position

SCHEMA_NAME: Final = re.compile(r"[0-9a-f]{64}\.avsc")
_BATCH_BYTES: Final = 1_048_576
_TEXTS_BYTES: Final = 262_144  # of schemas in one entry
_SETTLED_NS: Final = 1_000_000_000  # after which a folder that changes again has another time of change
_PAUSE_S_MIN: Final = 0.005  # until the ring buffer is asked again when it has nothing new; doubled each time
_PAUSE_S_MAX: Final = 0.05


@final
class FeedRefusedError(MaxamError):
    """A feed cannot begin at a position, or cannot go on.

    Attributes:
        reason: Code of the REFUSED.
    """

    code = "link-refused"

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason: Final = reason


@final
class JournalFeed:
    """The entries of one journal after a position. It belongs to one thread.

    Attributes:
        position: After the last entry that was taken.
    """

    def __init__(self, folder: str, ring: Ring, position: Position, known: str) -> None:
        """Find a position.

        Args:
            folder: Of the journal.
            ring: Its newest blocks.
            position: Where the reader's journal ends.
            known: Incarnation of the reader's journal; empty for none.

        Raises:
            FeedRefusedError: The journal does not hold what follows that position.
            OSError: It cannot be read.
        """
        self._folder: Final = folder
        self._ring: Final = ring
        self._sent_incarnation = known
        self._scanner: Scanner | None = None
        self._file: SegmentFile | None = None
        self._decoder = Decoder(0, 0)
        self._begins = False  # the next block out of the file is the first of its segment
        self._after = 0  # the next segment begins after this revision, if no file is open
        self.position = position
        self._number = None if self._is_unknown(position) else ring.find(position)
        if self._number is None:
            self._find(position, known)
        self._seal = _sealed_at(folder, position)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = self._scanner = None

    def take(self, bytes_max: int = _BATCH_BYTES) -> list[Entry]:
        """Return the next entries, up to a size; none if the reader has all.

        Raises:
            FeedRefusedError: The next entry is gone.
            JournalDamagedError: A file differs from what was written.
            OSError: A file cannot be read.
        """
        if self._seal is not None:
            entry, self._seal = self._seal, None
            return [entry]
        if self._number is None:
            entries = list(self._from_files(bytes_max))
            if entries or self._number is None:
                return entries
        taken = self._ring.take(self._number, bytes_max)
        if taken is None:
            self._number = None
            self._find(self.position, self._ring.incarnation)
            return self.take(bytes_max)
        entries, self._number, incarnation = taken
        if entries:
            self.position = entries[-1].after
            if self._sent_incarnation != incarnation:
                entries.insert(0, self._renewed(incarnation, entries[0].before, entries[0].marker))
        return entries

    # files

    def _is_unknown(self, position: Position) -> bool:
        """Return True if a position has no check although blocks came before it: the reader began from a snapshot alone."""
        return position.chain == 0 and position.revision > 0

    def _find(self, position: Position, known: str) -> None:
        """Stand before the block that follows a position; arguments and errors as of the constructor."""
        revision, chain = position.revision, position.chain
        self.close()
        if revision > self._ring.end.revision:
            raise FeedRefusedError(
                wire.AHEAD,
                f"the journal ends with revision {self._ring.end.revision}, but {revision} was asked for: this gateway lost changes, or"
                " the other one was promoted. See `maxam-admin cluster rejoin`",
            )
        segments = list_segments(self._folder, "changes")
        reached = snapshot_revision(self._folder)
        if (not segments and reached > revision) or (segments and segments[0].first - 1 > revision):
            begins = segments[0].first if segments else reached
            raise FeedRefusedError(wire.GONE, f"the archive begins with revision {begins}: the journal must be copied")
        unknown = self._is_unknown(position)
        if unknown and known != self._ring.incarnation:
            raise FeedRefusedError(wire.FORKED, f"revision {revision} is of another incarnation of the journal")
        for segment in reversed(segments):
            there = segment.first - 1 <= revision and (segment.open or revision <= segment.last)
            if there and self._stand(segment, position, unknown):
                return
        self._number = self._ring.find(position)  # there may be no segment yet
        if self._number is None and segments and segments[0].first - 1 == revision:
            raise FeedRefusedError(
                wire.GONE, f"the block that ended revision {revision} is gone: the journal must be copied"
            )
        if self._number is None:
            raise FeedRefusedError(
                wire.FORKED,
                f"this journal does not hold the block with the check {chain:08x} that ended revision {revision}: the histories"
                " differ. See `maxam-admin cluster rejoin`",
            )

    def _stand(self, segment: Segment, position: Position, unknown: bool) -> bool:
        """Stand in or after a segment that may hold a position; return False if it does not."""
        revision, chain = position.revision, position.chain
        if segment.first - 1 == revision and self._open(segment):
            if unknown or self._opened.start.chain == chain:
                return True
            self.close()
        if not segment.open and segment.last == revision and (unknown or chain == _end_chain(segment)):
            self._after = revision
            return True
        if unknown:
            return False
        offset = find_block(self._folder, "changes", segment, chain)
        if offset is None or not self._open(segment):
            return False
        scanner = self._opened
        scanner.offset = offset
        scanner.chain = chain
        self._decoder = Decoder(revision, position.accepted_at_us)
        self._begins = False
        self.position = position
        return True

    def _open(self, segment: Segment) -> bool:
        """Stand before the first block of a segment; return False if it is gone."""
        self.close()
        try:
            found, file = open_segment(self._folder, "changes", segment)
        except FileNotFoundError:
            return False
        self._file = file
        try:
            self._scanner = scanner = Scanner(found.path, file.size, file.read)
        except JournalDamagedError:
            self.close()
            return False
        self._begins = True
        self._decoder = Decoder(scanner.start.revision, scanner.start.accepted_at_us)
        self.position = scanner.start
        self._after = segment.first - 1
        return True

    @property
    def _opened(self) -> Scanner:
        """The scanner of the file that is open."""
        scanner = self._scanner
        assert scanner is not None  # noqa: S101  # asked for only then
        return scanner

    def _from_files(self, bytes_max: int) -> Iterator[Entry]:
        """Yield entries out of files, up to a size or until the ring buffer holds what follows."""
        size = 0
        while size < bytes_max:
            number = self._ring.find(self.position, proven=True)
            if number is not None:
                self.close()
                self._number = number
                return
            entry = self._next()
            if entry is None:
                return
            size += len(entry.payload) + 1
            yield entry

    def _next(self) -> Entry | None:
        """Return the next entry out of the files; None if the open file has no whole block more."""
        if self._scanner is None:
            segment = self._segment_after()
            if segment is None or not self._open(segment):
                raise FeedRefusedError(wire.GONE, f"revision {self._after + 1} is gone: the journal must be copied")
        scanner = self._opened
        if scanner.incarnation != self._sent_incarnation:
            return self._renewed(scanner.incarnation, self.position, scanner.sync_marker)
        offset = scanner.offset
        try:
            block = scanner.next_block()
        except JournalDamagedError:
            if not self._reopen(scanner, offset):
                raise
            return self._next()
        if block is None:  # what follows was written since the file was opened
            return self._next() if self._reopen(scanner, offset) else None
        if scanner.ended:
            self._after = self.position.revision
            self.close()
            return Entry(SEAL, False, self.position, self.position, scanner.sync_marker, b"")
        return self._block(scanner, offset, *block)

    def _block(self, scanner: Scanner, offset: int, data: bytes, count: int) -> Entry:
        try:
            self._decoder.decode(data, count)
        except (ValueError, IndexError) as error:
            raise JournalDamagedError(scanner.path, offset, f"its records are wrong: {error}") from error
        file = self._file
        assert file is not None  # noqa: S101  # it is read
        before, begins = self.position, self._begins
        self.position = after = Position(self._decoder.revision, self._decoder.accepted_at_us, scanner.chain)
        self._begins = False
        return block_entry(file.read(offset, scanner.offset - offset), before, after, begins)

    def _reopen(self, scanner: Scanner, offset: int) -> bool:
        """Open a file again that may have grown since, at a place; return False if it has not."""
        segment = Segment(scanner.start.revision + 1, 0, scanner.path)
        position, begins, decoder, size = self.position, self._begins, self._decoder, scanner.size
        if not self._open(segment):
            raise FeedRefusedError(wire.GONE, f"revision {position.revision + 1} is gone: the journal must be copied")
        fresh = self._opened
        fresh.offset, fresh.chain = offset, scanner.chain
        self.position, self._begins, self._decoder = position, begins, decoder
        return fresh.size > size

    def _segment_after(self) -> Segment | None:
        """Return the segment that begins after the last one that was read, if it is there."""
        first = self._after + 1
        return next((one for one in list_segments(self._folder, "changes") if one.first == first), None)

    def _renewed(self, incarnation: str, position: Position, marker: bytes) -> Entry:
        self._sent_incarnation = incarnation
        return Entry(INCARNATION, False, position, position, marker, incarnation.encode())


def _sealed_at(folder: str, position: Position) -> Entry | None:
    """Return a seal if a sealed segment ends at a position. The reader may have had no link when it was sealed."""
    for segment in list_segments(folder, "changes"):
        if not segment.open and segment.last == position.revision and _end_chain(segment) == position.chain:
            return Entry(SEAL, False, position, position, bytes(SYNC_BYTES), b"")
    return None


def _end_chain(segment: Segment) -> int:
    """Return the check of the last block of a sealed segment, as its end mark has it; -1 if it has none."""
    file = SegmentFile(segment.path)
    try:
        end = end_position(file.read(max(0, file.size - END_TAIL_BYTES), END_TAIL_BYTES))
    finally:
        file.close()
    return -1 if end is None else end.chain


@final
class SchemaTexts:
    """The texts of a journal's schemas that a feed has not sent yet."""

    def __init__(self, folder: str) -> None:
        """Take them from the folder of a journal."""
        self._folder: Final = f"{folder}/schemas"
        self._sent: Final[set[str]] = set()
        self._listed_ns = -1  # when the folder had last changed, as it was listed

    def skip(self, digest: str) -> None:
        """Take all for sent if the reader has the same ones, as their digest shows."""
        names = schema_names(self._folder)
        if digest and digest == names_digest(names):
            self._sent.update(names)

    def entries(self, position: Position) -> Iterator[Entry]:
        """Yield entries with the texts that are new."""
        changed_ns = _changed_ns(self._folder)
        if changed_ns == self._listed_ns:
            return
        # a later change may get the same time for a while
        self._listed_ns = changed_ns if time.time_ns() - changed_ns > _SETTLED_NS else -1
        new = [name for name in schema_names(self._folder) if name not in self._sent]
        texts: list[tuple[str, bytes]] = []
        size = 0
        for name in new:
            with open(f"{self._folder}/{name}", "rb") as file:  # noqa: PTH123  # a string is what there is
                text = file.read()
            if texts and size + len(text) > _TEXTS_BYTES:
                yield _schemas_entry(texts, position)
                texts, size = [], 0
            texts.append((name.removesuffix(".avsc"), text))
            size += len(text)
        if texts:
            yield _schemas_entry(texts, position)
        self._sent.update(new)


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116  # a string is what there is
    except FileNotFoundError:
        return 0


def schema_names(folder: str) -> list[str]:
    """Return the names of the schema texts in a folder of a journal, sorted. Other files in it are not of the journal."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  # names are wanted
    except FileNotFoundError:
        return []
    return sorted(name for name in names if SCHEMA_NAME.fullmatch(name))


def names_digest(names: list[str]) -> str:
    """Return a digest of the names of schema texts, which are digests of the texts."""
    return sha256("\n".join(names).encode()).hexdigest()


def _schemas_entry(texts: list[tuple[str, bytes]], position: Position) -> Entry:
    return Entry(SCHEMAS, False, position, position, bytes(SYNC_BYTES), texts_payload(texts))


def serve_feed(link: Link, feed: JournalFeed, texts: SchemaTexts, ending: threading.Event) -> None:
    """Send a feed over a link until the link ends.

    Args:
        link: Of the reader.
        feed: Entries that the reader gets.
        texts: Schemas that it may lack.
        ending: Set once the journal no longer grows. The link ends when the reader has all.

    Raises:
        LinkLostError: The link has ended.
        WireError: The peer sent something else than signs of life.
        FeedRefusedError: The feed cannot go on.
        JournalDamagedError: A file differs from what was written.
        OSError: A file cannot be read.
    """
    pause_s = _PAUSE_S_MIN
    while True:
        last = ending.is_set()
        entries = feed.take()
        # each text is in its folder before the first record that needs it is written
        frames = [wire.frame(wire.ENTRY, entry.encode()) for entry in (*texts.entries(feed.position), *entries)]
        if frames:
            link.send(b"".join(frames))
        elif last:
            link.finish(wire.SILENCE_S)
            return
        pause_s = _PAUSE_S_MIN if entries else min(2 * pause_s, _PAUSE_S_MAX)
        frame = link.receive(pause_s)
        if frame is not None:
            raise wire.WireError(f"a frame of type {frame.type} on a feed")

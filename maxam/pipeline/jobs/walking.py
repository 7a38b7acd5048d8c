"""The scan of a worker for the newest change of each topic: runs of segments in, their newest changes out."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, final

from maxam.config import Limits
from maxam.errors import JournalDamagedError
from maxam.globs import compile_glob
from maxam.journal.archive import Archive
from maxam.journal.listing import REVISION_MAX, open_segment
from maxam.journal.newest import Found, NewestChanges, decode_records
from maxam.journal.reading import SegmentReader
from maxam.journal.scan import Scanner
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.spark.blocks import encoded

if TYPE_CHECKING:
    import pyarrow as pa

    from maxam.journal.names import Segment
    from maxam.journal.proving import CheckedSegment
    from maxam.pipeline.spark.selection import Selection

FOUND_COLUMNS: Final = "destination binary, period long, revision long, record binary"
_RUN_BYTES: Final = 128 << 20  # of segments in one task, which gives each topic once
_KEPT_BYTES_MAX: Final = 24 << 20  # of newest changes in one worker, and those of one segment more
_BATCH_ROWS: Final = 10_000
_TIME_MAX_US: Final = 1 << 62
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@final
class Walk:
    """The scan of the segments of a journal: pickled, and called by Spark's workers with batches of numbers of pieces.

    Attributes:
        size: Bytes of all segments.
    """

    def __init__(self, archive: Archive, selection: "Selection", period_us: int) -> None:
        """Describe the work.

        Args:
            archive: The segments to scan.
            selection: Which changes count.
            period_us: As of `NewestChanges`.
        """
        self._folder: Final = archive.folder
        self._since_us: Final = 0 if selection.since is None else _micros(selection.since)
        self._until_us: Final = _TIME_MAX_US if selection.until is None else _micros(selection.until)
        self._first: Final = max(archive.low, selection.from_revision or 0)
        self._last: Final = min(archive.last, selection.to_revision or REVISION_MAX)
        self._period_us: Final = period_us
        self._globs: Final = [glob.text for glob in selection.globs]
        self._rest: Final = [one for one in (*archive.damaged, archive.open) if one is not None and one.bytes]
        self.size: Final = sum(one.bytes for one in (*archive.sealed, *self._rest))
        self._runs: Final[list[list[Segment]]] = []
        length = _RUN_BYTES
        for one in archive.sealed:
            if length >= _RUN_BYTES:
                self._runs.append([])
                length = 0
            self._runs[-1].append(one.segment)
            length += one.bytes

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Scan the pieces whose numbers are in the first column; yield rows of FOUND_COLUMNS.

        Raises:
            PipelineError: As of `batches`.
            OSError: As of `batches`.
        """
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.batches(number)

    def pieces(self) -> int:
        """Count the pieces of all segments: the runs, and each segment that is not healthy or not sealed."""
        return len(self._runs) + len(self._rest)

    def batches(self, number: int) -> "Iterator[pa.RecordBatch]":
        """Scan one piece; yield rows of FOUND_COLUMNS. A large piece may give several changes of a topic.

        Rows are in order of destination, in stretches of many batches, so those of neighbours are read at once later.

        Raises:
            PipelineError: A segment is not what it was when the archive was examined.
            OSError: One cannot be read.
        """
        found = self._newest()
        for _ in self._parts(number, found):
            if found.length > _KEPT_BYTES_MAX:
                yield from _batches(found.take())
        yield from _batches(found.take())

    def _newest(self) -> NewestChanges:
        globs = [compile_glob(text, Limits()) for text in self._globs]

        def wanted(destination: bytes) -> bool:
            text = destination.decode()
            return any(glob.matches(text) for glob in globs)

        bounds = self._since_us, self._until_us, self._first, self._last
        return NewestChanges(*bounds, self._period_us, wanted if globs else None)

    def _parts(self, number: int, found: NewestChanges) -> "Iterator[None]":
        """Scan a piece, with a stop after each segment."""
        if number >= len(self._runs):
            self._read(self._rest[number - len(self._runs)], found)
            yield
            return
        for segment in self._runs[number]:
            self._walk(segment, found)
            yield

    def _walk(self, segment: "Segment", found: NewestChanges) -> None:
        try:
            segment, file = open_segment(self._folder, "changes", segment)
        except FileNotFoundError:
            raise PipelineError(
                f"{segment.path}: removed while it was to be read; run it again, for what is there now"
            ) from None
        offset = 0
        try:
            with closing(file):
                scanner = Scanner(segment.path, file.size, file.read)
                found.revision = scanner.start.revision
                offset = scanner.offset
                while (block := scanner.next_block()) is not None and not scanner.ended:
                    found.add(*block)
                    offset = scanner.offset
        except (ValueError, IndexError) as error:
            raise PipelineError(
                f"{segment.path}: byte {offset}: the block is whole, but its records are wrong: {error}"
            ) from error
        except JournalDamagedError as error:  # it was whole a moment ago
            raise PipelineError(str(error)) from error

    def _read(self, part: "CheckedSegment", found: NewestChanges) -> None:
        """Decode a segment that is damaged, or the open one as far as it was examined."""
        known = {problem.offset for problem in part.problems if problem.lost}
        with SegmentReader(self._folder, "changes", part.segment) as reader:
            for records in reader:
                if part.segment.open and reader.offset >= part.bytes:
                    break
                block = encoded(records)
                if block is not None:
                    found.revision, data, count = block
                    found.add(data, count)
            new = [problem for problem in reader.problems if problem.lost and problem.offset not in known]
            if new:
                raise PipelineError(f"{new[0]}; run it again, for what is there now")


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def decoded(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Decode the records in the first column; yield rows of `rows.CHANGE_COLUMNS`."""
    from maxam.pipeline.spark.rows import send_batches  # noqa: PLC0415 - only the driver needs it

    for batch in batches:
        yield from send_batches([decode_records(batch.column(0).to_pylist())], 0, REVISION_MAX)


def _batches(found: Found) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa  # noqa: PLC0415 - 100 ms that only Spark's workers need

    kinds = (pa.binary(), pa.int64(), pa.int64(), pa.binary())
    columns = [pa.array(column, kind) for column, kind in zip(found, kinds, strict=True)]
    rows = pa.record_batch(columns, [column.split()[0] for column in FOUND_COLUMNS.split(", ")]).sort_by("destination")
    for begin in range(0, rows.num_rows, _BATCH_ROWS):
        yield rows.slice(begin, _BATCH_ROWS)

"""The data source `maxam`: a journal as a table or a stream of rows, and rows published to a gateway."""

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast, final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from maxam.errors import JournalError
from maxam.journal.archive import examine, plan
from maxam.journal.identity import NewIncarnationError, end_chain, incarnation, require_same
from maxam.journal.listing import REVISION_MAX, Problem, Records, list_segments, size_of, start_of
from maxam.journal.names import Segment
from maxam.journal.reading import Block, SegmentReader
from maxam.journal.tail import Cursor, Stretch, advance, newest, oldest, stretches
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.examining import Alternatives, may_hold, micros
from maxam.pipeline.spark.rows import (
    CHANGE_COLUMNS,
    PROBLEM_COLUMNS,
    REJECTED_COLUMNS,
    SESSION_COLUMNS,
    problem_batch,
    send_batches,
    session_batches,
)
from maxam.pipeline.spark.sink import MaxamStreamWriter, MaxamWriter

_RECORDS: Final[dict[str, StructType]] = {
    "changes": CHANGE_COLUMNS,
    "sessions": SESSION_COLUMNS,
    "rejected": REJECTED_COLUMNS,
    "problems": PROBLEM_COLUMNS,
}
_STREAM_OPTIONS: Final = (
    "path",
    "records",
    "startingRevision",
    "maxBytesPerTrigger",
    "problems",
    "continueAfterRestore",
)
_BYTES: Final = re.compile(r"(\d{1,12})(b|k|m|g|t)?b?")
_READ_OPTIONS: Final = ("path", "records", "fromRevision", "toRevision", "problems", "prune", "segments")
TASK_BYTES: Final = 16 << 20  # of segments that one task reads, unless a single one is larger


@final
class MaxamDataSource(DataSource):
    """`format("maxam")`; what it takes is in `docs/analyse/pipeline.md`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "maxam"

    def schema(self) -> StructType:
        """Return the columns of the records that are asked for.

        Raises:
            PipelineError: There are no such records, or an option cannot be used. Raised here, at `load`, as Spark buries the errors
                of a stream's start.
        """
        given = {name.lower() for name in self.options}
        if given & {"startingrevision", "maxbytespertrigger", "continueafterrestore"}:
            JournalStreamReader(self.options)
        elif "gateway" not in given:  # else rows are to be written
            JournalReader(self.options)
        return _RECORDS[_choice(self.options, "records", tuple(_RECORDS))]

    def reader(self, schema: StructType) -> "JournalReader":  # noqa: ARG002 - Spark gives back our own
        """Return what reads a journal once."""
        return JournalReader(self.options)

    def streamReader(self, schema: StructType) -> "JournalStreamReader":  # noqa: ARG002, N802 - Spark's names
        """Return what follows a journal."""
        return JournalStreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> MaxamWriter:
        """Return what publishes rows."""
        return MaxamWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MaxamStreamWriter:  # noqa: N802 - Spark's name
        """Return what publishes a stream of rows."""
        return MaxamStreamWriter(schema, self.options, overwrite)


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """The part of one segment that a batch reads.

    Attributes:
        segment: The segment.
        next_chain: Check that the next segment begins from, 0 when unknown.
        end: Bytes to read, None for all.
        known: Offsets of the damage that the caller knows of.
    """

    segment: Segment
    next_chain: int = 0
    end: int | None = None
    known: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StretchPart:
    """The part of one segment that a micro-batch reads: of the changes in a stretch those from `low` to `high`."""

    stretch: Stretch
    low: int
    high: int


_Part = TypeVar("_Part", SegmentPart, StretchPart)


@dataclass
class Task(InputPartition, Generic[_Part]):
    """The segments of one task, in order: a large one, or some small ones, as each task costs some 50 ms."""

    parts: tuple[_Part, ...]


def _tasks(parts: Iterable[tuple[_Part, int]]) -> list[InputPartition]:
    """Group parts, each with its bytes, that lie beside each other."""
    tasks: list[InputPartition] = []
    group: list[_Part] = []
    length = 0
    for part, size in parts:
        if group and length + size > TASK_BYTES:
            tasks.append(Task(tuple(group)))
            group, length = [], 0
        group.append(part)
        length += size
    return [*tasks, Task(tuple(group))] if group else tasks


@final
class JournalReader(DataSourceReader):
    """Reads what a journal holds, in tasks of whole segments. Picklable."""

    def __init__(self, options: Mapping[str, str]) -> None:
        _require_known(options, _READ_OPTIONS)
        self._folder: Final = _folder(options)
        self._records: Final = _choice(options, "records", tuple(_RECORDS))
        self._from: Final = _revision(options, "fromRevision")
        self._to: Final = _revision(options, "toRevision")
        self._skip: Final = _choice(options, "problems", ("fail", "skip")) == "skip"
        self._prunes: Final = _choice(options, "prune", ("no", "filters")) == "filters"
        self._chosen: Final = _segments_option(options)
        self._bounds = _Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Remember what segments need not be read for, if that is wanted; Spark applies all filters to the rows all the same.

        Spark 4.3 keeps the rows that the filters of one query left of a loaded DataFrame. It reads only those for other queries of
        the same DataFrame, and for other branches of one query: rows would be missing silently. So it is done only with the option
        `prune`, by which the DataFrame serves one query with one filter.
        """
        if self._prunes and self._records != "problems":
            for one in filters:
                self._bounds.add(one)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Return the segments that can hold what is wanted, in tasks.

        Raises:
            PipelineError: A segment is missing, or requested revisions are gone.
        """
        if self._records == "problems":
            return [InputPartition(None)]
        records = cast("Records", self._records)
        if self._chosen is not None:
            there = {one.first: one for one in list_segments(self._folder, records)}
            gone = [first for first in self._chosen if first not in there]
            if gone:
                raise PipelineError(
                    f"{self._folder}: the segment of revision {gone[0]} was removed after the archive was examined; read again"
                )
            chosen = [SegmentPart(there[first], 0, *part) for first, part in self._chosen.items()]
            return _tasks((part, size_of(part.segment)) for part in chosen)
        segments, problems = plan(
            self._folder,
            records,
            self._from,
            self._to,
            self._bounds.since_us,
            self._bounds.until_us,
            functools.partial(self._may_hold, records),
        )
        if not self._skip:
            require_nothing_lost(problems)
        starts = [start_of(segment) for segment in segments]
        following = [*starts[1:], None][: len(segments)]
        chains = [
            0 if start is None or start.revision != one.last else start.chain
            for one, start in zip(segments, following, strict=True)
        ]
        return _tasks((SegmentPart(one, chain), size_of(one)) for one, chain in zip(segments, chains, strict=True))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what some segments hold; runs on an executor.

        Raises:
            PipelineError: Something of it cannot be read; names file, position and the lost revisions.
        """
        if self._records == "problems":
            found = examine(self._folder, "changes", self._from, self._to).problems
            yield problem_batch([*found, *examine(self._folder, "rejected").problems])
            return
        if isinstance(partition, Task):  # else there are none
            for part in partition.parts:
                yield from self._read_segment(part)

    def _read_segment(self, partition: SegmentPart) -> Iterator[pa.RecordBatch]:
        records = cast("Records", self._records)
        low = max(self._from or 0, self._bounds.low)
        high = self._bounds.high if self._to is None else min(self._to, self._bounds.high)
        careless = self._skip and self._chosen is None
        try:
            with SegmentReader(self._folder, records, partition.segment, end=partition.end) as reader:
                blocks = _proven(reader, careless, partition.known)
                if records == "sessions":
                    yield from session_batches(((reader.before, block) for block in blocks), low, high)
                else:
                    yield from send_batches(blocks, low, high)
                place = reader.place
                if not self._skip and not reader.problems and place is not None:
                    self._require_following(reader.segment, place.chain, partition.next_chain)
        except OSError as error:
            if not careless:
                raise _gone(partition.segment, error) from error

    def _require_following(self, segment: Segment, chain: int, next_chain: int) -> None:
        if next_chain not in {0, chain}:
            raise PipelineError(
                f"{segment.path}: the next segment does not follow it. One of the two was changed after it was written"
            )

    def _may_hold(self, records: Records, segment: Segment) -> bool:
        behind = records == "sessions"  # records after the last change of a segment can be in the next one
        if not self._bounds.low <= segment.last or segment.first - behind > self._bounds.high:
            return False
        return records != "changes" or may_hold(self._folder, segment, self._bounds.destinations)


@final
class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a journal: an offset is a `Cursor`, and a micro-batch is what lies between two of them, whatever is rolled or sealed."""

    def __init__(self, options: Mapping[str, str]) -> None:
        _require_known(options, _STREAM_OPTIONS)
        self._folder: Final = _folder(options)
        self._records: Final = cast("Records", _choice(options, "records", ("changes", "rejected")))
        self._skip: Final = _choice(options, "problems", ("fail", "skip")) == "skip"
        self._starting: Final = options.get("startingRevision")
        if self._starting != "latest":
            _revision(options, "startingRevision")
        self._bytes_max: Final = _bytes_max(options)
        self._target: Cursor | None = None
        self._walked = Cursor(-1)  # after the last offset, as far as there was nothing to read
        self._restored: Final = _choice(options, "continueAfterRestore", ("false", "true")) == "true"
        self._proven: set[tuple[str, str]] = set()  # incarnations, before and now, of a journal that was compared

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins: at the oldest change there is, if nothing else is asked for."""
        if self._starting is None:
            cursor = oldest(self._folder, self._records)
        elif self._starting == "latest":
            cursor = newest(self._folder, self._records)
        else:
            cursor = Cursor(max(0, int(self._starting) - 1))
        return self._offset(cursor)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit that the options set."""
        return ReadAllAvailable() if self._bytes_max is None else ReadMaxBytes(self._bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return how far the next micro-batch goes: after the last whole block, or after the one that reaches its limit.

        Raises:
            PipelineError: The next revisions are lost, or the journal is not the one that was read.
        """
        cursor = _cursor(start)
        self._require_same(start, cursor)
        if self._walked.revision == cursor.revision:
            cursor = self._walked  # only records of sessions lie between
        limit_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        try:
            reached = advance(self._folder, self._records, cursor, limit_bytes, self._target, self._skip)
        except (JournalError, OSError) as error:
            raise PipelineError(str(error)) from error
        if reached.revision == cursor.revision:
            self._walked = reached
            return start
        return self._offset(reached)

    def _offset(self, cursor: Cursor) -> dict[str, Any]:
        chain = cursor.chain if cursor.segment else end_chain(self._folder, self._records, cursor.revision)
        return {
            "revision": cursor.revision,
            "segment": cursor.segment,
            "byte": cursor.offset,
            "chain": chain,
            "incarnation": incarnation(self._folder),
        }

    def _require_same(self, offset: Mapping[str, object], cursor: Cursor) -> None:
        """Refuse a journal that is not the one that the offset is of: at the beginning, and whenever its incarnation changes.

        Raises:
            PipelineError: It is another one, or was restored or repaired since.
        """
        known = str(offset.get("incarnation", ""))
        try:
            if (known, incarnation(self._folder)) in self._proven:
                return
            found = require_same(
                self._folder, self._records, known, cursor.revision, cursor.chain, restored=self._restored
            )
        except NewIncarnationError as error:
            raise PipelineError(
                f"{error}. If it was restored from a backup, set the option continueAfterRestore"
            ) from error
        except (JournalError, OSError) as error:
            raise PipelineError(
                f"{error}. Name the journal of the checkpoint, or begin with a new checkpoint"
            ) from error
        self._proven.add((known, found))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Take what is there now for all that there will be."""
        self._target = newest(self._folder, self._records)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the parts that the micro-batch reads, in tasks.

        Raises:
            PipelineError: Some of them are gone.
        """
        first, last = _cursor(start), _cursor(end)
        self._require_same(start, first)
        try:
            parts = stretches(self._folder, self._records, first, last, self._skip)
        except (JournalError, OSError) as error:
            raise PipelineError(str(error)) from error
        return _tasks((StretchPart(part, first.revision + 1, last.revision), size_of(part.segment)) for part in parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what lies in some stretches; runs on an executor.

        Raises:
            PipelineError: Something of it cannot be read; names file, position and the lost revisions.
        """
        if isinstance(partition, Task):
            for part in partition.parts:
                yield from self._read_stretch(part)

    def _read_stretch(self, partition: StretchPart) -> Iterator[pa.RecordBatch]:
        stretch = partition.stretch
        try:
            with SegmentReader(self._folder, self._records, stretch.segment, stretch.place, stretch.end) as reader:
                yield from send_batches(_proven(reader, self._skip), partition.low, partition.high)
        except OSError as error:
            if not self._skip:
                raise _gone(stretch.segment, error) from error


def _proven(reader: SegmentReader, careless: bool, known: tuple[int, ...] = ()) -> Iterator[Block]:
    """Yield the blocks of a segment, and raise at a loss that is not known."""
    seen = 0
    for block in reader:
        if len(reader.problems) > seen and not careless:
            seen = len(reader.problems)
            require_nothing_lost([one for one in reader.problems if one.offset not in known])
        yield block
    if not careless:
        require_nothing_lost([one for one in reader.problems if one.offset not in known])


def _gone(segment: Segment, error: OSError) -> PipelineError:
    what = "has been removed" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
    until = f"to {segment.last}" if segment.last else "on"
    return PipelineError(f"{segment.path} {what}: revisions from {segment.first} {until} are lost")


def _cursor(offset: Mapping[str, object]) -> Cursor:
    values = [offset.get(name) for name in ("revision", "segment", "byte", "chain")]
    numbers = [value for value in values if type(value) is int and value >= 0]
    known = offset.get("incarnation", "")  # offsets of older releases have none
    if (
        len(numbers) < len(values)
        or offset.keys() - {"revision", "segment", "byte", "chain", "incarnation"}
        or type(known) is not str
    ):
        raise PipelineError(f"the checkpoint holds an offset that is not one of a journal: {dict(offset)}")
    return Cursor(*numbers)


@final
class _Bounds:
    """Bounds of the wanted rows, from the filters: every one of them must hold.

    Attributes:
        low: First revision.
        high: Last revision.
        since_us: First accepted_at, microseconds since the epoch; None for any.
        until_us: Time before which they were accepted.
        destinations: Each holds alternatives, exact ones and (with True) beginnings; None of a row's may be missing.
    """

    def __init__(self) -> None:
        self.low = 0
        self.high = REVISION_MAX
        self.since_us: int | None = None
        self.until_us: int | None = None
        self.destinations: list[Alternatives] = []

    def add(self, wanted: Filter) -> None:  # noqa: C901 - a table
        """Take a filter into account, if it is of a kind that helps."""
        match wanted:
            case EqualTo(("revision",), int(value)) | EqualNullSafe(("revision",), int(value)):
                self._revisions(value, value)
            case GreaterThan(("revision",), int(value)):
                self._revisions(value + 1, REVISION_MAX)
            case GreaterThanOrEqual(("revision",), int(value)):
                self._revisions(value, REVISION_MAX)
            case LessThan(("revision",), int(value)):
                self._revisions(0, value - 1)
            case LessThanOrEqual(("revision",), int(value)):
                self._revisions(0, value)
            case In(("revision",), values) if values and all(isinstance(one, int) for one in values):
                self._revisions(min(values), max(values))
            case EqualTo(("accepted_at",), datetime() as at) | EqualNullSafe(("accepted_at",), datetime() as at):
                self._times(micros(at), micros(at) + 1)
            case GreaterThan(("accepted_at",), datetime() as at):
                self._times(micros(at) + 1, None)
            case GreaterThanOrEqual(("accepted_at",), datetime() as at):
                self._times(micros(at), None)
            case LessThan(("accepted_at",), datetime() as at):
                self._times(None, micros(at))
            case LessThanOrEqual(("accepted_at",), datetime() as at):
                self._times(None, micros(at) + 1)
            case In(("accepted_at",), values) if values and all(isinstance(one, datetime) for one in values):
                self._times(micros(min(values)), micros(max(values)) + 1)
            case EqualTo(("destination",), str(value)) | EqualNullSafe(("destination",), str(value)):
                self.destinations.append([(value.encode(), False)])
            case In(("destination",), values) if all(isinstance(one, str) for one in values):
                self.destinations.append([(one.encode(), False) for one in values])
            case StringStartsWith(("destination",), str(value)):
                self.destinations.append([(value.encode(), True)])
            case _:
                pass

    def _revisions(self, low: int, high: int) -> None:
        self.low, self.high = max(self.low, low), min(self.high, high)

    def _times(self, since_us: int | None, until_us: int | None) -> None:
        if since_us is not None and (self.since_us is None or since_us > self.since_us):
            self.since_us = since_us
        if until_us is not None and (self.until_us is None or until_us < self.until_us):
            self.until_us = until_us


def require_nothing_lost(problems: Iterable[Problem]) -> None:
    """Raise when one of the problems lost something.

    Raises:
        PipelineError: Names file, position and the lost revisions of each, up to ten.
    """
    lost = [str(problem) for problem in problems if problem.lost]
    if lost:
        more = f"\n... and {len(lost) - 10} more" if len(lost) > 10 else ""
        remedy = "option problems=skip reads the rest"
        raise PipelineError("part of the archive cannot be read; " + remedy + ":\n" + "\n".join(lost[:10]) + more)


def _require_known(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    unknown = {name.lower() for name in options} - {name.lower() for name in known}
    if {"location", "owner"} <= unknown:  # what Spark's catalogue adds
        raise PipelineError(
            "CREATE TABLE cannot use maxam: Spark does not hand the path of a table to its queries. Use CREATE TEMPORARY VIEW"
        )
    if unknown:
        raise PipelineError(f"unknown option {min(unknown)}; reading knows {', '.join(known)}")


def _choice(options: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    value = options.get(name, values[0])
    if value not in values:
        raise PipelineError(f"the option {name} must be one of {', '.join(values)}, found {value!r}")
    return value


def _folder(options: Mapping[str, str]) -> str:
    folder = options.get("path", "").removeprefix("file://").removeprefix("file:")
    if not folder:
        raise PipelineError('the folder of a journal is missing: load("FOLDER"), or the option path')
    path = Path(folder)
    if not path.is_absolute():  # as seen by the driver, which makes the reader; tasks may stand elsewhere
        path = path.absolute()
        if not path.is_dir():
            raise PipelineError(
                f"there is no folder {folder!r} in {Path.cwd()}, where Spark's driver was started: name an absolute path"
            )
    return str(path)


def _revision(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and int(value) <= REVISION_MAX):
        raise PipelineError(f"the option {name} must be a revision, found {value!r}")
    return int(value)


def _bytes_max(options: Mapping[str, str]) -> int | None:
    text = options.get("maxBytesPerTrigger")
    if text is None:
        return None
    found = _BYTES.fullmatch(text.strip().lower())
    if found is None or not int(found[1]):
        raise PipelineError(
            f"the option maxBytesPerTrigger must be a size above zero, such as 1048576 or 64m, found {text!r}"
        )
    return int(found[1]) << 10 * ("bkmgt".index(found[2] or "b"))


def _segments_option(options: Mapping[str, str]) -> dict[int, tuple[int | None, tuple[int, ...]]] | None:
    """Return what `read_journal` wants: by first revision of a segment, the bytes to read and the offsets of known damage."""
    text = options.get("segments")
    return None if text is None else {int(first): (end, tuple(known)) for first, end, known in json.loads(text)}

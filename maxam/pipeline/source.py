"""The data source `maxam`: a journal as a table or a stream of rows, and rows published to a gateway."""

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, cast, final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
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
from pyspark.sql.types import StructType

from maxam.journal.archive import (
    REVISION_MAX,
    Block,
    Problem,
    Records,
    Segment,
    SegmentReader,
    examine,
    list_segments,
    plan,
    start_of,
)
from maxam.journal.disk import OsDisk
from maxam.journal.files import SealedSegment
from maxam.journal.index import load
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.rows import (
    CHANGE_COLUMNS,
    PROBLEM_COLUMNS,
    REJECTED_COLUMNS,
    SESSION_COLUMNS,
    problem_batch,
    send_batches,
    session_batches,
)
from maxam.pipeline.sink import MaxamStreamWriter, MaxamWriter

_RECORDS: Final[dict[str, StructType]] = {
    "changes": CHANGE_COLUMNS,
    "sessions": SESSION_COLUMNS,
    "rejected": REJECTED_COLUMNS,
    "problems": PROBLEM_COLUMNS,
}
_READ_OPTIONS: Final = ("path", "records", "fromRevision", "toRevision", "problems", "segments")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@final
class MaxamDataSource(DataSource):
    """`format("maxam")`; what it takes is in `docs/pipeline.md`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "maxam"

    def schema(self) -> StructType:
        """Return the columns of the records that are asked for.

        Raises:
            PipelineError: There are no such records.
        """
        return _RECORDS[_choice(self.options, "records", tuple(_RECORDS))]

    def reader(self, schema: StructType) -> "JournalReader":  # noqa: ARG002 - Spark gives back our own
        """Return what reads a journal once."""
        return JournalReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> MaxamWriter:
        """Return what publishes rows."""
        return MaxamWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MaxamStreamWriter:  # noqa: N802 - Spark's name
        """Return what publishes a stream of rows."""
        return MaxamStreamWriter(schema, self.options, overwrite)


@dataclass
class SegmentPart(InputPartition):
    """One task's part of a batch.

    Attributes:
        segment: What to read.
        next_chain: Check that the segment behind begins from, 0 when unknown.
        end: Bytes to read, None for all.
        known: Offsets of the damage that the caller knows of.
    """

    segment: Segment
    next_chain: int = 0
    end: int | None = None
    known: tuple[int, ...] = ()


@final
class JournalReader(DataSourceReader):
    """Reads what a journal holds, a segment a task. Picklable."""

    def __init__(self, options: Mapping[str, str]) -> None:
        _require_known(options, _READ_OPTIONS)
        self._folder: Final = _folder(options)
        self._records: Final = _choice(options, "records", tuple(_RECORDS))
        self._from: Final = _revision(options, "fromRevision")
        self._to: Final = _revision(options, "toRevision")
        self._skip: Final = _choice(options, "problems", ("fail", "skip")) == "skip"
        self._chosen: Final = _segments_option(options)
        self._bounds = _Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Remember what segments need not be read for; Spark applies all filters to the rows all the same."""
        if self._records != "problems":
            for one in filters:
                self._bounds.add(one)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Return a part for each segment that can hold what is wanted.

        Raises:
            PipelineError: A segment is missing, or revisions that were asked for are no more.
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
            return [SegmentPart(there[first], 0, *part) for first, part in self._chosen.items()]
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
        return [
            SegmentPart(one, 0 if start is None or start.revision != one.last else start.chain)
            for one, start in zip(segments, following, strict=True)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what one segment holds; runs on an executor.

        Raises:
            PipelineError: Something of it cannot be read; names file, position and the lost revisions.
        """
        if self._records == "problems":
            found = examine(self._folder, "changes", self._from, self._to).problems
            yield problem_batch([*found, *examine(self._folder, "rejected").problems])
            return
        if not isinstance(partition, SegmentPart):  # there are none
            return
        records = cast("Records", self._records)
        low, high = max(self._from or 0, self._bounds.low), min(self._to or REVISION_MAX, self._bounds.high)
        try:
            reader = SegmentReader(self._folder, records, partition.segment, end=partition.end)
        except OSError as error:
            if self._skip and self._chosen is None:
                return
            segment = partition.segment
            what = "removed by now" if isinstance(error, FileNotFoundError) else f"not readable ({error.strerror})"
            until = f"to {segment.last}" if segment.last else "on"
            raise PipelineError(f"{segment.path} is {what}: revisions from {segment.first} {until} are lost") from error
        with reader:
            revision = reader.revision
            blocks = self._blocks(reader, partition)
            if records == "sessions":
                yield from session_batches(blocks, revision, low, high)
            else:
                yield from send_batches(blocks, low, high)

    def _blocks(self, reader: SegmentReader, part: SegmentPart) -> Iterator[Block]:
        """Yield the blocks of a segment, and raise at damage that nobody knew of."""
        seen = 0
        careless = self._skip and self._chosen is None
        for block in reader:
            if len(reader.problems) > seen:
                self._require_known_damage(reader.problems, part, careless)
                seen = len(reader.problems)
            yield block
        self._require_known_damage(reader.problems, part, careless)
        place = reader.place
        if not self._skip and not reader.problems and place is not None and part.next_chain not in {0, place.chain}:
            raise PipelineError(f"{reader.segment.path}: the segment behind it does not follow it")

    def _require_known_damage(self, problems: list[Problem], part: SegmentPart, careless: bool) -> None:
        if not careless:
            require_nothing_lost([one for one in problems if one.offset not in part.known])

    def _may_hold(self, records: Records, segment: Segment) -> bool:
        if not self._bounds.low <= segment.last or segment.first > self._bounds.high:
            return False
        return records != "changes" or may_hold(self._folder, segment, self._bounds.destinations)


@final
class _Bounds:
    """What filters say of the rows that are wanted: every one of them must hold.

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


Alternatives = list[tuple[bytes, bool]]  # a destination, or with True how it begins


def may_hold(folder: str, segment: Segment, wanted: Iterable[Alternatives]) -> bool:
    """Tell whether a sealed segment can hold changes of the wanted destinations, as far as there is an index of it."""
    wanted = list(wanted)
    if not wanted:
        return True
    index = load(folder, SealedSegment(segment.first, segment.last, segment.path), OsDisk())
    if index is None:
        return True
    return all(
        any(index.may_hold_prefix(name) if begins else index.may_hold(name) for name, begins in alternatives)
        for alternatives in wanted
    )


def micros(at: datetime) -> int:
    """Return microseconds since the epoch; a time without a zone is in UTC, the zone of the session."""
    return ((at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


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
    if not Path(folder).is_absolute():
        raise PipelineError(
            f"the folder of the journal must be an absolute path, as tasks run elsewhere, found {folder!r}"
        )
    return folder


def _revision(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and int(value) <= REVISION_MAX):
        raise PipelineError(f"the option {name} must be a revision, found {value!r}")
    return int(value)


def _segments_option(options: Mapping[str, str]) -> dict[int, tuple[int | None, tuple[int, ...]]] | None:
    """Return what `read_journal` wants: by first revision of a segment, the bytes to read and the offsets of known damage."""
    text = options.get("segments")
    return None if text is None else {int(first): (end, tuple(known)) for first, end, known in json.loads(text)}

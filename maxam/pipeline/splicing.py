"""What a Spark worker does for the typed history: stretches of the journal in, Avro containers in a work folder out."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, final

from maxam.errors import JournalDamagedError
from maxam.journal.archive import Place, Problem, Segment, SegmentReader, find_segment
from maxam.journal.decoding import read_unsigned
from maxam.journal.encoding import SYNC_BYTES, Encoder, Position
from maxam.journal.scan import Scanner
from maxam.journal.splice import Rows, Splicer, container_header, untyped_row_schema
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.columns import Transcoder
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.table import UNTYPED
from maxam.records import Change, RejectedSend

if TYPE_CHECKING:
    import pyarrow as pa

_TAKEN_BYTES: Final = 1 << 20  # spliced before it is written: blocks of a container are then of some ten to hundred kB
_PROBLEMS_MAX: Final = 20  # of values that cannot be read, told for each stretch


@dataclass(frozen=True, slots=True)
class Stretch:
    """A segment, or what of it was not read before.

    Attributes:
        segment: As it was listed.
        size: Bytes of it to read: what a gateway writes behind them meanwhile is for later.
        place: Where to begin, None for its beginning.
    """

    segment: Segment
    size: int
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class TypedRows:
    """How values that one schema judged are spliced.

    Attributes:
        name: Full name of the type.
        schema: Of a row, JSON.
        transcode: The values cannot be copied as they are.
    """

    name: str
    schema: str
    transcode: bool


@dataclass(slots=True)
class Spliced:
    """What came of one stretch.

    Attributes:
        last: Revision of its last change that was read or known to be lost.
        place: Where the next read of the segment begins; None when it was read to its end.
        rows: Count by name of the container's folder.
        problems: What could not be read.
    """

    last: int
    place: Place | None = None
    rows: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def to_json(self) -> str:
        """Write it for the driver."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Spliced":
        """Read it in the driver."""
        kept: dict[str, Any] = json.loads(text)
        place = None if kept["place"] is None else Place(**kept["place"])
        return cls(kept["last"], place, kept["rows"], [Problem(**problem) for problem in kept["problems"]])


def container_folder(text: str) -> str:
    """Name the folder of the containers of one schema."""
    return sha256(text.encode()).hexdigest()


@final
class Splicing:
    """The splicing of some stretches: pickled, and called by Spark's workers with batches of their numbers.

    Doing a stretch again gives the same files.
    """

    def __init__(
        self,
        journal: str,
        work: str,
        stretches: list[Stretch],
        after: int,
        until: int,
        catalogue: Catalogue,
        typed: dict[str, TypedRows],
        deleted: dict[str, str],
        wanted: frozenset[str] | None,
    ) -> None:
        """Describe the work.

        Args:
            journal: The journal's folder, as workers see it.
            work: An empty folder, as workers see it.
            stretches: In order.
            after: Changes above this revision,
            until: and up to this one, become rows.
            catalogue: The journal's.
            typed: By self-contained text of the schema that judged. A text that is not in it counts as unknown.
            deleted: By type, the text whose containers take deletions.
            wanted: The types that become rows; None for all, and what has none.
        """
        self.journal: Final = journal
        self.work: Final = work
        self.stretches: Final = stretches
        self.after: Final = after
        self.until: Final = until
        self.catalogue: Final = catalogue
        self.typed: Final = typed
        self.deleted: Final = deleted
        self.wanted: Final = wanted

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Splice the stretches whose numbers are in the first column; yield what came of each."""
        import pyarrow as pa  # noqa: PLC0415 - 100 ms that only Spark's workers need

        for batch in batches:
            for number in batch.column(0).to_pylist():
                told = self.splice(number).to_json()
                yield pa.record_batch([pa.array([number], pa.int64()), pa.array([told])], names=["number", "spliced"])

    def splice(self, number: int) -> Spliced:
        """Splice one stretch.

        Raises:
            PipelineError: The segment is gone.
            OSError: It cannot be read, or the work folder not be written.
        """
        stretch = self.stretches[number]
        try:
            run = _Run(self, number, stretch)
            try:
                with closing(run):
                    return run.quickly()
            except (ValueError, IndexError):  # whole blocks with wrong records: who reads each one finds out which
                run = _Run(self, number, stretch)
                with closing(run):
                    return run.carefully(stretch.place)
        except FileNotFoundError as error:
            raise PipelineError(
                f"{stretch.segment.path}: removed while it was to be read: revisions {stretch.segment.first} to"
                f" {stretch.segment.last or '?'} are lost for this table; run history more often than retention"
            ) from error


@final
class _Container:
    """A file of rows of one schema, visible when it is finished."""

    def __init__(self, folder: Path, number: int, schema: str, rows: Rows) -> None:
        self.rows: Final = rows
        self.count = 0
        self._path: Final = folder / f"{number:06}.avro"
        # two attempts of a task may run at once: the last one to finish puts the same bytes in its place
        self._temporary: Final = folder / f"_{number:06}-{os.getpid()}-{id(self)}"
        self._schema: Final = schema
        self._sync: Final = sha256(str(self._path).encode()).digest()[:SYNC_BYTES]
        self._file: IO[bytes] | None = None

    def write(self) -> None:
        block, count = self.rows.take(self._sync)
        if not count:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("wb", buffering=0)
            self._file.write(container_header(self._schema, self._sync))
        view = memoryview(block)
        while view:
            view = view[self._file.write(view) :]
        self.count += count

    def finish(self) -> None:
        self.write()
        if self._file is not None:
            self._file.close()
            self._temporary.replace(self._path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@final
class _Run:
    """One attempt to splice a stretch."""

    def __init__(self, work: Splicing, number: int, stretch: Stretch) -> None:
        self._work: Final = work
        self._number: Final = number
        self._stretch: Final = stretch
        place = stretch.place
        start = stretch.segment.first - 1 if place is None else place.revision
        self._splicer: Final = Splicer(start, work.after, work.until, self._choose, self._choose_untyped)
        self._containers: Final[dict[str, _Container]] = {}
        self._problems: Final[list[Problem]] = []
        self._told: Final[set[tuple[str, bytes]]] = set()
        self._path = stretch.segment.path
        self._offset = 0
        self._pending = 0

    def quickly(self) -> Spliced:
        """Splice blocks without looking at their records, as long as they are whole."""
        stretch = self._stretch
        with ExitStack() as stack:
            try:
                file = stack.enter_context(Path(stretch.segment.path).open("rb"))
            except FileNotFoundError:
                found = find_segment(self._work.journal, "changes", stretch.segment)  # sealed meanwhile
                if found is None:
                    raise
                file = stack.enter_context(Path(found.path).open("rb"))
                self._path = found.path
            handle = file.fileno()
            place = stretch.place
            try:
                scanner = Scanner(self._path, stretch.size, lambda offset, length: os.pread(handle, length, offset))
                if place is not None:
                    scanner.offset, scanner.chain = place.offset, place.chain
                elif scanner.snapshot or scanner.start.revision != stretch.segment.first - 1:
                    return self.carefully(None)
            except JournalDamagedError:
                return self.carefully(None)
            revision = self._splicer.revision
            while self._splicer.revision < self._work.until:
                place = Place(scanner.offset, scanner.chain, self._splicer.revision)
                try:
                    block = scanner.next_block()
                except JournalDamagedError as error:
                    if stretch.segment.open and scanner.torn():
                        text = str(error).partition(f"byte {error.offset}: ")[2]
                        self._tell("torn", f"{text}: a write that is not finished", lost=False)
                        return self._finish(place)
                    return self.carefully(place)
                if block is None:
                    break
                if not scanner.ended:
                    self._offset = place.offset
                    self._splice(*block)
                    revision = self._splicer.revision
            else:
                # the end was asked for: the block with it is read again next time, if more is in it
                here = Place(scanner.offset, scanner.chain, revision)
                return self._finish(place if place is not None and revision > self._work.until else here)
            if stretch.segment.open:
                return self._finish(Place(scanner.offset, scanner.chain, self._splicer.revision))
            if not scanner.ended or self._splicer.revision != stretch.segment.last:
                return self.carefully(Place(scanner.offset, scanner.chain, self._splicer.revision))
            return self._finish(None)

    def carefully(self, place: Place | None) -> Spliced:
        """Splice from a place on, decoding every record and going on behind damage."""
        stretch = self._stretch
        splicer = self._splicer
        with SegmentReader(self._work.journal, "changes", stretch.segment, place) as reader:
            self._path = reader.segment.path
            behind: Place | None = place
            for records in reader:
                if reader.offset >= stretch.size and stretch.segment.open:
                    break
                self._offset = reader.offset
                first = next((record.revision for record in records if isinstance(record, Change)), 0)
                if first:
                    encoder = Encoder(Position(first - 1, 0, 0), bytes(SYNC_BYTES), gapless=False)
                    data = encoder.encode([record for record in records if not isinstance(record, RejectedSend)]).data
                    count, start = read_unsigned(data, 0)
                    _, start = read_unsigned(data, start)
                    splicer.revision = first - 1
                    self._splice(data[start:-SYNC_BYTES], count >> 1)
                if splicer.revision > self._work.until:
                    break
                behind = reader.place
                if splicer.revision == self._work.until:
                    break
            self._problems.extend(reader.problems)
            last = max(splicer.revision, reader.revision if not stretch.segment.open else 0)
            splicer.revision = last
            done = not stretch.segment.open and last >= stretch.segment.last
            return self._finish(None if done else behind)

    def close(self) -> None:
        """Leave no file open, finished or not."""
        for container in self._containers.values():
            container.close()

    def _splice(self, data: bytes, count: int) -> None:
        self._splicer.splice(data, count)
        self._pending += len(data)
        if self._pending >= _TAKEN_BYTES:
            self._pending = 0
            for container in self._containers.values():
                container.write()

    def _finish(self, place: Place | None) -> Spliced:
        for container in self._containers.values():
            container.finish()
        unreadable = self._splicer.unreadable
        for revision in unreadable[:_PROBLEMS_MAX]:
            text = "a decimal or a timestamp in the value is beyond what a column holds; it is among the untyped rows"
            self._problems.append(Problem("unreadable", self._path, 0, revision, revision, text, lost=False))
        if len(unreadable) > _PROBLEMS_MAX:
            text = f"so are {len(unreadable) - _PROBLEMS_MAX} more values"
            self._problems.append(
                Problem("unreadable", self._path, 0, unreadable[_PROBLEMS_MAX], unreadable[-1], text, lost=False)
            )
        rows = {name: container.count for name, container in self._containers.items() if container.count}
        return Spliced(min(self._splicer.revision, self._work.until), place, rows, self._problems)

    def _choose(self, schema: str, version: str, fingerprint: bytes, deleted: bool) -> Rows | None:
        """Find the rows of a judgement."""
        work = self._work
        if work.wanted is not None and schema not in work.wanted:
            return None
        if not schema:
            return self._choose_untyped(schema)
        text = work.deleted.get(schema) if deleted else work.catalogue.writer(schema, version, fingerprint)
        typed = None if text is None else work.typed.get(text)
        if text is not None and typed is not None:
            container = self._containers.get(container_folder(text))
            if container is None:
                convert = Transcoder(text).transcode if typed.transcode else None
                container = self._container(container_folder(text), typed.schema, Rows(True, convert))
            return container.rows
        if (schema, fingerprint) not in self._told:
            self._told.add((schema, fingerprint))
            of = f"{schema} {version}".rstrip()
            why = (
                "no schema of this name and fingerprint" if text is None else "its type has too many parts for columns"
            )
            remedy = "; name the schema folder with --schemas" if text is None else ""
            revision = self._splicer.revision
            self._tell(
                "unknown-schema",
                f"{of} (fingerprint {fingerprint.hex() or 'none'}): {why}: its values are among the untyped rows{remedy}",
                revision,
                lost=False,
            )
        return self._choose_untyped(schema)

    def _choose_untyped(self, schema: str) -> Rows | None:
        if self._work.wanted is not None and schema not in self._work.wanted:
            return None
        container = self._containers.get(UNTYPED)
        if container is None:
            container = self._container(UNTYPED, untyped_row_schema(), Rows(False))
        return container.rows

    def _container(self, name: str, schema: str, rows: Rows) -> _Container:
        container = _Container(Path(self._work.work, name), self._number, schema, rows)
        self._containers[name] = container
        return container

    def _tell(self, kind: Any, text: str, revision: int = 0, lost: bool = True) -> None:  # noqa: ANN401 - a literal of another module
        self._problems.append(Problem(kind, self._path, self._offset, revision, revision, text, lost))

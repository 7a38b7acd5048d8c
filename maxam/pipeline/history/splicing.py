"""The work of a Spark worker for the typed history: stretches of the journal in, Parquet files in a work folder out."""

import shutil
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final
from uuid import uuid4

from maxam.errors import JournalDamagedError
from maxam.journal.listing import Problem, open_segment
from maxam.journal.reading import Place, SegmentReader
from maxam.journal.scan import Scanner
from maxam.journal.splice import Rows, Splicer
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.errors import PipelineError, unusable
from maxam.pipeline.history.arrays import UnfitError
from maxam.pipeline.history.columns import ColumnType, Transcoder
from maxam.pipeline.history.parquet import Files, Written
from maxam.pipeline.history.stretches import Stretch, torn_tail
from maxam.pipeline.history.table import UNTYPED, Minors
from maxam.pipeline.spark.blocks import encoded

_TASK_BYTES: Final = 128 << 20  # of segments in one task, which writes a file for each type and day
_TAKEN_BYTES: Final = 32 << 20  # of segments that are spliced before all is written: memory grows with it
_PROBLEMS_MAX: Final = 20  # of values that cannot be read, reported for each stretch


@dataclass(slots=True)
class Spliced:
    """The result of one stretch.

    Attributes:
        last: Revision of its last change that was read or known to be lost.
        place: Where the next read of the segment begins. None when it was read to its end.
        problems: Parts that could not be read.
    """

    last: int
    place: Place | None = None
    problems: list[Problem] = field(default_factory=list)


@dataclass(slots=True)
class Task:
    """The result of some stretches that follow each other.

    Attributes:
        stretches: Of each.
        files: All of their rows.
    """

    stretches: list[Spliced]
    files: list[Written]


def divided(stretches: list[Stretch]) -> list[list[int]]:
    """Divide stretches among tasks: the numbers of some that follow each other for each."""
    tasks: list[list[int]] = []
    size = _TASK_BYTES
    for number, stretch in enumerate(stretches):
        more = stretch.size - (stretch.place.offset if stretch.place is not None else 0)
        if size + more > _TASK_BYTES:
            tasks.append([])
            size = 0
        tasks[-1].append(number)
        size += more
    return tasks


class _WrongError(Exception):
    """Whole blocks of a stretch hold records that are not what the journal writes."""


@final
class Splicing:
    """The splicing of some stretches: pickled, for Spark's workers.

    Attributes:
        tasks: Numbers of the stretches of each.
    """

    def __init__(
        self,
        journal: str,
        work: str,
        stretches: list[Stretch],
        after: int,
        until: int,
        catalogue: Catalogue,
        columns: dict[str, Minors],
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
            columns: By type, the minors that its columns hold. A schema that is not among them counts as unknown.
            wanted: The types that become rows; None for all, and what has none.
        """
        self.journal: Final = journal
        self.stretches: Final = stretches
        self.tasks: Final = divided(stretches)
        self.after: Final = after
        self.until: Final = until
        self.catalogue: Final = catalogue
        self.wanted: Final = wanted
        self._work: Final = work
        self._columns: Final = columns
        self._names: Final = {text: name for name, minors in columns.items() for _, text in minors}
        self._merged: Final[dict[str, ColumnType]] = {}

    def splice(self, number: int) -> Task:
        """Do one task.

        Raises:
            PipelineError: A segment is gone or cannot be read, or the work folder cannot be written.
        """
        wrong: set[int] = set()
        checked = False
        while True:
            # attempts of one task may run at once: each has a folder, and the driver takes the files that one of them reports
            folder = Path(self._work, f"{number:06}-{uuid4().hex}")
            try:
                with closing(Files(folder)) as files:
                    done = [self._splice(at, files, wrong, checked) for at in self.tasks[number]]
                    return Task(done, files.finish())
            except _WrongError as error:
                wrong.add(error.args[0])  # who reads each record finds out which
            except UnfitError as error:
                if checked:
                    paths = [self.stretches[at].segment.path for at in self.tasks[number]]
                    raise PipelineError(f"a value was not found in {paths[0]} to {paths[-1]}: {error}") from error
                checked = True  # each value is checked
            shutil.rmtree(folder, ignore_errors=True)

    def name_of(self, text: str) -> str | None:
        """Return the type whose columns hold the values of a schema, None for none."""
        return self._names.get(text)

    def column(self, name: str) -> ColumnType:
        """Give the columns of a type."""
        merged = self._merged.get(name)
        if merged is None:
            merged = self._merged[name] = ColumnType(self._columns[name])
        return merged

    def text_of_deletions(self, name: str) -> str | None:
        """Return the schema whose rows take the deletions of a type, None for a type without columns."""
        minors = self._columns.get(name)
        return None if minors is None else minors[-1][1]

    def _splice(self, number: int, files: Files, wrong: set[int], checked: bool) -> Spliced:
        stretch = self.stretches[number]
        run = _Run(self, stretch, files, checked)
        try:
            if number in wrong:
                return run.carefully(stretch.place)
            try:
                return run.quickly()
            except (ValueError, IndexError) as error:
                raise _WrongError(number) from error
        except FileNotFoundError as error:
            raise PipelineError(
                f"{stretch.segment.path}: it was removed before it was read. Revisions {stretch.segment.first} to"
                f" {stretch.segment.last or '?'} are lost for this table. Run history more often than retention"
            ) from error
        except OSError as error:
            raise unusable(stretch.segment.path, error) from error


@final
class _Run:
    """One attempt to splice a stretch."""

    def __init__(self, work: Splicing, stretch: Stretch, files: Files, checked: bool) -> None:
        self._work: Final = work
        self._files: Final = files
        self._checked: Final = checked
        self._stretch: Final = stretch
        place = stretch.place
        start = stretch.segment.first - 1 if place is None else place.revision
        self._splicer: Final = Splicer(start, work.after, work.until, self._choose, self._choose_untyped)
        self._problems: Final[list[Problem]] = []
        self._told: Final[set[tuple[str, bytes]]] = set()
        self._path = stretch.segment.path
        self._offset = 0
        self._pending = 0

    def quickly(self) -> Spliced:
        """Splice blocks without reading their records, as long as they are whole."""
        stretch = self._stretch
        segment, file = open_segment(self._work.journal, "changes", stretch.segment)
        self._path = segment.path
        with closing(file):
            place = stretch.place
            try:
                scanner = Scanner(self._path, stretch.size, file.read)
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
                        self._problems.append(torn_tail(self._path, place.offset, error))
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
                block = encoded(records)
                if block is not None:
                    splicer.revision, data, count = block
                    self._splice(data, count)
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

    def _splice(self, data: bytes, count: int) -> None:
        self._splicer.splice(data, count)
        self._pending += len(data)
        if self._pending >= _TAKEN_BYTES:
            self._pending = 0
            self._files.write(everything=True)
        else:
            self._files.write(everything=False)

    def _finish(self, place: Place | None) -> Spliced:
        unreadable = self._splicer.unreadable
        for revision in unreadable[:_PROBLEMS_MAX]:
            text = "a decimal or a timestamp in the value is beyond what a column holds; it is among the untyped rows"
            self._problems.append(Problem("unreadable", self._path, 0, revision, revision, text, lost=False))
        if len(unreadable) > _PROBLEMS_MAX:
            text = f"so are {len(unreadable) - _PROBLEMS_MAX} more values"
            self._problems.append(
                Problem("unreadable", self._path, 0, unreadable[_PROBLEMS_MAX], unreadable[-1], text, lost=False)
            )
        return Spliced(min(self._splicer.revision, self._work.until), place, self._problems)

    def _choose(self, schema: str, version: str, fingerprint: bytes, deleted: bool) -> Rows | None:
        """Find the rows of a validation."""
        work = self._work
        if work.wanted is not None and schema not in work.wanted:
            return None
        if not schema:
            return self._choose_untyped(schema)
        text = work.text_of_deletions(schema) if deleted else work.catalogue.writer(schema, version, fingerprint)
        name = None if text is None else work.name_of(text)
        if text is not None and name is not None:
            rows = self._files.rows(text)
            if rows is None:
                column = work.column(name)
                root = column.minor(text).root
                convert = Transcoder(text).transcode if self._checked or root.recursive() else None
                rows = self._files.add(text, name, Rows(True, convert), column, root)
            return rows
        if (schema, fingerprint) not in self._told:
            self._told.add((schema, fingerprint))
            of = f"{schema} {version}".rstrip()
            why = (
                "no schema of this name and fingerprint" if text is None else "its type has too many parts for columns"
            )
            remedy = ". Give the schema folder with --schemas" if text is None else ""
            revision = self._splicer.revision
            self._report(
                "unknown-schema",
                f"{of} (fingerprint {fingerprint.hex() or 'none'}): {why}. Its values are among the untyped rows{remedy}",
                revision,
                lost=False,
            )
        return self._choose_untyped(schema)

    def _choose_untyped(self, schema: str) -> Rows | None:
        if self._work.wanted is not None and schema not in self._work.wanted:
            return None
        return self._files.rows(UNTYPED) or self._files.add(UNTYPED, UNTYPED, Rows(False))

    def _report(self, kind: Any, text: str, revision: int = 0, lost: bool = True) -> None:  # noqa: ANN401 - a literal of another module
        self._problems.append(Problem(kind, self._path, self._offset, revision, revision, text, lost))

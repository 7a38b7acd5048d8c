"""One round of the typed history: stretches of the journal become files of the table."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from maxam.journal.identity import end_chain
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.history.columns import ColumnType
from maxam.pipeline.history.parquet import Written
from maxam.pipeline.history.splicing import Spliced, Splicing
from maxam.pipeline.history.stretches import HistoryReport, Stretch
from maxam.pipeline.history.table import UNTYPED, Minors, Table
from maxam.pipeline.history.widening import Widening
from maxam.pipeline.spark.workers import Counted, on_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def column_types(catalogue: Catalogue, merged: Mapping[str, Minors] | None = None) -> dict[str, ColumnType]:
    """Return the column type of each type in a catalogue. Types too large for columns are left out: their values stay untyped.

    Args:
        catalogue: A journal's.
        merged: Minors that a table holds already, by type: the others follow them.
    """
    columns: dict[str, ColumnType] = {}
    for name, minors in catalogue.types().items():
        column = ColumnType((merged or {}).get(name, ()))
        try:
            for version, text in minors:
                column.add(version, text)
        except PipelineError:
            continue  # its values are reported when they are met
        columns[name] = column
    return columns


@final
class Round:
    """One round: a bounded stretch of the journal becomes rows of the table."""

    def __init__(
        self,
        spark: "SparkSession | None",
        journal: Path,
        table: Table,
        catalogue: Catalogue,
        report: HistoryReport,
        until: int,
        counted: Counted | None,
    ) -> None:
        self._spark: Final = spark
        self._journal: Final = journal
        self._table: Final = table
        self._catalogue: Final = catalogue
        self._report: Final = report
        self._until: Final = until
        self._counted: Final = counted
        wanted = table.state.types
        columns = column_types(catalogue, table.minors)
        self._columns: Final = {name: c for name, c in columns.items() if wanted is None or name in wanted}

    def run(self, stretches: list[Stretch]) -> None:
        """Splice, write, commit."""
        table = self._table
        self._widen()
        spliced, written = self._splice(stretches, table.work_folder())
        files = [
            (Path(file.path), f"{file.name}/date={file.date}/{file.first:020}-{file.last:020}.parquet")
            for file in written
        ]
        for file in written:
            self._report.rows[file.name] += file.rows
        last = max(*(each.last for each in spliced), table.state.revision)
        place = spliced[-1].place
        lost = tuple((p.first, p.last) for each in spliced for p in each.problems if p.lost and p.first)
        missing = tuple((p.first, p.last) for p in self._report.problems if p.kind == "missing" and p.first <= last)
        state = replace(
            table.state,
            revision=last,
            segment=-1 if place is None else stretches[-1].segment.first,
            offset=0 if place is None else place.offset,
            chain=0 if place is None else place.chain,
            place_revision=0 if place is None else place.revision,
            end_chain=end_chain(self._journal, "changes", last) if place is None else 0,
            lost=tuple(sorted({*table.state.lost, *lost, *missing})),
        )
        minors = {name: self._minors(name) for name in {file.name for file in written} if name != UNTYPED}
        changed = {name: each for name, each in minors.items() if table.minors.get(name) != each}
        if self._report.first == 0 and last > table.state.revision:
            self._report.first = table.state.revision + 1
        if state != table.state:
            table.commit(files, state, changed)
        self._report.last = state.revision
        self._report.files += len(files)
        self._report.problems += [problem for each in spliced for problem in each.problems]

    # columns

    def _minors(self, name: str) -> Minors:
        return self._columns[name].texts()

    def _widen(self) -> None:
        """Give the files that there are the columns of minors that are new."""
        table = self._table
        for name, column in self._columns.items():
            older = ColumnType(table.minors.get(name, ()))
            before = table.files(name)
            if not before or older.sql_type() == column.sql_type():
                continue
            work = table.work_folder().absolute()
            files = [(work / f"{number:06}.parquet", path) for number, path in enumerate(before)]
            minors = self._minors(name)
            size = sum(path.stat().st_size for path in before)
            widening = Widening([(str(path), str(target)) for target, path in files], older.texts(), minors)
            on_workers(self._spark, widening.rewrite, len(files), size, self._counted)
            if table.state.delta:  # older versions of the table keep their files
                files = [
                    (target, path.with_name(f"{path.name.partition('.')[0]}.{len(minors)}.parquet"))
                    for target, path in files
                ]
            moves = [(target, path.relative_to(table.folder).as_posix()) for target, path in files]
            table.commit(moves, table.state, {name: minors}, replaced=before)
            self._report.rewritten += len(files)

    # splicing

    def _splice(self, stretches: list[Stretch], work: Path) -> tuple[list[Spliced], list[Written]]:
        splicing = Splicing(
            os.path.abspath(self._journal),  # noqa: PTH100 - a string is wanted
            str(work.absolute()),
            stretches,
            self._table.state.revision,
            self._until,
            self._catalogue,
            {name: self._minors(name) for name in self._columns},
            None if self._table.state.types is None else frozenset(self._table.state.types),
        )
        size = sum(stretch.size for stretch in stretches)
        done = on_workers(self._spark, splicing.splice, len(splicing.tasks), size, self._counted)  # not the data
        return [spliced for task in done for spliced in task.stretches], [file for task in done for file in task.files]

"""The newest change of each topic, found by processes of this machine, for any number of topics.

1. Each piece of the scan writes the changes that it found to two Arrow files in a temporary folder.
2. The driver reads their destinations and revisions, and chooses the newest change of each topic.
3. Workers make rows of the chosen records, a range of destinations each.

The driver never holds a record. Memory grows with the destinations only.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from maxam.journal.newest import NewestRows, origin_of
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.errors import unusable
from maxam.pipeline.jobs.output import Result
from maxam.pipeline.jobs.values import ValueTexts
from maxam.pipeline.jobs.walking import Walk
from maxam.pipeline.spark.workers import Counted, on_workers

RANGE_TOPICS: Final = 10_000
"""Topics in one range, whose rows one batch of Arrow holds."""
_RANGES_MAX: Final = 256  # each opens every file
_ORDER: Final = "order.npy"
_KEYS: Final = ("destination", "revision")  # columns of one file of a piece
_RECORD: Final = ("record",)  # that of the other one
_TYPES: Final = {"revision": pa.int64(), "accepted_at": pa.timestamp("us", "UTC"), "body": pa.binary()}


@final
class _Finding:
    """The first step: pickled, and called with the numbers of pieces."""

    def __init__(self, walk: Walk, folder: Path) -> None:
        self._walk: Final = walk
        self._folder: Final = folder

    def __call__(self, number: int) -> list[int]:
        """Write what one piece holds; return the number of rows of each batch."""
        rows: list[int] = []
        batches = self._walk.batches(number)
        first = next(batches, None)
        if first is None:
            return rows
        try:
            with (
                pa.ipc.new_file(_file(self._folder, number, _KEYS), first.select(_KEYS).schema) as keys,
                pa.ipc.new_file(_file(self._folder, number, _RECORD), first.select(_RECORD).schema) as records,
            ):
                for batch in chain((first,), batches):
                    keys.write_batch(batch.select(_KEYS))
                    records.write_batch(batch.select(_RECORD))
                    rows.append(batch.num_rows)
        except OSError as error:
            raise unusable(self._folder, error) from error
        return rows


@final
class Newest:
    """The chosen changes of a temporary folder: pickled, and asked by workers for ranges of them.

    Attributes:
        topics: Number of topics that have a change.
        ranges: Number of ranges.
        size: Bytes of the files of the folder.
    """

    def __init__(self, folder: Path, batches: list[tuple[int, list[int]]], topics: int) -> None:
        """Describe the folder.

        Args:
            folder: It has the files of the first step and the order of the second one.
            batches: Number of each piece that has a file, and the rows of each of its batches.
            topics: Number of chosen changes.
        """
        self._folder: Final = folder
        self._batches: Final = batches
        self._length: Final = max(RANGE_TOPICS, -(-topics // _RANGES_MAX))
        self.topics: Final = topics
        self.ranges: Final = -(-topics // self._length)
        self.size: Final = sum(Path(_file(folder, number, _RECORD)).stat().st_size for number, _ in batches)

    def records(self, number: int) -> list[bytes]:
        """Return the records of the changes of one range, values and deletes, in order of destination.

        Raises:
            PipelineError: The temporary folder cannot be read.
        """
        try:
            return self._records(number)
        except OSError as error:
            raise unusable(self._folder, error) from error

    def _records(self, number: int) -> list[bytes]:
        order = np.load(self._folder / _ORDER, mmap_mode="r")
        part = order[number * self._length : (number + 1) * self._length]
        by_place = np.argsort(part)
        wanted = part[by_place]
        found: list[bytes] = []
        begin = 0
        for piece, lengths in self._batches:
            ends = begin + np.cumsum(lengths)
            with pa.memory_map(_file(self._folder, piece, _RECORD)) as source, pa.ipc.open_file(source) as file:
                for at, end in enumerate(ends.tolist()):
                    low, high = np.searchsorted(wanted, (begin, end))
                    if low < high:
                        record = file.get_batch(at).column(0)
                        found += record.take(pa.array(wanted[low:high] - begin)).to_pylist()
                    begin = end
        return [found[at] for at in np.argsort(by_place)]


@contextmanager
def newest_changes(walk: Walk, counted: Counted | None = None) -> Iterator[Newest]:
    """Find the newest change of each topic, values and deletes. The result is valid until the block ends.

    Args:
        walk: The scan, of one period.
        counted: See `on_workers`.

    Raises:
        PipelineError: A segment is not what it was when the archive was examined, or the temporary folder cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="maxam-latest-") as name:
        folder = Path(name)
        lengths = on_workers(None, _Finding(walk, folder), walk.pieces(), walk.size, counted)
        batches = [(number, each) for number, each in enumerate(lengths) if each]
        order = _order(folder, batches)
        try:
            np.save(folder / _ORDER, order)
        except OSError as error:
            raise unusable(folder, error) from error
        yield Newest(folder, batches, len(order))


@final
class _Values:
    """Makes the rows of a range of topics: pickled, for workers."""

    def __init__(self, newest: Newest, catalogue: Catalogue | None, deleted: bool, schema: pa.Schema) -> None:
        self._newest: Final = newest
        self._catalogue: Final = catalogue
        self._deleted: Final = deleted
        self._schema: Final = schema

    def __call__(self, number: int) -> pa.RecordBatch:
        """Make the rows of a range."""
        rows = NewestRows(self._newest.records(number), self._deleted)
        known = {origin: origin_of(origin) for origin in set(rows.origins)}
        origins = [known[origin] for origin in rows.origins]
        texts = None if self._catalogue is None else ValueTexts(self._catalogue)
        values = [
            None if texts is None or deleted else texts.text(validation, body, length)
            for deleted, (_, validation), body, length in zip(
                rows.deleted, origins, rows.bodies, rows.value_lengths, strict=True
            )
        ]
        columns: dict[str, Sequence[object]] = {
            "destination": rows.destinations,
            "revision": rows.revisions,
            "accepted_at": rows.times_us,
            "publisher": [publisher for publisher, _ in origins],
            "schema": [validation.schema for _, validation in origins],
            "kind": ["delete" if deleted else "value" for deleted in rows.deleted],
            "value": values,
            "body": [
                None if deleted or value is not None else body
                for deleted, value, body in zip(rows.deleted, values, rows.bodies, strict=True)
            ],
        }
        arrays = [pa.array(columns[field.name], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def newest_values(
    newest: Newest, catalogue: Catalogue | None = None, deleted: bool = False, counted: Counted | None = None
) -> Result:
    """Return newest changes as the values of their topics, as `values_of` does.

    Args:
        newest: Of `newest_changes`; the result is valid as long as this is.
        catalogue: See `values_of`.
        deleted: See `values_of`.
        counted: See `on_workers`.
    """
    names = ["destination", "revision", "accepted_at", "publisher", "schema", *(["kind"] if deleted else [])]
    marks = [(name, False, False) for name in names]
    if catalogue is not None:
        marks.append(("value", True, True))
    marks.append(("body", False, True))
    fields = [pa.field(name, _TYPES.get(name, pa.string())) for name, _, _ in marks]
    make = _Values(newest, catalogue, deleted, pa.schema(fields))
    return Result(pa.schema(fields), tuple(marks), make, newest.ranges, newest.size, counted)


def _order(folder: Path, batches: list[tuple[int, list[int]]]) -> npt.NDArray[np.int64]:
    """Return the number of the row of the newest change of each topic, counted over all files, in order of destination."""
    if not batches:
        return np.empty(0, np.int64)
    parts = []
    for number, _ in batches:
        with pa.OSFile(_file(folder, number, _KEYS)) as source:
            parts.append(pa.ipc.open_file(source).read_all())
    found = pa.concat_tables(parts)
    topics = found.column("destination").dictionary_encode().combine_chunks()
    codes, names = topics.indices.to_numpy(), topics.dictionary
    rows = np.argsort(found.column("revision").to_numpy())
    newest = np.empty(len(names), np.int64)
    newest[codes[rows]] = rows  # of the rows of one topic, the last one stays
    ordered: npt.NDArray[np.int64] = newest[pc.sort_indices(names).to_numpy()]
    return ordered


def _file(folder: Path, number: int, columns: Sequence[str]) -> str:
    return str(folder / f"{number:06}.{columns[0]}.arrow")

"""Older files of a history table get the columns that newer minors of their type need."""

from typing import Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from maxam.pipeline.history.arrays import alternative_type, arrow_type
from maxam.pipeline.history.columns import Alternative, ColumnType, Place, items_of
from maxam.pipeline.history.parquet import BATCH_ROWS, WRITING, about
from maxam.pipeline.history.table import Minors


@final
class Widening:
    """The rewriting of the files of one type: pickled, for workers."""

    def __init__(self, files: list[tuple[str, str]], older: Minors, minors: Minors) -> None:
        """Describe the work.

        Args:
            files: Paths of each older file and of the new one to write.
            older: The minors that the columns of the older files hold.
            minors: The minors that the columns of the new files hold, the older ones first.
        """
        self._files: Final = files
        self._older: Final = older
        self._minors: Final = minors

    def rewrite(self, number: int) -> None:
        """Write the rows of one file with the columns of all minors.

        Raises:
            OSError: The older file cannot be read, or the new one cannot be written.
        """
        merged = ColumnType(self._minors)
        older, younger = ColumnType(self._older).place(), merged.place()
        source, target = self._files[number]
        with pq.ParquetFile(source) as file:
            columns = [pa.field(each.name, each.type) for each in file.schema_arrow if each.name != "value"]
            schema = pa.schema([*columns, pa.field("value", arrow_type(younger))])
            with pq.ParquetWriter(target, schema, **WRITING) as writer:
                writer.add_key_value_metadata(about(merged))
                for batch in file.iter_batches(BATCH_ROWS):
                    arrays = [batch.column(each.name) for each in columns]
                    value = widened(batch.column("value"), older, younger)
                    writer.write_batch(pa.RecordBatch.from_arrays([*arrays, value], schema=schema))


def widened(column: Any, older: Place, younger: Place) -> Any:  # noqa: ANN401  # pyarrow has no types
    """Turn an array of an older state of a column into one of a younger state.

    The alternatives and fields of the older state come first in the younger one, in the same order.
    """
    of = arrow_type(younger)
    if not older.alternatives:
        return pa.nulls(len(column), of)
    if len(younger.alternatives) == 1:
        return _widened(column, older.alternatives[0], younger.alternatives[0])
    parts = [column] if len(older.alternatives) == 1 else [column.field(n) for n in range(len(older.alternatives))]
    members = [
        _widened(part, each, target)
        for part, each, target in zip(parts, older.alternatives, younger.alternatives, strict=False)
    ]
    return _struct(of, column, members)


def _widened(column: Any, older: Alternative, younger: Alternative) -> Any:  # noqa: ANN401  # as above
    of = alternative_type(younger)
    match younger.kind:
        case "record" if not younger.fields:
            return column
        case "record":
            fields = zip(older.fields, younger.fields, strict=False)
            members = [widened(column.field(n), each.place, to.place) for n, (each, to) in enumerate(fields)]
            return _struct(of, column, members)
        case "array":
            items = widened(column.values, items_of(older), items_of(younger))
        case "map":
            values = widened(column.items, items_of(older), items_of(younger))
            items = pa.StructArray.from_arrays([column.keys, values], fields=[of.key_field, of.item_field])
        case _:
            return column if column.type == of else column.cast(of, safe=False)
    return pa.Array.from_buffers(of, len(column), column.buffers()[:2], offset=column.offset, children=[items])


def _struct(of: Any, column: Any, members: list[Any]) -> Any:  # noqa: ANN401  # as above
    """Return structs that are null where a column is, and whose further members are null."""
    rest = [pa.nulls(len(column), of.field(number).type) for number in range(len(members), of.num_fields)]
    return pa.StructArray.from_arrays([*members, *rest], fields=list(of), mask=column.is_null())

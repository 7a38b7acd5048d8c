"""Bodies as JSON, in a column of their own."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from maxam.pipeline.jobs.output import with_json, with_optional
from maxam.pipeline.jobs.values import ValueTexts
from maxam.records import Validation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from maxam.pipeline.catalogue import Catalogue

VALUE: Final = "value"
_NEEDED: Final = ("schema", "schema_version", "schema_fingerprint", "encoding", "value_offset", "value_length", "body")


def with_values(frame: "DataFrame", catalogue: "Catalogue", *, without_pii: bool = False) -> "DataFrame":
    """Decode the datum inside each body.

    Args:
        frame: Rows with the columns of changes that describe a body: `schema`, `schema_version`, `schema_fingerprint`,
            `encoding`, `value_offset`, `value_length` and `body`.
        catalogue: The schemas.
        without_pii: Leave out the fields that the schemas mark as personal.

    Returns:
        The rows with one more column `value`: JSON text as `maxam-admin topics get --json` has values. It is null for a delete.
        It is null too for a body without a schema, of a schema that is in no folder, or that does not decode by it.
    """

    def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = pa.array(json_values(batch, catalogue, without_pii=without_pii), pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, values], [*batch.schema.names, VALUE])

    columns = StructType([*frame.schema.fields, StructField(VALUE, StringType())])
    return with_optional(with_json(frame.mapInArrow(decoded, columns), VALUE), VALUE)


def json_values(batch: pa.RecordBatch, catalogue: "Catalogue", *, without_pii: bool = False) -> list[str | None]:
    """Return the datum of each row as JSON text, or None; see `with_values`."""
    texts = ValueTexts(catalogue, without_pii=without_pii)
    values: list[str | None] = []
    for name, version, fingerprint, encoding, offset, length, body in zip(
        *[batch.column(column).to_pylist() for column in _NEEDED], strict=True
    ):
        described = name and fingerprint and body
        validation = Validation(encoding, name, version, fingerprint, offset) if described else None
        values.append(None if validation is None else texts.text(validation, body, length))
    return values

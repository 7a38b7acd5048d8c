"""Schema resolution of schemas that a journal keeps as texts; maxam.avro.resolution has the rules."""

from typing import Final, final

from maxam.avro.resolution import Failure
from maxam.avro.resolution import Resolution as TypeResolution
from maxam.avro.schema import parse_schema, read_source

__all__ = ["Failure", "Resolution"]


@final
class Resolution:
    """How one schema reads what another one wrote.

    Attributes:
        certain: Every datum of the writer's schema is readable; no datum needs to be looked at.
    """

    def __init__(self, writer: str, reader: str) -> None:
        """Resolve two schemas; they match whatever their own names.

        Args:
            writer: Self-contained text.
            reader: Likewise.

        Raises:
            SchemaError: One is no good schema.
        """
        written, readable = (parse_schema(read_source("schema", text.encode())).type for text in (writer, reader))
        self._types: Final = TypeResolution(written, readable, any_name=True)
        self.certain: Final = self._types.certain

    def failures(self, datum: bytes) -> list[Failure]:
        """Return why a datum, which the writer's schema accepts, is not readable, each reason once."""
        return self._types.failures(datum)

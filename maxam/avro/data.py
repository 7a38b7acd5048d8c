"""Read and decode data that a walker has accepted, to show and compare them. Nothing here checks any bounds again.

The broker never decodes the bodies that it stores and delivers.
"""

import struct
from collections.abc import Iterator
from typing import Final, final

from maxam.avro.explainer import read_number
from maxam.avro.schema import Field, Type
from maxam.avro.source import Json


@final
class Value:
    """A decoded value. The kind of its type decides which attribute holds it.

    Attributes:
        type: Type of the value.
        number: Of an int or long, 0 or 1 of a boolean, the index of an enum's symbol or a union's branch.
        real: Of a float or double.
        data: Of bytes, string and fixed.
        items: Of a record's fields, an array's items or a map's values. For a union, the value of its branch alone.
        keys: Of a map, as UTF-8.
    """

    __slots__ = ("data", "items", "keys", "number", "real", "type")

    def __init__(self, of: Type, number: int = 0, real: float = 0.0, data: bytes = b"") -> None:
        self.type: Final = of
        self.number: Final = number
        self.real: Final = real
        self.data: Final = data
        self.items: Final[list[Value]] = []
        self.keys: Final[list[bytes]] = []

    def json(self) -> Json:
        """Return it in Avro's JSON encoding. NaN and the infinities, which JSON lacks, are text.

        Spec: Avro 1.12 "JSON Encoding"
        """
        match self.type.kind:
            case "null":
                return None
            case "boolean":
                return bool(self.number)
            case "int" | "long":
                return self.number
            case "float" | "double":
                return self.real if self.real - self.real == 0 else str(self.real)
            case "string":
                return self.data.decode()
            case "bytes" | "fixed":
                return self.data.decode("latin-1")
            case "enum":
                return self.type.symbols[self.number]
            case "record":
                return {field.name: item.json() for field, item in self.fields()}
            case "array":
                return [item.json() for item in self.items]
            case "map":
                return {self.keys[index].decode(): item.json() for index, item in enumerate(self.items)}
            case _:
                branch = self.items[0]
                return None if branch.type.kind == "null" else {branch.type.label: branch.json()}

    def fields(self) -> list[tuple[Field, "Value"]]:
        """Return a record's fields with their values."""
        return [(field, self.items[index]) for index, field in enumerate(self.type.fields)]


@final
class DatumReader:
    """Reads the parts of a datum one after another."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: bytes) -> None:
        self._body: Final = body
        self._at = 0

    def number(self) -> int:
        """Read an int, a long, a length or an index."""
        self._at, number = read_number(self._body, self._at)
        return number

    def take(self, size: int) -> bytes:
        """Read `size` bytes."""
        self._at += size
        return self._body[self._at - size : self._at]

    def text(self) -> bytes:
        """Read bytes, a string or a key."""
        return self.take(self.number())

    def items(self) -> Iterator[None]:
        """Iterate over the items of an array or map. Each must be read before the next one is asked for."""
        while (count := self.number()) != 0:
            if count < 0:
                self.number()  # the size of the block
            for _ in range(abs(count)):
                yield


def decode(of: Type, body: bytes) -> Value:
    """Decode a datum that the type's walker accepts."""
    return _value(of, DatumReader(body))


def _value(of: Type, reader: DatumReader) -> Value:
    match of.kind:
        case "null":
            return Value(of)
        case "boolean":
            return Value(of, number=reader.take(1)[0])
        case "int" | "long" | "enum":
            return Value(of, number=reader.number())
        case "float":
            number: float = struct.unpack("<f", reader.take(4))[0]
            return Value(of, real=number)
        case "double":
            number = struct.unpack("<d", reader.take(8))[0]
            return Value(of, real=number)
        case "bytes" | "string":
            return Value(of, data=reader.text())
        case "fixed":
            return Value(of, data=reader.take(of.size))
        case "union":
            union = Value(of, number=reader.number())
            union.items.append(_value(of.branches[union.number], reader))
            return union
        case "record":
            record = Value(of)
            for field in of.fields:
                record.items.append(_value(field.type, reader))
            return record
        case _:
            container = Value(of)
            for _ in reader.items():
                if of.kind == "map":
                    container.keys.append(reader.text())
                container.items.append(_value(of.branches[0], reader))
            return container

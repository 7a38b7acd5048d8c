"""Data of small bodies, for showing and comparing them: what is served and stored is never decoded here."""

import struct
from typing import Final, final

from maxam.avro.schema import Field, Json, Type
from maxam.avro.walker import read_number


@final
class Value:
    """A decoded value; which attribute says it depends on the type's kind.

    Attributes:
        type: What it is a value of.
        number: Of an int or long, 0 or 1 of a boolean, the index of an enum's symbol or a union's branch.
        real: Of a float or double.
        data: Of bytes, string and fixed.
        items: Of a record's fields, an array's items, a map's values; the only one is that of a union's branch.
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
        """Give it in Avro's JSON encoding; NaN and the infinities, which JSON lacks, as text.

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
        """Give a record's fields with their values."""
        return [(field, self.items[index]) for index, field in enumerate(self.type.fields)]


def decode(of: Type, body: bytes) -> Value:
    """Decode a datum that the type's walker accepts: nothing here bounds or checks anything again."""
    return _Decoder(body).value(of)


@final
class _Decoder:
    __slots__ = ("_body", "_pos")

    def __init__(self, body: bytes) -> None:
        self._body: Final = body
        self._pos = 0

    def value(self, of: Type) -> Value:
        match of.kind:
            case "null":
                return Value(of)
            case "boolean":
                return Value(of, number=self._take(1)[0])
            case "int" | "long" | "enum":
                return Value(of, number=self._number())
            case "float":
                number: float = struct.unpack("<f", self._take(4))[0]
                return Value(of, real=number)
            case "double":
                number = struct.unpack("<d", self._take(8))[0]
                return Value(of, real=number)
            case "bytes" | "string":
                return Value(of, data=self._take(self._number()))
            case "fixed":
                return Value(of, data=self._take(of.size))
            case "union":
                index = self._number()
                union = Value(of, number=index)
                union.items.append(self.value(of.branches[index]))
                return union
            case "record":
                record = Value(of)
                for field in of.fields:
                    record.items.append(self.value(field.type))
                return record
            case _:
                return self._blocks(of)

    def _blocks(self, of: Type) -> Value:
        container = Value(of)
        while True:
            count = self._number()
            if count == 0:
                return container
            if count < 0:
                self._number()  # the size of the block
                count = -count
            for _ in range(count):
                if of.kind == "map":
                    container.keys.append(self._take(self._number()))
                container.items.append(self.value(of.branches[0]))

    def _number(self) -> int:
        self._pos, number = read_number(self._body, self._pos)
        return number

    def _take(self, size: int) -> bytes:
        self._pos += size
        return self._body[self._pos - size : self._pos]

"""Read the fields of a selector from a datum that its schema has accepted, without decoding the rest.

A `Plan` belongs to one schema and the fields of one selector. It steps over what lies between the fields with walkers, and stops
after the last field. A field that the schema does not have stays NULL. So does an index beyond the end of an array or a key that a
map lacks. A field of another branch of a union stays NULL too. A reading that would step over too many values of arrays and maps fails.
"""

import struct
from collections.abc import Mapping
from operator import truediv
from typing import Final, final

from maxam.avro.explainer import EMPTY_ITEMS_MAX, read_number
from maxam.avro.schema import Field, Type
from maxam.avro.walker import Walker
from maxam.selectors.expressions import PRESENT, TEXT_BYTES_MAX, Row
from maxam.selectors.syntax import INTEGER_MAX, INTEGER_MIN, Path

DECIMAL_BYTES_MAX: Final = 64  # of a decimal, some 150 digits: a longer one is NULL
VALUES_MAX: Final = 1000  # of arrays and maps that one evaluation steps over: some 25 us
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


@final
class _Needs:
    """The fields that lie in a value.

    Attributes:
        place: Place in the row of the value itself, -1 if it is not needed.
        fields: Needs of the fields of a record.
        items: Needs of the items of an array, by index.
        values: Needs of the values of a map, by key.
    """

    __slots__ = ("fields", "items", "place", "values")

    def __init__(self) -> None:
        self.place = -1
        self.fields: Final[dict[str, _Needs]] = {}
        self.items: Final[dict[int, _Needs]] = {}
        self.values: Final[dict[bytes, _Needs]] = {}

    def places(self) -> list[int]:
        """Return the places of the value and of all that lies in it."""
        places = [self.place] if self.place >= 0 else []
        for inner in (*self.fields.values(), *self.items.values(), *self.values.values()):
            places += inner.places()
        return places


@final
class Plan:
    """The way to some fields in the data of one schema."""

    __slots__ = ("_left", "_reader")

    def __init__(self, of: Type, fields: Mapping[Path, int]) -> None:
        """Make the plan.

        Args:
            of: Type of the data.
            fields: Place in the row of each field.
        """
        needs = _Needs()
        for path, place in fields.items():
            inner = needs
            for step in path:
                if isinstance(step, str):
                    inner = inner.fields.setdefault(step, _Needs())
                elif isinstance(step, int):
                    inner = inner.items.setdefault(step, _Needs())
                else:
                    inner = inner.values.setdefault(step, _Needs())
            inner.place = place
        self._reader: Final = _reader(of, needs, True)
        self._left: Final = [0, 0, 0]  # what a reading may still step over, see `Walker.skip`

    def read(self, data: bytes, start: int, end: int, row: Row) -> None:
        """Set the fields of the datum `data[start:end]` in the row, whose values are None before.

        Raises:
            IndexError: The bytes are not a datum of the schema, or the fields lie after too many values of arrays and maps.
        """
        left = self._left
        left[0] = EMPTY_ITEMS_MAX
        left[1] = VALUES_MAX
        self._reader.read(data, start, end, row, left)


def _reader(of: Type, needs: _Needs, last: bool) -> "_Reader":
    """Return a reader of a type. If it is the `last` one, no reader follows, so it may stop after what it needs."""
    if of.kind == "null":
        return _SkipReader(None, -1)
    if of.kind == "union":
        return _UnionReader([_reader(branch, needs, last) for branch in of.branches])
    if of.kind == "record" and any(field.name in needs.fields for field in of.fields):
        return _RecordReader(of, needs, last)
    if of.kind == "array" and needs.items:
        return _ArrayReader(of, needs, last)
    if of.kind == "map" and needs.values:
        return _MapReader(of, needs)
    if needs.place >= 0 and of.logical == "decimal":
        return _DecimalReader(of, needs.place)
    if needs.place < 0 or of.kind in {"record", "array", "map", "bytes", "fixed"}:
        return _SkipReader(None if last else Walker(of), needs.place)
    if of.kind == "enum":
        return _EnumReader(of, needs.place)
    if of.kind in {"int", "long"}:
        return _NumberReader(needs.place)
    if of.kind == "string":
        return _StringReader(needs.place)
    if of.kind == "boolean":
        return _BooleanReader(needs.place)
    return _RealReader(of.kind == "float", needs.place)


class _Reader:
    """Reads a value at a position, and returns the position after it."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, end: int, row: Row, left: list[int]) -> int:
        """Read the value at `pos`."""
        raise NotImplementedError


class _PlaceReader(_Reader):
    """Reads a value into its place in the row."""

    __slots__ = ("_place",)

    def __init__(self, place: int) -> None:
        self._place: Final = place


@final
class _SkipReader(_Reader):
    """Steps over a value, if at all, and may record that it is not null."""

    __slots__ = ("_place", "_walker")

    def __init__(self, walker: Walker | None, place: int) -> None:
        self._walker: Final = walker
        self._place: Final = place

    def read(self, data: bytes, pos: int, end: int, row: Row, left: list[int]) -> int:
        if self._place >= 0:
            row[self._place] = PRESENT
        return pos if self._walker is None else self._walker.skip(data, pos, end, left)


@final
class _NumberReader(_PlaceReader):
    """Reads an int or a long."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, end: int, row: Row, left: list[int]) -> int:  # noqa: ARG002 - of the base
        pos, number = read_number(data, pos)
        if pos < 0:
            raise IndexError
        row[self._place] = number
        return pos


@final
class _StringReader(_PlaceReader):
    __slots__ = ()

    def read(self, data: bytes, pos: int, end: int, row: Row, left: list[int]) -> int:  # noqa: ARG002 - of the base
        pos, length = read_number(data, pos)
        if pos < 0 or length < 0 or length > end - pos:
            raise IndexError
        row[self._place] = data[pos : pos + length] if length <= TEXT_BYTES_MAX else PRESENT
        return pos + length


@final
class _BooleanReader(_PlaceReader):
    __slots__ = ()

    def read(self, data: bytes, pos: int, end: int, row: Row, left: list[int]) -> int:  # noqa: ARG002 - of the base
        row[self._place] = data[pos] != 0
        return pos + 1


@final
class _RealReader(_Reader):
    """Reads a float or a double."""

    __slots__ = ("_place", "_single")

    def __init__(self, single: bool, place: int) -> None:
        self._single: Final = single
        self._place: Final = place

    def read(self, data: bytes, pos: int, end: int, row: Row, left: list[int]) -> int:  # noqa: ARG002 - of the base
        size = 4 if self._single else 8
        if size > end - pos:
            raise IndexError
        real: float = (_FLOAT if self._single else _DOUBLE).unpack_from(data, pos)[0]
        row[self._place] = real if real == real else None  # noqa: PLR0124 - NaN differs from itself
        return pos + size


@final
class _EnumReader(_Reader):
    __slots__ = ("_place", "_symbols")

    def __init__(self, of: Type, place: int) -> None:
        self._symbols: Final = [symbol.encode() for symbol in of.symbols]
        self._place: Final = place

    def read(self, data: bytes, pos: int, end: int, row: Row, left: list[int]) -> int:  # noqa: ARG002 - of the base
        pos, index = read_number(data, pos)
        if pos < 0 or index < 0:
            raise IndexError
        row[self._place] = self._symbols[index]
        return pos


@final
class _DecimalReader(_Reader):
    """Reads a decimal as the nearest float, or as an int if it has no places after the point and fits 64 bits."""

    __slots__ = ("_divisor", "_place", "_size")

    def __init__(self, of: Type, place: int) -> None:
        self._size: Final = of.size if of.kind == "fixed" else -1
        self._divisor: Final[int] = 10**of.scale
        self._place: Final = place

    def read(self, data: bytes, pos: int, end: int, row: Row, left: list[int]) -> int:  # noqa: ARG002 - of the base
        size = self._size
        if size < 0:
            pos, size = read_number(data, pos)
        if pos < 0 or size < 0 or size > end - pos:
            raise IndexError
        row[self._place] = _decimal(data[pos : pos + size], self._divisor) if size <= DECIMAL_BYTES_MAX else None
        return pos + size


def _decimal(digits: bytes, divisor: int) -> object:
    number = int.from_bytes(digits, "big", signed=True)
    if divisor == 1 and INTEGER_MIN <= number <= INTEGER_MAX:
        return number
    return truediv(number, divisor)  # rounded once; machine code would round a large number first


@final
class _UnionReader(_Reader):
    __slots__ = ("_branches",)

    def __init__(self, branches: list[_Reader]) -> None:
        self._branches: Final = branches

    def read(self, data: bytes, pos: int, end: int, row: Row, left: list[int]) -> int:
        pos, index = read_number(data, pos)
        if pos < 0 or index < 0:
            raise IndexError
        return self._branches[index].read(data, pos, end, row, left)


@final
class _RecordReader(_Reader):
    """Reads some fields of a record, and steps over each run of other fields between them at once."""

    __slots__ = ("_place", "_steps")

    def __init__(self, of: Type, needs: _Needs, last: bool) -> None:
        self._place: Final = needs.place
        self._steps: Final[list[_Reader]] = []
        needed = [index for index, field in enumerate(of.fields) if field.name in needs.fields]
        skipped: list[Field] = []
        for index, field in enumerate(of.fields):
            if index not in needed:
                skipped.append(field)
                continue
            if skipped:
                self._steps.append(_SkipReader(_walker_of(skipped), -1))
                skipped = []
            self._steps.append(_reader(field.type, needs.fields[field.name], last and index == needed[-1]))
        if skipped and not last:
            self._steps.append(_SkipReader(_walker_of(skipped), -1))

    def read(self, data: bytes, pos: int, end: int, row: Row, left: list[int]) -> int:
        if self._place >= 0:
            row[self._place] = PRESENT
        for step in self._steps:
            pos = step.read(data, pos, end, row, left)
        return pos


def _walker_of(fields: list[Field]) -> Walker:
    """Return a walker over fields that follow each other."""
    of = Type("record")
    of.fields.extend(fields)
    return Walker(of)


@final
class _ArrayReader(_Reader):
    """Reads some items of an array. A block that states its size and holds none of them is passed in one step."""

    __slots__ = ("_highest", "_indices", "_last", "_place", "_readers", "_walker")

    def __init__(self, of: Type, needs: _Needs, last: bool) -> None:
        self._place: Final = needs.place
        self._last: Final = last
        self._walker: Final = Walker(of.branches[0])
        self._indices: Final = sorted(needs.items)
        self._highest: Final[int] = self._indices[-1]
        self._readers: Final = [
            _reader(of.branches[0], needs.items[index], last and index == self._highest) for index in self._indices
        ]

    def read(self, data: bytes, pos: int, end: int, row: Row, left: list[int]) -> int:
        if self._place >= 0:
            row[self._place] = PRESENT
        index = 0  # of the next item
        at = 0  # in the indices
        while True:
            pos, count = read_number(data, pos)
            if pos < 0:
                raise IndexError
            if count == 0:
                return pos
            block_end = -1
            if count < 0:
                count = -count
                pos, size = read_number(data, pos)
                block_end = pos + size
                if pos < 0 or size < 0 or block_end > end:
                    raise IndexError
            first = index
            index += count
            while at < len(self._indices) and self._indices[at] < index:
                wanted = self._indices[at]
                if wanted > first:
                    pos = self._skip(data, pos, end, wanted - first, left)
                pos = self._readers[at].read(data, pos, end, row, left)
                first = wanted + 1
                at += 1
            if self._last and index > self._highest:
                return pos
            if block_end >= 0:
                pos = block_end
            elif first < index:
                pos = self._skip(data, pos, end, index - first, left)

    def _skip(self, data: bytes, pos: int, end: int, count: int, left: list[int]) -> int:
        left[1] -= count * self._walker.values
        if left[1] < 0:
            raise IndexError
        return self._walker.skip(data, pos, end, left, count)


@final
class _MapReader(_Reader):
    """Reads some values of a map. Of a key that stands in it twice the last value counts, as for decoders."""

    __slots__ = ("_place", "_places", "_readers", "_values", "_walker")

    def __init__(self, of: Type, needs: _Needs) -> None:
        self._place: Final = needs.place
        self._walker: Final = Walker(of.branches[0])
        self._values: Final[int] = 1 + self._walker.values  # of an entry
        self._readers: Final = {key: _reader(of.branches[0], inner, False) for key, inner in needs.values.items()}
        self._places: Final = {key: inner.places() for key, inner in needs.values.items()}

    def read(self, data: bytes, pos: int, end: int, row: Row, left: list[int]) -> int:
        if self._place >= 0:
            row[self._place] = PRESENT
        while True:
            pos, count = read_number(data, pos)
            if pos < 0:
                raise IndexError
            if count == 0:
                return pos
            if count < 0:
                count = -count
                pos, _ = read_number(data, pos)
            left[1] -= count * self._values
            if left[1] < 0:
                raise IndexError
            while count:
                count -= 1
                pos, length = read_number(data, pos)
                if pos < 0 or length < 0 or length > end - pos:
                    raise IndexError
                key = data[pos : pos + length]
                pos += length
                reader = self._readers.get(key)
                if reader is None:
                    pos = self._walker.skip(data, pos, end, left)
                    continue
                for place in self._places[key]:
                    row[place] = None
                pos = reader.read(data, pos, end, row, left)

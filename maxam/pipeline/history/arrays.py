"""Avro values of many rows as Arrow arrays: field by field, each field for all rows at once.

Reading one value after the other costs Python some 100 ns for each, and Java's reader and writer together as much. Here every step is
an operation of numpy or Arrow over a column. The places where each row's next field begins are an array. A step turns it into the
values and the places after them. Unions divide the rows, and items of arrays are rows of their own. So it takes a few ns for each
value, with or without a compiled core.

`columns` defines the columns. Its nodes and places are followed here. All places that a step is given ascend: the bytes of one row
follow those of the row before.
"""

from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from maxam.pipeline.errors import PipelineError
from maxam.pipeline.history.columns import (
    MILLIS_MAX,
    SIZES,
    Alternative,
    Node,
    Place,
    items_of,
    target_of,
    unique_names,
)

_Longs = npt.NDArray[np.int64]

_MARGIN: Final = bytes(16)  # before and after the data: words that are read there reach beyond it
_FEW: Final = 64  # rows: below, their items are found one by one
_STOPS: Final = np.uint64(0x8080808080808080)
_SEVENS: Final = (  # mask and shift of each step that puts the seven-bit groups of a varint together
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)
_ONE: Final = np.uint64(1)
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_HYPHENS: Final = (8, 13, 18, 23)  # in the text of a UUID
_UUID_LENGTH: Final = 36

_LEAVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DURATION: Final = ("months", "days", "millis")


class UnfitError(Exception):
    """The rows have values that no column holds, or bytes that do not match their schema."""


def arrow_type(place: Place) -> Any:  # noqa: ANN401  # pyarrow has no types
    """Give the Arrow type of `Place.column_type`."""
    if not place.alternatives:
        return pa.string()
    if len(place.alternatives) == 1:
        return alternative_type(place.alternatives[0])
    members = zip(place.member_names(), place.alternatives, strict=True)
    return pa.struct([pa.field(name, alternative_type(each)) for name, each in members])


def alternative_type(of: Alternative) -> Any:  # noqa: ANN401  # as above
    """Give the Arrow type of `Alternative.column_type`."""
    if of.kind == "array":
        return pa.list_(pa.field("element", arrow_type(items_of(of))))
    if of.kind == "map":
        return pa.map_(pa.string(), arrow_type(items_of(of)))
    if of.kind == "record":
        if not of.fields:
            return pa.bool_()
        names = unique_names([each.name for each in of.fields])
        fields = zip(names, of.fields, strict=True)
        return pa.struct([pa.field(name, arrow_type(each.place)) for name, each in fields])
    return _leaf(of.type)


def _leaf(of: str) -> Any:  # noqa: ANN401  # as above
    if of.startswith("decimal("):
        precision, scale = of[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    if of.startswith("struct<"):
        return pa.struct([pa.field(name, pa.int64()) for name in _DURATION])
    return _LEAVES[of]


@final
class Slots:
    """Which rows of an array have values.

    Attributes:
        count: Of the rows.
        rows: Those with a value, ascending; None for all.
    """

    __slots__ = ("_validity", "count", "rows")

    def __init__(self, count: int, rows: _Longs | None = None) -> None:
        """Describe them."""
        self.count: Final = count
        self.rows: Final = rows
        self._validity: Any = None

    def among(self, chosen: _Longs) -> "Slots":
        """Give the slots of some of the values."""
        if self.rows is None and len(chosen) == self.count:
            return self
        return Slots(self.count, chosen if self.rows is None else self.rows[chosen])

    def validity(self) -> Any:  # noqa: ANN401  # as above
        """Return the validity buffer, which marks the rows that are not null."""
        if self.rows is not None and self._validity is None:
            mask = np.zeros(self.count, bool)
            mask[self.rows] = True
            self._validity = pa.py_buffer(np.packbits(mask, bitorder="little"))
        return self._validity

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Put values in their rows, zeros elsewhere."""
        if self.rows is None:
            return values
        spread = np.zeros((self.count, *values.shape[1:]), values.dtype)
        spread[self.rows] = values
        return spread

    def offsets(self, lengths: npt.NDArray[Any]) -> Any:  # noqa: ANN401  # as above
        """Give the buffer of offsets of values that have lengths.

        Raises:
            UnfitError: They are too many for one array.
        """
        ends = np.zeros(self.count + 1, np.int64)
        if self.rows is None:
            ends[1:] = lengths
        else:
            ends[self.rows + 1] = lengths
        np.cumsum(ends, out=ends)
        if ends[-1] >= 1 << 31:
            raise UnfitError("too many items")
        return pa.py_buffer(ends.astype(np.int32))


@final
class Reader:
    """Reads consecutive rows.

    Attributes:
        unfit: Places of values that no column holds. Their results mean nothing.
    """

    __slots__ = ("_buffer", "_bytes", "_data", "_types", "_words", "unfit")

    def __init__(self, parts: list[bytes], types: dict[int, Any] | None = None) -> None:
        """Take the rows.

        Args:
            parts: Of them, in order; places count from the beginning of the first.
            types: Keeps Arrow types for other readers of the same columns.
        """
        self._types: Final[dict[int, Any]] = {} if types is None else types
        self._data: Final = b"".join((_MARGIN, *parts, _MARGIN))
        if len(self._data) >= 1 << 31:
            raise PipelineError(f"rows of {len(self._data)} bytes were to be read at once: the most is 2 GiB")
        self._bytes: Final = np.frombuffer(self._data, np.uint8)
        self._words: Final = np.ndarray((len(self._data) - 7,), "<u8", self._data, 0, (1,))
        self._buffer: Final = pa.py_buffer(self._data)
        self.unfit: Final[list[_Longs]] = []

    # places are those in the data with its margin; what is outside has them without
    def inside(self, places: _Longs) -> _Longs:
        """Give places as all the others are: counted with what is before the rows."""
        return places + len(_MARGIN)

    def longs(self, at: _Longs) -> tuple[_Longs, _Longs]:
        """Read an int or long of each row; return them and the places behind.

        Raises:
            UnfitError: One has more than ten bytes.
            IndexError: One is not there.
        """
        first = self._bytes[at]
        if not (first > 127).any():  # most lengths and indices
            short = first.astype(np.int64)
            return (short >> 1) ^ -(short & 1), at + 1
        words = self._words[at]
        stops = ~words & _STOPS
        lowest = stops & (~stops + _ONE)  # the stop bit of the last byte; 0 for more than eight bytes
        below = lowest - _ONE
        length = (np.bitwise_count(below) >> 3).astype(np.int64) + 1
        bits = words & (lowest | below)
        for low, high, shift in _SEVENS:
            bits = (bits & low) | ((bits & high) >> shift)
        long = np.flatnonzero(lowest == 0)
        if long.size:
            more = self._words[at[long] + 8]
            ninth, tenth = more & np.uint64(255), (more >> np.uint64(8)) & np.uint64(255)
            goes_on = ninth > np.uint64(127)
            if (goes_on & (tenth > _ONE)).any():
                raise UnfitError("a number has more than 64 bits")
            bits[long] |= (ninth & np.uint64(127)) << np.uint64(56)
            bits[long] |= np.where(goes_on, tenth, np.uint64(0)) << np.uint64(63)
            length[long] = 9 + goes_on
        signed = (bits >> _ONE).view(np.int64) ^ -(bits & _ONE).view(np.int64)
        return signed, at + length

    def texts(self, at: _Longs, slots: Slots, of: Any) -> tuple[Any, _Longs]:  # noqa: ANN401  # as above
        """Read a string or bytes of each row; return an array of a type and the places behind.

        Raises:
            UnfitError: One has a length below zero.
            IndexError: One is not there.
        """
        length, start = self.longs(at)
        end = start + self._checked(length)
        return self._cut(start, end, slots, of), end

    def column(self, node: Node, place: Place, at: _Longs, slots: Slots) -> tuple[Any, _Longs]:
        """Read a value of each row.

        Args:
            node: Its type, merged.
            place: The place that holds it.
            at: Where each begins.
            slots: Which rows of the array they are.

        Returns:
            An array of the place's type, and the places after the values.

        Raises:
            UnfitError: The bytes are not of that type.
            IndexError: Likewise.
        """
        found: dict[int, Any] = {}
        if node.kind != "union":
            valid, behind = slots, at
            if node.kind != "null":
                found[id(target_of(node))], behind = self._branch(node, at, slots)
            else:
                valid = slots.among(np.empty(0, np.int64))
        else:
            index, behind = self.longs(at)
            valid = slots
            for number, branch in enumerate(node.parts):
                chosen = np.flatnonzero(index == number)
                if branch.kind == "null":
                    if chosen.size:
                        valid = slots.among(np.flatnonzero(index != number))
                elif chosen.size == index.size:
                    found[id(target_of(branch))], behind = self._branch(branch, behind, slots)
                elif chosen.size:
                    array, ends = self._branch(branch, behind[chosen], slots.among(chosen))
                    found[id(target_of(branch))] = array
                    behind[chosen] = ends
            if ((index < 0) | (index >= len(node.parts))).any():
                raise UnfitError("no such branch of a union")
        if found and len(place.alternatives) == 1:
            return found[id(place.alternatives[0])], behind
        of = self._types.get(id(place))
        if of is None:
            of = self._types[id(place)] = arrow_type(place)
        if not found:
            return pa.nulls(slots.count, of), behind
        members = [
            found[id(each)] if id(each) in found else pa.nulls(slots.count, of.field(number).type)
            for number, each in enumerate(place.alternatives)
        ]
        return pa.Array.from_buffers(of, slots.count, [valid.validity()], children=members), behind

    # one type that is no union

    def _branch(self, node: Node, at: _Longs, slots: Slots) -> tuple[Any, _Longs]:
        of = target_of(node)
        match node.kind:
            case "record":
                return self._record(node, of, at, slots)
            case "array" | "map":
                return self._items(node, of, at, slots)
            case "boolean":
                bits = np.packbits(slots.spread(self._bytes[at]), bitorder="little")
                return self._plain(pa.bool_(), slots, bits), at + 1
            case "int" | "long":
                return self._number(node, of, at, slots)
            case "float" | "double":
                return self._fraction(node, of, at, slots)
            case "enum":
                index, behind = self.longs(at)
                symbols = pa.array([each.encode() for each in node.symbols], pa.binary()).cast(_leaf(of.type))
                if ((index < 0) | (index >= len(node.symbols))).any():
                    raise UnfitError("no such symbol of an enum")
                return symbols.take(pa.array(slots.spread(index), mask=_missing(slots))), behind
            case "fixed":
                start, end = at, at + node.size
            case _:
                length, start = self.longs(at)
                end = start + self._checked(length)
        if node.logical == "decimal":
            return self._decimal(node, of, start, end, slots), end
        if node.kind == "fixed" and node.logical == "uuid":
            return self._uuid(start, slots, _leaf(of.type)), end
        if node.kind == "fixed" and node.logical == "duration":
            return self._duration(start, slots), end
        return self._cut(start, end, slots, _leaf(of.type)), end

    def _type(self, of: Alternative) -> Any:  # noqa: ANN401  # as above
        type_ = self._types.get(id(of))
        if type_ is None:
            type_ = self._types[id(of)] = alternative_type(of)
        return type_

    def _record(self, node: Node, of: Alternative, at: _Longs, slots: Slots) -> tuple[Any, _Longs]:
        found: dict[int, Any] = {}
        behind = at
        for member in node.members:
            field = member.target
            if field is None:
                raise ValueError("the type was not merged")
            found[id(field)], behind = self.column(member.node, field.place, behind, slots)
        type_ = self._type(of)
        if not of.fields:
            bits = np.packbits(slots.spread(np.ones(len(at), bool)), bitorder="little")
            return self._plain(type_, slots, bits), behind
        members = [
            found[id(each)] if id(each) in found else pa.nulls(slots.count, type_.field(number).type)
            for number, each in enumerate(of.fields)
        ]
        return pa.Array.from_buffers(type_, slots.count, [slots.validity()], children=members), behind

    def _number(self, node: Node, of: Alternative, at: _Longs, slots: Slots) -> tuple[Any, _Longs]:
        values, behind = self.longs(at)
        if node.logical.endswith("timestamp-millis"):
            unfit = np.abs(values) > MILLIS_MAX
            if unfit.any():
                self.unfit.append(at[unfit])
            values = values * 1000
        type_ = _leaf(of.type)
        size = "f8" if of.type == "double" else f"i{type_.bit_width // 8}"
        return self._plain(type_, slots, slots.spread(values.astype(size))), behind

    def _fraction(self, node: Node, of: Alternative, at: _Longs, slots: Slots) -> tuple[Any, _Longs]:
        type_ = _leaf(of.type)
        words = self._words[at]
        if node.kind == "double":
            return self._plain(type_, slots, slots.spread(words.view(np.float64))), at + 8
        values = (words & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)
        if of.type == "double":
            return self._plain(type_, slots, slots.spread(values.astype(np.float64))), at + 4
        return self._plain(type_, slots, slots.spread(values)), at + 4

    def _decimal(self, node: Node, of: Alternative, start: _Longs, end: _Longs, slots: Slots) -> Any:  # noqa: ANN401  # as above
        length = end - start
        low = self._words[end - 8].byteswap().view(np.int64)
        high = self._words[np.maximum(end - 16, 0)].byteswap().view(np.int64)
        # what stands before its own bytes is shifted out, and the sign in
        short = length <= 8
        low_bits, high_bits = np.clip(64 - 8 * length, 0, 63), np.clip(128 - 8 * length, 0, 63)
        low = np.where(short, (low << low_bits) >> low_bits, low)
        high = np.where(short, low >> 63, (high << high_bits) >> high_bits)
        low = low.view(np.uint64)
        limit = 10**node.precision
        below = high < 0
        size_low = np.where(below, ~low + _ONE, low)
        size_high = np.where(below, ~high + (low == 0), high).view(np.uint64)
        most_high, most_low = np.uint64(limit >> 64), np.uint64(limit & (2**64 - 1))
        unfit = (size_high > most_high) | ((size_high == most_high) & (size_low >= most_low)) | (length == 0)
        for row in np.flatnonzero(length > 16):  # seldom: leading bytes without information
            number = int.from_bytes(self._data[start[row] : end[row]], "big", signed=True)
            unfit[row] = abs(number) >= limit
            if not unfit[row]:
                low[row], high[row] = number & (2**64 - 1), number >> 64
        if unfit.any():
            self.unfit.append(start[unfit])
            low[unfit] = high[unfit] = 0
        pairs = np.stack((low, high.view(np.uint64)), axis=1)
        found = self._plain(pa.decimal128(node.precision, node.scale), slots, slots.spread(pairs))
        type_ = _leaf(of.type)
        return found if found.type == type_ else found.cast(type_)

    def _uuid(self, start: _Longs, slots: Slots, of: Any) -> Any:  # noqa: ANN401  # as above
        raw = self._bytes[start[:, None] + np.arange(16)]
        text = np.full((len(start), _UUID_LENGTH), ord("-"), np.uint8)
        digits = [place for place in range(_UUID_LENGTH) if place not in _HYPHENS]
        text[:, digits[::2]] = _HEX[raw >> 4]
        text[:, digits[1::2]] = _HEX[raw & 15]
        offsets = slots.offsets(np.full(len(start), _UUID_LENGTH))
        return pa.Array.from_buffers(of, slots.count, [slots.validity(), offsets, pa.py_buffer(text)])

    def _duration(self, start: _Longs, slots: Slots) -> Any:  # noqa: ANN401  # as above
        members = []
        for number in range(len(_DURATION)):
            values = (self._words[start + 4 * number] & np.uint64(0xFFFFFFFF)).view(np.int64)
            members.append(self._plain(pa.int64(), slots, slots.spread(values)))
        of = pa.struct([pa.field(name, pa.int64()) for name in _DURATION])
        return pa.Array.from_buffers(of, slots.count, [slots.validity()], children=members)

    def _items(self, node: Node, of: Alternative, at: _Longs, slots: Slots) -> tuple[Any, _Longs]:
        counts, starts, behind = self._find_items(node, at)
        every = Slots(len(starts))
        item = node.parts[0]
        type_ = self._type(of)
        offsets = slots.offsets(counts)
        if node.kind == "array":
            child, _ = self.column(item, items_of(of), starts, every)
        else:
            keys, values_at = self.texts(starts, every, pa.string())
            values, _ = self.column(item, items_of(of), values_at, every)
            entry = pa.struct([type_.key_field, type_.item_field])
            child = pa.Array.from_buffers(entry, len(starts), [None], children=[keys, values])
        return pa.Array.from_buffers(type_, slots.count, [slots.validity(), offsets], children=[child]), behind

    def _find_items(self, node: Node, at: _Longs) -> tuple[_Longs, _Longs, _Longs]:
        """Return the count of each row's items, where all of them begin, and the place after each row's."""
        keyed = node.kind == "map"
        item = node.parts[0]
        counts = np.zeros(len(at), np.int64)
        behind = at.copy()
        found: list[_Longs] = []
        open_ = np.arange(len(at))
        while open_.size:  # a block of each
            left, places = self.longs(behind[open_])
            sized = left < 0  # the bytes of the block follow
            if sized.any():
                left = np.abs(left)
                places[sized] = self.longs(places[sized])[1]
            behind[open_] = places
            open_ = open_[left > 0]
            left = left[left > 0]
            counts[open_] += left
            rows = open_
            while rows.size > _FEW:  # an item of each
                found.append(behind[rows])
                behind[rows] = self._skip(item, behind[rows], keyed)
                left = left - 1
                rows, left = rows[left > 0], left[left > 0]
            single: list[int] = []
            for row, many in zip(rows.tolist(), left.tolist(), strict=True):
                place = int(behind[row])
                for _ in range(many):
                    single.append(place)
                    if keyed:
                        length, place = self._long(place)
                        place += length
                    place = self._skip_one(item, place)
                behind[row] = place
            found.append(np.array(single, np.int64))
        starts = np.concatenate(found) if found else np.empty(0, np.int64)
        starts.sort(kind="stable")
        return counts, starts, behind

    def _skip(self, node: Node, at: _Longs, keyed: bool = False) -> _Longs:
        """Return the places after a value of each row."""
        if keyed:
            length, at = self.longs(at)
            at = at + self._checked(length)
        match node.kind:
            case "null" | "boolean" | "float" | "double":
                return at + SIZES[node.kind]
            case "fixed":
                return at + node.size
            case "int" | "long" | "enum":
                return self.longs(at)[1]
            case "record":
                for member in node.members:
                    at = self._skip(member.node, at)
                return at
            case "array" | "map":
                return self._find_items(node, at)[2]
            case "union":
                index, behind = self.longs(at)
                for number, branch in enumerate(node.parts):
                    chosen = np.flatnonzero(index == number)
                    if chosen.size:
                        behind[chosen] = self._skip(branch, behind[chosen])
                return behind
            case _:
                length, at = self.longs(at)
                return at + self._checked(length)

    def _long(self, place: int) -> tuple[int, int]:
        number = shift = 0
        data = self._data
        while data[place] > 127:
            number |= (data[place] & 127) << shift
            shift += 7
            place += 1
        number |= data[place] << shift
        return (number >> 1) ^ -(number & 1), place + 1

    def _skip_one(self, node: Node, place: int) -> int:
        """Return the place after one value."""
        match node.kind:
            case "null" | "boolean" | "float" | "double":
                return place + SIZES[node.kind]
            case "fixed":
                return place + node.size
            case "int" | "long" | "enum":
                return self._long(place)[1]
            case "record":
                for member in node.members:
                    place = self._skip_one(member.node, place)
                return place
            case "union":
                index, place = self._long(place)
                return self._skip_one(node.parts[index], place)
            case "array" | "map":
                while True:
                    count, place = self._long(place)
                    if count < 0:
                        size, place = self._long(place)
                        place += size
                    elif not count:
                        return place
                    for _ in range(count):
                        if node.kind == "map":
                            length, place = self._long(place)
                            place += length
                        place = self._skip_one(node.parts[0], place)
            case _:
                length, place = self._long(place)
                return place + length

    # arrays

    def _checked(self, length: _Longs) -> _Longs:
        if length.size and (length.min() < 0 or length.max() >= len(self._data)):
            raise UnfitError("a length that cannot be")
        return length

    def _plain(self, of: Any, slots: Slots, values: npt.NDArray[Any]) -> Any:  # noqa: ANN401  # as above
        return pa.Array.from_buffers(of, slots.count, [slots.validity(), pa.py_buffer(values)])

    def _cut(self, start: _Longs, end: _Longs, slots: Slots, of: Any) -> Any:  # noqa: ANN401  # as above
        """Give the bytes from places to places as texts."""
        count = len(start)
        if count and end[-1] > len(self._data) - len(_MARGIN):
            raise IndexError
        # all of the data as texts, in turn one that is wanted and what is before the next
        bounds = np.empty(2 * count + 1, np.int32)
        bounds[0:-1:2] = start
        bounds[1::2] = end
        bounds[-1] = end[-1] if count else 0
        every = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), self._buffer])
        cut = every.take(pa.array(np.arange(0, 2 * count, 2)))
        buffers = cut.buffers()
        if slots.rows is None:
            return pa.Array.from_buffers(of, count, [None, buffers[1], buffers[2]])
        offsets = slots.offsets(end - start)
        return pa.Array.from_buffers(of, slots.count, [slots.validity(), offsets, buffers[2]])


def _missing(slots: Slots) -> npt.NDArray[np.bool_] | None:
    if slots.rows is None:
        return None
    mask = np.ones(slots.count, bool)
    mask[slots.rows] = False
    return mask

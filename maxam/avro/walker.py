"""Tell whether bytes are exactly one value of a schema, and if not, where and why.

`Walker.accepts` is the fast walk: the schema is compiled to flat runs of steps over which one loop goes, without
decoding anything. `Walker.explain` is the slow one, for a value that was refused: it follows the schema's own tree and
keeps the path. Both hold to the same rules (a property test compares them):

* the value ends exactly where the bytes end;
* records, arrays and maps lie in each other at most DEPTH_MAX deep, so no value exhausts the stack;
* an array or map has no more items than bytes are left, and items without bytes are at most EMPTY_ITEMS_MAX in all, so
  no count makes work that was not sent; their values are at most REPEATED_VALUES_MAX in all; a block that states its
  size in bytes has that size;
* a varint has at most 10 bytes and its number is in range (`int` 32 bits, everything else 64). Padded ones such as
  `80 00` are accepted, as decoders do;
* indices of enums and unions exist, booleans are 0 or 1, strings and map keys are UTF-8.

A `bytes` index beyond the end raises IndexError; the fast walk relies on it and checks what an index cannot.

The fast walk is written to be compiled. Where it is not, a step of its loops costs as much as a whole regular expression, so
an expression for the usual values of a type is tried first, and in arrays one for a run of numbers.
"""

import re
from typing import Final, final

from maxam.avro.schema import DEPTH_MAX, Type
from maxam.counting import counted

EMPTY_ITEMS_MAX: Final = 1000
# In arrays and maps. Walking over so many takes some 200 ms, and 10 ms compiled, in which nobody else is served.
REPEATED_VALUES_MAX: Final = 500_000
EXPLAINED_VALUES_MAX: Final = 20_000  # a fault behind so many values is not worth the time that finding it costs
_VARINT_BYTES_MAX: Final = 10

_LONGS: Final = 0
_STRINGS: Final = 1
_UNION: Final = 2
_SKIP: Final = 3
_INTS: Final = 4
_ENUM: Final = 5
_ITEMS: Final = 6
_BOOLEANS: Final = 7
_BYTES: Final = 8
_CALL: Final = 9

_PRIMITIVE_STEPS: Final = {
    "boolean": (_BOOLEANS, 1),
    "int": (_INTS, 1),
    "long": (_LONGS, 1),
    "float": (_SKIP, 4),
    "double": (_SKIP, 8),
    "string": (_STRINGS, 1),
    "bytes": (_BYTES, 1),
}
_MERGEABLE: Final = frozenset((_LONGS, _STRINGS, _SKIP, _INTS, _BOOLEANS, _BYTES))
_INLINE_STEPS_MAX: Final = 16  # a longer record is called, or records of records would multiply

_INTERPRETED: Final = __file__.endswith(".py")
_RUN_MIN: Final = 3  # numbers in a row from which on an expression is quicker than the loop
# Short enough that no number is out of range, and strings of ASCII of up to 63 bytes; whatever else there is, the loop judges.
_RUNS: Final = {_LONGS: rb"(?:[\x80-\xff]{0,7}[\x00-\x7f]){%d}", _INTS: rb"(?:[\x80-\xff]{0,3}[\x00-\x7f]){%d}"}
_STRING: Final = rb"(?:\x00|%b)" % b"|".join([rb"\x%02x[\x00-\x7f]{%d}" % (2 * n, n) for n in range(1, 64)])
_USUAL: Final = {**_RUNS, _STRINGS: _STRING + b"{%d}", _SKIP: rb".{%d}", _BOOLEANS: rb"[\x00\x01]{%d}"}
_USUAL_FRAMES_MAX: Final = 200  # so that no schema makes more work than its text is worth
_USUAL_BYTES_MAX: Final = 100_000  # of an expression; no type of some hundred fields comes near
_REPEATS_MAX: Final = 100_000  # of one thing: an expression cannot count far, and takes 100 bytes of memory a number
_ONE_BYTE_INDICES: Final = 64

_KEY: Final = Type("string")  # of a map

# By its first byte: how far a string of up to 63 bytes reaches with its length; 0 for every other start.
_REACH: Final = bytes([0 if first > 127 or first & 1 else 1 + (first >> 1) for first in range(256)])


@final
class Fault:
    """Where and why bytes are not a value of a schema.

    Attributes:
        path: The field, such as `from.venueId`, `meters[3].credit` or `meters<egm.QMeters_v1>`; empty for the whole.
        expected: What the schema asks for.
        found: What is there.
        offset: Position in the bytes given.
    """

    __slots__ = ("expected", "found", "offset", "path")

    def __init__(self, path: str, expected: str, found: str, offset: int) -> None:
        self.path: Final = path
        self.expected: Final = expected
        self.found: Final = found
        self.offset: Final = offset

    def __str__(self) -> str:
        path = self.path if len(self.path) <= 100 else f"...{self.path[-97:]}"  # the end says most
        expected = self.expected if len(self.expected) <= 80 else f"{self.expected[:77]}..."
        return f"{path or 'value'}: expected {expected}, found {self.found} at byte {self.offset}"


@final
class Leaf:
    """One value in a datum that holds no others.

    Attributes:
        path: The field, as of `Fault`.
        type: What it is.
        start: Where it begins, in the bytes given; an enum's or union's index is a part of the value, the length of a string too.
        end: Where it ends.
    """

    __slots__ = ("end", "path", "start", "type")

    def __init__(self, path: str, of: Type, start: int, end: int) -> None:
        self.path: Final = path
        self.type: Final = of
        self.start: Final = start
        self.end: Final = end


@final
class _Step:
    """One thing to walk over.

    Attributes:
        op: What it is.
        count: How many of it follow each other; the bytes of a skip; the symbols of an enum.
        frames: The branches of a union, the items of an array or map, the record of a call.
        level: How many records, arrays and maps of its own frame those lie in.
        run: Matches a run of numbers that are surely in range; None where the core is compiled, or it would not pay.
    """

    __slots__ = ("count", "frames", "level", "op", "run")

    def __init__(self, op: int, count: int, frames: "list[_Frame]", level: int) -> None:
        self.op: Final = op
        self.count = count
        self.frames: Final = frames
        self.level: Final = level
        self.run: re.Pattern[bytes] | None = None


@final
class _Frame:
    """Steps that are walked with one call.

    Attributes:
        height: How many levels of records, arrays and maps they always open.
        values: How many values they always walk over; what is in their own frames is counted when it is walked.
        complete: All steps are there.
    """

    __slots__ = ("complete", "height", "steps", "values")

    def __init__(self) -> None:
        self.steps: Final[list[_Step]] = []
        self.height = 0
        self.values = 0
        self.complete = False


@final
class Walker:
    """Check bytes against one schema. Immutable; shared by everybody."""

    __slots__ = ("_frame", "_new", "_type", "_usual")

    def __init__(self, of: Type) -> None:
        self._type: Final = of
        self._frame: Final = _Compiler().frame(of)
        self._usual: re.Pattern[bytes] | None = None
        self._new = _INTERPRETED  # the expression waits for the first body: of a thousand schemas few are sent

    def accepts(self, body: bytes, start: int, end: int) -> bool:
        """Tell whether `body[start:end]` is exactly one value."""
        if self._new:
            self._new = False
            usual = _usual(self._frame, 0, [], [_USUAL_FRAMES_MAX])
            self._usual = None if usual is None else re.compile(usual, re.DOTALL)
        if self._usual is not None and self._usual.fullmatch(body, start, end):
            return True
        try:
            return _walk(self._frame, body, start, end, 0, 1, [EMPTY_ITEMS_MAX, REPEATED_VALUES_MAX]) == end
        except IndexError:
            return False

    def explain(self, body: bytes, start: int, end: int) -> Fault | None:
        """Tell why `accepts` refused `body[start:end]`; offsets count from the start of `body`.

        Returns:
            The fault; None when the bytes are a value. For more than EXPLAINED_VALUES_MAX values always a fault.
        """
        return self._explain(body, start, end, None)

    def trace(self, body: bytes, start: int, end: int) -> "tuple[list[Leaf], Fault | None]":
        """Tell what `body[start:end]` holds up to the end, or to the fault, in order; and the fault, as `explain` does.

        There are at most EXPLAINED_VALUES_MAX leaves.
        """
        leaves: list[Leaf] = []
        fault = self._explain(body, start, end, leaves)
        return leaves, fault

    def _explain(self, body: bytes, start: int, end: int, leaves: list[Leaf] | None) -> Fault | None:
        explainer = _Explainer(body[:end], start, leaves)
        if explainer.value(self._type, 0) and explainer.pos != end:
            explainer.fail("the end of the value", f"{counted(end - explainer.pos, 'byte')} more")
        return explainer.fault


@final
class _Compiler:
    def __init__(self) -> None:
        self._records: dict[str, _Frame] = {}

    def frame(self, of: Type) -> _Frame:
        """Compile a type to a frame; that of a record is made once, as it may hold itself."""
        if of.kind == "record" and of.name in self._records:
            return self._records[of.name]
        frame = _Frame()
        if of.kind == "record":
            self._records[of.name] = frame
            frame.height = 1
            for field in of.fields:
                self._emit(frame, field.type, 1)
        else:
            self._emit(frame, of, 0)
        for step in frame.steps:
            if _INTERPRETED and step.op in _RUNS and _RUN_MIN <= step.count <= _REPEATS_MAX:
                step.run = re.compile(_RUNS[step.op] % step.count)
        frame.complete = True
        return frame

    def _emit(self, frame: _Frame, of: Type, level: int) -> None:
        if of.empty:
            return
        if of.kind in _PRIMITIVE_STEPS:
            op, count = _PRIMITIVE_STEPS[of.kind]
            _append(frame, op, count, [], level)
        elif of.kind == "fixed":
            _append(frame, _SKIP, of.size, [], level)
        elif of.kind == "enum":
            _append(frame, _ENUM, len(of.symbols), [], level)
        elif of.kind == "union":
            _append(frame, _UNION, 1, [self.frame(branch) for branch in of.branches], level)
        elif of.kind == "record":
            self._record(frame, self.frame(of), level)
        else:
            items = _Frame()
            if of.kind == "map":
                _append(items, _STRINGS, 1, [], 0)
            self._emit(items, of.branches[0], 0)
            _append(frame, _ITEMS, 1, [items], level + 1)
            frame.height = max(frame.height, level + 1)

    def _record(self, frame: _Frame, inner: _Frame, level: int) -> None:
        if not inner.complete or len(inner.steps) > _INLINE_STEPS_MAX:
            _append(frame, _CALL, 1, [inner], level)
            return
        for step in inner.steps:
            _append(frame, step.op, step.count, step.frames, level + step.level)
        frame.height = max(frame.height, level + inner.height)


def _append(frame: _Frame, op: int, count: int, frames: list[_Frame], level: int) -> None:
    frame.values += 1 if op in {_SKIP, _ENUM} else count
    if op in _MERGEABLE and frame.steps and frame.steps[-1].op == op:
        frame.steps[-1].count += count
    else:
        frame.steps.append(_Step(op, count, frames, level))


def _usual(frame: _Frame, depth: int, around: list[_Frame], left: list[int]) -> bytes | None:
    """Return an expression that matches only values, and of them those that are usual; None where there is none.

    Each part tells by its first byte how it goes on, so what matches has no second reading. Arrays and maps are empty, and no
    record holds itself: written out, one that does so twice would double with each level.

    Args:
        frame: What to match.
        depth: How many records, arrays and maps it lies in.
        around: The frames that it lies in.
        left: How many frames more may be written out.
    """
    left[0] -= 1
    if left[0] < 0 or frame in around:
        return None
    around = [*around, frame]
    depth += frame.height
    parts: list[bytes] = []
    for step in frame.steps:
        if step.op in _USUAL and step.count <= _REPEATS_MAX:
            parts.append(_USUAL[step.op] % step.count)
        elif step.op == _ITEMS:
            parts.append(rb"\x00")
        elif step.op == _ENUM and step.count:
            parts.append(b"[%b]" % b"".join([rb"\x%02x" % (2 * n) for n in range(min(step.count, _ONE_BYTE_INDICES))]))
        elif step.op == _UNION and depth <= DEPTH_MAX:
            branches = [_usual(branch, depth + step.level, around, left) for branch in step.frames[:_ONE_BYTE_INDICES]]
            usual = [rb"\x%02x%b" % (2 * n, branch) for n, branch in enumerate(branches) if branch is not None]
            if not usual:
                return None
            parts.append(b"(?:%b)" % b"|".join(usual))
        else:
            return None
    expression = b"".join(parts)
    return expression if depth <= DEPTH_MAX and len(expression) <= _USUAL_BYTES_MAX else None


def read_number(body: bytes, pos: int) -> tuple[int, int]:
    """Read an `int` or `long`: the position behind it and its value; position -1 when it is too long or out of range.

    Raises:
        IndexError: The bytes end early.
    """
    shift = 0
    number = 0
    while True:
        byte = body[pos]
        pos += 1
        number |= (byte & 0x7F) << shift
        if byte < 128:
            break
        shift += 7
        if shift == 7 * _VARINT_BYTES_MAX:
            return -1, 0
    if number >> 64:
        return -1, 0
    return pos, (number >> 1) ^ -(number & 1)


def _walk(  # noqa: C901, PLR0912, PLR0915 - one loop, as calls are what costs
    frame: _Frame, body: bytes, pos: int, end: int, depth: int, repeat: int, left: list[int]
) -> int:
    """Walk over `repeat` values; gives the position behind them, which may be behind `end`, or -1.

    `left` counts down the items without bytes and the values of arrays, maps and what else is walked by calls.

    Raises:
        IndexError: The bytes end early.
    """
    if depth + frame.height > DEPTH_MAX:
        return -1
    steps = frame.steps
    while repeat:
        repeat -= 1
        for step in steps:
            op = step.op
            if step.run is not None and (run := step.run.match(body, pos)):
                pos = run.end()
            elif op == _LONGS:
                count = step.count
                while count:
                    count -= 1
                    if body[pos] < 128:
                        pos += 1
                    elif body[pos + 1] < 128:
                        pos += 2
                    elif body[pos + 2] < 128:
                        pos += 3
                    elif body[pos + 3] < 128:
                        pos += 4
                    elif body[pos + 4] < 128:
                        pos += 5
                    elif body[pos + 5] < 128:
                        pos += 6
                    elif body[pos + 6] < 128:
                        pos += 7
                    elif body[pos + 7] < 128:
                        pos += 8
                    else:
                        pos, _ = read_number(body, pos)
                        if pos < 0:
                            return -1
            elif op == _STRINGS:
                # Lengths below 64 are ASCII themselves, so a run of short strings is checked in one go.
                count = step.count
                begin = pos
                while count:
                    reach = _REACH[body[pos]]
                    if not reach:
                        break
                    pos += reach
                    count -= 1
                if count or pos > end or not body[begin:pos].isascii():
                    pos = _strings(body, begin, end, step.count)
                    if pos < 0:
                        return -1
            elif op == _UNION:
                index = body[pos]
                if index < 128:
                    pos += 1
                    index = (index >> 1) ^ -(index & 1)
                else:
                    pos, index = read_number(body, pos)
                if pos < 0 or index < 0 or index >= len(step.frames):
                    return -1
                branch = step.frames[index]
                if branch.steps:
                    left[1] -= branch.values
                    if left[1] < 0:
                        return -1
                    pos = _walk(branch, body, pos, end, depth + step.level, 1, left)
                    if pos < 0:
                        return -1
            elif op == _SKIP:
                pos += step.count
            elif op == _INTS:
                count = step.count
                while count:
                    count -= 1
                    if body[pos] < 128:
                        pos += 1
                    elif body[pos + 1] < 128:
                        pos += 2
                    else:
                        pos, number = read_number(body, pos)
                        if pos < 0 or number >= 2**31 or number < -(2**31):
                            return -1
            elif op == _ENUM:
                pos, index = read_number(body, pos)
                if pos < 0 or index < 0 or index >= step.count:
                    return -1
            elif op == _ITEMS:
                pos = _items(step.frames[0], body, pos, end, depth + step.level, left)
                if pos < 0:
                    return -1
            elif op == _BOOLEANS:
                count = step.count
                while count:
                    count -= 1
                    if body[pos] > 1:
                        return -1
                    pos += 1
            elif op == _BYTES:
                count = step.count
                while count:
                    count -= 1
                    pos, length = read_number(body, pos)
                    if pos < 0 or length < 0 or length > end - pos:
                        return -1
                    pos += length
            else:
                left[1] -= step.frames[0].values
                if left[1] < 0:
                    return -1
                pos = _walk(step.frames[0], body, pos, end, depth + step.level, 1, left)
                if pos < 0:
                    return -1
    return pos


def _strings(body: bytes, pos: int, end: int, count: int) -> int:
    while count:
        count -= 1
        pos, length = read_number(body, pos)
        if pos < 0 or length < 0 or length > end - pos:
            return -1
        begin = pos
        pos += length
        try:
            body[begin:pos].decode()
        except UnicodeDecodeError:
            return -1
    return pos


def _items(frame: _Frame, body: bytes, pos: int, end: int, depth: int, left: list[int]) -> int:
    """Walk over the blocks of an array or map."""
    while True:
        pos, count = read_number(body, pos)
        if pos < 0 or count == 0:
            return pos
        block_end = -1
        if count < 0:
            pos, size = read_number(body, pos)
            if pos < 0 or size < 0 or size > end - pos:
                return -1
            block_end = pos + size
            count = -count
        if not frame.steps:
            left[0] -= count
            if left[0] < 0:
                return -1
        elif count > end - pos:
            return -1
        else:
            left[1] -= count * frame.values
            if left[1] < 0:
                return -1
            pos = _walk(frame, body, pos, end, depth, count, left)
        if pos < 0 or (block_end >= 0 and pos != block_end):
            return -1


@final
class _Explainer:
    """Follow the schema's tree over bytes until something is wrong."""

    __slots__ = ("_body", "_empty_left", "_leaves", "_path", "_repeated_left", "_values_left", "fault", "pos")

    def __init__(self, body: bytes, pos: int, leaves: list[Leaf] | None) -> None:
        self._body: Final = body
        self._path: Final[list[str]] = []
        self._leaves: Final = leaves
        self._empty_left = EMPTY_ITEMS_MAX
        self._repeated_left = REPEATED_VALUES_MAX  # counts items, so the fast walk may refuse before
        self._values_left = EXPLAINED_VALUES_MAX
        self.pos = pos
        self.fault: Fault | None = None

    def fail(self, expected: str, found: str) -> bool:
        """Note the fault at the present place; False, so that callers can return it."""
        self.fault = Fault("".join(self._path).removeprefix("."), expected, found, self.pos)
        return False

    def value(self, of: Type, depth: int) -> bool:
        """Go over one value; False when there is a fault."""
        start = self.pos
        if not self._value(of, depth):
            return False
        if of.kind not in {"record", "array", "map", "union"}:
            self._note(of, start)
        return True

    def _note(self, of: Type, start: int, label: str = "") -> None:
        if self._leaves is not None:
            self._leaves.append(Leaf("".join(self._path).removeprefix(".") + label, of, start, self.pos))

    def _value(self, of: Type, depth: int) -> bool:  # noqa: C901, PLR0912 - one case for each kind of type
        if of.empty:
            return True
        self._values_left -= 1
        if self._values_left < 0:
            return self.fail("a value of the schema", f"a fault behind the first {EXPLAINED_VALUES_MAX} values")
        if of.kind in {"record", "array", "map"}:
            depth += 1
            if depth > DEPTH_MAX:
                return self.fail(f"at most {DEPTH_MAX} records, arrays and maps in each other", "one more")
        match of.kind:
            case "boolean":
                if self.pos >= len(self._body):
                    return self._short("boolean")
                if self._body[self.pos] > 1:
                    return self.fail("boolean", f"byte {self._body[self.pos]}")
                self.pos += 1
                return True
            case "int":
                start = self.pos
                number = self._number("int")
                if number is not None and not -(2**31) <= number < 2**31:
                    self.pos = start
                    return self.fail("int", f"{number}, which needs more than 32 bits")
                return number is not None
            case "long":
                return self._number("long") is not None
            case "float":
                return self._skip("float", 4)
            case "double":
                return self._skip("double", 8)
            case "fixed":
                return self._skip(f"fixed {of.name} of {counted(of.size, 'byte')}", of.size)
            case "bytes" | "string":
                return self._text(of.kind)
            case "enum":
                return self._index(of, f"enum {of.name}, index 0 to {len(of.symbols) - 1}", len(of.symbols)) >= 0
            case "union":
                return self._union(of, depth)
            case "record":
                for field in of.fields:
                    self._path.append(f".{field.name}")
                    if not self.value(field.type, depth):
                        return False
                    self._path.pop()
                return True
            case _:
                return self._blocks(of, depth)

    def _short(self, expected: str) -> bool:
        left = len(self._body) - self.pos
        return self.fail(
            expected, f"the end of the body after {counted(left, 'byte')}" if left > 0 else "the end of the body"
        )

    def _number(self, expected: str) -> int | None:
        try:
            pos, number = read_number(self._body, self.pos)
        except IndexError:
            self._short(expected)
            return None
        if pos < 0:
            self.fail(expected, "a number beyond 64 bits or of more than 10 bytes")
            return None
        self.pos = pos
        return number

    def _skip(self, expected: str, size: int) -> bool:
        if size > len(self._body) - self.pos:
            return self._short(expected)
        self.pos += size
        return True

    def _text(self, kind: str) -> bool:
        start = self.pos
        length = self._number(f"{kind}'s length")
        if length is None:
            return False
        if length < 0 or length > len(self._body) - self.pos:
            left = len(self._body) - self.pos
            self.pos = start
            return self.fail(kind, f"length {length} with {counted(left, 'byte')} left")
        if kind == "string":
            try:
                self._body[self.pos : self.pos + length].decode()
            except UnicodeDecodeError as error:
                self.pos += error.start
                return self.fail("string of UTF-8", f"byte {self._body[self.pos]}")
        self.pos += length
        return True

    def _index(self, of: Type, expected: str, count: int) -> int:
        start = self.pos
        index = self._number(f"{of.kind}'s index")
        if index is None:
            return -1
        if not 0 <= index < count:
            self.pos = start
            self.fail(expected, f"index {index}")
            return -1
        return index

    def _union(self, of: Type, depth: int) -> bool:
        labels = ", ".join([branch.label for branch in of.branches])
        index = self._index(of, f"union of {labels}", len(of.branches))
        if index < 0:
            return False
        branch = of.branches[index]
        self._path.append(f"<{branch.label}>")
        if not self.value(branch, depth):
            return False
        self._path.pop()
        return True

    def _blocks(self, of: Type, depth: int) -> bool:
        done = 0
        while True:
            start = self.pos
            count = self._number(f"{of.kind}'s block count")
            if count is None or count == 0:
                return count == 0
            size = -1
            if count < 0:
                stated = self._number(f"{of.kind}'s block size")
                if stated is None:
                    return False
                if not 0 <= stated <= len(self._body) - self.pos:
                    return self.fail(
                        f"{of.kind}'s block size", f"{stated} with {counted(len(self._body) - self.pos, 'byte')} left"
                    )
                size = stated
                count = -count
            begin = self.pos
            if not self._block(of, depth, start, done, count):
                return False
            if size not in {-1, self.pos - begin}:
                return self.fail(f"a block of the stated {counted(size, 'byte')}", counted(self.pos - begin, "byte"))
            done += count

    def _block(self, of: Type, depth: int, start: int, done: int, count: int) -> bool:
        items = of.branches[0]
        if of.kind == "array" and items.empty:
            self._empty_left -= count
            if self._empty_left < 0:
                self.pos = start
                return self.fail(f"at most {EMPTY_ITEMS_MAX} items without bytes", f"{count} in one block")
            return True
        if count > len(self._body) - self.pos:
            left = len(self._body) - self.pos
            self.pos = start
            return self.fail(
                f"{of.kind} of no more items than bytes", f"{counted(count, 'item')} with {counted(left, 'byte')} left"
            )
        self._repeated_left -= count
        if self._repeated_left < 0:
            self.pos = start
            return self.fail(
                f"at most {REPEATED_VALUES_MAX} values in arrays and maps", f"{counted(count, 'item')} in one block"
            )
        for index in range(done, done + count):
            self._path.append(f"[{index}]")
            if of.kind == "map":
                begin = self.pos
                if not self._text("string"):
                    return False
                self._note(_KEY, begin, " (key)")
            if not self.value(items, depth):
                return False
            self._path.pop()
        return True

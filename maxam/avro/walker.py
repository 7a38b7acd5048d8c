"""Decide whether bytes are exactly one value of a schema, and if not, where and why.

`Walker.accepts` is the fast pass: the schema is compiled to flat runs of steps over which one loop goes, without decoding
anything. `Walker.explain` is the slow one, for a value that was refused: an `Explainer` follows the schema's own tree and keeps the path.
Both obey the same rules (a property test compares them):

* the value ends exactly where the bytes end;
* records, arrays and maps are nested at most DEPTH_MAX deep, so no value exhausts the stack;
* an array or map has at most one item per remaining byte, or at most EMPTY_ITEMS_MAX items without bytes in all. So no count
  makes work that was not sent;
* the values in arrays and maps are at most REPEATED_VALUES_MAX in all;
* a block that states its size in bytes has that size;
* a varint has at most 10 bytes and its number is in range (`int` 32 bits, everything else 64). Padded ones such as
  `80 00` are accepted, as decoders do;
* indices of enums and unions exist, booleans are 0 or 1, strings and map keys are UTF-8.

A `bytes` index beyond the end raises IndexError. The fast pass relies on it and checks only cases that an index cannot.

The fast pass is written to be compiled. Interpreted, a step of its loops costs as much as a whole regular expression. So an
expression for the usual values of a type is tried first, and in arrays one for a run of numbers.
"""

import re
from typing import Final, final

from maxam.avro.explainer import EMPTY_ITEMS_MAX, REPEATED_VALUES_MAX, Explainer, Fault, Leaf, read_number
from maxam.avro.schema import DEPTH_MAX, Type
from maxam.counting import counted

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

# For each first byte, the length of a string of up to 63 bytes with its length prefix, or 0 for every other start.
_REACH: Final = bytes([0 if first > 127 or first & 1 else 1 + (first >> 1) for first in range(256)])


@final
class _Step:
    """One step over a value.

    Attributes:
        op: Kind of the step.
        count: Number of values in a row, the bytes of a skip, or the symbols of an enum.
        frames: The branches of a union, the items of an array or map, the record of a call.
        level: Number of records, arrays and maps of its own frame around it.
        run: Matches a run of numbers that are surely in range. None where the core is compiled, or it would not pay.
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
    """Steps that are taken with one call.

    Attributes:
        height: Levels of records, arrays and maps that they always open.
        values: Values that they always step over. The values of their own frames are counted when those are called.
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
    """Check bytes against one schema. Immutable, shared by all connections."""

    __slots__ = ("_frame", "_new", "_type", "_usual")

    def __init__(self, of: Type) -> None:
        self._type: Final = of
        self._frame: Final = _Compiler().frame(of)
        self._usual: re.Pattern[bytes] | None = None
        self._new = _INTERPRETED  # the expression waits for the first body: of a thousand schemas few are sent

    def accepts(self, body: bytes, start: int, end: int) -> bool:
        """Return True if `body[start:end]` is exactly one value."""
        if self._new:
            self._new = False
            usual = _usual(self._frame, 0, [], [_USUAL_FRAMES_MAX])
            self._usual = None if usual is None else re.compile(usual, re.DOTALL)
        if self._usual is not None and self._usual.fullmatch(body, start, end):
            return True
        try:
            return _walk(self._frame, body, start, end, 0, 1, [EMPTY_ITEMS_MAX, REPEATED_VALUES_MAX, 1]) == end
        except IndexError:
            return False

    @property
    def values(self) -> int:
        """How many values each value that it checks has at least."""
        return self._frame.values

    def skip(self, body: bytes, start: int, end: int, left: list[int], count: int = 1) -> int:
        """Return the position after `count` values that follow each other from `start`.

        Args:
            body: Its values were accepted before, so their strings are not checked again.
            start: Position of the first value.
            end: Position after the last byte.
            left: How many items without bytes, and how many values of arrays and maps, it may still step over; then 0. It counts down.
            count: Number of values.

        Raises:
            IndexError: They are not there, or are too many.
        """
        pos = _walk(self._frame, body, start, end, 0, count, left)
        if pos < 0 or pos > end:
            raise IndexError
        return pos

    def explain(self, body: bytes, start: int, end: int) -> Fault | None:
        """Return why `accepts` refused `body[start:end]`. Offsets count from the start of `body`.

        Returns:
            The fault, or None if the bytes are a value. For more than EXPLAINED_VALUES_MAX values always a fault.
        """
        return self._explain(body, start, end, None)

    def trace(self, body: bytes, start: int, end: int) -> "tuple[list[Leaf], Fault | None]":
        """Return the leaves of `body[start:end]` in order, up to the end or the fault, and the fault as `explain` does.

        There are at most EXPLAINED_VALUES_MAX leaves.
        """
        leaves: list[Leaf] = []
        fault = self._explain(body, start, end, leaves)
        return leaves, fault

    def _explain(self, body: bytes, start: int, end: int, leaves: list[Leaf] | None) -> Fault | None:
        explainer = Explainer(body[:end], start, leaves)
        if explainer.value(self._type, 0) and explainer.pos != end:
            explainer.fail("the end of the value", f"{counted(end - explainer.pos, 'byte')} more")
        return explainer.fault


@final
class _Compiler:
    def __init__(self) -> None:
        self._records: dict[str, _Frame] = {}

    def frame(self, of: Type) -> _Frame:
        """Compile a type to a frame. The frame of a record is made once, as a record may hold itself."""
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
    """Return an expression that matches only values, and of them those that are usual. Return None if there is none.

    Each part shows by its first byte how it goes on, so a match has no second reading. Arrays and maps are empty, and no record
    holds itself: written out, one that does so twice would double with each level.

    Args:
        frame: The frame to match.
        depth: Number of records, arrays and maps around it.
        around: The frames around it.
        left: Number of frames that may still be written out.
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


def _walk(  # noqa: C901, PLR0912, PLR0915 - one loop, as calls are what costs
    frame: _Frame, body: bytes, pos: int, end: int, depth: int, repeat: int, left: list[int]
) -> int:
    """Step over `repeat` values. Return the position after them, which may be after `end`, or -1.

    `left` counts down the items without bytes, and the values of arrays, maps and everything else that is stepped over by calls. Its
    third item is 0 if strings are known to be UTF-8.

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
                    pos = _strings(body, begin, end, step.count, left[2])
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


def _strings(body: bytes, pos: int, end: int, count: int, checked: int) -> int:
    while count:
        count -= 1
        pos, length = read_number(body, pos)
        if pos < 0 or length < 0 or length > end - pos:
            return -1
        begin = pos
        pos += length
        if not checked:
            continue
        try:
            body[begin:pos].decode()
        except UnicodeDecodeError:
            return -1
    return pos


def _items(frame: _Frame, body: bytes, pos: int, end: int, depth: int, left: list[int]) -> int:
    """Step over the blocks of an array or map."""
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

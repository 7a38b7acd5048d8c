"""Find where and why bytes are not a value of a schema, and the leaves of a value.

An `Explainer` obeys the rules of `Walker.accepts`, which `walker` lists.
"""

from typing import Final, final

from maxam.avro.schema import DEPTH_MAX, Type
from maxam.counting import counted

EMPTY_ITEMS_MAX: Final = 1000
# In arrays and maps. Checking this many takes some 200 ms, or 10 ms compiled, in which no other connection is served.
REPEATED_VALUES_MAX: Final = 500_000
EXPLAINED_VALUES_MAX: Final = 20_000  # a fault after this many values is not worth the time that finding it costs
_VARINT_BYTES_MAX: Final = 10
_KEY: Final = Type("string")  # of a map


@final
class Fault:
    """Where and why bytes are not a value of a schema.

    Attributes:
        path: The field, such as `from.venueId`, `meters[3].credit` or `meters<egm.QMeters_v1>`; empty for the whole.
        expected: The value that the schema requires.
        found: The value that is there.
        offset: Position in the bytes given.
    """

    __slots__ = ("expected", "found", "offset", "path")

    def __init__(self, path: str, expected: str, found: str, offset: int) -> None:
        self.path: Final = path
        self.expected: Final = expected
        self.found: Final = found
        self.offset: Final = offset

    def __str__(self) -> str:
        path = self.path if len(self.path) <= 100 else f"...{self.path[-97:]}"  # the end is the most specific part
        expected = self.expected if len(self.expected) <= 80 else f"{self.expected[:77]}..."
        return f"{path or 'value'}: expected {expected}, found {self.found} at byte {self.offset}"


@final
class Leaf:
    """One value in a datum that holds no others.

    Attributes:
        path: The field, as of `Fault`.
        type: Type of the value.
        start: Its first byte, counted in the bytes given. An enum's or union's index and a string's length are parts of it.
        end: Where it ends.
    """

    __slots__ = ("end", "path", "start", "type")

    def __init__(self, path: str, of: Type, start: int, end: int) -> None:
        self.path: Final = path
        self.type: Final = of
        self.start: Final = start
        self.end: Final = end


def read_number(body: bytes, pos: int) -> tuple[int, int]:
    """Read an `int` or `long`. Return the position after it and its value, position -1 if it is too long or out of range.

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


@final
class Explainer:
    """Follows the schema's tree over bytes until something is wrong.

    Attributes:
        pos: Position of the next byte.
        fault: The fault, or None.
    """

    __slots__ = ("_body", "_empty_left", "_leaves", "_path", "_repeated_left", "_values_left", "fault", "pos")

    def __init__(self, body: bytes, pos: int, leaves: list[Leaf] | None) -> None:
        self._body: Final = body
        self._path: Final[list[str]] = []
        self._leaves: Final = leaves
        self._empty_left = EMPTY_ITEMS_MAX
        self._repeated_left = REPEATED_VALUES_MAX  # counts items, so the fast pass may refuse before
        self._values_left = EXPLAINED_VALUES_MAX
        self.pos = pos
        self.fault: Fault | None = None

    def fail(self, expected: str, found: str) -> bool:
        """Record the fault at the present place. Return False, so that callers can return it."""
        self.fault = Fault("".join(self._path).removeprefix("."), expected, found, self.pos)
        return False

    def value(self, of: Type, depth: int) -> bool:
        """Step over one value. Return False if there is a fault."""
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
            return self.fail("a value of the schema", f"a fault after the first {EXPLAINED_VALUES_MAX} values")
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
                f"{of.kind} of at most one item per byte", f"{counted(count, 'item')} with {counted(left, 'byte')} left"
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

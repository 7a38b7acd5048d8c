"""Evaluate a selector over the values of its operands, with the three-valued logic of SQL.

A number is an int of 64 bits or a float, a text is UTF-8 bytes, and NULL is None. PRESENT is a value that cannot be compared. A comparison or calculation with NULL, or with unlike types, is NULL. So is a division by zero, and a NaN.
An integer result that needs more than 64 bits is calculated again with floats. An integer division cuts off the fraction.
"""

from typing import Final, final

from maxam.selectors import syntax
from maxam.selectors.like import LikePattern
from maxam.selectors.syntax import Path, Syntax

PRESENT: Final = ()
"""Value of a field that cannot be compared and is not null: bytes, fixed, record, array, map."""
TEXT_BYTES_MAX: Final = 2048  # a longer text is PRESENT

_EQUAL: Final = 0
_UNEQUAL: Final = 1
_LESS: Final = 2
_LESS_OR_EQUAL: Final = 3
_GREATER: Final = 4
_BASE_STEPS: Final = 10
_READ_STEPS: Final = 250  # the way to the fields
_HEADERS_STEPS: Final = 150  # to the headers: of a SEND with a hundred of them
_TEXT_STEPS: Final = 10  # the hash of a text
_SIGNS: Final = {"=": _EQUAL, "<>": _UNEQUAL, "<": _LESS, "<=": _LESS_OR_EQUAL, ">": _GREATER, ">=": 5}

Row = list[object]


class Expression:
    """A part of a selector that has a value."""

    __slots__ = ()

    def value(self, row: Row) -> object:
        """Return the value for the values of the operands."""
        raise NotImplementedError


@final
class Operands:
    """The operands of a selector, each with its place in the row.

    Attributes:
        fields: Path of each field.
        headers: Name of each header, by place.
        count: Number of places.
        steps: How long an evaluation takes at most, in steps of some 50 ns of machine code.
    """

    __slots__ = ("count", "fields", "headers", "steps")

    def __init__(self) -> None:
        self.fields: Final[dict[Path, int]] = {}
        self.headers: Final[dict[bytes, int]] = {}
        self.count = 0
        self.steps = _BASE_STEPS

    def of_field(self, path: Path) -> int:
        """Return the place of a field."""
        place = self.fields.get(path)
        if place is None:
            self.steps += len(path) + (_TEXT_STEPS if self.fields else _TEXT_STEPS + _READ_STEPS)
            place = self.fields[path] = self.count
            self.count += 1
        return place

    def of_header(self, name: bytes) -> int:
        """Return the place of a header."""
        place = self.headers.get(name)
        if place is None:
            self.steps += _TEXT_STEPS if self.headers else _TEXT_STEPS + _HEADERS_STEPS
            place = self.headers[name] = self.count
            self.count += 1
        return place


def build(node: Syntax, operands: Operands) -> Expression:
    """Make the expression of a selector, and add what it reads, and its steps, to the operands."""
    operands.steps += 1
    if node.kind == syntax.LITERAL:
        return _Literal(node.literal)
    if node.kind == syntax.FIELD:
        return _Operand(operands.of_field(node.path))
    if node.kind == syntax.HEADER:
        return _Operand(operands.of_header(node.header))
    if node.kind == syntax.IN:
        return _In(build(node.items[0], operands), [item.literal for item in node.items[1:]])
    items = [build(item, operands) for item in node.items]
    if node.kind == syntax.NOT:
        return _Not(items[0])
    if node.kind == syntax.COMPARE:
        return _Comparison(_SIGNS[node.sign], items[0], items[1])
    if node.kind == syntax.ARITHMETIC:
        return _Arithmetic(node.sign, items[0], items[1])
    if node.kind == syntax.UNARY:
        return _Unary(node.sign == "-", items[0])
    if node.kind == syntax.IS_NULL:
        return _IsNull(items[0])
    if node.kind == syntax.LIKE:
        assert node.pattern is not None  # noqa: S101 - the parser gives each LIKE one
        operands.steps += node.pattern.steps
        return _Like(items[0], node.pattern)
    return _Junction(node.kind == syntax.OR, items)


@final
class _Literal(Expression):
    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value: Final = value

    def value(self, row: Row) -> object:  # noqa: ARG002 - a literal needs no operand
        return self._value


@final
class _Operand(Expression):
    __slots__ = ("_place",)

    def __init__(self, place: int) -> None:
        self._place: Final = place

    def value(self, row: Row) -> object:
        return row[self._place]


@final
class _Not(Expression):
    __slots__ = ("_item",)

    def __init__(self, item: Expression) -> None:
        self._item: Final = item

    def value(self, row: Row) -> object:
        value = self._item.value(row)
        return (not value) if isinstance(value, bool) else None


@final
class _Junction(Expression):
    """AND if `decisive` is False, OR if it is True: an item with that value decides."""

    __slots__ = ("_decisive", "_items")

    def __init__(self, decisive: bool, items: list[Expression]) -> None:
        self._decisive: Final = decisive
        self._items: Final = items

    def value(self, row: Row) -> object:
        decisive = self._decisive
        known = True
        for item in self._items:
            value = item.value(row)
            if not isinstance(value, bool):
                known = False
            elif value == decisive:
                return decisive
        return not decisive if known else None


@final
class _IsNull(Expression):
    __slots__ = ("_item",)

    def __init__(self, item: Expression) -> None:
        self._item: Final = item

    def value(self, row: Row) -> object:
        return self._item.value(row) is None


@final
class _Comparison(Expression):
    __slots__ = ("_left", "_right", "_sign")

    def __init__(self, sign: int, left: Expression, right: Expression) -> None:
        self._sign: Final = sign
        self._left: Final = left
        self._right: Final = right

    def value(self, row: Row) -> object:
        left = self._left.value(row)
        right = self._right.value(row)
        if left is None or right is None:
            return None
        if isinstance(left, bytes):
            if not isinstance(right, bytes):
                return None
            order = -1 if left < right else 1 if left > right else 0
        elif isinstance(left, bool) or isinstance(right, bool):
            if not (isinstance(left, bool) and isinstance(right, bool)) or self._sign > _UNEQUAL:
                return None
            order = 0 if left == right else 1
        elif isinstance(left, (int, float)) and isinstance(right, (int, float)):
            order = -1 if left < right else 1 if left > right else 0
        else:
            return None
        sign = self._sign
        if sign == _EQUAL:
            return order == 0
        if sign == _UNEQUAL:
            return order != 0
        if sign == _LESS:
            return order < 0
        if sign == _LESS_OR_EQUAL:
            return order <= 0
        return order > 0 if sign == _GREATER else order >= 0


@final
class _Arithmetic(Expression):
    __slots__ = ("_left", "_right", "_sign")

    def __init__(self, sign: str, left: Expression, right: Expression) -> None:
        self._sign: Final = sign
        self._left: Final = left
        self._right: Final = right

    def value(self, row: Row) -> object:
        left = self._left.value(row)
        right = self._right.value(row)
        if not _is_number(left) or not _is_number(right):
            return None
        if self._sign == "/" and right == 0:
            return None
        if isinstance(left, int) and isinstance(right, int):
            number = _whole(self._sign, left, right)
            if syntax.INTEGER_MIN <= number <= syntax.INTEGER_MAX:
                return number
        real = _real(self._sign, _float(left), _float(right))
        return real if real == real else None  # noqa: PLR0124 - NaN differs from itself


@final
class _Unary(Expression):
    __slots__ = ("_item", "_negative")

    def __init__(self, negative: bool, item: Expression) -> None:
        self._negative: Final = negative
        self._item: Final = item

    def value(self, row: Row) -> object:
        value = self._item.value(row)
        if not _is_number(value):
            return None
        if not self._negative:
            return value
        if isinstance(value, int) and value > syntax.INTEGER_MIN:
            return -value
        return -_float(value)


@final
class _In(Expression):
    """Search for a value among literals.

    `_numbers` are looked up apart from `_texts` and `_booleans`, because TRUE and 1 are equal in Python.
    """

    __slots__ = ("_booleans", "_item", "_numbers", "_texts")

    def __init__(self, item: Expression, literals: list[object]) -> None:
        self._item: Final = item
        self._texts: Final = {x for x in literals if isinstance(x, bytes)}
        self._booleans: Final = {x for x in literals if isinstance(x, bool)}
        self._numbers: Final = {x for x in literals if isinstance(x, (int, float)) and not isinstance(x, bool)}

    def value(self, row: Row) -> object:
        value = self._item.value(row)
        if isinstance(value, bytes):
            return value in self._texts if self._texts else None
        if isinstance(value, bool):
            return value in self._booleans if self._booleans else None
        if isinstance(value, (int, float)):
            return value in self._numbers if self._numbers else None
        return None


@final
class _Like(Expression):
    __slots__ = ("_item", "_pattern")

    def __init__(self, item: Expression, pattern: LikePattern) -> None:
        self._item: Final = item
        self._pattern: Final = pattern

    def value(self, row: Row) -> object:
        value = self._item.value(row)
        if not isinstance(value, bytes):
            return None
        return self._pattern.matches(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _float(value: object) -> float:
    """Return a number as a float. Integers have 64 bits, so none is too large."""
    return float(value) if isinstance(value, (int, float)) else 0.0


def _whole(sign: str, left: int, right: int) -> int:
    """Calculate exactly. A divisor is not 0."""
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _real(sign: str, left: float, right: float) -> float:
    """Calculate with floats. A divisor is not 0."""
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    return left * right if sign == "*" else left / right

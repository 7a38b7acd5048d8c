"""The tree that a selector is parsed to."""

from typing import Final, final

from maxam.errors import SelectorError
from maxam.selectors.like import LikePattern

NESTING_MAX: Final = 32  # levels of parentheses and operators
INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1

LITERAL: Final = 0
FIELD: Final = 1
HEADER: Final = 2
NOT: Final = 3
AND: Final = 4
OR: Final = 5
COMPARE: Final = 6
ARITHMETIC: Final = 7
UNARY: Final = 8
IN: Final = 9
LIKE: Final = 10
IS_NULL: Final = 11

Step = str | int | bytes  # the name of a field, the index of an array, the key of a map
Path = tuple[Step, ...]

KEYWORDS: Final = frozenset(
    ("AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"),
)


@final
class Syntax:
    """A part of a selector.

    Attributes:
        kind: One of LITERAL, FIELD, HEADER, NOT, AND, OR, COMPARE, ARITHMETIC, UNARY, IN, LIKE, IS_NULL.
        at: Position of its operator, or of its first character if it has none, from 1.
        items: The operands. The values of an IN list follow the operand that is searched for.
        sign: Operator of COMPARE, ARITHMETIC and UNARY.
        literal: Value of a LITERAL: int, float, bool, or UTF-8 bytes for a text.
        path: Path of a FIELD.
        header: Name of a HEADER, in UTF-8.
        pattern: Pattern of a LIKE.
        height: Levels of the tree below.
    """

    __slots__ = ("at", "header", "height", "items", "kind", "literal", "path", "pattern", "sign")

    def __init__(
        self,
        kind: int,
        at: int,
        items: "list[Syntax]",
        sign: str = "",
        literal: object = None,
        path: Path = (),
        header: bytes = b"",
        pattern: LikePattern | None = None,
    ) -> None:
        self.kind: Final = kind
        self.at: Final = at
        self.items: Final = items
        self.sign: Final = sign
        self.literal: Final = literal
        self.path: Final = path
        self.header: Final = header
        self.pattern: Final = pattern
        self.height: Final[int] = 1 + max([item.height for item in items], default=0)
        if self.height > NESTING_MAX:
            raise nested(at)


def path_text(path: Path) -> str:
    """Return a path as it is written in a selector."""
    text = ""
    for step in path:
        if isinstance(step, str):
            name = f'"{step}"' if not text and step.upper() in KEYWORDS else step
            text = f"{text}.{name}" if text else name
        elif isinstance(step, int):
            text = f"{text}[{step}]"
        else:
            text = f"{text}['{step.decode().replace(chr(39), chr(39) * 2)}']"
    return text


def nested(at: int) -> SelectorError:
    """Return the error about a selector that is nested too deeply."""
    return SelectorError(f"nested deeper than {NESTING_MAX} levels", at, "Use fewer parentheses and operators.")

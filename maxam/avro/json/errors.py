"""The error of a value that does not fit its schema, and the short texts in it."""

import json
from difflib import get_close_matches
from typing import Final, final

from maxam.avro.schema import Type
from maxam.counting import counted
from maxam.errors import MaxamError

FOUND_CHARACTERS_MAX: Final = 60  # of a value in an error
NAMES_MAX: Final = 12  # fields or symbols in an error


@final
class ValueEncodeError(MaxamError):
    """A value is not of its schema.

    Attributes:
        path: The field, such as `from.venueId` or `meters[3].credit`; empty for the whole.
        expected: The value that the schema requires.
    """

    code = "invalid-value"

    def __init__(self, path: str, expected: str, found: object, hint: str = "") -> None:
        """Note what is wrong; `found` is shown as it is if it is a text in `ShownText`, else as JSON."""
        super().__init__()
        self.path = path
        self.expected: Final = expected
        self._found: Final = found
        self._hint: Final = hint

    @property
    def found(self) -> str:
        """The value that is there, on one short line."""
        return (str(self._found) if isinstance(self._found, ShownText) else _shown(self._found)) + self._hint

    def within(self, step: str) -> "ValueEncodeError":
        """Return the error as one of a part of a value, which `step` leads to."""
        self.path = step + ("" if not self.path or self.path[0] in "[<" else ".") + self.path
        return self

    def __str__(self) -> str:
        return f"{self.path or 'value'}: expected {self.expected}, found {self.found}"


@final
class ShownText(str):
    """Text that an error shows in place of a value."""

    __slots__ = ()


NOTHING: Final = ShownText("nothing")


def _shown(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            text = str(value) if value.bit_length() < 1000 else "a huge number"
        case str():
            text = json.dumps(value, ensure_ascii=False)
        case list() | tuple():
            return f"an array of {len(value)}"
        case dict():
            keys = ", ".join(map(str, value))
            many = keys if len(keys) <= FOUND_CHARACTERS_MAX else counted(len(value), "key")
            return f"an object with {many}" if value else "{}"
        case _:
            text = str(value)
    return text if len(text) <= FOUND_CHARACTERS_MAX else f"{text[: FOUND_CHARACTERS_MAX - 1]}…"


def close_to(word: str, known: list[str]) -> str:
    """Return a hint at the known word that is closest to a word, or an empty text."""
    close = get_close_matches(word, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def listed(names: list[str]) -> str:
    """Return at most NAMES_MAX names as one text."""
    shown = ", ".join(names[:NAMES_MAX])
    return shown if len(names) <= NAMES_MAX else f"{shown} and {len(names) - NAMES_MAX} more"


def title(of: Type) -> str:
    """Return the name or shape of a type, as errors show it."""
    match of.kind:
        case "union":
            return f"[{', '.join([title(branch) for branch in of.branches])}]"
        case "array" | "map":
            return f"{of.kind} of {title(of.branches[0])}"
        case "record":
            return of.name
        case _:
            text = f"{of.kind} {of.name}" if of.name else of.kind
            return f"{text} ({of.logical})" if of.logical else text

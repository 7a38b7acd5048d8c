"""Values of settings: their bounds, and the mistakes in them."""

from dataclasses import field
from typing import Final, TypeVar, final

_T = TypeVar("_T")


def bounded(default: _T, lowest: int, highest: int, why: str) -> _T:
    """Return the field of a setting whose range is not the usual one, with the reason for the range."""
    return field(default=default, metadata={"bounds": (lowest, highest, why)})


@final
class MistakeError(Exception):
    """A mistake in the configuration, with its place, such as `limits.window`; empty for the whole file."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(problem)
        self.place: Final = place
        self.problem: Final = problem


def shown(value: object) -> str:
    """Return a value as error texts show it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

"""Patterns of LIKE: `%` takes any text and `_` one character.

A pattern is split at each `%` into segments. The first segment stands at the beginning, the last one at the end, and the others
follow each other at their first places. So no match goes back. Each value is compared with all selectors of a principal, so the LIKEs of one
selector share STEPS_MAX.
"""

from typing import Final, final

from maxam.errors import SelectorError

STEPS_MAX: Final = 2000  # comparisons of one selector, 0.2 ms
_BYTES_PER_STEP: Final = 256  # of a text, which is decoded and searched


@final
class _Segment:
    """The part of a pattern between two `%`.

    Attributes:
        length: Number of characters that it takes.
        chunks: Its literal texts, each with its place in the segment.
    """

    __slots__ = ("chunks", "length")

    def __init__(self, length: int, chunks: list[tuple[int, str]]) -> None:
        self.length: Final = length
        self.chunks: Final = chunks

    def stands_at(self, text: str, at: int) -> bool:
        """Return True if the text holds the segment at a place. The text must be long enough."""
        return all(text.startswith(chunk, at + offset) for offset, chunk in self.chunks)


@final
class LikePattern:
    """A pattern, ready to match."""

    __slots__ = ("_segments",)

    def __init__(self, pattern: str, escape: str, at: int) -> None:
        """Parse a pattern.

        Args:
            pattern: Text of the pattern.
            escape: Character before a `%` or `_` that stands for itself. Empty if there is none.
            at: Position of the LIKE in the selector, for errors.

        Raises:
            SelectorError: The escape character stands before another character.
        """
        self._segments: Final[list[_Segment]] = []
        chunks: list[tuple[int, str]] = []
        chunk = ""
        length = 0
        escaped = False
        for letter in pattern:
            if escaped and letter not in ("%", "_", escape):
                raise _wrong_escape(escape, at)
            if not escaped and letter == escape:
                escaped = True
                continue
            if not escaped and letter in "%_":
                if chunk:
                    chunks.append((length - len(chunk), chunk))
                chunk = ""
                if letter == "_":
                    length += 1
                else:
                    self._segments.append(_Segment(length, chunks))
                    chunks = []
                    length = 0
            else:
                chunk += letter
                length += 1
            escaped = False
        if escaped:
            raise _wrong_escape(escape, at)
        if chunk:
            chunks.append((length - len(chunk), chunk))
        self._segments.append(_Segment(length, chunks))

    def matches(self, value: bytes, steps: int = STEPS_MAX) -> bool | None:
        """Return True if the whole text matches, None if that takes more than a number of steps."""
        steps -= len(value) // _BYTES_PER_STEP
        if steps < 0:
            return None
        text = value.decode(errors="replace")
        first = self._segments[0]
        last = self._segments[-1]
        if len(self._segments) == 1:
            return len(text) == first.length and first.stands_at(text, 0)
        end = len(text) - last.length
        at = first.length
        if end < at or not first.stands_at(text, 0) or not last.stands_at(text, end):
            return False
        for segment in self._segments[1:-1]:
            if at + segment.length > end:
                return False
            while segment.chunks:
                offset, chunk = segment.chunks[0]
                at = text.find(chunk, at + offset, end - segment.length + offset + len(chunk)) - offset
                if at < 0:
                    return False
                steps -= len(segment.chunks)
                if steps < 0:
                    return None
                if segment.stands_at(text, at):
                    break
                at += 1
            at += segment.length
        return True


def _wrong_escape(escape: str, at: int) -> SelectorError:
    hint = f"Write {escape}%, {escape}_ or {escape}{escape}."
    return SelectorError(f"in the pattern, {escape!r} stands before another character than % or _", at, hint)

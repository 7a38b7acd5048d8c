"""Patterns of LIKE: `%` takes any text and `_` one character.

A pattern is split at each `%` into segments. The first segment stands at the beginning, the last one at the end, and the others
follow each other at their first places. So no match goes back. Each value is compared with all selectors of a principal. So the pattern
alone decides how long a match may take. Texts have a greatest length, and a segment is compared at a number of places only.
"""

from typing import Final, final

from maxam.errors import SelectorError

COMPARISONS_MAX: Final = 500  # of literal texts, for segments with `_` between them: 25 us
_DECODE_STEPS: Final = 40  # of a text of TEXT_BYTES_MAX (expressions.py)
_SEARCH_STEPS: Final = 11  # for each character of a literal text that such a text is searched for, at worst


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
    """A pattern, ready to match.

    Attributes:
        steps: How long a match takes at most, in steps of some 50 ns of machine code.
    """

    __slots__ = ("_segments", "steps")

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
        steps = _DECODE_STEPS + len(pattern)
        inner = [segment.chunks for segment in self._segments[1:-1] if segment.chunks]
        steps += _SEARCH_STEPS * max([len(chunks[0][1]) for chunks in inner], default=0)
        if any(len(chunks) > 1 for chunks in inner):
            steps += COMPARISONS_MAX
        self.steps: Final[int] = steps

    def matches(self, value: bytes) -> bool | None:
        """Return True if the whole text matches, None if that takes more than COMPARISONS_MAX."""
        left = COMPARISONS_MAX
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
                if len(segment.chunks) == 1:
                    break
                left -= len(segment.chunks)
                if left < 0:
                    return None
                if segment.stands_at(text, at):
                    break
                at += 1
            at += segment.length
        return True


def _wrong_escape(escape: str, at: int) -> SelectorError:
    hint = f"Write {escape}%, {escape}_ or {escape}{escape}."
    return SelectorError(f"in the pattern, {escape!r} stands before another character than % or _", at, hint)

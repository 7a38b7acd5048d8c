"""The grammar of destinations, and globs over them. Comparisons of globs are in `glob_sets`.

`destination = store "/" token *("." token)`, so a well-formed destination holds exactly one `/`. Two things follow:

* In a glob with a literal `/` every `**` means `*`. In a glob without one, some `**` takes the `/`, and the elements
  before and after it are two plain parts. In both cases no part matches a `/`. So "the earliest match of each run between
  stars" is right, and a `re` of atomic groups matches without backtracking.
* The shortest text that a plain part matches is well-formed if any is. So one sample decides whether a glob can match
  at all, and a problem of the sample is a problem of the glob.

A parsed glob is a tuple of elements, each its own source text: `*`, `**`, `?`, a set `[...]`, or one literal
character. No two stars are adjacent.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import cache
from typing import Final, final
from unicodedata import category

from maxam.config import Limits
from maxam.errors import GlobError

STORE_CHARACTERS_MAX: Final = 16
STORE_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_TOKEN_EXCLUDED: Final = frozenset(" ./\\*?[]")  # `str.isprintable` is "not in C* or Z*", except the ASCII space
_PLAIN: Final = re.compile(rb"[A-Za-z0-9_-]{1,16}/[!-)+-\-0->@-Z^-~]+(?:\.[!-)+-\-0->@-Z^-~]+)*")  # all of it ASCII

Elements = tuple[str, ...]
Ranges = tuple[tuple[int, int], ...]  # code points, both ends included

_CODES_END: Final = 0x110000
_SLASH: Final[Ranges] = ((47, 47),)
_STORE_RANGES: Final[Ranges] = ((45, 45), (48, 57), (65, 90), (95, 95), (97, 122))  # - 0-9 A-Z _ a-z
# First code points of the grammar's classes of characters and of the lengths in UTF-8: - . / 0-9 A-Z _ a-z, 1 to 4 bytes.
_GRAMMAR_STARTS: Final = (0, *map(ord, "-./0:A[_`a{"), 0x80, 0x800, 0x10000)


def destination_problem(destination: bytes, bytes_max: int) -> str | None:
    """Return the reason why a destination is not well-formed, or None if it is.

    Args:
        destination: UTF-8, unescaped, as sent.
        bytes_max: Limit on its length.

    Returns:
        One line of text for the `reason` of a receipt, or None.
    """
    if len(destination) > bytes_max:
        return f"the destination has {len(destination)} bytes, at most {bytes_max} are allowed"
    if _PLAIN.fullmatch(destination) is not None:
        return None
    try:
        text = destination.decode()
    except UnicodeDecodeError as error:
        return f"the destination is not UTF-8 at byte {error.start}"
    return _problem(text)


def _problem(text: str) -> str | None:
    store, slash, tokens = text.partition("/")
    if not slash:
        return "the destination holds no '/' between store and first token"
    if "/" in tokens:
        return "the destination holds more than one '/'"
    if not store:
        return "the store before the '/' is empty"
    for character in store:
        if character not in STORE_CHARACTERS:
            return f"the store before the '/' holds {_name(character)}; only A-Z a-z 0-9 _ - are allowed"
    if len(store) > STORE_CHARACTERS_MAX:
        return f"the store before the '/' is longer than {STORE_CHARACTERS_MAX} characters"
    for character in tokens:
        if character != "." and not _may_stand_in_token(character):
            return f"a token holds {_name(character)}; spaces, control characters and / \\ * ? [ ] are not allowed"
    if not tokens:
        return "no token follows the '/'"
    if tokens.startswith("."):
        return "the first token is empty: '.' follows the '/'"
    if tokens.endswith("."):
        return "the last token is empty: '.' stands at the end"
    if ".." in tokens:
        return "a token is empty: '..'"
    return None


def _may_stand_in_token(character: str) -> bool:
    return character.isprintable() and character not in _TOKEN_EXCLUDED


def _name(character: str) -> str:
    if character.isprintable() and character != " ":
        return repr(character)
    return f"U+{ord(character):04X} (Unicode category {category(character)})"


@final
class Glob:
    """A pattern over whole destinations that at least one well-formed destination matches; see `compile_glob`.

    Globs are equal if their texts are.

    Attributes:
        text: The pattern as written.
        prefix: The literal text before the first wildcard: every match starts with it.
        suffix: The literal text after the last wildcard: every match ends with it.
        sample: One of the shortest destinations that it matches.
        literals: Segments between `/`, `.` and the ends that every match holds, whole and literally, in order.
        elements: The parsed text, for `glob_sets`.
    """

    __slots__ = ("_pattern", "elements", "literals", "prefix", "sample", "suffix", "text")

    def __init__(self, text: str, elements: Elements, sample: str) -> None:
        self.text: Final = text
        self.prefix: Final = _literal_prefix(elements)
        self.suffix: Final = _literal_prefix(elements[::-1])[::-1]
        self.literals: Final = _literal_segments(elements)
        self.elements: Final = elements
        self.sample: Final = sample
        self._pattern: re.Pattern[str] | None = None

    @property
    def expression(self) -> str:
        """The regular expression that takes a whole destination. Python and Java read it alike."""
        return self.prepare().pattern

    def matches(self, destination: str) -> bool:
        """Return True if a destination matches, in time linear in its length. One without exactly one `/` never does."""
        pattern = self._pattern
        return (self.prepare() if pattern is None else pattern).fullmatch(destination) is not None

    def prepare(self) -> re.Pattern[str]:
        """Return the compiled pattern. It is compiled at the first use: that takes up to 1 ms, and some globs are never matched."""
        pattern = self._pattern
        if pattern is None:
            # Without the pairs whose store would be too long: a glob of 32 `**` took 170 KiB and 32 ms.
            pairs = [(a, b) for a, b in _alternatives(self.elements) if _singles(a) <= STORE_CHARACTERS_MAX]
            pattern = re.compile("|".join(_part(a) + "/" + _part(b) for a, b in pairs))
            self._pattern = pattern
        return pattern

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Glob) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Glob({self.text!r})"


def compile_glob(text: str, limits: Limits) -> Glob:
    """Compile a glob.

    `*` matches any run without `/`, and `**` any run. `?` matches one character except `/`. `[abc]`, `[a-z]` (by code point)
    and `[!a]` match one character, never `/`. A `]` first in a set is literal, and `[^` is not negation.

    Raises:
        GlobError: It is malformed, breaks a limit, or can match no well-formed destination. The text has the reason.
    """
    key = (text, limits.glob_wildcards_max, limits.destination_bytes_max)
    glob = _COMPILED.get(key)
    if glob is None:
        glob = _compile(text, limits)
        if len(text) <= _CACHED_CHARACTERS_MAX:
            if len(_COMPILED) >= _CACHED_MAX:
                _COMPILED.clear()
            _COMPILED[key] = glob
    return glob


# Globs of the lengths that people write, shared by all users of the same text. 1,000 take some 10 MB at most.
_CACHED_MAX: Final = 1000
_CACHED_CHARACTERS_MAX: Final = 128
_COMPILED: Final[dict[tuple[str, int, int], Glob]] = {}


def _compile(text: str, limits: Limits) -> Glob:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limits.destination_bytes_max:
        raise GlobError(f"the glob has {size} bytes, at most {limits.destination_bytes_max} are allowed")
    elements = _parse(text)
    wildcards = sum(_is_wildcard(element) for element in elements)
    if wildcards > limits.glob_wildcards_max:
        raise GlobError(f"the glob has {wildcards} wildcards, at most {limits.glob_wildcards_max} are allowed")
    return Glob(text, elements, _find_sample(elements, limits.destination_bytes_max))


def _parse(text: str) -> Elements:
    elements: list[str] = []
    position = 0
    while position < len(text):
        start = position
        if text[start] == "*":
            while position < len(text) and text[position] == "*":
                position += 1
            elements.append("**" if position - start > 1 else "*")
            continue
        if text[start] == "[":
            first = start + 2 if text.startswith("!", start + 1) else start + 1
            end = text.find("]", first + 1)  # a `]` that comes first is literal
            if end < 0:
                raise GlobError(f"the set {text[start:]!r} is not closed: ']' is missing")
            position = end
        position += 1
        elements.append(text[start:position])
        if position - start > 1:
            _set_ranges(elements[-1])
    return tuple(elements)


def _is_wildcard(element: str) -> bool:
    return len(element) > 1 or element in "*?"


def is_star(element: str) -> bool:
    """Return True if an element takes any number of characters, none included."""
    return element in ("*", "**")


def _set_ranges(element: str) -> tuple[bool, Ranges]:
    """Return whether a set is negated, and its ranges as written.

    Raises:
        GlobError: A range is reversed.
    """
    negated = element[1] == "!"
    position, end = (2 if negated else 1), len(element) - 1
    ranges: list[tuple[int, int]] = []
    while position < end:
        low = high = element[position]
        position += 1
        if position + 1 < end and element[position] == "-":
            high = element[position + 1]
            position += 2
            if high < low:
                raise GlobError(f"the range {f'{low}-{high}'!r} of the set {element!r} is reversed")
        ranges.append((ord(low), ord(high)))
    return negated, tuple(ranges)


# --- what a glob consists of


def _alternatives(elements: Elements) -> list[tuple[Elements, Elements]]:
    """Return the (store part, token part) pairs that together mean the glob, for destinations with exactly one `/`.

    `**` means `*` in a part. The list is empty if the `/` cannot be placed.
    """
    slashes = elements.count("/")
    if slashes == 1:
        at = elements.index("/")
        return [(elements[:at], elements[at + 1 :])]
    if slashes:
        return []
    stars = [at for at, element in enumerate(elements) if element == "**"]
    return [(elements[: at + 1], elements[at:]) for at in stars]


def _singles(elements: Elements) -> int:
    """Count the elements that take exactly one character."""
    return sum(1 for element in elements if not is_star(element))


def _part(elements: Elements) -> str:
    """Translate a part into the source of a `re` that takes all text up to the `/` or the end."""
    runs: list[list[str]] = [[]]
    for element in elements:
        if is_star(element):
            runs.append([])
        else:
            runs[-1].append(_single(element))
    first, *middle = ("".join(run) for run in runs)
    if not middle:
        return first
    last = middle.pop()
    # The rest is taken whole, long enough for the last run, and then its end is compared with that run.
    found = f"(?<={last})" if last else ""
    return first + "".join(f"(?>[^/]*?{run})" for run in middle) + f"[^/]{{{len(runs[-1])},}}+{found}"


def _single(element: str) -> str:
    """Translate an element that takes exactly one character."""
    if element == "?":
        return "[^/]"
    if len(element) == 1:
        return re.escape(element)
    negated, ranges = _set_ranges(element)
    inside = "".join(f"{re.escape(chr(low))}-{re.escape(chr(high))}" for low, high in ranges)
    return f"[^/{inside}]" if negated else f"(?!/)[{inside}]"


def _literal_prefix(elements: Elements) -> str:
    for at, element in enumerate(elements):
        if _is_wildcard(element):
            return "".join(elements[:at])
    return "".join(elements)


def _literal_segments(elements: Elements) -> tuple[str, ...]:
    segments: list[str] = []
    segment, literal = "", True
    for element in (*elements, "."):
        if element in ("/", "."):
            if literal and segment:
                segments.append(segment)
            segment, literal = "", True
        elif _is_wildcard(element):
            literal = False
        else:
            segment += element
    return tuple(segments)


# --- whether it can match at all


def _find_sample(elements: Elements, bytes_max: int) -> str:
    """Return one of the shortest destinations that a glob matches.

    Raises:
        GlobError: There is none.
    """
    if not elements:
        raise _matches_nothing("it is empty")
    singles: list[str] = []
    for element in elements:
        if is_star(element) or len(element) == 1:
            singles.append("a" if element == "?" else element)
        else:
            best = _best_letter(element)
            if best is None:
                raise _matches_nothing(f"the set {element!r} holds no character that a destination may hold")
            singles.append(best)
    alternatives = _alternatives(tuple(singles))
    if not alternatives:
        many = "/" in elements
        raise _matches_nothing(
            "it holds more than one '/'" if many else "it holds no '/' and no '**' that could stand for one"
        )
    first_problem = ""
    for store, tokens in alternatives:
        sample = _shortest(store) + "/" + _shortest(tokens)
        size = len(sample.encode("utf-8", "surrogatepass"))
        problem = _problem(sample) if size <= bytes_max else f"it would have at least {size} bytes"
        if problem is None:
            return sample
        first_problem = first_problem or problem
    raise _matches_nothing(first_problem)


def _matches_nothing(problem: str) -> GlobError:
    return GlobError(f"the glob can match no destination: {problem}")


def _best_letter(element: str) -> str | None:
    """Choose the character of a set that is well-formed wherever another one of it would be, and shortest."""
    ranges = character_ranges(element)
    letters = [letter for letter in representatives([ranges]) if holds(ranges, letter)]
    return min(letters, key=awkwardness, default=None)


def awkwardness(letter: str) -> int:
    """Return a character's rank for samples: characters of a store come first, then by length in UTF-8, and the dot last."""
    if letter in STORE_CHARACTERS:
        return 0
    return 5 if letter == "." else len(letter.encode())


def _shortest(singles: Elements) -> str:
    """Return the shortest text that a part matches and that has no empty token if that can be avoided."""
    text = ""
    for at, single in enumerate(singles):
        if not is_star(single):
            text += single
        elif text[-1:] in ("", ".") and (at + 1 == len(singles) or singles[at + 1] == "."):
            text += "a"
    return text


# --- the characters that an element takes


def character_ranges(element: str) -> Ranges:
    """Return the code points that an element takes, a star each time, as ascending ranges with gaps between them."""
    if element == "**":
        return _others(())
    if element in ("*", "?"):
        return _others(_SLASH)
    if len(element) == 1:
        return ((ord(element), ord(element)),)
    negated, ranges = _set_ranges(element)
    if negated:
        return _others(_joined((*ranges, *_SLASH)))
    return intersection(_joined(ranges), _others(_SLASH))


def holds(ranges: Ranges, character: str) -> bool:
    """Return True if a character is in ranges as of `character_ranges`."""
    code = ord(character)
    at = bisect_right(ranges, (code, _CODES_END)) - 1
    return at >= 0 and code <= ranges[at][1]


def representatives(rows: Iterable[Ranges]) -> list[str]:
    """Choose characters of destinations so that the grammar and all these ranges treat every other one like one of them.

    The boundaries of the ranges and of the grammar's own classes cut the code points into intervals of equals. The first
    character of each interval that a destination may hold represents it.
    """
    starts = set(_GRAMMAR_STARTS)
    for ranges in rows:
        for low, high in ranges:
            starts.update((low, high + 1))
    ordered = sorted(starts)
    letters: list[str] = []
    for start, stop in zip(ordered, (*ordered[1:], _CODES_END), strict=True):
        code = _first_allowed(start, stop)
        if code is not None:
            letters.append(chr(code))
    return letters


def kinds(ranges: Ranges) -> tuple[bool, bool, bool]:
    """Return whether ranges hold a character of a store, another one of a token than the dot, and the dot."""
    as_dot = holds(ranges, ".")
    if len(intersection(ranges, _STORE_RANGES)) > 0:
        return True, True, as_dot
    for low, high in ranges:
        for start, stop in ((low, min(high, ord(".") - 1)), (max(low, ord("/") + 1), high)):
            if start <= stop and _first_allowed(start, stop + 1) is not None:
                return False, True, as_dot
    return False, False, as_dot


def _first_allowed(start: int, stop: int) -> int | None:
    for code in range(start, min(stop, start + 40)):  # enough for usual sets, so only odd ones need the table
        if _may_stand_in_destination(code):
            return code
    if stop - start <= 40:
        return None
    changes = _allowed_changes()
    at = bisect_right(changes, start)
    code = start if at % 2 else (changes[at] if at < len(changes) else stop)
    return code if code < stop else None


def _may_stand_in_destination(code: int) -> bool:
    character = chr(code)
    return character in "./" or _may_stand_in_token(character)


@cache
def _allowed_changes() -> list[int]:
    """Return the code points at which "not allowed" (first) and "allowed" alternate. The first call takes some 0.1 s."""
    changes: list[int] = []
    allowed = False
    for code in range(_CODES_END):
        if _may_stand_in_destination(code) != allowed:
            allowed = not allowed
            changes.append(code)
    return changes


def _joined(ranges: Ranges) -> Ranges:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return tuple(joined)


def _others(ranges: Ranges) -> Ranges:
    """Return the code points outside of ranges, which are ascending with gaps between them."""
    others: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if low > start:
            others.append((start, low - 1))
        start = high + 1
    if start < _CODES_END:
        others.append((start, _CODES_END - 1))
    return tuple(others)


def intersection(one: Ranges, other: Ranges) -> Ranges:
    """Return the code points that are in both of two rows of ranges, each ascending with gaps between them."""
    both: list[tuple[int, int]] = []
    i = j = 0
    while i < len(one) and j < len(other):
        low, high = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if low <= high:
            both.append((low, high))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(both)

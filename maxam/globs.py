"""The grammar of destinations, and globs over them.

`destination = store "/" token *("." token)`, so a well-formed destination holds exactly one `/`. Two things follow:

* In a glob with a literal `/` every `**` means `*`. In a glob without one, some `**` takes the `/`, and what stands
  before and after it are two plain parts. Either way no part matches a `/`, "the earliest match of each run between
  stars" is right, and a `re` of atomic groups matches without ever going back.
* The shortest text that a plain part matches is well-formed if any is. So one sample decides whether a glob can match
  at all, and what is wrong with the sample is what is wrong with the glob.

A parsed glob is a tuple of elements, each its own source text: `*`, `**`, `?`, a set `[...]`, or one literal
character. No two stars are adjacent.
"""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final, final
from unicodedata import category

from maxam.config import Limits
from maxam.errors import GlobError

STORE_CHARACTERS_MAX: Final = 16
_STORE_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_TOKEN_EXCLUDED: Final = frozenset(" ./\\*?[]")  # `str.isprintable` is "not in C* or Z*", but for the ASCII space
_PLAIN: Final = re.compile(rb"[A-Za-z0-9_-]{1,16}/[!-)+-\-0->@-Z^-~]+(?:\.[!-)+-\-0->@-Z^-~]+)*")  # all of it ASCII

Elements = tuple[str, ...]
_Ranges = tuple[tuple[int, int], ...]  # code points, both ends included

_CODES_END: Final = 0x110000
# Where the grammar's classes of characters and the lengths in UTF-8 begin and end: - . / 0-9 A-Z _ a-z, 1 to 4 bytes.
_GRAMMAR_STARTS: Final = (0, *map(ord, "-./0:A[_`a{"), 0x80, 0x800, 0x10000)


def destination_problem(destination: bytes, bytes_max: int) -> str | None:
    """Tell why a destination is not well-formed; None when it is.

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
        if character not in _STORE_CHARACTERS:
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

    Equal when the text is.

    Attributes:
        text: As written.
        prefix: The literal text before the first wildcard: every match starts with it.
        literals: Segments between `/`, `.` and the ends that every match holds, whole and literally, in order.
        elements: The parsed text, for `overlaps`.
        bytes_max: The longest destination there can be.
    """

    __slots__ = ("_pattern", "bytes_max", "elements", "literals", "prefix", "text")

    def __init__(self, text: str, elements: Elements, bytes_max: int) -> None:
        self.text: Final = text
        self.prefix: Final = _literal_prefix(elements)
        self.literals: Final = _literal_segments(elements)
        self.elements: Final = elements
        self._pattern: Final = re.compile("|".join(_part(a) + "/" + _part(b) for a, b in _alternatives(elements)))
        self.bytes_max: Final = bytes_max

    @property
    def expression(self) -> str:
        """The regular expression that takes a whole destination; Python and Java read it alike."""
        return self._pattern.pattern

    def matches(self, destination: str) -> bool:
        """Tell whether a destination matches, in time linear in its length. One without exactly one `/` never does."""
        return self._pattern.fullmatch(destination) is not None

    def overlaps(self, other: "Glob") -> bool:
        """Tell whether some well-formed destination matches both."""
        if not self.prefix.startswith(other.prefix) and not other.prefix.startswith(self.prefix):
            return False
        return share_destination(self.elements, other.elements, min(self.bytes_max, other.bytes_max))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Glob) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Glob({self.text!r})"


def compile_glob(text: str, limits: Limits) -> Glob:
    """Compile a glob.

    `*` matches any run without `/`; `**` any run; `?` one character but `/`; `[abc]`, `[a-z]` (by code point) and
    `[!a]` one character, never `/`; `]` first in a set is literal, `[^` is not negation.

    Raises:
        GlobError: It is malformed, breaks a limit, or can match no well-formed destination; the text says why.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limits.destination_bytes_max:
        raise GlobError(f"the glob has {size} bytes, at most {limits.destination_bytes_max} are allowed")
    elements = _parse(text)
    wildcards = sum(_is_wildcard(element) for element in elements)
    if wildcards > limits.glob_wildcards_max:
        raise GlobError(f"the glob has {wildcards} wildcards, at most {limits.glob_wildcards_max} are allowed")
    problem = _glob_problem(elements, limits.destination_bytes_max)
    if problem is not None:
        raise GlobError(f"the glob can match no destination: {problem}")
    return Glob(text, elements, limits.destination_bytes_max)


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
            end = text.find("]", first + 1)  # one that comes first is literal
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


def _is_star(element: str) -> bool:
    return element in ("*", "**")


def _set_ranges(element: str) -> tuple[bool, _Ranges]:
    """Give a set's negation and its ranges.

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


def _accepts(element: str, character: str) -> bool:
    """Tell whether an element may take this one character."""
    if len(element) == 1:
        return element == character or (element in "*?" and character != "/")
    if element == "**":
        return True
    negated, ranges = _set_ranges(element)
    code = ord(character)
    return character != "/" and any(low <= code <= high for low, high in ranges) != negated


# --- what a glob consists of


def _alternatives(elements: Elements) -> list[tuple[Elements, Elements]]:
    """List the (store part, token part) pairs that together mean the glob, for destinations with exactly one `/`.

    `**` means `*` in a part. Empty when the `/` cannot be placed.
    """
    slashes = elements.count("/")
    if slashes == 1:
        at = elements.index("/")
        return [(elements[:at], elements[at + 1 :])]
    if slashes:
        return []
    stars = [at for at, element in enumerate(elements) if element == "**"]
    return [(elements[: at + 1], elements[at:]) for at in stars]


def _part(elements: Elements) -> str:
    """Translate a part into the source of a `re` that takes all text up to the `/` or the end."""
    runs: list[list[str]] = [[]]
    for element in elements:
        if _is_star(element):
            runs.append([])
        else:
            runs[-1].append(_single(element))
    first, *middle = ("".join(run) for run in runs)
    if not middle:
        return first
    last = middle.pop()
    # The rest is taken whole, long enough for the last run, and then that run is looked for where it must be.
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


def _glob_problem(elements: Elements, bytes_max: int) -> str | None:
    if not elements:
        return "it is empty"
    singles: list[str] = []
    for element in elements:
        if _is_star(element) or len(element) == 1:
            singles.append("a" if element == "?" else element)
        else:
            best = _best_letter(element)
            if best is None:
                return f"the set {element!r} holds no character that a destination may hold"
            singles.append(best)
    alternatives = _alternatives(tuple(singles))
    if not alternatives:
        many = "/" in elements
        return "it holds more than one '/'" if many else "it holds no '/' and no '**' that could stand for one"
    problems: list[str] = []
    for store, tokens in alternatives:
        sample = _shortest(store) + "/" + _shortest(tokens)
        size = len(sample.encode("utf-8", "surrogatepass"))
        problem = _problem(sample) if size <= bytes_max else f"it would have at least {size} bytes"
        if problem is None:
            return None
        problems.append(problem)
    return problems[0]


def _best_letter(element: str) -> str | None:
    """Choose the character of a set that is well-formed wherever another one of it would be, and shortest."""
    letters = [letter for letter in _letters((element,)) if _accepts(element, letter)]
    return min(letters, key=_awkwardness, default=None)


def _awkwardness(letter: str) -> int:
    if letter in _STORE_CHARACTERS:
        return 0
    return 5 if letter == "." else len(letter.encode())


def _shortest(singles: Elements) -> str:
    """Give the shortest text that a part matches and that has no empty token if that can be avoided."""
    text = ""
    for at, single in enumerate(singles):
        if not _is_star(single):
            text += single
        elif text[-1:] in ("", ".") and (at + 1 == len(singles) or singles[at + 1] == "."):
            text += "a"
    return text


# --- whether two have a destination in common


def _letters(*globs: Elements) -> list[str]:
    """Choose characters of destinations so that every other one is treated like one of them by all these elements.

    The boundaries of literals, ranges and the grammar's own classes cut the code points into intervals of equals; each
    is represented by its first character that a destination may hold.
    """
    starts = set(_GRAMMAR_STARTS)
    for elements in globs:
        for element in elements:
            if len(element) == 1:
                starts.update((ord(element), ord(element) + 1))
            elif element != "**":
                for low, high in _set_ranges(element)[1]:
                    starts.update((low, high + 1))
    ordered = sorted(starts)
    letters: list[str] = []
    for start, stop in zip(ordered, (*ordered[1:], _CODES_END), strict=True):
        code = _first_allowed(start, stop)
        if code is not None:
            letters.append(chr(code))
    return letters


def _first_allowed(start: int, stop: int) -> int | None:
    for code in range(start, min(stop, start + 40)):  # enough but for odd sets, so that only they pay for the table
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
    """List where code points change between not allowed (first) and allowed. Takes some 0.1 s, once."""
    changes: list[int] = []
    allowed = False
    for code in range(_CODES_END):
        if _may_stand_in_destination(code) != allowed:
            allowed = not allowed
            changes.append(code)
    return changes


def share_destination(a: Elements, b: Elements, bytes_max: int) -> bool:
    """Tell whether some well-formed destination of at most `bytes_max` bytes matches both.

    Walks the product of both globs and the grammar, breadth first by bytes: at most `bytes_max` steps, whatever the
    globs are.
    """
    product = _Product(a, b)
    store = product.start
    first: list[int] = [0] * (bytes_max + 5)  # by bytes so far: states where a token must begin
    inside: list[int] = [0] * (bytes_max + 5)  # and those where at least one of its characters was taken
    seen_first, seen_inside, last = 0, 0, STORE_CHARACTERS_MAX
    for size in range(bytes_max):
        if size > last:
            return False
        if size:
            first[size + 1] |= product.advance(store, product.slash)
        store = product.advance(store, product.store) if size < STORE_CHARACTERS_MAX else 0
        if inside[size] & product.end:
            return True
        ahead_first, ahead_inside = first[size] & ~seen_first, inside[size] & ~seen_inside
        seen_first |= ahead_first
        seen_inside |= ahead_inside
        if ahead_first or ahead_inside or store:
            last = size + 4
        first[size + 1] |= product.advance(ahead_inside, product.dot)
        for length in range(1, 5):
            inside[size + length] |= product.advance(ahead_first | ahead_inside, product.token[length])
    return inside[bytes_max] & product.end != 0


@final
class _Product:
    """What two globs do with one more character, whatever state each is in.

    A set of states is an integer: bit `j * width + i` says that `a` has got to its element i and `b` to its element j.

    Attributes:
        start: The states before the first character.
        end: The state in which both are at their end.
        store, slash, dot: The states in which both may take a character of a store, the `/`, a `.`.
        token: The same for a character of a token, by its length in UTF-8.
    """

    __slots__ = ("_a_stars", "_b_stars", "_width", "dot", "end", "slash", "start", "store", "token")

    def __init__(self, a: Elements, b: Elements) -> None:
        self._width: Final = len(a) + 1
        self._a_stars: Final = _rows([_bits(_is_star(element) for element in a)] * (len(b) + 1), self._width)
        self._b_stars: Final = _rows([(1 << self._width) - 1 if _is_star(element) else 0 for element in b], self._width)
        letters = _letters(a, b)
        store = [letter for letter in letters if letter in _STORE_CHARACTERS]
        tokens = [letter for letter in letters if letter not in "./"]
        self.store: Final = self._takers(a, b, store)
        self.slash: Final = self._takers(a, b, ["/"])
        self.dot: Final = self._takers(a, b, ["."])
        self.token: Final = [
            self._takers(a, b, [letter for letter in tokens if len(letter.encode()) == length]) for length in range(5)
        ]
        self.start: Final = self._skip_stars(1)
        self.end: Final = 1 << (len(b) * self._width + len(a))

    def _takers(self, a: Elements, b: Elements, letters: Sequence[str]) -> int:
        rows = [0] * len(b)
        for letter in letters:
            row = _bits(_accepts(element, letter) for element in a)
            for j, element in enumerate(b):
                if _accepts(element, letter):
                    rows[j] |= row
        return _rows(rows, self._width)

    def advance(self, states: int, takers: int) -> int:
        """Take a character in those of the states that can; a star may stay where it is."""
        states &= takers
        if not states:
            return 0
        states = (states & self._b_stars) | ((states & ~self._b_stars) << self._width)
        states = (states & self._a_stars) | ((states & ~self._a_stars) << 1)
        return self._skip_stars(states)

    def _skip_stars(self, states: int) -> int:
        states |= (states & self._a_stars) << 1
        return states | (states & self._b_stars) << self._width


def _bits(flags: Iterable[bool]) -> int:
    return sum(1 << at for at, flag in enumerate(flags) if flag)


def _rows(rows: Sequence[int], width: int) -> int:
    """Put rows of bits, the lowest first, into one integer."""
    return int("".join(f"{row:0{width}b}" for row in reversed(rows)) or "0", 2)


# --- whether some hold all that others do

COMPARISONS_MAX: Final = 4000  # states looked at, some 0.2 s, before two sides count as too complex
_STORE_FIRST, _STORE, _TOKEN_FIRST, _TOKEN = range(4)  # what of a destination comes next
_State = tuple[int, ...]  # where in the grammar, then the states of each group
_Groups = Sequence[Sequence[Glob]]


def uncovered(wanted: _Groups, granted: _Groups) -> str | None:
    """Find a destination that some globs match and others do not.

    Walks both sides at once, over sets of states, so that a union of globs may cover what none of them does. Destinations of any
    length count.

    Args:
        wanted: A destination counts that matches one glob of each of these groups.
        granted: The same for the other side; without any group every destination counts.

    Returns:
        A destination that only the wanted side has, one of the shortest; None when there is none.

    Raises:
        GlobError: They are too complex to compare.
    """
    unions = [_Union(group) for group in (*wanted, *granted)]
    first, last = len(wanted) + 1, len(unions) + 1
    letters = _letters(*[glob.elements for group in (*wanted, *granted) for glob in group])
    start: _State = (_STORE_FIRST, *[union.start for union in unions])
    came: dict[_State, tuple[_State, str]] = {}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        if state[0] == _TOKEN:
            accepting = [union.accepts(states) for union, states in zip(unions, state[1:], strict=True)]
            if all(accepting[: first - 1]) and not all(accepting[first - 1 : last]):
                return _way_to(state, came, start)
        for letter in letters:
            phase = _next_phase(state[0], letter)
            if phase is None:
                continue
            after: _State = (
                phase,
                *[union.advance(states, letter) for union, states in zip(unions, state[1:], strict=True)],
            )
            if not all(after[1:first]) or after in came:
                continue
            if len(came) >= COMPARISONS_MAX:
                raise GlobError("they are too complex to compare; use fewer wildcards")
            came[after] = (state, letter)
            waiting.append(after)
    return None


def _way_to(state: _State, came: dict[_State, tuple[_State, str]], start: _State) -> str:
    text = ""
    while state != start:
        state, letter = came[state]
        text = letter + text
    return text


def _next_phase(phase: int, letter: str) -> int | None:
    """Tell what comes after one more character of a destination; None when it cannot stand there."""
    if phase <= _STORE:
        if letter == "/":
            return None if phase == _STORE_FIRST else _TOKEN_FIRST
        return _STORE if letter in _STORE_CHARACTERS else None
    if letter == ".":
        return None if phase == _TOKEN_FIRST else _TOKEN_FIRST
    return None if letter == "/" else _TOKEN


@final
class _Union:
    """What several globs do together with one more character: bit i says that a glob has got to the i-th of all elements.

    Attributes:
        start: The states before the first character.
    """

    __slots__ = ("_elements", "_ends", "_stars", "_takers", "start")

    def __init__(self, globs: Sequence[Glob]) -> None:
        self._elements: Final[list[str]] = []
        starts: list[int] = []
        ends: list[int] = []
        for glob in globs:
            starts.append(len(self._elements))
            self._elements.extend(glob.elements)
            ends.append(len(self._elements))
            self._elements.append("")  # the end takes nothing
        self._stars: Final = _bits(_is_star(element) for element in self._elements)
        self._ends: Final = sum(1 << at for at in ends)
        self._takers: Final[dict[str, int]] = {}
        first = sum(1 << at for at in starts)
        self.start: Final = first | (first & self._stars) << 1

    def advance(self, states: int, letter: str) -> int:
        takers = self._takers.get(letter)
        if takers is None:
            takers = _bits(element != "" and _accepts(element, letter) for element in self._elements)
            self._takers[letter] = takers
        states &= takers
        states = (states & self._stars) | (states & ~self._stars) << 1
        return states | (states & self._stars) << 1

    def accepts(self, states: int) -> bool:
        return states & self._ends != 0


# --- whether all destinations of some globs are destinations of others


def find_destination(
    within: Sequence[Sequence[Glob]], outside: Sequence[Sequence[Glob]] = (), states_max: int = 10_000
) -> str | None:
    """Find a short well-formed destination that is granted by `within` and not by `outside`; None when there is none.

    Both are rows of globs. A destination is granted if each row has a glob that matches it, so that no row at all grants everything and
    an empty row nothing; but an empty `outside` takes nothing away. Decided exactly, by walking all states in which the globs can be
    together.

    Raises:
        GlobError: There are more than `states_max` of these.
    """
    if any(not row for row in within):
        return None
    machine = _Machine([*within, *outside])
    rows = len(within)
    # A state: what the globs have got to, and where in the grammar: so many characters of the store, or in the tokens.
    start = (machine.start, 0)
    texts: dict[tuple[int, int], str] = {start: ""}
    waiting = [start]
    for states, place in waiting:  # grows while it is walked: shortest texts first
        text = texts[states, place]
        if place == _INSIDE:
            granted = machine.granted(states)
            if all(granted[:rows]) and not (outside and all(granted[rows:])):
                return text
        for letter, takers in machine.letters:
            following = _following(place, letter)
            if following < 0:
                continue
            after = machine.advance(states, takers)
            if (after, following) in texts or not machine.alive(after, rows):
                continue
            if len(texts) >= states_max:
                raise GlobError("the globs are too intricate to be compared")
            texts[after, following] = text + letter
            waiting.append((after, following))
    return None


_FIRST: Final = STORE_CHARACTERS_MAX + 1  # a token must begin
_INSIDE: Final = STORE_CHARACTERS_MAX + 2  # at least one of its characters was taken


def _following(place: int, letter: str) -> int:
    """Tell where in the grammar a character leads, -1: nowhere."""
    if place < _FIRST:
        if letter == "/":
            return _FIRST if place else -1
        return place + 1 if letter in _STORE_CHARACTERS and place < STORE_CHARACTERS_MAX else -1
    if letter == "/":
        return -1
    if letter == ".":
        return _FIRST if place == _INSIDE else -1
    return _INSIDE


@final
class _Machine:
    """Where rows of globs have got to: bit by bit, the elements that each may be at, with one bit more for its end.

    Attributes:
        start: The states before the first character.
        letters: One of each kind of characters that all globs and the grammar treat alike, with the states that may take it.
    """

    __slots__ = ("_ends", "_masks", "_stars", "letters", "start")

    def __init__(self, rows: Sequence[Sequence[Glob]]) -> None:
        elements: list[str] = []  # of all globs; an empty one is an end
        ends: list[int] = []
        masks: list[int] = []
        first = 0
        for row in rows:
            row_ends, row_start = 0, len(elements)
            for glob in row:
                first |= 1 << len(elements)
                elements += glob.elements
                row_ends |= 1 << len(elements)
                elements.append("")
            ends.append(row_ends)
            masks.append((1 << len(elements)) - (1 << row_start))
        self._ends: Final = ends
        self._masks: Final = masks
        self._stars: Final = _bits([_is_star(element) for element in elements])
        kinds: dict[tuple[int, int, bool], str] = {}
        known = [element for element in elements if element]
        for letter in sorted(_letters(tuple(known)), key=_awkwardness):
            takers = _bits([element != "" and _accepts(element, letter) for element in elements])
            # In the grammar a letter is a `/`, a `.`, one of a store, or one of a token only.
            kinds.setdefault((takers, "/.".find(letter), letter in _STORE_CHARACTERS), letter)
        self.letters: Final = [(letter, takers) for (takers, _, _), letter in kinds.items()]
        self.start: Final = self._skip_stars(first)

    def advance(self, states: int, takers: int) -> int:
        """Take a character."""
        states &= takers
        return self._skip_stars((states & self._stars) | ((states & ~self._stars) << 1))

    def _skip_stars(self, states: int) -> int:
        return states | ((states & self._stars) << 1)

    def granted(self, states: int) -> list[bool]:
        """Tell of each row whether one of its globs is at its end."""
        return [states & ends != 0 for ends in self._ends]

    def alive(self, states: int, rows: int) -> bool:
        """Tell whether each of the first rows has a glob that may still come to its end."""
        return all(states & mask != 0 for mask in self._masks[:rows])

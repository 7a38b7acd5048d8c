"""Comparisons of globs: whether they have a destination in common, and whether some cover another.

A `GlobSet` is the automaton of several globs. The elements of all globs stand in one row of bits, each glob followed by
its end. A set of states is an integer: bit i is set if element i may take the next character, or if the glob ends there.
"""

from collections.abc import Sequence
from typing import Final, final

from maxam.errors import GlobError
from maxam.globs import (
    STORE_CHARACTERS,
    STORE_CHARACTERS_MAX,
    Glob,
    Ranges,
    awkwardness,
    character_ranges,
    holds,
    intersection,
    is_star,
    kinds,
    representatives,
)

STEPS_BITS_MAX: Final = 2_000_000  # elements of a glob times bits of a set, some 1 ms: larger ones are not compared
_SHARED_MAX: Final = 512  # elements whose takers a set remembers


@final
class GlobSet:
    """Several globs as one automaton.

    Attributes:
        globs: The globs.
        masks: The bits of each glob, from its first element to its end.
        ends: The bits of all ends.
        start: The states before the first character.
        steps: Number of elements compared so far; 0 while prefixes, suffixes and samples decide everything.
        texts: The texts of the globs.
    """

    __slots__ = (
        "_dots",
        "_letters",
        "_literals",
        "_ranges",
        "_shared",
        "_slashes",
        "_stars",
        "_stores",
        "ends",
        "globs",
        "masks",
        "start",
        "steps",
        "texts",
    )

    def __init__(self, globs: Sequence[Glob]) -> None:
        self.globs: Final = tuple(globs)
        self.steps = 0
        self.masks: Final[list[int]] = []
        self.texts: Final = frozenset([glob.text for glob in globs])
        self._shared: Final[dict[str, tuple[int, int, int]]] = {}
        places: dict[str, int] = {}  # the bits of each different element
        at = starts = ends = 0
        for glob in globs:
            first = at
            for element in glob.elements:
                places[element] = places.get(element, 0) | 1 << at
                at += 1
            starts |= 1 << first
            ends |= 1 << at
            at += 1
            self.masks.append((1 << at) - (1 << first))
        self.ends: Final = ends
        self._stars: Final = places.get("*", 0) | places.get("**", 0)
        self._slashes: Final = places.get("/", 0) | places.get("**", 0)
        self._literals: Final = {x: bits for x, bits in places.items() if len(x) == 1 and x not in "*?"}
        self._ranges: Final = [(character_ranges(x), bits) for x, bits in places.items() if x not in self._literals]
        every = [(character_ranges(x), bits) for x, bits in places.items()]
        self._stores, self._letters, self._dots = _by_kind(
            every
        )  # elements that take a character of a store, a token, a dot
        self.start: Final = self._skip_stars(starts)

    def overlaps(self, other: Glob) -> bool:
        """Return False if no well-formed destination matches both the other glob and one of these.

        True is exact except in two cases. Limits of length are not counted, so the common destinations may all be too long. Sets
        and globs beyond STEPS_BITS_MAX, whose comparison would take more than about 1 ms, are taken to overlap.

        One comparison takes a few operations on integers for each element of the other glob. Wildcards do not add to that: the
        reach of a star is one addition, because the carry runs through all elements that it may take.
        """
        if other.text in self.texts or "**" in self.texts:
            return True
        near = 0
        for glob, mask in zip(self.globs, self.masks, strict=True):
            if _ends_differ(glob, other):
                continue
            if glob.matches(other.sample):
                return True
            near |= mask
        if not near:
            return False
        if len(other.elements) * self.ends.bit_length() > STEPS_BITS_MAX:
            return True
        return self._meets(other.elements, self.start & near)

    def _meets(self, elements: Sequence[str], nothing: int) -> bool:
        """Return True if the elements of another glob and some of the globs that start at `nothing` share a destination."""
        # Both have read one of four: nothing, a part of the store, up to where a token must begin, or a part of a token.
        store = first = inside = 0
        for element in elements:
            self.steps += 1
            if is_star(element):
                store = self._fill(store | self.advance(nothing, self._stores), self._stores)
                if element == "**":
                    first |= self.advance(store, self._slashes)
                # A token cannot begin with a dot. After any other character the star can take all that the globs hold: a glob
                # with two dots in a row does not exist.
                passed = self._fill(inside | (first & self._letters), self._letters | self._dots)
                inside |= self.advance(passed, self._letters)
                first |= self.advance(inside, self._dots)
                continue
            in_store, in_token, as_dot = self._takers(element)
            if element == "/":
                nothing, store, first, inside = 0, 0, self.advance(store, self._slashes), 0
            else:
                nothing, store, first, inside = (
                    0,
                    self.advance(nothing | store, in_store),
                    self.advance(inside, as_dot),
                    self.advance(first | inside, in_token),
                )
            if not (store or first or inside):
                return False
        return inside & self.ends != 0

    def advance(self, states: int, takers: int) -> int:
        """Return the states after a character that the elements in `takers` take. A star may stay where it is."""
        states &= takers
        return self._skip_stars((states & self._stars) | (states & ~self._stars) << 1) if states else 0

    def _skip_stars(self, states: int) -> int:
        return states | (states & self._stars) << 1

    def _fill(self, states: int, takers: int) -> int:
        """Return the states after any number of characters that the elements in `takers` take, none included."""
        return ((((states & takers) + takers) ^ takers) | states) if states else 0

    def letters(self) -> list[tuple[str, int]]:
        """Return one of each kind of characters that all globs and the grammar treat alike, with the elements that take it."""
        every = [(character_ranges(x), bits) for x, bits in self._literals.items()] + self._ranges
        found: dict[tuple[int, int, bool], str] = {}
        for letter in sorted(representatives([ranges for ranges, _ in every]), key=awkwardness):
            takers = _union([bits for ranges, bits in every if holds(ranges, letter)])
            # In the grammar a letter is a `/`, a `.`, one of a store, or one of a token only.
            found.setdefault((takers, "/.".find(letter), letter in STORE_CHARACTERS), letter)
        return [(letter, takers) for (takers, _, _), letter in found.items()]

    def _takers(self, element: str) -> tuple[int, int, int]:
        """Return the elements that share with another glob's element a character of a store, of a token, and the dot."""
        shared = self._shared.get(element)
        if shared is None:
            mine = character_ranges(element)
            both = [(intersection(mine, ranges), bits) for ranges, bits in self._ranges]
            both += [(character_ranges(x), bits) for x, bits in self._literals.items() if holds(mine, x)]
            shared = _by_kind(both)
            if len(self._shared) >= _SHARED_MAX:
                self._shared.clear()
            self._shared[element] = shared
        return shared


def _by_kind(places: Sequence[tuple[Ranges, int]]) -> tuple[int, int, int]:
    """Unite the bits whose ranges hold a character of a store, one of a token, and the dot."""
    stores = letters = dots = 0
    for ranges, bits in places:
        in_store, in_token, as_dot = kinds(ranges)
        stores |= bits if in_store else 0
        letters |= bits if in_token else 0
        dots |= bits if as_dot else 0
    return stores, letters, dots


def _union(rows: Sequence[int]) -> int:
    union = 0
    for bits in rows:
        union |= bits
    return union


def _ends_differ(one: Glob, other: Glob) -> bool:
    """Return True if the literal beginnings or ends of two globs show that they share no destination."""
    if not one.prefix.startswith(other.prefix) and not other.prefix.startswith(one.prefix):
        return True
    return not one.suffix.endswith(other.suffix) and not other.suffix.endswith(one.suffix)


def overlap(one: Glob, other: Glob) -> bool:
    """Return False if no well-formed destination matches both globs. True does not count limits of length."""
    return GlobSet([one]).overlaps(other)


def find_destination(
    within: Sequence[Sequence[Glob]], outside: Sequence[Sequence[Glob]] = (), states_max: int = 10_000
) -> str | None:
    """Find a short well-formed destination that `within` grants and `outside` does not. Return None if there is none.

    Both are rows of globs. A destination is granted if each row has a glob that matches it. So no row at all grants everything, and
    an empty row nothing. An empty `outside` takes nothing away. All states are searched in which the globs can
    be together, so the result is exact. Only the limit on the bytes of a destination is not counted.

    Raises:
        GlobError: There are more than `states_max` of these states.
    """
    if any(not row for row in within):
        return None
    rows = [*within, *outside]
    union = GlobSet([glob for row in rows for glob in row])
    masks: list[int] = []  # the bits of each row
    at = 0
    for row in rows:
        masks.append(_union(union.masks[at : at + len(row)]))
        at += len(row)
    alive, ends = masks[: len(within)], [mask & union.ends for mask in masks]
    letters = union.letters()
    # A state is the states of all globs, and the place in the grammar: a number of characters of the store, or in the tokens.
    start = (union.start, 0)
    texts: dict[tuple[int, int], str] = {start: ""}
    waiting = [start]
    for states, place in waiting:  # grows during the loop: shortest texts first
        text = texts[states, place]
        if place == _INSIDE:
            granted = [states & end != 0 for end in ends]
            if all(granted[: len(within)]) and not (outside and all(granted[len(within) :])):
                return text
        for letter, takers in letters:
            following = _following(place, letter)
            if following < 0:
                continue
            after = (union.advance(states, takers), following)
            if after in texts or any(after[0] & mask == 0 for mask in alive):
                continue
            if len(texts) >= states_max:
                raise GlobError("the globs are too complex to compare; use fewer wildcards")
            texts[after] = text + letter
            waiting.append(after)
    return None


_FIRST: Final = STORE_CHARACTERS_MAX + 1  # a token must begin
_INSIDE: Final = STORE_CHARACTERS_MAX + 2  # at least one of its characters was taken


def _following(place: int, letter: str) -> int:
    """Return the place in the grammar after a character, or -1 if the grammar does not allow it."""
    if place < _FIRST:
        if letter == "/":
            return _FIRST if place else -1
        return place + 1 if letter in STORE_CHARACTERS and place < STORE_CHARACTERS_MAX else -1
    if letter == "/":
        return -1
    if letter == ".":
        return _FIRST if place == _INSIDE else -1
    return _INSIDE

"""Globs by their definition: the reference that `maxam.globs` and `maxam.glob_sets` are compared with."""

from collections import deque
from functools import cache

from maxam.globs import awkwardness, character_ranges, is_star, representatives

_TOKEN = -1  # place in the grammar: in the tokens, where a token must begin
_INSIDE = -2  # place in the grammar: in a token
_STORE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"


def takes(element: str, character: str) -> bool:
    """Return True if an element of a parsed glob may take a character."""
    if len(element) == 1:
        return element == character or (element in "*?" and character != "/")
    if element == "**":
        return True
    inside = element[1:-1]
    negated = inside.startswith("!")
    inside = inside[negated:]
    found, at = False, 0
    while at < len(inside):
        if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside):
            found |= inside[at] <= character <= inside[at + 2]
            at += 3
        else:
            found |= inside[at] == character
            at += 1
    return character != "/" and found != negated


def matches(elements: tuple[str, ...], text: str) -> bool:
    """Match by the definition: a star stands for nothing or takes one more character."""

    @cache
    def match(i: int, j: int) -> bool:
        if i == len(elements):
            return j == len(text)
        taken = j < len(text) and takes(elements[i], text[j])
        if is_star(elements[i]):
            return match(i + 1, j) or (taken and match(i, j + 1))
        return taken and match(i + 1, j + 1)

    return match(0, 0)


def share_destination(a: tuple[str, ...], b: tuple[str, ...], store_max: int | None = 16) -> bool:
    """Try all states of two globs and the grammar, one character after the other; None does not limit the store."""
    letters = sorted(representatives([character_ranges(element) for element in (*a, *b)]), key=awkwardness)
    seen = {(0, 0, 0)}
    waiting = deque(seen)
    while waiting:
        i, j, place = waiting.popleft()
        if (i, j, place) == (len(a), len(b), _INSIDE):
            return True
        following = [(i + 1, j, place)] if i < len(a) and is_star(a[i]) else []
        following += [(i, j + 1, place)] if j < len(b) and is_star(b[j]) else []
        if i < len(a) and j < len(b):
            for letter in letters:
                after = _after(place, letter, store_max)
                if after is not None and takes(a[i], letter) and takes(b[j], letter):
                    following.append((i + (not is_star(a[i])), j + (not is_star(b[j])), after))
        for state in following:
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return False


def _after(place: int, letter: str, store_max: int | None) -> int | None:
    """Return the place in the grammar after a character: a count of a store's characters, or one of the tokens' places."""
    if place < 0:
        if letter == ".":
            return _TOKEN if place == _INSIDE else None
        return None if letter == "/" else _INSIDE
    if letter == "/":
        return _TOKEN if place else None
    if letter not in _STORE or place == store_max:
        return None
    return 1 if store_max is None else place + 1

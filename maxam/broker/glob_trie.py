"""A trie of globs: which of them match a destination, without trying each.

Globs that begin alike share nodes. A node is entered after a literal text, a `?`, a set or a star. A lookup visits the nodes that some
beginning of the destination reaches. A star is *activated* at the first place where it is reached, as all later ones add nothing to it.
Only a `/` in between makes a difference for `*`, so there are two such places. From there a star finds the nodes that follow it.

A `?` beside a `*` comes before it here, which means the same. So a star is followed by a literal text or by nothing. The few globs that
are different, such as those with a set after a star, are not in the trie: each of them is tried.

A node is visited at most once for each place, however its globs combine stars. `GlobTrie.steps` counts the visits. Globs can be chosen
so that a lookup visits nearly all nodes. A limit ends such a lookup.
"""

from bisect import bisect_left
from typing import Final, final

from maxam.globs import Elements, Glob, Ranges, character_ranges, holds, is_star

_FEW: Final = 8  # texts after a star that are searched for one by one sooner than looked up at each place
_NEVER: Final = 0
_CHARACTERS_PER_STEP: Final = 16  # of a destination that a glob is compared with
_LIGHT_WILDCARDS_MAX: Final = 8
_LIGHT_STARS_MAX: Final = 3
_LIGHTEST: Final = 1
_LIGHT: Final = 5
_HEAVY: Final = 1 << 30
_STEPS_OF_MATCH: Final = (
    8  # a glob that is tried takes as long as this many steps, and a match takes as long to deliver
)


@final
class _Set:
    """A set, and the node after it."""

    __slots__ = ("element", "node", "ranges")

    def __init__(self, element: str, node: "_Node") -> None:
        self.element: Final = element
        self.ranges: Final[Ranges] = character_ranges(element)
        self.node: Final = node


@final
class _Node:
    """A beginning that globs share.

    Attributes:
        label: The literal text between the node before and this one. Empty after a wildcard.
        newest: The highest position of a glob that this node begins.
        positions: Of the globs that end here, ascending.
        texts: The nodes after a literal text, by its first character.
        single: The node after `?`, if there is one.
        sets: The nodes after sets.
        star: The node after `*`, if there is one.
        stars: The node after `**`, if there is one.
        before: The lookup that has activated this star before the `/` of its destination. `before_at` is the place.
        after: The lookup that has activated this star after the `/`. `after_at` is the place.
    """

    __slots__ = (
        "after",
        "after_at",
        "before",
        "before_at",
        "label",
        "newest",
        "positions",
        "sets",
        "single",
        "star",
        "stars",
        "texts",
    )

    def __init__(self, label: str, newest: int) -> None:
        self.label = label
        self.newest = newest
        self.positions: list[int] | None = None
        self.texts: dict[str, _Node] | None = None
        self.single: _Node | None = None
        self.sets: list[_Set] | None = None
        self.star: _Node | None = None
        self.stars: _Node | None = None
        self.before = _NEVER
        self.before_at = 0
        self.after = _NEVER
        self.after_at = 0

    @property
    def ends(self) -> bool:
        """Whether no glob goes on after this node."""
        return (
            self.texts is None
            and self.star is None
            and self.stars is None
            and self.single is None
            and self.sets is None
        )

    def passes(self, beyond: bool) -> bool:
        """Return True if no later place adds anything to this one, `beyond` the `/` or not: all its globs go on with a star."""
        return (
            (beyond or self.star is None)
            and self.positions is None
            and self.texts is None
            and self.single is None
            and self.sets is None
        )


@final
class GlobTrie:
    """Globs with positions, found by destination.

    Attributes:
        newest: The highest position of a glob. -1 if there is none.
        steps: Places at which lookups have visited nodes, of all lookups. A step takes some 50 ns.
    """

    __slots__ = ("_lookup", "_nodes", "_places", "_root", "_slash", "_tried", "newest", "steps")

    def __init__(self) -> None:
        self.newest = -1
        self.steps = 0
        self._root: Final = _Node("", -1)
        self._tried: Final[dict[Glob, list[int]]] = {}  # globs that are not in the trie
        self._lookup = _NEVER
        self._slash = 0
        self._nodes: Final[list[_Node]] = []  # still to be visited by the lookup, the next one last
        self._places: Final[list[int]] = []  # where

    def add(self, glob: Glob, position: int) -> None:
        """Add a glob at a position above all others."""
        self.newest = position
        elements = _ordered(glob.elements)
        if _needs_trying(elements):
            self._tried.setdefault(glob, []).append(position)
            return
        node = self._root
        node.newest = position
        text = ""
        for element in elements:
            if len(element) == 1 and element not in "*?":
                text += element
                continue
            if text:
                node = _after_text(node, text, position)
                text = ""
            node = _after_wildcard(node, element, position)
            node.newest = position
        if text:
            node = _after_text(node, text, position)
        if node.positions is None:
            node.positions = [position]
        else:
            node.positions.append(position)

    def collect(self, destination: str, since: int, found: list[int], steps_max: int) -> bool:
        """Append the positions of the globs that match a well-formed destination, from the position `since` on, in no order.

        Returns:
            False if that takes more than `steps_max` steps, not counting those for matches. `found` is incomplete then.
        """
        if self.newest < since:
            return True
        end = self.steps + steps_max
        if not self._try_each(destination, since, found, end):
            return False
        if self._root.newest < since:
            return True
        known = len(found)
        self._lookup += 1
        self._slash = destination.find("/")
        nodes, places = self._nodes, self._places
        nodes.append(self._root)
        places.append(0)
        while nodes:
            self.steps += 1
            if self.steps - _STEPS_OF_MATCH * (len(found) - known) > end:
                nodes.clear()
                places.clear()
                return False
            self._visit(nodes.pop(), places.pop(), destination, since, found)
        return True

    def _try_each(self, destination: str, since: int, found: list[int], end: int) -> bool:
        """Try the globs that are not in the trie; return False if `steps` would become larger than `end`."""
        steps = _STEPS_OF_MATCH + len(destination) // _CHARACTERS_PER_STEP
        for glob, positions in self._tried.items():
            if positions[-1] < since:
                continue
            self.steps += steps
            if self.steps > end:
                return False
            if glob.matches(destination):
                found.extend(positions[bisect_left(positions, since) :] if since else positions)
        return True

    def _visit(self, node: _Node, at: int, destination: str, since: int, found: list[int]) -> None:
        """Visit a node at a place: note the nodes after it that are to be visited."""
        slash = self._slash
        length = len(destination)
        if at == length:
            _take(node, since, found)
        star = node.star
        if star is not None and star.newest >= since:
            self._activate(star, at, slash if at <= slash else length, destination, since, found)
        star = node.stars
        if star is not None and star.newest >= since:
            self._activate(star, at, length, destination, since, found)
        if at == length:
            return
        character = destination[at]
        if character != "/":
            single = node.single
            if single is not None and single.newest >= since:
                self._nodes.append(single)
                self._places.append(at + 1)
            if node.sets is not None:
                self._visit_sets(node.sets, at, character, since)
        texts = node.texts
        if texts is not None:
            following = texts.get(character)
            if following is not None:
                self._visit_text(following, at, destination, since)

    def _visit_text(self, node: _Node, at: int, destination: str, since: int) -> None:
        """Visit a node whose label begins like the destination at a place, if all of the label is there."""
        label = node.label
        end = at + len(label)
        if node.newest >= since and (end == at + 1 or destination[at:end] == label):
            self._nodes.append(node)
            self._places.append(end)

    def _visit_sets(self, sets: list[_Set], at: int, character: str, since: int) -> None:
        for one in sets:
            self.steps += 1
            if one.node.newest >= since and holds(one.ranges, character):
                self._nodes.append(one.node)
                self._places.append(at + 1)

    def _activate(self, star: _Node, at: int, end: int, destination: str, since: int, found: list[int]) -> None:
        """Visit the nodes after a star, from all places from `at` to `end` that it was not activated for in this lookup."""
        length = len(destination)
        last = end
        if end < length:
            if star.before == self._lookup:
                last = star.before_at - 1
                if last < at:
                    return
            star.before = self._lookup
            star.before_at = at
        else:
            if star.after == self._lookup:
                last = star.after_at - 1
                if last < at:
                    return
            else:
                _take(star, since, found)
            star.after = self._lookup
            star.after_at = at
        texts = star.texts
        if texts is not None:
            if len(texts) <= _FEW:
                for node in texts.values():
                    if node.newest >= since:
                        self._search(node, at, last, destination, since, found)
            else:
                self.steps += last + 1 - at
                for place in range(min(last, length - 1), at - 1, -1):  # the first place next, as in `_search`
                    following = texts.get(destination[place])
                    if following is not None:
                        self._visit_text(following, place, destination, since)

    def _search(self, node: _Node, at: int, last: int, destination: str, since: int, found: list[int]) -> None:
        """Visit a node after a star, wherever its label is. The label begins at places from `at` to `last`."""
        self.steps += 1
        label = node.label
        if node.ends:  # as here at the end only
            if at <= len(destination) - len(label) <= last and destination.endswith(label):
                _take(node, since, found)
            return
        places = self._places
        known = len(places)
        place = destination.find(label, at, last + len(label))
        while place >= 0:
            self._nodes.append(node)
            places.append(place + len(label))
            if node.passes(place + len(label) > self._slash):
                break
            self.steps += 1
            place = destination.find(label, place + 1, last + len(label))
        if len(places) > known + 1:  # the first place next: a star there leaves nothing to the others
            places[known:] = places[known:][::-1]


def weight(glob: Glob) -> int:
    """Return how much of a lookup a glob can take, in a trie with other globs and for a long destination.

    It is 1 for a glob with nothing after its star: its nodes are visited at one place each. With texts after stars it is 5, as they are visited at each
    place. For all others it is higher than any limit.
    """
    elements = _ordered(glob.elements)
    stars = singles = 0
    for element in elements:
        if is_star(element):
            stars += 1
        elif len(element) > 1 or element == "?":
            singles += 1
            if stars:
                return _HEAVY
    if stars > _LIGHT_STARS_MAX or stars + singles > _LIGHT_WILDCARDS_MAX:
        return _HEAVY
    return _LIGHTEST if not stars or (stars == 1 and is_star(elements[-1])) else _LIGHT


def _ordered(elements: Elements) -> Elements:
    """Return the elements of a glob with each `?` before the `*` beside it, and no star beside another."""
    plain = "/" in elements  # so that `**` means `*`
    ordered: list[str] = []
    for element in elements:
        if element == "**" and plain:
            element = "*"  # noqa: PLW2901  # it means the same
        last = ordered[-1] if ordered else ""
        if last == "*" and element == "?":
            ordered[-1:] = ["?", "*"]
        elif is_star(last) and is_star(element):
            ordered[-1] = max(last, element)
        else:
            ordered.append(element)
    return tuple(ordered)


def _needs_trying(elements: Elements) -> bool:
    """Return True if a set comes after a star, or `?` right after `**`."""
    starred = False
    before = ""
    for element in elements:
        if starred and element.startswith("[") and len(element) > 1:
            return True
        if before == "**" and element == "?":
            return True
        starred = starred or is_star(element)
        before = element
    return False


def _take(node: _Node, since: int, found: list[int]) -> None:
    """Append the positions from `since` on of the globs that end at a node."""
    positions = node.positions
    if positions is not None and positions[-1] >= since:
        found.extend(positions[bisect_left(positions, since) :] if since else positions)


def _after_text(node: _Node, text: str, newest: int) -> _Node:
    """Return the node that a literal text leads to from a node. Labels that go on differently are divided."""
    while text:
        if node.texts is None:
            node.texts = {}
        following = node.texts.get(text[0])
        if following is None:
            following = node.texts[text[0]] = _Node(text, newest)
            return following
        shared = _shared(text, following.label)
        if shared < len(following.label):
            upper = _Node(following.label[:shared], newest)
            following.label = following.label[shared:]
            upper.texts = {following.label[0]: following}
            node.texts[text[0]] = upper
            following = upper
        following.newest = newest
        text = text[shared:]
        node = following
    return node


def _shared(one: str, other: str) -> int:
    """Count the characters with which both texts begin."""
    most = min(len(one), len(other))
    for at in range(most):
        if one[at] != other[at]:
            return at
    return most


def _after_wildcard(node: _Node, element: str, newest: int) -> _Node:
    """Return the node that a wildcard leads to from a node."""
    if element == "*":
        if node.star is None:
            node.star = _Node("", newest)
        return node.star
    if element == "**":
        if node.stars is None:
            node.stars = _Node("", newest)
        return node.stars
    if element == "?":
        if node.single is None:
            node.single = _Node("", newest)
        return node.single
    if node.sets is None:
        node.sets = []
    for one in node.sets:
        if one.element == element:
            return one.node
    added = _Set(element, _Node("", newest))
    node.sets.append(added)
    return added.node

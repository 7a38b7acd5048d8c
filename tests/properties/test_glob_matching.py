"""Globs against a reference that tries everything, and the match index against trying every glob."""

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from maxam.broker.destinations import MatchIndex
from maxam.broker.glob_trie import GlobTrie
from maxam.config import Limits
from maxam.errors import GlobError
from maxam.glob_sets import find_destination
from maxam.globs import Glob, _parse, compile_glob, destination_problem
from tests.support.glob_reference import matches, share_destination

LIMITS = Limits()

_SETS = ["[ab]", "[!a]", "[a-c]", "[.]", "[!.]", "[.-a]", "[]b]", "[^a]", "[é]", "[!-~]", "[ ]"]
_PIECES = st.sampled_from(["a", "b", "a", "b", "A", ".", ".", "/", "/", "*", "*", "**", "**", "?", "é", " ", *_SETS])
GLOBS = st.lists(_PIECES, max_size=9).map("".join)
SHORT_GLOBS = st.builds(
    lambda store, middle, tokens: "".join((*store, middle, *tokens)),
    st.lists(st.sampled_from(["a", "b", "*", "**", "?", "[ab]", "[!a]"]), min_size=1, max_size=3),
    st.sampled_from(["/", "**"]),
    st.lists(st.sampled_from(["a", "b", ".", "*", "**", "?", "[ab]", "[!a]", "[.b]"]), min_size=1, max_size=4),
)
TOKENS = st.text("ab^-é", min_size=1, max_size=4)
DESTINATIONS = st.builds(
    lambda store, tokens: f"{store}/{'.'.join(tokens)}",
    st.text("abA", min_size=1, max_size=4),
    st.lists(TOKENS, min_size=1, max_size=4),
)


def compiled(text: str) -> Glob | None:
    """Compile, or give None for a refused glob."""
    try:
        return compile_glob(text, LIMITS)
    except GlobError:
        return None


def parsed(text: str) -> tuple[str, ...] | None:
    """Parse, or give None for a malformed glob."""
    try:
        return _parse(text)
    except GlobError:
        return None


@st.composite
def globs_near(draw: st.DrawFn, destination: str) -> str:
    """Turn pieces of a destination into wildcards, so that many globs match."""
    wild = st.sampled_from(["*", "**", "?", "[!/]", ""])
    return "".join(draw(wild) if draw(st.integers(0, 3)) == 0 else character for character in destination)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data(), DESTINATIONS)
def test_matches_as_the_reference_does(data: st.DataObject, destination: str) -> None:
    """A glob matches a well-formed destination exactly when the definition does."""
    text = data.draw(st.one_of(GLOBS, globs_near(destination)))
    glob = compiled(text)
    if glob is not None:
        assert glob.matches(destination) == matches(_parse(text), destination)
        if glob.matches(destination):
            assert destination.startswith(glob.prefix)
            assert set(glob.literals) <= set(destination.replace("/", ".").split("."))
    elif (elements := parsed(text)) is not None:
        assert not matches(elements, destination)


@settings(max_examples=300)
@given(GLOBS)
def test_a_glob_is_refused_exactly_when_it_shares_no_destination_with_all(text: str) -> None:
    """The sample that decides whether a glob can match agrees with trying all states of the glob and the grammar."""
    elements = parsed(text)
    assume(elements is not None)
    assert elements is not None
    assert (compiled(text) is not None) == share_destination(elements, ("**",))


# Any character but a, b, `.` and `/` is treated by the short globs as `c` is.
WORLD_BYTES_MAX = 6
WORLD = [
    text
    for size in range(3, WORLD_BYTES_MAX + 1)
    for text in map("".join, product("abc./", repeat=size))
    if destination_problem(text.encode(), WORLD_BYTES_MAX) is None
]


@pytest.mark.slow
@settings(max_examples=200)
@given(SHORT_GLOBS, SHORT_GLOBS)
def test_overlap_is_what_trying_all_destinations_finds(one: str, two: str) -> None:
    """Of all destinations of at most 6 bytes, the search finds one of the shortest that two globs match."""
    a, b = compiled(one), compiled(two)
    assume(a is not None and b is not None)
    assert a is not None
    assert b is not None
    both = [text for text in WORLD if a.matches(text) and b.matches(text)]
    found = find_destination([[a], [b]])
    if found is None or len(found) > WORLD_BYTES_MAX:
        assert not both
    else:
        assert a.matches(found)
        assert b.matches(found)
        assert len(found) == len(both[0])


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data(), st.lists(DESTINATIONS, min_size=1, max_size=4))
def test_a_trie_finds_what_trying_each_glob_finds(data: st.DataObject, destinations: list[str]) -> None:
    """Of globs near to destinations and others, from any position on, a lookup finds exactly those that match."""
    near = st.sampled_from(destinations).flatmap(globs_near)
    globs = [one for one in map(compiled, data.draw(st.lists(st.one_of(near, SHORT_GLOBS, GLOBS), max_size=30))) if one]
    trie = GlobTrie()
    for position, one in enumerate(globs):
        trie.add(one, position)
    since = data.draw(st.integers(0, len(globs)))
    for destination in destinations:
        found: list[int] = []
        assert trie.collect(destination, since, found, 1 << 60)
        assert sorted(found) == [p for p, one in enumerate(globs) if p >= since and one.matches(destination)]


@pytest.mark.slow
def test_a_trie_of_all_short_globs_finds_what_trying_each_finds() -> None:
    """All globs of up to four elements, over all destinations of up to six characters."""
    pieces = ("a", "b", ".", "/", "*", "**", "?", "[!a]")
    texts = {"".join(one) for size in range(1, 5) for one in product(pieces, repeat=size)}
    globs = [one for one in map(compiled, sorted(texts)) if one is not None]
    trie = GlobTrie()
    for position, one in enumerate(globs):
        trie.add(one, position)
    for destination in WORLD[::3]:
        found: list[int] = []
        trie.collect(destination, 0, found, 1 << 60)
        assert sorted(found) == [position for position, one in enumerate(globs) if one.matches(destination)]


class IndexMachine(RuleBasedStateMachine):
    """Adds, discards and looks up, beside a plain list that tries every glob."""

    items: Bundle[int] = Bundle("items")

    @initialize()
    def begin(self) -> None:
        """Start empty, with a model that is a plain dictionary."""
        self.index: MatchIndex[int] = MatchIndex()
        self.model: dict[int, Glob] = {}
        self.next = 0
        self.kept: dict[str, tuple[int, int, list[int]]] = {}

    @rule(target=items, glob=st.sampled_from(["X/*", "**", "X/a.*", "X/b.*", "X/*.a", "X/*.b", "*/c", "X/a.b", "**.c"]))
    def add(self, glob: str) -> int:
        """A client subscribes."""
        compiled_glob = compile_glob(glob, LIMITS)
        self.next += 1
        self.index.add(compiled_glob, self.next, "even" if self.next % 2 == 0 else "odd")
        self.model[self.next] = compiled_glob
        return self.next

    @rule()
    def add_many(self) -> None:
        """A client subscribes with many globs."""
        for letter in "abcdefghijklmnopqrstuvwxyz":
            self.add(f"X/*{letter}*")

    @rule(count=st.integers(1, 150))
    def churn(self, count: int) -> None:
        """Clients come and go."""
        glob = compile_glob("X/a.*", LIMITS)
        for item in range(-count, 0):
            self.index.add(glob, item)
        for item in range(-count, 0):
            self.index.discard(item)

    @rule(item=consumes(items))
    def discard(self, item: int) -> None:
        """A client goes; going twice changes nothing."""
        self.index.discard(item)
        self.index.discard(item)
        del self.model[item]

    @rule(destination=st.sampled_from(["X/a.b", "X/b.a.c", "Y/c", "X/c", "Y/d", "X/a.b.c", "X/X"]))
    def look_up(self, destination: str) -> None:
        """A lookup from nothing and one from what was kept both find what trying every glob finds."""
        expected = [item for item, glob in self.model.items() if glob.matches(destination)]
        assert self.index.matches(destination) == expected
        odd = self.index.matches(destination, 0, lambda owner, _: owner == "odd")
        assert [item for item in odd if item % 2] == [item for item in expected if item % 2]
        epoch, position, known = self.kept.get(destination, (self.index.epoch, 0, []))
        if epoch != self.index.epoch:
            position, known = 0, []
        newer = self.index.matches(destination, position)
        added = [self.index.at(one) for one in range(position, self.index.position)]
        assert newer == [one[1] for one in added if one is not None and one[0].matches(destination)]
        known = [item for item in known if item in self.model] + newer
        assert known == expected
        self.kept[destination] = (self.index.epoch, self.index.position, known)

    @invariant()
    def bounded(self) -> None:
        """Nothing grows with what came and went."""
        assert len(self.index) == len(self.model)
        assert self.index.position <= 2 * len(self.model) + 65


IndexMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestIndex = IndexMachine.TestCase

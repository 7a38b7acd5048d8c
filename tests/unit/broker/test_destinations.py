"""The index over globs: order, increments, compaction."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.broker.destinations import STEPS_PER_ITEM, MatchIndex
from maxam.broker.glob_trie import GlobTrie, weight
from maxam.config import Limits
from maxam.globs import Glob, compile_glob


def glob(text: str) -> Glob:
    """Compile with the default limits."""
    return compile_glob(text, Limits())


def filled(*texts: str) -> MatchIndex[int]:
    """Make an index of items numbered from 0."""
    index: MatchIndex[int] = MatchIndex()
    for item, text in enumerate(texts):
        index.add(glob(text), item)
    return index


MANY = [f"X/EGM.*.{number}.*" for number in range(100)]


def test_matches_come_in_order_of_adding() -> None:
    """Items of all buckets, and those of one glob added at different times, come in the order of adding."""
    index = filled("X/a.*", *MANY, "**", "X/*.7.*", "X/a.*", "X/b.*", "*/a.*")
    assert index.matches("X/a.7.c") == [0, 101, 102, 103, 105]


def test_a_repeated_segment_gives_an_item_once() -> None:
    """A destination that holds a segment twice finds each item once."""
    assert filled("X/a.*", *MANY).matches("X/a.a.a") == [0]


def test_store_and_token_of_the_same_name_are_told_apart() -> None:
    """The index finds candidates only; the glob decides."""
    assert filled("X/*", *MANY, "Y/X.*").matches("Y/X.a") == [101]


def test_increments_add_up_to_all() -> None:
    """The additions since a position, few or many, complete the matches found before it."""
    index = filled(*MANY, "X/a")
    position = index.position
    known = index.matches("X/a")
    index.add(glob("X/*"), 500)
    assert index.matches("X/a", position) == [500]
    assert index.at(position) == (glob("X/*"), 500)
    for item, text in enumerate(MANY, 1000):
        index.add(glob(text), item)
    index.add(glob("X/a"), 600)
    assert index.matches("X/a", position) == [500, 600]
    assert known + index.matches("X/a", position) == index.matches("X/a")
    assert index.matches("X/a", index.position) == []


def test_adding_twice_is_a_mistake() -> None:
    """An item stands under one glob; adding it again changes nothing and raises."""
    index = filled("X/a")
    with pytest.raises(ValueError, match="already"):
        index.add(glob("X/b"), 0)
    assert index.matches("X/b") == []
    assert len(index) == 1


def test_a_discarded_item_is_never_found_and_may_come_back() -> None:
    """After a discard an item is not found, and added again it stands last."""
    index = filled("X/a", "X/*")
    index.discard(0)
    index.discard(0)
    assert index.matches("X/a") == [1]
    index.add(glob("X/a"), 0)
    assert index.matches("X/a") == [1, 0]


def test_reconnecting_clients_leave_nothing_behind() -> None:
    """Ten thousand comings and goings leave the index as small as it was, and each renumbering changes the epoch."""
    index = filled(*MANY)
    before = index.epoch
    for item in range(1000, 11_000):
        index.add(glob(f"X/EGM.Q{item % 50}.*"), item)
        position, epoch = index.position, index.epoch
        index.discard(item)
        assert (index.position < position) == (index.epoch != epoch)
    assert index.epoch > before
    assert len(index) == 100
    assert index.position <= 2 * 100 + 1
    assert index.matches("X/EGM.Q.7.S") == [7]


@pytest.mark.parametrize("pattern", ["X/EGM.*.{}.EGMStatus", "X/E?M.*-{}.EGM*", "X/*M*{}x*", "**{}x", "X/[A-E]GM.{}*y"])
def test_a_topic_is_not_compared_with_each_glob(pattern: str) -> None:
    """With three thousand globs that share beginning and end, a lookup takes some hundred steps at most."""
    index = filled(*(pattern.format(number) for number in range(3_000)))
    trie = index._owned[""].trie
    index.matches("X/EGM.Q.00077-00001.EGMStatus")
    assert trie.steps <= 200


def test_one_glob_of_many_clients_is_kept_once() -> None:
    """All items of one glob are found."""
    index = filled(*["X/EGM.*"] * 1000)
    assert index.matches("X/EGM.Q") == list(range(1000))


def test_the_globs_of_an_owner_that_may_not_see_a_topic_are_left_out() -> None:
    """However many they are, they are not searched; the items of others with the same globs are found."""
    index: MatchIndex[int] = MatchIndex()
    for item, text in enumerate(MANY):
        index.add(glob(text.replace("EGM", "*")), item, "insider")
    index.add(glob("**[a-z]"), 500, "insider")
    index.add(glob("**"), 501, "honest")
    asked: list[tuple[str, str]] = []

    def may_see(owner: str, destination: str) -> bool:
        asked.append((owner, destination))
        return owner == "honest"

    assert index.matches("X/a.b.77.c", 0, may_see) == [501]
    assert asked == [("insider", "X/a.b.77.c")]
    assert index.matches("X/a.b.77.c") == [77, 500, 501]


STEPS = "abcdefgh"
HOSTILE = {
    "subsequences": [f"X/*{'*'.join(text)}*#" for text in combinations(STEPS * 2, 5)],
    "stars and question marks": ["X/" + "".join(text) + "#" for text in product(("*a", "?", "*?b"), repeat=8)],
    "sets": [f"X/*[{a}-z]*[{b}-z]*[{c}-z]*#" for a, b, c in product(STEPS, repeat=3)],
    "a*a*a*b": ["X/*" + "a*" * stars + end for stars in range(1, 31) for end in STEPS[1:]],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_no_set_of_globs_takes_more_than_its_steps(kind: str) -> None:
    """A search that would visit most of the globs is given up after the steps that it may take, and all that match are found."""
    texts = list(dict.fromkeys(HOSTILE[kind]))
    index: MatchIndex[int] = MatchIndex()
    for item, text in enumerate(texts):
        index.add(glob(text), item, "insider")
    index.add(glob("X/*"), -1, "honest")
    destination = "X/" + STEPS * 2 + "a" * 30
    trie = index._owned["insider"].trie
    matching = [item for item, text in enumerate(texts) if glob(text).matches(destination)]
    assert index.matches(destination) == [*matching, -1]
    assert trie.steps <= STEPS_PER_ITEM * (len(texts) + len(matching)) + 8 * (len(destination) + 1)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_node_is_visited_once_for_each_place(kind: str) -> None:
    """The work grows with the globs and the length of the destination, and with nothing else, however the globs combine stars."""
    globs = [glob(text) for text in dict.fromkeys(HOSTILE[kind])]
    trie = GlobTrie()
    for position, one in enumerate(globs):
        trie.add(one, position)
    destination = "X/" + STEPS * 2 + "a" * 30
    assert trie.collect(destination, 0, [], 1 << 60)
    elements = sum(len(one.elements) for one in globs)
    assert trie.steps <= 3 * elements * (len(destination) + 1)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("X/a", 0),
        ("X/EGM.*", 0),
        ("**", 0),
        ("X/?.[ab].*", 0),
        ("X/*.5.*", 1),
        ("X/EGM.*.*.EGMStatus", 1),
        ("**a**b", 1),
        ("X/*a*b*c*", 2),
        ("X/*a?", 2),
        ("X/*[ab]", 2),
        ("X/" + "?a" * 9, 2),
    ],
)
def test_globs_are_weighed_by_what_a_lookup_can_take(text: str, order: int) -> None:
    """Lightest are globs with nothing after their star, then those with texts after it. All others are never searched for with those of others."""
    least, light, heavy = (weight(glob(each)) for each in ("**", "**a", "**[a]"))
    assert least < light < heavy
    assert weight(glob(text)) == (least, light, heavy)[order]


FEW = [
    ["X/*a*aa", "X/*aaa*a*ba", "X/*a*aaa*ba", "X/a??aaaa?aaaa???*"],
    ["X/*aa*aaa*b", "X/*aaa*a*aaaa", "X/*a*a*ab", "X/??aa?"],
    ["X/*" + "a*" * stars + "b" for stars in range(30)],
    [f"X/*{'a' * length}" for length in range(1, 20)],
    [f"X/*{'a' * length}*?" for length in range(1, 20)],
    ["X/" + "?a" * length + "*" for length in range(20)],
]


def steps_of_few(texts: list[str], destination: str) -> int:
    """Return the steps of a lookup in the trie of all, with some globs of one owner and harmless ones of others."""
    index: MatchIndex[int] = MatchIndex()
    for item, text in enumerate(texts):
        index.add(glob(text), item, "insider")
    for item in range(20):
        index.add(glob(f"X/none.{item}"), 1_000 + item, f"honest-{item}")
    assert index.matches(destination) == [at for at, text in enumerate(texts) if glob(text).matches(destination)]
    return index._common.steps


@pytest.mark.parametrize("texts", FEW)
@pytest.mark.parametrize("part", ["a", "ab", "aab"])
def test_the_first_globs_of_an_owner_take_a_bounded_time(texts: list[str], part: str) -> None:
    """The globs of one owner that share a trie with those of others take six steps at most for each character of a topic."""
    destination = "X/" + (part * 500)[:490]
    assert steps_of_few(texts, destination) <= 6 * len(destination) + 32


LABEL = st.sampled_from(["a", "aa", "aaa", "ab", "b", "ba", "*", "**", "?", "[ab]"])


@given(st.lists(st.lists(LABEL, min_size=1, max_size=6).map("".join), max_size=20))
def test_no_choice_of_the_first_globs_takes_longer(patterns: list[str]) -> None:
    """The same for any globs."""
    destination = "X/" + "aab" * 20
    assert steps_of_few([f"X/{pattern}" for pattern in patterns], destination) <= 6 * len(destination) + 32

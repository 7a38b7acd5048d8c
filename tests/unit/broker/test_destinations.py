"""The index over globs: order, increments, compaction."""

import pytest

from maxam.broker.destinations import MatchIndex
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
    assert index.added_since(position) == [(glob("X/*"), 500)]
    for item, text in enumerate(MANY, 1000):
        index.add(glob(text), item)
    index.add(glob("X/a"), 600)
    assert index.matches("X/a", position) == [500, 600]
    assert known + index.matches("X/a", position) == index.matches("X/a")
    assert index.matches("X/a", index.position) == []
    assert index.added_since(index.position) == []


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
    assert len(index._groups) <= 200
    assert sum(map(len, index._buckets.values())) + len(index._anywhere) == len(index._groups)
    assert index.matches("X/EGM.Q.7.S") == [7]


def test_globs_are_filed_under_what_few_of_them_hold() -> None:
    """With a thousand globs that share store and type, a topic is compared with a few of them only."""
    index = filled(*(f"X/EGM.*.{number}.EGMStatus" for number in range(1000)))
    compared = [len(index._buckets.get(segment, [])) for segment in ("X", "EGM", "Q", "7", "EGMStatus")]
    assert sum(compared) <= 3


def test_one_glob_of_many_clients_is_kept_once() -> None:
    """A thousand items of one glob make one group, and all of them are found."""
    index = filled(*["X/EGM.*"] * 1000)
    assert len(index._groups) == 1
    assert index.matches("X/EGM.Q") == list(range(1000))


def test_the_globs_of_an_owner_that_may_not_see_a_topic_are_left_out() -> None:
    """However many they are, none of them is tried; a glob that another owner has too is, and finds the items of both."""
    index: MatchIndex[int] = MatchIndex()
    for item, text in enumerate(MANY):
        index.add(glob(text.replace("EGM", "*")), item, "insider")
    index.add(glob("**"), 500, "insider")
    index.add(glob("**"), 501, "honest")
    asked: list[tuple[str, str]] = []

    def may_see(owner: str, destination: str) -> bool:
        asked.append((owner, destination))
        return owner == "honest"

    assert index.matches("X/a.b.7.c", 0, may_see) == [7, 500, 501]
    assert asked == []  # only one of its globs holds the segment 7: it is tried at once
    for item in range(1000, 1020):
        index.add(glob(f"X/a*.b*.*{item}*"), item, "insider")
    assert index.matches("X/a.b.7.1000", 0, may_see) == [7, 500, 501]
    assert asked == [("insider", "X/a.b.7.1000")]

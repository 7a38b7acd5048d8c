"""`glob_sets.find_destination` decides exactly whether globs grant what others do not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.config import Limits
from maxam.errors import GlobError
from maxam.glob_sets import find_destination, overlap
from maxam.globs import Glob, compile_glob, destination_problem

LIMITS = Limits()
PIECES = ["a", "b", "aa", "*", "**", "?", ".", "[ab]", "[!a]"]
STORES = ["X/", "*/", "?/", "**", "[XY]/"]


def glob(text: str) -> Glob:
    """Compile with the default limits."""
    return compile_glob(text, LIMITS)


def _compiles(text: str) -> bool:
    try:
        compile_glob(text, LIMITS)
    except GlobError:
        return False
    return True


def _any(row: list[Glob], destination: str) -> bool:
    return any(one.matches(destination) for one in row)


some_globs = (
    st.tuples(st.sampled_from(STORES), st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join))
    .map("".join)
    .filter(_compiles)
    .map(glob)
)
rows = st.lists(some_globs, max_size=3)


@settings(max_examples=60, deadline=None)
@given(first=rows, second=rows, third=rows, probe=some_globs)
def test_what_is_found_is_granted_and_when_nothing_is_found_nothing_is(
    first: list[Glob], second: list[Glob], third: list[Glob], probe: Glob
) -> None:
    """A destination that is found matches each row within and not every row outside; if none is, no other one does."""
    found = find_destination([first, second], [third])
    if found is not None:
        assert destination_problem(found.encode(), LIMITS.destination_bytes_max) is None
        assert _any(first, found)
        assert _any(second, found)
        assert not _any(third, found)
        return
    for row in (first, second):
        for one in row:
            sample = find_destination([[one], [probe]])
            assert sample is None or not (_any(first, sample) and _any(second, sample)) or _any(third, sample)


@settings(max_examples=60, deadline=None)
@given(one=some_globs, other=some_globs)
def test_two_globs_share_a_destination_as_overlaps_says(one: Glob, other: Glob) -> None:
    """Two ways of deciding it agree."""
    assert (find_destination([[one], [other]]) is not None) == overlap(one, other)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("X/EGM.*", "X/EGM.**"),  # there is only one slash
        ("X/**", "X/EGM.*.EGMStatus"),
        ("**", "?/[!a]*"),
        ("X/*a*", "X/*ba*"),
        ("X/[a-z]*", "X/[b-d]"),
    ],
)
def test_a_wider_glob_covers_a_narrower_one(wide: str, narrow: str) -> None:
    """And not the other way round, unless both are the same."""
    assert find_destination([[glob(narrow)]], [[glob(wide)]]) is None
    assert (find_destination([[glob(wide)]], [[glob(narrow)]]) is None) == (wide == "X/EGM.*")


def test_several_globs_cover_what_none_of_them_covers_alone() -> None:
    """The union counts."""
    parts = [glob("X/[!b]*"), glob("X/b*")]
    assert find_destination([[glob("X/*")]], [parts]) is None
    assert find_destination([[glob("X/*")]], [parts[:1]]) == "X/b"


def test_no_rows_and_empty_rows() -> None:
    """An empty row grants nothing; no row outside takes nothing away."""
    assert find_destination([[]]) is None
    assert find_destination([[glob("X/a")]]) == "X/a"
    assert find_destination([[glob("X/a")]], [[]]) == "X/a"
    assert find_destination([[glob("X/a")]], [[glob("X/a")], []]) == "X/a"


def test_globs_made_to_be_intricate_end_the_search() -> None:
    """The search ends before it has seen exponentially many states."""
    with pytest.raises(GlobError, match="too complex"):
        find_destination([[glob("X/*a" + "?" * 24)]], [[glob("X/*b" + "?" * 24)]], 2000)

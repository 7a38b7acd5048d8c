"""`glob_sets.GlobSet` against a search of all states of two globs, and the cost of one comparison."""

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from maxam.config import Limits
from maxam.errors import GlobError
from maxam.glob_sets import GlobSet
from maxam.globs import Glob, compile_glob
from tests.support.glob_reference import share_destination

LIMITS = Limits()

_SETS = ["[ab]", "[!a]", "[a-c]", "[.]", "[!.]", "[.-a]", "[]b]", "[^a]", "[é]", "[!-~]", "[.b]", "[ é]", "[0-9]"]
_PIECES = st.sampled_from(["a", "b", "a", "b", ".", ".", ".", "*", "**", "?", "é", *_SETS])
GLOBS = st.builds(
    lambda store, middle, tokens: "".join((*store, middle, *tokens)),
    st.lists(st.sampled_from(["a", "b", "a", "*", "**", "?", "[ab]", "[!a]"]), max_size=4),
    st.sampled_from(["/", "/", "**"]),
    st.lists(_PIECES, max_size=8),
)


def compiled(text: str) -> Glob | None:
    """Compile, or give None for a refused glob."""
    try:
        return compile_glob(text, LIMITS)
    except GlobError:
        return None


def exactly(globs: list[Glob], other: Glob) -> bool:
    """Return what the search of all states of two globs finds, whatever the length of the store."""
    return any(share_destination(glob.elements, other.elements, None) for glob in globs)


@pytest.mark.slow
@settings(max_examples=400)
@given(st.lists(GLOBS, max_size=4), GLOBS)
def test_a_union_overlaps_exactly_when_one_of_its_globs_does(granted: list[str], wanted: str) -> None:
    """For globs of ordinary lengths the answer is that of the exact search."""
    other = compiled(wanted)
    assume(other is not None)
    assert other is not None
    globs = [glob for glob in map(compiled, granted) if glob is not None]
    assert GlobSet(globs).overlaps(other) == exactly(globs, other)


def hostile(seed: int) -> Glob:
    """Return a glob of 505 bytes with 31 wildcards."""
    rnd = random.Random(seed)  # noqa: S311 - the same globs each time
    text = "X/"
    for _ in range(31):
        text += rnd.choice(["*", "?", "[bd]", "[!q]", "**"]) + rnd.choice("abcdefgh")
    while len(text) < 500:
        text += rnd.choice("abcdefgh.x")
        text = text.replace("..", ".a")
    return compile_glob(text.rstrip(".") + "Zz", LIMITS)


@pytest.mark.parametrize("seed", range(12))
def test_a_long_glob_is_never_said_to_miss_what_it_matches(seed: int) -> None:
    """Where the exact search finds a destination of two hostile globs, the union does; it compares each element once."""
    glob = hostile(seed)
    for granted in (
        "X/EGM.*.Meters",
        "X/*Z?",
        "X/?*[a-c]*Zz",
        "X/*.*.*",
        "X/*a*[bd]?b[!q]*Z?",
        "X/" + "?" * 30,
    ):
        one = compiled(granted)
        assert one is not None
        union = GlobSet([one])
        found = union.overlaps(glob)
        assert found or not exactly([one], glob)
        assert union.steps <= len(glob.elements)


def test_many_granted_globs_cost_one_pass_over_a_glob() -> None:
    """Elements compared do not grow with the number of granted globs, nor with the wildcards of the glob."""
    names = [f"Name{number}" for number in range(100)]
    union = GlobSet([compile_glob(f"X/EGM.*.{name}", LIMITS) for name in names])
    for number in range(20):
        glob = compile_glob("X/EGM." + "*a?b" * 15 + "c" * 400 + f"{number:02d}[Z]z", LIMITS)
        before = union.steps
        assert not union.overlaps(glob)
        assert union.steps - before <= len(glob.elements)


def test_prefixes_suffixes_and_samples_decide_what_they_can() -> None:
    """The usual globs of clients need no step at all."""
    union = GlobSet([compile_glob(text, LIMITS) for text in ("X/EGM.*.Meters", "X/EGM.*.Status", "Y/**")])
    for text, overlapping in (
        ("X/EGM.17.Meters", True),
        ("X/EGM.*.Status", True),
        ("X/EGM.*.Jackpot", False),
        ("Q/**", False),
        ("Y/a", True),
        ("X/Table.*.Meters", False),
    ):
        assert union.overlaps(compile_glob(text, LIMITS)) is overlapping
    assert union.steps == 0

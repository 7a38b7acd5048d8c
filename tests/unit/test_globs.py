"""The grammar of destinations and globs, sentence by sentence of docs/protocol.md "Destinations"."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam import globs
from maxam.config import Limits
from maxam.errors import GlobError
from maxam.glob_sets import find_destination, overlap
from maxam.globs import Glob, _may_stand_in_token, compile_glob, destination_problem

LIMITS = Limits()
BYTES_MAX = LIMITS.destination_bytes_max


@pytest.mark.parametrize(
    "destination",
    [
        "X/EGM",
        "X/EGM.Q.12345.EGMStatus",
        "a/b",
        "ABCDEFGHIJKLMNOP/x",
        "09_-/x",
        "X/urn:egm:7",
        "X/a!\"#$%&'()+,-;<=>@^_`{|}~",
        "X/é",
        "X/カジノ.卓.7",
        "X/\N{SLOT MACHINE}",
        "X/e\N{COMBINING ACUTE ACCENT}",
        "X/" + "a" * 510,
        "X/" + "é" * 255,
    ],
)
def test_well_formed(destination: str) -> None:
    """Store, slash and dot-separated tokens of allowed characters up to 512 bytes are a destination."""
    assert destination_problem(destination.encode(), BYTES_MAX) is None


@pytest.mark.parametrize(
    ("destination", "reason"),
    [
        (b"", "holds no '/'"),
        (b"X", "holds no '/'"),
        (b"X.EGM", "holds no '/'"),
        (b"/EGM", "store before the '/' is empty"),
        (b"X/", "no token follows"),
        (b"X/a/b", "more than one '/'"),
        (b"X//b", "more than one '/'"),
        (b"/X/b", "more than one '/'"),
        (b"X.Y/a", "store before the '/' holds '.'"),
        (b"X:Y/a", "store before the '/' holds ':'"),
        ("É/a".encode(), "store before the '/' holds 'É'"),
        (b"ABCDEFGHIJKLMNOPQ/x", "longer than 16"),
        (b"X/.a", "first token is empty"),
        (b"X/a.", "last token is empty"),
        (b"X/.", "first token is empty"),
        (b"X/a..b", "a token is empty"),
        (b"X/a b", "U+0020 (Unicode category Zs)"),
        (b"X/a\n", "U+000A (Unicode category Cc)"),
        (b"X/\x00", "U+0000"),
        (b"X/\x7f", "U+007F"),
        ("X/\N{NO-BREAK SPACE}".encode(), "U+00A0 (Unicode category Zs)"),
        ("X/\N{ZERO WIDTH JOINER}".encode(), "U+200D (Unicode category Cf)"),
        ("X/\N{LINE SEPARATOR}".encode(), "U+2028 (Unicode category Zl)"),
        ("X/\ue000".encode(), "U+E000 (Unicode category Co)"),
        ("X/\uffff".encode(), "U+FFFF (Unicode category Cn)"),
        *((b"X/a" + bytes([wild]), f"a token holds {chr(wild)!r}") for wild in b"\\*?[]"),
        (b"X/\xff", "not UTF-8 at byte 2"),
        (b"X/\xed\xa0\x80", "not UTF-8"),
        (b"X/" + b"a" * 511, "513 bytes, at most 512"),
        ("X/" + "é" * 256, "514 bytes"),
    ],
)
def test_ill_formed(destination: bytes | str, reason: str) -> None:
    """Anything else is refused with the reason."""
    encoded = destination if isinstance(destination, bytes) else destination.encode()
    problem = destination_problem(encoded, BYTES_MAX)
    assert problem is not None
    assert reason in problem
    assert "\n" not in problem


def test_token_characters_are_those_outside_the_categories() -> None:
    """A token may hold exactly the code points outside C* and Z* that are none of the grammar's own."""
    for code in range(0x110000):
        character = chr(code)
        allowed = unicodedata.category(character)[0] not in "CZ" and character not in "./\\*?[]"
        assert (_may_stand_in_token(character) and character != ".") == allowed


def test_plain_and_general_checks_agree() -> None:
    """For every ASCII character in store and token, the fast check agrees with the general one."""
    for code in range(128):
        for text in (f"{chr(code)}/a", f"X/{chr(code)}", f"X/a{chr(code)}b"):
            general = destination_problem(f"{text}é".encode(), BYTES_MAX)
            if not text.endswith("."):
                assert (destination_problem(text.encode(), BYTES_MAX) is None) == (general is None), text


@pytest.mark.parametrize(
    ("glob", "matching", "other"),
    [
        ("X/EGM", ["X/EGM"], ["X/EGM.Q", "X/EG", "x/egm"]),
        ("X/EGM.*", ["X/EGM.Q", "X/EGM.Q.7.EGMStatus"], ["X/EGM", "Y/EGM.Q", "X/EGMS.Q"]),
        ("X/EGM.Q.*.EGMStatus", ["X/EGM.Q.7.EGMStatus", "X/EGM.Q.7.8.EGMStatus"], ["X/EGM.Q.7.EGMMeter"]),
        ("*/a", ["X/a"], ["X/b"]),
        ("X*/a", ["X/a", "XY/a"], ["Y/a"]),
        ("**", ["X/a", "YY/b.c"], ["X", "a/b/c"]),
        ("***", ["X/a"], []),
        ("**.S", ["X/a.S", "Y/b.c.S"], ["X/S", "X/a.St"]),
        ("**/a**", ["X/a", "X/ab.c"], ["X/b"]),
        ("X**S", ["X/S", "XY/a.S", "X/SS"], ["X/a", "Y/S"]),
        ("**a*b**", ["X/ab", "a/xab", "ab/x", "aXb/x", "X/a.b"], ["a/b", "X/ba"]),
        ("**a**b**", ["a/b", "ab/x", "X/ab"], ["b/a", "X/ba"]),
        ("X/?", ["X/a", "X/é"], ["X/ab"]),
        ("?/a?", ["X/ab"], ["XY/ab", "X/a"]),
        ("X/[abc]", ["X/a", "X/c"], ["X/d", "X/ab"]),
        ("X/[a-c]", ["X/b"], ["X/d", "X/-"]),
        ("X/[à-é]", ["X/é", "X/á"], ["X/e"]),
        ("X/[!a]", ["X/b", "X/!"], ["X/a"]),
        ("X/[]a]", ["X/a"], ["X/b"]),
        ("X/[!]a]", ["X/b"], ["X/a"]),
        ("X/[^a]", ["X/a", "X/^"], ["X/b"]),
        ("X/[a!]", ["X/a", "X/!"], ["X/b"]),
        ("X/[-a]", ["X/-", "X/a"], ["X/b"]),
        ("X/[a-]", ["X/-", "X/a"], ["X/b"]),
        ("X/[!-]", ["X/b"], ["X/-"]),
        ("X/[a-c-e]", ["X/b", "X/-", "X/e"], ["X/d"]),
        ("X/a[.]b", ["X/a.b"], ["X/ab"]),
        ("X/[--a&&~~||]", ["X/&", "X/~", "X/|", "X/-", "X/0"], ["X/b"]),
        ("X/a+(b)|{c}$^", ["X/a+(b)|{c}$^"], ["X/aa"]),
    ],
)
def test_matching(glob: str, matching: list[str], other: list[str]) -> None:
    """A glob matches the whole destination as protocol.md specifies."""
    compiled = compile_glob(glob, LIMITS)
    assert [text for text in matching if not compiled.matches(text)] == []
    assert [text for text in other if compiled.matches(text)] == []


def test_no_set_matches_a_slash() -> None:
    """Neither a negated set nor a range over it nor `?` takes the `/`."""
    for glob in ("X[!b]a**", "X[.-0]a**", "X?a**"):
        assert not compile_glob(glob, LIMITS).matches("X/a.b/c")
        assert not compile_glob(glob, LIMITS).matches("X/ab")


@pytest.mark.parametrize(
    ("glob", "reason"),
    [
        ("", "it is empty"),
        ("X", "no '/' and no '**'"),
        ("*", "no '/' and no '**'"),
        ("EGM.*", "no '/' and no '**'"),
        ("X/a/b", "more than one '/'"),
        ("**/a/**", "more than one '/'"),
        ("/a", "store before the '/' is empty"),
        ("ABCDEFGHIJKLMNOPQ/*", "longer than 16"),
        ("?????????????????/*", "longer than 16"),
        ("X.Y*/a", "store before the '/' holds '.'"),
        ("a.b**", "store before the '/' holds '.'"),
        ("X/", "no token follows"),
        ("X/.*", "first token is empty"),
        ("X/*.", "last token is empty"),
        ("X/*..*", "a token is empty"),
        ("X/a[.].b", "a token is empty"),
        ("X/a b*", "U+0020"),
        ("X/*\t", "U+0009"),
        ("X/*]", "holds ']'"),
        ("X/*\\*", r"holds '\\'"),
        ("X/[ ]", "the set '[ ]' holds no character"),
        ("X/[/]", "the set '[/]' holds no character"),
        ("X/[\ue000-\uf8ff]", "holds no character"),
        ("X[é]/a", "store before the '/' holds 'é'"),
        ("**." + "a" * 509, "at least 513 bytes"),
        ("X/[a", "not closed"),
        ("X/[", "not closed"),
        ("X/[]", "not closed"),
        ("X/[!]", "not closed"),
        ("X/[z-a]", "reversed"),
        ("X/" + "a" * 511, "513 bytes, at most 512"),
        ("X/" + "?*" * 17, "34 wildcards, at most 32"),
    ],
)
def test_refused(glob: str, reason: str) -> None:
    """A glob that is malformed, too complex or cannot match any destination is refused with the reason."""
    with pytest.raises(GlobError) as raised:
        compile_glob(glob, LIMITS)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("glob", "prefix", "literals"),
    [
        ("X/EGM.Q", "X/EGM.Q", ("X", "EGM", "Q")),
        ("X/EGM.*", "X/EGM.", ("X", "EGM")),
        ("X/EGM*.S", "X/EGM", ("X", "S")),
        ("X/EGM.Q.*.EGMStatus", "X/EGM.Q.", ("X", "EGM", "Q", "EGMStatus")),
        ("**.S", "", ("S",)),
        ("**", "", ()),
        ("X/a[.]b", "X/a", ("X",)),
        ("X**a.b.c**", "X", ("b",)),
    ],
)
def test_prefix_and_literals(glob: str, prefix: str, literals: tuple[str, ...]) -> None:
    """The prefix ends before the first wildcard; literals are the whole segments without one."""
    compiled = compile_glob(glob, LIMITS)
    assert compiled.prefix == prefix
    assert compiled.literals == literals


@pytest.mark.parametrize(
    ("a", "b", "overlapping"),
    [
        ("X/*", "X/EGM.*", True),
        ("X/*", "Y/*", False),
        ("X/EGM.*", "**.EGMStatus", True),
        ("X/EGM.*.S", "X/EGM.Q.*", True),
        ("X/EGM.*.S", "X/EGM.*.T", False),
        ("X/a*", "X/*b", True),
        ("X/?", "X/??", False),
        ("X/[a-m]", "X/[m-z]", True),
        ("X/[a-l]", "X/[m-z]", False),
        ("X/[!a]", "X/[!b]", True),
        ("X/[!b]", "X/b", False),
        ("X/[ -0]", "X/[.-1]", True),  # '0' only: '.' cannot be a token, '/' is in no set
        ("X/[ -/]", "X/[.-1]", False),
        ("X/a[!b]c", "X/a[.-/]c", True),
        ("X/a[.]*", "X/*[.]b", True),
        ("X/[\u0100-\u0200]", "X/[0-\u00ff]", False),
        ("**a", "b**", True),
        ("X**b/a", "X/*", False),
        ("???**", "**/a", True),
        ("*????????????????/a", "X*/a", True),  # a store of 16
        ("X/*" + "a" * 300, "X/" + "b" * 200 + "*", True),
        ("X/*" + "a" * 300, "X/" + "b" * 300 + "*", True),  # of 602 bytes: limits of length are not counted
    ],
)
def test_overlap(a: str, b: str, overlapping: bool) -> None:
    """Two globs overlap exactly when a well-formed destination of any length matches both, in either order."""
    one, two = compile_glob(a, LIMITS), compile_glob(b, LIMITS)
    assert overlap(one, two) is overlapping
    assert overlap(two, one) is overlapping


def test_equality_is_by_text() -> None:
    """Globs are equal, and found in a dictionary, by their text alone."""
    assert compile_glob("X/*", LIMITS) == compile_glob("X/*", Limits(glob_wildcards_max=1))
    assert {compile_glob("X/*", LIMITS): 1}[compile_glob("X/*", LIMITS)] == 1
    assert compile_glob("X/*", LIMITS) != compile_glob("X/**", LIMITS)
    assert compile_glob("X/*", LIMITS) != "X/*"


@pytest.mark.parametrize(
    ("glob", "destination"),
    [
        ("X/" + "*a" * 31 + "*b", "X/" + "a" * 510),
        ("X/" + "*?" * 16 + "b", "X/" + "a" * 510),
        ("**a" * 31 + "b", "X/" + "a" * 510),
        ("X/" + "".join("*" + "a" * 14 for _ in range(32)) + "b", "X/" + "a" * 510),
        ("X/" + "*[!b]" * 16 + "b", "X/" + "a" * 510),
    ],
)
def test_hostile_patterns_finish(glob: str, destination: str) -> None:
    """Patterns that make a backtracking matcher try exponentially many ways are answered."""
    assert not compile_glob(glob, LIMITS).matches(destination)
    assert compile_glob(glob[:-1] + "*", Limits(glob_wildcards_max=40)).matches(destination)


def test_hostile_overlap_finishes() -> None:
    """Two of the largest globs, full of stars and sets, are compared though no destination is common to both."""
    one = compile_glob("X/*" + "".join(f"[a-{chr(0x100 + i)}]" + "ab" * 6 + "*" for i in range(15)), LIMITS)
    two = compile_glob("X/a" + "".join("?" + "b" * 29 for _ in range(16)) + "c", LIMITS)
    assert not overlap(one, two)
    assert not overlap(two, one)


SIDES = st.lists(
    st.sampled_from(["A/a", "A/*", "A/a.*", "A/?", "A/[ab]", "A/[!a]", "*/a", "**", "A/*.b", "A/a*b"]), max_size=3
)


@given(wanted=SIDES, owned=SIDES, granted=SIDES)
def test_what_is_uncovered(wanted: list[str], owned: list[str], granted: list[str]) -> None:
    """A destination that is found is of one side only; where none is, no short destination is of one side only."""
    left = [[compile_glob(text, LIMITS) for text in side] for side in (wanted, owned)]
    right = [[compile_glob(text, LIMITS) for text in granted]]

    def has(side: list[list[Glob]], destination: str) -> bool:
        return all(any(glob.matches(destination) for glob in group) for group in side)

    found = find_destination(left, right)
    if found is not None:
        assert has(left, found)
        assert not has(right, found)
        return
    for store in ("A", "B", "AA"):
        for tokens in ("a", "b", "c", "a.a", "a.b", "ab", "acb", "a.c.b", "b.b", "aa"):
            destination = f"{store}/{tokens}"
            assert not (has(left, destination) and not has(right, destination)), destination


def test_a_union_covers_what_none_of_it_does() -> None:
    """Sets and unions are compared by what they match, not by how they are written."""

    def globs(*texts: str) -> list[Glob]:
        return [compile_glob(text, LIMITS) for text in texts]

    assert find_destination([globs("X/a?")], [globs("X/a[!b]", "X/ab")]) is None
    assert find_destination([globs("X/a?")], [globs("X/a[!b]")]) == "X/ab"
    assert find_destination([globs("X/EGM.*")], [globs("X/**")]) is None
    assert find_destination([globs("**")], [globs("X/**")]) is not None
    assert find_destination([globs("X/**"), globs("X/EGM.Q.1.*")], [globs("X/EGM.*")]) is None
    assert find_destination([globs("X/*")], [[]]) is not None
    with pytest.raises(GlobError, match="too complex"):
        find_destination([globs("X/*a????????????")], [globs("X/*a????????????b*", "X/*b????????????")])


def test_a_text_of_ordinary_length_is_compiled_once_and_the_cache_is_bounded() -> None:
    """Equal texts share one glob. Hostile texts cannot fill the cache beyond its limit, and long ones are not kept."""
    globs._COMPILED.clear()
    assert compile_glob("X/a.*", LIMITS) is compile_glob("X/a.*", LIMITS)
    assert compile_glob("X/" + "a" * 200 + "*", LIMITS) is not compile_glob("X/" + "a" * 200 + "*", LIMITS)
    for number in range(3 * globs._CACHED_MAX):
        compile_glob(f"X/{number}.*", LIMITS)
        assert len(globs._COMPILED) <= globs._CACHED_MAX
    assert compile_glob("X/a.*", LIMITS)._pattern is None  # nothing was matched yet


def test_a_glob_places_the_slash_only_where_a_store_can_end() -> None:
    """A glob with many `**` is not compiled once for each of them: a store has few characters."""
    glob = compile_glob("".join(f"**{letter * 13}" for letter in "abcdefghijklmnopqrstuvwxyzABCDEF"), Limits())
    assert glob.prepare().pattern.count("|") == 1
    assert glob.matches(glob.sample)

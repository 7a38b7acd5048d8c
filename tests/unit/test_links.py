"""The values of bridges follow the shipped schemas, and read back as they were written."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.avro.registry import load_registry
from maxam.links import (
    CENTRE,
    DIRECTIONS,
    DOWN,
    DRILL_S_MAX,
    HEADERS,
    REASON_CHARACTERS_MAX,
    ROUTES_MAX,
    SIDES,
    STATES,
    TIMEOUT_S_MAX,
    UP,
    VENUE,
    Link,
    LinkDrill,
    LinkRejection,
    LinkRoute,
    Wanted,
    WantedDrill,
    decode_link,
    decode_wanted,
    link_topic,
    mapped,
    venue_of,
    wanted_topic,
)
from maxam.pipeline.publish.bodies import read_texts
from maxam.records import Validation

SHIPPED = load_registry(read_texts(Path(__file__).parents[2] / "schemas"))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
LINKS = st.builds(
    Link,
    TEXTS,
    TEXTS,
    st.sampled_from(SIDES),
    st.sampled_from(STATES),
    TEXTS,
    LONGS,
    LONGS,
    TEXTS,
    INTS,
    TEXTS,
    TEXTS,
    st.lists(st.builds(LinkRoute, st.sampled_from(DIRECTIONS), TEXTS, TEXTS), max_size=3).map(tuple),
    INTS,
    st.lists(st.builds(LinkRejection, TEXTS, TEXTS), max_size=3).map(tuple),
    LONGS,
    LONGS,
    st.none() | st.builds(LinkDrill, TEXTS, INTS, st.booleans(), LONGS, LONGS, LONGS),
)
WANTED = st.builds(Wanted, st.booleans(), TEXTS, st.none() | st.builds(WantedDrill, TEXTS, st.integers(1, DRILL_S_MAX)))


def judged(destination: bytes, body: bytes) -> bool:
    """Return True if the shipped rule of a topic accepts a body."""
    rule = SHIPPED.rule_for(destination.decode())
    return rule is not None and type(rule.validate(destination, HEADERS, body)) is Validation


@given(LINKS, st.binary(max_size=4))
def test_a_link_is_a_value_of_its_schema_and_reads_back(link: Link, later: bytes) -> None:
    """Fields that a later version appends are ignored."""
    assert judged(link_topic("V1"), link.encoded())
    assert decode_link(link.encoded()) == link
    assert decode_link(link.encoded() + later) == link


@given(WANTED, st.binary(max_size=4))
def test_requests_are_a_value_of_their_schema_and_read_back(wanted: Wanted, later: bytes) -> None:
    """Fields that a later version appends are ignored."""
    assert judged(wanted_topic("V1"), wanted.encoded())
    assert decode_wanted(wanted.encoded()) == wanted
    assert decode_wanted(wanted.encoded() + later) == wanted


@given(st.binary(max_size=60) | LINKS.map(lambda link: link.encoded()[:-1]))
def test_bytes_that_are_no_value_are_none(data: bytes) -> None:
    """Nothing raises, and a value that is found can be written again."""
    link, wanted = decode_link(data), decode_wanted(data)
    assert link is None or decode_link(link.encoded()) == link
    assert wanted is None or decode_wanted(wanted.encoded()) == wanted


def test_a_link_that_is_cut_off_is_none() -> None:
    """No part of a datum reads as a whole one."""
    route = LinkRoute(UP, "X/EGM.**", "V1")
    datum = Link("V1", "c", CENTRE, UP, "", 1, 2, "h", 30, "a", "b", (route,), drill=None).encoded()
    assert [decode_link(datum[:size]) for size in range(len(datum))] == [None] * len(datum)


@pytest.mark.parametrize("routes", [ROUTES_MAX, ROUTES_MAX + 1])
@pytest.mark.parametrize("because", ["", "b" * 300_000])
def test_a_link_above_its_bounds_is_none(routes: int, because: str) -> None:
    """No bridge publishes such a value, and each of its routes costs every gateway that reads it."""
    all_routes = tuple(LinkRoute(UP, f"X/{number}", "V1") for number in range(routes))
    link = Link("V1", "c", CENTRE, UP, because, 1, 2, "h", 30, "a", "b", all_routes)
    assert (decode_link(link.encoded()) is not None) == (routes == ROUTES_MAX and not because)


@pytest.mark.parametrize(
    ("claimed", "counts"),
    [(-(2**63), 1), (0, 1), (1, 1), (30, 30), (TIMEOUT_S_MAX, TIMEOUT_S_MAX), (2**31, TIMEOUT_S_MAX)],
)
def test_a_timeout_is_bounded(claimed: int, counts: int) -> None:
    """A link cannot make its silence count as life for ever."""
    assert Link("V1", "c", CENTRE, UP, "", 1, 2, "h", claimed, "a", "b", ()).timeout_s == counts


@pytest.mark.parametrize(
    "drill",
    [
        WantedDrill("d", 0),
        WantedDrill("d", -1),
        WantedDrill("d", DRILL_S_MAX + 1),
        WantedDrill("d", 2**62),
        WantedDrill("d" * 65, 1),
    ],
)
def test_an_impossible_drill_is_left_out(drill: WantedDrill) -> None:
    """The rest of the request holds, with a reason that a Link can repeat."""
    found = decode_wanted(Wanted(True, "w" * 5000, drill).encoded())
    assert found == Wanted(True, "w" * REASON_CHARACTERS_MAX, None)


@pytest.mark.parametrize(("side", "globs"), [(CENTRE, ("V1/EGM.**",)), (VENUE, ("X/Config.*",)), ("UNKNOWN", ())])
def test_the_topics_of_a_link_are_those_that_come_to_its_side(side: str, globs: tuple[str, ...]) -> None:
    """Routes up end at the centre, routes down at the venue."""
    routes = (LinkRoute(UP, "X/EGM.**", "V1"), LinkRoute(DOWN, "V1/Config.*", "X"))
    assert Link("V1", "c", side, UP, "", 0, 0, "", 30, "", "", routes).globs_here == globs


@pytest.mark.parametrize(
    ("destination", "venue"),
    [(b"B/V1.Link", "V1"), (b"B/V1.Wanted", ""), (b"X/V1.Link", ""), (b"B/.Link", ""), (b"B/V\xc3\xa9.Link", "V\xe9")],
)
def test_a_venue_is_named_by_its_topic(destination: bytes, venue: str) -> None:
    """Other topics of the store have no venue."""
    assert venue_of(destination) == venue
    assert not venue or link_topic(venue) == destination


def test_a_glob_is_mapped_to_another_store() -> None:
    """The rest of the glob stays."""
    assert mapped("X/EGM.**", "V1") == "V1/EGM.**"

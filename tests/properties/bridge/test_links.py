"""Links that go down and come up in any order: the gateway and its subscribers know what a search of everything finds."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maxam.gateway import bridge_links
from maxam.links import DRILL, PAUSED, SYNCING, UP
from tests.support.bridge_links import TIMEOUT_S, Centre, link

TOPICS = ["V1/a.Meter", "V1/b.Meter", "V1/a.State", "V2/a.Meter", "V2/a.State"]
GLOBS = [("V1/**",), ("V1/a.*",), ("V1/*.Meter", "V1/b.*"), ("V2/**",), ("V1/**", "V2/a.*"), ()]
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(TOPICS)),
    st.tuples(st.just("delete"), st.sampled_from(TOPICS)),
    st.tuples(
        st.just("link"),
        st.sampled_from(["1", "2"]),
        st.sampled_from([UP, UP, UP, PAUSED, DRILL, SYNCING, "UNKNOWN"]),
        st.sampled_from(GLOBS),
    ),
    st.tuples(st.just("give up"), st.sampled_from(["1", "2"])),
    st.tuples(st.just("time"), st.sampled_from([0.2, 3.0, TIMEOUT_S + 1.0, 25.0])),
    st.tuples(st.just("step"), st.integers(1, 3)),
    st.tuples(st.just("subscribe")),
    st.tuples(st.just("return"), st.integers(0, 2)),
    st.tuples(st.just("settle")),
    st.tuples(st.just("restart")),
)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(st.lists(STEPS, max_size=25), st.sampled_from([1, 2, 200]))
@example([("put", TOPICS[0]), ("link", "1", UP, GLOBS[0]), ("subscribe",), ("settle",), ("time", 11.0)], 1)
@example([("put", TOPICS[0]), ("subscribe",), ("link", "1", PAUSED, GLOBS[0]), ("settle",), ("return", 0)], 1)
@example([("put", TOPICS[0]), ("link", "1", PAUSED, GLOBS[0]), ("give up", "1"), ("settle",), ("delete", TOPICS[0])], 2)
def test_what_is_unknown_is_what_a_search_finds(steps: list[tuple[object, ...]], batch: int) -> None:
    """In batches of any size, with clients that come, read and return at any time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bridge_links, "BATCH_TOPICS", batch)
        centre = Centre()
        for number, (what, *given_) in enumerate(steps):
            do(centre, str(what), given_, number)
        centre.settle()
        centre.check()


def do(centre: Centre, what: str, given_: list[object], number: int) -> None:
    """Do one step of a run."""
    match what, given_:
        case "put", [str(name)]:
            centre.send(name, b"%d" % number)
        case "delete", [str(name)]:
            centre.send(name, b"")
        case "link", [str(venue), str(state), tuple(globs)]:
            centre.publish(link(venue, *globs, state=state, since_s=centre.world.wall_us / 1e6))
        case "give up", [str(venue)]:
            centre.delete_link(venue)
        case "time", [float(seconds)]:
            centre.pass_time(seconds)
        case "step", [int(count)]:
            for _ in range(count):
                centre.step()
        case "subscribe", []:
            centre.subscribe()
        case "return", [int(at)] if at < len(centre.readers) and centre.readers[at].position:
            centre.return_(at)
        case "settle", []:
            centre.settle()
            centre.check()
        case "restart", []:
            centre.restart()
        case _:
            assert what == "return"  # of a client that is not there

"""Live views show and count the true topics, however topics come and go during the scan."""

from itertools import islice

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maxam.api.live.window import Count, Window
from maxam.broker.store import Store
from maxam.broker.topic_events import TopicEvent
from maxam.config import Limits
from maxam.content import pack
from maxam.globs import compile_glob
from maxam.records import UNJUDGED, Change, Identity

NAMES = [f"{store}/{a}.{b}".encode() for store in "XY" for a in "ab" for b in "012"]
PUBLISHER = Identity("p", "f")
LOOKED_AT = 3  # in a batch
SLICES = 10  # enough for all of NAMES, and for those that must be checked again
TURNS_MAX = 3  # in one step


class Scene:
    """A store, read in small batches."""

    def __init__(self) -> None:
        self.store = Store()
        self.feed = self.store.events.open(8)
        self.revision = 0

    def put(self, name: bytes, alive: bool) -> None:
        """Give a topic a value, or delete it."""
        self.revision += 1
        change = Change(self.revision, 0, name, not alive, PUBLISHER, UNJUDGED, *pack((), b"v" if alive else b""))
        topic = self.store.topics.get(name)
        if topic is None:
            self.store.add(change, [])
        else:
            self.store.put(topic, change)

    def turns(self, position: int) -> list[TopicEvent] | None:
        """Return the events as the view does."""
        return self.feed.since(position, TURNS_MAX)

    def step(self, one: Window | Count) -> None:
        """Take in turns, or else one batch."""
        turns = self.turns(one.position)
        if turns is None:
            one.restart(self.feed.end)
            return
        one.apply(turns)
        one.position += len(turns)
        if one.position != self.feed.end:
            return
        if isinstance(one, Window) and one.missing:
            one.found(*self.slice(one, one.missing))
        if isinstance(one, Count) and not one.complete:
            one.found(*self.slice(one, LOOKED_AT))

    def slice(self, one: Window | Count, matches_max: int) -> tuple[list[bytes], bytes | None]:
        """Read topics as the view does."""
        found: list[bytes] = []
        names = self.store.names_slice(one.glob.prefix.encode(), one.cursor, LOOKED_AT)
        assert names == list(islice(self.store.names_after(one.glob.prefix.encode(), one.cursor), LOOKED_AT))
        for name in names:
            if one.glob.matches(name.decode()):
                assert one.literal in name
                if not self.store.topics[name].change.deleted:
                    found.append(name)
                    if len(found) == matches_max:
                        return found, name
        return found, names[-1] if len(names) == LOOKED_AT else None

    def alive(self, one: Window | Count) -> list[bytes]:
        """Return the topics that match, by reading all."""
        topics = self.store.topics
        return sorted(n for n in topics if not topics[n].change.deleted and one.glob.matches(n.decode()))

    def check(self, window: Window, count: Count, after: bytes | None) -> None:
        """The window is true of this moment, as far as the scan has come, once all changes are taken in."""
        matching = self.alive(count)
        behind = [name for name in matching if after is None or name > after]
        if window.position == self.feed.end:
            assert window.names == behind[: len(window.names)]
            assert window.missing or window.names == behind[: window.rows_max + 1]
        if count.position == self.feed.end:
            seen = [name for name in matching if count.complete or (count.cursor is not None and name <= count.cursor)]
            assert count.count == len(seen)


put = st.tuples(st.sampled_from(NAMES), st.booleans())


@pytest.mark.slow
@settings(max_examples=400)
@given(
    st.sets(st.sampled_from(NAMES)),
    st.integers(0, SLICES),
    st.lists(st.one_of(st.none(), put), max_size=30),
    st.sampled_from(["**", "X/*", "*/b.*", "X/a.[02]", "Z/*", "Y/b.1", "X/a*1"]),
    st.one_of(st.none(), st.none(), st.sampled_from(NAMES)),
    st.integers(1, 4),
)
# More comes and goes than is remembered, after a scan that was through.
@example(set(NAMES[5:7]), SLICES, [(name, alive) for name in NAMES[:5] for alive in (True, False, True)], "**", None, 1)
# A scan that is through, a window that overflows, and a topic that goes: what had to leave the window comes back.
@example(set(), 1, [*[(name, True) for name in NAMES[:3]], None, (NAMES[0], False)], "**", None, 1)
def test_window_and_count_come_true(
    first: set[bytes],
    slices: int,
    steps: list[tuple[bytes, bool] | None],
    glob: str,
    after: bytes | None,
    rows_max: int,
) -> None:
    """Topics come and go between batches. No window or count is ever wrong, and at the end they are complete."""
    scene = Scene()
    for name in first:
        scene.put(name, True)
    compiled = compile_glob(glob, Limits())
    window = Window(compiled, after, rows_max, scene.feed.end)
    count = Count(compiled, scene.feed.end)
    for step in [*[None] * slices, *steps, *[None] * (3 * SLICES)]:
        if step is None:
            scene.step(window)
            scene.step(count)
        else:
            scene.put(*step)
        scene.check(window, count, after)
    assert window.position == count.position == scene.feed.end
    assert not window.missing
    assert count.complete

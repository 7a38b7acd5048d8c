"""What live views show and count is what there is, however topics come and go while it is looked for."""

from collections import deque
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from maxam.admin.live_window import Count, Window
from maxam.broker.store import Store
from maxam.config import Limits
from maxam.globs import compile_glob
from maxam.records import UNJUDGED, Change, Identity

NAMES = [f"{store}/{a}.{b}".encode() for store in "XY" for a in "abc" for b in "0123"]
PUBLISHER = Identity("p", "f")
LOOKED_AT = 3  # in a slice
TURNS_MAX = 6  # in one step


class Scene:
    """A store, looked at in small slices."""

    def __init__(self) -> None:
        self.store = Store()
        self.store.turns = deque(maxlen=16)
        self.revision = 0

    def put(self, name: bytes, alive: bool) -> None:
        """Give a topic a value, or delete it."""
        self.revision += 1
        change = Change(self.revision, 0, name, not alive, PUBLISHER, UNJUDGED, (), b"v" if alive else b"")
        topic = self.store.topics.get(name)
        if topic is None:
            self.store.add(change, [])
        else:
            self.store.put(topic, change)

    def turns(self, position: int) -> list[tuple[bytes, bool]] | None:
        """As the view tells them."""
        turns = self.store.turns
        assert turns is not None
        missed = self.store.turned - position
        if missed > len(turns):
            return None
        return list(islice(turns, len(turns) - missed, None))[:TURNS_MAX]

    def step(self, one: Window | Count) -> None:
        """Take in turns, or else one slice."""
        turns = self.turns(one.position)
        if turns is None:
            one.restart(self.store.turned)
            return
        one.turned(turns)
        one.position += len(turns)
        if one.position != self.store.turned:
            return
        if isinstance(one, Window) and one.missing:
            one.found(*self.slice(one, one.missing))
        if isinstance(one, Count) and not one.complete:
            one.found(*self.slice(one, LOOKED_AT))

    def slice(self, one: Window | Count, matches_max: int) -> tuple[list[bytes], bytes | None]:
        """As the view looks at topics."""
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
        """What matches, by looking at everything."""
        topics = self.store.topics
        return sorted(n for n in topics if not topics[n].change.deleted and one.glob.matches(n.decode()))


put = st.tuples(st.sampled_from(NAMES), st.booleans())


@given(
    st.sets(st.sampled_from(NAMES)),
    st.lists(st.one_of(st.none(), st.none(), put)),
    st.sampled_from(["**", "X/*", "*/b.*", "X/a.[02]", "Z/*", "Y/c.3"]),
    st.one_of(st.none(), st.sampled_from(NAMES)),
    st.integers(1, 5),
)
def test_window_and_count_come_true(
    first: set[bytes], steps: list[tuple[bytes, bool] | None], glob: str, after: bytes | None, rows_max: int
) -> None:
    """Whatever comes and goes between slices: at the end a window holds the first matches and a count all of them."""
    scene = Scene()
    for name in first:
        scene.put(name, True)
    compiled = compile_glob(glob, Limits())
    window = Window(compiled, after, rows_max, scene.store.turned)
    count = Count(compiled, scene.store.turned)
    for step in steps:
        if step is None:
            scene.step(window)
            scene.step(count)
        else:
            scene.put(*step)
    for _ in range(200):
        scene.step(window)
        scene.step(count)
    matching = scene.alive(count)
    behind = [name for name in matching if after is None or name > after]
    assert not window.missing or len(behind) <= rows_max
    assert window.names == behind[: rows_max + 1]
    assert (count.count, count.complete) == (len(matching), True)

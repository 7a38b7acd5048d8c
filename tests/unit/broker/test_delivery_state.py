"""Why a subscription does not have a value: one history for each cause, and random histories in which it predicts delivery."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.broker.delivery_state import CODES, Code, DeliveryState, delivery_state
from maxam.broker.session import Subscription
from maxam.cli.commands.subscriptions_explain import TEXTS, because
from tests.support.sans_io import EVERYTHING, Client, World, policy

HIGH: Final = "selector:header('level') = 'high'"
# Causes of topics of which the next read brings nothing, whatever the client does not acknowledge.
QUIET: Final = frozenset(CODES) - {"ready", "scanning", "pending", "writing"}


@dataclass
class Scene:
    """One broker, a publisher and a subscriber."""

    world: World = field(default_factory=World.make)
    client_id: str = "c"

    def __post_init__(self) -> None:
        self.publisher = self.world.client(client_id="publisher")
        self.client = self.world.client(client_id=self.client_id, window="2")

    def connect(self) -> Client:
        """Connect the subscriber again."""
        self.client = self.world.client(client_id=self.client_id, window="2")
        return self.client

    def subscribe(self, *lines: str, glob: str = "X/**", ack: str = "auto", settle: bool = True) -> None:
        """SUBSCRIBE under the id `s`."""
        head = "".join(f"{line}\n" for line in ("id:s", f"destination:{glob}", f"ack:{ack}", *lines))
        self.client.write(f"SUBSCRIBE\n{head}\n\0".encode())
        if settle:
            self.world.settle()

    def put(self, destination: str, body: bytes = b"value", **headers: str) -> None:
        """Have a value accepted and committed, later than everything before."""
        self.world.wall_us += 1000
        self.publisher.send(destination, body, **headers)
        self.world.settle()
        self.world.wall_us += 1000

    @property
    def subscription(self) -> Subscription:
        """The subscription."""
        return self.world.broker.sessions["anna", self.client_id].subscriptions[b"s"]

    def state(self, destination: str = "X/a", disclosed: bool = True) -> DeliveryState:
        """Return why the subscriber does not have a topic."""
        broker, subscription, name = self.world.broker, self.subscription, destination.encode()
        scans = broker.scans_of(subscription)
        return delivery_state(
            subscription, name, broker.store.topics.get(name), scans, self.world.now_s, disclosed=disclosed
        )


Facts = dict[str, object]


def no_match(scene: Scene) -> Facts:
    """A subscription to other topics."""
    scene.subscribe(glob="X/b")
    scene.put("X/a")
    return {"revision": None}


def no_right(scene: Scene) -> Facts:
    """A principal whose right was taken away."""
    scene.put("X/a")
    scene.subscribe("eager:true")
    scene.world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": ["X/b"]}))
    return {"revision": 1}


def no_topic(scene: Scene) -> Facts:
    """A topic that never had a value."""
    scene.subscribe()
    return {"revision": None, "deleted": None}


def pending(scene: Scene) -> Facts:
    """A SUBSCRIBE that the next commit takes into effect."""
    scene.put("X/a")
    scene.subscribe("eager:true", settle=False)
    return {"revision": 1}


def undisclosed(scene: Scene) -> Facts:
    """A caller without the right to receive, and a selector that decides by the value."""
    scene.subscribe(HIGH)
    scene.put("X/a", level="low")
    return {"revision": 1, "in_focus": None, "sent_revision": None}


def filtered(scene: Scene) -> Facts:
    """A value that does not satisfy the selector, while the client has an older one."""
    scene.subscribe(HIGH)
    scene.put("X/a", level="high")
    scene.client.read()
    assert scene.state().in_focus
    scene.put("X/a", level="low")
    assert scene.state().in_focus  # the notice is owed
    scene.client.read()
    return {"revision": 2, "in_focus": False}


def unacknowledged(scene: Scene) -> Facts:
    """The newest value was sent, and its ACK is awaited."""
    scene.subscribe(ack="client")
    scene.put("X/a")
    scene.client.read()
    return {"revision": 1, "sent_revision": 1, "in_flight": 1, "window": 2}


def superseded(scene: Scene) -> Facts:
    """A newer value waits for the ACK of an older one."""
    unacknowledged(scene)
    scene.put("X/a")
    scene.put("X/a")
    assert scene.client.read() == []
    return {"revision": 3, "sent_revision": 1}


def detached(scene: Scene) -> Facts:
    """A client that is away."""
    scene.subscribe("durable:true")
    scene.client.lose()
    scene.put("X/a")
    scene.world.now_s += 7
    return {"revision": 1, "since_s": 7.0, "window": None}


def paused(scene: Scene) -> Facts:
    """A client that came back and has not subscribed again."""
    detached(scene)
    scene.connect()
    return {"revision": 1, "since_s": None}


def closing(scene: Scene) -> Facts:
    """A client that sent DISCONNECT."""
    scene.subscribe("durable:true")
    scene.put("X/a")
    scene.subscription.connection.quiet = True  # type: ignore[union-attr]
    return {"revision": 1}


def unchanged(scene: Scene) -> Facts:
    """A value whose body the client has, before it is taken and after."""
    scene.subscribe("changes-only:true")
    scene.put("X/a", b"same")
    assert len(scene.client.read()) == 1
    scene.put("X/a", b"same")
    assert scene.state().code == "unchanged"
    assert scene.client.read() == []
    return {"revision": 2}


def held(scene: Scene) -> Facts:
    """A value within the interval of the one before."""
    scene.subscribe("min-interval:5000")
    scene.put("X/a", b"1")
    scene.client.read()
    scene.put("X/a", b"2")
    scene.world.now_s += 2
    return {"revision": 2, "left_s": 3.0}


def window_full(scene: Scene) -> Facts:
    """A client that owes ACKs of other topics."""
    scene.subscribe(ack="client")
    for topic in ("X/1", "X/2", "X/3", "X/a"):
        scene.put(topic)
    scene.client.read()
    scene.world.now_s += 4
    return {"revision": 4, "since_s": 4.0, "in_flight": 2, "window": 2, "place": 1}


def ready(scene: Scene) -> Facts:
    """A client that has not read yet."""
    scene.subscribe()
    for topic in ("X/1", "X/2", "X/a", "X/3"):
        scene.put(topic)
    return {"revision": 3, "place": 2, "deleted": False}


def writing(scene: Scene) -> Facts:
    """A value of a durable subscription that was handed out a moment ago."""
    scene.subscribe("durable:true")
    scene.put("X/a")
    assert scene.client.read_some()
    return {"revision": 1, "sent_revision": 1}


def scanning(scene: Scene) -> Facts:
    """A topic that the scan has not reached, before one that it has."""
    for number in range(1100):
        scene.publisher.send(f"X/0.{number:04}")
    scene.put("X/a")
    scene.subscribe("eager:true", settle=False)
    scene.world.commit()
    scene.world.broker.scan(10)
    assert scene.state("X/0.0000").code == "ready"
    assert scene.state("X/0.1099").code == "scanning"
    return {"revision": 1101}


def older(scene: Scene) -> Facts:
    """A value from before the subscription, which wants later ones only."""
    scene.put("X/a")
    scene.subscribe()
    return {"revision": 1}


def acknowledged(scene: Scene) -> Facts:
    """A value that was acknowledged."""
    scene.subscribe("durable:true", ack="client")
    scene.put("X/a")
    scene.client.ack(scene.client.read()[0])
    return {"revision": 1, "sent_revision": 1}


def handed_out(scene: Scene) -> Facts:
    """A delete that was sent."""
    scene.subscribe()
    scene.put("X/a")
    scene.put("X/a", b"")
    scene.client.read()
    return {"revision": 2, "deleted": True, "sent_revision": None}


SCENES: Final[dict[Code, Callable[[Scene], Facts]]] = {
    "no-match": no_match,
    "no-right": no_right,
    "no-topic": no_topic,
    "pending": pending,
    "undisclosed": undisclosed,
    "filtered": filtered,
    "unacknowledged": unacknowledged,
    "superseded": superseded,
    "detached": detached,
    "paused": paused,
    "closing": closing,
    "unchanged": unchanged,
    "held": held,
    "window-full": window_full,
    "ready": ready,
    "writing": writing,
    "scanning": scanning,
    "older": older,
    "acknowledged": acknowledged,
    "handed-out": handed_out,
}


@pytest.mark.parametrize("code", CODES)
def test_each_cause_has_a_history(code: Code) -> None:
    """The history leads to the cause, with the facts that belong to it."""
    scene = Scene()
    facts = SCENES[code](scene)
    found = scene.state(disclosed=code != "undisclosed")
    assert found.code == code
    assert {name: getattr(found, name) for name in facts} == facts
    if code in QUIET:
        assert scene.subscription.connection is None or b"X/a" not in read(scene)


def test_each_cause_has_a_text() -> None:
    """The command has a text for each cause, also where facts are unknown, and none for others."""
    assert set(TEXTS) == set(CODES)
    nothing = dict.fromkeys(one.name for one in fields(DeliveryState))
    for code in CODES:
        text = because({**nothing, "code": code})
        assert text
        assert "{" not in text
    assert because({**nothing, "code": "filtered", "deleted": True}) != because({**nothing, "code": "filtered"})
    assert because({**nothing, "code": "of a newer gateway"}) == ""


@pytest.mark.parametrize("line", [HIGH, "changes-only:true"])
def test_an_undisclosed_answer_is_always_the_same(line: str) -> None:
    """Nothing that a caller without the right learns depends on the content: not the cause, nor any fact but those of the change."""
    answers = set()
    for level, second in (("high", b"same"), ("low", b"same"), ("high", b"other")):
        for reads in (False, True):
            scene = Scene()
            scene.subscribe(line, ack="client")
            for body in (b"same", second):
                scene.put("X/a", body, level=level)
                if reads:
                    scene.client.read()
            found = scene.state(disclosed=False)
            assert found == DeliveryState("undisclosed", 2, found.accepted_at_us, deleted=False)
            answers.add(found.code)
    assert answers == {"undisclosed"}


def test_a_right_that_came_a_moment_ago_is_pending() -> None:
    """A subscription that no right matched is compared with new rights in a later pass."""
    scene = Scene(World.make(anna={"send": ["X/**"], "receive": ["X/b"]}))
    scene.subscribe(glob="X/a")
    scene.put("X/a")
    assert scene.state().code == "no-right"
    scene.subscription.session.rights = policy(anna=EVERYTHING).rights("anna")
    assert scene.state().code == "pending"


def test_the_place_ends_where_the_search_does() -> None:
    """Of a long queue only the first topics are searched; the two lists of the queue count as one."""
    scene = Scene()
    scene.subscribe("durable:true", ack="client")
    for number in range(6):
        scene.put(f"X/{number}")
    scene.client.read()  # two of them; the others stand in the list in front
    for number in range(6, 9):
        scene.put(f"X/{number}")
    subscription = scene.subscription
    queue = subscription.queue
    assert len(queue) == 7
    for most in range(9):
        for place, topic in enumerate(queue):
            assert subscription.place_of(topic, most) == (place if place < most else -1)
    absent = scene.world.broker.store.topics[b"X/0"]
    assert subscription.place_of(absent, 100) == -1


def read(scene: Scene) -> set[bytes]:
    """Return the destinations of which the client gets MESSAGEs now with a body, or the empty one of a delete."""
    frames = [frame for frame in scene.client.read() if frame.command == b"MESSAGE"]
    return {frame.headers[b"destination"] for frame in frames if frame.headers.get(b"kind") != b"left"}


OPTIONS: Final = ("min-interval:1000", "changes-only:true", HIGH, "metadata:true", "eager:true", "durable:true")
TOPICS: Final = ("X/a", "X/b", "X/c")
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(TOPICS), st.sampled_from((b"", b"1", b"2")), st.booleans()),
    st.tuples(st.sampled_from(("read", "ack", "wait", "lose", "subscribe"))),
)


def take(scene: Scene, step: tuple[object, ...], lines: list[str], ack: str) -> None:
    """Take one step of a random history, if it is possible."""
    match step:
        case ("put", str(topic), bytes(body), bool(high)):
            scene.put(topic, body, level="high" if high else "low")
        case ("read",):
            scene.client.read()
        case ("ack",):
            for frame in [one for one in scene.client.frames if b"ack" in one.headers]:
                scene.client.ack(frame)
        case ("wait",):
            scene.world.now_s += 0.6
        case ("lose",) if "durable:true" in lines:
            scene.client.lose()
            scene.world.settle()
        case ("subscribe",) if "durable:true" in lines and scene.subscription.connection is None:
            scene.connect()
            scene.subscribe(*lines, ack=ack)
        case _:
            pass


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.sets(st.sampled_from(OPTIONS)),
    st.sampled_from(("auto", "client", "client-individual")),
    st.lists(STEPS, max_size=20),
)
def test_a_cause_predicts_the_next_read(options: set[str], ack: str, steps: list[tuple[object, ...]]) -> None:
    """A `ready` topic comes with the next read unless topics before it fill the window; one with another cause does not come."""
    scene = Scene()
    lines = sorted(options | {"metadata:true"})  # so that a notice differs from a delete
    scene.subscribe(*lines, ack=ack)
    for step in steps:
        take(scene, step, lines, ack)
    states = {topic.encode(): scene.state(topic) for topic in TOPICS}
    if scene.subscription.connection is None:
        assert {one.code for one in states.values()} <= {"no-topic", "detached", "acknowledged", "handed-out"}
        return
    room = 2 - scene.subscription.connection.in_flight if ack != "auto" else 99
    came = read(scene)
    for name, state in states.items():
        if state.code == "ready":
            assert state.place is not None
            if state.place < room:  # a notice that a topic left takes a place of the window too
                assert name in came, (name, state)
        elif state.code == "held" and state.left_s == 0:
            pass  # its interval ends with this read
        else:
            assert name not in came, (name, state)

"""Since when a subscription lacks something, against a model that keeps it for every topic."""

import random

import pytest

from maxam.broker.session import NOT_OWED, Session, Subscription, Topic
from maxam.config import Limits
from maxam.content import pack
from maxam.globs import compile_glob
from maxam.records import UNJUDGED, Change, Identity
from tests.support.sans_io import policy

BEFORE_US = 1_000_000  # when every topic got its first value
UNACKED_MAX = 100


class Naive:
    """A subscription and, beside it, since when it lacks each topic: owed, and un-acked."""

    def __init__(self, topics: int, rng: random.Random) -> None:
        limits = Limits()
        session = Session("anna", "c", policy(anna={"receive": ["X/**"]}).rights("anna"))
        self.subscription = Subscription(session, b"s", compile_glob("X/**", limits), True)
        self.rng = rng
        self.now_us = 2 * BEFORE_US
        self.revision = 0
        self.topics = [Topic(b"X/%d" % n, self.change(b"X/%d" % n, BEFORE_US + n), []) for n in range(topics)]
        self.owed: dict[Topic, int] = {}
        self.unacked: dict[int, tuple[Topic, int]] = {}
        self.owed_then: set[Topic] = set()  # what is still owed of what was owed at `then_us`
        self.then_us = self.before_us = 0  # the latter: when all was owed that was sent before `then_us`

    def change(self, destination: bytes, at_us: int) -> Change:
        """Make a change."""
        self.revision += 1
        return Change(self.revision, at_us, destination, False, Identity("bert", ""), UNJUDGED, *pack((), b"1"))

    def publish(self) -> None:
        """Change a topic."""
        self.now_us += self.rng.randrange(1, 100)
        topic = self.rng.choice(self.topics)
        topic.change = self.change(topic.destination, self.now_us)
        self.subscription.owe(topic)
        self.owed.setdefault(topic, self.now_us)

    def ask(self) -> None:
        """Ask for all that is there."""
        self.now_us += self.rng.randrange(1, 100)
        for topic in self.topics:
            self.subscription.owe_present(topic, self.now_us)
            self.owed.setdefault(topic, self.now_us)

    def send(self, acknowledged: bool) -> None:
        """Hand out the next value."""
        subscription = self.subscription
        if not subscription.ready:
            return
        topic = subscription.take()
        since_us = self.owed.pop(topic)
        found_us = subscription.taken_since_us()
        assert found_us <= since_us
        if acknowledged:
            revision = topic.change.revision
            subscription.sent.append(revision)
            subscription.held[topic] = NOT_OWED
            subscription.unacked[revision] = (topic, (0.0, 0, False), found_us)
            self.unacked[revision] = (topic, since_us)

    def acknowledge(self) -> None:
        """Acknowledge some of what was sent."""
        if self.subscription.sent:
            covered = self.rng.randrange(1, len(self.subscription.sent) + 1)
            for revision in list(self.subscription.sent)[:covered]:
                del self.unacked[revision]
            self.subscription.acked(self.subscription.sent[covered - 1])

    def disconnect(self) -> None:
        """Take back all that is un-acked."""
        for topic, since_us in self.unacked.values():
            self.owed[topic] = since_us
        self.unacked.clear()
        self.subscription.release()
        self.then_us = 0

    def check(self) -> None:
        """Compare."""
        subscription = self.subscription
        assert subscription.owed == self.owed.keys()
        owed_us, unacked_us = subscription.owed_since_us(), subscription.unacked_since_us()
        true_owed_us = min(self.owed.values(), default=0)
        true_unacked_us = min([since_us for _, since_us in self.unacked.values()], default=0)
        assert (owed_us > 0, unacked_us > 0) == (true_owed_us > 0, true_unacked_us > 0)
        assert owed_us <= true_owed_us
        assert unacked_us <= true_unacked_us
        if not self.then_us:
            self.owed_then, self.then_us, self.before_us = set(self.owed), self.now_us, 0
        self.owed_then &= self.owed.keys()
        if not self.owed_then:
            assert not owed_us or owed_us >= self.before_us
            self.owed_then, self.then_us, self.before_us = set(self.owed), self.now_us, self.then_us


@pytest.mark.parametrize("topics", [3, 20, 1300])
def test_what_is_lacked_is_never_called_younger_than_it_is(topics: int) -> None:
    """The time found is never later than the truth, and old only until the queue was sent twice; there is none if nothing is owed."""
    for seed in range(60 if topics <= 20 else 6):
        rng = random.Random(seed)  # noqa: S311 - a test, not a secret
        naive = Naive(topics, rng)
        acknowledged = seed % 2 == 0
        steps = 400 if topics <= 20 else 60
        for _ in range(steps):
            act = rng.random()
            for _ in range(rng.randrange(1, max(2, topics // 3))):
                if act < 0.45:
                    naive.publish()
                elif act < 0.85 and len(naive.unacked) < UNACKED_MAX:
                    naive.send(acknowledged)
            if act >= 0.96:
                naive.disconnect()
            elif act >= 0.94:
                naive.ask()
            elif act >= 0.85:
                naive.acknowledge()
            naive.check()
        while naive.owed:
            naive.send(acknowledged)
            naive.acknowledge()
        naive.check()


def test_a_bound_ends_with_what_it_was_for() -> None:
    """A subscription that was sent all that it was owed lacks nothing since before."""
    rng = random.Random(1)  # noqa: S311 - a test, not a secret
    naive = Naive(3000, rng)
    naive.ask()
    for _ in range(10_000):
        naive.publish()
    naive.check()
    since_us = naive.subscription.owed_since_us()
    while naive.owed:
        naive.send(acknowledged=False)
    naive.check()
    for _ in range(500):
        naive.publish()
    naive.check()
    assert naive.subscription.owed_since_us() == min(naive.owed.values()) > since_us

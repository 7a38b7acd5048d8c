"""Since when a subscription lacks something, against a model that keeps it for every topic."""

import random

import pytest

from maxam.broker.session import SINCE_MAX, Session, Subscription
from maxam.broker.store import Topic
from maxam.config import Limits
from maxam.content import pack
from maxam.globs import compile_glob
from maxam.records import UNJUDGED, Change, Identity
from tests.sans_io import policy

BEFORE_US = 1_000_000  # when every topic got its first value
UNACKED_MAX = 100  # what is un-acked has room beyond SINCE_MAX


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
        self.exact = True  # never more than SINCE_MAX since the queue was worked off

    def change(self, destination: bytes, at_us: int) -> Change:
        """Make a change."""
        self.revision += 1
        return Change(self.revision, at_us, destination, False, Identity("bert", ""), UNJUDGED, *pack((), b"1"))

    def publish(self) -> None:
        """Change a topic."""
        self.now_us += self.rng.randrange(1, 100)
        topic = self.rng.choice(self.topics)
        before_us = topic.change.accepted_at_us
        topic.change = self.change(topic.destination, self.now_us)
        self.subscription.owe(topic, before_us)
        self.owed.setdefault(topic, self.now_us)

    def ask(self) -> None:
        """Ask for all that is there."""
        self.now_us += self.rng.randrange(1, 100)
        self.subscription.begin_to_owe(self.now_us)
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
        found_us = subscription.lacked_since_us(topic)
        assert found_us <= since_us
        assert found_us == since_us or not self.exact
        if acknowledged:
            revision = topic.change.revision
            subscription.sent.append(revision)
            subscription.held.add(topic)
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

    def check(self) -> None:
        """Compare."""
        subscription = self.subscription
        assert subscription.since.keys() <= subscription.owed == self.owed.keys()
        assert len(subscription.since) <= SINCE_MAX + UNACKED_MAX
        if not self.owed:
            self.exact = True
        self.exact = self.exact and len(self.owed) <= SINCE_MAX
        owed_us, unacked_us = subscription.owed_since_us(), subscription.unacked_since_us()
        true_owed_us = min(self.owed.values(), default=0)
        true_unacked_us = min([since_us for _, since_us in self.unacked.values()], default=0)
        assert (owed_us > 0, unacked_us > 0) == (true_owed_us > 0, true_unacked_us > 0)
        assert owed_us <= true_owed_us
        assert unacked_us <= true_unacked_us
        if self.exact:
            assert owed_us == true_owed_us


@pytest.mark.parametrize("topics", [3, 20, SINCE_MAX + 300])
def test_what_is_lacked_is_never_called_younger_than_it_is(topics: int) -> None:
    """It is exact up to SINCE_MAX topics owed, and never later than the truth; nothing is lacked exactly when nothing is owed."""
    for seed in range(60 if topics <= SINCE_MAX else 6):
        rng = random.Random(seed)  # noqa: S311 - a test, not a secret
        naive = Naive(topics, rng)
        acknowledged = seed % 2 == 0
        steps = 400 if topics <= SINCE_MAX else 60
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
    """Who was owed very much and has worked it off is as exact again as who never was."""
    rng = random.Random(1)  # noqa: S311 - a test, not a secret
    naive = Naive(3 * SINCE_MAX, rng)
    naive.ask()
    for _ in range(10 * SINCE_MAX):
        naive.publish()
    naive.check()
    since_us = naive.subscription.owed_since_us()
    while naive.owed:
        naive.send(acknowledged=False)
    naive.check()
    for _ in range(SINCE_MAX // 2):
        naive.publish()
    naive.check()
    assert naive.exact
    assert naive.subscription.owed_since_us() > since_us

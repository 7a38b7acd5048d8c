"""Scans over topics that other policies and other SUBSCRIBEs overtake: each value comes once, and none is missing."""

import random
from typing import Any

from tests.simulation.model import Violation
from tests.support.sans_io import World, policy

_TOPICS = tuple(f"X/{n}" for n in range(5))
_GRANTS = (_TOPICS, _TOPICS, _TOPICS[:3], _TOPICS[2:], _TOPICS[:1])


class _Reader:
    """A subscriber, what it may receive, and what it has received since that was last granted or asked for."""

    def __init__(self, granted: tuple[str, ...]) -> None:
        self.granted = granted
        self.world = World.make(**_principals(granted))
        self.sender, self.client = self.world.client("bert"), self.world.client("anna", client_id="anna")
        self.has: dict[str, int] = {}

    def subscribe(self) -> None:
        """Ask for all current values."""
        self.client.subscribe("X/*", "s", "auto", durable=True, eager=True)
        self.world.commit()
        self.has.clear()

    def grant(self, granted: tuple[str, ...]) -> None:
        """Put another policy in force."""
        self.granted = granted
        self.world.broker.replace_policy(policy(**_principals(granted)))
        for topic in set(self.has) - set(granted):
            del self.has[topic]

    def take(self) -> None:
        """Read what has come."""
        for frame in self.client.read():
            if frame.command == b"MESSAGE":
                topic, revision = frame.headers[b"destination"].decode(), int(frame.headers[b"message-id"])
                if topic not in self.granted:
                    raise Violation(f"{topic} came without the right")
                if self.has.get(topic, 0) >= revision:
                    raise Violation(f"{revision} of {topic} came twice")
                self.has[topic] = revision


def overtaken(rng: random.Random) -> None:
    """Change the rights of one subscriber and let it ask for everything again, while earlier scans are under way.

    Raises:
        Violation: A value came twice for one reason, or not at all.
    """
    reader = _Reader(rng.choice(_GRANTS))
    world = reader.world
    for topic in _TOPICS:
        reader.sender.send(topic)
    world.settle()
    reader.subscribe()
    for _ in range(40):
        choice = rng.random()
        if choice < 0.15:
            reader.grant(rng.choice(_GRANTS))
        elif choice < 0.25:
            reader.take()
            reader.client.unsubscribe("s")
            reader.subscribe()
        elif choice < 0.4:
            reader.sender.send(rng.choice(_TOPICS))
            world.commit()
        elif choice < 0.75:
            world.broker.scan(1)
        else:
            reader.take()
    world.settle()
    reader.take()
    for topic in reader.granted:
        newest = world.broker.store.topics[topic.encode()].change.revision
        if reader.has.get(topic) != newest:
            raise Violation(f"{newest} of {topic} has not come, but {reader.has.get(topic)}")


def _principals(granted: tuple[str, ...]) -> dict[str, Any]:
    return {"anna": {"receive": granted}, "bert": {"send": _TOPICS}}

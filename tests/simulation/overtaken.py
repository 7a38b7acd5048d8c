"""Walks over topics that other policies and other SUBSCRIBEs overtake: each value comes once, and none is missing."""

import random

from tests.sans_io import World, policy
from tests.simulation.model import Violation

_TOPICS = tuple(f"X/{n}" for n in range(5))
_GRANTS = (_TOPICS, _TOPICS, _TOPICS[:3], _TOPICS[2:], _TOPICS[:1])


def overtaken(rng: random.Random) -> None:
    """Change the rights of one subscriber and let it ask for everything again, while earlier walks are under way.

    Raises:
        Violation: A value came twice for one reason, or not at all.
    """
    granted = rng.choice(_GRANTS)
    world = World.make(**_principals(granted))
    sender, reader = world.client("bert"), world.client("anna", client_id="anna")
    for topic in _TOPICS:
        sender.send(topic)
    world.settle()
    reader.subscribe("X/*", "s", "auto", durable=True, eager=True)
    world.commit()
    has: dict[str, int] = {}  # topic -> newest revision that came since it was last asked for or granted

    def take() -> None:
        for frame in reader.read():
            if frame.command != b"MESSAGE":
                continue
            topic, revision = frame.headers[b"destination"].decode(), int(frame.headers[b"message-id"])
            if topic not in granted:
                raise Violation(f"{topic} came without the right")
            if has.get(topic, 0) >= revision:
                raise Violation(f"{revision} of {topic} came twice")
            has[topic] = revision

    for _ in range(40):
        choice = rng.random()
        if choice < 0.15:
            granted = rng.choice(_GRANTS)
            world.broker.replace_policy(policy(**_principals(granted)))
            for topic in set(has) - set(granted):
                del has[topic]
        elif choice < 0.25:
            take()
            reader.unsubscribe("s")
            reader.subscribe("X/*", "s", "auto", durable=True, eager=True)
            world.commit()
            has.clear()
        elif choice < 0.4:
            sender.send(rng.choice(_TOPICS))
            world.commit()
        elif choice < 0.75:
            world.broker.scan(1)
        else:
            take()
    world.settle()
    take()
    for topic in granted:
        newest = world.broker.store.topics[topic.encode()].change.revision
        if has.get(topic) != newest:
            raise Violation(f"{newest} of {topic} has not come, but {has.get(topic)}")


def _principals(granted: tuple[str, ...]) -> dict[str, dict[str, tuple[str, ...]]]:
    return {"anna": {"receive": granted}, "bert": {"send": _TOPICS}}

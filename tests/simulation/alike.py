"""Subscribers that are handed out what another was handed out before them, beside such that never are."""

import random

from maxam.stomp.frames import Frame
from tests.support.sans_io import Client, World

_TOPICS = ("X/a", "X/b", "X/c:d", "X/e")
_GLOBS = ("X/*", "X/*", "X/?")
_BODY_BYTES = (10, 10, 6000)  # of the last a drain holds three


def alike(rng: random.Random) -> None:
    """Check that subscribers with one id read what each of them reads with an id of its own."""
    worlds = (World.make(), World.make())
    globs = [rng.choice(_GLOBS) for _ in range(4)]
    ids = [rng.choice("sst") for _ in globs]
    versions = [rng.choice(("1.2", "1.2", "1.1")) for _ in globs]
    senders = [world.client() for world in worlds]
    readers: tuple[list[Client], list[Client]] = ([], [])
    got: tuple[list[list[Frame]], list[list[Frame]]] = ([[] for _ in globs], [[] for _ in globs])
    for own, world in enumerate(worlds):
        for number, glob in enumerate(globs):
            reader = world.client(accept_version=versions[number])
            reader.subscribe(glob, f"{ids[number]}{number}" if own else ids[number], ack="auto")
            readers[own].append(reader)
        world.settle()
    for step in range(40):
        action = rng.random()
        topics = rng.sample(_TOPICS, rng.randint(1, 4))
        body = b"%d" % step * rng.choice(_BODY_BYTES)
        reading = rng.randrange(len(globs))
        for own, world in enumerate(worlds):
            if action < 0.4:
                for topic in topics:
                    senders[own].send(topic, body, note="a\rb")
            elif action < 0.6:
                world.settle()
            else:
                got[own][reading] += readers[own][reading].read_some()
    for own, world in enumerate(worlds):
        world.settle()
        for number, reader in enumerate(readers[own]):
            got[own][number] += reader.read()
    for shared, alone in zip(*got, strict=True):
        if [_told(frame) for frame in shared] != [_told(frame) for frame in alone]:
            raise AssertionError("one who shares read something else than one who does not")
    for number, id_ in enumerate(ids):
        if any(frame.headers[b"subscription"] != id_.encode() for frame in got[0][number]):
            raise AssertionError("a MESSAGE for another subscription")


def _told(frame: Frame) -> tuple[object, ...]:
    return (frame.command, {k: v for k, v in frame.headers.items() if k != b"subscription"}, frame.body)

"""The promises of a library that continues from a position, and of a live map."""

import base64
from functools import partial
from typing import Final

import trio

from maxam.conformance.driver import Driver
from maxam.conformance.stage import Promise, Stage, check
from maxam.conformance.subscribing import subscribe

_TOPICS: Final = 8
_STEPS: Final = 12
_LOSSES_MAX: Final = 4  # each doubles the pauses of the library
_LIVES: Final = 3  # of the program after its first
_MAP_TOPICS: Final = 60
_BROKER_REPORTS_S: Final = 2.5  # the broker sends a position at most once a second


async def position_after_value(stage: Stage) -> None:
    """Let the application take its time with a value, while the broker sends a position after it."""
    driver = await stage.connect()
    await subscribe(stage, driver, markers=True, hold=True, ack="auto")
    await stage.report(driver, "position", subscription="s")
    stage.world.put("X/a", b"v")
    change = stage.world.change_of("X/a")
    assert change is not None  # noqa: S101 - just made
    await stage.report(driver, "value", destination="X/a")
    await trio.sleep(_BROKER_REPORTS_S)
    position = driver.positions.get("s", "")
    check(
        _revision(position) < change.revision,
        "a position was stored that includes a value with which the application was not done",
    )
    await driver.command("done", subscription="s")
    await stage.until(
        lambda: _revision(driver.positions.get("s", "")) >= change.revision, "no position came after the value"
    )


def _has_position(driver: Driver) -> bool:
    driver.check()
    return "s" in driver.positions


def _revision(position: str) -> int:
    """Return the revision of a position, which only its broker may read."""
    parts = position.split(".")
    return int(parts[1]) if len(parts) == 3 else 0


async def continues_after_kill(stage: Stage) -> None:
    """Start a second program with the position and values of the first one, which was killed or is taken over.

    Meanwhile the broker was restarted, restored from a backup, or neither.
    """
    # A program that is taken over while it has no connection would come back and take over in turn.
    kinds = ("kill", "kill, restart", "kill, restore", "take over")
    driver = await stage.connect()
    await subscribe(stage, driver, markers=True)
    for step in stage.chosen(stage.random.choices(kinds, k=_LIVES)):
        end, _, fault = step.partition(", ")
        for _ in range(_TOPICS):
            _change(stage)
        await stage.until(partial(_has_position, driver), "no position was reported")
        await trio.sleep(stage.random.uniform(0, 1.5))
        old = driver
        if end == "kill":
            await old.kill()
            stage.server.cut("the program was killed")
        driver = await stage.driver()
        stored, since = old.stored["s"], old.positions["s"]
        if fault:
            stage.server.restart(lost_changes=stage.random.randint(1, _TOPICS) if fault == "restore" else 0)
        for _ in range(_TOPICS):
            _change(stage)
        driver.values["s"] = dict(stored)
        driver.positions["s"], driver.stored["s"] = since, dict(stored)
        held = {topic: base64.b64encode(body).decode() for topic, body in stored.items()}
        await stage.have_connect(driver, stage.server, again=True)
        await subscribe(stage, driver, markers=True, since=since, held=held)
        await stage.equal(driver, "s")
        await old.kill()


async def since_unavailable(stage: Stage) -> None:
    """Restore the broker from a backup that lacks the newest topic."""
    driver = await stage.connect()
    await subscribe(stage, driver, markers=True)
    await _restored(stage, driver)


async def _restored(stage: Stage, driver: Driver) -> None:
    for topic in ("X/a", "X/b", "X/late"):
        stage.world.put(topic, topic.encode())
    await stage.equal(driver, "s")
    await trio.sleep(_BROKER_REPORTS_S)  # the position is beyond the backup
    before = len(stage.server.connections)
    stage.server.restart(lost_changes=1)
    stage.world.put("X/a", b"after")
    await stage.reconnected(before)
    await stage.equal(driver, "s")


async def map_complete(stage: Stage) -> None:
    """Send many values slowly: the map must not count as complete before the last."""
    for number in range(_MAP_TOPICS):
        stage.world.put(f"X/{number}", b"%d" % number)
    driver = await stage.connect()
    stage.server.faults.pieces = True
    await subscribe(stage, driver, **{"as": "map"})
    report = await stage.report(driver, "synced", subscription="s")
    complete = [e.at_s for e in stage.transcript if e.frame and e.frame.headers.get(b"kind") == b"complete"]
    check(complete and complete[0] <= report["at_s"], "`synced` was reported before the broker had sent `complete`")
    await stage.equal(driver, "s")


async def map_restored(stage: Stage) -> None:
    """The same as `since_unavailable`, with a map."""
    driver = await stage.connect()
    await subscribe(stage, driver, **{"as": "map"})
    await _restored(stage, driver)


async def map_equal(stage: Stage) -> None:
    """Change topics under faults in the order of the seed."""
    random = stage.random
    kinds = ["put"] * 5 + ["delete"] * 2 + ["cut", "cut within a frame", "stop", "kill", "restore", "pieces"]
    steps = random.choices(kinds, k=_STEPS)
    driver = await stage.connect()
    await subscribe(stage, driver, **{"as": "map"})
    losses = 0
    for step in stage.chosen(steps):
        if step in ("put", "delete"):
            for _ in range(stage.random.randint(1, 5)):
                _change(stage, deletes=step == "delete")
        elif step == "pieces":
            stage.server.faults.pieces = not stage.server.faults.pieces
        elif losses < _LOSSES_MAX:
            losses += 1
            before = len(stage.server.connections)
            await _lose(stage, step)
            await stage.reconnected(before)
        await trio.sleep(stage.random.uniform(0, 0.1))
    _change(stage)
    await stage.equal(driver, "s")


async def _lose(stage: Stage, how: str) -> None:
    server = stage.server
    if how == "cut within a frame":
        server.faults.cut_after = stage.random.randint(1, 400)
        for _ in range(_TOPICS):
            _change(stage)
        with trio.move_on_after(1):
            while server.faults.cut_after is not None:  # noqa: ASYNC110
                await trio.sleep(0.02)
        server.faults.cut_after = None
        server.cut()
    elif how == "cut":
        server.cut()
    else:
        lost = stage.random.randint(1, 3) if how == "restore" else 0
        server.restart(lost_changes=lost, graceful=how == "stop")


def _change(stage: Stage, deletes: bool = False) -> None:
    random = stage.random
    topic = f"X/{random.randrange(_TOPICS)}"
    stage.world.put(topic, b"" if deletes or random.random() < 0.2 else random.randbytes(random.randint(1, 40)))


PROMISES: Final = (
    Promise(
        "position-after-value",
        "resumer",
        "A position is stored when the application is done with all values before it.",
        position_after_value,
        (),
    ),
    Promise(
        "continues-after-kill",
        "resumer",
        "Killed or taken over, the program continues from its position without a gap.",
        continues_after_kill,
        ("position-after-value",),
        seeded=True,
    ),
    Promise(
        "since-unavailable",
        "resumer",
        "If a position cannot be used, topics that are gone are dropped.",
        since_unavailable,
        ("resubscribes",),
    ),
    Promise("map-complete", "map", "The map counts as complete when it has all values.", map_complete, ()),
    Promise(
        "map-restored",
        "map",
        "If a position cannot be used, topics that are gone leave the map.",
        map_restored,
        ("resubscribes",),
    ),
    Promise(
        "map-equal",
        "map",
        "The map is equal to the broker's values after every fault.",
        map_equal,
        ("resubscribes",),
        seeded=True,
    ),
)

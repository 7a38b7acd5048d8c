"""A live map, and what a program makes of its changes, end equal to the broker: on both event loops, and without `async`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.client import Change, sync
from maxam.client.resume import resume
from tests.properties.client.test_resume import LIVE_STEPS, OPTIONS, SETTLED_S, restarted, wanted
from tests.support.event_loops import EVENT_LOOPS, EventLoop, JumpingLoop, simulated
from tests.support.served_world import ServedWorld

MAP_OPTIONS = [
    {name: value for name, value in options.items() if name in ("selector", "min_interval_s")} for options in OPTIONS
]
# Those of the TypeScript client too: a seed of Hypothesis gives the same histories.
LIVE_HISTORIES = (
    st.sampled_from(EVENT_LOOPS),
    st.sampled_from(MAP_OPTIONS),
    st.sampled_from([0.0, 0.2, 5.0]),
    st.lists(LIVE_STEPS, max_size=12),
)


def note(kept: dict[str, bytes], change: Change[bytes]) -> None:
    """Apply a change to what a program keeps. Its `previous` is what the program had."""
    assert kept.get(change.destination) == change.previous
    if change.value is None:
        assert change.deleted
        kept.pop(change.destination, None)
    else:
        kept[change.destination] = change.value


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(*LIVE_HISTORIES)
def test_any_history_ends_equal(
    event_loop: EventLoop, options: dict[str, Any], pace_s: float, steps: list[tuple[Any, ...]]
) -> None:
    """A program that takes `pace_s` for each change, while connections break, the gateway restarts and rights change.

    A takeover ends it. It is started again, with nothing.
    """

    async def follow(served: ServedWorld, kept: dict[str, bytes], maps: list[Any]) -> None:
        kept.clear()
        async with (
            resume(served.connected, "me") as client,
            client.values("X/**", type=bytes, sync=False, **options) as values,
        ):
            maps.append(values)
            async for change in values:
                note(kept, change)
                await anyio.sleep(pace_s)

    async def test() -> None:
        served, kept, maps = ServedWorld(), dict[str, bytes](), list[Any]()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restarted, served, lambda: follow(served, kept, maps))
            await anyio.sleep(1)  # the first connection must be made
            for step in (*steps, ("wait", 3 * SETTLED_S)):
                await anyio.sleep(served.do(step))
            assert served.takeovers == 0
            assert maps[-1].synced
            tasks.cancel_scope.cancel()
        assert kept == dict(maps[-1]) == wanted(served, options)

    simulated(test, event_loop)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MAP_OPTIONS), st.lists(LIVE_STEPS.filter(lambda step: step[0] != "takeover"), max_size=12))
def test_any_history_of_the_face_without_async_ends_equal(
    options: dict[str, Any], steps: list[tuple[Any, ...]]
) -> None:
    """The same for a program that takes the changes after each step, in a thread of its own, and keeps its session."""
    served, kept = ServedWorld(), dict[str, bytes]()

    async def in_loop(work: Callable[[], float]) -> None:
        await anyio.sleep(work())

    loop_factory = partial(JumpingLoop, alone=False)
    with (
        sync.Client(lambda: resume(served.connected, "me"), loop_factory) as client,
        client.values("X/**", type=bytes, sync=False, **options) as values,
    ):
        for step in (*steps, ("wait", 3 * SETTLED_S)):
            client._thread.call(in_loop(partial(served.do, step)))
            while (change := values.change(timeout_s=0)) is not None:
                note(kept, change)
        values.sync()
        assert values.synced
        while (change := values.change(timeout_s=0)) is not None:
            note(kept, change)
        assert kept == dict(values) == wanted(served, options)

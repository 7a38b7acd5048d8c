"""The live map of `@maxam/client` ends equal to the broker, by the same histories as the Python client."""

import math
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from hypothesis import given, settings

from maxam.client.subscription import AckMode
from tests.properties.client.test_live_values import LIVE_HISTORIES
from tests.properties.client.test_resume import (
    KILL_HISTORIES,
    SETTLED_S,
    STRIDE,
    TOPICS,
    play_history,
    restarted,
    wanted,
)
from tests.support.event_loops import EventLoop, simulated
from tests.support.served_world import EVER, ServedWorld
from tests.support.typescript_client import TypeScriptClient
from tests.web.node import require_package, run_node


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TypeScriptClient]:
    """Start the client once for all histories."""
    require_package()
    out = tmp_path_factory.mktemp("programs") / "tests"
    run_node("build.mjs", "--tests", "--out", str(out))
    with TypeScriptClient(out) as process:
        yield process


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(*LIVE_HISTORIES)
def test_any_history_ends_equal(
    client: TypeScriptClient, event_loop: EventLoop, options: dict[str, Any], pace_s: float, steps: list[Any]
) -> None:
    """A program that takes `pace_s` for each change, while connections break, the gateway restarts and rights change.

    A takeover ends it. It is started again, and continues from what it has stored.
    """

    async def test() -> None:
        served = ServedWorld()
        program = Program(client, served, {"pace_s": pace_s, **options})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restarted, served, lambda: program.run(math.inf, EVER))
            await anyio.sleep(1)  # the first connection must be made
            for step in (*steps, ("wait", 3 * SETTLED_S)):
                await anyio.sleep(served.do(step))
            assert served.takeovers == 0
            assert client.synced
            tasks.cancel_scope.cancel()
        assert client.kept == client.map == wanted(served, options)

    simulated(test, event_loop)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(*KILL_HISTORIES)
def test_any_history_with_kills_ends_equal(
    client: TypeScriptClient, event_loop: EventLoop, ack: AckMode, options: dict[str, Any], steps: list[Any]
) -> None:
    """Changes, kills, restarts, restores, other rights and forgotten deletes, while the program runs and while it does not."""
    del ack  # the TypeScript client has one mode

    async def test() -> None:
        served = ServedWorld()
        await play_history(served, steps, Program(client, served, options).run)
        assert client.kept == client.map == wanted(served, options)

    simulated(test, event_loop)


@pytest.mark.slow
@pytest.mark.parametrize("restored", [False, True])
def test_killed_at_any_byte_it_ends_equal(client: TypeScriptClient, restored: bool) -> None:
    """The program is killed after any number of bytes of its catch-up, or of its second snapshot. Then more changes."""

    async def history(cut: int) -> int:
        served = ServedWorld()
        program = Program(client, served, {})
        for topic in TOPICS[:3]:
            served.send(topic, b"1")
        await program.run(SETTLED_S, EVER)
        assert client.kept == served.values
        served.send("X/a", b"2")
        served.send("X/b", b"")
        served.send("X/d", b"2")
        if restored:
            served.restart("fedcba9876543210")
        before = served.sent_bytes
        await program.run(SETTLED_S, cut)
        sent = served.sent_bytes - before
        served.send("X/d", b"")
        served.send("X/b", b"3")
        await program.run(SETTLED_S, EVER)
        assert client.kept == client.map == served.values == {"X/a": b"2", "X/b": b"3", "X/c": b"1"}, cut
        return sent

    async def test() -> None:
        total = await history(EVER)
        assert total > 400
        for cut in range(0, total, STRIDE if restored else 1):
            assert await history(cut) <= cut

    simulated(test, "trio")


class Program:
    """A program that is killed, and that continues from what it has stored."""

    def __init__(self, client: TypeScriptClient, served: ServedWorld, options: dict[str, Any]) -> None:
        self._client = client
        self._served = served
        self._options = options
        self._again = False

    async def run(self, seconds: float, bytes_max: int) -> None:
        """Run it until a time has passed or its connection breaks, and kill it. It ends by itself when its session is taken over."""
        again, self._again = self._again, True
        with anyio.move_on_after(seconds):
            await self._client.run(self._served, bytes_max, again=again, **self._options)

"""The live map, against a broker without I/O, on both event loops."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from maxam.client import Change, Client, ClientError, GatewayError, LiveValues, ResumingClient, State, UnreachableError
from maxam.client.resume import resume
from maxam.client.values import Board
from tests.support.event_loops import on_both_loops
from tests.support.served_world import ServedWorld


@asynccontextmanager
async def mapped(served: ServedWorld, **given: Any) -> AsyncIterator[LiveValues[Any]]:
    """Keep the bodies of all topics by one resuming client."""
    async with resume(served.connected, "me") as client, client.values("X/**", type=bytes, **given) as values:
        yield values


async def taken(values: LiveValues[Any]) -> list[tuple[str, Any, Any, bool]]:
    """Return the changes that wait."""
    found = []
    with anyio.move_on_after(1):
        async for change in values:
            row = (change.destination, change.previous, change.value, change.deleted)
            found.append(row)
    return found


@on_both_loops
async def test_entering_waits_for_all_values() -> None:
    """The map has all values at once, and only later changes are changes."""
    served = ServedWorld()
    served.send("X/a", b"1")
    served.send("X/b", b"1")
    async with mapped(served) as values:
        assert values.synced
        assert dict(values) == {"X/a": b"1", "X/b": b"1"}
        assert (len(values), sorted(values), values["X/a"], values.get("X/z")) == (2, ["X/a", "X/b"], b"1", None)
        served.send("X/a", b"2")
        served.send("X/b", b"")
        served.send("X/c", b"1")
        assert await taken(values) == [
            ("X/a", b"1", b"2", False),
            ("X/b", b"1", None, True),
            ("X/c", None, b"1", False),
        ]
        assert dict(values) == served.values


@on_both_loops
async def test_without_sync_the_first_values_are_changes() -> None:
    """Entering returns before they come."""
    served = ServedWorld()
    served.send("X/a", b"1")
    async with mapped(served, sync=False) as values:
        assert not values.synced
        assert await taken(values) == [("X/a", None, b"1", False)]
        await values.sync()
        assert values.synced


@on_both_loops
async def test_a_slow_program_gets_the_newest_state() -> None:
    """Changes of a topic become one, with the value that the program saw last. A topic that came and went unseen is no change."""
    served = ServedWorld()
    served.send("X/a", b"1")
    async with mapped(served) as values:
        for number in range(2, 200):
            served.send("X/a", b"%d" % number)
            await anyio.sleep(0.01)
        served.send("X/b", b"1")
        await anyio.sleep(1)
        served.send("X/b", b"")
        await anyio.sleep(1)
        assert await taken(values) == [("X/a", b"1", b"199", False)]


@on_both_loops
async def test_a_lost_connection_is_no_change() -> None:
    """The map is not synced meanwhile. Afterwards only what really changed is reported, also after a restore."""
    served, states, maps = ServedWorld(), list[State](), list[LiveValues[bytes]]()

    def shown(state: State) -> None:
        states.append(state)
        assert not any(values.synced for values in maps)

    async def show(client: ResumingClient) -> None:
        async with client.values("X/**", type=bytes) as values:
            assert values.synced
            maps.append(values)
            served.cut()
            served.send("X/a", b"2")
            served.send("X/c", b"")
            served.restart("fedcba9876543210")
            await anyio.sleep(5)
            assert values.synced
            assert dict(values) == served.values == {"X/a": b"2", "X/b": b"1"}
            assert await taken(values) == [("X/a", b"1", b"2", False), ("X/c", b"1", None, True)]

    for topic in ("X/a", "X/b", "X/c"):
        served.send(topic, b"1")
    async with resume(served.connected, "me", on_state=shown) as client:
        await show(client)
    names = [state.name for state in states]
    assert names[0] == "connected"
    assert names[-1] == "closed"
    assert {"waiting", "connecting"} <= set(names)
    assert all((state.retry_in_s is not None) == (state.name == "waiting") for state in states)
    assert {state.code for state in states if state.name == "waiting"} == {"connection-lost"}
    assert states[-1] == State("closed")


@on_both_loops
async def test_pauses_have_a_limit() -> None:
    """While no connection can be made, no pause exceeds `pause_max_s`, and attempts go on until one succeeds."""
    served = ServedWorld()
    dials = 0
    pauses = []

    @asynccontextmanager
    async def dial(session: str | None) -> AsyncIterator[Client]:
        nonlocal dials
        dials += 1
        if 1 < dials < 30:
            raise UnreachableError("no gateway")
        async with served.connected(session) as client:
            yield client

    async with resume(dial, "me", lambda _reason, wait_s: pauses.append(wait_s), pause_max_s=2) as client:
        served.cut()
        await anyio.sleep(60)
        assert client.connections == 2
    assert len(pauses) == 29
    assert max(pauses) <= 2


@on_both_loops
async def test_a_limit_of_pauses_that_would_flood_a_gateway_is_refused() -> None:
    """Nothing is dialled then."""
    served = ServedWorld()
    for seconds in (0.0, -1.0, 0.24, float("nan")):
        with pytest.raises(ClientError):
            async with resume(served.connected, "me", pause_max_s=seconds):
                pass
    assert served.sent_bytes == 0


@on_both_loops
async def test_a_takeover_is_final() -> None:
    """Iteration and `sync` raise it, the map keeps what it has, and the state shows the reason."""
    served = ServedWorld()
    served.send("X/a", b"1")
    async with resume(served.connected, "me") as client, client.values("X/**", type=bytes) as values:
        async with served.connected("me"):
            with pytest.raises(GatewayError):
                await anext(values)
        with pytest.raises(GatewayError):
            await values.sync()
        assert (client.state.name, client.state.final, client.state.code) == ("closed", True, "stomp-error")
        assert not values.synced
        assert dict(values) == {"X/a": b"1"}


@on_both_loops
async def test_a_refused_subscription_does_not_loop() -> None:
    """A glob that no topic can match is refused once: entering raises, and the client goes on."""
    served = ServedWorld()
    async with resume(served.connected, "me") as client:
        with pytest.raises(GatewayError):
            async with client.values("X//"):
                pytest.fail("entered")
        await anyio.sleep(100)
        assert client.connections == 2
        async with client.values("X/**", type=bytes) as values:
            assert not values


@on_both_loops
async def test_cancelling_an_iteration_loses_no_change() -> None:
    """A time-out between two changes, and tasks that are cancelled."""
    served = ServedWorld()
    async with mapped(served) as values:
        seen = []
        for number in range(20):
            served.send(f"X/{number}", b"v")
            with anyio.move_on_after(0.01 * (number % 3)):
                while True:
                    seen.append((await anext(values)).destination)
        seen += [name for name, *_ in await taken(values)]
        assert sorted(seen) == sorted(served.values)


@on_both_loops
async def test_a_plain_connection_has_live_maps_too() -> None:
    """They end with it, by the reason for its end."""
    served = ServedWorld()
    served.send("X/a", b"1")
    async with served.connected("me") as client, client.values("X/**", type=bytes) as values:
        assert dict(values) == {"X/a": b"1"}
        served.cut()
        with pytest.raises(ClientError):
            await anext(values)
        assert not values.synced


@dataclass(frozen=True)
class Shown:
    """A message as the board reads it."""

    destination: str
    kind: str
    body: bytes = b""

    @property
    def deleted(self) -> bool:
        """As in a message."""
        return self.kind in ("delete", "left")


def test_notices_mark_values_as_stale() -> None:
    """`stale` and `fresh` are changes, a value of a stale topic is fresh, and a notice of an unknown topic is none."""
    board = Board[bytes](lambda message: message.body, lambda: None)
    board.recording = True

    def apply(kind: str, body: bytes = b"", topic: str = "X/a") -> Change[bytes] | None:
        board.apply(Shown(topic, kind, body))  # type: ignore[arg-type]
        return board.take()

    assert apply("stale") is None
    assert apply("value", b"1") == Change("X/a", b"1", None, False, False, None)
    assert apply("stale") == Change("X/a", b"1", b"1", False, True, None)
    assert apply("stale") is None
    assert apply("fresh") == Change("X/a", b"1", b"1", False, False, None)
    assert apply("fresh") is None
    assert apply("stale") is not None
    assert apply("fresh", b"2") == Change("X/a", b"2", b"1", False, False, None)
    assert apply("value", b"2") is None
    assert apply("left") == Change("X/a", None, b"2", True, False, None)
    assert apply("delete") is None

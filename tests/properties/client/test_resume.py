"""A client that keeps its values and the position ends equal to the broker, wherever its connection or itself is cut off."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.client import Client, ClientError, GatewayError
from maxam.client.resume import ResumingClient, resume
from maxam.client.subscription import AckMode
from maxam.stomp.answers import SESSION_TAKEN_OVER
from tests.support.event_loops import EVENT_LOOPS, EventLoop, simulated
from tests.support.served_world import EVER, ServedWorld

ALL = {"send": ["X/**"], "receive": ["X/**"]}
LESS = {"send": ["X/**"], "receive": ["X/*a", "X/*b"]}
OTHER = {"send": ["X/**"], "receive": ["X/*b", "X/*c"]}
TOPICS = ["X/a", "X/b", "X/c", "X/d"]
SETTLED_S = 20.0  # every position has been reported by then
STRIDE = 7  # of the numbers of bytes, where not each is tried
ACK_MODES: list[AckMode] = ["client", "client-individual", "auto"]


@dataclass
class Kept:
    """Values and a position that belong together, as a program has stored them."""

    values: dict[str, bytes] = field(default_factory=dict)
    position: str | None = None


async def program(client: Client | ResumingClient, kept: Kept, **given: Any) -> None:
    """Keep the values, and store them with the position before each message and at each new position."""
    values = dict(kept.values)
    subscription = client.subscribe("X/**", since=kept.position, values=values, **given)

    def store() -> None:
        kept.values, kept.position = dict(values), subscription.position

    async def store_positions() -> None:
        position = None
        while True:
            position = await subscription.position_after(position)
            store()

    async with subscription, anyio.create_task_group() as tasks:
        tasks.start_soon(store_positions)
        async for _ in subscription:
            store()


def taken_over(error: BaseException) -> bool:
    """Return True for the end of a connection whose session another one has taken."""
    return isinstance(error, GatewayError) and error.message == SESSION_TAKEN_OVER


async def run_program(
    served: ServedWorld, kept: Kept, seconds: float = SETTLED_S, bytes_max: int = EVER, **given: Any
) -> None:
    """Run the program on one connection until a time has passed or the connection ends, and kill it."""
    with anyio.move_on_after(seconds):
        try:
            async with served.connected("me", bytes_max) as client:
                await program(client, kept, **given)
        except* ClientError as errors:
            if bytes_max == EVER and errors.split(taken_over)[1] is not None:
                raise


@pytest.mark.slow
@pytest.mark.parametrize("event_loop", EVENT_LOOPS)
@pytest.mark.parametrize("ack", ACK_MODES)
@pytest.mark.parametrize("restored", [False, True])
def test_killed_at_any_byte_it_ends_equal(event_loop: EventLoop, ack: AckMode, restored: bool) -> None:
    """The program is killed after any number of bytes of its catch-up, or of its second snapshot. Then more changes."""

    async def history(cut: int) -> int:
        served, kept = ServedWorld(), Kept()
        for topic in TOPICS[:3]:
            served.send(topic, b"1")
        await run_program(served, kept, ack=ack)
        assert kept.values == served.values
        served.send("X/a", b"2")
        served.send("X/b", b"")
        served.send("X/d", b"2")
        if restored:
            served.restart("fedcba9876543210")
        before = served.sent_bytes
        await run_program(served, kept, bytes_max=cut, ack=ack)
        sent = served.sent_bytes - before
        served.send("X/d", b"")
        served.send("X/b", b"3")
        await run_program(served, kept, ack=ack)
        assert kept.values == served.values == {"X/a": b"2", "X/b": b"3", "X/c": b"1"}, cut
        assert kept.position is not None
        return sent

    async def test() -> None:
        total = await history(EVER)
        assert total > 400
        for cut in range(0, total, 1 if ack == "client" and event_loop == "trio" else STRIDE):
            assert await history(cut) <= cut

    simulated(test, event_loop)


@pytest.mark.slow
@pytest.mark.parametrize("event_loop", EVENT_LOOPS)
@pytest.mark.parametrize("given_values", [True, False])
@pytest.mark.parametrize("ack", ACK_MODES)
def test_cut_at_any_byte_a_resuming_client_ends_equal(event_loop: EventLoop, ack: AckMode, given_values: bool) -> None:
    """A connection that breaks after any number of bytes is resumed; changes come meanwhile, and a restart may."""

    async def history(cut: int, restart: str) -> int:
        served = ServedWorld()
        for topic in TOPICS[:3]:
            served.send(topic, b"1")
        limits = [cut]
        values: dict[str, bytes] = {}

        def dial(session: str | None) -> Any:
            return served.connected(session, limits.pop(0) if limits else EVER)

        def lost(_: ClientError, __: float) -> None:
            served.send("X/d", b"")
            served.send("X/b", b"3")
            if restart:
                served.restart(restart)

        with anyio.move_on_after(2 * SETTLED_S):
            async with resume(dial, "me", lost) as client:
                marked: dict[str, Any] = {"values": values} if given_values else {"markers": True, "eager": True}
                subscription = client.subscribe("X/**", id="s", ack=ack, **marked)
                async with subscription, anyio.create_task_group() as tasks:

                    async def change() -> None:
                        await anyio.sleep(1)
                        served.send("X/a", b"2")
                        served.send("X/b", b"")
                        served.send("X/d", b"2")

                    tasks.start_soon(change)
                    async for message in subscription:
                        if not given_values:
                            values[message.destination] = message.body
                            if message.deleted:
                                del values[message.destination]
        assert values == served.values, (cut, restart)
        return served.sent_bytes

    async def test() -> None:
        first = await history(180, "")  # CONNECTED must come
        for restart in ("", "fedcba9876543210"):
            for cut in range(180, first, 1 if given_values and ack == "auto" and event_loop == "trio" else STRIDE):
                await history(cut, restart)

    simulated(test, event_loop)


SENDS = st.lists(st.tuples(st.sampled_from(TOPICS), st.sampled_from([b"1", b"2", b""])), max_size=4)
STEPS = st.one_of(
    st.tuples(st.just("send"), SENDS),
    st.tuples(st.just("forget")),
    st.tuples(st.just("run"), st.integers(0, 1500), st.sampled_from([0.0, 0.5, 3.0, SETTLED_S])),
    st.tuples(st.just("live"), SENDS),
    st.tuples(st.just("takeover"), SENDS),
    st.tuples(st.just("restart"), st.sampled_from([None, "0000000000000001", "0000000000000002"])),
    st.tuples(st.just("rights"), st.sampled_from([ALL, LESS, OTHER]), st.booleans()),
)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"selector": "header('h') = '1'"},
    {"changes_only": True},
    {"min_interval_s": 2.0},
    {"metadata": True, "selector": "header('h') = '1'", "changes_only": True, "min_interval_s": 0.5},
]


def wanted(served: ServedWorld, options: dict[str, Any]) -> dict[str, bytes]:
    """Return the values that the program may receive, and that its selector wants."""
    rights = served.world.broker.policy.rights("anna")
    received = {topic: body for topic, body in served.values.items() if rights.may_receive(topic.encode())}
    return {topic: body for topic, body in received.items() if body == b"1" or "selector" not in options}


# Those of the TypeScript client too: a seed of Hypothesis gives the same histories.
KILL_HISTORIES = (
    st.sampled_from(EVENT_LOOPS),
    st.sampled_from(ACK_MODES),
    st.sampled_from(OPTIONS),
    st.lists(STEPS, max_size=12),
)


async def play_history(
    served: ServedWorld, steps: list[tuple[Any, ...]], run: Callable[[float, int], Awaitable[None]]
) -> None:
    """Do the steps. `run` runs the program for some seconds, or until its connection breaks after some bytes, and kills it.

    A takeover ends the program at once: it does not take the session back.
    """

    async def run_until_settled() -> None:
        await run(SETTLED_S, EVER)

    for step in (*steps, ("run", EVER, SETTLED_S)):
        match step:
            case ("send", sends):
                for topic, body in sends:
                    served.send(topic, body)
            case ("run", bytes_max, seconds):
                await run(seconds, bytes_max)
            case ("live", sends):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run_until_settled)
                    await anyio.sleep(SETTLED_S / 2)
                    for topic, body in sends:
                        served.send(topic, body)
                        await anyio.lowlevel.checkpoint()
            case ("takeover", sends):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run_until_settled)
                    await anyio.sleep(SETTLED_S / 2)
                    began_s = anyio.current_time()
                    served.take_over()
                    for topic, body in sends:
                        served.send(topic, body)
                assert anyio.current_time() < began_s + 1
            case ("forget",):
                served.forget()
            case ("restart", incarnation):
                served.restart(incarnation)
            case ("rights", rights, running):
                async with anyio.create_task_group() as tasks:
                    if running:
                        tasks.start_soon(run_until_settled)
                        await anyio.sleep(SETTLED_S / 2)
                    served.grant(rights)
            case _:
                raise AssertionError(step)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(*KILL_HISTORIES)
def test_any_history_ends_equal(
    event_loop: EventLoop, ack: AckMode, options: dict[str, Any], steps: list[tuple[Any, ...]]
) -> None:
    """Changes, kills, restarts, restores, other rights and forgotten deletes, while the program runs and while it does not."""

    async def test() -> None:
        served, kept = ServedWorld(), Kept()
        await play_history(
            served, steps, lambda seconds, bytes_max: run_program(served, kept, seconds, bytes_max, ack=ack, **options)
        )
        assert kept.values == wanted(served, options)

    simulated(test, event_loop)


LIVE_STEPS = st.one_of(
    st.tuples(st.just("send"), SENDS),
    st.tuples(st.just("forget")),
    st.tuples(st.just("cut")),
    st.tuples(st.just("takeover")),
    st.tuples(st.just("restart"), st.sampled_from([None, "0000000000000001", "0000000000000002"])),
    st.tuples(st.just("rights"), st.sampled_from([ALL, LESS, OTHER])),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 0.3, 2.0, SETTLED_S])),
)


async def restarted(served: ServedWorld, keep: Callable[[], Awaitable[None]]) -> None:
    """Run a program for ever. It ends when its session is taken over, and only then, and is started again."""
    while True:
        try:
            await keep()
        except GatewayError as error:
            if not taken_over(error):
                raise
        served.takeovers -= 1
        assert served.takeovers == 0


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(EVENT_LOOPS),
    st.sampled_from(ACK_MODES),
    st.sampled_from(OPTIONS),
    st.booleans(),
    st.lists(LIVE_STEPS, max_size=12),
)
def test_any_history_of_a_resuming_client_ends_equal(
    event_loop: EventLoop, ack: AckMode, options: dict[str, Any], given_values: bool, steps: list[tuple[Any, ...]]
) -> None:
    """The same for a program that goes on while its connections break. Without `values` it keeps them by the messages.

    A takeover ends it. It is started again, and continues from its values and position.
    """

    async def keep(served: ServedWorld, kept: Kept) -> None:
        values = kept.values
        marked: dict[str, Any] = {"markers": True, "eager": True}
        if given_values:
            marked = {"values": values, "since": kept.position}
        else:
            values.clear()
        async with (
            resume(served.connected, "me") as client,
            client.subscribe("X/**", id="s", ack=ack, **marked, **options) as subscription,
        ):
            try:
                async for message in subscription:
                    if not given_values:
                        values[message.destination] = message.body
                        if message.deleted:
                            del values[message.destination]
            finally:
                kept.position = subscription.position

    async def test() -> None:
        served, kept = ServedWorld(), Kept()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restarted, served, lambda: keep(served, kept))
            for step in (*steps, ("wait", 3 * SETTLED_S)):
                pause_s = served.do(step)
                if pause_s:
                    await anyio.sleep(pause_s)
            tasks.cancel_scope.cancel()
        assert served.takeovers == 0
        assert kept.values == wanted(served, options)

    simulated(test, event_loop)

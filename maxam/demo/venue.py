"""A venue against a real gateway: machines that publish, an eager subscriber, a slow one, and the figures of all."""

import random
import secrets
import signal
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

import trio
from rich.console import Console

from maxam.avro.registry import Registry
from maxam.client import ClientError, ResumingClient, resuming
from maxam.demo.bodies import Bodies
from maxam.demo.floor import Floor
from maxam.demo.machines import Machine, Told
from maxam.demo.screen import Screen
from maxam.failover.measures import HEADER, Published, Received

EVERYTHING: Final = "X/EGM.*"
READINGS: Final = ".EGMMeterReading"  # what the slow subscriber wants
SETTLE_TIMEOUT_S: Final = 60.0  # for the last values to arrive when publishing has ended
SETTLE_CHECK_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0  # before a client connects again: three are no burden for a gateway that starts
STOP_TIMEOUT_S: Final = 3.0  # for what is being published to be answered at the end: the gateway may be gone


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of one run.

    Attributes:
        address: Of the gateway.
        port: Its STOMP port.
        certificates: Folder with `ca.pem` and the certificates of `publisher` and `subscriber`.
        machines: Number of machines.
        readings_per_s: Of each machine, on average.
        slow_s: Time that the slow subscriber takes for a message.
        seconds: How long to publish. None publishes until SIGINT or SIGTERM.
    """

    address: str
    port: int
    certificates: Path
    machines: int
    readings_per_s: float
    slow_s: float
    seconds: float | None


async def play(plan: Plan, registry: Registry, console: Console) -> bool:
    """Play until the plan's time is over or a signal comes, let the last values arrive, and print a summary.

    Returns:
        Whether every subscriber ended on the last accepted value of every topic, all were answered, and none was rejected.

    Raises:
        ClientError: The gateway cannot be reached, or refuses us.
    """
    bodies = Bodies(registry)
    run = secrets.token_hex(4)  # another demo beside this one has sessions of its own
    published = Published(run)
    eager = Received(published, "")
    slow = Received(published, READINGS)
    floor = Floor(bodies)
    title = f"maxam demo · {plan.address}:{plan.port} · {plan.machines} machines"
    screen = Screen(console, title, floor, published, eager, slow, plan.slow_s)
    stopping = trio.Event()

    async with (
        _connection(plan, "publisher", f"machines-{run}", screen) as publisher,
        _connection(plan, "subscriber", f"display-{run}", screen) as viewer,
        _connection(plan, "subscriber", f"slow-display-{run}", screen) as idler,
    ):
        with screen:
            async with trio.open_nursery() as background:
                await background.start(_watch, viewer, eager, floor)
                await background.start(_dawdle, idler, slow, plan.slow_s, stopping)
                background.start_soon(_show, screen)
                async with trio.open_nursery() as floor_nursery:
                    background.start_soon(
                        _end, background.cancel_scope, floor_nursery.cancel_scope, stopping, plan.seconds
                    )
                    for number in range(plan.machines):
                        machine = Machine(number, random.Random(number))  # noqa: S311 - a game, and repeatable
                        floor_nursery.start_soon(
                            run_machine, machine, plan.readings_per_s, publisher, bodies, published, stopping
                        )
                answered = not floor_nursery.cancel_scope.cancelled_caught
                if answered:
                    screen.add_news(
                        "publishing ended; the slow subscriber now takes what it is still owed at full speed"
                    )
                else:
                    screen.add_news(f"what was published last was not answered within {STOP_TIMEOUT_S:g} s")
                with trio.move_on_after(SETTLE_TIMEOUT_S if answered else 0):
                    # once somebody else publishes, our last values may never come
                    while not eager.overwritten and (eager.stale() or slow.stale()):  # noqa: ASYNC110 - a figure of three tasks, which none of them knows
                        await trio.sleep(SETTLE_CHECK_S)
                screen.refresh()
                background.cancel_scope.cancel()
    return _summarise(console, published, eager, slow, plan) and answered


def _connection(plan: Plan, name: str, client_id: str, screen: Screen) -> AbstractAsyncContextManager[ResumingClient]:
    folder = plan.certificates

    def report(reason: ClientError, wait_s: float) -> None:
        screen.add_news(f"{name}: {reason}; trying again in {wait_s:.1f} s")

    return resuming(
        plan.address,
        plan.port,
        certificate=folder / f"{name}.pem",
        key=folder / f"{name}.key",
        ca=folder / "ca.pem",
        client_id=client_id,
        on_loss=report,
        pause_max_s=PAUSE_MAX_S,
    )


async def _watch(
    client: ResumingClient, received: Received, floor: Floor, *, task_status: trio.TaskStatus[None]
) -> None:
    """Take everything as fast as it comes."""
    async with client.subscribe(EVERYTHING, eager=True) as subscription:
        task_status.started()
        async for message in subscription:
            received.take(message.destination, message.headers.get(HEADER, ""), time.monotonic())
            floor.take(message.destination, message.body)


async def _dawdle(
    client: ResumingClient,
    received: Received,
    pause_s: float,
    stopping: trio.Event,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Take readings one by one, and think about each for `pause_s` until `stopping`."""
    async with client.subscribe(EVERYTHING + READINGS, eager=True) as subscription:
        task_status.started()
        async for message in subscription:
            received.take(message.destination, message.headers.get(HEADER, ""), time.monotonic())
            with trio.move_on_after(pause_s):
                await stopping.wait()


async def run_machine(
    machine: Machine,
    readings_per_s: float,
    client: ResumingClient,
    bodies: Bodies,
    published: Published,
    stopping: trio.Event,
) -> None:
    """Let a machine play and publish its values, one after the other, until `stopping`."""
    chance = random.Random(machine.gmid)  # noqa: S311 - a game
    told = machine.switch_on(_now_ms())
    while True:
        for each in told:
            await _publish(each, client, bodies, published)
        # an exponential pause: machines are not in step, and each has its bursts
        with trio.move_on_after(min(chance.expovariate(readings_per_s), 10 / readings_per_s)):
            await stopping.wait()
        if stopping.is_set():
            return
        told = machine.play(_now_ms())


async def _publish(told: Told, client: ResumingClient, bodies: Bodies, published: Published) -> None:
    body = bodies.encode(told.destination, told.value)
    began_s = time.monotonic()
    place, headers = published.sending(told.destination, began_s)
    # `retry` is right here: no other client publishes these topics, and this task sends one value after the other
    receipt = await client.send(told.destination, body, headers, retry=True)
    published.latencies_s.append(time.monotonic() - began_s)
    if receipt.accepted:
        published.accepted[told.destination] = place
    else:
        published.rejected += 1
        published.reason = f"{receipt.disposition} {receipt.result} {receipt.reason} ({told.destination})"


async def _show(screen: Screen) -> None:
    while True:
        screen.refresh()
        await trio.sleep(screen.refresh_s)


async def _end(
    scope: trio.CancelScope, publishing: trio.CancelScope, stopping: trio.Event, seconds: float | None
) -> None:
    """End publishing after `seconds` or at the first signal, soon even without an answer, and everything at the second."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        with trio.move_on_after(float("inf") if seconds is None else seconds):
            await anext(signals)
        stopping.set()
        publishing.deadline = trio.current_time() + STOP_TIMEOUT_S
        await anext(signals)
        scope.cancel()


def _now_ms() -> int:
    return int(time.time() * 1000)


def _summarise(console: Console, published: Published, eager: Received, slow: Received, plan: Plan) -> bool:
    say = partial(console.print, highlight=False, soft_wrap=True)
    say(
        f"\npublished   {published.sent:,} values on {len(published.newest):,} topics,"
        f" {published.rejected:,} rejected" + (f": {published.reason}" if published.rejected else "")
    )
    good = published.rejected == 0 and not eager.overwritten
    for name, received, of in (
        ("eager", eager, len(published.accepted)),
        ("slow", slow, sum(topic.endswith(READINGS) for topic in published.accepted)),
    ):
        stale = received.stale()
        good = good and stale == 0
        say(
            f"{name:<11} received {received.messages:,}, skipped {received.skipped:,};"
            f" {'ended on the last value of each of' if stale == 0 else f'misses the last value of {stale:,} of'}"
            f" {of:,} topics"
        )
    if eager.overwritten:
        say(
            f"Another publisher, such as a second demo, overwrote {len(eager.overwritten):,} of our topics, so it is"
            " unknown whether our last values arrived. End it, and play again."
        )
    say(f"            with a queue the slow one would still have {slow.surplus * plan.slow_s:,.0f} s to go")
    return good

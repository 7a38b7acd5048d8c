"""`python -m maxam.demo.estate`: three venues, a centre, and bridges between them, on one machine. A line is cut for a while."""

import random
import secrets
import signal
import sys
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Final

import click
import trio
from rich.console import Console

from maxam.client import ResumingClient, resuming
from maxam.demo.bodies import Bodies, read_registry
from maxam.demo.estate_folder import CENTRE, make_estate, write_bridge
from maxam.demo.estate_screen import EstateScreen, Venue
from maxam.demo.line import Line
from maxam.demo.machines import Machine
from maxam.demo.options import folder_option, machines_option, schemas_option, seconds_option
from maxam.demo.processes import END_TIMEOUT_S, Process, end_all, gateway_process, run_alone
from maxam.demo.venue import run_machine
from maxam.errors import MaxamError
from maxam.failover.measures import HEADER, Published, Received
from maxam.terminal.groups import error_line

VENUES: Final = ("V0071", "V0072", "V0073")
CUT_VENUE: Final = 1  # index of the venue whose line is cut
_LEGEND: Final = (
    "Outdated: topics whose newest value the centre has not received yet.\n"
    "Unknown: topics that the centre reports as unknown, because the link of their venue is silent."
)


@click.command()
@folder_option("var/estate")
@schemas_option
@machines_option(40, 1000, "Machines of each venue.")
@click.option(
    "--cut-s",
    type=click.FloatRange(1, 3600),
    default=20.0,
    show_default=True,
    help="Seconds for which the line is cut each time.",
)
@click.option(
    "--quiet-s",
    type=click.FloatRange(1, 3600),
    default=15.0,
    show_default=True,
    help="Seconds before the line is cut, and between two cuts.",
)
@seconds_option
def main(folder: Path, schemas: Path, machines: int, cut_s: float, quiet_s: float, seconds: float | None) -> None:
    """Start three venues and a centre, cut a line for a while, and show what the centre knows.

    The exit code is 1 if the centre does not have the newest value of each topic in the end.
    """
    good = False
    try:
        good = run_alone(_play, folder.absolute(), schemas, machines, (quiet_s, cut_s), seconds)
    except MaxamError as error:
        click.echo(error_line(error), err=True)
    sys.exit(0 if good else 1)


async def _play(
    folder: Path, schemas: Path, machines: int, times_s: tuple[float, float], seconds: float | None
) -> bool:
    """Run the estate. The times are those before a cut of the line and of the cut. Return True if the centre has all newest values."""
    bodies = Bodies(read_registry(schemas))
    console = Console()
    ports = make_estate(folder, schemas, list(VENUES))
    run = secrets.token_hex(4)
    venues: list[Venue] = []
    for name in VENUES:
        published = Published(run)
        venues.append(Venue(name, Line(ports[CENTRE][0]), published, Received(published, "")))
    console.print("starting four gateways and three bridges ...", highlight=False)
    settings = (f"{key}={folder}/certs/{file}" for key, file in _IDENTITY)
    commands = " ".join((f"export MAXAM_ADMIN=localhost:{ports[CENTRE][1]}", *settings))
    hint = f"{_LEGEND}\n\nThe centre in another terminal:\n{commands}\n.venv/bin/maxam-admin bridges list"
    screen = EstateScreen(console, venues, hint)
    stopping = trio.Event()
    processes: list[Process] = []
    async with trio.open_nursery() as outer:
        try:
            for venue in venues:
                await outer.start(venue.line.run)
                write_bridge(folder, venue.name, ports, venue.line.port)
            for name in (CENTRE, *VENUES):
                processes.append(gateway_process(folder / name))
                processes[-1].start()
                await processes[-1].ready()
            async with AsyncExitStack() as clients:
                publishers = [
                    await clients.enter_async_context(_connection(folder, ports[name][0], "publisher", screen))
                    for name in VENUES
                ]
                viewer = await clients.enter_async_context(_connection(folder, ports[CENTRE][0], "subscriber", screen))
                with screen:
                    async with trio.open_nursery() as background:
                        await background.start(_watch, viewer, {venue.name: venue for venue in venues})
                        background.start_soon(_show, screen, venues)
                        background.start_soon(_stop, stopping, seconds)
                        background.start_soon(_cut, venues[CUT_VENUE], *times_s, screen, stopping)
                        async with trio.open_nursery() as floor:
                            for place, (venue, client) in enumerate(zip(venues, publishers, strict=True)):
                                for number in range(machines):
                                    machine = Machine(number, random.Random(place * 1000 + number))  # noqa: S311 - a game
                                    floor.start_soon(
                                        run_machine, machine, 1.0, client, bodies, venue.published, stopping
                                    )
                        with trio.move_on_after(END_TIMEOUT_S):
                            while any(venue.received.stale() for venue in venues):  # noqa: ASYNC110 - a figure of many tasks
                                await trio.sleep(0.1)
                        screen.refresh()
                        background.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await end_all(processes)
            outer.cancel_scope.cancel()
    for venue in venues:
        outdated, rejected = venue.received.stale(), venue.published.rejected
        console.print(
            f"{venue.name}  {venue.published.sent:,} values on {len(venue.published.accepted):,} topics, {rejected} rejected;"
            f" the centre received {venue.received.messages:,} and misses the newest value of {outdated} topics",
            highlight=False,
            soft_wrap=True,
        )
    return not any(venue.received.stale() or venue.published.rejected for venue in venues)


_IDENTITY: Final = (
    ("MAXAM_CERT", "operator.pem"),
    ("MAXAM_KEY", "operator.key"),
    ("MAXAM_CA", "ca.pem"),
)


def _connection(
    folder: Path, port: int, name: str, screen: EstateScreen
) -> AbstractAsyncContextManager[ResumingClient]:
    certificates = folder / "certs"
    return resuming(
        "127.0.0.1",
        port,
        certificate=certificates / f"{name}.pem",
        key=certificates / f"{name}.key",
        ca=certificates / "ca.pem",
        client_id="demo",
        on_loss=lambda reason, wait_s: screen.add_news(f"{name}: {reason}; trying again in {wait_s:.1f} s"),
    )


async def _watch(client: ResumingClient, venues: dict[str, Venue], *, task_status: trio.TaskStatus[None]) -> None:
    """Take all values at the centre, and its notices of unknown topics."""
    async with client.subscribe("*/EGM.**", eager=True, markers=True, metadata=True) as subscription:
        task_status.started()
        async for message in subscription:
            store, _, rest = message.destination.partition("/")
            venue = venues[store]
            if message.kind == "stale":
                venue.unknown.add(rest)
                continue
            venue.unknown.discard(rest)
            if message.kind != "fresh" or message.body:
                venue.received.take(f"X/{rest}", message.headers.get(HEADER, ""), time.monotonic())


async def _show(screen: EstateScreen, venues: list[Venue]) -> None:
    while True:
        for venue in venues:
            news = venue.step(time.monotonic())
            if news:
                screen.add_news(news)
        screen.refresh()
        await trio.sleep(screen.refresh_s)


async def _cut(venue: Venue, quiet_s: float, cut_s: float, screen: EstateScreen, stopping: trio.Event) -> None:
    """Cut the line of a venue, and repair it, again and again until `stopping`, when it is repaired."""
    while not stopping.is_set():
        with trio.move_on_after(quiet_s):
            await stopping.wait()
        if stopping.is_set():
            return
        venue.line.change(cut=True)
        venue.cut_s = time.monotonic()
        screen.add_news(f"{venue.name}: the line is cut for {cut_s:g} s")
        with trio.move_on_after(cut_s):
            await stopping.wait()
        venue.line.change(cut=False)
        venue.cut_s = None
        venue.repaired_s = time.monotonic()
        venue.moved = venue.received.messages
        screen.add_news(
            f"{venue.name}: the line is repaired; {venue.received.stale()} topics are outdated at the centre"
        )


async def _stop(stopping: trio.Event, seconds: float | None) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        with trio.move_on_after(float("inf") if seconds is None else seconds):
            await anext(signals)
        stopping.set()
        await trio.sleep_forever()


if __name__ == "__main__":
    main()

"""`python -m maxam.demo.cluster`: a cluster of gateways on one machine, whose leader is killed while clients work."""

import json
import os
import random
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import trio
from rich.console import Console

from maxam.client.addresses import Address
from maxam.demo.bodies import Bodies, read_registry
from maxam.demo.cluster_screen import ClusterScreen, kill_table
from maxam.demo.cluster_site import ClusterSite
from maxam.demo.machines import Machine
from maxam.demo.options import folder_option, machines_option, schemas_option, seconds_option
from maxam.demo.processes import run_alone
from maxam.errors import MaxamError
from maxam.failover.load import Identity, Load, Work
from maxam.failover.outages import as_json
from maxam.terminal.groups import error_line

SETTLE_S: Final = 20.0  # for the last values, once publishing has ended
READINGS: Final = "X/EGM.*.EGMMeterReading"
_LOOK_S: Final = 0.1
_SPREAD_S: Final = 0.5  # of the time of a kill, so that it meets each part of a commit


@click.command()
@folder_option("var/cluster")
@schemas_option
@machines_option(300, 5000, "Machines of the venue.")
@click.option(
    "--rate",
    type=click.FloatRange(1, 5000),
    default=500.0,
    show_default=True,
    help="Meter readings per second, of all machines together.",
)
@click.option(
    "--publishers", type=click.IntRange(1, 50), default=4, show_default=True, help="Connections that publish."
)
@click.option(
    "--members",
    type=click.IntRange(2, 5),
    default=3,
    show_default=True,
    help="Gateways. There are three nodes of etcd.",
)
@click.option(
    "--fronts",
    type=click.IntRange(0, 8),
    default=2,
    show_default=True,
    help="Processes of the leader that have its clients; 0 lets the gateway have them.",
)
@click.option("--lease-s", type=click.IntRange(1, 60), help="Lease of the leader, in seconds. [default: the gateway's]")
@click.option(
    "--kills",
    type=click.IntRange(0),
    help="Kill the leader this often, then end. [default: 3 without a terminal, else the key k kills]",
)
@click.option(
    "--quiet-s",
    type=click.FloatRange(0.5, 3600),
    default=3.0,
    show_default=True,
    help="Seconds between two kills of --kills, once all members run again.",
)
@seconds_option
@click.option("--json", "as_text", is_flag=True, help="Print one object at the end, and nothing else.")
def main(
    folder: Path,
    schemas: Path,
    machines: int,
    rate: float,
    publishers: int,
    members: int,
    fronts: int,
    lease_s: int | None,
    kills: int | None,
    quiet_s: float,
    seconds: float | None,
    as_text: bool,
) -> None:
    """Start a cluster of gateways, and kill its leader while machines publish.

    After each kill a table shows how long clients waited, and how many accepted values the next leader does not have. The exit code
    is 1 if a value was lost, or came after a newer one.
    """
    good = False
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not as_text
    if kills is None and not interactive:
        kills = 3
    if machines < 2 * publishers:
        raise click.UsageError(f"--machines {machines}: expected at least two for each of {publishers} publishers")
    try:
        site = ClusterSite(folder.absolute(), schemas, members, lease_s, fronts)
        work = _work(site, schemas, machines, rate, publishers)
        good = run_alone(_play, site, work, kills, quiet_s, seconds, interactive, as_text)
    except MaxamError as error:
        click.echo(error_line(error), err=True)
    sys.exit(0 if good else 1)


def _work(site: ClusterSite, schemas: Path, machines: int, rate: float, publishers: int) -> Work:
    """Return the work of the clients: one topic for each machine, its meter reading."""
    bodies = Bodies(read_registry(schemas))
    floor = [Machine(number, random.Random(number)) for number in range(machines)]  # noqa: S311 - a game
    newest = [machine.switch_on(_now_ms())[0] for machine in floor]
    topics = [told.destination for told in newest]

    def body(number: int) -> bytes:
        told = floor[number].play(_now_ms())
        if told and told[0].destination == topics[number]:  # none comes from a machine that is switched off
            newest[number] = told[0]
        return bodies.encode(newest[number].destination, newest[number].value)

    certificates = site.certificates
    publisher, subscriber = (
        Identity(certificates / f"{name}.pem", certificates / f"{name}.key", certificates / "ca.pem")
        for name in ("publisher", "subscriber")
    )
    return Work(site.addresses, publisher, subscriber, topics, READINGS, body, rate, publishers)


def _now_ms() -> int:
    return int(time.time() * 1000)


async def _play(
    site: ClusterSite,
    work: Work,
    kills: int | None,
    quiet_s: float,
    seconds: float | None,
    interactive: bool,
    as_text: bool,
) -> bool:
    """Run the demo; return True if nothing was lost."""
    console = Console()
    load = Load(work)
    screen = ClusterScreen(console, site, load, interactive, as_text)
    stopping = trio.Event()
    lacking = 0
    screen.add_news("starting three nodes of etcd and the gateways ...")
    async with trio.open_nursery() as outer:
        await outer.start(site.run, screen.add_news)
        async with load.running():
            await load.until_all_have_a_value()
            with screen, _keys(interactive):
                async with trio.open_nursery() as background:
                    background.start_soon(_show, screen)
                    background.start_soon(_stop, stopping, seconds)
                    if interactive:
                        background.start_soon(_obey_keys, site, load, screen, stopping)
                    if kills is not None:
                        background.start_soon(_kill_often, site, load, screen, kills, quiet_s, stopping)
                    await stopping.wait()
                    lacking = await load.stop(SETTLE_S)
                    screen.refresh()
                    background.cancel_scope.cancel()
        outer.cancel_scope.cancel()
    rejected = load.published.rejected
    if as_text:
        figures = {"receipts": load.receipts, "rejected": rejected, "lacking": lacking, "older": load.older}
        click.echo(json.dumps({**as_json(load.outages), **figures, "lost": load.lost}))
    else:
        console.print(kill_table(load.outages))
        console.print(
            f"{load.receipts:,} RECEIPTs, {rejected} rejected, {load.lost} accepted values lost, {load.older} older after newer,"
            f" the subscriber lacks {lacking} last values",
            highlight=False,
            soft_wrap=True,
        )
    return not (load.lost or load.older or lacking or rejected)


async def _show(screen: ClusterScreen) -> None:
    while True:
        screen.refresh()
        await trio.sleep(screen.refresh_s)


async def _kill(site: ClusterSite, load: Load, screen: ClusterScreen) -> None:
    """Kill the leader, and report what clients noticed."""

    async def kill(address: Address) -> None:
        leader = site.at(address[1])
        await leader.process.kill()
        screen.add_news(f"{leader.name}: killed while it led")

    outage = await load.kill(kill)
    screen.add_news(
        f"{site.at(outage.after[1]).name if outage.after else 'none'} leads: no RECEIPT for {outage.no_receipt_s:.2f} s,"
        f" staleness {outage.stale_s:.2f} s, {outage.reconnected} connections made again, lost {outage.lost}"
    )


async def _kill_often(
    site: ClusterSite, load: Load, screen: ClusterScreen, kills: int, quiet_s: float, stopping: trio.Event
) -> None:
    for _ in range(kills):
        while not site.whole:  # noqa: ASYNC110 - a figure of several tasks
            await trio.sleep(_LOOK_S)
        await trio.sleep(quiet_s + random.uniform(0, _SPREAD_S))  # noqa: S311 - no secret
        await _kill(site, load, screen)
    stopping.set()


async def _obey_keys(site: ClusterSite, load: Load, screen: ClusterScreen, stopping: trio.Event) -> None:
    while True:
        await trio.lowlevel.wait_readable(sys.stdin.fileno())
        for key in os.read(sys.stdin.fileno(), 64).decode(errors="replace").lower():
            if key == "q":
                stopping.set()
            elif key == "k" and sum(one.serves_or_follows for one in site.members) > 1 and site.leader:
                await _kill(site, load, screen)
                termios.tcflush(sys.stdin, termios.TCIFLUSH)
                break
            elif key == "k":
                screen.add_news("no member could take over now; try again in some seconds")


@contextmanager
def _keys(wanted: bool) -> Iterator[None]:
    """Have the terminal hand over each key at once while the block runs."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


async def _stop(stopping: trio.Event, seconds: float | None) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        with trio.move_on_after(float("inf") if seconds is None else seconds):
            await anext(signals)
        stopping.set()
        await trio.sleep_forever()


if __name__ == "__main__":
    main()

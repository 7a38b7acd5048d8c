"""Figures of a bridge: `python -m tests.interop.bridge.figures`.

The first outage lasts an hour at 50 changes a second over 1,800 topics, and the line has 10 Mbit/s. The figures are the time until both
sides are equal, and how many values cross. Then follows the rate of different topics over a line of 50 ms round trip.
"""

import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import trio

from maxam.links import Wanted
from maxam.pki.certificates import issue_development_certificates
from tests.interop.bridge.estate import Estate, estate, sent, until
from tests.interop.bridge.line import Line

TOPICS = 1800
CHANGES = 180_000
BODY = b"x" * 190
WANTED_HEADERS = {"schema-version": "1.0"}


def main() -> None:
    """Print all figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates = folder / "certs"
        issue_development_certificates(certificates, datetime.now(UTC), ["publisher", "subscriber", "operator"])
        outage(folder, certificates)
        rate(folder, certificates)


def outage(folder: Path, certificates: Path) -> None:
    """Print what an outage of an hour takes to make good."""
    (folder / "outage").mkdir()
    with estate(folder / "outage", certificates) as world, Line(world.centre.port, bits_per_s=1e7) as line:
        world.configure(centre_port=line.port)
        topics = [f"X/t{number}" for number in range(TOPICS)]
        world.send(world.venue, dict.fromkeys(topics, BODY))
        world.bridge.start()
        world.until_complete()
        world.until_equal()
        world.send(world.venue, {"B/V7.Wanted": Wanted(True, "outage").encoded()}, WANTED_HEADERS)
        until(lambda: (link := world.link(world.centre)) is not None and link.state == "PAUSED")
        for begin in range(0, CHANGES, TOPICS):
            world.send(world.venue, dict.fromkeys(topics, BODY + b"%d" % begin))
        final = dict.fromkeys([f"V{topic[1:]}" for topic in topics], BODY + b"%d" % (CHANGES - TOPICS))
        before = sent(world)
        sent_bytes = line.bytes_sent
        began_s = time.monotonic()
        seconds = watch(world, final, began_s, Wanted().encoded())
        until(lambda: sent(world) > before)
        moved = sent(world) - before
    sys.stdout.write(
        f"outage: equal after {seconds:.2f} s, {moved} values crossed, "
        f"{(line.bytes_sent - sent_bytes) / 1e6:.2f} MB sent\n"
    )


def rate(folder: Path, certificates: Path) -> None:
    """Print the rate over a far line."""
    (folder / "rate").mkdir()
    settings = "[limits]\nwindow = 1000\n"
    with (
        estate(folder / "rate", certificates, settings=settings) as world,
        Line(world.centre.port, round_trip_s=0.05) as line,
    ):
        world.configure(centre_port=line.port, bridge="window = 1000")
        world.bridge.start()
        world.until_complete()
        count = 50_000
        values = {f"X/t{number}": BODY for number in range(count)}
        world.send(world.venue, {"B/V7.Wanted": Wanted(True, "filling").encoded()}, WANTED_HEADERS)
        until(lambda: (link := world.link(world.centre)) is not None and link.state == "PAUSED")
        world.send(world.venue, values)
        final = {f"V{topic[1:]}": body for topic, body in values.items()}
        began_s = time.monotonic()
        used = cpu_s(world)
        seconds = watch(world, final, began_s, Wanted().encoded())
        used = [after - before for before, after in zip(used, cpu_s(world), strict=True)]
        sys.stdout.write(
            "processor: "
            + ", ".join(f"{name} {one:.2f} s" for name, one in zip(("bridge", "venue", "centre"), used, strict=True))
            + "\n"
        )
    sys.stdout.write(f"rate: {count} values in {seconds:.2f} s, {count / seconds:.0f} a second\n")


def cpu_s(world: Estate) -> list[float]:
    """Return the processor time of bridge, venue and centre so far."""
    assert world.bridge.process is not None
    found = []
    for pid in (world.bridge.process.pid, world.venue.pid, world.centre.pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return found


def watch(world: Estate, final: dict[str, bytes], began_s: float, wanted: bytes) -> float:
    """Let the bridge go on. Return the seconds until the centre has all final values."""
    missing = dict(final)
    done_s = 0.0

    async def run() -> None:
        nonlocal done_s
        async with (
            world.client(world.centre) as centre,
            world.client(world.venue) as venue,
            centre.subscribe("V/**", ack="auto", eager=True) as subscription,
        ):
            await venue.send("B/V7.Wanted", wanted, WANTED_HEADERS)
            with trio.fail_after(300):
                async for message in subscription:
                    if missing.get(message.destination) == message.body:
                        del missing[message.destination]
                        if not missing:
                            done_s = time.monotonic() - began_s
                            return

    trio.run(run)
    return done_s


if __name__ == "__main__":
    main()

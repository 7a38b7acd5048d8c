"""A real thin line in a network namespace of its own: every packet passes a shaper, and some are dropped.

`python -m tests.interop.bridge.thin_line` runs venue, centre and bridge over 1 Mbit/s with 2 % loss, under more load than that. It
prints how old values are when they arrive. It needs `unshare`, `ip`, `tc` and `nft`, and no right of an administrator.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from maxam.client import Client
from maxam.pki.certificates import issue_development_certificates
from tests.interop.bridge.estate import Estate, estate
from tests.interop.bridge.line import Line

PROGRAMS = ("unshare", "ip", "tc", "nft")
ROUTES = """
[[route]]
glob = "X/low*"
store = "V"
priority = "low"
[[route]]
glob = "X/high*"
store = "V"
priority = "high"
"""
BUFFER_BYTES = 25_000  # of the router: 200 ms
BODY_BYTES = 500
LOW_TOPICS, HIGH_TOPICS = 1000, 20
LOW_PER_S, HIGH_PER_S = 500, 10
TICK_S = 0.1


def missing() -> str:
    """Return why this machine cannot have such a line, or nothing."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    probe = "ip link set lo up && tc qdisc add dev lo root handle 1: htb && nft add table ip probe"
    done = subprocess.run(["unshare", "-rn", "sh", "-c", probe], check=False, capture_output=True, text=True)
    return f"no network namespace: {done.stderr.strip()}" if done.returncode else ""


def require() -> None:
    """Skip the test if this machine cannot have such a line. In CI it fails if a program is not installed."""
    problem = missing()
    if os.environ.get("CI") and problem.startswith("not installed"):
        pytest.fail(problem)
    if problem:
        pytest.skip(problem)
    sys.stdout.flush()


def shape(port: int, bits_per_s: int, loss: float) -> None:
    """Have all packets from and to a local port pass a line. The other ports are as before."""
    run = [
        "ip link set lo gso_max_segs 1",
        "ip link set lo mtu 1500",
        "tc qdisc add dev lo root handle 1: htb default 1",
    ]
    run.append("tc class add dev lo parent 1: classid 1:1 htb rate 10gbit quantum 60000")
    for way in ("1:2", "1:3"):
        run.append(f"tc class add dev lo parent 1: classid {way} htb rate {bits_per_s} burst 3k cburst 3k quantum 1500")
        run.append(f"tc qdisc add dev lo parent {way} bfifo limit {BUFFER_BYTES}")
    for command in run:
        subprocess.run(command.split(), check=True)
    each = f"numgen random mod 10000 < {round(loss * 10_000)} counter drop"
    rules = [
        f"tcp {end} {port} {rule}"
        for end, way in (("dport", "1:2"), ("sport", "1:3"))
        for rule in (f"counter meta priority set {way}", each)
    ]
    text = "table ip line {\nchain out {\ntype filter hook output priority 0;\n" + "\n".join(rules) + "\n}\n}\n"
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


def packets() -> tuple[int, int]:
    """Return how many packets came to the line, and how many of them were dropped."""
    listed = json.loads(subprocess.run(["nft", "-j", "list", "ruleset"], capture_output=True, check=True).stdout)
    found = [0, 0]
    for rule in [row["rule"]["expr"] for row in listed["nftables"] if "rule" in row]:
        dropped = any("drop" in part for part in rule)
        found[dropped] += next(part["counter"]["packets"] for part in rule if "counter" in part)
    return found[0], found[1]


@dataclass
class Watched:
    """Values that a subscriber at the centre has received.

    Attributes:
        newest: Number of the newest value of each topic.
        ages_s: Ages of values when they arrived, by kind of topic.
    """

    newest: dict[str, int] = field(default_factory=dict)
    ages_s: dict[str, list[float]] = field(default_factory=lambda: {"low": [], "high": []})

    def take(self, topic: str, body: bytes, loaded: bool) -> None:
        """Record a value. Its age counts only under load."""
        number, _, sent_s = body.rstrip(b"x").partition(b" ")
        name = topic.partition("/")[2]
        assert int(number) >= self.newest.get(name, 0), f"{topic}: {number!r} came after {self.newest[name]}"
        self.newest[name] = int(number)
        if loaded:
            self.ages_s[name.rstrip("0123456789")].append(time.monotonic() - float(sent_s))


def measure(seconds: float, bits_per_s: int, loss: float, window: int) -> int:
    """Put load on the line for some time, print the figures, and return the exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates = folder / "certs"
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        issue_development_certificates(certificates, datetime.now(UTC), ["publisher", "subscriber", "operator"])
        with estate(folder, certificates, ROUTES) as world, Line(world.centre.port) as line:
            shape(line.port, bits_per_s, loss)
            world.configure(centre_port=line.port, bridge=f"window = {window}")
            world.bridge.start()
            world.until_complete()
            watched, last, converged_s = trio.run(load, world, seconds)
            assert watched.newest == last
            assert world.equal()
        high, low = (sorted(watched.ages_s[kind]) for kind in ("high", "low"))
        came, dropped = packets()
    for kind, ages_s, rate in (("high", high, HIGH_PER_S), ("low", low, LOW_PER_S)):
        sys.stdout.write(
            f"{kind}: {rate} changes a second, {len(ages_s)} arrived under load, age median {statistics.median(ages_s):.2f} s,"
            f" 95 % {ages_s[math.ceil(0.95 * len(ages_s)) - 1]:.2f} s, highest {ages_s[-1]:.2f} s\n"
        )
    sys.stdout.write(
        f"line: window {window}, {came} packets, {dropped} dropped, equal {converged_s:.1f} s after the load\n"
    )
    if not dropped or statistics.median(high) >= statistics.median(low):
        sys.stdout.write("the line dropped nothing, or high values waited for low ones\n")
        return 1
    return 0


async def load(world: Estate, seconds: float) -> tuple[Watched, dict[str, int], float]:
    """Publish at the venue. Return what came to the centre, the last number of each topic, and the time to be equal."""
    watched, last = Watched(), dict[str, int]()
    loaded = True
    ended_s = math.inf
    async with (
        world.client(world.centre) as centre,
        world.client(world.venue) as venue,
        centre.subscribe("V/**", ack="auto", eager=True) as subscription,
        trio.open_nursery() as nursery,
    ):

        async def watch() -> None:
            async for message in subscription:
                watched.take(message.destination, message.body, loaded)
                if not loaded and watched.newest == last:
                    return

        nursery.start_soon(watch)
        number = 0
        began_s = time.monotonic()
        while time.monotonic() < began_s + seconds:
            number += 1
            await publish(venue, number, last)
            await trio.sleep(TICK_S)
        loaded, ended_s = False, time.monotonic()
        await publish(venue, number + 1, last)
    return watched, last, time.monotonic() - ended_s


async def publish(venue: Client, number: int, last: dict[str, int]) -> None:
    """Publish the values of one tick, and record their number."""
    for kind, topics, rate in (("low", LOW_TOPICS, LOW_PER_S), ("high", HIGH_TOPICS, HIGH_PER_S)):
        each = round(rate * TICK_S)
        for at in range(number * each, (number + 1) * each):
            name = f"{kind}{at % topics}"
            body = f"{number} {time.monotonic()}".encode().ljust(BODY_BYTES, b"x")
            last[name] = number
            await venue.post(f"X/{name}", body, {"content-type": "text/plain"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run in a namespace of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.bridge.thin_line", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the load")
    parser.add_argument("--bits", type=int, default=1_000_000, help="rate of each direction per second")
    parser.add_argument("--loss", type=float, default=0.02, help="share of packets that are dropped")
    parser.add_argument("--window", type=int, default=256, help="of the bridge")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        return measure(options.seconds, options.bits, options.loss, options.window)
    problem = missing()
    if problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    given = sys.argv[1:] if arguments is None else arguments
    command = [sys.executable, "-m", "tests.interop.bridge.thin_line", *given, "--inside"]
    return subprocess.run(["unshare", "-rn", *command], env=os.environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

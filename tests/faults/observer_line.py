"""An observer whose line loses packets and fails three times. It is promoted when its source is lost.

`make observer-line` runs it in a network namespace of its own, where each packet of the link passes a shaper (see
`tests/interop/bridge/thin_line.py`). Programs and rights that it needs are the same.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import trio
from click.testing import CliRunner

from maxam.cli.main import main as admin
from tests.interop.bridge import thin_line
from tests.support.observed_site import Site, sealed, until
from tests.support.patience import PATIENCE_S

OUTAGES = 3
TOPICS = 500
BODY_BYTES = 200
TICK_S = 0.1


@contextlib.contextmanager
def outage(port: int) -> Iterator[None]:
    """Drop all packets from and to a local port."""
    rules = "".join(f"tcp {end} {port} drop\n" for end in ("dport", "sport"))
    text = f"table ip cut {{\nchain out {{\ntype filter hook output priority 1;\n{rules}}}\n}}\n"
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)
    yield
    subprocess.run(["nft", "delete", "table", "ip", "cut"], check=True)


class Load:
    """A publisher at a fixed rate, on a thread of its own, until the source is gone."""

    def __init__(self, site: Site, per_s: int) -> None:
        self.accepted = 0
        self._site = site
        self._each = max(1, round(per_s * TICK_S))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        """Wait until the publisher has noticed the end of the source."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # the source is killed in the end
            self._site.client(self._site.source, self._publish)

    async def _publish(self, client: Any) -> None:
        number = 0
        while True:
            async with trio.open_nursery() as nursery:
                for _ in range(self._each):
                    number += 1
                    body = str(number).encode().ljust(BODY_BYTES, b".")
                    nursery.start_soon(self._send, client, f"X/A.{number % TOPICS}", body)
            await trio.sleep(TICK_S)

    async def _send(self, client: Any, destination: str, body: bytes) -> None:
        assert (await client.send(destination, body)).accepted
        self.accepted += 1


def source_of(site: Site) -> dict[str, Any]:
    """Return what the observer shows of its source."""
    found: dict[str, Any] = site.ask(site.observer, "/v1/cluster").json["source"]
    return found


def measure(seconds: float, outage_s: float, bits_per_s: int, loss: float, per_s: int) -> int:
    """Follow over the line, lose the source, promote, and print the figures; return the exit code."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory() as name:
        site = Site(Path(name), "journal.segment_bytes_max = 262144")
        thin_line.shape(site.ports[0], bits_per_s, loss)
        try:
            lags_s, recoveries_s, load = follow(site, seconds, outage_s, per_s)
            came, dropped = thin_line.packets()
            site.source.kill()
            load.join()
            promoted = promote(site)
        finally:
            site.stop()
    sys.stdout.write(
        f"line: {bits_per_s / 1e6:g} Mbit/s, {came} packets, {dropped} dropped, {OUTAGES} outages of {outage_s:g} s\n"
        f"load: {load.accepted} SENDs accepted in {seconds:g} s\n"
        f"lag outside the outages: median {lags_s[len(lags_s) // 2]:.2f} s, highest {lags_s[-1]:.2f} s\n"
        f"level after each outage: {', '.join(f'{one:.1f} s' for one in recoveries_s)}\n"
        f"promoted: {promoted}\n"
    )
    return 0 if dropped else 1


def follow(site: Site, seconds: float, outage_s: float, per_s: int) -> tuple[list[float], list[float], Load]:
    """Put load on the source through all outages; return lags between them, times to be level after them, and the load."""
    site.source.start()
    site.observer.start()
    load = Load(site, per_s)
    lags_s: list[float] = []
    recoveries_s: list[float] = []
    for _ in range(OUTAGES):
        sample(site, seconds / (OUTAGES + 1), lags_s)
        with outage(site.ports[0]):
            time.sleep(outage_s)  # the kernel's network has no other clock
            until(lambda: source_of(site)["linked_s"] is None, site.observer)
            assert source_of(site)["lag_s"] >= outage_s / 2
        back_s = time.monotonic()
        reached = site.revision(site.source)
        until(lambda reached=reached: site.revision(site.observer) >= reached, site.observer)  # type: ignore[misc]
        recoveries_s.append(time.monotonic() - back_s)
    sample(site, seconds / (OUTAGES + 1), lags_s)
    return sorted(lags_s), recoveries_s, load


def sample(site: Site, seconds: float, lags_s: list[float]) -> None:
    """Add the observer's lag, again and again."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        lags_s.append(source_of(site)["lag_s"])
        time.sleep(TICK_S)


def promote(site: Site) -> str:
    """Promote the observer; its journal must be the beginning of its source's, byte for byte. Return how it went."""
    assert site.observer.stop() == 0
    own = sealed(site.observer)
    assert own.items() <= sealed(site.source).items()
    assert len(own) > 1
    folders = [gateway.folder / "journal" / "segments" for gateway in (site.source, site.observer)]
    for path in folders[1].glob("*.open.avro"):
        first = path.name.split(".")[0].split("-")[0]
        (there,) = folders[0].glob(f"{first}*.avro")
        assert there.read_bytes().startswith(path.read_bytes())
    arguments = ["cluster", "promote", str(site.observer.folder / "journal"), "--because", "drill", "--yes", "--json"]
    done = CliRunner().invoke(admin, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    site.reconfigure(site.observer, site.follow(0), "")
    site.observer.start()

    async def work(client: Any) -> None:
        assert (await client.send("X/A.1", b"of the new site")).accepted

    site.client(site.observer, work)
    assert site.revision(site.observer) == found["revision"] + 1
    return f"{len(own)} sealed segments equal by SHA-256, revision {found['revision']}, {found['missing']} changes known to be missing"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run in a namespace of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.observer_line", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the load outside the outages")
    parser.add_argument("--outage", type=float, default=10.0, help="seconds of each of three outages")
    parser.add_argument("--bits", type=int, default=10_000_000, help="rate of each direction per second")
    parser.add_argument("--loss", type=float, default=0.02, help="share of packets that are dropped")
    parser.add_argument("--rate", type=int, default=500, help="SENDs per second")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        return measure(options.seconds, options.outage, options.bits, options.loss, options.rate)
    problem = thin_line.missing()
    if problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    given = sys.argv[1:] if arguments is None else arguments
    command = [sys.executable, "-m", "tests.faults.observer_line", *given, "--inside"]
    return subprocess.run(["unshare", "-rn", *command], env=os.environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

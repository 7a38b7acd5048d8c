"""A busy venue for as long as one likes: `python -m tests.soak --minutes 60`, or `make soak MINUTES=60`.

A gateway process has 1,000 TLS connections, 10,000 subscriptions and 100,000 topics. Subscribers come and go (politely, by closing, by
a reset), subscribe again, and fall silent until the gateway closes them. They take each other's sessions over, and return to durable
ones. Values are published and deleted. Memory, descriptors, tasks, connections and sessions are read every few seconds, from /proc and
/metrics. At the end all leave. It must hold:

* no SEND is refused, no subscriber sees an older value of a topic after a newer one;
* memory in the last quarter of the time is at most 5 % above that in the second (the first is for warming up);
* descriptors, tasks, connections, sessions and topics are at the end what they were before the first subscriber came.
"""

import argparse
import http.client
import os
import ssl
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import mean

import trio

from tests.soak.venue import Scale, Venue
from tests.support.gateway_folder import GatewayFolder, GatewayProcess
from tests.support.patience import PATIENCE_S

GROWTH_MAX = 0.05
_REST_S = 130.0  # by then the gateway has checked twice for what it holds without a use
_LOOK_AGAIN_S = 2.0  # by then the connection of the check before, and its tasks, are gone
_MIB = 1 << 20
_LIMITS = "write_timeout_s = 5\nlog_lines_per_minute_max = 10\ntakeovers_per_minute_max = 1000\n"
_WATCHED = (
    "maxam_tasks",
    "maxam_sessions",
    "maxam_topics",
    "maxam_tombstones",
    "maxam_messages_total",
    'maxam_connections{state="connected"}',
    'maxam_connections{state="connecting"}',
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One check of the gateway: seconds since the first subscriber came, and the figures."""

    at_s: float
    resident_mib: float
    descriptors: int
    tasks: int
    connections: int
    sessions: int
    topics: int
    tombstones: int
    messages: int

    @property
    def held(self) -> dict[str, int]:
        """Return the figures that must be the same before and after."""
        names = ("descriptors", "tasks", "connections", "sessions", "topics", "tombstones")
        return {name: getattr(self, name) for name in names}


class Sampler:
    """Checks the gateway over one connection of its own."""

    def __init__(self, process: GatewayProcess) -> None:
        certificates = process.files.folder / "certs"
        context = ssl.create_default_context(cafile=certificates / "ca.pem")
        context.load_cert_chain(certificates / "operator.pem", certificates / "operator.key")
        self._process = process
        self._http = http.client.HTTPSConnection("localhost", process.admin_port, context=context, timeout=PATIENCE_S)
        self.core = ""

    def look(self, at_s: float) -> Sample:
        """Read /metrics and /proc."""
        self._http.request("GET", "/metrics", headers={"connection": "close"})
        text = self._http.getresponse().read().decode()
        self._http.close()
        found = dict.fromkeys(_WATCHED, 0)
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            if name in found:
                found[name] = int(float(value))
            elif name.startswith("maxam_build_info"):
                self.core = name
        proc = Path(f"/proc/{self._process.process.pid}")
        resident_kib = int((proc / "status").read_text().split("VmRSS:")[1].split()[0])
        tasks, sessions, topics, tombstones, messages, connected, connecting = found.values()
        descriptors = len(list((proc / "fd").iterdir()))
        connections = connected + connecting
        return Sample(
            at_s, resident_kib / 1024, descriptors, tasks, connections, sessions, topics, tombstones, messages
        )


async def soak(
    process: GatewayProcess, scale: Scale, seconds: float, interval_s: float, seed: int, rest_s: float = 0.0
) -> "Report":
    """Run a venue, and check again `rest_s` after all have left. Return the figures."""
    venue = Venue(process.port, process.files.folder / "certs", scale, seed)
    sampler = Sampler(process)

    async def look(since_s: float) -> Sample:
        return await trio.to_thread.run_sync(sampler.look, trio.current_time() - since_s)

    await venue.fill()
    before = await look(trio.current_time())
    samples: list[Sample] = []
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(venue.live)
        ready_s = trio.current_time()
        while trio.current_time() - ready_s < seconds:
            samples.append(await look(began_s))
            await trio.sleep_until(ready_s + len(samples) * interval_s)
        nursery.cancel_scope.cancel()
    await venue.leave()
    deadline_s = trio.current_time() + PATIENCE_S
    after = await look(began_s)
    while after.held != before.held and trio.current_time() < deadline_s:
        await trio.sleep(_LOOK_AGAIN_S)
        after = await look(began_s)
    if rest_s:
        await trio.sleep(rest_s)
        after = await look(began_s)
    return Report(before, samples, after, venue, sampler.core)


@dataclass(frozen=True)
class Report:
    """The result of a soak."""

    before: Sample
    samples: Sequence[Sample]
    after: Sample
    venue: Venue
    core: str

    @property
    def growth(self) -> float:
        """By how much memory grew from the second quarter to the last, as a share."""
        quarter = max(1, len(self.samples) // 4)
        warm = self.samples[quarter : 2 * quarter] or self.samples
        return mean(s.resident_mib for s in self.samples[-quarter:]) / mean(s.resident_mib for s in warm) - 1

    def problems(self) -> list[str]:
        """Name what did not hold."""
        found = list(self.venue.tally.faults[:10])
        if self.growth > GROWTH_MAX:
            found.append(f"memory grew by {self.growth:.1%}")
        for name, value in self.before.held.items():
            now = self.after.held[name]
            if now != value:
                found.append(f"{name}: {value} before, {now} after all have left")
        return found

    def lines(self) -> list[str]:
        """Print the results."""
        samples = self.samples
        resident = [sample.resident_mib for sample in samples]
        shown = ", ".join(f"{count:,} {what}" for what, count in sorted(self.venue.tally.events.items()))
        return [
            f"{self.core}, {samples[-1].at_s / 60:.1f} minutes, {len(samples)} samples",
            f"connections {min(s.connections for s in samples)} to {max(s.connections for s in samples)},"
            f" topics {samples[-1].topics:,}, {samples[-1].messages:,} messages",
            f"resident {self.before.resident_mib:.0f} MiB before, {min(resident):.0f} to {max(resident):.0f} MiB,"
            f" {self.after.resident_mib:.0f} MiB after; growth behind the warm-up {self.growth:+.1%}",
            f"before {self.before.held}",
            f"after  {self.after.held}",
            shown,
        ]

    def draw(self, path: Path) -> None:
        """Plot memory, descriptors and tasks over time."""
        import_module("matplotlib").use("Agg")
        pyplot = import_module("matplotlib.pyplot")
        with pyplot.rc_context({"svg.hashsalt": "maxam", "svg.fonttype": "none", "font.size": 10}):
            figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 6), layout="constrained", sharex=True)
            all_samples = [*self.samples, self.after]
            at = [sample.at_s / 60 for sample in all_samples]
            above.plot(at, [sample.resident_mib for sample in all_samples], color="C0", label="resident memory")
            above.axhline(self.before.resident_mib, color="C7", linestyle=":", label="before the first subscriber")
            above.set_ylabel("MiB")
            below.plot(at, [sample.descriptors for sample in all_samples], color="C1", label="descriptors")
            below.plot(at, [sample.tasks for sample in all_samples], color="C2", label="tasks")
            below.plot(at, [sample.sessions for sample in all_samples], color="C3", label="sessions")
            below.set_xlabel("minutes; the last point is after all have left")
            for axes in (above, below):
                axes.set_ylim(bottom=0)
                axes.grid(visible=True, alpha=0.3)
                axes.legend(fontsize="small")
            figure.savefig(path, metadata={"Date": None})
            pyplot.close(figure)


def run(folder: Path, scale: Scale, seconds: float, interval_s: float, seed: int, rest_s: float = 0.0) -> Report:
    """Run a soak against a gateway of its own.

    Args:
        folder: Empty, for its files.
        scale: Of the venue.
        seconds: Duration after the last subscriber came.
        interval_s: Between checks.
        seed: Of the clients' choices.
        rest_s: Between the end of all clients and the last check.
    """
    files = GatewayFolder(folder)
    # The watch of files gets its last tasks some time after the start: without it the first check sees all there is.
    last = f"sessions_per_principal_max = {2 * scale.connections}\nconnects_per_principal_burst = {2 * scale.connections}\n[reload]\nwatch = false\n"
    files.configure(limits=_LIMITS + last)
    with files.start() as process:
        report = trio.run(partial(soak, process, scale, seconds, interval_s, seed, rest_s))
        assert process.stop() == 0
        assert "internal-error" not in process.log()
    return report


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=Scale.connections)
    parser.add_argument("--topics", type=int, default=Scale.topics)
    parser.add_argument("--sends", type=float, default=Scale.sends_per_s, help="a second")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "big"))
    parser.add_argument("--installed", action="store_true", help="the gateway that is installed, not the tree's")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.installed:
        os.environ["PYTHONSAFEPATH"] = "1"
    scale = Scale(connections=options.connections, topics=options.topics, sends_per_s=options.sends)
    with tempfile.TemporaryDirectory(prefix="maxam-soak-") as scratch:
        report = run(Path(scratch), scale, options.minutes * 60, 5.0, options.seed, _REST_S)
    sys.stdout.write("".join(f"{line}\n" for line in report.lines()))
    if options.plot is not None:
        report.draw(options.plot)
    problems = report.problems()
    sys.stdout.write("".join(f"PROBLEM: {problem}\n" for problem in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

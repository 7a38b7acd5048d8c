"""Show what a journal takes on the disk under a steady load of updates: `make disk-curve`.

A real gateway, a fixed set of topics, one publisher with as many SENDs under way as it may have in flight. Segments and the bound of the
archive are small, so that minutes show what takes days with the defaults. Beside the bytes on the disk stands what was written in all; at the end
the gateway is started again on what is left.
"""

import sys
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import trio

from maxam.bench.chart import pyplot
from maxam.bench.errors import LoadError
from maxam.client import connect
from maxam.client.link import Posted
from tests.benchmarks.brokers.broker import Broker
from tests.benchmarks.brokers.maxam import gateway
from tests.benchmarks.readings import meter_reading

_BODY_BYTES: Final = 600
_IN_FLIGHT: Final = 64
_SAMPLE_S: Final = 2.0
_MIB: Final = 1 << 20
_SETTINGS: Final = "segment_bytes_max = {segment}\nsnapshot_segments = 4\nretention_bytes_max = {archive}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One check of the journal: seconds since the beginning, MiB by what they are for, SENDs accepted so far."""

    at_s: float
    segments_mib: float
    snapshots_mib: float
    other_mib: float
    accepted: int

    @property
    def total_mib(self) -> float:
        """All that the folder takes."""
        return self.segments_mib + self.snapshots_mib + self.other_mib


async def _load(broker: Broker, journal: Path, topics: int, rate: float, seconds: float) -> list[Sample]:
    files = broker.target.publisher
    assert files is not None  # ours has certificates
    assert files.certificate is not None  # as above
    assert files.key is not None  # as above
    samples: list[Sample] = []
    body = meter_reading(_BODY_BYTES)
    under_way: deque[Posted] = deque()
    accepted = 0
    async with connect(
        broker.target.host, broker.target.port, certificate=files.certificate, key=files.key, ca=files.ca
    ) as client:
        began_s = trio.current_time()
        sent = 0
        while (elapsed_s := trio.current_time() - began_s) < seconds:
            if elapsed_s >= len(samples) * _SAMPLE_S:
                samples.append(_look(journal, elapsed_s, accepted))
            if sent >= rate * elapsed_s:
                await trio.sleep(0.01)
                continue
            under_way.append(await client.post(f"X/EGM.Q.{sent % topics:07d}.EGMMeterReading", body))
            sent += 1
            if len(under_way) >= _IN_FLIGHT:
                receipt = await under_way.popleft().receipt()
                if not receipt.accepted:
                    raise LoadError(f"a SEND was answered {receipt.result}: {receipt.reason}")
                accepted += 1
    return samples


def _look(journal: Path, at_s: float, accepted: int) -> Sample:
    sizes = {"segments": 0, "snapshots": 0, "": 0}
    for path in journal.rglob("*"):
        part = path.relative_to(journal).parts[0]
        try:
            size = path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # it went in this moment
            continue
        sizes[part if part in sizes else ""] += size
    return Sample(at_s, sizes["segments"] / _MIB, sizes["snapshots"] / _MIB, sizes[""] / _MIB, accepted)


def _draw(path: Path, samples: list[Sample], archive_mib: float, topics: int) -> None:
    drawing = pyplot()
    written = _written(samples)
    with drawing.rc_context({"svg.hashsalt": "maxam", "svg.fonttype": "none", "font.size": 10}):
        figure, axes = drawing.subplots(figsize=(8, 4), layout="constrained")
        at = [one.at_s for one in samples]
        axes.plot(at, written, label="written in all", linestyle="--", color="C7")
        axes.plot(at, [one.total_mib for one in samples], label="on the disk", color="C0")
        axes.plot(at, [one.snapshots_mib for one in samples], label="of it snapshots", color="C1")
        axes.axhline(archive_mib, label="retention_bytes_max", linestyle=":", color="C3")
        axes.set_ylim(0, 1.1 * max(written[-1], *(one.total_mib for one in samples)))
        axes.set_xlabel("seconds of steady updates")
        axes.set_ylabel("MiB")
        axes.set_title(f"A journal's folder, {topics} topics updated all the time")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
        figure.savefig(path, metadata={"Date": None})
        drawing.close(figure)


def _written(samples: list[Sample]) -> list[float]:
    """Return the MiB of segments that would be there without retention, from what an accepted SEND took at the beginning."""
    early = next((one for one in samples if one.accepted > 10_000), samples[-1])
    each_mib = early.segments_mib / max(1, early.accepted)
    return [one.accepted * each_mib for one in samples]


@click.command("disk")
@click.option("--topics", default=2000, help="Topics that are updated.")
@click.option("--rate", default=2500.0, help="Most SENDs per second.")
@click.option("--seconds", default=240.0, help="Duration of the updates.")
@click.option("--segment-mib", default=2.0, help="Size of a segment, MiB.")
@click.option("--archive-mib", default=32.0, help="Limit of the archive, MiB.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the curve in this file; needs maxam[bench].")
def disk_command(
    topics: int, rate: float, seconds: float, segment_mib: float, archive_mib: float, plot: Path | None
) -> None:
    """Show the size of a journal under steady updates: `make disk-curve`."""
    settings = _SETTINGS.format(segment=int(segment_mib * _MIB), archive=int(archive_mib * _MIB))
    with tempfile.TemporaryDirectory(prefix="maxam-disk-") as name:
        journal = Path(name)
        with gateway(set(range(64)), journal=journal, settings=settings) as running:
            samples = trio.run(_load, running, journal, topics, rate, seconds)
        with gateway(set(range(64)), journal=journal, settings=settings) as running:
            again_s = running.start_s
    half = samples[len(samples) // 2 :]
    figures = {
        "SENDs accepted": f"{samples[-1].accepted:,}",
        "written in all": f"{_written(samples)[-1]:.0f} MiB",
        "on the disk, second half": f"{min(s.total_mib for s in half):.0f} to {max(s.total_mib for s in half):.0f} MiB",
        "of it snapshots": f"{max(s.snapshots_mib for s in half):.1f} MiB at most",
        "next start": f"{again_s:.2f} s",
    }
    for what, figure in figures.items():
        sys.stdout.write(f"{what:26} {figure}\n")
    if plot is not None:
        _draw(plot, samples, archive_mib, topics)

"""Measure how long a gateway takes to be ready again with many topics: `python -m tests.benchmarks recovery`.

The journal is written by its own writer, without a broker. It has some durable subscriptions. Then the gateway is started on it several
times: first from the segments alone, then from a snapshot as the gateway's own process builds it.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click

from maxam.content import pack
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.records import Change, Identity, Record, SubscriptionRecord, Validation
from tests.benchmarks.brokers.maxam import gateway
from tests.benchmarks.readings import meter_reading

_BODY_BYTES: Final = 120
_PUBLISHER: Final = Identity("publisher", "ab" * 32)
_VALIDATION: Final = Validation("datum", "egm.EGMMeterReading_v1", "1.0", bytes(8))
_BATCH: Final = 1000  # records of a block
_DURABLE: Final = (b"X/EGM.Q.*7.EGMMeterReading", b"X/EGM.Q.000*", b"X/EGM.*")


def build_journal(folder: Path, topics: int, mib: int = 0, durable: int = len(_DURABLE), killed: bool = False) -> int:
    """Write a journal in which N topics get a value each, in any order, and then random ones until it has a size. Return its revision.

    Args:
        folder: Of the journal.
        topics: How many.
        mib: Size of the journal. Less than the first values take adds nothing to them.
        durable: Number of durable subscriptions. The last of three wants all topics.
        killed: The open segment is left as by a process that was killed. Otherwise it is sealed, as after a graceful stop.
    """
    chance = random.Random(1)  # noqa: S311 - no secret
    stored = _open(folder)
    now_us = time.time_ns() // 1000
    names = _names(topics)
    body = meter_reading(_BODY_BYTES)
    chance.shuffle(names)
    records: list[Record] = [
        SubscriptionRecord(now_us, "subscriber", f"durable-{n}", b"d", glob, eager=False)
        for n, glob in enumerate(_DURABLE[:durable])
    ]
    revision = written = 0
    while revision < topics or written < mib << 20:
        for _ in range(_BATCH):
            name = names[revision] if revision < topics else chance.choice(names)
            revision += 1
            records.append(_change(revision, now_us, name, body))
        block = stored.encode(records)
        stored.write(block)
        written += len(block.data)
        records = []
    stored.close(seal=not killed)
    return revision


def append_changes(folder: Path, topics: int, changes: int, revision: int) -> None:
    """Append changes of random topics to a journal that ends at a revision. The open segment is left, as by a process that was killed."""
    chance = random.Random(2)  # noqa: S311 - no secret
    stored = _open(folder)
    names = _names(topics)
    body = meter_reading(_BODY_BYTES)
    now_us = time.time_ns() // 1000
    for first in range(0, changes, _BATCH):
        numbers = range(revision + first + 1, revision + min(first + _BATCH, changes) + 1)
        stored.write(stored.encode([_change(number, now_us, chance.choice(names), body) for number in numbers]))
    stored.close(seal=False)


def _open(folder: Path) -> Journal:
    settings = JournalSettings(durable=False, ahead_bytes=1 << 20)
    stored = Journal.open(folder, OsDisk(), settings, os.urandom(15) + b"\xff")
    list(stored.recover())
    return stored


def _names(topics: int) -> list[bytes]:
    return [b"X/EGM.Q.%07d.EGMMeterReading" % n for n in range(topics)]


def _change(revision: int, now_us: int, name: bytes, body: bytes) -> Change:
    return Change(revision, now_us, name, False, _PUBLISHER, _VALIDATION, *pack((), body))


def measure(journal: Path, runs: int) -> tuple[list[float], float, float]:
    """Start a gateway on copies of the journal so often; return seconds to its ready line, processor seconds and MiB resident then."""
    took_s = []
    cpu_s = []
    resident_mib = 0.0
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="maxam-recovery-") as name:
            copy = shutil.copytree(journal, Path(name) / "journal")
            os.sync()  # else the first sync of the gateway waits for the copy
            with gateway({0}, journal=copy) as running:
                took_s.append(running.start_s)
                cpu_s.append(running.cpu_s())
                resident_mib = running.resident_mib()
    return took_s, statistics.median(cpu_s), resident_mib


@click.command("recovery")
@click.option("--topics", default=1_000_000, help="Topics in the journal.")
@click.option("--mib", default=0, help="Size of the journal in MiB. 0 stores one value for each topic.")
@click.option("--durable", default=len(_DURABLE), help="Durable subscriptions (0 to 3).")
@click.option("--killed", is_flag=True, help="Leave an open segment, as after kill -9.")
@click.option("--changes", default=0, help="Changes after the snapshot, in an open segment.")
@click.option("--runs", default=3, help="Starts of which the median is shown.")
def recovery_command(topics: int, mib: int, durable: int, killed: bool, changes: int, runs: int) -> None:
    """Measure the time from start to ready with many topics, from segments and from a snapshot."""
    with tempfile.TemporaryDirectory(prefix="maxam-recovery-") as name:
        journal = Path(name)
        revision = build_journal(journal, topics, mib, durable, killed)
        _report("from segments alone", *measure(journal, runs))
        began_s = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "maxam.gateway.snapshot", name, "0", "0", "0", "0", "0", "1", "0", "urgent"],
            check=True,
            stdout=subprocess.DEVNULL,
        )  # our own command
        sys.stdout.write(f"{'snapshot built in':24} {time.monotonic() - began_s:6.2f} s\n")
        if changes:
            append_changes(journal, topics, changes, revision)
        _report("from a snapshot", *measure(journal, runs))


def _report(what: str, took_s: list[float], cpu_s: float, resident_mib: float) -> None:
    shown = f"{min(took_s):.2f} to {max(took_s):.2f}"
    figures = f"{statistics.median(took_s):6.2f} s to ready ({shown}), CPU {cpu_s:.2f} s, {resident_mib:.0f} MiB"
    sys.stdout.write(f"{what:24} {figures}\n")

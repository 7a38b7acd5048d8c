"""Measure how long a gateway takes to be ready again with many topics: `python -m tests.benchmarks recovery`.

The journal is written by its own writer, without a broker. It has some durable subscriptions. Then the gateway is started on it several
times: first from the segments alone, then from a snapshot as the gateway's own process builds it.
"""

import os
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
_BATCH: Final = 1000  # records of a block
_DURABLE: Final = (b"X/EGM.Q.*7.EGMMeterReading", b"X/EGM.Q.000*", b"X/EGM.*")


def build_journal(folder: Path, topics: int) -> None:
    """Write a journal that holds N topics with a value each; sealed, as after a graceful stop."""
    stored = Journal.open(folder, OsDisk(), JournalSettings(durable=False), os.urandom(16))
    list(stored.recover())
    publisher = Identity("publisher", "ab" * 32)
    validation = Validation("datum", "egm.EGMMeterReading_v1", "1.0", bytes(8))
    body = meter_reading(_BODY_BYTES)
    now_us = time.time_ns() // 1000
    for start in range(1, topics + 1, _BATCH):
        records: list[Record] = [
            Change(n, now_us, b"X/EGM.Q.%07d.EGMMeterReading" % n, False, publisher, validation, *pack((), body))
            for n in range(start, min(start + _BATCH, topics + 1))
        ]
        if start == 1:
            records[:0] = [
                SubscriptionRecord(now_us, "subscriber", f"durable-{n}", b"d", glob, eager=False)
                for n, glob in enumerate(_DURABLE)
            ]
        stored.write(stored.encode(records))
    stored.close()


def measure(journal: Path, runs: int) -> tuple[list[float], float, float]:
    """Start a gateway on the journal so often; return seconds to its ready line, processor seconds and MiB resident then."""
    took_s = []
    cpu_s = []
    resident_mib = 0.0
    for _ in range(runs):
        with gateway({0}, journal=journal) as running:
            took_s.append(running.start_s)
            cpu_s.append(running.cpu_s())
            resident_mib = running.resident_mib()
    return took_s, statistics.median(cpu_s), resident_mib


@click.command("recovery")
@click.option("--topics", default=1_000_000, help="Topics in the journal.")
@click.option("--runs", default=3, help="Starts of which the median is shown.")
def recovery_command(topics: int, runs: int) -> None:
    """Measure the time from start to ready with many topics, from segments and from a snapshot."""
    with tempfile.TemporaryDirectory(prefix="maxam-recovery-") as name:
        journal = Path(name)
        build_journal(journal, topics)
        _report("from segments alone", *measure(journal, runs))
        began_s = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "maxam.gateway.snapshot", name], check=True, stdout=subprocess.DEVNULL
        )  # our own command
        sys.stdout.write(f"{'snapshot built in':24} {time.monotonic() - began_s:6.2f} s\n")
        _report("from a snapshot", *measure(journal, runs))


def _report(what: str, took_s: list[float], cpu_s: float, resident_mib: float) -> None:
    shown = f"{min(took_s):.2f} to {max(took_s):.2f}"
    figures = f"{statistics.median(took_s):6.2f} s to ready ({shown}), CPU {cpu_s:.2f} s, {resident_mib:.0f} MiB"
    sys.stdout.write(f"{what:24} {figures}\n")

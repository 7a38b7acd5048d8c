"""Measure the memory of a centre with many bridged venues: `python -m tests.benchmarks estate`.

The journal is written by its own writer. Each topic has the headers of provenance and the mark of its source, as bridges send them.
A gateway is started on it. The same journal without these headers shows their cost.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click

from maxam.content import pack
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.links import CENTRE, UP, Link, LinkRoute, link_topic
from maxam.records import UNJUDGED, Change, Headers, Identity, Record, Validation
from tests.benchmarks.brokers.maxam import gateway
from tests.benchmarks.readings import meter_reading

_BODY_BYTES: Final = 120
_BATCH: Final = 1000  # records of a block
_PUBLISHERS: Final = 20  # of a venue
_GIB_MAX: Final = 1.5


def provenance(venue: bytes, number: int, now_us: int) -> Headers:
    """Return the headers of a value that a bridge has forwarded."""
    return (
        (b"schema-version", b"1.0"),
        (b"source", venue + b"-5f0c9a3be1d27846"),
        (b"source-revision", b"%d" % (4_000_000 + number)),
        (b"origin-gateway", venue),
        (b"origin-publisher", b"controller-%d" % (number % _PUBLISHERS)),
        (b"origin-timestamp", b"%d" % (now_us // 1000)),
        (b"via", venue),
    )


def build_estate(folder: Path, topics: int, venues: int, bridged: bool) -> None:
    """Write a journal with N topics of bridged venues, and their links; or the same topics, published at the centre."""
    stored = Journal.open(folder, OsDisk(), JournalSettings(durable=False), os.urandom(16), "5f0c9a3be1d27846")
    list(stored.recover())
    publisher = Identity("bridge", "ab" * 32)
    validation = Validation("datum", "egm.EGMMeterReading_v1", "1.0", bytes(8))
    body = meter_reading(_BODY_BYTES)
    now_us = time.time_ns() // 1000
    each = topics // venues
    records: list[Record] = []
    for number in range(1, topics + 1):
        venue = b"V%04d" % ((number - 1) // each)
        name = b"%b/EGM.Q.%05d.EGMMeterReading" % (venue, number % each)
        headers = provenance(venue, number, now_us) if bridged else ()
        records.append(Change(number, now_us, name, False, publisher, validation, *pack(headers, body)))
        if len(records) == _BATCH or number == topics:
            stored.write(stored.encode(records))
            records = []
    if bridged:
        for number in range(venues):
            venue_name = f"V{number:04}"
            routes = (LinkRoute(UP, "X/EGM.**", venue_name),)
            link = Link(venue_name, "centre", CENTRE, UP, "", 0, 0, "pc", 30, "a" * 16, "b" * 16, routes)
            content = pack((), link.encoded())
            topic = link_topic(venue_name)
            stored.write(
                stored.encode([Change(topics + 1 + number, now_us, topic, False, publisher, UNJUDGED, *content)])
            )
    stored.close()


@click.command("estate")
@click.option("--topics", default=1_800_000, help="Topics of all venues.")
@click.option("--venues", default=1000, help="Bridged venues.")
def estate_command(topics: int, venues: int) -> None:
    """Measure the memory of a centre with many bridged venues. Exits with 1 above 1.5 GiB."""
    resident: dict[str, float] = {}
    for what, bridged in (("published at the centre", False), ("forwarded by bridges", True)):
        with tempfile.TemporaryDirectory(prefix="maxam-estate-") as name:
            build_estate(Path(name), topics, venues, bridged)
            with gateway({0}, journal=Path(name)) as running:
                resident[what] = running.resident_mib()
                figures = f"{running.start_s:.1f} s to ready, {resident[what]:.0f} MiB resident"
                each = resident[what] * 2**20 / topics
                sys.stdout.write(f"{what:24} {figures}, {each:.0f} bytes a topic\n")
                sys.stdout.flush()
    if max(resident.values()) > _GIB_MAX * 1024:
        sys.exit(1)

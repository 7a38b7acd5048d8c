"""A small journal of values of any schemas, and the columns of its history according to fastavro."""

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from maxam.avro.fingerprint import crc_64_avro
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.content import pack
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.records import UNJUDGED, Change, Headers, Identity, Record, Validation

DAY_US = 86_400_000_000
START_US = 1_790_812_800_000_000  # 2026-10-01
PUBLISHER = Identity("venue-7", "a" * 64)


@dataclass(frozen=True)
class Minor:
    """One schema of a type."""

    name: str
    version: str
    document: Any

    @property
    def text(self) -> bytes:
        """Its self-contained text."""
        return parse_schema(read_source("t", json.dumps(self.document).encode())).text

    @property
    def validation(self) -> Validation:
        """The validation of a body of this version."""
        canonical = parse_schema(read_source("t", self.text)).canonical
        return Validation("datum", self.name, self.version, crc_64_avro(canonical))

    def encode(self, value: Any) -> bytes:
        """Make a datum."""
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(self.text)), value)
        return stream.getvalue()

    def decode(self, data: bytes) -> Any:
        """Read a datum; branches of unions of several types come as (label, value)."""
        schema = fastavro.parse_schema(json.loads(self.text))
        return fastavro.schemaless_reader(io.BytesIO(data), schema, None)


def record_type(name: str, *fields: tuple[str, Any] | dict[str, Any]) -> dict[str, Any]:
    """Make a record's schema."""
    made = [each if isinstance(each, dict) else {"name": each[0], "type": each[1]} for each in fields]
    return {"type": "record", "name": name, "fields": made}


def value_change(revision: int, minor: Minor, body: bytes, at_us: int | None = None, headers: Headers = ()) -> Change:
    """Make a change whose body is a bare datum."""
    at = START_US + revision * 1_000_000 if at_us is None else at_us
    destination = f"X/T.{revision % 7}.{minor.name}".encode()
    return Change(revision, at, destination, False, PUBLISHER, minor.validation, *pack(headers, body))


def delete_change(revision: int, name: str, at_us: int | None = None) -> Change:
    """Make a deletion as the broker journals it."""
    at = START_US + revision * 1_000_000 if at_us is None else at_us
    validation = Validation("datum", name, "", b"") if name else UNJUDGED
    return Change(revision, at, b"X/T.1.gone", True, PUBLISHER, validation, *pack((), b""))


def write_journal(
    folder: Path,
    records: Iterable[Record],
    minors: Iterable[Minor],
    *,
    block: int = 7,
    segment_bytes: int = 1 << 26,
    seal: bool = True,
) -> None:
    """Write records as a gateway would, after those that are there.

    Args:
        folder: The journal's.
        records: In order.
        minors: Whose texts are kept.
        block: Records of a group commit.
        segment_bytes: A segment rolls before it grows over this.
        seal: Finish the last segment; else it stays open.
    """
    journal = Journal.open(folder, OsDisk(), JournalSettings(segment_bytes, 1e9, False, 0), b"s" * 16)
    try:
        list(journal.recover())
        journal.keep_schemas([(sha256(minor.text).hexdigest(), minor.text) for minor in minors])
        batch: list[Record] = []
        for record in records:
            batch.append(record)
            if len(batch) == block:
                journal.write(journal.encode(batch))
                batch = []
        if batch:
            journal.write(journal.encode(batch))
    finally:
        journal.close(seal=seal)


def read_table(out: Path, name: str) -> pa.Table:
    """Read a type's table as any reader would, in order of revision."""
    import pyarrow.dataset as ds

    return ds.dataset(out / name, partitioning="hive").to_table().sort_by("revision")

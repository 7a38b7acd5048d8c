"""Spark's own Avro reader takes the journal's segments and snapshots as they are."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import sealed_segments
from maxam.journal.rejects import RejectedJournal, RejectedSettings
from maxam.journal.snapshots import write_snapshot
from maxam.records import Change, Record
from tests.support.journal_records import MISMATCH, NOW_US, SYNC, change, one_of_each, rejected

COLUMNS = (
    *("revision", "unix_micros(accepted_at) AS accepted_at", "kind", "destination", "publisher", "schema_version"),
    *("hex(schema_fingerprint) AS schema_fingerprint", "value_offset", "value_length", "headers", "hex(body) AS body"),
    *("disposition", "result", "reason", "client_id", "subscription", "eager", "low_water", "positions"),
    "check IS NOT NULL AS checked",
)


@pytest.mark.interop
@pytest.mark.slow
def test_spark_reads_what_was_written(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's native reader gives every record of a sealed segment, of a snapshot and of rejected SENDs, in order, and the end mark."""
    disk = OsDisk()
    journal = Journal.open(tmp_path, disk, JournalSettings(), SYNC)
    assert list(journal.recover()) == []
    records = one_of_each()
    journal.write(journal.encode(records))
    more: list[Record] = [change(n, at_us=NOW_US + 2_000_000 + n) for n in range(8, 500)]
    for at in range(0, len(more), 100):
        journal.write(journal.encode(more[at : at + 100]))
    journal.close()
    (segment,) = sealed_segments(tmp_path, disk)
    snapshot = write_snapshot(tmp_path, disk, segment.last, more, SYNC)

    rejects = RejectedJournal.open(str(tmp_path), disk, RejectedSettings(), SYNC)
    rejects.append([rejected(1), rejected(2, b"")])
    rejects.close()
    (refused,) = tmp_path.glob("rejected/*-*.avro")

    found = {}
    for path in (segment.path, snapshot, str(refused)):
        frame = spark.read.format("org.apache.spark.sql.avro.AvroFileFormat").load(path).selectExpr(*COLUMNS)
        found[path] = [row.asDict(recursive=True) for row in frame.collect()]
    one, two, end = found[str(refused)]
    assert [(row["revision"], row["kind"]) for row in (one, two, end)] == [(1, "value"), (2, "delete"), (2, "end")]
    assert bytes.fromhex(one["body"]) == b"no such body"
    assert (one["disposition"], one["result"], one["reason"]) == (
        "rejected-invalid",
        MISMATCH.result,
        MISMATCH.reason,
    )
    rows = found[segment.path]
    assert [row["kind"] for row in rows[:18]] == [
        *["subscription", "value", "delete", "value", "value", "delete", "value", "acknowledgement", "owed"],
        *["subscription", "unsubscription", "value", "session_end", "acknowledgement", "will", "will", "will_end"],
        "will",
    ]
    assert [row["checked"] for row in rows[:19]] == [False] * 17 + [True, False]
    for row, record in zip(rows, [*records, *more], strict=False):
        assert row["accepted_at"] == record.accepted_at_us
        if isinstance(record, Change):
            assert row["revision"] == record.revision
            assert row["destination"] == record.destination.decode()
            assert row["publisher"] == record.publisher.principal
            assert bytes.fromhex(row["body"]) == record.body
            assert bytes.fromhex(row["schema_fingerprint"]) == record.validation.schema_fingerprint
            assert [(h["name"].encode(), h["value"].encode()) for h in row["headers"]] == list(record.headers)
    assert rows[7]["positions"][0] == {"destination": "X/EGM.Q.1.EGMStatus", "revision": 4}
    assert rows[9]["low_water"] == 5
    assert (rows[-1]["kind"], len(rows)) == ("end", 1 + len(records) + len(more))
    assert [row["revision"] for row in found[snapshot]] == [*range(8, 500), 499]

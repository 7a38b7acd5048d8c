"""Spark's own Avro reader takes the journal's segments and snapshots as they are."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings, sealed_segments, write_snapshot
from maxam.journal.rejects import RejectedJournal, RejectedSettings
from maxam.records import Change, Record
from tests.journal_records import MISMATCH, NOW_US, SYNC, change, one_of_each, rejected
from tests.patience import PATIENCE_S

# A process of its own: Spark must not warn, fork or leave threads in this one. MAXAM_SPARK_PYTHON may name another interpreter.
READER = """
import json, sys
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
found = {}
for path in sys.argv[1:]:
    frame = spark.read.format("org.apache.spark.sql.avro.AvroFileFormat").load(path)
    frame = frame.selectExpr(
        "revision", "unix_micros(accepted_at) AS accepted_at", "kind", "destination", "publisher", "schema_version",
        "hex(schema_fingerprint) AS schema_fingerprint", "value_offset", "value_length", "headers", "hex(body) AS body",
        "disposition", "result", "reason", "client_id", "subscription", "eager", "low_water", "positions", "check IS NOT NULL AS checked",
    )
    found[path] = [row.asDict(recursive=True) for row in frame.collect()]
print("FOUND " + json.dumps(found))
spark.stop()
"""


@pytest.mark.interop
@pytest.mark.slow
def test_spark_reads_what_was_written(tmp_path: Path) -> None:
    """Spark's native reader gives every record of a sealed segment, of a snapshot and of rejected SENDs, in order, and the end mark."""
    python = os.environ.get("MAXAM_SPARK_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import pyspark"], capture_output=True, check=False).returncode:
        pytest.skip(
            f"{python} has no pyspark: install maxam[pipeline], or name another interpreter in MAXAM_SPARK_PYTHON"
        )
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java: install a JRE of version 17 or later")
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

    output = subprocess.run(
        [python, "-c", READER, segment.path, snapshot, str(refused)],
        capture_output=True,
        check=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYSPARK_PYTHON": python},
    ).stdout
    (line,) = [line for line in output.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    one, two, end = found[str(refused)]
    assert [(row["revision"], row["kind"]) for row in (one, two, end)] == [(1, "value"), (2, "delete"), (2, "end")]
    assert bytes.fromhex(one["body"]) == b"no such body"
    assert (one["disposition"], one["result"], one["reason"]) == (
        "rejected-invalid",
        MISMATCH.result,
        MISMATCH.reason,
    )
    rows = found[segment.path]
    assert [row["kind"] for row in rows[:14]] == [
        *["subscription", "value", "delete", "value", "value", "delete", "value", "acknowledgement", "owed"],
        *["subscription", "unsubscription", "value", "session_end", "acknowledgement"],
    ]
    assert [row["checked"] for row in rows[:15]] == [False] * 13 + [True, False]
    for row, record in zip(rows, [*records, *more], strict=False):
        assert row["accepted_at"] == record.accepted_at_us
        if isinstance(record, Change):
            assert row["revision"] == record.revision
            assert row["destination"] == record.destination.decode()
            assert row["publisher"] == record.publisher.principal
            assert bytes.fromhex(row["body"]) == record.body
            assert bytes.fromhex(row["schema_fingerprint"]) == record.judgement.schema_fingerprint
            assert [(h["name"].encode(), h["value"].encode()) for h in row["headers"]] == list(record.headers)
    assert rows[7]["positions"][0] == {"destination": "X/EGM.Q.1.EGMStatus", "revision": 4}
    assert rows[9]["low_water"] == 5
    assert (rows[-1]["kind"], len(rows)) == ("end", 1 + len(records) + len(more))
    assert [row["revision"] for row in found[snapshot]] == [*range(8, 500), 499]

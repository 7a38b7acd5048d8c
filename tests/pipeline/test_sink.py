"""Rows of DataFrames become values of a real gateway: in order, answered, repeated without harm, through kills and full disks."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documents call it

from maxam.journal.listing import list_segments
from maxam.journal.reading import SegmentReader
from maxam.pipeline.publish.publisher import PublishError, Rejected, Row, Target, publish_rows
from maxam.pipeline.spark.sink import _Numbering as Numbering
from maxam.pipeline.spark.sink import _ReportFile as ReportFile
from maxam.pipeline.spark.sink import _rows as rows_of
from maxam.pipeline.spark.sink import publish
from maxam.records import Change
from tests.support.gateway_folder import GatewayFolder
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S

SCHEMAS = {"registry.toml": '[[rule]]\ndestination = "X/**"\nencoding = "none"\n'}
POLICY = """
[capabilities.all]
send = ["X/t.*"]
receive = ["X/**"]
[[principals]]
name = "publisher"
fingerprints = ["{}"]
capabilities = ["all"]
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def gateway(tmp_path: Path, certificates: Path) -> Iterator[GatewayProcess]:
    """Run a gateway that takes any body, on the same port after each start."""
    certificate = x509.load_pem_x509_certificate((certificates / "publisher.pem").read_bytes())
    folder = tmp_path / "gateway"
    folder.mkdir()
    policy = POLICY.format(certificate.fingerprint(hashes.SHA256()).hex())
    process = GatewayProcess(folder, certificates, policy, SCHEMAS)
    process.keep_port("listener")
    with process:
        yield process


def files_of(folder: Path) -> tuple[str, str, str]:
    """Return certificate, key and CA of `publisher`."""
    return str(folder / "publisher.pem"), str(folder / "publisher.key"), str(folder / "ca.pem")


def target(gateway: GatewayProcess, window: int = 1000, retry_s: float = 60) -> Target:
    """Return how `publisher` reaches a gateway."""
    return Target("127.0.0.1", gateway.port, *files_of(gateway.certificates), window=window, retry_s=retry_s)


def options(gateway: GatewayProcess, **further: str) -> dict[str, str]:
    """Return the options of a write by `publisher`."""
    one = target(gateway)
    return {
        "gateway": f"127.0.0.1:{gateway.port}",
        "certificate": one.certificate,
        "key": one.key,
        "ca": one.ca,
    } | further


def journal(folder: Path) -> list[Change]:
    """Return all changes that a journal holds."""
    changes: list[Change] = []
    for segment in list_segments(folder, "changes"):
        with SegmentReader(folder, "changes", segment) as reader:
            changes += [record for block in reader for record in block if isinstance(record, Change)]
    return changes


def numbers(gateway: GatewayProcess, source: str) -> dict[str, list[int]]:
    """Return the numbers of a source by destination, in the order in which they were accepted."""
    found: dict[str, list[int]] = {}
    for change in journal(gateway.folder / "journal"):
        headers = dict(change.headers)
        if headers.get(b"source") == source.encode():
            found.setdefault(change.destination.decode(), []).append(int(headers[b"source-revision"]))
    return found


def values(gateway: GatewayProcess, topics: int) -> dict[str, tuple[bytes, dict[str, str]]]:
    """Return body and headers of N topics, as an eager subscriber sees them."""

    async def read() -> dict[str, tuple[bytes, dict[str, str]]]:
        found: dict[str, tuple[bytes, dict[str, str]]] = {}
        with trio.fail_after(PATIENCE_S):
            async with target(gateway).connect() as client, client.subscribe("X/**", eager=True) as subscription:
                while len(found) < topics:
                    message = await anext(subscription)
                    found[message.destination] = (message.body, message.headers)
        return found

    return trio.run(read)


def table(spark: SparkSession, rows: int, topics: int, parts: int = 2) -> DataFrame:
    """Make rows of N topics, in order of `source_revision` within each part."""
    return spark.range(0, rows, 1, parts).selectExpr(
        f"concat('X/t.', id % {topics}) as destination",
        "cast(cast(id as string) as binary) as body",
        "id as source_revision",
    )


def write(frame: DataFrame, given: dict[str, str]) -> None:
    """Publish a DataFrame."""
    frame.write.format("maxam").mode("append").options(**given).save()


# --- batches


def test_a_batch_becomes_the_values_of_its_topics(spark: SparkSession, gateway: GatewayProcess) -> None:
    """Bodies and headers arrive as they are in the table, null bodies delete, and each SEND names source and number."""
    frame = spark.createDataFrame(
        [
            ("X/t.a", b"old", [("unit", "a:b"), ("source", "mine")]),
            ("X/t.a", b"new", [("unit", "cents")]),
            ("X/t.b", b"gone", None),
            ("X/t.b", None, None),
            ("X/t.c", b"\0\xff", []),
        ],
        "destination string, body binary, headers array<struct<name: string, value: string>>",
    ).coalesce(1)
    write(frame, options(gateway))
    found = values(gateway, 2)
    assert {destination: body for destination, (body, _) in found.items()} == {"X/t.a": b"new", "X/t.c": b"\0\xff"}
    headers = found["X/t.a"][1]
    assert headers["unit"] == "cents"
    assert headers["source"].startswith("spark-")
    assert [change.destination for change in journal(gateway.folder / "journal")] == [
        b"X/t.a",
        b"X/t.a",
        b"X/t.b",
        b"X/t.b",
        b"X/t.c",
    ]


def test_no_older_row_comes_after_a_newer_one(spark: SparkSession, gateway: GatewayProcess) -> None:
    """For any tasks and any order of rows, accepted numbers of a topic only rise, and its newest row is its value."""
    shuffled = table(spark, 4000, 20).orderBy(F.rand(1)).repartition(4)
    write(shuffled, options(gateway, source="mine"))
    found = numbers(gateway, "mine")
    assert len(found) == 20
    for destination, accepted in found.items():
        assert accepted == sorted(set(accepted))
        assert accepted[-1] == 3980 + int(destination.removeprefix("X/t."))
    assert {body for body, _ in values(gateway, 20).values()} == {b"%d" % number for number in range(3980, 4000)}


def test_a_batch_without_an_order_has_that_of_its_rows(spark: SparkSession, gateway: GatewayProcess) -> None:
    """Without `source_revision` the last row of a topic, in the order of the DataFrame, is its value, whichever task is quicker."""
    frame = table(spark, 2000, 5, parts=2).drop("source_revision")
    write(frame, options(gateway))
    write(frame.limit(10).coalesce(1), options(gateway))  # another write is not held up by the numbers of this one
    assert sorted(body for body, _ in values(gateway, 5).values()) == [b"5", b"6", b"7", b"8", b"9"]


def test_what_was_published_is_superseded_when_it_comes_again(spark: SparkSession, gateway: GatewayProcess) -> None:
    """Publishing the same rows of the same source again changes nothing, and further rows are accepted; all of them in order."""
    first = publish(table(spark, 1000, 10), options(gateway, source="mine"))
    assert (first.counts.accepted, first.counts.superseded) == (1000, 0)
    again = publish(table(spark, 1500, 10), options(gateway, source="mine"))
    assert (again.counts.accepted, again.counts.superseded) == (500, 1000)
    found = numbers(gateway, "mine")
    assert all(accepted == list(range(int(name[4:]), 1500, 10)) for name, accepted in found.items())


def test_rejected_rows_fail_the_write_or_are_reported(
    spark: SparkSession, gateway: GatewayProcess, tmp_path: Path
) -> None:
    """`fail` names counts and rows; `report` writes each rejected row and the sums, and publishes the others."""
    frame = spark.createDataFrame(
        [("X/t.1", b"1", 1), ("X/no", b"2", 2), ("", b"3", 3)], "destination string, body binary, source_revision long"
    )
    with pytest.raises(PySparkException) as caught:
        write(frame, options(gateway))
    assert "1 accepted, 0 superseded, 1 refused no-destination, 1 rejected-unauthorised unauthorised" in str(
        caught.value
    )
    assert "row 2 (X/no)" in str(caught.value)
    report = tmp_path / "report"
    write(frame, options(gateway, rejects="report", report=str(report)))
    lines = [json.loads(line) for path in report.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted((line["number"], line["destination"], line["disposition"], line["result"]) for line in lines) == [
        (2, "X/no", "rejected-unauthorised", "unauthorised"),
        (3, "", "refused", "no-destination"),
    ]
    [sums] = [json.loads(path.read_text()) for path in (report / "_published").iterdir()]
    assert (sums["accepted"], sums["superseded"], len(sums["rejected"])) == (1, 0, 2)
    assert spark.read.json(str(report)).count() == 2  # the sums are no rows
    assert list(report.glob(".*")) == []


def test_a_gateway_killed_in_the_middle_does_not_show(spark: SparkSession, gateway: GatewayProcess) -> None:
    """The gateway is killed and started again while rows come: the write ends well, and each row was accepted exactly once."""
    rows = 60_000
    segments = gateway.folder / "journal" / "segments"

    def kill_when_some_arrived() -> None:
        for accepted_bytes in (200_000, 3_000_000):  # of some 10 MB
            while sum(path.stat().st_size for path in segments.glob("*.avro")) < accepted_bytes:
                pass
            gateway.kill()
            gateway.start()

    killer = threading.Thread(target=kill_when_some_arrived)
    killer.start()
    published = publish(table(spark, rows, 100), options(gateway, source="mine"))
    killer.join()
    assert published.counts.connections > 2
    assert published.counts.accepted + published.counts.superseded == rows
    assert published.rejected == []
    found = numbers(gateway, "mine")
    assert all(accepted == list(range(int(name[4:]), rows, 100)) for name, accepted in found.items())


def test_wrong_options_and_columns_are_told_before_anything_is_sent(
    spark: SparkSession, gateway: GatewayProcess
) -> None:
    """The write is refused as a whole, with the name of the option or column."""
    frame = table(spark, 1, 1)
    with pytest.raises(PySparkException, match="unknown option widnow"):
        write(frame, options(gateway, widnow="1"))
    with pytest.raises(PySparkException, match="column revision: not known"):
        write(frame.withColumn("revision", F.lit(1)), options(gateway))
    with pytest.raises(PySparkException, match='use mode\\("append"\\)'):
        frame.write.format("maxam").mode("overwrite").options(**options(gateway)).save()
    with pytest.raises(PublishError, match="CA"):
        publish(frame, options(gateway) | {"ca": "/nowhere.pem"})
    assert journal(gateway.folder / "journal") == []


# --- streams


def test_a_stream_that_repeats_a_batch_changes_nothing(
    spark: SparkSession, gateway: GatewayProcess, tmp_path: Path
) -> None:
    """A micro-batch whose commit was lost is published again on restart and superseded: no row twice, none missing, in order."""
    folder, checkpoint, report = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "report"

    def run() -> None:
        stream = spark.readStream.schema("destination string, body binary").parquet(str(folder))
        given = options(gateway, rejects="report", report=str(report))
        writer = stream.writeStream.format("maxam").options(**given)
        writer.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start().awaitTermination()

    def add(first: int) -> None:
        frame = table(spark, 300, 5, parts=1).drop("source_revision")
        frame = frame.withColumn("body", F.concat(F.lit(f"{first}-").cast("binary"), "body"))
        frame.write.mode("append").parquet(str(folder))

    add(0)
    run()
    add(1)
    run()
    before = journal(gateway.folder / "journal")
    assert len(before) == 600
    for path in checkpoint.glob("commits/*1*"):
        path.unlink()
    run()
    add(2)
    run()
    after = journal(gateway.folder / "journal")
    assert [change.body for change in after[:600]] == [change.body for change in before]
    bodies = [change.body for change in after if change.destination == b"X/t.3"]
    assert bodies == [b"%d-%d" % (batch, number) for batch in range(3) for number in range(3, 300, 5)]
    sums = [json.loads(path.read_text()) for path in sorted((report / "_published").iterdir())]
    assert [(one["accepted"], one["superseded"]) for one in sums] == [(300, 0), (0, 300), (300, 0)]


# --- the publisher itself


def batches(rows: list[Row], size: int = 100) -> Iterator[list[Row]]:
    """Cut rows into batches."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def test_a_row_that_ends_the_connection_costs_only_itself(gateway: GatewayProcess) -> None:
    """A body above the gateway's limit is refused with the gateway's words; all others arrive, in order."""
    rows = [Row(number, "X/t.1", b"%d" % number) for number in range(100)]
    rows[50] = Row(50, "X/t.2", bytes(4_194_305))
    rejected: list[Rejected] = []
    counts = publish_rows(target(gateway), "s", batches(rows, 10), rejected.append)
    assert counts.accepted + counts.superseded == 99
    [one] = rejected
    assert (one.number, one.disposition, one.result) == (50, "refused", "protocol-error")
    assert "4194304" in one.reason
    assert numbers(gateway, "s") == {"X/t.1": [number for number in range(100) if number != 50]}


def test_each_kill_is_outlived_in_order(gateway: GatewayProcess) -> None:
    """However often the gateway is killed with SENDs under way, each row is accepted exactly once, and in order."""
    rows = [Row(number, f"X/t.{number % 7}", b"%d" % number) for number in range(6_000)]

    def cut() -> Iterator[list[Row]]:
        for place, batch in enumerate(batches(rows, 500)):
            yield batch
            if place % 3 == 2 and place < 11:  # more rows come, so that each kill is noticed
                gateway.kill()
                gateway.start()

    counts = publish_rows(target(gateway, window=2_000), "s", cut())
    assert counts.connections == 4
    assert counts.accepted + counts.superseded == 6_000
    found = numbers(gateway, "s")
    assert all(accepted == list(range(int(name[4:]), 6_000, 7)) for name, accepted in found.items())


def test_it_stops_after_too_many_rejections(gateway: GatewayProcess) -> None:
    """With a limit no further batch is taken once N rows were rejected, and those under way are settled."""
    rows = [Row(number, "X/no", b"v") for number in range(1000)]
    counts = publish_rows(target(gateway, window=50), "s", batches(rows, 50), rejected_max=100)
    assert 100 <= sum(counts.rejected.values()) < 1000


def test_a_gateway_that_is_silent_is_given_up(gateway: GatewayProcess) -> None:
    """One that takes what is sent, or stops taking it, and never answers fails the write by its own time limit, with this reason."""
    for body, said in ((b"v", "the gateway does not answer"), (bytes(4_000_000), "takes nothing")):

        def cut(body: bytes = body) -> Iterator[list[Row]]:
            yield [Row(0, "X/t.1", b"v")]
            os.kill(gateway.pid, signal.SIGSTOP)
            yield [Row(number, "X/t.1", body) for number in range(7, 17)]

        try:
            with pytest.raises(PublishError, match=f"{said}; nothing was settled for 0.5 s"):
                publish_rows(target(gateway, retry_s=0.5), f"s{len(body)}", cut())
        finally:
            os.kill(gateway.pid, signal.SIGCONT)


def test_no_row_sets_what_is_the_gateways_or_stops_the_others(gateway: GatewayProcess) -> None:
    """A header that would be a condition is left out, and a destination that no line can hold is rejected by itself."""
    batch = pa.RecordBatch.from_pylist(
        [
            {"destination": "X/t.1", "body": b"1", "headers": [{"name": "if-revision", "value": "5"}]},
            {"destination": "X/t." + 9_000 * "a", "body": b"2", "headers": None},
            {"destination": "X/t.1", "body": b"3", "headers": [{"name": "unit", "value": "cents"}]},
        ]
    )
    rejected: list[Rejected] = []
    counts = publish_rows(
        target(gateway), "s", rows_of(iter([batch]), Numbering("s", 0), rejected.append), rejected.append
    )
    assert counts.accepted == 2
    assert [(one.number, one.disposition, one.result) for one in rejected] == [(1, "refused", "destination-too-long")]
    assert numbers(gateway, "s") == {"X/t.1": [0, 2]}


def test_attempts_of_a_task_at_the_same_time_report_each_for_itself(tmp_path: Path) -> None:
    """Speculation runs a task twice at once and kills one: the report of the other has every rejected row."""
    one, other = (ReportFile(tmp_path / "write-0.jsonl") for _ in range(2))
    for number in range(2_500):
        one.add(Rejected(number, "X/t.1", "rejected-invalid", "no-rule", "why"))
        if number >= 1_000:
            other.add(Rejected(number - 1_000, "X/t.1", "rejected-invalid", "no-rule", "why"))
    other.discard()
    one.finish()
    [report] = tmp_path.iterdir()
    assert [json.loads(line)["number"] for line in report.read_text().splitlines()] == list(range(2_500))


def test_nothing_connects_for_no_rows() -> None:
    """A task without rows makes no connection."""
    nowhere = Target("127.0.0.1", 1, "c", "k", "a")
    assert publish_rows(nowhere, "s", iter([[], []])).connections == 0


def test_it_gives_up_and_says_where_it_was(certificates: Path) -> None:
    """When the gateway does not answer for too long, the error has address, row and reason. A missing file is reported at once."""
    files = files_of(certificates)
    with pytest.raises(PublishError, match=r"127.0.0.1:1 failed at row 7 \(X/t.1\): no gateway .* settled for 0.5 s"):
        publish_rows(Target("127.0.0.1", 1, *files, retry_s=0.5), "s", iter([[Row(7, "X/t.1", b"v")]]))
    with pytest.raises(PublishError, match="cannot read the key file nokey"):
        publish_rows(Target("127.0.0.1", 1, files[0], "nokey", files[2]), "s", iter([[Row(7, "X/t.1", b"v")]]))


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    """Values that a gateway cannot store are sent again until there is room. No older value comes after a newer one meanwhile."""
    files = GatewayFolder(tmp_path)
    with files.start(faulty=True) as running:
        one = Target("127.0.0.1", running.port, *files_of(tmp_path / "certs"), window=20)
        rows = [Row(number, f"X/{number % 3}", b"%d" % number) for number in range(200)]
        full = threading.Event()

        def cut() -> Iterator[list[Row]]:
            yield rows[:100]
            files.fault.write_text("ENOSPC pwrite")
            full.set()
            yield rows[100:]

        def make_room() -> None:
            full.wait()
            while "disk-full" not in running.log():
                pass
            files.fault.unlink()

        room = threading.Thread(target=make_room)
        room.start()
        counts = publish_rows(one, "s", cut())
        room.join()
        assert counts.accepted + counts.superseded == 200
        assert not counts.rejected
        with running.client() as client:
            found = client.values(b"X/**", 3)
        assert found == {b"X/%d" % (number % 3): b"%d" % number for number in range(197, 200)}

"""Jobs over small journals, each against the journal's records."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession

from maxam.config import Limits
from maxam.content import pack
from maxam.globs import compile_glob
from maxam.journal.disk import OsDisk
from maxam.journal.names import sealed_segments
from maxam.journal.newest import decode_records
from maxam.journal.rejects import RejectedJournal, RejectedSettings
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.examining import examine
from maxam.pipeline.jobs.changes import activity, rates, silent
from maxam.pipeline.jobs.compact import dated, write_days
from maxam.pipeline.jobs.freshness import freshness
from maxam.pipeline.jobs.latest import clock_intervals
from maxam.pipeline.jobs.newest import newest_changes
from maxam.pipeline.jobs.spark_newest import read_newest, values_of
from maxam.pipeline.jobs.walking import Walk
from maxam.pipeline.main import main
from maxam.pipeline.spark.reading import read_journal
from maxam.pipeline.spark.selection import Selection
from maxam.records import UNJUDGED, Change, Identity, RejectedSend, Rejection, Validation
from tests.pipeline.typed_journal import START_US, Minor, record_type, write_journal
from tests.support.errors import code_in

ALICE, BOB = Identity("alice", "a" * 64), Identity("bob", "b" * 64)
DOOR = {"type": "enum", "name": "Door", "symbols": ["OPEN", "SHUT", "AJAR"]}
V10 = Minor("Door_v1", "1.0", record_type("Door_v1", ("door", DOOR)))
V11 = Minor(
    "Door_v1",
    "1.1",
    record_type("Door_v1", ("door", DOOR), {"name": "by", "type": "string", "default": "", "pii": True}),
)
S = 1_000_000
START = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=START_US)


def value(
    revision: int, topic: str, at_s: float, door: str = "OPEN", minor: Minor = V10, publisher: Identity = ALICE
) -> Change:
    """Make a value."""
    body = minor.encode({"door": door, "by": "x"} if minor is V11 else {"door": door})
    return Change(
        revision, START_US + int(at_s * S), topic.encode(), False, publisher, minor.validation, *pack((), body)
    )


def delete(revision: int, topic: str, at_s: float) -> Change:
    """Make a delete."""
    return Change(
        revision,
        START_US + int(at_s * S),
        topic.encode(),
        True,
        BOB,
        Validation("datum", "Door_v1", "", b""),
        *pack((), b""),
    )


def raw(revision: int, topic: str, at_s: float) -> Change:
    """Make a value that nothing judged."""
    return Change(revision, START_US + int(at_s * S), topic.encode(), False, ALICE, UNJUDGED, *pack((), b"\x00\xffraw"))


HISTORY = [
    value(1, "X/a", 0),
    value(2, "X/b", 1, "SHUT"),
    value(3, "X/a", 2, "AJAR", publisher=BOB),
    raw(4, "X/raw", 2),
    delete(5, "X/b", 10),
    value(6, "X/c.d", 20, "SHUT", V11),
    value(7, "X/b", 30, "AJAR", V11),
    delete(8, "X/c.d", 40),
    value(9, "X/a", 86_400, "OPEN", V11),
    value(10, "X/a", 86_401, "AJAR", V11, BOB),
]


def naive(at_s: float, deleted: bool = False) -> dict[str, int]:
    """Return the revision of each topic's newest change as of a moment, by the definition."""
    found: dict[str, Change] = {}
    for change in HISTORY:
        if change.accepted_at_us <= START_US + at_s * S:
            found[change.destination.decode()] = change
    return {topic: change.revision for topic, change in found.items() if deleted or not change.deleted}


@pytest.fixture(name="journal", scope="module")
def _journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs") / "journal"
    write_journal(folder, HISTORY[:6], [V10, V11], block=2)
    write_journal(folder, HISTORY[6:], [V10, V11], block=2, seal=False)
    rejected = RejectedJournal.open(str(folder), OsDisk(), RejectedSettings(), b"r" * 16)
    sends = [
        (b"X/a", ALICE, "rejected-invalid", Rejection("schema-mismatch", "byte 1")),
        (b"X/b", ALICE, "rejected-invalid", Rejection("schema-mismatch", "byte 2")),
        (b"Y/a", BOB, "rejected-unauthorised", Rejection("no-send-right", "may not")),
    ]
    for number, (topic, who, disposition, why) in enumerate(sends, start=1):
        validation = V10.validation if who is ALICE else UNJUDGED
        at_us = START_US + number * S
        rejected.append([RejectedSend(number, at_us, topic, False, who, validation, (), b"", disposition, why)])
    rejected.close()
    return folder


@pytest.fixture(name="changes", scope="module")
def _changes(spark: SparkSession, journal: Path) -> Iterator[DataFrame]:
    frame = read_journal(spark, journal).cache()
    yield frame
    frame.unpersist()


def run(*arguments: object) -> Result:
    """Run a command in this process, in the session that there is."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def lines(result: Result) -> list[dict[str, Any]]:
    """Return the JSON lines on standard output."""
    return [json.loads(line) for line in result.stdout.splitlines()]


# latest


def test_newest_as_of_any_moment(journal: Path) -> None:
    """As of a microsecond before, at and after each change, the newest of each topic is that of the definition, deletes too."""
    archive = examine(None, journal)
    for at_s in (-1, 0, 1.999999, 2, 9.999999, 10, 1e6):
        until = START + timedelta(seconds=at_s, microseconds=1)
        with newest_changes(Walk(archive, Selection(until=until), 0)) as newest:
            found = [one for number in range(newest.ranges) for one in decode_records(newest.records(number))]
        assert {one.destination.decode(): one.revision for one in found} == naive(at_s, deleted=True), at_s


def test_newest_as_of_any_revision(journal: Path) -> None:
    """`latest --at-revision` is the state after that change; a later revision than the journal's is refused."""
    newest_of: dict[str, int] = {}
    for change in HISTORY:
        newest_of[change.destination.decode()] = change.revision
        if change.deleted:
            del newest_of[change.destination.decode()]
        result = run("latest", "--journal", journal, "--at-revision", change.revision, "--format", "json")
        assert {row["destination"]: row["revision"] for row in lines(result)} == newest_of
    assert run("latest", "--journal", journal, "--at-revision", len(HISTORY) + 1).exit_code == 1
    assert run("latest", "--journal", journal, "--at-revision", 1, "--at", START.isoformat()).exit_code == 2


def test_latest_is_decoded_and_in_order(spark: SparkSession, journal: Path) -> None:
    """Values come decoded in order of their topics, bodies without a schema as they are, deletes only if asked for."""
    found = read_newest(spark, examine(None, journal), Selection())
    rows = values_of(found, Catalogue.load(journal, None)).collect()
    assert [(row.destination, row.value, row.body) for row in rows] == [
        ("X/a", '{"door": "AJAR", "by": "x"}', None),
        ("X/b", '{"door": "AJAR", "by": "x"}', None),
        ("X/raw", None, b"\x00\xffraw"),
    ]
    assert {row.destination: row.revision for row in rows} == naive(1e6)
    everything = values_of(found, deleted=True).collect()
    assert [(row.destination, row.kind, row.body is None) for row in everything] == [
        ("X/a", "value", False),
        ("X/b", "value", False),
        ("X/c.d", "delete", True),
        ("X/raw", "value", False),
    ]


@pytest.mark.parametrize(("at_s", "offset"), [(1, "Z"), (10, "+10:00"), (2, "-03:30")])
def test_latest_on_the_command_line(spark: SparkSession, journal: Path, at_s: int, offset: str) -> None:
    """`latest --at` gives a JSON object a line with the value of each topic as of that moment, whatever its zone."""
    assert spark is not None
    hours, _, minutes = offset[1:].partition(":")
    shift = (
        timedelta()
        if offset == "Z"
        else timedelta(hours=int(hours), minutes=int(minutes)) * (-1 if offset[0] == "-" else 1)
    )
    text = (START + timedelta(seconds=at_s) + shift).strftime("%Y-%m-%dT%H:%M:%S") + offset
    result = run("latest", "--journal", journal, "--at", text, "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = lines(result)
    assert {row["destination"]: row["revision"] for row in rows} == naive(at_s)
    assert rows[0].keys() == {"destination", "revision", "accepted_at", "publisher", "schema", "value"}
    if at_s == 2:
        assert rows[-1].keys() == {"destination", "revision", "accepted_at", "publisher", "schema", "body"}
        assert (rows[-1]["destination"], rows[-1]["body"]) == ("X/raw", "AP9yYXc=")


def test_globs_choose_topics(spark: SparkSession, journal: Path) -> None:
    """Of several globs any may match."""
    assert spark is not None
    result = run("latest", "--journal", journal, "--glob", "X/[bc]", "--glob", "X/raw", "--format", "json")
    assert [row["destination"] for row in lines(result)] == ["X/b", "X/raw"]


def test_the_interval_of_a_clock_that_ran_backwards_is_named(tmp_path: Path) -> None:
    """A moment while the clock stood still is answered, and the interval and its revisions are named; another one is not."""
    still = [value(n, "X/a", 5) for n in range(2, 10)]
    write_journal(tmp_path, [value(1, "X/a", 0), *still, value(10, "X/a", 9)], [V10], block=1)
    (problem,) = [one for one in examine(None, tmp_path).problems if one.kind == "clock"]
    ((_, first, last),) = clock_intervals(tmp_path, [problem])
    assert (first, last) == (START + timedelta(seconds=5), START + timedelta(seconds=9))
    for at_s, named in ((4, False), (5, True), (7, True), (10, False)):
        at = (START + timedelta(seconds=at_s)).isoformat()
        result = run("latest", "--journal", tmp_path, "--at", at, "--format", "json")
        assert result.exit_code == 0
        assert ("is in the interval from" in result.stderr) == named, (at_s, result.stderr)
        if named:
            assert "revisions 2 to 8" in result.stderr
            assert [row["revision"] for row in lines(result)] == [9]


# changes


def test_rates_count_every_change_once(changes: DataFrame) -> None:
    """Per topic and window there are as many changes as the journal has there; windows begin at multiples of their length."""
    rows = rates(changes, timedelta(seconds=10)).collect()
    found = {(row.destination, row.window_start.replace(tzinfo=UTC)): (row.changes, row.deletes) for row in rows}
    wanted: dict[tuple[str, datetime], tuple[int, int]] = {}
    for change in HISTORY:
        start = START + timedelta(seconds=(change.accepted_at_us - START_US) // (10 * S) * 10)
        count, deletes = wanted.get((change.destination.decode(), start), (0, 0))
        wanted[change.destination.decode(), start] = count + 1, deletes + change.deleted
    assert found == wanted
    assert {row.changes_per_s for row in rows if row.changes == 2} == {0.2}


def test_activity_tells_the_busiest_first(changes: DataFrame) -> None:
    """Each topic has its counts, first and last change, silence to the end of observation, and longest gap."""
    rows = activity(changes, gaps=True).collect()
    assert [(row.destination, row.changes, row.deletes) for row in rows] == [
        ("X/a", 4, 0),
        ("X/b", 3, 1),
        ("X/c.d", 2, 1),
        ("X/raw", 1, 0),
    ]
    assert [row.longest_gap_s for row in rows] == [86_398, 20, 20, None]
    assert rows[1].longest_gap_from.replace(tzinfo=UTC) == START + timedelta(seconds=10)
    assert [row.silent_s for row in rows] == [0, 86_371, 86_361, 86_399]
    assert [row.destination for row in silent(activity(changes), timedelta(seconds=86_371)).collect()] == [
        "X/raw",
        "X/b",
    ]
    by_publisher = activity(changes, by_publisher=True).where("destination = 'X/a'").collect()
    assert [(row.publisher, row.changes) for row in by_publisher] == [("alice", 2), ("bob", 2)]


def test_changes_on_the_command_line(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    """--top, --window and --silent give the rows that they describe, into a file too."""
    assert spark is not None
    assert [
        row["destination"] for row in lines(run("changes", "--journal", journal, "--top", 2, "--format", "json"))
    ] == ["X/a", "X/b"]
    out = tmp_path / "rates.csv"
    result = run("changes", "--journal", journal, "--window", "1d", "--top", 1, "--out", out)
    assert result.exit_code == 0, result.output
    assert out.read_text().splitlines() == [
        "window_start,destination,changes,deletes,changes_per_s",
        f"2026-10-01T00:00:00.000000Z,X/a,2,0,{2 / 86_400}",
        f"2026-10-02T00:00:00.000000Z,X/a,2,0,{2 / 86_400}",
    ]
    later = (START + timedelta(days=3)).isoformat()
    result = run("changes", "--journal", journal, "--silent", "50h", "--until", later, "--format", "json")
    assert [row["destination"] for row in lines(result)] == ["X/raw", "X/b", "X/c.d"]


# rejects


def test_rejects_are_summed_up(spark: SparkSession, journal: Path) -> None:
    """Rejected SENDs are counted by who, schema and why, with first, last and a sample."""
    assert spark is not None
    rows = lines(run("rejects", "--journal", journal, "--format", "json"))
    assert [(row["principal"], row["schema"], row["result"], row["rejected"], row["destinations"]) for row in rows] == [
        ("alice", "Door_v1", "schema-mismatch", 2, 2),
        ("bob", "", "no-send-right", 1, 1),
    ]
    assert (rows[0]["sample_destination"], rows[0]["sample_reason"]) == ("X/b", "byte 2")
    assert rows[0]["first_at"] < rows[0]["last_at"]
    by = lines(run("rejects", "--journal", journal, "--by", "destination", "--format", "json"))
    assert [(row["destination"], row["rejected"]) for row in by] == [("X/a", 1), ("X/b", 1), ("Y/a", 1)]


# freshness


def test_freshness_by_the_definition(changes: DataFrame) -> None:
    """Gaps, breaches and time in breach are those between the changes; a deleted topic does not grow old."""
    limits = [
        (compile_glob("X/b", Limits()), 5.0),
        (compile_glob("X/raw", Limits()), None),
        (compile_glob("X/*", Limits()), 15.0),
    ]
    end = START + timedelta(seconds=100)
    rows = {row.destination: row for row in freshness(changes, limits, end).collect()}
    assert set(rows) == {"X/a", "X/b", "X/c.d"}
    found = {
        topic: (row["values"], row.longest_gap_s, row.breaches, row.breach_s, row.open, row.fresh_within_s)
        for topic, row in rows.items()
    }
    assert found == {
        "X/a": (2, 98, 1, 83, True, 15),  # from 2 to the end
        "X/b": (2, 70, 2, (9 - 5) + (70 - 5), True, 5),  # 1 to 10, deleted to 30, 30 to the end
        "X/c.d": (1, 20, 1, 5, False, 15),  # 20 to 40, deleted
    }
    assert rows["X/a"].longest_gap_from.replace(tzinfo=UTC) == START + timedelta(seconds=2)


def schema_folder(folder: Path, rule: str) -> Path:
    """Write a schema folder with both minors and one rule."""
    place = folder / "schemas" / "Door_v1"
    place.mkdir(parents=True)
    for minor in (V10, V11):
        (place / f"{minor.version}.avsc").write_bytes(minor.text)
    text = f'[[rule]]\ndestination = "X/*"\nschema = "Door_v1"\nencoding = "datum"\n{rule}\n'
    (folder / "schemas" / "registry.toml").write_text(text)
    return folder / "schemas"


def test_freshness_on_the_command_line(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    """`freshness` takes the limit from the registry, and observes to the last record; without a limit there it reports that."""
    assert spark is not None
    schemas = schema_folder(tmp_path, "fresh_within_s = 86_000")
    result = run("freshness", "--journal", journal, "--schemas", schemas, "--open", "--format", "json")
    assert [(row["destination"], row["breach_s"]) for row in lines(result)] == [("X/raw", 399), ("X/b", 371)]
    none = run("freshness", "--journal", journal, "--schemas", schema_folder(tmp_path / "none", ""))
    assert (none.exit_code, "no rule has fresh_within_s" in none.stderr) == (1, True)


# check-schema


def candidate(folder: Path, *fields: Any) -> Path:
    """Write a candidate."""
    path = folder / "next.avsc"
    path.write_text(json.dumps(record_type("Door_v1", *fields)))
    return path


def test_a_schema_that_reads_everything(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    """A candidate that reads whatever the stored versions can write is valid, and no body is read."""
    assert spark is not None
    result = run(
        "check-schema",
        candidate(tmp_path, ("door", DOOR), {"name": "new", "type": "int", "default": 0}),
        "--journal",
        journal,
    )
    assert result.exit_code == 0, result.output
    assert "7 bodies" in result.stdout


def test_bodies_that_a_schema_cannot_read(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    """Bodies that a candidate cannot read are counted by path, problem and publisher, with first and last seen; the exit code is 1."""
    assert spark is not None
    file = candidate(tmp_path, ("door", {**DOOR, "symbols": ["OPEN", "SHUT"]}), ("by", "string"))
    result = run("check-schema", file, "--journal", journal, "--format", "json")
    assert result.exit_code == 1
    rows = lines(result)
    assert [(row["path"], row["publisher"], row["schema_version"], row["bodies"]) for row in rows] == [
        ("by", "alice", "1.0", 2),
        ("by", "bob", "1.0", 1),
        ("door", "bob", "1.0", 1),
        ("door", "alice", "1.1", 1),
        ("door", "bob", "1.1", 1),
    ]
    assert ["AJAR" in row["problem"] for row in rows] == [False, False, True, True, True]
    assert (rows[0]["first_revision"], rows[0]["last_revision"], rows[0]["sample_destination"]) == (1, 2, "X/b")
    assert "5 of 7 bodies of Door_v1" in result.stderr


def test_a_type_that_the_journal_does_not_have(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    """A type without a body is good, and what the journal has is named."""
    assert spark is not None
    result = run("check-schema", candidate(tmp_path, ("door", DOOR)), "--journal", journal, "--type", "Gate_v1")
    assert (result.exit_code, "Door_v1" in result.stderr) == (0, True)


# export, compact


def test_export_has_what_the_journal_has(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    """Parquet, JSON and CSV hold all changes in order, decoded on request; the range of revisions is respected."""
    import pyarrow.parquet as pq

    assert spark is not None
    out = tmp_path / "changes.parquet"
    assert run("export", "--journal", journal, "--out", out).exit_code == 0
    table = pq.read_table(out)
    assert table.column("revision").to_pylist() == list(range(1, 11))
    assert table.column("body").to_pylist() == [change.body for change in HISTORY]
    result = run(
        "export",
        "--journal",
        journal,
        "--values",
        "--no-bodies",
        "--from-revision",
        4,
        "--to-revision",
        6,
        "--format",
        "json",
    )
    assert [(row["revision"], row["kind"], row.get("value")) for row in lines(result)] == [
        (4, "value", None),
        (5, "delete", None),
        (6, "value", {"door": "SHUT", "by": "x"}),
    ]
    rows = lines(
        run("export", "--journal", journal, "--values", "--drop-pii", "--from-revision", 6, "--format", "json")
    )
    assert rows[0]["value"] == {"door": "SHUT"}
    assert not {"body", "headers"} & set(rows[0])
    rows = lines(run("export", "--journal", journal, "--rejected", "--format", "json"))
    assert [(row["revision"], row["result"]) for row in rows] == [
        (1, "schema-mismatch"),
        (2, "schema-mismatch"),
        (3, "no-send-right"),
    ]
    assert run("export", "--journal", journal, "--out", f"{tmp_path}/folder/").exit_code == 0
    assert pq.read_table(tmp_path / "folder").num_rows == 10


@pytest.mark.parametrize("container", ["avro", "parquet"])
def test_compact_keeps_the_last_of_each_day(spark: SparkSession, journal: Path, tmp_path: Path, container: str) -> None:
    """A compacted archive has, of each topic and day, the last change with all its columns, a file for each day."""
    import fastavro
    import pyarrow.parquet as pq

    assert spark is not None
    out = tmp_path / "compact"
    result = run("compact", "--journal", journal, "--out", out, "--container", container)
    assert result.exit_code == 0, result.output
    assert "5 of 10 changes, in 2 days" in result.stdout
    assert sorted(path.name for path in out.iterdir()) == [f"2026-10-01.{container}", f"2026-10-02.{container}"]
    found = []
    for path in sorted(out.iterdir()):
        if container == "avro":
            with path.open("rb") as file:
                found += [(row["revision"], row["kind"], row["body"]) for row in fastavro.reader(file)]  # type: ignore[index, call-overload]  # a dict each
        else:
            found += [(row["revision"], row["kind"], row["body"]) for row in pq.read_table(path).to_pylist()]
    last = {(c.destination, c.accepted_at_us // 86_400_000_000): c for c in HISTORY}
    wanted = sorted((c.revision, "delete" if c.deleted else "value", c.body) for c in last.values())
    assert found == wanted
    again = run("compact", "--journal", journal, "--out", out, "--container", container)
    assert (again.exit_code, code_in(again.stderr)) == (1, "job-failed")


def test_a_compaction_that_fails_leaves_nothing(changes: DataFrame, tmp_path: Path) -> None:
    """When writing fails, neither the folder nor anything beside it is there."""
    out = tmp_path / "compact"
    broken = dated(changes).selectExpr("* except (publisher)", "assert_true(revision < 3) AS publisher")
    with pytest.raises(Exception, match="is not true"):  # Spark's
        write_days(broken, out, "parquet")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match="cannot be written"):
        write_days(changes, tmp_path / "file" / "compact", "parquet")


# what is not as it should be


def test_a_damaged_journal_is_read_in_part(spark: SparkSession, tmp_path: Path) -> None:
    """Damage is named with file and position, all the rest is given, and the exit code is 5."""
    assert spark is not None
    write_journal(tmp_path, [value(n, f"X/{n}", n) for n in range(1, 11)], [V10], block=2)
    (segment,) = sealed_segments(tmp_path, OsDisk())
    data = bytearray(Path(segment.path).read_bytes())
    data[data.index(b"X/5") + 1] ^= 0x40
    Path(segment.path).write_bytes(data)
    result = run("latest", "--journal", tmp_path, "--format", "json")
    assert result.exit_code == 5, result.output
    assert sorted(row["revision"] for row in lines(result)) == [1, 2, 3, 4, 7, 8, 9, 10]
    assert f"problem: {segment.path}: byte " in result.stderr
    assert "revisions 5 to 6" in result.stderr


def test_an_empty_journal_gives_empty_results(spark: SparkSession, tmp_path: Path) -> None:
    """Every command works on a journal without a change: no rows, exit code 0."""
    assert spark is not None
    write_journal(tmp_path / "journal", [], [])
    schemas = schema_folder(tmp_path, "fresh_within_s = 5")
    for verb in ("latest", "changes", "rejects", "export", "freshness"):
        more = ["--schemas", schemas] if verb == "freshness" else []
        result = run(verb, "--journal", tmp_path / "journal", "--format", "json", *more)
        assert (result.exit_code, result.stdout) == (0, ""), (verb, result.output)
    table = run("latest", "--journal", tmp_path / "journal")
    assert (table.exit_code, table.stdout.split()[0]) == (0, "DESTINATION")
    out = run("export", "--journal", tmp_path / "journal", "--out", tmp_path / "x.parquet")
    assert (out.exit_code, (tmp_path / "x.parquet").is_file()) == (0, True)
    result = run("compact", "--journal", tmp_path / "journal", "--out", tmp_path / "compact")
    assert (result.exit_code, "0 of 0 changes" in result.stdout) == (0, True), result.output


def test_retention_costs_those_who_ask_for_what_it_removed(spark: SparkSession, tmp_path: Path) -> None:
    """Bounds before the beginning of an archive that began earlier give no rows, report what is lost, and exit with 3."""
    assert spark is not None
    write_journal(tmp_path, [value(n, f"X/{n}", n) for n in range(1, 41)], [V10], block=2, segment_bytes=1000)
    gone, kept, *_ = sealed_segments(tmp_path, OsDisk())
    Path(gone.path).unlink()
    before, after = ((START + timedelta(seconds=at_s)).isoformat() for at_s in (gone.last, kept.first))
    for words in (
        ["export", "--to-revision", gone.last],
        ["export", "--until", before],
        ["export", "--since", before],
        ["latest", "--at", before],
        ["changes", "--to-revision", 1],
    ):
        result = run(words[0], "--journal", tmp_path, *words[1:], "--format", "json")
        assert result.exit_code == 5, (words, result.output)
        assert re.search(f"^problem: {tmp_path}/segments: expired: .*\\b{kept.first}\\b", result.stderr, re.MULTILINE)
        assert (result.stdout == "") == (words[1] != "--since")
    for words in (["latest"], ["latest", "--at", after], ["export", "--since", after]):
        result = run(words[0], "--journal", tmp_path, *words[1:], "--format", "json")
        assert (result.exit_code, "note: " in result.stderr) == (0, True), (words, result.output)


def test_relative_paths_are_the_callers(
    spark: SparkSession, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever Java stands, a relative path is resolved where the command is run, and what is written is there."""
    assert spark is not None
    (tmp_path / "journal").symlink_to(journal)
    monkeypatch.chdir(tmp_path)
    for words in (
        ["export", "--out", "folder/"],
        ["export", "--out", "file.parquet"],
        ["compact", "--out", "days"],
        ["history", "--out", "table"],
        ["latest", "--out", "state.jsonl"],
    ):
        result = run(words[0], "--journal", "journal", *words[1:])
        assert result.exit_code == 0, result.output
    there = {"journal", "folder", "file.parquet", "days", "table", "state.jsonl"}
    assert {path.name for path in tmp_path.iterdir()} == there
    assert spark.read.parquet(str(tmp_path / "table" / "Door_v1")).count() == 9
    assert read_journal(spark, "journal").count() == len(HISTORY)


def test_a_history_with_a_hole_says_so_each_time(spark: SparkSession, tmp_path: Path) -> None:
    """Revisions that an earlier run could not read are missing for good. Each run shows them and exits with 3."""
    assert spark is not None
    journal = tmp_path / "journal"
    write_journal(journal, [value(n, f"X/{n}", n) for n in range(1, 11)], [V10], block=2)
    (segment,) = sealed_segments(journal, OsDisk())
    data = bytearray(Path(segment.path).read_bytes())
    data[data.index(b"X/5") + 1] ^= 0x40
    Path(segment.path).write_bytes(data)
    for again in (False, True):
        result = run("history", "--journal", journal, "--out", tmp_path / "table")
        assert result.exit_code == 5, result.output
        assert re.search(r"^problem: 2 revisions .*\b5-6\b", result.stderr, re.MULTILINE)
        assert ("nothing new" in result.stderr) == again
    unknown = run("history", "--journal", journal, "--out", tmp_path / "other", "--types", "nothing")
    assert (unknown.exit_code, "the journal knows Door_v1\n" in unknown.stderr) == (1, True)

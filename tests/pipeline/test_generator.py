"""The archive that tests and measurements of the pipeline read: a real journal, and true to the shipped schemas."""

import io
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import fastavro
import pytest
from click.testing import CliRunner

from maxam.bench.archive import START, write_archive
from maxam.bench.bodies import SCHEMAS, read_schemas
from maxam.bench.errors import LoadError
from maxam.bench.main import main as bench
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.verify import verify
from maxam.records import AcknowledgementRecord, Change, Record, SessionEndRecord, SubscriptionRecord, Validation

RECORDS = 12_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an archive of 50 topics and two days."""
    folder = tmp_path_factory.mktemp("archive") / "journal"
    written = write_archive(folder, RECORDS, topics=50, days=2, seed=3)
    assert (written.records, written.topics) == (RECORDS, 50)
    return folder


@pytest.fixture(scope="module")
def records(folder: Path) -> list[Record]:
    """Read it back as the gateway does."""
    journal = Journal.open(folder, OsDisk(), JournalSettings(), bytes(16))
    try:
        return list(journal.recover())
    finally:
        journal.close()


@pytest.fixture(scope="module")
def changes(records: list[Record]) -> list[Change]:
    """Leave out the session records."""
    return [record for record in records if isinstance(record, Change)]


def test_it_is_a_whole_journal_of_sealed_segments(folder: Path) -> None:
    """`maxam-admin journal verify` finds nothing wrong, all segments are sealed, and there are several of them."""
    reports = list(verify(folder, OsDisk()))
    assert [report for report in reports if report.problem is not None] == []
    segments = [report for report in reports if "/segments/" in report.path]
    assert len(segments) > 10  # they roll with the first block of another hour
    assert all(".open." not in report.path for report in segments)
    assert segments[-1].last == RECORDS


def test_its_schemas_are_those_of_the_folder(folder: Path) -> None:
    """Each text of the shipped schemas is in it, under its SHA-256."""
    there = {path.stem: path.read_bytes() for path in (folder / "schemas").iterdir()}
    assert there == dict(read_schemas(SCHEMAS).texts())


def test_the_gateway_would_have_accepted_each_change_just_so(changes: list[Change]) -> None:
    """The rule of each destination judges its bodies as the records show, in all encodings and two minors of one type."""
    registry = read_schemas(SCHEMAS)
    kinds = Counter[tuple[str, str, str]]()
    deleted = 0
    for change in changes:
        rule = registry.rule_for(change.destination.decode())
        assert rule is not None
        told = change.validation
        if change.deleted:
            deleted += 1
            assert (told.encoding, told.schema, change.body) == (rule.encoding, rule.schema, b"")
            continue
        judged = rule.validate(change.destination, change.headers, change.body)
        assert isinstance(judged, Validation), judged
        length = len(change.body) - told.value_offset if told.value_length < 0 else told.value_length
        judged_length = len(change.body) - judged.value_offset if judged.value_length < 0 else judged.value_length
        assert (told.encoding, told.schema, told.schema_version) == (
            judged.encoding,
            judged.schema,
            judged.schema_version,
        )
        assert told.schema_fingerprint == judged.schema_fingerprint
        assert (told.value_offset, length) == (judged.value_offset, judged_length)
        kinds[told.encoding, told.schema, told.schema_version] += 1
    assert {encoding for encoding, _, _ in kinds} == {"datum", "single-object", "envelope"}
    assert len(kinds) == 6
    assert {version for _, schema, version in kinds if schema == "egm.EGMMeterReading_v1"} == {"1.0", "1.1"}
    assert deleted > RECORDS / 1000


def test_bodies_are_about_their_topic_and_time(changes: list[Change]) -> None:
    """Each body has the machine of its destination and a time just before it was accepted, and meters do not run backwards."""
    registry = read_schemas(SCHEMAS)
    parsed = {
        (name, version.minor): fastavro.parse_schema(json.loads(version.schema.text))
        for name in registry.types()
        for version in registry.versions(name)
    }
    turnovers: dict[bytes, list[int]] = defaultdict(list)
    for change in changes[::3]:
        if change.deleted:
            continue
        told = change.validation
        end = len(change.body) if told.value_length < 0 else told.value_offset + told.value_length
        datum = io.BytesIO(change.body[told.value_offset : end])
        value = fastavro.schemaless_reader(datum, parsed[told.schema, told.schema_version], None)
        assert isinstance(value, dict)
        assert value["from"]["egmElectronicId"] == change.destination.decode().split(".")[2]
        assert value["from"]["venueId"].lower() in change.publisher.principal
        before_us = change.accepted_at_us - value["from"]["updatedTime"].timestamp() * 1_000_000
        assert 0 < before_us < 1_000_000
        if told.schema == "egm.EGMMeterReading_v1" and b"X/EGM.Q." in change.destination:
            turnovers[change.destination].append(value["meters"]["auxiliary"]["turnover"])
    assert len(turnovers) >= 3
    for readings in turnovers.values():
        assert readings[-1] > readings[0] > 0
        assert readings == sorted(readings)


def test_time_passes_by_the_days_that_were_asked_for(changes: list[Change]) -> None:
    """Times never decrease, begin where the archive does, span its days, and busy hours have more than twice the changes."""
    times = [change.accepted_at_us for change in changes]
    start_us = START.timestamp() * 1_000_000
    assert times == sorted(times)
    assert times[0] == start_us
    assert 1.99 * 86_400e6 < times[-1] - start_us < 2 * 86_400e6
    hours = Counter((at - times[0]) // 3_600_000_000 for at in times)
    assert len(hours) == 48
    assert max(hours.values()) > 2 * min(hours.values())


def test_session_records_are_among_the_changes(records: list[Record]) -> None:
    """Two durable subscribers left records: they came, one acknowledged, one went."""
    count = Counter(type(record) for record in records)
    assert count[SubscriptionRecord] == 2
    assert count[AcknowledgementRecord] >= 2
    assert count[SessionEndRecord] == 1


def test_a_seed_tells_the_bytes(tmp_path: Path) -> None:
    """The same arguments give the same files; another seed gives others, none shorter than asked."""

    def files(name: str, seed: int) -> dict[str, bytes]:
        write_archive(tmp_path / name, 1234, seed=seed, topics=50)
        return {path.name: path.read_bytes() for path in (tmp_path / name / "segments").iterdir()}

    first = files("a", 1)
    assert files("b", 1) == first
    other = files("c", 2)
    assert max(other) != max(first) or other[max(other)] != first[max(first)]
    assert max(other).endswith(f"{1234:020}.avro")


def test_a_folder_with_a_journal_is_refused(tmp_path: Path) -> None:
    """The command writes what it reports, and a second time refuses to mix two journals, with exit code 1."""
    arguments = ["archive", str(tmp_path / "j"), "--records", "100", "--topics", "5"]
    done = CliRunner().invoke(bench, arguments)
    assert done.exit_code == 0, done.output
    assert "100 changes" in done.output
    again = CliRunner().invoke(bench, arguments)
    assert again.exit_code == 1
    assert "holds a journal already" in again.output
    with pytest.raises(LoadError, match="no schema folder"):
        write_archive(tmp_path / "k", 1, schemas=tmp_path / "nowhere")


def test_rejected_sends_have_a_journal_of_their_own(tmp_path: Path) -> None:
    """One for N changes, whole and sealed, of several reasons; the journal beside them is what it is without."""
    write_archive(tmp_path / "with", 5000, topics=50, rejected_every=10)
    write_archive(tmp_path / "without", 5000, topics=50)
    segments = [(tmp_path / name / "segments").iterdir() for name in ("with", "without")]
    assert [[path.read_bytes() for path in sorted(paths)] for paths in segments[:1]] == [
        [path.read_bytes() for path in sorted(paths)] for paths in segments[1:]
    ]
    files = sorted((tmp_path / "with" / "rejected").iterdir())
    assert [path.name for path in files] == [f"{1:020}-{500:020}.avro"] or len(files) > 1
    records: list[Any] = []
    for path in files:
        with path.open("rb") as file:
            found: list[Any] = list(fastavro.reader(file))
            records += [record for record in found if record["kind"] != "end"]
    assert [record["revision"] for record in records] == list(range(1, 501))
    assert {record["disposition"] for record in records} == {"rejected-invalid", "rejected-unauthorised"}
    assert {record["result"] for record in records} == {"schema-mismatch", "unauthorised", "unknown-schema-version"}
    unauthorised = [record for record in records if record["result"] == "unauthorised"]
    assert all(not record["body"] for record in unauthorised)
    assert {header["name"] for record in unauthorised for header in record["headers"]} == {
        "content-length",
        "body-sha256",
    }

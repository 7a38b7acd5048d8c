"""`maxam-pipeline verify`: a live gateway under load against its journal, and against copies of it with faults planted."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from pyspark.sql import SparkSession

from maxam.config import Limits
from maxam.content import pack
from maxam.globs import compile_glob
from maxam.journal.encoding import START, Encoder, header
from maxam.journal.listing import list_segments
from maxam.journal.reading import SegmentReader
from maxam.pipeline.examining import examine
from maxam.pipeline.jobs import verify
from maxam.pipeline.main import main
from maxam.pipeline.publish.publisher import Row, publish_rows
from maxam.pipeline.spark.reading import read_journal
from maxam.records import Change, RejectedSend
from tests.pipeline.test_sink import journal, options, target
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S

SCHEMAS = {"registry.toml": '[[rule]]\ndestination = "X/**"\nencoding = "none"\n'}
POLICY = """
[capabilities.all]
send = ["X/**"]
receive = [{receive}]
[[principals]]
name = "publisher"
fingerprints = ["{fingerprint}"]
capabilities = ["all"]
"""
SYNC = b"0123456789abcdef"
SENDS_PER_S = 2_000

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


def policy(certificates: Path, *receive: str) -> str:
    """Return a policy that lets `publisher` receive these."""
    certificate = x509.load_pem_x509_certificate((certificates / "publisher.pem").read_bytes())
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    return POLICY.format(receive=", ".join(f'"{glob}"' for glob in receive), fingerprint=fingerprint)


@pytest.fixture
def gateway(tmp_path: Path, certificates: Path) -> Iterator[GatewayProcess]:
    """Run a gateway whose topics X/hidden.* no principal may receive, with 300 still topics, some deleted and some of them hidden."""
    folder = tmp_path / "gateway"
    folder.mkdir()
    with GatewayProcess(folder, certificates, policy(certificates, "X/p.*", "X/l.*"), SCHEMAS) as process:
        rows = [Row(number, f"X/p.{number % 300}", b"value %d" % number, {"n": "a:b"}) for number in range(600)]
        rows += [Row(600 + number, f"X/p.{number}", b"") for number in range(290, 300)]
        rows += [Row(700 + number, f"X/hidden.{number}", b"secret") for number in range(10)]
        assert publish_rows(target(process), "setup", iter([rows])).accepted == len(rows)
        yield process


@contextmanager
def load(gateway: GatewayProcess) -> Iterator[None]:
    """Publish to 100 topics all the time, deletes among it, and assert in the end that all was accepted."""
    stop, started = threading.Event(), threading.Event()
    counts = []

    def rows() -> Iterator[list[Row]]:
        number = 0
        while not stop.wait(50 / SENDS_PER_S):
            yield [
                Row(place, f"X/l.{place % 100}", b"" if place % 97 == 0 else b"%d" % place)
                for place in range(number, number + 50)
            ]
            number += 50
            started.set()

    def publish() -> None:
        counts.append(publish_rows(target(gateway), "load", rows()))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        assert started.wait(PATIENCE_S)
        yield
    finally:
        stop.set()
        thread.join()
    assert not counts[0].rejected


def run(gateway: GatewayProcess, folder: Path, *further: str) -> Result:
    """Run the command."""
    given = options(gateway)
    arguments = [word for name in ("gateway", "certificate", "key", "ca") for word in (f"--{name}", given[name])]
    return CliRunner().invoke(main, ["verify", "--journal", str(folder), "--format", "json", *arguments, *further])


def found(result: Result) -> list[tuple[str, int, str]]:
    """Return destination, revision and kind of the differences."""
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return [(row["destination"], row["revision"], row["what"]) for row in rows]


def copy(journal_folder: Path, to: Path, change: Callable[[Change], Change]) -> None:
    """Copy what a journal holds now, each change as `change` makes it, with checks that are right."""
    (to / "segments").mkdir(parents=True)
    encoder = Encoder(START, SYNC)
    with (to / "segments" / f"{1:020}.open.avro").open("wb") as file:
        file.write(header(START, SYNC, snapshot=False))
        for segment in list_segments(journal_folder, "changes"):
            with SegmentReader(journal_folder, "changes", segment) as reader:
                for block in reader:
                    records = [
                        change(record) if isinstance(record, Change) else record
                        for record in block
                        if not isinstance(record, RejectedSend)
                    ]
                    file.write(encoder.encode(records).data)


def edited(
    one: Change,
    destination: bytes | None = None,
    body: bytes | None = None,
    deleted: bool | None = None,
    unit: bytes = b"",
) -> Change:
    """Return a change with another destination, body, kind or header."""
    return Change(
        one.revision,
        one.accepted_at_us,
        one.destination if destination is None else destination,
        one.deleted if deleted is None else deleted,
        one.publisher,
        one.validation,
        *pack(
            ((b"unit", unit), *one.headers) if unit else one.headers,
            one.body if body is None else body,
        ),
    )


def test_a_gateway_agrees_with_its_journal_under_load(gateway: GatewayProcess) -> None:
    """Under 2,000 SENDs a second each message is what the journal holds, hidden topics are known to be withheld, and all others come."""
    with load(gateway):
        result = run(
            gateway, gateway.folder / "journal", "--policy", str(gateway.folder / "policy.toml"), "--seconds", "4"
        )
        assert (result.exit_code, result.stdout) == (0, ""), result.output
        assert "no differences" in result.stderr
        assert "10 one that it may not" in result.stderr
        assert "no value was delivered" not in result.stderr
        compared = int(result.stderr.split(" messages of ")[0].rpartition(" ")[2])
        assert compared > 390 + 100  # all still topics, and more than one message of those under load

        unknown = run(gateway, gateway.folder / "journal", "--seconds", "0", "--quiet-seconds", "2")
        assert unknown.exit_code == 0
        assert "of 10 topics no value was delivered. They are missing" in unknown.stderr


def test_each_planted_fault_is_found_and_named(
    gateway: GatewayProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte, one header, one missing, one extra, one deleted, one stale and one of another topic: all of them and nothing else."""
    monkeypatch.setattr(verify, "LAG_S_MAX", 0.5)
    with load(gateway):
        newest: dict[bytes, int] = {}
        last_load = 0
        while not last_load:
            newest = {change.destination: change.revision for change in journal(gateway.folder / "journal")}
            last_load = max([revision for name, revision in newest.items() if name.startswith(b"X/l.")], default=0)

        def plant(one: Change) -> Change:
            if one.revision == newest[b"X/p.1"]:
                return edited(one, body=one.body[:-1] + bytes([one.body[-1] ^ 1]))
            if one.revision == newest[b"X/p.2"]:
                return edited(one, unit=b"cents")
            if one.revision == newest[b"X/p.3"]:
                return edited(one, destination=b"X/p.new")
            if one.revision == newest[b"X/p.4"]:
                return edited(one, deleted=True, body=b"")
            if one.revision == last_load:
                return edited(one, destination=b"X/p.5", deleted=False, body=b"newer")
            return one

        copy(gateway.folder / "journal", tmp_path / "copy", plant)
        counts = publish_rows(target(gateway), "after", iter([[Row(1, "X/p.6", b"after the copy")]]))
        assert counts.accepted == 1
        extra = next(one.revision for one in journal(gateway.folder / "journal") if one.body == b"after the copy")
        result = run(
            gateway,
            tmp_path / "copy",
            *("--policy", str(gateway.folder / "policy.toml"), "--glob", "X/p.*"),
            *("--duration", "0s", "--quiet-time", "3s"),
        )
    assert result.exit_code == 1, result.output
    assert found(result) == [
        ("X/p.1", newest[b"X/p.1"], "body"),
        ("X/p.2", newest[b"X/p.2"], "headers"),
        ("X/p.3", newest[b"X/p.3"], "other topic"),
        ("X/p.4", newest[b"X/p.4"], "deleted"),
        ("X/p.5", newest[b"X/p.5"], "stale"),
        ("X/p.6", extra, "not in the journal"),
        ("X/p.new", newest[b"X/p.3"], "missing"),
    ]


def test_an_update_that_never_comes_is_found(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    """When one change under load is, in the journal, of a topic that stood still, that is not updated; as it was all were."""
    everything = compile_glob("**", Limits())
    folder = gateway.folder / "journal"
    known = verify.know(read_journal(spark, folder), examine(None, folder).last, everything, None)
    with load(gateway):
        received = verify.listen(target(gateway), everything, known, None, 3, 1, 60)
    assert received.settled > known.head

    def of_load(one: Change) -> bool:
        return known.head < one.revision <= received.settled and not one.deleted and one.destination == b"X/l.1"

    planted = next(one.revision for one in journal(folder) if of_load(one))

    def plant(one: Change) -> Change:
        return edited(one, destination=b"X/p.7") if one.revision == planted else one

    copy(folder, tmp_path / "copy", plant)
    told = {}
    for each in (folder, tmp_path / "copy"):
        behind = verify.not_updated(spark, read_journal(spark, each), everything, known, received, None)
        told[each.name] = [(one.destination, one.revision, one.what) for one in behind]
    assert told == {"journal": [], "copy": [("X/p.7", planted, "not updated")]}


def test_what_the_policy_does_not_grant_is_a_difference(
    gateway: GatewayProcess, tmp_path: Path, certificates: Path
) -> None:
    """A message of a topic that the policy withholds is reported, once a topic; a policy without the certificate is refused."""
    narrow = tmp_path / "narrow.toml"
    narrow.write_text(policy(certificates, "X/p.1*", "X/p.2*"))
    folder = gateway.folder / "journal"
    result = run(gateway, folder, "--policy", str(narrow), "--glob", "X/p.??", "--seconds", "1")
    assert result.exit_code == 1
    assert {what for _, _, what in found(result)} == {"no right"}
    names = [name for name, _, _ in found(result)]  # as many as came within the second
    assert names
    assert names == [f"X/p.{number}" for number in range(30, 30 + len(names))]
    assert len(names) <= 70
    narrow.write_text("")
    refused = run(gateway, folder, "--policy", str(narrow))
    assert refused.exit_code == 1
    assert "has no principal with the certificate" in refused.stderr

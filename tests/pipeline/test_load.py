"""`maxam-pipeline load` against the real gateway with the shipped schemas."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from pyspark.sql import SparkSession

from maxam.avro.json.decoding import decode_value
from maxam.bench.bodies import avro_bodies, read_schemas
from maxam.pipeline.jobs.load import encode
from maxam.pipeline.main import main
from maxam.pipeline.spark.sink import publish
from maxam.records import Validation
from tests.pipeline.test_sink import journal, options, values
from tests.support.gateway_process import GatewayProcess

SCHEMAS = Path(__file__).parents[2] / "schemas"
METERS = "egm.EGMMeterReading_v1"
STATUS = "egm.EGMStatus_v1"
POLICY = """
[capabilities.all]
send = ["X/EGM.Q.*"]
receive = ["X/**"]
[[principals]]
name = "publisher"
fingerprints = ["{}"]
capabilities = ["all"]
"""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


@pytest.fixture
def gateway(tmp_path: Path, certificates: Path) -> Iterator[GatewayProcess]:
    """Run a gateway with the shipped schemas."""
    certificate = x509.load_pem_x509_certificate((certificates / "publisher.pem").read_bytes())
    folder = tmp_path / "gateway"
    folder.mkdir()
    policy = POLICY.format(certificate.fingerprint(hashes.SHA256()).hex())
    with GatewayProcess(folder, certificates, policy, SCHEMAS) as process:
        yield process


def shown(type_name: str, number: int) -> list[Any]:
    """Return values of a type as `maxam-admin` shows them."""
    registry = read_schemas(SCHEMAS)
    newest = registry.versions(type_name)[0]
    validation = Validation("datum", type_name, newest.minor, b"")
    return [
        decode_value(newest.schema.text, body, validation)
        for body in avro_bodies(registry, type_name, "", number, None)
    ]


def load(gateway: GatewayProcess, path: Path, *further: str) -> Result:
    """Run the command."""
    given = options(gateway)
    arguments = [word for name in ("gateway", "certificate", "key", "ca") for word in (f"--{name}", given[name])]
    return CliRunner().invoke(main, ["load", str(path), "--schemas", str(SCHEMAS), *arguments, *further])


def test_a_table_becomes_the_state_of_the_gateway(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Values of bare and single-object destinations arrive, invalid rows are returned, and a second load changes nothing."""
    path = tmp_path / "state.jsonl"
    meters, status = shown(METERS, 20), shown(STATUS, 20)
    rows = [
        *({"destination": f"X/EGM.Q.{place}.EGMMeterReading", "value": value} for place, value in enumerate(meters)),
        *({"destination": f"X/EGM.Q.{place}.EGMStatus", "value": value} for place, value in enumerate(status)),
        {"destination": "X/EGM.Q.0.EGMStatus", "value": status[7]},  # the later row of a topic counts
        {"destination": "X/EGM.Q.1.EGMStatus", "value": {}},
        {"destination": "X/EGM.S.1.EGMStatus", "value": status[1]},  # no right
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    check = load(gateway, path, "--check", "--format", "json")
    assert check.exit_code == 1
    assert [json.loads(line)["row"] for line in check.stdout.splitlines()] == [42]
    assert "42 rows are good, 1 is not" in check.stderr
    assert journal(gateway.folder / "journal") == []

    first = load(gateway, path, "--format", "json")
    assert first.exit_code == 1
    assert [
        (row["file"], row["row"], row["destination"], row["disposition"], row["result"])
        for row in map(json.loads, first.stdout.splitlines())
    ] == [
        (str(path), 42, "X/EGM.Q.1.EGMStatus", "refused", "schema-mismatch"),
        (str(path), 43, "X/EGM.S.1.EGMStatus", "rejected-unauthorised", "unauthorised"),
    ]
    assert "41 accepted, 0 superseded, 1 rejected-unauthorised unauthorised, 1 not sent" in first.stderr

    registry = read_schemas(SCHEMAS)
    for destination, (body, _) in values(gateway, 40).items():
        rule = registry.rule_for(destination)
        assert rule is not None
        judged = rule.validate(destination.encode(), (), body)
        assert isinstance(judged, Validation)
        place = int(destination.split(".")[2])
        expected = meters[place] if destination.endswith("Reading") else status[7 if place == 0 else place]
        schema = registry.schema(judged.schema, judged.schema_version)
        assert schema is not None
        assert decode_value(schema.schema.text, body, judged) == expected

    again = load(gateway, path, "--format", "json")
    assert "0 accepted, 41 superseded" in again.stderr
    assert "nothing changed: all of it was loaded before" not in again.stderr  # one was rejected
    assert len(journal(gateway.folder / "journal")) == 41


def test_a_good_table_ends_well(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Without bad rows nothing is given out and the exit code is 0; loaded again, it reports that nothing changed."""
    path = tmp_path / "state.csv"
    [value] = shown(METERS, 1)
    text = json.dumps(value).replace('"', '""')
    path.write_text(f'destination,value\nX/EGM.Q.1.EGMMeterReading,"{text}"\n')
    first = load(gateway, path)
    assert (first.exit_code, first.stdout) == (0, ""), first.output
    again = load(gateway, path)
    assert again.exit_code == 0
    assert "nothing changed: all of it was loaded before" in again.stderr
    assert load(gateway, path, "--source", "another").exit_code == 0
    assert len(journal(gateway.folder / "journal")) == 2


def test_structs_of_a_dataframe_are_encoded(spark: SparkSession, gateway: GatewayProcess) -> None:
    """A DataFrame with JSON values becomes bodies by `encode`, which `publish` takes as they are."""
    meters = shown(METERS, 3)
    frame = spark.createDataFrame(
        [(f"X/EGM.Q.{place}.EGMMeterReading", json.dumps(value)) for place, value in enumerate([*meters, {"no": 1}])],
        "destination string, value string",
    )
    encoded = encode(frame, SCHEMAS)
    assert [row.result for row in encoded.where("result is not null").collect()] == ["schema-mismatch"]
    good = encoded.where("result is null").select("destination", "body", "headers")
    assert publish(good, options(gateway)).counts.accepted == 3
    assert len(values(gateway, 3)) == 3


def test_what_cannot_be_loaded_is_counted_first(spark: SparkSession, tmp_path: Path) -> None:
    """A table for people shows how often each result came, then the first few rows of each; JSON has all of them."""
    assert spark is not None
    for name, rows in (("a", 9), ("b", 3)):
        lines = [json.dumps({"destination": f"X/{name}.{n}", "body": "AAAA"}) + "\n" for n in range(rows)]
        (tmp_path / "table").mkdir(exist_ok=True)
        (tmp_path / "table" / f"{name}.jsonl").write_text("".join(lines) + '{"body": "AAAA"}\n')
    words = ["load", str(tmp_path / "table"), "--schemas", str(SCHEMAS), "--check"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "0 rows are good, 14 are not\n12 refused no-rule\n2 refused no-destination\n" in done.stderr
    assert "the first 5 of each are shown" in done.stderr
    head, _, *shown = done.stdout.splitlines()
    assert head.split()[:2] == ["FILE", "ROW"]
    assert [line.split()[:2] for line in shown] == [["a.jsonl", f"{n}"] for n in (1, 2, 3, 4, 5, 10)] + [
        ["b.jsonl", "4"]
    ]
    assert len(CliRunner().invoke(main, [*words, "--format", "json"]).stdout.splitlines()) == 14
    one = CliRunner().invoke(main, ["load", str(tmp_path / "table" / "b.jsonl"), *words[2:]])
    assert one.stdout.split()[0] == "ROW"

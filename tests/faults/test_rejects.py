"""The real gateway keeps what it rejects: readable while it runs, through `kill -9`, and never at the cost of what it accepts."""

import http.client
import io
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import fastavro
import pytest

from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.support.gateway_folder import BlockingClient
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

SCHEMAS = {
    "registry.toml": '[[rule]]\ndestination = "X/*.Count"\nschema = "n.Count_v1"\nencoding = "datum"\n',
    "n/Count_v1/1.0.avsc": '{"type":"record","name":"Count_v1","namespace":"n","fields":[{"name":"n","type":"int"}]}',
}
T = TypeVar("T")
GOOD, BAD = b"\x02", b"\xff"


@pytest.fixture
def gateway(tmp_path: Path, certificates: Path) -> GatewayProcess:
    """A gateway that has not been started, where `subscriber` may send nothing."""
    fingerprints = json.loads((certificates / "fingerprints.json").read_text())
    policy = '[capabilities.all]\nsend = ["X/**"]\nreceive = ["X/**"]\n[capabilities.read]\nreceive = ["X/**"]\n'
    policy += '[capabilities.operate]\nadmin = ["read"]\n'
    for name, capability in (("publisher", "all"), ("subscriber", "read"), ("operator", "operate")):
        policy += f'[[principals]]\nname = "{name}"\nfingerprints = ["{fingerprints[name]}"]\n'
        policy += f'capabilities = ["{capability}"]\n'
    return GatewayProcess(tmp_path, certificates, policy, SCHEMAS)


def connect(gateway: GatewayProcess, name: str) -> BlockingClient:
    """Connect a client."""
    client = BlockingClient(gateway.port, gateway.certificates, name)
    client.write(encoder.connect("MAXVAPI"))
    assert client.frame().command == b"CONNECTED"
    return client


def rejected(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """Read what is stored with a reader that knows nothing of maxam."""
    found: list[dict[str, Any]] = []
    for path in sorted(gateway.folder.glob("journal/rejected/*.avro")):
        found += [row for row in fastavro.reader(io.BytesIO(path.read_bytes())) if isinstance(row, dict)]
    return [row for row in found if row["kind"] != "end"]


def wait_for(gateway: GatewayProcess, count: int) -> list[dict[str, Any]]:
    """Wait until N are stored; they follow their receipts, which nothing waits for."""

    def look() -> list[dict[str, Any]] | None:
        with suppress(ValueError, EOFError):  # the header is just being written, or a block
            if len(found := rejected(gateway)) >= count:
                return found
        return None

    return wait(look)


def wait(look: Callable[[], T | None]) -> T:
    """Read another process's traces until they are there."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := look()) is None:
        assert time.monotonic() < deadline_s
    return found


def about(gateway: GatewayProcess) -> dict[str, Any]:
    """Ask the admin listener for its figures."""
    assert gateway.admin_port is not None
    folder = gateway.certificates
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "operator.pem", folder / "operator.key")
    with closing(
        http.client.HTTPSConnection("127.0.0.1", gateway.admin_port, context=context, timeout=PATIENCE_S)
    ) as https:
        https.request("GET", "/v1/about")
        answer: dict[str, Any] = json.load(https.getresponse())
    return answer


def verified(gateway: GatewayProcess) -> dict[str, dict[str, Any]]:
    """Have the command check the journal, and return its findings for each file of rejected SENDs."""
    command = "from maxam.cli.main import main; main()"
    folder = gateway.folder / "journal"
    done = subprocess.run(
        [sys.executable, "-c", command, "journal", "verify", str(folder), "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    return {Path(report["path"]).name: report for report in reports if "/rejected/" in report["path"]}


def test_rejected_sends_are_kept_through_a_crash(gateway: GatewayProcess) -> None:
    """Fastavro finds invalid and unauthorised SENDs before and after `kill -9`, with gapless numbers and no unauthorised body."""
    secret = b"the password is swordfish"
    with gateway:
        with connect(gateway, "publisher") as publisher, connect(gateway, "subscriber") as subscriber:
            assert publisher.send(b"X/a.Count", GOOD) == b"accepted"
            assert publisher.send(b"X/a.Count", BAD) == b"rejected-invalid"
            publisher.write(encoder.send(VERSION_1_2, b"X/other", b"!"))
            assert publisher.send(b"X/a.Count", BAD + BAD) == b"rejected-invalid"
            assert subscriber.send(b"X/a.Count", secret) == b"rejected-unauthorised"
            before = wait_for(gateway, 4)
            wait(lambda: True if about(gateway)["rejects_stored"] == 4 else None)
        gateway.kill()
        gateway.start()
        with connect(gateway, "publisher") as publisher:
            assert publisher.send(b"X/b.Count", BAD) == b"rejected-invalid"
            found = wait_for(gateway, 5)
        assert found[:4] == before
        (name,) = verified(gateway)
        assert name == f"{1:020}.open.avro"
    (report,) = verified(gateway).values()
    assert (report["first"], report["last"], report["records"], report["problem"]) == (1, 5, 5, None)
    assert Path(report["path"]).name == f"{1:020}-{5:020}.avro"
    assert rejected(gateway) == found
    assert [row["revision"] for row in found] == [1, 2, 3, 4, 5]
    assert [(row["destination"], row["result"]) for row in found[:3]] == [
        ("X/a.Count", "schema-mismatch"),
        ("X/other", "no-rule"),
        ("X/a.Count", "schema-mismatch"),
    ]
    unauthorised = found[3]
    assert (unauthorised["publisher"], unauthorised["disposition"]) == ("subscriber", "rejected-unauthorised")
    assert unauthorised["body"] == b""
    assert unauthorised["headers"] == [
        {"name": "content-length", "value": str(len(secret))},
        {"name": "body-sha256", "value": sha256(secret).hexdigest()},
    ]
    assert found[0]["body"] == BAD
    assert not any(secret in path.read_bytes() for path in gateway.folder.glob("journal/**/*") if path.is_file())


def test_a_gateway_that_cannot_keep_them_serves_as_ever(gateway: GatewayProcess) -> None:
    """Where the folder of rejected SENDs cannot be had, SENDs are judged, stored and answered, and it is logged once."""
    (gateway.folder / "journal").mkdir()
    (gateway.folder / "journal" / "rejected").write_text("not a folder")
    with gateway, connect(gateway, "publisher") as publisher:
        for _ in range(20):
            assert publisher.send(b"X/a.Count", BAD) == b"rejected-invalid"
            assert publisher.send(b"X/a.Count", GOOD) == b"accepted"
        log = wait(lambda: text if "rejected-journal-failed" in (text := gateway.log()) else None)
    assert log.count("rejected-journal-failed ") == 1
    assert gateway.log().count("rejected-journal-failed ") == 1
    assert "Traceback" not in gateway.log()


def test_rejects_can_be_turned_off(tmp_path: Path, gateway: GatewayProcess) -> None:
    """With `rejected_bytes_max = 0` none is kept and no folder is made."""
    configuration = tmp_path / "maxam.toml"
    text = configuration.read_text().replace(
        'journal.folder = "journal"', 'journal.folder = "journal"\njournal.rejected_bytes_max = 0'
    )
    configuration.write_text(text)
    with gateway, connect(gateway, "publisher") as publisher:
        assert publisher.send(b"X/a.Count", BAD) == b"rejected-invalid"
    assert not (tmp_path / "journal" / "rejected").exists()

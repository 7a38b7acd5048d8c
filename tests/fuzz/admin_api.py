"""Schemathesis against the admin API of a real gateway over mutual TLS: what its description allows, and what it does not.

The description is read from the gateway itself. Status, media type and schema of every answer are compared with it. A
request that the description forbids must be refused. One that it allows must not be refused as malformed. Methods that no route has are
answered 405.
"""

import subprocess
import sys
from pathlib import Path

import trio

from maxam.client import connect
from maxam.pki.certificates import issue_development_certificates
from tests.support.gateway_process import GatewayProcess
from tests.support.living_gateway import NOW

POLICY = """
[capabilities.everything]
send = ["X/**"]
receive = ["X/**"]
admin = ["read", "write", "metrics", "enrol"]
[[principals]]
name = "operator"
fingerprints = ["{operator}"]
capabilities = ["everything"]
[[principals]]
name = "publisher"
fingerprints = ["{publisher}"]
capabilities = ["everything"]
"""
SCHEMAS = {
    "registry.toml": """
[[rule]]
destination = "X/Number"
schema = "t.T_v1"
encoding = "datum"
[[rule]]
destination = "X/**"
encoding = "none"
""",
    "t/T_v1/1.0.avsc": '{"type": "record", "name": "T_v1", "namespace": "t", "fields": [{"name": "n", "type": "long"}]}',
}
# Statuses beyond those that schemathesis expects by itself. 400 and 422 are for what no schema of a text can express, such as which globs
# are well-formed. 404 is for paths that take in more than is described. 422 is that of Confluent's registry in mode READONLY.
SETTINGS = """
[checks]
ignored_auth.enabled = false # by certificate: tests/streams/gateway/test_rights.py
use_after_free.enabled = false
ensure_resource_availability.enabled = false
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503"]
positive_data_acceptance.expected-statuses = ["2xx", "3xx", "400", "401", "403", "404", "409", "413", "422", "503"]

[[operations]]
include-path-regex = "^/(subjects|schemas|compatibility|config|mode)"
checks.unsupported_method.enabled = false

[[operations]] # which never end
include-path-regex = "/live$"
enabled = false
"""


async def _ask(gateway: GatewayProcess, command: list[str], folder: Path) -> tuple[int, str]:
    """Run a command while each listing has rows: topics, a reject, a session that is owed values."""
    certificates = gateway.certificates
    async with connect(
        "127.0.0.1",
        gateway.port,
        certificate=certificates / "publisher.pem",
        key=certificates / "publisher.key",
        ca=certificates / "ca.pem",
        client_id="durable",
    ) as client:
        for topic, body in (("X/A.1", b"a"), ("X/A.2", b"b"), ("X/Number", b"\x02"), ("X/Number", b"\xff")):
            await client.send(topic, body)
        async with client.subscribe("X/**", durable=True, eager=True):
            done = await trio.run_process(
                command, cwd=folder, capture_stdout=True, stderr=subprocess.STDOUT, check=False
            )
    return done.returncode, done.stdout.decode()


def run_schemathesis(
    folder: Path, examples: int, phases: str, seed: int | None, leave_out: str = ""
) -> tuple[int, str]:
    """Run it against a gateway of our own; return its exit code and what it printed.

    Args:
        folder: Empty, for files.
        examples: Requests of each route and kind, at most.
        phases: Of schemathesis, joined by commas.
        seed: Makes it repeatable. None for another one each time.
        leave_out: A pattern of paths that are not asked.
    """
    certificates = folder / "certs"
    fingerprints = issue_development_certificates(certificates, NOW)
    settings = folder / "schemathesis.toml"
    settings.write_text(SETTINGS)
    (folder / "gateway").mkdir()
    with GatewayProcess(folder / "gateway", certificates, POLICY.format(**fingerprints), SCHEMAS) as gateway:
        command = [
            *(str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(settings), "run"),
            *("--phases", phases, "--max-examples", str(examples)),
            *("--header", "maxam-admin: 1", "--tls-verify", str(certificates / "ca.pem")),
            *("--request-cert", str(certificates / "operator.pem")),
            *("--request-cert-key", str(certificates / "operator.key")),
            *(
                ("--seed", str(seed), "--generation-deterministic")
                if seed is not None
                else ("--generation-database", "none")
            ),
            *("--suppress-health-check", "filter_too_much", "--request-retries", "1"),
            *(("--exclude-path-regex", leave_out) if leave_out else ()),
            *("--continue-on-failure", "--no-color"),
            f"https://localhost:{gateway.admin_port}/v1/openapi.json",
        ]
        code, said = trio.run(_ask, gateway, command, folder)
        log = gateway.log()
    assert "Traceback" not in log, log
    return code, said


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        code, said = run_schemathesis(
            Path(scratch), int(sys.argv[1]) if len(sys.argv) > 1 else 100, "coverage,fuzzing", None
        )
    print(said)  # noqa: T201  # the command's answer
    sys.exit(code)

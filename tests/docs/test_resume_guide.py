"""docs/integrate/client.md, "Resume where you left", is true: its program runs as it stands, is killed, and ends equal to the gateway."""

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from maxam.client import connect
from maxam.journal.names import RENEW
from tests.docs.guides import blocks
from tests.support.gateway_process import GatewayProcess
from tests.support.living_gateway import until
from tests.support.patience import PATIENCE_S

PAGE = Path(__file__).parents[2] / "docs" / "integrate" / "client.md"
SCHEMAS = {"registry.toml": '[[rule]]\ndestination = "X/**"\nencoding = "none"\n'}
POLICY = """
[capabilities.send]
send = ["X/EGM.**"]
[capabilities.receive]
receive = ["X/EGM.**"]
[[principals]]
name = "publisher"
fingerprints = ["{publisher}"]
capabilities = ["send"]
[[principals]]
name = "subscriber"
fingerprints = ["{subscriber}"]
capabilities = ["receive"]
"""

pytestmark = pytest.mark.interop


def fingerprint(file: Path) -> str:
    """Return the fingerprint by which the policy knows a certificate."""
    return x509.load_pem_x509_certificate(file.read_bytes()).fingerprint(hashes.SHA256()).hex()


@contextmanager
def program(folder: Path, gateway: GatewayProcess) -> Iterator[Iterator[str]]:
    """Run the program of the page for the length of a block, and kill it then. Gives the lines that it prints."""
    [text] = ["\n".join(block.lines) for block in blocks(PAGE.read_text("utf-8")) if "import sqlite3" in block.lines]
    (folder / "program.py").write_text(text.replace("61614", str(gateway.port)), "utf-8")
    with subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(PAGE.parents[2])},
        text=True,
    ) as process:
        watchdog = threading.Timer(PATIENCE_S, process.kill)  # ends the wait for a line that never comes
        watchdog.start()
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.send_signal(signal.SIGKILL)
            watchdog.cancel()


def send(gateway: GatewayProcess, **bodies: bytes) -> None:
    """Publish a value, or a delete, to each of these topics."""
    folder = gateway.certificates

    async def main() -> None:
        certificate, key, ca = folder / "publisher.pem", folder / "publisher.key", folder / "ca.pem"
        async with connect("127.0.0.1", gateway.port, certificate=certificate, key=key, ca=ca) as client:
            for name, body in bodies.items():
                assert (await client.send(f"X/EGM.{name}", body)).accepted

    trio.run(main)


def wait_until_kept(folder: Path, **bodies: bytes) -> None:
    """Wait until the program has stored exactly these values, and a position."""
    wanted = {f"X/EGM.{name}": body for name, body in bodies.items()}

    def equal() -> bool:
        try:
            with closing(sqlite3.connect(folder / "kept.db")) as store:
                kept = dict(store.execute("SELECT topic, body FROM kept"))
        except sqlite3.OperationalError:
            return False  # the program has not made its table, or is committing
        return kept.pop("position", None) is not None and kept == wanted

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            await until(equal)

    trio.run(main)


def test_the_program_resumes_where_it_was_killed(tmp_path: Path, certificates: Path) -> None:
    """After kills of both it prints what has changed alone. After a restore it drops the topic that is gone."""
    (tmp_path / "certs-dev").symlink_to(certificates)
    (tmp_path / "gateway").mkdir()
    prints = {name: fingerprint(certificates / f"{name}.pem") for name in ("publisher", "subscriber")}
    with GatewayProcess(tmp_path / "gateway", certificates, POLICY.format(**prints), SCHEMAS) as gateway:
        send(gateway, a=b"1", b=b"1", c=b"1")
        with program(tmp_path, gateway):
            wait_until_kept(tmp_path, a=b"1", b=b"1", c=b"1")
        send(gateway, a=b"2", b=b"", d=b"2")
        gateway.kill()
        gateway.start()
        with program(tmp_path, gateway) as lines:
            assert {next(lines) for _ in range(3)} == {"value X/EGM.a\n", "delete X/EGM.b\n", "value X/EGM.d\n"}
            wait_until_kept(tmp_path, a=b"2", c=b"1", d=b"2")
        send(gateway, d=b"")
        gateway.kill()
        (gateway.folder / "journal" / RENEW).touch()
        gateway.start()
        with program(tmp_path, gateway) as lines:
            assert {next(lines) for _ in range(2)} == {"value X/EGM.a\n", "value X/EGM.c\n"}
            assert next(lines) == "left X/EGM.d\n"
            wait_until_kept(tmp_path, a=b"2", c=b"1")

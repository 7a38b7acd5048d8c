"""Our own client and the demo against the real gateway over mutual TLS."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from maxam.client import (
    CertificateFileError,
    Client,
    ClientError,
    GatewayError,
    OutcomeUnknownError,
    TlsError,
    connect,
    resuming,
)
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
SCHEMAS = {"registry.toml": '[[rule]]\ndestination = "X/**"\nencoding = "none"\n'}
POLICY = """
[capabilities.all]
send = ["X/EGM.*", "X/t.*"]
receive = ["X/*"]
[[principals]]
name = "publisher"
fingerprints = ["{publisher}"]
capabilities = ["all"]
[[principals]]
name = "subscriber"
fingerprints = ["{subscriber}"]
capabilities = ["all"]
"""

pytestmark = pytest.mark.interop


def policy(certificates: Path) -> str:
    """Return the policy of the two development clients."""
    prints = {
        name: x509.load_pem_x509_certificate((certificates / f"{name}.pem").read_bytes())
        .fingerprint(hashes.SHA256())
        .hex()
        for name in ("publisher", "subscriber")
    }
    return POLICY.format(**prints)


@pytest.fixture
def gateway(tmp_path: Path, certificates: Path) -> Iterator[GatewayProcess]:
    """Run a gateway that takes any body."""
    with GatewayProcess(tmp_path, certificates, policy(certificates), SCHEMAS) as process:
        yield process


@asynccontextmanager
async def connected(gateway: GatewayProcess, client_id: str | None = None) -> AsyncIterator[Client]:
    """Connect as `publisher`."""
    folder = gateway.certificates
    async with connect(
        "127.0.0.1",
        gateway.port,
        certificate=folder / "publisher.pem",
        key=folder / "publisher.key",
        ca=folder / "ca.pem",
        client_id=client_id,
    ) as client:
        yield client


def test_values_of_any_size_come_back(gateway: GatewayProcess) -> None:
    """Bodies from one byte to four MiB are accepted, delivered as sent and acknowledged; an unauthorised SEND is reported."""

    async def main() -> None:
        async with (
            connected(gateway) as client,
            client.subscribe("X/t.*", eager=True) as subscription,
        ):
            for size in (1, 65_536, 4_194_304):
                body = bytes([size % 251]) * size
                assert (await client.send(f"X/t.{size}", body, {"unit": "a:b"})).accepted
                message = await anext(subscription)
                assert (message.destination, message.body, message.headers["unit"]) == (f"X/t.{size}", body, "a:b")
            assert (await client.send("X/t.1", b"")).accepted
            assert (await anext(subscription)).deleted
            receipt = await client.send("X/forbidden", b"v")
            assert receipt.disposition == "rejected-unauthorised"

    trio.run(main)


def test_durable_subscription_resumes(gateway: GatewayProcess) -> None:
    """A durable subscription gets on resume the changes that its client missed, and no others."""

    async def main() -> None:
        async with connected(gateway, "me") as client, client.subscribe("X/t.*", id="d", durable=True) as subscription:
            assert subscription.result == "created"
            await client.send("X/t.a", b"1")
            await (await anext(subscription)).ack(receipt=True)
        async with connected(gateway, "other") as client:
            await client.send("X/t.b", b"2")
            await client.send("X/t.b", b"3")
        async with connected(gateway, "me") as client, client.subscribe("X/t.*", id="d", durable=True) as subscription:
            assert subscription.result == "resumed"
            message = await anext(subscription)
            assert (message.destination, message.body) == ("X/t.b", b"3")
            assert await subscription.remove() == "removed"

    trio.run(main)


def test_resumes_over_a_killed_gateway(tmp_path: Path, certificates: Path) -> None:
    """A resuming client goes on when the gateway is killed and started again: with `retry` no SEND is lost."""
    losses: list[ClientError] = []

    async def main(gateway: GatewayProcess) -> None:
        async with (
            resuming(
                "127.0.0.1",
                gateway.port,
                certificate=certificates / "publisher.pem",
                key=certificates / "publisher.key",
                ca=certificates / "ca.pem",
                on_loss=lambda reason, _wait_s: losses.append(reason),
            ) as client,
            client.subscribe("X/t.*", durable=True) as subscription,
        ):
            assert (await client.send("X/t.a", b"1")).accepted
            assert (await anext(subscription)).body == b"1"
            gateway.kill()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, gateway.start)
                with suppress(OutcomeUnknownError):  # whether it is sent before the loss is seen is chance
                    await client.send("X/t.b", b"2")
                assert (await client.send("X/t.b", b"3", retry=True)).accepted
            while (await anext(subscription)).body != b"3":
                pass
            assert subscription.result == "resumed"

    gateway = GatewayProcess(tmp_path, certificates, policy(certificates), SCHEMAS)
    gateway.keep_port("listener")
    with gateway:
        trio.run(main, gateway)
    assert losses


def test_bad_certificates_and_takeover_say_so(gateway: GatewayProcess, tmp_path: Path) -> None:
    """A wrong CA is a TlsError, a key that does not fit a CertificateFileError, an expelled session a GatewayError."""
    folder = gateway.certificates
    (tmp_path / "no.pem").write_text("nothing", encoding="utf-8")

    async def attempt(kind: type[ClientError], match: str, certificate: str, key: str, ca: Path) -> None:
        with pytest.raises(kind, match=match):
            async with connect("127.0.0.1", gateway.port, certificate=folder / certificate, key=folder / key, ca=ca):
                pytest.fail("connected")

    async def main() -> None:
        ca = folder / "ca.pem"
        certificate, key = "publisher.pem", "publisher.key"
        await attempt(TlsError, "do not accept the gateway's certificate", certificate, key, folder / certificate)
        await attempt(CertificateFileError, "no usable PEM", certificate, key, tmp_path / "no.pem")
        await attempt(CertificateFileError, "do not work together", certificate, "subscriber.key", ca)
        await attempt(GatewayError, "the gateway ended the connection", "operator.pem", "operator.key", ca)
        async with connected(gateway, "me") as first, connected(gateway, "me"):
            reason = await first.ended()
            assert isinstance(reason, GatewayError)
            assert reason.message == "session taken over by a newer connection"

    trio.run(main)


@pytest.mark.slow
def test_the_demo_ends_on_the_last_values(tmp_path: Path, certificates: Path) -> None:
    """The demo, without a terminal, prints figures and a summary, and every subscriber ended on the last values."""
    with GatewayProcess(tmp_path, certificates, policy(certificates), ROOT / "schemas") as gateway:
        arguments = ["--gateway", f"127.0.0.1:{gateway.port}", "--certificates", str(certificates)]
        arguments += ["--schemas", str(ROOT / "schemas"), "--machines", "40", "--slow-ms", "20", "--seconds", "3"]
        done = _demo(arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "skipped" in done.stdout
        assert done.stdout.count("last value of each") == 2
        assert " 0 rejected" in done.stdout
    done = _demo(arguments)
    assert done.returncode == 1
    assert "make run" in done.stderr
    done = _demo([*arguments, "--certificates", str(tmp_path)])
    assert "certificate-invalid" in done.stderr


@pytest.mark.slow
def test_the_demo_can_be_ended_when_its_gateway_is_gone(tmp_path: Path, certificates: Path) -> None:
    """SIGTERM ends it without an answer to what it has published. It reports that its last values are missing."""
    with GatewayProcess(tmp_path, certificates, policy(certificates), ROOT / "schemas") as gateway:
        arguments = ["--gateway", f"127.0.0.1:{gateway.port}", "--certificates", str(certificates)]
        arguments += ["--schemas", str(ROOT / "schemas"), "--machines", "20", "--rate", "50"]
        command = [sys.executable, "-m", "maxam.demo", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
            try:
                assert demo.stdout is not None
                demo.stdout.readline()  # it plays
                gateway.kill()
                for _ in range(2):  # it has seen that, and each machine has something to publish by then
                    while not demo.stdout.readline().startswith("publisher:"):
                        pass
                demo.terminate()
                said, _ = demo.communicate(timeout=PATIENCE_S)
            finally:
                demo.kill()
        assert demo.returncode == 1, said
        assert "was not answered within" in said


def _demo(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "maxam.demo", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_several_addresses_are_tried_in_turn(tmp_path: Path, certificates: Path) -> None:
    """A client goes on at the next address that answers: at the first connection, after a stop, and back again."""
    gateways = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        gateways.append(GatewayProcess(tmp_path / name, certificates, policy(certificates), SCHEMAS))
        gateways[-1].keep_port("listener")
    one, two = gateways
    two.start()
    one_port = int((tmp_path / "one/maxam.toml").read_text().partition("listener.port = ")[2].split()[0])
    incarnations = []

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with resuming(
                "127.0.0.1",
                one_port,
                certificate=certificates / "publisher.pem",
                key=certificates / "publisher.key",
                ca=certificates / "ca.pem",
                client_id="wanderer",
                others=[("127.0.0.1", two.port)],
            ) as client:
                for ending, beginning in ((two, one), (one, two)):
                    assert (await client.send("X/EGM.a", b"v", retry=True)).accepted
                    incarnations.append(client.incarnation)
                    beginning.start()
                    ending.stop()
                assert (await client.send("X/EGM.a", b"v", retry=True)).accepted
                incarnations.append(client.incarnation)

    trio.run(main)
    two.stop()
    assert incarnations[0] == incarnations[2] != incarnations[1]

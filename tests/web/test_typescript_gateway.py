"""The npm package @maxam/client against the real gateway, over TLS with a client certificate."""

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support.cutting_relay import CuttingRelay
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S
from tests.support.raw_client import RawClient
from tests.web.node import require_package, run_node

SCHEMAS = {
    "registry.toml": """
        [[rule]]
        destination = "X/t.*.Meter"
        schema = "web.Meter_v1"
        encoding = "datum"
        [[rule]]
        destination = "X/**"
        encoding = "none"
        """,
    "web/Meter_v1/1.0.avsc": """
        {"type": "record", "name": "Meter_v1", "namespace": "web", "doc": "d", "fields": [
          {"name": "turnover", "type": "long"},
          {"name": "credit", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}]}
        """,
}
POLICY = """
[capabilities.all]
send = ["X/t.*"]
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


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the programs of the tests."""
    require_package()
    out = tmp_path_factory.mktemp("programs") / "tests"
    run_node("build.mjs", "--tests", "--out", str(out))
    return out


@pytest.fixture
def gateway(tmp_path: Path, certificates: Path) -> Iterator[GatewayProcess]:
    """Run a gateway that takes any body."""
    prints = json.loads((certificates / "fingerprints.json").read_text())
    with GatewayProcess(tmp_path, certificates, POLICY.format(**prints), SCHEMAS) as process:
        yield process


class Map:
    """The program with a live map. A context manager: leaving ends it."""

    def __init__(self, programs: Path, port: int, certificates: Path, who: str, form: str = "avro") -> None:
        """Start the program. Values have the form `avro`, which is raw bodies, or `json`."""
        files = [certificates / "ca.pem", certificates / f"{who}.pem", certificates / f"{who}.key"]
        self._process = subprocess.Popen(
            ["node", str(programs / "gateway.program.mjs"), str(port), *map(str, files), "X/*", form],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, line: str = "state") -> Any:
        """Write a line and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        answer = self._process.stdout.readline()
        assert answer, "the program ended"
        return json.loads(answer)

    def until(self, true: Callable[[Any], bool]) -> Any:
        """Ask for the state until it is as it should be."""
        deadline = time.monotonic() + PATIENCE_S
        while not true(state := self.ask()):
            assert time.monotonic() < deadline, state
            time.sleep(0.02)
        return state

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        if kind is not None:
            self._process.kill()
        ended = self._process.wait(PATIENCE_S)
        self._process.stdout.close()
        assert kind is not None or ended == 0


def bodies(state: Any) -> dict[str, bytes]:
    """Return the values of a map by topic."""
    return {topic: bytes(entry["value"]) for topic, entry in state["entries"].items()}


def test_values_sends_and_metadata(gateway: GatewayProcess, programs: Path) -> None:
    """The map has values of others and its own, a delete removes one, and a SEND without the right has the code of its result."""
    with RawClient(gateway, "publisher") as peer:
        peer.send("X/t.1", b"\x00\x01")
        with Map(programs, gateway.port, gateway.certificates, "subscriber") as live:
            state = live.until(lambda state: state["synced"])
            entry = state["entries"]["X/t.1"]
            assert bodies(state) == {"X/t.1": b"\x00\x01"}
            assert entry["publisher"] == "publisher"
            assert entry["acceptedAt"] > 0
            assert live.ask("send X/t.2 two") == "accepted"
            assert live.ask("send X/other no") == "unauthorised"
            peer.send("X/t.1", b"")
            live.until(lambda state: bodies(state) == {"X/t.2": b"two"})


def test_values_as_json(gateway: GatewayProcess, programs: Path) -> None:
    """A value with a schema comes as JSON, a long beyond 2^53 as text, and a value without a schema as it was sent."""
    with RawClient(gateway, "publisher") as peer:
        peer.send("X/t.1.Meter", b"\x14" + b"\x04\x01\x02")
        peer.send("X/t.2.Meter", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\x02\xff")
        peer.send("X/t.3", b"raw")
        with Map(programs, gateway.port, gateway.certificates, "subscriber", "json") as live:
            entries = live.until(lambda state: state["synced"])["entries"]
            assert {topic: entry["value"] for topic, entry in entries.items()} == {
                "X/t.1.Meter": {"turnover": 10, "credit": "2.58"},
                "X/t.2.Meter": {"turnover": "9223372036854775807", "credit": "-0.01"},
                "X/t.3": list(b"raw"),
            }


def test_a_connection_that_is_cut_again_and_again_ends_equal_to_the_broker(
    gateway: GatewayProcess, programs: Path
) -> None:
    """After publishes, deletes and cuts in any order, the map ends with the broker's values."""
    chance = random.Random(21)  # noqa: S311 - the same each time
    expected: dict[str, bytes] = {}
    with (
        RawClient(gateway, "publisher") as peer,
        CuttingRelay(gateway.port) as line,
        Map(programs, line.port, gateway.certificates, "subscriber") as live,
    ):
        live.until(lambda state: state["synced"])
        for number in range(300):
            topic = f"X/t.{chance.randrange(20)}"
            body = b"" if chance.random() < 0.3 else b"%d" % number
            peer.send(topic, body)
            expected[topic] = body
            if number % 30 == 7:
                line.cut()
            if number % 30 == 22:
                line.cut_after(chance.randrange(1, 400))
        state = live.until(lambda state: bodies(state) == {topic: body for topic, body in expected.items() if body})
        state = live.until(lambda state: state["synced"])
        assert set(state["losses"]) == {"connection-lost"}


def test_a_certificate_without_rights_is_final(gateway: GatewayProcess, programs: Path) -> None:
    """A client that the policy does not list is closed by its first ERROR, and does not come back."""
    with Map(programs, gateway.port, gateway.certificates, "operator") as live:
        state = live.until(lambda state: state["status"] == "closed")
        assert state["losses"] == []

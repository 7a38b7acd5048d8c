"""The client without `async` against the real gateway over mutual TLS: threads, time-outs, forks, Ctrl-C and notebooks."""

import asyncio
import gc
import io
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from fastavro.schema import load_schema_ordered

from maxam.client import Change, ClientError, GatewayError, State, UnreachableError, ValueTypeError, sync
from tests.interop.test_client import SCHEMAS, policy
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.interop


@pytest.fixture
def gateway(tmp_path: Path, certificates: Path) -> Iterator[GatewayProcess]:
    """Run a gateway that takes any body."""
    process = GatewayProcess(tmp_path, certificates, policy(certificates), SCHEMAS)
    process.keep_port("listener")
    with process:
        yield process


def connect(gateway: GatewayProcess, **given: Any) -> sync.Client:
    """Connect as `publisher`, and again after losses."""
    folder = gateway.certificates
    own: dict[str, Any] = {
        "certificate": folder / "publisher.pem",
        "key": folder / "publisher.key",
        "ca": folder / "ca.pem",
    }
    return sync.resuming("127.0.0.1", gateway.port, **own, **given)


def threads() -> list[threading.Thread]:
    """Return the threads of clients."""
    return [each for each in threading.enumerate() if each.name == "maxam-client"]


def test_a_script_sends_and_receives(gateway: GatewayProcess) -> None:
    """Each call waits: RECEIPTs, messages in order, a time-out without one, and an ACK with receipt."""
    with connect(gateway) as client:
        assert client.send("X/t.1", b"1", {"unit": "a"}).accepted
        assert client.send("X/no", b"1").disposition == "rejected-unauthorised"
        with client.subscribe("X/t.*", eager=True) as subscription:
            message = next(subscription)
            assert (message.destination, message.body, message.headers["unit"]) == ("X/t.1", b"1", "a")
            message.ack(receipt=True)
            assert subscription.next(timeout_s=0.05) is None
            client.send("X/t.1", b"2")
            client.send("X/t.2", b"3")
            assert sorted(next(subscription).body for _ in range(2)) == [b"2", b"3"]
        assert client.state == State("connected")
    assert client.state == State("closed")
    assert threads() == []
    for call in (lambda: client.send("X/t.1", b"1"), lambda: client.subscribe("X/t.*"), lambda: next(subscription)):
        with pytest.raises(ClientError, match="closed"):
            call()
    client.close()


def test_a_map_is_current_while_the_program_does_something_else(gateway: GatewayProcess) -> None:
    """The thread of the client applies changes. Another thread waits for them, and ends when the client is closed."""
    client = connect(gateway)
    client.send("X/t.1", b"1")
    values = client.values("X/t.*", type=bytes)
    assert (dict(values), values.synced) == ({"X/t.1": b"1"}, True)
    found: list[Change[bytes]] = []
    reading = threading.Thread(target=lambda: found.extend(values.changes()))
    reading.start()
    for number in range(20):
        client.send("X/t.2", b"%d" % number)
    deadline = time.monotonic() + PATIENCE_S
    while (values.get("X/t.2"), found[-1:] and found[-1].value) != (b"19", b"19"):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    client.close()
    reading.join(PATIENCE_S)
    assert not reading.is_alive()
    assert not values.synced
    assert dict(values) == {"X/t.1": b"1", "X/t.2": b"19"}
    assert all(change.destination == "X/t.2" for change in found)


def test_many_threads_share_a_client(gateway: GatewayProcess) -> None:
    """SENDs of many threads all take effect, while maps come and go."""
    with connect(gateway) as client, ThreadPoolExecutor(8) as pool:

        def work(number: int) -> bool:
            accepted = client.send(f"X/t.{number}", b"v").accepted
            with client.values(f"X/t.{number}", type=bytes) as values:
                return accepted and dict(values) == {f"X/t.{number}": b"v"}

        assert all(pool.map(work, range(40)))


def test_a_map_survives_a_killed_gateway(gateway: GatewayProcess) -> None:
    """It is not synced meanwhile, and equal afterwards. SENDs with `retry` wait."""
    states: list[State] = []
    with connect(gateway, on_state=states.append) as client, client.values("X/t.*", type=bytes) as values:
        client.send("X/t.1", b"1")
        gateway.kill()
        gateway.start()
        assert client.send("X/t.2", b"2", retry=True).accepted
        values.sync()
        client.send("X/t.1", b"")
        deadline = time.monotonic() + PATIENCE_S
        while dict(values) != {"X/t.2": b"2"}:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert values.change(PATIENCE_S) is not None
    assert states[-1].name == "closed"
    assert "waiting" in [state.name for state in states]


def test_a_takeover_ends_it(gateway: GatewayProcess) -> None:
    """Waiting calls raise the reason."""
    with connect(gateway, client_id="me") as client, client.values("X/t.*", type=bytes) as values:
        with connect(gateway, client_id="me"), pytest.raises(GatewayError):
            values.change(PATIENCE_S)
        with pytest.raises(GatewayError):
            client.send("X/t.1", b"v")
        assert client.state.final


def test_nobody_there_is_raised_at_once(gateway: GatewayProcess) -> None:
    """No thread stays behind."""
    gateway.kill()
    with pytest.raises(UnreachableError):
        connect(gateway)
    gateway.start()
    assert threads() == []


def test_a_callback_cannot_wait_for_the_client(gateway: GatewayProcess) -> None:
    """It would wait for itself for ever."""
    problems: list[ClientError] = []
    clients: list[sync.Client] = []

    def show(state: State) -> None:
        if clients and state.name == "waiting":
            try:
                clients[0].send("X/t.1", b"v")
            except ClientError as error:
                problems.append(error)

    with connect(gateway, on_state=show) as client:
        clients.append(client)
        gateway.kill()
        gateway.start()
        client.send("X/t.1", b"v", retry=True)
    assert problems


def test_a_child_made_by_fork_is_refused_and_harms_nothing(gateway: GatewayProcess) -> None:
    """Its calls raise, its end closes nothing, and the parent goes on."""
    code = f"""
import os, sys
from maxam.client import ClientError, sync
client = sync.connect("127.0.0.1", {gateway.port}, certificate="publisher.pem", key="publisher.key", ca="ca.pem")
values = client.values("X/t.*", type=bytes)
child = os.fork()
if not child:
    refused = 0
    for call in (lambda: client.send("X/t.1", b"v"), values.change, lambda: client.values("X/t.*")):
        try:
            call()
        except ClientError:
            refused += 1
    client.close()
    del client, values
    sys.exit(0 if refused == 3 else 1)
_, status = os.waitpid(child, 0)
assert client.send("X/t.1", b"v").accepted
assert values.change(20).value == b"v"
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=gateway.certificates,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")


WAITS = """
import sys
from maxam.client import sync
client = sync.resuming("127.0.0.1", {port}, certificate="publisher.pem", key="publisher.key", ca="ca.pem")
{setup}
print("waiting", flush=True)
{wait}
"""


@pytest.mark.parametrize(
    ("setup", "wait"),
    [
        ("values = client.values('X/t.*', type=bytes)", "values.change()"),
        ("subscription = client.subscribe('X/t.*')", "next(subscription)"),
    ],
)
def test_ctrl_c_ends_a_script(gateway: GatewayProcess, setup: str, wait: str) -> None:
    """The call that waits raises KeyboardInterrupt. The client that the script did not close leaves, and the process ends."""
    script = subprocess.Popen(
        [sys.executable, "-c", WAITS.format(port=gateway.port, setup=setup, wait=wait)],
        cwd=gateway.certificates,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "waiting\n"
    script.send_signal(signal.SIGINT)
    _, errors = script.communicate(timeout=PATIENCE_S)
    assert script.returncode in (1, 130, -signal.SIGINT)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "never retrieved" not in errors


def test_a_notebook_that_forgets_its_client(gateway: GatewayProcess) -> None:
    """A cell that runs again drops the client of the first run: its thread ends. It works beside a running event loop."""
    client = connect(gateway)
    client.values("X/t.*", type=bytes)
    (thread,) = threads()
    client = connect(gateway)
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()

    async def cell() -> bool:
        return client.send("X/t.1", b"v").accepted

    assert asyncio.run(cell())
    client.close()


@dataclass
class GamePlay:
    """Some fields of the shipped type."""

    game_id: str
    bet: Decimal
    started: datetime
    from_: dict[str, Any]


def test_values_are_objects_of_a_type(tmp_path: Path, certificates: Path) -> None:
    """The gateway converts Avro to JSON, and the client JSON to a dataclass. pandas gets a row per topic."""
    names = ("EGMStateBase_v1", "EGMMeteredGamePlay_v1")
    schema = load_schema_ordered([str(ROOT / f"schemas/egm/{name}/1.0.avsc") for name in names])
    at = datetime(2026, 11, 23, 12, tzinfo=UTC)
    machine = dict.fromkeys(
        ("venueId", "scId", "interfaceId", "egmElectronicId", "manufacturerId", "floorPosition"), "7"
    )
    game = {"from": machine | {"updatedTime": at}, "gamePlayId": UUID(int=7), "gameId": "Gold:95", "sequence": 1}
    game |= {"bet": Decimal("1.00"), "win": Decimal("2.50"), "jackpotWin": None, "started": at, "ended": at}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, game | {"finalCredit": Decimal("41.50")})
    topic = "X/EGM.Q.12345.EGMMeteredGamePlay"
    with (
        GatewayProcess(tmp_path, certificates, policy(certificates), ROOT / "schemas") as gateway,
        connect(gateway) as client,
    ):
        receipt = client.send(topic, body.getvalue())
        assert receipt.accepted, receipt
        with client.values("X/EGM.*", type=GamePlay) as games:
            assert games.problems == {}
            found = games[topic]
            assert (found.game_id, found.bet, found.started) == ("Gold:95", Decimal("1.00"), at)
            assert found.from_["venueId"] == "7"
            frame = games.to_pandas()
            assert (frame.index.name, list(frame.index), str(frame.dtypes["started"])) == (
                "destination",
                [topic],
                "datetime64[ns, UTC]",
            )
            assert (frame["bet"].sum(), frame.loc[topic, "from_.venueId"]) == (Decimal("1.00"), "7")
            assert (frame["started"].max() - frame["started"].min()).total_seconds() == 0
            assert client.send(topic, b"").accepted
            while topic in games:
                assert games.change(timeout_s=PATIENCE_S)
            assert games.to_pandas().empty
            assert client.send(topic, body.getvalue()).accepted
        with client.values("X/EGM.*", fields=["bet", "from.venueId"]) as values:
            assert dict(values) == {topic: {"from": {"venueId": "7"}, "bet": "1.00"}}
            frame = values.to_pandas()
            assert (list(frame.index), sorted(frame.columns)) == ([topic], ["bet", "from.venueId"])
            assert frame.loc[topic, "bet"] == "1.00"  # JSON: a decimal is text
        with client.values("X/EGM.*", type=int) as values:
            assert not values
            assert isinstance(values.problems[topic], ValueTypeError)


def test_the_process_ends_without_close(gateway: GatewayProcess) -> None:
    """A script that just ends leaves gracefully: its last will does not fire."""
    code = f"""
from maxam.client import LastWill, sync
client = sync.connect("127.0.0.1", {gateway.port}, certificate="publisher.pem", key="publisher.key", ca="ca.pem",
                      will=LastWill("X/t.will", b"lost"))
client.send("X/t.1", b"v")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=gateway.certificates,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with connect(gateway) as client, client.values("X/t.*", type=bytes) as values:
        assert dict(values) == {"X/t.1": b"v"}

"""Operators have one view of all connections, sessions and subscriptions, and act on all of them, with fronts as without."""

import json
import os
import re
import signal
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.faults.test_fronts import front_pids, message, receipt, subscribe, wait_for
from tests.support.gateway_folder import BlockingClient, GatewayFolder, GatewayProcess
from tests.support.patience import PATIENCE_S

KEYS = ("c0", "c1", "c2", "c3")


@pytest.fixture
def files(tmp_path: Path) -> GatewayFolder:
    """Return the files of a gateway with two fronts."""
    return GatewayFolder(tmp_path, fronts=2)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return a stack that closes clients at the end."""
    with ExitStack() as opened:
        yield opened


def ask(gateway: GatewayProcess, path: str, method: str = "GET") -> tuple[int, Any]:
    """Return status and JSON of a request of an operator."""
    status, body = answer(gateway, path, method)
    return status, json.loads(body)


def answer(gateway: GatewayProcess, path: str, method: str = "GET") -> tuple[int, bytes]:
    """Return status and body of a request of an operator."""
    certificates = gateway.files.folder / "certs"
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "operator.pem", certificates / "operator.key")
    connection = HTTPSConnection("localhost", gateway.admin_port, context=context, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers={"maxam-admin": "1"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def rows(gateway: GatewayProcess, path: str, name: str) -> list[dict[str, Any]]:
    """Return the rows of all pages of a listing, two in each page."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        status, page = ask(gateway, f"{path}?limit=2{after}")
        assert status == 200
        assert "incomplete" not in page
        found += page[name]
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def connect_all(gateway: GatewayProcess, stack: ExitStack) -> list[BlockingClient]:
    """Connect four clients with sessions of their own, which both fronts share."""
    clients = [stack.enter_context(gateway.client(client_id=key)) for key in KEYS]
    for client in clients:
        client.write(
            encoder.subscribe(VERSION_1_2, b"d", b"X/D.**", b"client", durable=True, eager=False, receipt_id=b"r")
        )
        receipt(client)
        subscribe(client)
    return clients


def test_listings_have_each_row_once(files: GatewayFolder, stack: ExitStack) -> None:
    """Connections are in order of their opening, sessions and subscriptions in order of their names, over all pages."""
    with files.start() as gateway:
        connect_all(gateway, stack)
        connections = [row for row in rows(gateway, "/v1/connections", "connections") if row["kind"] == "stomp"]
        assert [row["client_id"] for row in connections] == list(KEYS)
        assert sorted(row["front"] for row in connections) == [0, 0, 1, 1]
        assert all(row["state"] == "connected" and row["frames"] >= 2 for row in connections)
        sessions = rows(gateway, "/v1/sessions", "sessions")
        assert [row["client_id"] for row in sessions] == list(KEYS)
        addresses = {row["client_id"]: row["address"] for row in connections}
        assert {row["client_id"]: row["peer"] for row in sessions} == addresses
        assert all(row["connected"] and row["subscriptions"] == 2 for row in sessions)
        subscriptions = rows(gateway, "/v1/subscriptions", "subscriptions")
        assert [(row["client_id"], row["id"]) for row in subscriptions] == [(key, id_) for key in KEYS for id_ in "ds"]
        assert all(row["connected"] and row["delivering"] for row in subscriptions)


def test_a_session_that_lost_its_connection_is_shown_by_the_gateway(files: GatewayFolder, stack: ExitStack) -> None:
    """Its durable subscription stays, detached."""
    with files.start() as gateway:
        clients = connect_all(gateway, stack)
        clients[1].close()
        wait_for(lambda: [one["connected"] for one in rows(gateway, "/v1/sessions", "sessions")].count(False) == 1)
        found = rows(gateway, "/v1/subscriptions", "subscriptions")
        assert [(row["client_id"], row["id"]) for row in found if not row["connected"]] == [("c1", "d")]


def test_subscriptions_that_are_behind_are_found_on_fronts(files: GatewayFolder, stack: ExitStack) -> None:
    """One that does not acknowledge is behind. Its session and the explanation of the topic show the same."""
    with files.start() as gateway:
        clients = connect_all(gateway, stack)
        for client in clients:
            client.write(encoder.unsubscribe(VERSION_1_2, b"s", receipt_id=b"u"))
            receipt(client)
        with gateway.client() as sender:
            assert sender.send(b"X/D.a", b"v") == b"accepted"
        for client in clients:
            message(client)

        def slow() -> list[str]:
            _, look = ask(gateway, "/v1/subscriptions/slow?min_s=0")
            return sorted(row["client_id"] for row in look["subscriptions"])

        wait_for(lambda: slow() == list(KEYS))
        _, session = ask(gateway, "/v1/sessions/publisher/c2")
        assert (session["unacked"], [one["cause"] for one in session["subscriptions"]]) == (1, ["unacknowledged"])
        _, state = ask(gateway, "/v1/subscriptions/explain?principal=publisher&client_id=c2&id=d&destination=X%2FD.a")
        assert (state["code"], state["sent_revision"]) == ("unacknowledged", 1)


def test_operators_end_what_fronts_have(files: GatewayFolder, stack: ExitStack) -> None:
    """A kick closes a connection, a paused subscription ends through its front, and an ended session does not come back."""
    with files.start() as gateway:
        clients = connect_all(gateway, stack)
        assert ask(gateway, "/v1/sessions/publisher/c0/kick", "POST") == (200, {"kicked": True})
        assert clients[0].frame().headers[b"message"] == b"closed by an operator"
        assert ask(gateway, "/v1/subscriptions/publisher/c1/d", "DELETE")[0] == 409
        clients[1].write(encoder.unsubscribe(VERSION_1_2, b"d", receipt_id=b"u"))
        receipt(clients[1])
        assert ask(gateway, "/v1/subscriptions/publisher/c1/d", "DELETE") == (200, {"dropped": True})
        assert ask(gateway, "/v1/subscriptions/publisher/c1/d", "DELETE")[0] == 404
        assert ask(gateway, "/v1/sessions/publisher/c2", "DELETE") == (200, {"dropped": True})
        assert clients[2].frame().headers[b"message"] == b"session dropped"
        wait_for(lambda: [one["client_id"] for one in rows(gateway, "/v1/sessions", "sessions")] == ["c0", "c1", "c3"])
        with gateway.client() as sender:
            assert sender.send(b"X/a", b"v") == b"accepted"
        assert message(clients[3]) == (b"X/a", b"v")


def test_metrics_and_rates_are_those_of_all_fronts(files: GatewayFolder, stack: ExitStack) -> None:
    """Counters are sums, and each front has a gauge of its own."""
    with files.start() as gateway:
        clients = connect_all(gateway, stack)
        assert clients[0].send(b"Y/refused", b"v") == b"rejected-unauthorised"

        def measured() -> dict[str, float]:
            _, page = answer(gateway, "/metrics")
            lines = [line.rsplit(" ", 1) for line in page.decode().splitlines() if not line.startswith("#")]
            return {name: float(value) for name, value in lines}

        wait_for(lambda: measured()['maxam_connections{state="connected"}'] == len(KEYS))
        wait_for(lambda: measured()["maxam_frames_received_total"] >= 3 * len(KEYS))
        found = measured()
        assert found["maxam_fronts"] == 2
        assert [found[f'maxam_front_connections{{front="{front}"}}'] for front in range(2)] == [2, 2]
        assert found['maxam_subscriptions{state="connected"}'] == 2 * len(KEYS)
        assert found["maxam_connections_accepted_total"] == len(KEYS)
        wait_for(lambda: ask(gateway, "/v1/health")[1]["connections"]["connected"] == len(KEYS))


def test_a_silent_front_makes_a_view_incomplete(files: GatewayFolder, stack: ExitStack) -> None:
    """Rows of the others come within a second. A question to the front that has the session fails."""
    with files.start() as gateway:
        connect_all(gateway, stack)
        shown = rows(gateway, "/v1/connections", "connections")
        pid = front_pids(gateway)[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            _, page = ask(gateway, "/v1/connections")
            assert page["incomplete"] is True
            left = [row for row in page["connections"] if row["kind"] == "stomp"]
            assert len(left) == 2
            gone = next(row for row in shown if row["kind"] == "stomp" and row["front"] != left[0]["front"])
            _, page = ask(gateway, "/v1/sessions")
            assert page["incomplete"] is True
            assert len(page["sessions"]) == len(KEYS)
            assert ask(gateway, "/v1/subscriptions/slow")[1]["incomplete"] is True
            status, error = ask(gateway, f"/v1/sessions/publisher/{gone['client_id']}/kick", "POST")
            assert (status, error["code"]) == (503, "front-silent")
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_principal_that_is_owed_too_much_loses_its_session(files: GatewayFolder, stack: ExitStack) -> None:
    """Transient subscriptions of fronts count. The connection gets the reason."""
    files.configure(limits="owed_per_principal_max = 2\n")
    with files.start() as gateway:
        client = stack.enter_context(gateway.client(client_id="slow"))
        client.write(encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"client", receipt_id=b"r"))
        receipt(client)
        with gateway.client() as sender:
            for number in range(200):
                assert sender.send(b"X/%d" % number, b"v") == b"accepted"
        frame = client.frame()
        while frame.command == b"MESSAGE":
            frame = client.frame()
        assert frame.headers[b"message"] == b"too much owed"


def test_a_connection_that_a_dying_front_did_not_take_is_served_by_another(
    files: GatewayFolder, stack: ExitStack
) -> None:
    """A front hangs, gets a connection and is killed: the client does not notice."""
    with files.start() as gateway:
        stack.enter_context(gateway.client())
        idle = (
            next(row["front"] for row in rows(gateway, "/v1/connections", "connections") if row["kind"] == "stomp") ^ 1
        )
        pid = front_pids_by_slot(gateway)[idle]
        os.kill(pid, signal.SIGSTOP)
        connected: list[BlockingClient] = []
        client = threading.Thread(target=lambda: connected.append(stack.enter_context(gateway.client())))
        client.start()
        gauge = f'maxam_front_connections{{front="{idle}"}} 1.0'
        wait_for(lambda: gauge in answer(gateway, "/metrics")[1].decode())
        os.kill(pid, signal.SIGKILL)
        client.join(PATIENCE_S)
        assert connected[0].send(b"X/a", b"v") == b"accepted"


def test_a_spare_process_takes_the_place_of_a_front(files: GatewayFolder) -> None:
    """It was there before, and another one waits after that. All run on the processor that the configuration sets."""
    core = min(os.sched_getaffinity(0))
    files.config.write_text(files.config.read_text() + f"cores = [{core}]\n")
    with files.start() as gateway:

        def children() -> set[int]:
            found = set()
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with suppress(OSError):
                    if int(stat.read_text().rpartition(")")[2].split()[1]) == gateway.process.pid:
                        found.add(int(stat.parent.name))
            return found

        wait_for(lambda: len(children()) == 3)
        before = children()
        fronts = front_pids(gateway)
        os.kill(fronts[0], signal.SIGKILL)
        wait_for(lambda: len(front_pids(gateway)) == 3)
        assert front_pids(gateway)[2] in before - set(fronts)
        assert all(os.sched_getaffinity(pid) == {core} for pid in front_pids(gateway)[1:])
        wait_for(lambda: len(children()) == 3)
        assert gateway.stop() == 0


def front_pids_by_slot(gateway: GatewayProcess) -> dict[int, int]:
    """Return the processes of fronts by their number."""
    return {int(slot): int(pid) for slot, pid in re.findall(r"front-started front=(\d+) pid=(\d+)", gateway.log())}

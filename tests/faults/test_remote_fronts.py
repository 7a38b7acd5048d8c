"""A real gateway with a front on another machine: its clients are promised the same as those of other fronts."""

import datetime as dt
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from maxam import __version__
from maxam.cluster import wire
from maxam.cluster.link import Link, LinkLostError, connect
from maxam.gateway.resuming import Resumption
from maxam.journal.encoding import START
from maxam.pki.certificates import SERVER_NAMES, Authority
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.faults.test_fronts import message, receipt, subscribe, wait_for
from tests.faults.test_fronts_views import answer, ask, rows
from tests.interop.third_party import LIBRARIES, ThirdPartyClient
from tests.support.cutting_relay import CuttingRelay
from tests.support.gateway_folder import RUN, BlockingClient, GatewayProcess
from tests.support.gateway_process import kept_ports
from tests.support.patience import PATIENCE_S
from tests.support.remote_front import RemoteFolder


@pytest.fixture
def files(tmp_path: Path) -> RemoteFolder:
    """Return the files of a gateway and of a front elsewhere."""
    return RemoteFolder(tmp_path)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return a stack that ends processes and clients."""
    with ExitStack() as opened:
        yield opened


def test_clients_of_both_machines_share_one_order(files: RemoteFolder, stack: ExitStack) -> None:
    """Each subscriber gets each value once, wherever it was sent. A condition holds across machines."""
    gateway = stack.enter_context(files.gateway.start())
    with gateway.client() as sender:
        assert sender.send(b"X/old", b"v") == b"accepted"
    front = stack.enter_context(files.start())
    here, there = stack.enter_context(gateway.client()), stack.enter_context(front.client())
    for client in (here, there):
        subscribe(client, eager=True)
        assert message(client) == (b"X/old", b"v")
    for at, one in enumerate((gateway, front)):
        with one.client() as sender:
            assert sender.send(b"X/%d" % at, b"v") == b"accepted"
    for client in (here, there):
        assert sorted([message(client), message(client)]) == [(b"X/0", b"v"), (b"X/1", b"v")]
    results = []
    for one in (front, gateway):
        with one.client() as sender:
            sender.write(encoder.send(VERSION_1_2, b"X/a", b"v", ((b"if-revision", b"0"),), b"r"))
            results.append(receipt(sender).headers)
    assert results[0][b"disposition"] == b"accepted"
    assert results[1][b"result"] == b"conflict"
    assert front.stop() == 0
    assert there.frame().command in {b"MESSAGE", b"ERROR"}
    assert not list(files.folder.glob("copy*"))


def ended(client: BlockingClient) -> bool:
    """Wait until a client is disconnected; return True. A shutdown message may come before."""
    try:
        while client.frame().command in {b"ERROR", b"MESSAGE"}:
            pass
    except (EOFError, OSError):
        return True
    return False


def started(gateway: GatewayProcess, count: int) -> None:
    """Wait until a gateway has begun to serve this number of fronts since its start."""
    wait_for(lambda: gateway.log().count("front-started") >= count)


def reconnect(front: GatewayProcess, **who: str) -> BlockingClient:
    """Connect to a front as soon as it serves again."""
    connected: list[BlockingClient] = []

    def tried() -> bool:
        try:
            connected.append(front.client(**who))
        except (OSError, EOFError):
            return False
        return True

    wait_for(tried)
    return connected[0]


def test_a_front_that_is_killed_takes_only_its_clients_along(files: RemoteFolder, stack: ExitStack) -> None:
    """Its durable session continues at the gateway at once, with what it is owed. Another process takes its place."""
    gateway = stack.enter_context(files.gateway.start())
    front = stack.enter_context(files.start())
    here = stack.enter_context(gateway.client())
    subscribe(here)
    there = stack.enter_context(front.client(client_id="pump"))
    subscribe(there, durable=True, ack=b"client-individual")
    assert here.send(b"X/a", b"1") == b"accepted"
    assert message(there) == (b"X/a", b"1")
    front.kill()
    assert ended(there)
    assert message(here) == (b"X/a", b"1")
    with gateway.client(client_id="pump") as again:
        subscribe(again, durable=True, ack=b"client-individual")
        assert message(again) == (b"X/a", b"1")
    wait_for(lambda: "front-ended" in gateway.log())
    front = stack.enter_context(files.start())
    with front.client(client_id="pump") as again:
        subscribe(again, durable=True, ack=b"client-individual")
        assert message(again) == (b"X/a", b"1")
    assert gateway.stop() == 0


@pytest.mark.parametrize("graceful", [False, True])
def test_a_front_serves_the_next_gateway(files: RemoteFolder, stack: ExitStack, graceful: bool) -> None:
    """When its gateway ends, its clients are disconnected. It serves again at the same port, and what was accepted is there."""
    gateway = stack.enter_context(files.gateway.start())
    front = stack.enter_context(files.start())
    client = stack.enter_context(front.client())
    assert client.send(b"X/a", b"1") == b"accepted"
    if graceful:
        assert gateway.stop() == 0
        assert client.frame().headers[b"message"] == b"broker is stopping"
    else:
        gateway.kill()
    assert ended(client)
    gateway = stack.enter_context(files.gateway.start())
    with reconnect(front) as again:
        assert again.send(b"X/b", b"2") == b"accepted"
        assert again.values(b"X/**", 2) == {b"X/a": b"1", b"X/b": b"2"}
    assert front.process.poll() is None


def test_a_link_that_is_cut_ends_the_clients_of_the_front(files: RemoteFolder, stack: ExitStack) -> None:
    """The gateway frees their sessions, and the front serves again by itself. No SEND takes effect twice."""
    gateway = stack.enter_context(files.gateway.start())
    relay = stack.enter_context(CuttingRelay(files.link_port))
    files.configure(kept_ports(1)[0], relay.port)  # nothing is at the first address
    front = stack.enter_context(files.start())
    watching = stack.enter_context(gateway.client())
    subscribe(watching)
    for number in range(3):
        client = reconnect(front, client_id="pump")
        assert client.send(b"X/a", b"%d" % number) == b"accepted"
        assert message(watching) == (b"X/a", b"%d" % number)
        relay.cut()
        assert ended(client)
        client.close()
        with gateway.client(client_id="pump") as taken:
            assert taken.send(b"X/b", b"%d" % number) == b"accepted"
            assert message(watching) == (b"X/b", b"%d" % number)


def test_a_reload_is_answered_when_no_front_serves_by_the_old_files(files: RemoteFolder, stack: ExitStack) -> None:
    """It is in force at a front that hears it. One that was cut off has ended its clients by then."""
    gateway = stack.enter_context(files.gateway.start())
    relay = stack.enter_context(CuttingRelay(files.link_port))
    files.configure(relay.port)
    front = stack.enter_context(files.start())
    client = stack.enter_context(front.client())
    subscribe(client)
    policy = files.gateway.folder / "policy.toml"
    policy.write_text(policy.read_text().replace('send = ["X/**"]', 'send = ["X/a"]'))
    gateway.process.send_signal(signal.SIGHUP)
    wait_for(lambda: gateway.log().count("reloaded item=policy") == 1)
    client.write(encoder.send(VERSION_1_2, b"X/b", b"v", receipt_id=b"r"))
    assert receipt(client).headers[b"disposition"] == b"rejected-unauthorised"
    relay.mute()
    policy.write_text(policy.read_text().replace('receive = ["X/**"]', 'receive = ["X/b"]'))
    gateway.process.send_signal(signal.SIGHUP)
    wait_for(lambda: gateway.log().count("reloaded item=policy") == 2)
    assert "front-lost" in front.log()  # more than once if it has tried to come back by then
    assert ended(client)
    relay.unmute()
    with reconnect(front) as again:
        assert again.send(b"X/a", b"v") == b"accepted"


def test_a_front_that_was_frozen_delivers_nothing_when_it_wakes(files: RemoteFolder, stack: ExitStack) -> None:
    """Its sessions are at other fronts meanwhile, and other files may be in force. It ends its clients, and serves again."""
    gateway = stack.enter_context(files.gateway.start())
    front = stack.enter_context(files.start())
    client = stack.enter_context(front.client(client_id="pump"))
    subscribe(client, durable=True, ack=b"client-individual")
    os.kill(front.process.pid, signal.SIGSTOP)
    try:
        with gateway.client(client_id="pump") as taken:
            subscribe(taken, durable=True, ack=b"client-individual")
            wait_for(lambda: "it is silent" in gateway.log())
            assert taken.send(b"X/a", b"v") == b"accepted"
            assert message(taken) == (b"X/a", b"v")
    finally:
        os.kill(front.process.pid, signal.SIGCONT)
    with pytest.raises((EOFError, OSError)):
        client.frame()
    with reconnect(front, client_id="pump") as again:
        subscribe(again, durable=True, ack=b"client-individual")
        assert message(again) == (b"X/a", b"v")


def test_a_front_without_the_right_is_refused(files: RemoteFolder, stack: ExitStack) -> None:
    """A certificate that may replicate is not enough: a front writes in the name of all clients. Losing the right ends a front."""
    gateway = stack.enter_context(files.gateway.start())
    front = stack.enter_context(files.start())
    client = stack.enter_context(front.client())
    policy = files.gateway.folder / "policy.toml"
    policy.write_text(policy.read_text().replace('["replicate", "front"]', '["replicate"]'))
    gateway.process.send_signal(signal.SIGHUP)
    assert ended(client)
    wait_for(lambda: "lacks the admin right front" in front.log())
    with gateway.client() as here:
        assert here.send(b"X/a", b"v") == b"accepted"


def linked(files: RemoteFolder, who: str = "pipeline") -> Link:
    """Return a link to the gateway."""
    certs = files.gateway.folder / "certs"
    context = ssl.create_default_context(cafile=certs / "ca.pem")
    context.load_cert_chain(certs / f"{who}.pem", certs / f"{who}.key")
    return connect("127.0.0.1", files.link_port, context, lambda: START, lambda: "")


def answer_of(files: RemoteFolder, software: str, who: str = "pipeline", *frames: bytes) -> int:
    """Return the type of the answer to the HELLO of a front. Frames that follow must end the link."""
    with closing(linked(files, who)) as made:
        made.send(wire.encode_hello(wire.Hello(wire.FRONT, "x", software, "", START)))
        kind = made.expect(PATIENCE_S).type
        if frames:
            with pytest.raises(LinkLostError, match=r"the peer ended|was lost"):
                send_and_read(made, *frames)
    return kind


def send_and_read(made: Link, *frames: bytes) -> None:
    """Send frames, then read until the link ends."""
    for frame in frames:
        made.send(frame)
    while True:
        made.expect(PATIENCE_S)


def test_peers_that_are_no_fronts_of_this_release_do_no_harm(files: RemoteFolder, stack: ExitStack) -> None:
    """Another release is refused, and so is a certificate without rights. Frames that are too large or garbled end the link."""
    gateway = stack.enter_context(files.gateway.start())
    assert answer_of(files, "0.0.1") == wire.REFUSED
    assert answer_of(files, __version__, "publisher") == wire.REFUSED
    for frame in (
        (wire.FRAME_BYTES_MAX + 1).to_bytes(4, "big") + bytes((wire.OPS,)),
        wire.frame(wire.OPS, b"garbled"),
        wire.frame(wire.REPORT, b"{"),
        wire.frame(wire.ASK, b"{}"),
        wire.frame(99, b""),
    ):
        assert answer_of(files, __version__, "pipeline", frame) == wire.WELCOME
    with gateway.client() as client:
        assert client.send(b"X/a", b"v") == b"accepted"


def test_a_front_of_another_leader_is_refused_without_a_cluster(files: RemoteFolder, stack: ExitStack) -> None:
    """Such a gateway has no log that would show which operations took effect. A garbled state ends the link."""
    gateway = stack.enter_context(files.gateway.start())
    for state in (Resumption(bytes(8), 1, START, [("publisher", "pump")]).encoded(), wire.frame(wire.REPORT, b"{}")):
        with closing(linked(files)) as made:
            made.send(wire.encode_hello(wire.Hello(wire.RESUME, "x", __version__, "", START)))
            assert made.expect(PATIENCE_S).type == wire.REPORT
            made.send(state)
            if b"pump" in state:
                assert wire.read_refused(made.expect(PATIENCE_S).body).code == wire.GONE
            else:
                with pytest.raises(LinkLostError):
                    made.expect(PATIENCE_S)
    with gateway.client() as client:
        assert client.send(b"X/a", b"v") == b"accepted"


def test_operators_see_and_end_what_a_front_elsewhere_has(files: RemoteFolder, stack: ExitStack) -> None:
    """Connections, sessions, subscriptions and metrics include it. A connection is closed there."""
    gateway = stack.enter_context(files.gateway.start())
    front = stack.enter_context(files.start())
    here = stack.enter_context(gateway.client(client_id="here"))
    there = stack.enter_context(front.client(client_id="there"))
    for client in (here, there):
        subscribe(client)
    found = {
        row["client_id"]: row["front"] for row in rows(gateway, "/v1/connections", "connections") if row["client_id"]
    }
    assert found == {"here": 0, "there": 1}
    assert {row["client_id"] for row in rows(gateway, "/v1/sessions", "sessions")} == {"here", "there"}
    metrics = answer(gateway, "/metrics")[1].decode()
    assert "maxam_fronts 2.0" in metrics
    followers = ask(gateway, "/v1/cluster")[1]["followers"]
    assert [(row["principal"], row["wish"]) for row in followers] == [("pipeline", "front")]
    assert ask(gateway, "/v1/sessions/publisher/there/kick", "POST") == (200, {"kicked": True})
    assert there.frame().headers[b"message"] == b"closed by an operator"


def test_a_client_of_others_is_served(files: RemoteFolder, stack: ExitStack) -> None:
    """stomp.py subscribes and sends at a front elsewhere; what it sends arrives at the gateway."""
    library = LIBRARIES["stomp.py"]
    library.require()
    gateway = stack.enter_context(files.gateway.start())
    front = stack.enter_context(files.start())
    watching = stack.enter_context(gateway.client())
    subscribe(watching)
    where: Any = SimpleNamespace(port=front.port, certificates=files.gateway.folder / "certs")
    client = stack.enter_context(ThirdPartyClient(library, "1.2", where, "publisher"))
    client.connect()
    client.subscribe("s", "X/**")
    assert client.send("X/a", b"v")["disposition"] == "accepted"
    assert client.message().body == b"v"
    assert message(watching) == (b"X/a", b"v")
    client.disconnect()


def test_a_front_takes_a_renewed_certificate(files: RemoteFolder, stack: ExitStack) -> None:
    """After SIGHUP its clients are shown the new one. Those that are connected stay so, and a reload of the gateway keeps it."""
    own = files.folder / "own"
    shutil.copytree(files.gateway.folder / "certs", own)
    files.config.write_text(files.config.read_text().replace(f"{files.gateway.folder}/certs/server", f"{own}/server"))
    gateway = stack.enter_context(files.gateway.start())
    front = stack.enter_context(files.start())
    client = stack.enter_context(front.client())
    before = ssl.get_server_certificate(("127.0.0.1", front.port))
    now = dt.datetime.now(dt.UTC)
    Authority.read(own).issue("localhost", now, now + dt.timedelta(days=1), SERVER_NAMES).write(own, "server")
    front.process.send_signal(signal.SIGHUP)
    wait_for(lambda: ssl.get_server_certificate(("127.0.0.1", front.port)) != before)
    policy = files.gateway.folder / "policy.toml"
    policy.write_text(policy.read_text().replace('send = ["X/**"]', 'send = ["X/a"]'))
    gateway.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "reloaded item=policy" in gateway.log())
    assert ssl.get_server_certificate(("127.0.0.1", front.port)) != before
    assert client.send(b"X/a", b"v") == b"accepted"


def test_the_check_finds_what_a_front_cannot_use(files: RemoteFolder) -> None:
    """Files that are missing, and sections that a front does not have."""
    command = [sys.executable, "-c", RUN, "--config", str(files.config), "--check"]
    results = []
    for further in ("", "ca = 'missing.pem'\n", "[limits]\n"):
        files.configure(files.link_port, further=further)
        results.append(subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S).returncode)
    assert results[0] == 0
    assert 0 not in results[1:]

"""A real gateway with two fronts: clients are promised the same as without, whichever front has them."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from maxam.gateway.front_children import Spares, end_process
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import Frame
from tests.support.gateway_folder import BlockingClient, GatewayFolder, GatewayProcess
from tests.support.patience import PATIENCE_S


@pytest.fixture
def files(tmp_path: Path) -> GatewayFolder:
    """Return the files of a gateway with two fronts."""
    return GatewayFolder(tmp_path, fronts=2)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return a stack that closes clients at the end."""
    with ExitStack() as opened:
        yield opened


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def front_pids(gateway: GatewayProcess) -> list[int]:
    """Return the processes of fronts that have started, oldest first."""
    return [int(pid) for pid in re.findall(r"front-started front=\d+ pid=(\d+)", gateway.log())]


def subscribe(client: BlockingClient, *, durable: bool = False, eager: bool = False, ack: bytes = b"auto") -> None:
    """SUBSCRIBE to everything, and wait for the RECEIPT."""
    client.write(
        encoder.subscribe(VERSION_1_2, b"s", b"X/**", ack, durable=durable, eager=eager, receipt_id=b"subscribed")
    )
    assert client.frame().headers[b"receipt-id"] == b"subscribed"


def message(client: BlockingClient) -> tuple[bytes, bytes]:
    """Wait for a MESSAGE; return its topic and body."""
    frame = client.frame()
    assert frame.command == b"MESSAGE", (frame.command, frame.headers, frame.body)
    return frame.headers[b"destination"], frame.body


def receipt(client: BlockingClient) -> Frame:
    """Wait for a RECEIPT."""
    frame = client.frame()
    assert frame.command == b"RECEIPT", (frame.command, frame.headers, frame.body)
    return frame


def test_clients_of_two_fronts_share_one_order(files: GatewayFolder, stack: ExitStack) -> None:
    """Each subscriber gets each value once, wherever it was sent; a restart finds all of them."""
    with files.start() as gateway:
        clients = [stack.enter_context(gateway.client()) for _ in range(4)]
        for client in clients:
            subscribe(client)
        senders = [stack.enter_context(gateway.client()) for _ in range(2)]
        for at, sender in enumerate(senders):
            assert sender.send(b"X/%d" % at, b"v") == b"accepted"
        for client in clients:
            assert sorted([message(client), message(client)]) == [(b"X/0", b"v"), (b"X/1", b"v")]
        assert len(set(front_pids(gateway))) == 2
        assert gateway.stop() == 0
        for client in clients:
            assert client.frame().command == b"ERROR"
    with files.start() as gateway, gateway.client() as reader:
        assert reader.values(b"X/**", 2) == {b"X/0": b"v", b"X/1": b"v"}


def test_conditions_hold_across_fronts(files: GatewayFolder) -> None:
    """Of two SENDs that expect the same revision the second is in conflict."""
    with files.start() as gateway, gateway.client() as one, gateway.client() as other:
        results = []
        for client in (one, other):
            client.write(encoder.send(VERSION_1_2, b"X/a", b"v", ((b"if-revision", b"0"),), b"r"))
            results.append(receipt(client).headers)
        assert (results[0][b"disposition"], results[0][b"revision"]) == (b"accepted", b"1")
        assert results[1][b"result"] == b"conflict"


def test_a_durable_session_moves_between_fronts(files: GatewayFolder, stack: ExitStack) -> None:
    """A takeover leaves the session to the newest connection. Acknowledged values do not come again, others do."""
    with files.start() as gateway:
        old = stack.enter_context(gateway.client(client_id="pump"))
        subscribe(old, durable=True, ack=b"client-individual")
        with gateway.client() as sender:
            assert sender.send(b"X/a", b"1") == b"accepted"
            assert sender.send(b"X/b", b"2") == b"accepted"
        for _ in range(2):
            frame = old.frame()
            if frame.headers[b"destination"] == b"X/a":
                old.write(encoder.ack(VERSION_1_2, b"s", frame.headers[b"message-id"]))
        for _ in range(4):
            new = stack.enter_context(gateway.client(client_id="pump"))
            error = old.frame()
            while error.command == b"MESSAGE":
                error = old.frame()
            assert error.headers[b"message"] == b"session taken over by a newer connection"
            subscribe(new, durable=True, ack=b"client-individual")
            assert message(new) == (b"X/b", b"2")
            old = new


def test_a_front_that_is_killed_takes_only_its_clients_along(files: GatewayFolder, stack: ExitStack) -> None:
    """The others go on. The front is replaced, and its durable session continues with what it is owed."""
    with files.start() as gateway:
        clients = [stack.enter_context(gateway.client(client_id=f"c{number}")) for number in range(4)]
        for client in clients:
            subscribe(client, durable=True)
        pids = front_pids(gateway)
        os.kill(pids[0], signal.SIGKILL)
        wait_for(lambda: "front-ended" in gateway.log())
        lost = []
        with gateway.client() as sender:
            assert sender.send(b"X/a", b"1") == b"accepted"
        for number, client in enumerate(clients):
            try:
                assert message(client) == (b"X/a", b"1")
            except (EOFError, OSError):
                lost.append(number)
        assert len(lost) == 2
        for number in lost:
            again = stack.enter_context(gateway.client(client_id=f"c{number}"))
            subscribe(again, durable=True)
            assert message(again) == (b"X/a", b"1")
        wait_for(lambda: len(front_pids(gateway)) == 3)


def test_a_reload_is_in_force_at_all_fronts_when_it_is_answered(files: GatewayFolder, stack: ExitStack) -> None:
    """A right that is revoked ends deliveries and SENDs at each front. A schema that covers a topic comes into force."""
    with files.start() as gateway:
        clients = [stack.enter_context(gateway.client()) for _ in range(4)]
        for client in clients:
            subscribe(client)
        policy = files.folder / "policy.toml"
        policy.write_text(policy.read_text().replace('send = ["X/**"]', 'send = ["X/a"]'))
        gateway.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "reloaded item=policy" in gateway.log())
        for at, client in enumerate(clients):
            client.write(encoder.send(VERSION_1_2, b"X/b", b"v", receipt_id=b"r"))
            assert receipt(client).headers[b"disposition"] == b"rejected-unauthorised", at
        clients[0].write(encoder.send(VERSION_1_2, b"X/a", b"v"))
        for client in clients:
            assert message(client) == (b"X/a", b"v")


def test_a_gateway_that_is_killed_takes_its_fronts_along(files: GatewayFolder, stack: ExitStack) -> None:
    """No front outlives its gateway, and the next gateway serves what was accepted."""
    with files.start() as gateway:
        client = stack.enter_context(gateway.client())
        assert client.send(b"X/a", b"1") == b"accepted"
        pids = front_pids(gateway)
        gateway.kill()
        with pytest.raises((EOFError, OSError)):
            client.frame()
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    with files.start() as gateway, gateway.client() as reader:
        assert reader.values(b"X/**", 1) == {b"X/a": b"1"}


def test_a_spare_that_has_ended_is_not_taken() -> None:
    """A front begins with a process that waits and lives; without one it begins with a new one."""

    async def take() -> None:
        spares = Spares()
        await spares.fill(2)
        first = await spares.take()
        assert first.process.returncode is None
        second = await spares.take()
        third = await spares.take()
        assert len({one.process.pid for one in (first, second, third)}) == 3
        for one in (first, second, third):
            await end_process(one)

        await spares.fill(1)
        ended = await spares.take()
        spares._waiting.append(ended)
        os.kill(ended.process.pid, signal.SIGKILL)
        with trio.fail_after(PATIENCE_S):
            await ended.process.wait()
            living = await spares.take()
        assert living.process.pid != ended.process.pid
        assert living.process.returncode is None
        await spares.fill(1)
        await spares.end()
        await end_process(living)

    trio.run(take)


def test_a_follower_counts_the_fronts_that_have_loaded_their_modules() -> None:
    """A process that has just been started does not count, nor one that has ended. The latter is replaced. All end with their gateway."""

    async def count() -> None:
        spares = Spares(2)
        await spares.fill(2)
        assert spares.loaded == 0
        with trio.fail_after(PATIENCE_S):
            while not spares.ready:  # noqa: ASYNC110  # of other processes
                await trio.sleep(0.05)
            ended, living = spares._waiting
            os.kill(ended.process.pid, signal.SIGKILL)
            await ended.process.wait()
            assert spares.loaded == 1
            await spares.fill(2)
            assert living in spares._waiting
            while spares.loaded < 2:  # noqa: ASYNC110  # likewise
                await trio.sleep(0.05)
            living.link.close()
            assert await living.process.wait() == 0
        await spares.end()

    trio.run(count)


def test_a_rejected_send_is_kept_by_the_gateway(files: GatewayFolder) -> None:
    """The quarantine and the audit log of the gateway have what a front has rejected."""
    with files.start() as gateway, gateway.client() as client:
        client.write(encoder.send(VERSION_1_2, b"Y/b", b"v", receipt_id=b"r"))
        assert receipt(client).headers[b"disposition"] == b"rejected-unauthorised"
        audited = files.folder / "var" / "journal-audit"
        wait_for(lambda: any("Y/b" in one.read_text() for one in audited.glob("*")))


def test_fronts_exclude_roles_without_clients_of_their_own(files: GatewayFolder) -> None:
    """An observer has no fronts. The check of the configuration fails."""
    files.config.write_text(files.config.read_text() + '[follow]\nfrom = ["127.0.0.1:1"]\n')
    done = files.run("--check")
    assert done.returncode != 0
    assert "[fronts]" in done.stderr

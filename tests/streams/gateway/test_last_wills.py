"""Last wills of a running gateway, over TLS: lost connections, a stop, a kill, and what operators see."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from maxam.client import LastWill
from maxam.client import connect as connect_client
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import Frame
from tests.support.gateway_folder import BlockingClient, GatewayFolder, GatewayProcess
from tests.support.living_gateway import Living, Site, TestClient, living, run, until

WILL = {"will-destination": "X/pump.state", "will-body": "lost"}


def connect(will: Mapping[str, str | int], client_id: str = "pump") -> bytes:
    """Return a CONNECT."""
    headers = {"accept-version": "1.2", "host": "MAXVAPI", "client-id": client_id, **will}
    return "".join(["CONNECT\n", *[f"{name}:{value}\n" for name, value in headers.items()], "\n\0"]).encode()


@asynccontextmanager
async def pump(alive: Living, **will: str | int) -> AsyncIterator[TestClient]:
    """Connect a client with a will, and wait until it is stored."""
    async with TestClient(await alive.dial("pub")) as client:
        await client.write(connect({**WILL, **will}) + b"NACK\nid:x\nreceipt:stored\n\n\0")
        assert (await client.frame()).command == b"CONNECTED"
        assert (await client.frame()).headers[b"receipt-id"] == b"stored"
        yield client


async def next_message(client: TestClient) -> Frame:
    """Wait for the next MESSAGE."""
    while (frame := await client.frame()).command != b"MESSAGE":
        pass
    return frame


def test_a_connection_that_breaks_leaves_its_will(tmp_path: Path) -> None:
    """A subscriber receives it. A client that leaves with DISCONNECT leaves none."""

    async def test() -> None:
        async with living(Site(tmp_path, "pub", "sub")) as alive, alive.client("sub") as reader:
            await reader.subscribe("X/**")
            async with pump(alive) as client:
                await client.write(b"DISCONNECT\nreceipt:left\n\n\0")
                assert (await client.frame()).headers[b"receipt-id"] == b"left"
            async with pump(alive) as client:
                await client.stream.transport_stream.aclose()
            frame = await next_message(reader)
            assert (frame.headers[b"destination"], frame.headers[b"message-id"], frame.body) == (
                b"X/pump.state",
                b"1",
                b"lost",
            )
            wills = alive.gateway.broker.last_wills.wills
            assert (len(wills), alive.gateway.broker.counters.wills_fired) == (0, 1)

    run(test)


def test_a_will_that_no_longer_has_the_right_is_among_the_rejected(tmp_path: Path) -> None:
    """The reload takes the right away; then the connection breaks."""

    async def test() -> None:
        site = Site(tmp_path, "pub", "sub")
        async with living(site) as alive:
            async with pump(alive):
                site.policy({"pub": {"send": ["X/other"], "receive": []}})
                await alive.reload()
            await until(lambda: alive.gateway.broker.counters.wills_rejected == 1)
            assert [record.destination for record in alive.gateway.quarantine.before(None)] == [b"X/pump.state"]

    run(test)


def test_a_stop_fires_none_and_the_next_start_does(tmp_path: Path) -> None:
    """Its delay begins at the start. A reconnect within the delay cancels it."""

    async def test() -> None:
        site = Site(tmp_path, "pub", "sub")
        async with living(site) as alive, pump(alive):
            broker = alive.gateway.broker
            alive.gateway.stop()
            await until(lambda: not alive.gateway.connections)
            assert (broker.last_wills.wills.armed, broker.committed_revision) == (1, 0)
        async with living(site) as alive, alive.client("sub") as reader:
            await until(lambda: alive.gateway.broker.counters.wills_fired == 1)
            await reader.subscribe("X/**", eager=True)
            assert await reader.values(1) == {"X/pump.state": b"lost"}
            async with pump(alive, **{"will-delay": 3600}):
                pass
            await until(lambda: alive.gateway.broker.last_wills.wills.armed == 1)
        async with living(site) as alive:
            assert alive.gateway.broker.last_wills.wills.armed == 1
            async with alive.client("pub", "pump"):
                await until(lambda: len(alive.gateway.broker.last_wills.wills) == 0)

    run(test)


def test_the_client_sets_a_will(tmp_path: Path) -> None:
    """A block that ends with an exception leaves it, and one that ends well does not."""

    async def test() -> None:
        site = Site(tmp_path, "pub", "sub")
        will = LastWill("X/pump.state", b"\x00lost", headers={"x": "1"})
        async with living(site) as alive, alive.client("sub") as reader:
            host, port = alive.gateway.address
            ours = partial(
                connect_client,
                certificate=site.certificates / "pub.pem",
                key=site.certificates / "pub.key",
                ca=site.certificates / "ca.pem",
            )
            await reader.subscribe("X/**")
            for fails in (False, True):
                with suppress(ZeroDivisionError):
                    async with ours(host, port, client_id="pump", will=will) as client:
                        await client.send("X/alive", b"%d" % fails)
                        assert len(alive.gateway.broker.last_wills.wills) == 1
                        1 // (not fails)
            found = [await next_message(reader) for _ in range(3)]
            assert [frame.body for frame in found] == [b"0", b"1", b"\x00lost"]
            assert found[-1].headers[b"x"] == b"1"

    run(test)


def blocking(gateway: GatewayProcess, files: GatewayFolder, number: int) -> BlockingClient:
    """Connect a client with a will of its own, and wait until that is stored."""
    client = BlockingClient(gateway.port, files.folder / "certs", "publisher")
    will = {"will-destination": f"X/will.{number}", "will-body": f"{number}"}
    client.write(connect(will, f"pump-{number}") + b"NACK\nid:x\nreceipt:stored\n\n\0")
    assert client.frame().command == b"CONNECTED"
    assert client.frame().headers[b"receipt-id"] == b"stored"
    return client


@pytest.mark.slow
def test_a_kill_sends_each_will_exactly_once(tmp_path: Path) -> None:
    """A will that had fired before kill -9 is not sent again, one of a connected client is sent, a cancelled one is not."""
    files = GatewayFolder(tmp_path)
    with files.start() as gateway, gateway.client("subscriber") as reader:
        clients = [blocking(gateway, files, number) for number in range(3)]
        reader.write(encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"auto"))
        clients[0].close()
        assert reader.frame().headers[b"destination"] == b"X/will.0"
        clients[1].write(b"DISCONNECT\nreceipt:left\n\n\0")
        assert clients[1].frame().headers[b"receipt-id"] == b"left"
        gateway.kill()
        for client in clients[1:]:
            client.close()
    with files.start() as gateway, gateway.client("subscriber") as reader:
        reader.write(encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"auto", eager=True))
        found = [reader.frame() for _ in range(2)]
        assert {frame.headers[b"destination"]: frame.headers[b"message-id"] for frame in found} == {
            b"X/will.0": b"1",
            b"X/will.2": b"2",
        }
        assert gateway.stop() == 0

"""Connections that ended leave nothing that only a search for cycles would find: such searches are rare (gateway/server.py)."""

import gc
import ssl
from pathlib import Path

import pytest
import trio

from maxam.gateway.tls import TlsSocket
from maxam.gateway.transport import Transport
from tests.support.living_gateway import Living, Site, living, until


def server_side() -> list[object]:
    """Return what ended connections of a gateway in this process have left."""
    kept = (Transport, TlsSocket)
    return [
        one for one in gc.get_objects() if isinstance(one, kept) or (isinstance(one, ssl.SSLObject) and one.server_side)
    ]


async def come_and_go(gateway: Living, how: str) -> None:
    """Connect and leave, politely or not, having come far or not."""
    if how == "half a handshake":
        async with await trio.open_tcp_stream(*gateway.gateway.address) as stream:
            await stream.send_all(b"\x16\x03\x01\x02\x00")
    elif how == "no CONNECT":
        await (await gateway.dial("anna")).aclose()
    elif how == "no certificate":
        with pytest.raises(trio.BrokenResourceError):
            async with await gateway.dial(None) as tls:
                await tls.receive_some()
    elif how == "operator":
        plain = await trio.open_tcp_stream("127.0.0.1", gateway.admin_port)
        async with trio.SSLStream(plain, gateway.site.context("operator"), https_compatible=True) as tls:
            await tls.send_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert (await tls.receive_some()).startswith(b"HTTP/1.1 200")
    elif how == "operator's half a handshake":
        async with await trio.open_tcp_stream("127.0.0.1", gateway.admin_port) as stream:
            await stream.send_all(b"\x16\x03\x01\x02\x00")
    else:
        async with gateway.client("anna") as client:
            await client.subscribe("X/*", b"client")
            await client.send("X/a", b"v")
            if how == "reset":
                await trio.aclose_forcefully(client.stream)


@pytest.mark.parametrize(
    "how",
    [
        "politely",
        "reset",
        "no CONNECT",
        "no certificate",
        "half a handshake",
        "operator",
        "operator's half a handshake",
    ],
)
def test_ended_connections_are_gone_at_once(tmp_path: Path, how: str) -> None:
    """With the search for cycles switched off, no connection of the gateway or of its admin listener outlives its end."""

    async def test() -> None:
        async with living(Site(tmp_path, "anna")) as gateway:
            await come_and_go(gateway, how)
            await until(lambda: not gateway.gateway.connections)
            gc.collect()
            gc.disable()
            try:
                for _ in range(5):
                    await come_and_go(gateway, how)
                await until(lambda: not server_side())
            finally:
                gc.enable()

    trio.run(test)

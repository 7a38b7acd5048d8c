"""The admin listener over real TLS: who gets in, what the application learns, and what one peer may take."""

import datetime as dt
import http.client
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from starlette.requests import Request
from trio.testing import wait_all_tasks_blocked

from maxam.api.http1 import CARRIER
from maxam.api.listener import CHAIN, FINGERPRINT, serve_https
from maxam.api.listener_limits import ListenerLimits
from maxam.api.places import Standing
from maxam.config import TlsSettings
from maxam.pki.certificates import Authority, issue_development_certificates
from tests.streams.tls_pairs import context_of
from tests.support.living_gateway import run

LARGE_BYTES = 32_000_000
NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of development certificates."""
    folder = tmp_path_factory.mktemp("certificates")
    issue_development_certificates(folder, NOW)
    return folder


def admin_context(folder: Path) -> ssl.SSLContext:
    """Return what the gateway would serve the admin port with."""
    return context_of(TlsSettings(folder / "server.pem", folder / "server.key", folder / "ca.pem"))


def client_context(folder: Path, name: str | None = "operator") -> ssl.SSLContext:
    """Return the context of a client that trusts the server, with a certificate or without."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(folder / "ca.pem")
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with what the scope has about the peer, once its body is there."""
    if scope["path"] == "/bug":
        raise RuntimeError("a bug")
    if scope["path"] != "/unread":
        await Request(scope, receive).body()
    state = {name: value for name, value in scope["state"].items() if name not in {CHAIN, CARRIER}}
    body = json.dumps({"state": state, "path": scope["path"], "scheme": scope["scheme"]}).encode()
    if scope["path"] == "/large":
        body = bytes(LARGE_BYTES)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def fingerprint_of(folder: Path, name: str) -> str:
    """Return the fingerprint of a certificate."""
    return str(json.loads((folder / "fingerprints.json").read_text())[name])


@asynccontextmanager
async def serving(
    folder: Path,
    limits: ListenerLimits | None = None,
    context: Callable[[], ssl.SSLContext] | None = None,
    standings: Mapping[str, Standing] | None = None,
    refused: list[str] | None = None,
) -> AsyncIterator[int]:
    """Serve `echo` to certificates with these standings, all equal if there are none; yield the port. Reasons of refusals go to a list."""
    if context is None:
        made = admin_context(folder)
        context = lambda: made  # noqa: E731 a test's one-liner
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    standing = None
    if standings is not None:
        by_fingerprint = {fingerprint_of(folder, name): one for name, one in standings.items()}
        standing = lambda fingerprint, _chain: by_fingerprint.get(fingerprint, Standing())  # noqa: E731
    tell = None if refused is None else lambda _listener, _address, reason: refused.append(reason)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_https, refused=tell, standing=standing), echo, listeners, context, limits)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def request(port: int, context: ssl.SSLContext, path: str = "/") -> bytes:
    """Send one GET and return all that comes back."""
    stream = await trio.open_ssl_over_tcp_stream("localhost", port, ssl_context=context, https_compatible=True)
    async with stream:
        await stream.send_all(b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path.encode())
        return b"".join([part async for part in stream])


def test_the_application_learns_the_fingerprint(certificates: Path) -> None:
    """The scope's state holds the SHA-256 of the client certificate's DER, each connection its own."""
    fingerprints = json.loads((certificates / "fingerprints.json").read_text())

    async def test() -> None:
        async with serving(certificates) as port:
            for name in ("operator", "publisher"):
                response = await request(port, client_context(certificates, name))
                answer = json.loads(response.partition(b"\r\n\r\n")[2])
                assert answer == {"state": {FINGERPRINT: fingerprints[name]}, "path": "/", "scheme": "https"}

    run(test)


def test_a_second_request_on_a_connection_has_the_fingerprint_too(certificates: Path) -> None:
    """Keep-alive does not lose who is asking."""

    async def test() -> None:
        async with serving(certificates) as port, await connect(port, certificates) as stream:
            for _ in range(2):
                await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                got = b""
                while not got.endswith(b"}"):
                    got += await stream.receive_some()
                assert FINGERPRINT.encode() in got

    run(test)


def stranger(certificates: Path, folder: Path, kind: str) -> ssl.SSLContext:
    """Return the context of a client that must not get in."""
    if kind == "without certificate":
        return client_context(certificates, None)
    day = dt.timedelta(days=1)
    authority = Authority.create("other", NOW) if kind == "of another CA" else Authority.read(certificates)
    until = NOW - day if kind == "expired" else NOW + day
    names = ("localhost",) if kind == "with a server certificate" else ()
    authority.issue("stranger", NOW - 2 * day, until, names).write(folder, "stranger")
    context = client_context(certificates, None)
    context.load_cert_chain(folder / "stranger.pem", folder / "stranger.key")
    return context


@pytest.mark.parametrize(
    ("kind", "alert"),
    [
        ("without certificate", "CERTIFICATE_REQUIRED"),
        ("of another CA", "UNKNOWN_CA"),
        ("expired", "CERTIFICATE_EXPIRED"),
        ("with a server certificate", "UNSUPPORTED_CERTIFICATE"),
    ],
)
def test_a_stranger_is_told_why(
    certificates: Path, tmp_path: Path, kind: str, alert: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A client without a valid certificate gets a TLS alert, not a byte of HTTP, and a log line; others are served on."""

    async def test() -> None:
        context = stranger(certificates, tmp_path, kind)
        async with serving(certificates) as port:
            with pytest.raises(trio.BrokenResourceError) as refusal:
                await request(port, context)
            assert isinstance(refusal.value.__cause__, ssl.SSLError)
            assert alert in str(refusal.value.__cause__)
            assert b" 200 " in await request(port, client_context(certificates))

    with caplog.at_level(logging.INFO, "maxam"):
        run(test)
    assert caplog.text.count("admin-connection-failed address=127.0.0.1:") == 1


def test_a_bug_in_the_application_ends_one_request_only(certificates: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An exception is answered 500 and logged with its traceback; the next request is served."""

    async def test() -> None:
        async with serving(certificates) as port:
            assert b" 500 " in await request(port, client_context(certificates), "/bug")
            assert b" 200 " in await request(port, client_context(certificates))

    with caplog.at_level(logging.ERROR, "maxam.admin"):
        run(test)
    assert "RuntimeError: a bug" in caplog.text


def test_a_peer_that_leaves_in_the_middle_of_its_body_is_no_bug(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is logged of it, because it would be a page of traceback each time. Its place is free again."""

    async def test() -> None:
        async with serving(certificates, ListenerLimits(connections_max=1)) as port:
            for _ in range(5):
                stream = await connect(port, certificates)
                await stream.send_all(b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
                await wait_all_tasks_blocked()
                await trio.aclose_forcefully(stream)
                await wait_all_tasks_blocked()
            assert b" 200 " in await request(port, client_context(certificates))

    run(test)
    assert not caplog.records


def test_the_context_is_asked_for_at_each_connection(certificates: Path, tmp_path: Path) -> None:
    """After a reload new connections meet the new CA."""
    issue_development_certificates(tmp_path, NOW)
    contexts = [admin_context(tmp_path), admin_context(certificates)]

    async def test() -> None:
        async with serving(certificates, context=contexts.pop) as port:
            assert b" 200 " in await request(port, client_context(certificates))
            assert b" 200 " in await request(port, client_context(tmp_path))

    run(test)


async def connect(port: int, folder: Path, name: str = "operator") -> trio.SSLStream[trio.SocketStream]:
    """Connect, as the operator unless another name is given, through the handshake."""
    stream = await trio.open_ssl_over_tcp_stream(
        "localhost", port, ssl_context=client_context(folder, name), https_compatible=True
    )
    await stream.do_handshake()
    return stream


async def closed_by_server(stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> bool:
    """Wait until the server closes; False when it sent something instead."""
    try:
        return await stream.receive_some() == b""
    except trio.BrokenResourceError:
        return True


def test_a_peer_that_does_not_finish_is_closed(certificates: Path) -> None:
    """Neither a handshake nor the head of a request can be dripped beyond its absolute limit."""

    async def test() -> None:
        async with (
            serving(certificates, ListenerLimits(handshake_timeout_s=0.2)) as port,
            await trio.open_tcp_stream("127.0.0.1", port) as plain,
        ):
            assert await closed_by_server(plain)
        async with (
            serving(certificates, ListenerLimits(request_head_timeout_s=0.2)) as port,
            await connect(port, certificates) as stream,
        ):
            await stream.send_all(b"GET / HT")
            assert await closed_by_server(stream)

    run(test)


def test_a_peer_that_does_not_read_is_closed(certificates: Path) -> None:
    """A response that no client reads ends with the write limit, and does not hold up the shutdown."""
    limits = ListenerLimits(write_timeout_s=0.3, graceful_timeout_s=0.1)

    async def test() -> None:
        async with serving(certificates, limits) as port:
            plain = trio.socket.socket()
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await plain.connect(("127.0.0.1", port))
            context = client_context(certificates)
            async with trio.SSLStream(trio.SocketStream(plain), context, server_hostname="localhost") as stream:
                await stream.send_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
                assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 200")
                await wait_all_tasks_blocked(0.4)
                received = 0
                while not await closed_by_server(stream):
                    received += 1
                assert received < LARGE_BYTES / 16_384  # a TLS record at a time

    run(test)


def test_too_long_a_head_is_refused(certificates: Path) -> None:
    """The head of a request is counted while it is read."""

    async def test() -> None:
        limits = ListenerLimits(request_head_bytes_max=1000)
        async with serving(certificates, limits) as port, await connect(port, certificates) as stream:
            await stream.send_all(b"GET /" + b"x" * 2000)
            assert b" 431 " in await stream.receive_some()

    run(test)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: 4000000\r\n\r\n", b"200"),
        (b"POST /unread HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3d0900\r\n", b"200"),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\ncontent-length: 4000000\r\n\r\n", b"501"),
    ],
)
def test_who_goes_on_sending_gets_the_answer(certificates: Path, head: bytes, status: bytes) -> None:
    """An answer that comes before all of the request was there reaches a peer that sends all of it nevertheless."""

    async def test() -> None:
        async with (
            serving(certificates, ListenerLimits(linger_timeout_s=15.0)) as port,
            await connect(port, certificates) as stream,
        ):
            await stream.send_all(head)
            for _ in range(61):
                await stream.send_all(bytes(65_536))
            got = b""
            while b"\r\n\r\n" not in got:
                part = await stream.receive_some()
                assert part, got
                got += part
            assert got.split()[1] == status

    run(test)


def test_who_never_ends_sending_is_closed_nevertheless(certificates: Path) -> None:
    """After an answer to what is not all there, a peer has `linger_timeout_s` to read it, and no longer, whatever it sends."""

    async def test() -> None:
        async with (
            serving(certificates, ListenerLimits(linger_timeout_s=0.1)) as port,
            await connect(port, certificates) as stream,
        ):
            await stream.send_all(b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: 900000000000\r\n\r\n")

            async def send_on() -> None:
                while True:
                    await stream.send_all(bytes(65_536))

            with pytest.raises(trio.BrokenResourceError):
                await send_on()

    run(test)


def test_connections_are_limited(certificates: Path) -> None:
    """One connection more than the limit is closed after its handshake; when one leaves there is room again."""

    async def test() -> None:
        async with serving(certificates, ListenerLimits(connections_max=1)) as port:
            async with await connect(port, certificates) as first:
                async with await connect(port, certificates) as second:
                    assert await closed_by_server(second)
                await first.send_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                while not await closed_by_server(first):
                    pass
            assert b" 200 " in await request(port, client_context(certificates))

    run(test)


def test_whoever_shows_no_certificate_makes_room(certificates: Path) -> None:
    """Peers that only connect take no place from an operator. The oldest of them is closed when no place is left. Served ones stay."""

    async def test() -> None:
        limits = ListenerLimits(connections_max=2, handshake_timeout_s=600.0)
        async with serving(certificates, limits) as port, await connect(port, certificates) as operator:
            strangers = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(8)]
            for stranger in strangers[:-2]:
                assert await closed_by_server(stranger)
            assert b" 200 " in await request(port, client_context(certificates))
            await operator.send_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert b" 200 " in await operator.receive_some()
            for stranger in strangers:
                await stranger.aclose()

    run(test)


ASKS = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def holds(port: int, folder: Path, *names: str) -> list[trio.SSLStream[trio.SocketStream]]:
    """Open a connection for each name, and get an answer over each."""
    streams = []
    for name in names:
        stream = await connect(port, folder, name)
        assert await lives(stream)
        streams.append(stream)
    return streams


async def lives(stream: trio.SSLStream[trio.SocketStream]) -> bool:
    """Return True if a connection is still served."""
    answer = b""
    try:
        await stream.send_all(ASKS)
        while not answer.endswith(b"}"):
            if not (part := await stream.receive_some()):
                return False
            answer += part
    except trio.BrokenResourceError:
        return False
    return b" 200 " in answer


READER, WRITER, NO_RIGHT = Standing("reader", 2), Standing("writer", 3), Standing("client", 1)


def test_a_higher_rank_makes_a_lower_one_leave(certificates: Path) -> None:
    """When all places are taken the oldest connection of the lowest rank makes room for one of a higher rank, and none for an equal."""
    standings = {"operator": WRITER, "subscriber": READER, "publisher": NO_RIGHT}
    refused: list[str] = []

    async def test() -> None:
        limits = ListenerLimits(connections_max=3)
        async with serving(certificates, limits, standings=standings, refused=refused) as port:
            first, second, third = await holds(port, certificates, "subscriber", "publisher", "publisher")
            (operator,) = await holds(port, certificates, "operator")
            assert [await lives(one) for one in (first, second, third)] == [True, False, True]
            (another,) = await holds(port, certificates, "operator")
            assert [await lives(one) for one in (first, third)] == [True, False]
            for name in ("publisher", "subscriber"):
                async with await connect(port, certificates, name) as late:
                    assert await closed_by_server(late)
            assert all([await lives(one) for one in (first, operator, another)])
            for one in (first, second, third, operator, another):
                await trio.aclose_forcefully(one)
        assert len([reason for reason in refused if "made room" in reason]) == 2
        assert len([reason for reason in refused if "are taken" in reason]) == 2

    run(test)


def test_a_principal_keeps_no_more_than_its_share_from_others(certificates: Path) -> None:
    """A principal that holds more than its share gives back places to others of its rank only. It takes none itself."""
    standings = {"operator": WRITER, "subscriber": Standing("another writer", 3), "publisher": READER}

    async def test() -> None:
        limits = ListenerLimits(connections_max=4, connections_per_principal_max=2)
        async with serving(certificates, limits, standings=standings) as port:
            hoard = await holds(port, certificates, *["operator"] * 4)
            others = await holds(port, certificates, *["subscriber"] * 2)
            assert [await lives(one) for one in hoard] == [False, False, True, True]
            for name in ("operator", "subscriber", "publisher"):
                async with await connect(port, certificates, name) as late:
                    assert await closed_by_server(late)
            assert all([await lives(one) for one in (*hoard[2:], *others)])
            for one in (*hoard, *others):
                await trio.aclose_forcefully(one)

    run(test)


def test_whoever_is_nobody_gets_one_answer(certificates: Path) -> None:
    """A connection whose certificate is refused or unknown is closed after its answer; that of a principal goes on."""
    standings = {"publisher": NO_RIGHT}

    async def test() -> None:
        async with serving(certificates, standings=standings) as port:
            known, unknown = await holds(port, certificates, "publisher", "subscriber")
            assert await closed_by_server(unknown)
            assert await lives(known)
            await trio.aclose_forcefully(known)
            await trio.aclose_forcefully(unknown)

    run(test)


def test_a_peer_that_left_holds_no_place(certificates: Path) -> None:
    """Clients that close as soon as they have their answer make room at once, not when idle ones would have to go."""

    def visit(port: int) -> int:
        context = client_context(certificates)
        for _ in range(60):
            connection = http.client.HTTPSConnection("localhost", port, context=context)
            connection.request("GET", "/")
            assert connection.getresponse().read()
            connection.close()
        return 60

    async def test() -> None:
        async with serving(certificates, ListenerLimits(connections_max=6)) as port:
            assert await trio.to_thread.run_sync(visit, port) == 60

    run(test)

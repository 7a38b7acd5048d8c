"""TLS by hand: who gets in, what refusal looks like, and what a peer cannot make us hold."""

import contextlib
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from maxam.config import Limits
from maxam.errors import ConfigurationError
from maxam.gateway import session_cache
from maxam.gateway.tls import TlsSocket, TransportClosedError, fingerprint, handshake_problem
from tests.streams.tls_pairs import Client, client_context, context_of, tls_settings

BYTES_MAX = Limits().tls_handshake_bytes_max
Pair = Callable[..., tuple[socket.socket, Client]]


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a clock that jumps when everything waits."""

    async def main() -> None:
        with trio.fail_after(1000):
            await test()

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def meet(server: TlsSocket, client: Client) -> str:
    """Shake hands; return the server's problem, empty when there is none."""
    problem = ""

    async def of_client() -> None:
        try:
            await client.do_handshake()
            await client.receive_some()  # in TLS 1.3 the client learns of a refusal only here
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(of_client)
        try:
            await server.handshake(trio.CapacityLimiter(4), BYTES_MAX)
        except ssl.SSLError as error:
            problem = handshake_problem(error)
            server.close()
        except TransportClosedError as error:
            problem = str(error)
            server.close()
        nursery.cancel_scope.cancel()
    return problem


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_identity_is_the_digest_of_the_certificate(
    version: ssl.TLSVersion, pair: Pair, lenient_context: ssl.SSLContext, certificates: Path
) -> None:
    """Both versions of TLS get in, and the identity is the SHA-256 of the client's DER."""

    async def test() -> None:
        ours, client = pair("publisher", maximum_version=version)
        server = TlsSocket(lenient_context, ours)
        assert await meet(server, client) == ""
        pem = (certificates / "publisher.pem").read_text()
        assert server.peer_fingerprint == fingerprint(ssl.PEM_cert_to_DER_cert(pem))
        assert server.version.startswith("TLSv1.3" if version == ssl.TLSVersion.TLSv1_3 else "TLSv1.2")
        server.close()
        await trio.aclose_forcefully(client)

    run(test)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (None, "the client sent no certificate"),
        ("foreign", "client certificate refused: unable to get local issuer certificate"),
        ("expired", "client certificate refused: certificate has expired"),
        ("server", "client certificate refused: unsuitable certificate purpose"),
    ],
)
def test_refusals_name_the_reason(
    name: str | None, problem: str, version: ssl.TLSVersion, pair: Pair, lenient_context: ssl.SSLContext
) -> None:
    """A client without a valid certificate of our CA is refused, and the log has the reason."""

    async def test() -> None:
        ours, client = pair(name, maximum_version=version)
        assert await meet(TlsSocket(lenient_context, ours), client) == problem
        await trio.aclose_forcefully(client)

    run(test)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not TLS but plain HTTP"),
        (b"CONNECT\naccept-version:1.2\n\n\0", "not TLS but a plain CONNECT"),
        (b"STOMP\naccept-version:1.2\n\n\0", "not TLS, or a version of it unknown to us"),
        (b"", "closed during the TLS handshake"),
    ],
)
def test_other_protocols_are_named(said: bytes, problem: str, context: ssl.SSLContext) -> None:
    """A peer that does not speak TLS is distinguished from one that speaks it wrongly."""

    async def test() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        server = TlsSocket(context, ours)
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises((ssl.SSLError, TransportClosedError)) as caught:
            await server.handshake(trio.CapacityLimiter(1), BYTES_MAX)
        error = caught.value
        assert (handshake_problem(error) if isinstance(error, ssl.SSLError) else str(error)) == problem
        server.close()
        theirs.close()

    run(test)


def test_versions_and_options(context: ssl.SSLContext, lenient_context: ssl.SSLContext) -> None:
    """TLS 1.3, or 1.2 where that is configured; no compression, no renegotiation, no tickets, a client certificate always."""
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert lenient_context.minimum_version == ssl.TLSVersion.TLSv1_2
    for one in (context, lenient_context):
        for option in (ssl.OP_NO_COMPRESSION, ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_TICKET):
            assert one.options & option
        assert one.num_tickets == 0
        assert one.verify_mode == ssl.CERT_REQUIRED


def test_a_client_of_tls_1_2_needs_the_minimum_for_it(pair: Pair, context: ssl.SSLContext) -> None:
    """By default a client that offers TLS 1.2 at most is refused, and the reason has the setting."""

    async def test() -> None:
        ours, client = pair("publisher", maximum_version=ssl.TLSVersion.TLSv1_2)
        assert "[tls] minimum" in await meet(TlsSocket(context, ours), client)
        await trio.aclose_forcefully(client)

    run(test)


def test_a_session_of_tls_1_2_is_not_kept_and_its_resumption_is_a_full_handshake(
    lenient_context: ssl.SSLContext, certificates: Path
) -> None:
    """A client that asks to resume its session shakes hands in full: its verified chain is there again."""
    clients = client_context(certificates, "publisher")
    clients.maximum_version = ssl.TLSVersion.TLSv1_2
    session: list[ssl.SSLSession | None] = [None]
    servers: list[TlsSocket] = []  # OpenSSL forgets a session when its connection is freed without a close

    async def connect() -> list[bytes]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        server = TlsSocket(lenient_context, ours)
        servers.append(server)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = clients.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session[0])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.handshake, trio.CapacityLimiter(4), BYTES_MAX)
            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                    break
                theirs.sendall(outgoing.read())
                await trio.lowlevel.wait_readable(theirs)
                incoming.write(theirs.recv(65_536))
        assert not client.session_reused
        session[0] = client.session
        chain = server.peer_chain
        server.close()
        theirs.close()
        return chain

    async def test() -> None:
        first = await connect()
        assert session[0] is not None
        assert not session[0].id
        assert await connect() == first
        assert len(first) == 2
        assert lenient_context.session_stats()["number"] == 0

    run(test)


def test_tls_1_2_is_refused_where_sessions_would_be_kept(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python whose session cache stays on cannot be configured for TLS 1.2: that is an error, not a leak."""
    settings = replace(tls_settings(certificates), minimum="1.2")
    monkeypatch.setattr(session_cache, "_switch_off", lambda _context: None)
    with pytest.raises(ConfigurationError, match="minimum"):
        context_of(settings)


def test_tls_1_2_is_refused_where_the_session_cache_cannot_be_reached(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python whose contexts have another layout, or whose OpenSSL cannot be called, cannot be configured for TLS 1.2."""
    settings = replace(tls_settings(certificates), minimum="1.2")
    monkeypatch.setattr(sys.implementation, "name", "other")
    with pytest.raises(ConfigurationError, match="minimum"):
        context_of(settings)


def test_nothing_overtakes_what_the_kernel_has_not_taken(pair: Pair, context: ssl.SSLContext) -> None:
    """Bytes that the kernel did not take count as unsent, and a send before they have left is refused, not interleaved."""

    async def test() -> None:
        ours, client = pair()
        server = TlsSocket(context, ours)
        assert await meet(server, client) == ""
        while server.send(bytes(65_536)):
            pass
        assert server.unsent
        with pytest.raises(AssertionError, match="overtake"):
            server.send(b"more")
        server.close()
        await client.aclose()

    run(test)


def test_a_connected_pair_carries_any_amount_both_ways(pair: Pair, context: ssl.SSLContext) -> None:
    """Each side decrypts exactly the bytes that the other encrypted, beyond the size of any buffer."""
    body = bytes(range(256)) * 4000

    async def test() -> None:
        ours, client = pair()
        server = TlsSocket(context, ours)
        assert await meet(server, client) == ""

        async def send() -> None:
            if not server.send(body):
                await server.flush(10)
            await client.send_all(body)

        back = b""
        there = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while len(there) < len(body):
                there += await client.receive_some()
            while len(back) < len(body):
                back += await server.receive(100_000) or b""
        assert there == back == body
        server.close()
        await trio.aclose_forcefully(client)

    run(test)


def test_a_proper_close_is_an_end_and_what_came_before_is_kept(pair: Pair, context: ssl.SSLContext) -> None:
    """Data and close_notify in one read give the data first, then None."""

    async def test() -> None:
        ours, client = pair()
        server = TlsSocket(context, ours)
        assert await meet(server, client) == ""
        await client.send_all(b"last words")
        with trio.move_on_after(0):
            await client.aclose()
        assert await server.receive(65_536) == b"last words"
        assert await server.receive(65_536) is None
        server.close()

    run(test)


def test_a_close_notify_is_an_end_though_the_socket_stays_open(pair: Pair, context: ssl.SSLContext) -> None:
    """A client that ends TLS and waits for our close_notify gets it: None is received before its socket is closed."""

    async def test() -> None:
        ours, client = pair()
        server = TlsSocket(context, ours)
        assert await meet(server, client) == ""
        transport = client.transport_stream
        await client.send_all(b"last words")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.unwrap)
            told = [await server.receive(65_536)]
            while told[-1] is not None:
                told.append(await server.receive(65_536))
            with trio.move_on_after(1):
                await server.linger()
            server.close()
        await transport.aclose()
        assert b"".join([data for data in told if data]) == b"last words"

    run(test)


def test_key_update_floods_end_the_connection(pair: Pair, context: ssl.SSLContext) -> None:
    """A peer that makes us answer without end is cut off before it costs more than 64 KiB."""

    async def test() -> None:
        ours, client = pair()
        server = TlsSocket(context, ours)
        assert await meet(server, client) == ""
        server._replied_bytes = 65_536  # as if 2,000 KeyUpdates had come: Python's ssl cannot send one
        server._outgoing.write(b"")
        assert server.decrypt() == b""
        server._replied_bytes += 1
        with pytest.raises(TransportClosedError, match="too many TLS control messages"):
            server.decrypt()
        server.close()
        await trio.aclose_forcefully(client)

    run(test)

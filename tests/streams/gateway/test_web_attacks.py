"""Clients that attack the web listener, and pages that attack through a browser."""

import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trio
from trio.testing import MockClock
from wsproto.events import Ping, TextMessage

from maxam.config import FrontsSettings, Limits
from maxam.gateway import web_pings
from maxam.web_config import WebSettings
from tests.support.living_gateway import EVERYTHING, Living, Site, TestClient, living, run, until
from tests.support.web_client import RefusedError, WebStream, connect, dial, make_ticket, page, refusal

WEB = WebSettings(listen="127.0.0.1:0")
BACKEND = {**EVERYTHING, "admin": ["ticket"]}
WITH_FRONTS = pytest.mark.parametrize(
    "site", [0, pytest.param(2, marks=pytest.mark.slow)], indirect=True, ids=["alone", "fronts"]
)


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    """A site with a publisher, and a backend that may make tickets; its gateway has fronts only if the test has a parameter for it."""
    site = Site(tmp_path, "anna", "backend")
    site.settings = replace(site.settings, fronts=FrontsSettings(getattr(request, "param", 0)))
    site.policy({"anna": EVERYTHING, "backend": BACKEND})
    return site


def frame(payload: bytes, first: int = 0x82, masked: bool = True, length: bytes | None = None) -> bytes:
    """Return one frame of a client, byte by byte: FIN, RSV and opcode are `first`."""
    size = len(payload)
    if length is None:
        length = bytes([size]) if size < 126 else b"\x7e" + struct.pack("!H", size)
    mask = b"\1\2\3\4" if masked else b""
    body = bytes([byte ^ mask[at % 4] for at, byte in enumerate(payload)]) if masked else payload
    return bytes([first, length[0] | (0x80 if masked else 0)]) + length[1:] + mask + body


FAULTS = {
    "not masked": (frame(b"SEND\n", masked=False), 1002),
    "a reserved bit": (frame(b"SEND\n", 0xC2), 1002),
    "an unknown opcode": (frame(b"SEND\n", 0x83), 1002),
    "a fragmented ping": (frame(b"", 0x09), 1002),
    "a long ping": (frame(b"x" * 126, 0x89), 1002),
    "a continuation of nothing": (frame(b"x", 0x80), 1002),
    "two messages at once": (frame(b"x", 0x02) + frame(b"x", 0x82), 1002),
    "a length of two bytes for one": (frame(b"x", length=b"\x7e\0\1"), 1002),
    "a length beyond 2^63": (frame(b"x", length=b"\x7f" + b"\xff" * 8), 1002),
    "text that is no UTF-8": (frame(b"\xff\xfe", 0x81), 1007),
    "a Close of one byte": (frame(b"x", 0x88), 1002),
    "a Close with a code of nobody": (frame(struct.pack("!H", 1005), 0x88), 1002),
}


@WITH_FRONTS
def test_a_fault_of_websocket_ends_its_connection_alone(site: Site) -> None:
    """The client gets an ERROR and a Close with the code of RFC 6455. Another client does not notice."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway, gateway.client("anna") as anna:
            for fault, (data, code) in FAULTS.items():
                async with page(gateway, make_ticket(gateway)) as client:
                    await client.stream.tls.send_all(data)
                    message, _ = await client.error()
                    assert (fault, message, client.stream.closed) == (fault, b"bad websocket frame", code)
                assert (await anna.send("X/a", b"v"))[0] == b"accepted"
            await until(lambda: gateway.gateway.web_open == 0)

    run(test)


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_frames_may_be_split_at_any_byte(site: Site, pieces: int) -> None:
    """STOMP frames in fragments, in messages of few bytes, in text, and several in one message: all are understood."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            stream = await dial(gateway)
            async with TestClient(stream) as client:
                await stream.upgrade()
                text = connect(make_ticket(gateway)) + b"SUBSCRIBE\nid:s\ndestination:X/**\nreceipt:1\n\n\0"
                wire = b"".join(
                    frame(text[at : at + 40], 0x02 if not at else 0x00) for at in range(0, len(text), 40)
                ) + frame(b"", 0x80)
                for at in range(0, len(wire), pieces):
                    await stream.tls.send_all(wire[at : at + pieces])
                assert (await client.frame()).command == b"CONNECTED"
                assert (await client.frame()).command == b"RECEIPT"
                await stream.tls.send_all(stream.frames.send(TextMessage(data="UNSUBSCRIBE\nid:s\nreceipt:é\n\n\0")))
                assert (await client.frame()).headers[b"receipt-id"] == "é".encode()

    run(test)


def test_a_large_value_is_one_message(site: Site) -> None:
    """A large MESSAGE arrives as one message of several fragments, and a ping among them is answered."""

    async def test() -> None:
        async with (
            living(site, web=WEB) as gateway,
            gateway.client("anna") as anna,
            page(gateway, make_ticket(gateway)) as client,
        ):
            await client.subscribe("X/**")
            body = bytes(1_000_000)
            await anna.send("X/large", body)
            await client.stream.tls.send_all(client.stream.frames.send(Ping(b"now")))
            assert await client.values(1) == {"X/large": body}
            assert max(client.stream.messages) > len(body)

    run(test)


def test_a_declared_length_takes_no_memory(site: Site) -> None:
    """A frame that declares 2^62 bytes is read as it comes, up to the limits of STOMP."""

    async def test() -> None:
        limits = Limits(frame_body_bytes_max=1024)
        async with living(site, web=WEB, limits=limits) as gateway, page(gateway, make_ticket(gateway)) as client:
            await client.stream.tls.send_all(b"\x82\xff" + struct.pack("!Q", 2**62) + b"\0\0\0\0")
            await client.stream.tls.send_all(b"SEND\ndestination:X/a\ncontent-length:2000\n\n")
            message, _ = await client.error()
            assert message == b"body too long"

    run(test)


@pytest.mark.parametrize("small", [frame(b"", 0x89), frame(b""), frame(b"\n"), frame(b"", 0x8A)])
def test_a_flood_of_small_frames_ends(site: Site, small: bytes) -> None:
    """Thousands of pings, pongs, empty or tiny messages end the connection that sends them."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway, page(gateway, make_ticket(gateway)) as client:
            await client.stream.tls.send_all(small * 300)
            message, _ = await client.error()
            assert message == b"bad websocket frame"
            assert client.stream.closed == 1008

    run(test)


@WITH_FRONTS
def test_a_slow_upgrade_and_a_late_connect_are_cut_off(site: Site) -> None:
    """One deadline covers upgrade and CONNECT, however the bytes trickle in."""

    async def test() -> None:
        slow = WebSettings(listen="127.0.0.1:0", connect_timeout_s=2.0)
        async with living(site, web=slow) as gateway:
            silent, trickling, upgraded = [await dial(gateway) for _ in range(3)]
            await upgraded.upgrade()
            await trickling.tls.send_all(b"GET /stomp HTTP/1.1\r\n")
            with pytest.raises(trio.BrokenResourceError):
                await _trickle(trickling)
            assert b"message:no CONNECT\n" in await upgraded.receive_some()
            for stream in (silent, trickling, upgraded):
                await stream.aclose()
            await until(lambda: gateway.gateway.web_open == 0)

    run(test)


def test_the_time_of_upgrade_and_connect_is_15_s(site: Site) -> None:
    """By default 15 s after its handshake. The clock is simulated: it stands nearly still unless the test moves it."""
    clock = MockClock(rate=0.01)

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            web = gateway.gateway.web
            assert web is not None
            begun_s = trio.current_time()
            silent, upgraded = [await dial(gateway) for _ in range(2)]
            await upgraded.upgrade()
            clock.jump(begun_s + 14.0 - trio.current_time())
            with trio.move_on_after(0.01) as waited:  # a second
                await upgraded.receive_some()
            assert waited.cancelled_caught
            assert web.open == 2
            clock.jump(begun_s + 16.0 - trio.current_time())
            assert b"message:no CONNECT\n" in await upgraded.receive_some()
            assert await silent.tls.receive_some() == b""
            for stream in (silent, upgraded):
                await stream.aclose()

    trio.run(test, clock=clock)


async def _trickle(stream: WebStream) -> None:
    while True:
        await stream.tls.send_all(b"a: b\r\n")
        await trio.sleep(0.05)


def test_connections_of_the_web_listener_are_limited(site: Site) -> None:
    """One more than [web] connections_max is closed without TLS."""

    async def test() -> None:
        async with living(site, web=WebSettings(listen="127.0.0.1:0", connections_max=1)) as gateway:
            async with page(gateway, make_ticket(gateway)):
                with pytest.raises((trio.BrokenResourceError, EOFError)):
                    await dial(gateway)
            async with page(gateway, make_ticket(gateway)):
                pass

    run(test)


BAD_REQUESTS = {
    b"nonsense\r\n\r\n": 400,
    b"GET /stomp HTTP/1.1\r\nhost: a\r\n\r\n": 426,
    b"POST /stomp HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\na": 405,
    b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n": 200,
    b"GET /v1/topics HTTP/1.1\r\nhost: a\r\n\r\n": 404,
    b"GET /stomp HTTP/1.1\r\nhost: \xc3\xa9\xff\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n": 400,
    b"GET /stomp HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: a\r\nsec-websocket-version: 8\r\nsec-websocket-protocol: v12.stomp\r\n\r\n": 426,
    b"GET /stomp HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 40_000 + b"\r\n\r\n": 431,
}


@pytest.mark.parametrize("request_", list(BAD_REQUESTS), ids=range(len(BAD_REQUESTS)))
def test_a_request_that_is_no_upgrade_is_answered_and_closed(
    site: Site, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Every request gets a status; nothing of it reaches STOMP. All but a check of health are reported as refused."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            stream = await dial(gateway)
            await stream.tls.send_all(request_)
            answer = b""
            while data := await stream.tls.receive_some():
                answer += data
            assert answer.startswith(b"HTTP/1.1 %d " % BAD_REQUESTS[request_])
            await stream.aclose()
        refused = [line for line in caplog.messages if "connection-refused" in line]
        assert len(refused) == (BAD_REQUESTS[request_] != 200)

    run(test)


@pytest.mark.parametrize(
    "how",
    [{"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "https://localhost:1"}, {"target": "/v1/live"}],
)
def test_a_page_of_another_site_gets_no_websocket_of_the_admin_listener(site: Site, how: dict[str, Any]) -> None:
    """The certificate that a browser presents does not help a page that was not served there."""

    async def test() -> None:
        async with living(site) as gateway:
            stream = await dial(gateway, gateway.admin_port, "anna")
            with pytest.raises(RefusedError) as refused:
                await stream.upgrade(**how)
            assert refused.value.status in {403, 404}
            await stream.aclose()

    run(test)


@pytest.mark.parametrize("origin", [None, "https://localhost"])
def test_the_admin_listener_serves_stomp_to_certificates(site: Site, origin: str | None) -> None:
    """A page of the same origin is its certificate's principal, with all its rights, and leaves the place of an operator."""

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            stream = await dial(gateway, gateway.admin_port, "backend")
            async with TestClient(stream) as client:
                await stream.upgrade(origin=origin)
                await client.write(connect("ignored", "ticket"))
                assert (await client.frame()).command == b"CONNECTED"
                await client.subscribe("X/**", durable=True)
                await anna.send("X/a", b"v")
                assert await client.values(1) == {"X/a": b"v"}
                assert (await client.send("X/b", b"v"))[0] == b"accepted"
                assert not gateway.gateway.access.admin_connections
                site.revoke("backend")
                await gateway.reload()
                assert (await client.error())[0] == b"certificate revoked"

    run(test)


@pytest.fixture
def quick_pings() -> Iterator[None]:
    """Pings after milliseconds of silence."""
    with patch.multiple(web_pings, _CHECK_S=0.01, _PING_S=0.05, _SILENT_S=0.5):
        yield


@pytest.mark.usefixtures("quick_pings")
def test_a_silent_page_is_sent_pings_and_stays_while_it_answers(site: Site) -> None:
    """An answer counts as a sign of life. A client that answers none is cut off."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway, page(gateway, make_ticket(gateway)) as client:
            stream: WebStream = client.stream
            with trio.move_on_after(1.5):
                await client.frame()
            assert stream.pings > 3
            assert len(gateway.gateway.connections) == 1
            stream.answers_pings = False
            with pytest.raises((trio.BrokenResourceError, EOFError)):
                await client.frame()

    run(test)


def test_no_secret_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Neither log nor audit log contains a ticket, used or refused."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            ticket = make_ticket(gateway)
            async with page(gateway, ticket):
                pass
            await refusal(gateway, ticket)
            await refusal(gateway, "guess-" + ticket)
            _check_logs(gateway, caplog.text, ticket)

    run(test)


def _check_logs(gateway: Living, text: str, ticket: str) -> None:
    assert "ticket invalid" in text
    assert ticket not in text
    time.sleep(0.2)  # the audit log's thread
    for file in gateway.site.folder.rglob("*.jsonl"):
        assert ticket not in file.read_text()

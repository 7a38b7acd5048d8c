"""Hostile requests to the real admin listener over TLS: each is answered or refused as HTTP defines, and harms no other client."""

import contextlib
import re
import socket
import ssl
import struct
from collections.abc import Iterator

import pytest

from tests.faults.scene import Scene, open_files, scene, settle

pytestmark = pytest.mark.slow

LIVE = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n"
LAST = (
    LIVE + b"connection: close\r\n\r\n"
)  # what follows the hostile request is answered only if that left the stream in order
SMUGGLED = b"DELETE /v1/topics/X/good HTTP/1.1\r\nhost: localhost\r\nmaxam-admin: 1\r\n\r\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Run a gateway with the limits that it is shipped with."""
    with scene(tmp_path_factory.mktemp("gateway"), "") as found:
        yield found


@pytest.fixture(autouse=True)
def undisturbed(broker: Scene) -> Iterator[None]:
    """Check the bystander after each test."""
    yield
    broker.bystander.check()


def statuses(hostile: ssl.SSLSocket) -> tuple[list[int], bytes]:
    """Read to the end; return the statuses of all answers, and all that came."""
    received = bytearray()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while part := hostile.recv(65_536):
            received += part
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)], bytes(received)


def get(path: bytes) -> bytes:
    """Return a request and one after it."""
    return b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\n\r\n" + LAST


POST = b"POST /v1/reload HTTP/1.1\r\nhost: localhost\r\nmaxam-admin: 1\r\n"
REQUESTS: dict[str, tuple[bytes, list[int]]] = {
    # whose length is given in two ways, or in none, so the bytes that follow must not be taken for a request
    "two kinds of length": (
        POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        [400],
    ),
    "the other way round": (
        POST + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n" + SMUGGLED,
        [400],
    ),
    "two lengths": (POST + b"content-length: 0\r\ncontent-length: 5\r\n\r\n" + SMUGGLED, [400]),
    "two lengths in one": (POST + b"content-length: 0, 5\r\n\r\n" + SMUGGLED, [400]),
    "a negative length": (POST + b"content-length: -1\r\n\r\n" + SMUGGLED, [400]),
    "a length with sign": (POST + b"content-length: +0\r\n\r\n" + SMUGGLED, [400]),
    "a length of 5,000 digits": (POST + b"content-length: " + b"9" * 5000 + b"\r\n\r\n", [400]),
    "an unknown coding": (POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED, [501]),
    "a coding twice": (POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, [501]),
    "a space before the colon": (POST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, [400]),
    "a chunk of 2^72": (POST + b"transfer-encoding: chunked\r\n\r\n1" + b"0" * 18 + b"\r\n", [413]),
    "a body of 100 GB": (POST + b"content-length: 99999999999\r\n\r\nx", [413]),
    "two hosts": (b"GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: y\r\n\r\n" + SMUGGLED, [400]),
    "no host": (b"GET /livez HTTP/1.1\r\n\r\n" + SMUGGLED, [400]),
    # other protocols
    "HTTP/0.9": (b"GET /livez\r\n\r\n", [400]),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0", [505]),
    "an upgrade to HTTP/2": (
        LIVE + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n" + LAST,
        [200, 200],
    ),
    "a websocket": (
        LIVE + b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: "
        b"AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" + LAST,
        [404],
    ),
    "STOMP": (b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\n\n\0", [400]),
    # heads
    "20,000 headers": (LIVE + b"a: b\r\n" * 20_000 + b"\r\n", [431]),
    "an endless header": (LIVE + b"a: " + b"b" * 200_000, [431]),
    "an endless line": (b"GET /" + b"a" * 200_000, [431]),
    "a NUL in a header": (LIVE + b"a: b\0c\r\n\r\n" + LAST, [400]),
    "a lone CR in a header": (LIVE + b"a: b\rc: d\r\n\r\n" + LAST, [400]),
    "a folded header": (LIVE + b"a: b\r\n maxam-admin: 1\r\n\r\n" + LAST, [200, 200]),
    # paths and queries
    "a path upwards": (get(b"/v1/../../etc/passwd"), [404, 200]),
    "the same, escaped": (get(b"/%2e%2e/%2e%2e/etc/passwd"), [404, 200]),
    "and in a name": (get(b"/v1/schemas/..%2f..%2f..%2fetc%2fpasswd/1.0"), [404, 200]),
    "another's URL": (get(b"http://evil.example/livez"), [404, 200]),
    "two slashes": (get(b"//livez"), [404, 200]),
    "a NUL in the path": (get(b"/livez%00"), [404, 200]),
    "a line end in the path": (get(b"/livez%0d%0aset-cookie:a=b"), [404, 200]),
    "an escape sequence as a topic": (get(b"/v1/topics/X/%1b%5b2J%0aforged"), [404, 200]),
    "half a character": (get(b"/v1/topics?glob=%ed%a0%80"), [400, 200]),
    "a reversed glob": (get(b"/v1/topics?glob=X/%5bz-a%5d"), [400, 200]),
    "a limit of 5,000 digits": (get(b"/v1/topics?limit=" + b"9" * 5000), [400, 200]),
    "a write without the header": (b"DELETE /v1/topics/X/good HTTP/1.1\r\nhost: localhost\r\n\r\n" + LAST, [403, 200]),
    "an unknown method": (b"TRACE /livez HTTP/1.1\r\nhost: localhost\r\n\r\n" + LAST, [405, 200]),
    "a proxy's CONNECT": (b"CONNECT evil.example:1 HTTP/1.1\r\nhost: localhost\r\n\r\n" + LAST, [404, 200]),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_request(broker: Scene, name: str) -> None:
    """It is answered with the right status, and nothing is deleted. The bytes after it are a request only where the first one surely ended."""
    data, wanted = REQUESTS[name]
    with broker.admin() as hostile:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            hostile.sendall(data)
        found, received = statuses(hostile)
    assert found == wanted, received[:300]
    assert b"set-cookie" not in received.lower()
    assert b"root:" not in received


def test_nothing_smuggled_was_done(broker: Scene) -> None:
    """The log knows of no write but those that were asked for in the open."""
    log = broker.process.log()
    assert "method=DELETE" not in log
    assert all("path=/v1/reload" in line for line in log.splitlines() if " admin-write " in line)


def test_requests_that_never_end_hold_no_place(broker: Scene) -> None:
    """Operators who vanish in the middle of a request, or are reset, leave nothing behind."""
    before = open_files(broker.process)
    for number in range(60):
        with broker.admin() as hostile:
            hostile.sendall((LIVE, POST + b"content-length: 10\r\n\r\nabc", b"GET ", LIVE + b"\r\n")[number % 4])
            if number % 2:
                hostile.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with broker.admin() as good:
        good.sendall(LAST)
        assert statuses(good)[0] == [200]
    settle(broker.process, before)

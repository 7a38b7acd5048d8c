"""Requests of the web listener: which of them becomes a WebSocket, and why the others do not.

A browser lets a page of any site connect to any address, and presents what it has. So a page is admitted by its `Origin`, which no page can
change. A client that sends no `Origin` is no browser: its ticket counts.

Spec: RFC 6455 "4.2. Server-Side Requirements"
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, final

import h11
from wsproto.connection import Connection, ConnectionType
from wsproto.events import AcceptConnection, Request
from wsproto.handshake import H11Handshake
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

STOMP_PATH: Final = b"/stomp"
ORIGIN_CHARACTERS_MAX: Final = 100  # of one that is shown
_SUBPROTOCOLS: Final = ("v12.stomp", "v11.stomp")  # best first
Headers = list[tuple[bytes, bytes]]


@final
@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that does not become a WebSocket.

    Attributes:
        status: Of the answer.
        code: For programs, one of `maxam.error_codes`.
        detail: Cause and remedy.
        headers: Further headers of the answer.
        origin: Of the page, at most `ORIGIN_CHARACTERS_MAX` characters, if it is the cause.
    """

    status: HTTPStatus
    code: str
    detail: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    origin: str | None = None

    def answer(self) -> bytes:
        """Return the response, after which the connection is closed."""
        body = json.dumps({"code": self.code, "detail": self.detail}).encode() + b"\n"
        lines = [
            b"HTTP/1.1 %d %b" % (self.status, self.status.phrase.encode()),
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"cache-control: no-store",
            b"x-content-type-options: nosniff",
            b"connection: close",
            *[name + b": " + value for name, value in self.headers],
        ]
        return b"\r\n".join([*lines, b"", body])


@final
@dataclass(frozen=True, slots=True)
class Upgrade:
    """A request that becomes a WebSocket.

    Attributes:
        frames: The state of the WebSocket.
        answer: The response.
        origin: Of the page; None for a client that is no browser.
    """

    frames: Connection
    answer: bytes
    origin: str | None


def path_of(request: h11.Request) -> bytes:
    """Return the path of a request, without its query."""
    return bytes(request.target).partition(b"?")[0]


def origin_of(request: h11.Request) -> str | None:
    """Return the origin of the page that sent a request. None for a client that is no browser; `null` for a page without one."""
    found = [value.decode("latin-1") for name, value in request.headers if name == b"origin"]
    return found[0] if len(set(found)) == 1 else ("null" if found else None)


def wants_upgrade(request: h11.Request) -> bool:
    """Return True if a request asks for a WebSocket."""
    return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in request.headers)


def forbidden_origin(origin: str | None, origins: Collection[str]) -> Refusal | None:
    """Return the answer to a page whose origin is not on the list; None if it is, or the client is no browser."""
    if origin is None or origin in origins:
        return None
    shown = origin[:ORIGIN_CHARACTERS_MAX]
    detail = f"pages of {shown!r} may not connect here; an operator can list the origin in [web] origins"
    return Refusal(HTTPStatus.FORBIDDEN, "cross-site", detail, origin=shown)


def validate(request: h11.Request, origins: Collection[str]) -> Upgrade | Refusal:
    """Decide about a request for a WebSocket.

    Args:
        request: The request, whose path is `STOMP_PATH`.
        origins: Of the pages that may connect.
    """
    if request.method != b"GET":
        return Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "method-not-allowed", "use GET", ((b"allow", b"GET"),))
    if not wants_upgrade(request):
        return Refusal(
            HTTPStatus.UPGRADE_REQUIRED,
            "upgrade-required",
            "this path is for WebSockets with the subprotocol v12.stomp or v11.stomp",
            ((b"upgrade", b"websocket"),),
        )
    origin = origin_of(request)
    forbidden = forbidden_origin(origin, origins)
    if forbidden is not None:
        return forbidden
    handshake = H11Handshake(ConnectionType.SERVER)
    try:
        handshake.initiate_upgrade_connection(list(request.headers), bytes(request.target))
        (asked,) = handshake.events()
        assert isinstance(asked, Request)  # noqa: S101 - a request was put in
    except RemoteProtocolError as error:
        hint = error.event_hint
        status = HTTPStatus(getattr(hint, "status_code", HTTPStatus.BAD_REQUEST))
        return Refusal(status, "bad", f"not a WebSocket handshake: {error}", ((b"sec-websocket-version", b"13"),))
    except (LocalProtocolError, UnicodeError, ValueError, h11.ProtocolError):  # a Host in letters that IDNA forbids
        return Refusal(HTTPStatus.BAD_REQUEST, "bad", "not a WebSocket handshake; correct its headers")
    subprotocol = next((one for one in _SUBPROTOCOLS if one in asked.subprotocols), None)
    if subprotocol is None:
        return Refusal(
            HTTPStatus.BAD_REQUEST,
            "no-common-version",
            f"expected Sec-WebSocket-Protocol with {' or '.join(_SUBPROTOCOLS)}",
        )
    answer = handshake.send(AcceptConnection(subprotocol=subprotocol))  # without extensions, so nothing is compressed
    frames = handshake.connection
    assert frames is not None  # noqa: S101 - it was accepted
    return Upgrade(frames, answer, origin)

"""Values over HTTP on the web listener: the routes of values, for clients with a ticket or token instead of a certificate.

The credentials are in `Authorization: Bearer`. A ticket is for one request. Pages of the listed origins may read the answers.
"""

import time
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Final, final

import trio
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from maxam.api.answers import Answer, ApiError, problem
from maxam.api.application import make_values_application
from maxam.api.http1 import HttpConnection, Waits
from maxam.api.listener_limits import ListenerLimits
from maxam.api.values.reader import Reader
from maxam.api.view import View
from maxam.errors import ProtocolError
from maxam.gateway.server import Gateway
from maxam.gateway.tls import TlsSocket, TransportClosedError
from maxam.gateway.web import ServeValues, WebListener

_ALLOWED: Final = [
    (b"access-control-allow-headers", b"authorization, if-none-match, last-event-id"),
    (b"access-control-allow-methods", b"GET"),
    (b"access-control-expose-headers", b"etag"),
    (b"access-control-max-age", b"600"),
    (b"vary", b"origin"),
]
_BEARER: Final = "bearer "


def values_of(gateway: Gateway, web: WebListener) -> ServeValues:
    """Return the function that serves the HTTP requests of one connection, from the bytes received first, to its end."""
    limits = ListenerLimits(name="web")
    waits = Waits(limits)
    application = _Shared(make_values_application(View(gateway), partial(_reader, gateway, web)), web.origins)

    async def serve(connected: TlsSocket | trio.SocketStream, held: bytes, host: str, port: int) -> None:
        stream = _Stream(connected, held, limits.write_timeout_s) if isinstance(connected, TlsSocket) else connected
        await HttpConnection(application, stream, ((host, port), ("", 0)), {}, limits, waits).run()

    return serve


def _reader(gateway: Gateway, web: WebListener, request: Request) -> Reader:
    given = request.headers.get("authorization", "")
    if given[: len(_BEARER)].lower() != _BEARER:
        raise ApiError(
            HTTPStatus.UNAUTHORIZED, "unauthenticated", "expected Authorization: Bearer with a ticket or token"
        )
    secret = given[len(_BEARER) :].strip().encode()
    login = b"jwt" if secret.count(b".") == 2 else b"ticket"
    try:
        grant = web.grant_of(login, secret, request.headers.get("origin"), time.time())
    except ProtocolError as error:
        code = dict(error.headers).get(b"code", b"busy").decode()
        raise ApiError(HTTPStatus.UNAUTHORIZED, code, error.detail) from error
    grants = gateway.access.grants

    def denial() -> tuple[str, str] | None:
        failure = grants.problem(grant, time.time())
        return None if failure is None else ("forbidden", f"{failure.message}: {failure.detail}")

    return Reader(grant.identity, lambda: grant.rights, denial, grant.rights)


@final
class _Shared:
    """An ASGI application whose answers pages of some origins may read. Those of others are refused.

    Spec: Fetch "CORS protocol"
    """

    def __init__(self, application: ASGIApp, origins: tuple[str, ...]) -> None:
        self._application: Final = application
        self._origins: Final = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        origins = {value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"}
        origin = next(iter(origins), None)
        if len(origins) > 1 or (origin is not None and origin not in self._origins):
            detail = "pages of this origin may not connect here; an operator can list it in [web] origins"
            await Answer(problem("cross-site", detail), HTTPStatus.FORBIDDEN)(scope, receive, send)
            return
        shared = [] if origin is None else [(b"access-control-allow-origin", origin.encode()), *_ALLOWED]

        async def send_shared(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *shared]}
            await send(message)

        if scope["method"] == "OPTIONS" and shared:
            await Answer({}, HTTPStatus.OK)(scope, receive, send_shared)
            return
        await self._application(scope, receive, send_shared)


@final
class _Stream(trio.abc.HalfCloseableStream):
    """A TLS connection of the gateway as a stream of trio."""

    def __init__(self, tls: TlsSocket, held: bytes, write_timeout_s: float) -> None:
        self._tls: Final = tls
        self._held = held
        self._write_timeout_s: Final = write_timeout_s
        self._closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive bytes; none at the end."""
        held, self._held = self._held, b""
        if held:
            await trio.lowlevel.checkpoint()
            return held
        try:
            while not self._closed and (data := await self._tls.receive(max_bytes or 16_384)) is not None:
                if data:
                    return data
        except (OSError, TransportClosedError) as error:
            raise trio.BrokenResourceError from error
        return b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if self._closed:
            raise trio.ClosedResourceError
        try:
            await self._tls.flush(self._write_timeout_s)
            if not self._tls.send(data):
                await self._tls.flush(self._write_timeout_s)
        except (OSError, TransportClosedError) as error:
            raise trio.BrokenResourceError from error
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait for room."""
        try:
            await self._tls.wait_room(self._write_timeout_s)
        except (OSError, TransportClosedError) as error:
            raise trio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """End TLS: the caller discards what still arrives."""
        with suppress(OSError, TransportClosedError):
            await self._tls.linger()

    async def aclose(self) -> None:
        """End sending and receiving. The owner of the connection closes the socket."""
        self._closed = True
        await trio.lowlevel.checkpoint()

"""HTTP/1.1 over one TLS connection: h11 parses and writes it, an ASGI application answers.

The server speaks HTTP/1.1 and HTTP/1.0 only: requests to upgrade are ignored, except those for a WebSocket. The caller answers these, or
they are refused. Every wait for a peer has a limit:

* The head of a request must be complete `request_head_timeout_s` after the accept or after the last response.
* A write must make room within `write_timeout_s`. Once the listener stops, it must end within `graceful_timeout_s`.
* A peer that is answered before it has sent its whole request may read the answer for `linger_timeout_s`. To close the connection at
  once would discard the answer.

Spec: ASGI 3.0 "HTTP & WebSocket ASGI Message Format"
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, final
from urllib.parse import unquote

import h11
import trio
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message

from maxam.api.listener_limits import ListenerLimits
from maxam.gateway.log import log_bug
from maxam.gateway.web_upgrade import wants_upgrade

RECEIVE_BYTES_MAX: Final = 16_384  # one TLS record
WRITE_BYTES_MAX: Final = 65_536  # encrypted at once, and written within one time limit
PIPELINED_BYTES_MAX: Final = (
    65_536  # of later requests that are held while one is answered; the rest stays in the socket
)
CARRIER: Final = "carrier"  # key in the ASGI scope's state: a `Carrier`

_Stream = Any  # trio.SSLStream, or what has its methods
_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


@final
@dataclass(frozen=True, slots=True)
class Carrier:
    """The connection of a long response.

    Attributes:
        taken: Return when all but some KiB of the written bytes have left. A peer that takes nothing for `write_timeout_s` is closed.
        stopping: Set when the listener stops, and responses are to end.
    """

    taken: Callable[[], Awaitable[None]]
    stopping: trio.Event


@final
class Waits:
    """The time limits of all connections of a listener, and its stop.

    Attributes:
        stopping: Set once the listener stops.
    """

    def __init__(self, limits: ListenerLimits) -> None:
        self.stopping: Final = trio.Event()
        self._limits: Final = limits
        self._idle: Final[dict[trio.CancelScope, None]] = {}
        self._writes: Final[dict[trio.CancelScope, None]] = {}
        self._write_until_s = math.inf

    @contextmanager
    def head(self) -> Iterator[None]:
        """Limit the wait for the head of a request; raises trio.TooSlowError."""
        timeout_s = -math.inf if self.stopping.is_set() else self._limits.request_head_timeout_s
        with self._one(self._idle, trio.current_time() + timeout_s, shield=False):
            yield

    @contextmanager
    def write(self, *, shield: bool) -> Iterator[None]:
        """Limit a write; raises trio.TooSlowError."""
        deadline_s = min(trio.current_time() + self._limits.write_timeout_s, self._write_until_s)
        with self._one(self._writes, deadline_s, shield=shield):
            yield

    @contextmanager
    def _one(self, scopes: dict[trio.CancelScope, None], deadline_s: float, *, shield: bool) -> Iterator[None]:
        scope = trio.CancelScope(deadline=deadline_s, shield=shield)
        scopes[scope] = None
        try:
            with scope:
                yield
        finally:
            del scopes[scope]
        if scope.cancelled_caught:
            raise trio.TooSlowError

    def stop(self) -> None:
        """End idle connections now, and writes under way within `graceful_timeout_s`."""
        self.stopping.set()
        for scope in self._idle:
            scope.cancel()
        self._write_until_s = trio.current_time() + self._limits.graceful_timeout_s
        for scope in self._writes:
            scope.deadline = min(scope.deadline, self._write_until_s)


@final
class HttpConnection:
    """One connection whose TLS handshake is complete.

    Attributes:
        upgrade: The request for a WebSocket with which `run` has ended. None if it has ended otherwise.
    """

    def __init__(
        self,
        application: ASGIApp,
        stream: _Stream,
        addresses: tuple[tuple[str, int], tuple[str, int]],
        state: Mapping[str, object],
        limits: ListenerLimits,
        waits: Waits,
        upgrades: bool = False,
    ) -> None:
        """Take over a connection.

        Args:
            application: The application that answers.
            stream: The connection. The caller closes it after `run`.
            addresses: Host and port of the client and of the server.
            state: Part of the `state` of each request's scope.
            limits: Limits of the peer.
            waits: Time limits, common to all connections of the listener.
            upgrades: A request for a WebSocket ends `run`. It is refused otherwise.
        """
        self._upgrades: Final = upgrades
        self._application: Final = application
        self._stream: Final = stream
        self._addresses: Final = addresses
        self._state: Final = {**state, CARRIER: Carrier(self._taken, waits.stopping)}
        self._limits: Final = limits
        self._waits: Final = waits
        self._writing: Final = trio.Lock()
        self._left: Final = trio.Event()  # the peer sends nothing more, or was closed
        self._http: Final = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.request_head_bytes_max)
        self.upgrade: h11.Request | None = None
        self._method = ""  # of the request under way
        self._start: Message | None = None  # of its response, to be written with the first part of the body

    async def run(self) -> None:
        """Serve requests until the connection is to be closed."""
        with suppress(trio.TooSlowError, h11.RemoteProtocolError):
            while await self._serve_one():
                self._http.start_next_cycle()
        if self.upgrade is None and not self._left.is_set() and self._http.their_state in {h11.SEND_BODY, h11.ERROR}:
            with trio.move_on_after(self._limits.linger_timeout_s), suppress(*_BROKEN):
                transport: _Stream = getattr(self._stream, "transport_stream", self._stream)
                await transport.send_eof()
                while await self._stream.receive_some(RECEIVE_BYTES_MAX):
                    pass

    async def _serve_one(self) -> bool:
        """Serve one request. Return True if the connection may have another; raises trio.TooSlowError."""
        try:
            with self._waits.head():
                request = await self._next_event()
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)
            return False
        if not isinstance(request, h11.Request):
            return False
        if self._upgrades and wants_upgrade(request):
            self.upgrade = request
            return False
        refusal = _refusal(request)
        if refusal is not None:
            await self._refuse(refusal)
            return False
        self._method, self._start = request.method.decode("ascii").upper(), None
        try:
            with suppress(ClientDisconnect):  # the peer left in the middle of its request
                await self._application(self._scope(request), self._receive, self._send)
        except Exception as error:  # noqa: BLE001 a bug that one request meets must not end the connection
            log_bug("internal-error", error, listener=self._limits.name)
        if self._http.our_state is h11.SEND_RESPONSE and not self._left.is_set():
            await self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR)
        while self._http.their_state is h11.SEND_BODY and isinstance(self._http.next_event(), h11.Data):
            pass  # an unread part of the body that is already here
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    @property
    def held(self) -> bytes:
        """Bytes that came after the last request."""
        return self._http.trailing_data[0]

    def _scope(self, request: h11.Request) -> dict[str, Any]:
        path, _, query = request.target.partition(b"?")
        client, server = self._addresses
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.1"},
            "http_version": request.http_version.decode(),
            "method": self._method,
            "scheme": "https",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": client,
            "server": server,
            "state": dict(self._state),
            "extensions": {},
        }

    async def _receive(self) -> Message:
        """Return the next part of the request's body, or wait until the peer has left: `receive` of ASGI."""
        if self._http.their_state is h11.SEND_BODY:
            event: object = None
            with suppress(h11.RemoteProtocolError):
                event = await self._next_event()
            if isinstance(event, h11.Data):
                return {"type": "http.request", "body": bytes(event.data), "more_body": True}
            if isinstance(event, h11.EndOfMessage):
                return {"type": "http.request", "body": b"", "more_body": False}
        else:
            while len(self._http.trailing_data[0]) < PIPELINED_BYTES_MAX and await self._read():
                pass
            await self._left.wait()
        return {"type": "http.disconnect"}

    async def _next_event(self) -> object:
        """Return the next h11 event, or None if the peer has left; raises h11.RemoteProtocolError."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            if not await self._read():
                return None
        return event

    async def _read(self) -> bool:
        """Receive once. Return False if the peer has left."""
        try:
            data = await self._stream.receive_some(RECEIVE_BYTES_MAX)
        except _BROKEN:
            data = b""
        if data:
            self._http.receive_data(bytes(data))
        else:
            self._left.set()
        return bool(data)

    async def _send(self, message: Message) -> None:
        """Write a part of the response, unless the peer has left: `send` of ASGI."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._left.is_set():
            return
        parts: list[bytes | None] = []
        if self._start is not None:
            headers = [*self._start["headers"], _date()]
            parts.append(self._http.send(h11.Response(status_code=self._start["status"], headers=headers)))
            self._start = None
        body = message.get("body", b"")
        if body and self._method != "HEAD":
            parts.append(self._http.send(h11.Data(data=body)))
        if not message.get("more_body", False):
            parts.append(self._http.send(h11.EndOfMessage()))
        await self._write(b"".join([part for part in parts if part]))

    async def _refuse(self, status: int) -> None:
        """Answer with a status alone, after which the connection is closed."""
        headers = [(b"content-length", b"0"), (b"connection", b"close"), _date()]
        data = self._http.send(h11.Response(status_code=status, headers=headers)) or b""
        await self._write(data + (self._http.send(h11.EndOfMessage()) or b""))

    async def _write(self, data: bytes | None) -> None:
        rest = memoryview(data or b"")
        async with self._writing:
            try:
                while rest:
                    with self._waits.write(shield=True):
                        await self._stream.send_all(rest[:WRITE_BYTES_MAX])
                    rest = rest[WRITE_BYTES_MAX:]
            except (*_BROKEN, trio.TooSlowError):
                await self._cut()

    async def _taken(self) -> None:
        """Wait until the written bytes have left, except those that the kernel may hold unsent (trio sets 16 KiB)."""
        async with self._writing:
            try:
                with self._waits.write(shield=False):
                    await self._stream.wait_send_all_might_not_block()
            except (*_BROKEN, trio.TooSlowError):
                await self._cut()

    async def _cut(self) -> None:
        """Close the connection of a peer that takes nothing, or has gone."""
        self._left.set()
        await trio.aclose_forcefully(self._stream)


def _refusal(request: h11.Request) -> HTTPStatus | None:
    """Return why no application may answer a request, or None.

    Proxies could read a request that gives its length in two ways as two requests.

    Spec: RFC 9112 "6.1. Transfer-Encoding"
    """
    names = {name for name, _ in request.headers}
    if request.http_version not in (b"1.0", b"1.1"):
        return HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
    if {b"transfer-encoding", b"content-length"} <= names:
        return HTTPStatus.BAD_REQUEST
    if wants_upgrade(request):
        return HTTPStatus.NOT_IMPLEMENTED
    return None


def _date() -> tuple[bytes, bytes]:
    return b"date", formatdate(usegmt=True).encode()

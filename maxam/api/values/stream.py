"""A stream of server-sent events with the values of topics: a transient subscription of the broker.

Theory of operation. The stream connects to the broker as a STOMP client does, in ack mode auto, with markers and with JSON. So rights,
conflation, limits and positions are those of a subscription. Values are read from the store when the bytes before them have left. A slow
reader costs a set of topics and no memory for values. The frames that the broker hands out become events here.
"""

import secrets
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, final

import trio

from maxam.api.answers import ApiError
from maxam.api.values.reader import Reader
from maxam.api.values.rows import change_facts, value_text
from maxam.api.view import View
from maxam.avro.json.decoding import json_text
from maxam.avro.json.selection import Fields
from maxam.broker.outbox import Outbox
from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.records import GATEWAY, Change
from maxam.stomp.events import VERSION_1_2, Connect, Subscribe, SubscribeOptions
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame

BEAT_S: Final = 2.0  # between two checks of rights: with the time to notice and load a changed file, below 5 s
PING_S: Final = 12.0  # proxies close a connection that is silent for longer
CLIENT_ID_PREFIX: Final = "http-"
_ID: Final = b"values"
_ANY: Final = 2**30
# The broker's own frames, whose headers are those of a SEND and its own
_WIDE: Final = Limits(
    frame_headers_max=_ANY,
    frame_header_line_bytes_max=_ANY,
    frame_headers_bytes_max=_ANY,
    frame_body_bytes_max=_ANY,
)
_MARKER: Final = b"$marker"
_RETRY: Final = b"retry: 2000\n\n"
_PING: Final = b": ping\n\n"
_CODES: Final = {
    "bad selector": "invalid-selector",
    "bad fields": "invalid-parameter",
    "bad destination": "invalid-glob",
}


@final
class ValueStream:
    """One stream of one reader."""

    def __init__(self, view: View, reader: Reader, glob: str, fields: Fields, options: SubscribeOptions) -> None:
        """Prepare a stream.

        Args:
            view: The gateway.
            reader: The client.
            glob: Destinations of the topics.
            fields: Paths of the fields to show. Empty for all.
            options: Headers of the SUBSCRIBE: JSON with markers.
        """
        self._view: Final = view
        self._reader: Final = reader
        self._glob: Final = glob
        self._fields: Final = fields
        self._options: Final = options
        self._decoder: Final = Decoder(_WIDE, SERVER_COMMANDS)
        self._connection: Outbox | None = None
        self._woken = trio.Event()

    def open(self) -> None:
        """Subscribe; raises ApiError. `close` must follow."""
        gateway, reader = self._view.gateway, self._reader
        broker = gateway.broker
        name = CLIENT_ID_PREFIX + secrets.token_hex(16)
        connect = Connect(VERSION_1_2, b"", name, None, (0, 0))
        subscribe = Subscribe(_ID, self._glob.encode(), False, False, True, None, False, self._options)
        now_s = trio.current_time()
        connection: Outbox | None = None
        try:
            connection = broker.connect(connect, reader.identity, name, self._wake, now_s, reader.granted)
            broker.subscribe(connection, subscribe, time.time_ns() // 1000)
        except ProtocolError as error:
            if connection is not None:
                broker.detach(connection, now_s)
            code = _CODES.get(error.message)
            if code is None:
                raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "busy", error.detail) from error
            raise ApiError(HTTPStatus.BAD_REQUEST, code, error.detail) from error
        finally:
            gateway.committer.schedule_commit()
        self._decoder.expect(SERVER_COMMANDS, VERSION_1_2)
        self._connection = connection
        broker.end_of_input(connection)

    def close(self) -> None:
        """End the subscription."""
        if self._connection is not None:
            self._view.gateway.broker.detach(self._connection, trio.current_time())
            self._connection = None
            self._view.gateway.committer.schedule_commit()

    def _wake(self) -> None:
        self._woken.set()

    async def run(self, write: Callable[[bytes], Awaitable[None]], taken: Callable[[], Awaitable[None]]) -> None:
        """Write events until the reader may no longer read, or the broker ends the stream.

        Args:
            write: Writes bytes of the stream.
            taken: Returns when nearly all written bytes have left.
        """
        connection = self._connection
        assert connection is not None  # noqa: S101 - `open` came before
        await write(_RETRY)
        last_s = check_s = trio.current_time()
        while True:
            await taken()
            now_s = trio.current_time()
            ended = None if connection.failure is None else ("closed", connection.failure.detail)
            if ended is None and now_s >= check_s:
                check_s = now_s + BEAT_S
                ended = self._reader.denial()
            if ended is not None:
                await write(_event(b"ended", json_text({"code": ended[0], "detail": ended[1]})))
                return
            self._woken = trio.Event()
            connection.probe(now_s)
            data = self._events(connection.drain(now_s))
            if not data and now_s - last_s >= PING_S:
                data = _PING
            if data:
                last_s = now_s
                await write(data)
                continue
            due_s = connection.due_s
            with trio.move_on_at(check_s if due_s is None else min(check_s, due_s)):
                await self._woken.wait()

    def _events(self, parts: list[bytes]) -> bytes:
        """Return the frames that the broker has handed out now as events."""
        frames = list(self._decoder.feed(b"".join(parts))) if parts else []
        return b"".join([self._event(frame) for frame in frames if frame.command == b"MESSAGE"])

    def _event(self, frame: Frame) -> bytes:
        headers = frame.headers
        destination, kind = headers[b"destination"], headers.get(b"kind", b"")
        if destination == _MARKER:
            return self._marker(headers)
        if headers[b"message-id"] == b"0":  # a notice
            facts = {"destination": destination.decode(), "reason": headers[b"reason"].decode()}
            return _event(b"deleted" if kind == b"left" else kind, json_text(facts))
        change = self._view.gateway.broker.store.topics[destination].change
        assert change.revision == int(headers[b"message-id"])  # noqa: S101 - it was read from there in this step
        if change.deleted or kind == b"left":
            return _event(b"deleted", json_text(_without_schema(change) | {"reason": _reason(change)}))
        values = self._view.gateway.broker.json_values
        return _event(b"value", value_text(values, change, self._reader.rights().pii, self._fields))

    def _marker(self, headers: dict[bytes, bytes]) -> bytes:
        """Return the event of a marker. Its id is the position from which the next stream can go on."""
        position = headers.get(b"position", b"")
        identified = b"id: " + position + b"\n" if position else b""
        if headers[b"kind"] != b"complete":
            return identified + b"\n" if position else b""  # without data it is no event for the reader
        whole = self._options.since is None or b"result" in headers
        facts = {"count": int(headers[b"count"]), "whole": whole}
        return identified + _event(b"sync", json_text(facts))


def _reason(change: Change) -> str:
    if not change.deleted:
        return "selector"
    return "expired" if change.publisher.principal == GATEWAY.principal else "deleted"


def _without_schema(change: Change) -> dict[str, object]:
    return {name: fact for name, fact in change_facts(change).items() if name != "schema"}


def _event(name: bytes, data: bytes) -> bytes:
    """Return one event. Its data is one line of JSON, in which line ends are escaped."""
    return b"event: %b\ndata: %b\n\n" % (name, data)

"""Accepting: how many connections there is room for, and what happens when accept or a new connection fails."""

import errno
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from maxam.api.listener import serve_https
from maxam.api.listener_limits import ListenerLimits
from maxam.config import LISTENER_PLACES, Limits
from maxam.gateway.listener import AcceptFailures, Acceptor, affordable_connections
from maxam.gateway.log import LogLimit


def test_connections_leave_room_for_other_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the files that the system allows 64 and the places of the other listeners are kept, and at least one connection remains."""
    monkeypatch.setattr(resource, "setrlimit", lambda _which, _limits: None)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1000, 1000))
    assert affordable_connections(10_000, 2 * LISTENER_PLACES) == 1000 - 64 - 2 * LISTENER_PLACES
    assert affordable_connections(10, LISTENER_PLACES) == 10
    assert affordable_connections(10, 2000) == 1


def test_the_places_of_a_listener_are_those_that_files_are_kept_for() -> None:
    """The connections of the admin listener and those in their handshake are `LISTENER_PLACES` together."""
    assert 2 * ListenerLimits().connections_max == LISTENER_PLACES


class Listening:
    """A listening socket whose accept fails in given ways before it gives real sockets."""

    def __init__(self, failures: list[OSError]) -> None:
        self._real = socket.create_server(("127.0.0.1", 0))
        self._real.setblocking(False)
        self._failures = failures
        self.address = self._real.getsockname()

    def accept(self) -> tuple[socket.socket, Any]:
        """Fail, or accept."""
        if self._failures:
            raise self._failures.pop(0)
        return self._real.accept()

    def fileno(self) -> int:
        """Where a connection shows."""
        return self._real.fileno()

    def close(self) -> None:
        """Close."""
        self._real.close()


def accept(
    failures: list[OSError], accepted: Callable[[socket.socket, str, int], None], clients: int
) -> AcceptFailures:
    """Accept until N clients were closed by the gateway; return the failures that were counted."""
    counted = AcceptFailures(LogLimit(60))

    async def test() -> None:
        listening = Listening(failures)
        acceptor = Acceptor(cast("socket.socket", listening), Limits(), counted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acceptor.run, accepted)
            for _ in range(clients):
                async with await trio.open_tcp_stream(*listening.address) as client:
                    assert await client.receive_some() == b""
            nursery.cancel_scope.cancel()

    trio.run(test, clock=MockClock(autojump_threshold=0.01))
    return counted


def close(connected: socket.socket, _host: str, _port: int) -> None:
    """Close a new connection at once."""
    connected.close()


def test_accept_goes_on_when_no_sockets_are_left(caplog: pytest.LogCaptureFixture) -> None:
    """Exhaustion pauses accepting, is counted, logged and shown by health for a minute; the fate of one connection is none of these."""
    failures = [OSError(errno.EMFILE, "Too many open files"), OSError(errno.ECONNABORTED, "aborted")]
    with caplog.at_level(logging.ERROR, "maxam"):
        counted = accept(failures, close, 3)
    assert counted.count == 1
    assert caplog.text.count("accept-paused ") == 1
    counted.take("admin", OSError(errno.ENFILE, "Too many open files in system"), 1000.0)
    assert [line.partition(":")[0] for line in counted.degraded(1059.0)] == ["accept-paused"]
    assert counted.degraded(1061.0) == []


def test_a_connection_that_cannot_be_made_is_closed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An `ssl.SSLError`, which is an OSError, in the making of a connection closes its socket and is logged as a bug."""

    def fail(_connected: socket.socket, _host: str, _port: int) -> None:
        raise ssl.SSLError("no context")

    with caplog.at_level(logging.ERROR, "maxam"):
        assert accept([], fail, 2).count == 0
    assert caplog.text.count("internal-error ") == 2


def test_the_admin_listener_goes_on_when_no_sockets_are_left(caplog: pytest.LogCaptureFixture) -> None:
    """While accept fails, the admin listener logs lines within the limit of a minute, without tracebacks, and then serves."""
    counted = AcceptFailures(LogLimit(5))

    async def test() -> None:
        real = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        address = real.socket.getsockname()
        original, failures = real.accept, 50

        async def failing() -> trio.SocketStream:
            nonlocal failures
            if failures:
                failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return await original()

        real.accept = failing  # type: ignore[method-assign]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: serve_https(cast("Any", None), [real], lambda: context, failures=counted))
            async with await trio.open_tcp_stream(*address) as client:
                await client.send_all(b"GET / HTTP/1.1\r\n\r\n")
                while await client.receive_some():
                    pass
            nursery.cancel_scope.cancel()

    with caplog.at_level(logging.WARNING):
        trio.run(test, clock=MockClock(autojump_threshold=0.01))
    assert counted.count == 50
    assert caplog.text.count("accept-paused ") == 5
    assert "Traceback" not in caplog.text

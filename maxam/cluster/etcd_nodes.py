"""Connections to the nodes of etcd: one request at a time at the node that answered last, else at the next one.

All nodes serve the same store, so any of them may answer. A request that fails at one node is sent again to the next one until its
time is up. This is safe because every request here either has no effect, or compares the head with what the caller last saw.

gRPC's library is used synchronously. Its calls block a thread of ours, and trio never meets it. Its own repetitions are off.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar, final

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the library writes lines of its own to standard error

import grpc  # it reads the variable when it is loaded

from maxam.client_tls import client_context
from maxam.cluster.etcd_messages import (
    STATUS,
    STATUS_REQUEST,
    WATCH,
    StatusAnswer,
    WatchAnswer,
    status_answer,
    watch_answer,
)
from maxam.cluster.log import LogError, LogLostError
from maxam.errors import ConfigurationError

T = TypeVar("T")

_PAUSE_S: Final = 0.05  # between tries, doubled up to _PAUSE_S_MAX
_PAUSE_S_MAX: Final = 0.5
_STATUS_S: Final = 1.0
_WAITING_MAX: Final = 4  # messages of a watch that wait for their reader; etcd keeps the others
_CLOSED: Final = "the connections to etcd are closed"
_SCHEME: Final = "https://"
_WITH_LEADER: Final = (("hasleader", "true"),)  # etcd ends a watch at a node that is cut off from the others
_OPTIONS: Final = (
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a log that is closed leaves no connection to the next one
    ("grpc.max_receive_message_length", -1),  # requests set the bound
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.keepalive_time_ms", 10_000),  # etcd refuses less than 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
# Texts with which etcd refuses a request. Any other error leaves the outcome open.
_TOO_LARGE: Final = ("request is too large", "received message larger than max")
_NO_SPACE: Final = "database space exceeded"
_COMPACTED: Final = "required revision has been compacted"


@final
class RefusedError(LogError):
    """A node refused a request.

    Attributes:
        too_large: The request is larger than the node accepts. It had no effect.
        no_space: etcd is over its quota. The request may have taken effect all the same: when it is the one that reached the quota.
        alone: No earlier try of this call is under way.
        address: Address of the node.
    """

    def __init__(self, text: str, address: str, *, alone: bool) -> None:
        self.too_large: Final = any(one in text for one in _TOO_LARGE)
        self.no_space: Final = _NO_SPACE in text
        self.alone: Final = alone
        self.address: Final = address
        super().__init__(f"{address} refuses a request: {text}")


@final
class Node:
    """A connection to one node, which is made when it is needed.

    Attributes:
        address: `https://host:port`.
    """

    __slots__ = ("_channel", "_methods", "address")

    def __init__(self, address: str, credentials: grpc.ChannelCredentials) -> None:
        host, colon, port = address.removeprefix(_SCHEME).rstrip("/").rpartition(":")
        if not address.startswith(_SCHEME) or not colon or not host or not port.isdecimal():
            raise ConfigurationError(f"endpoint {address!r} of etcd: expected https://host:port")
        self.address: Final = address
        self._channel: Final = grpc.secure_channel(f"{host}:{port}", credentials, options=_OPTIONS)
        self._methods: Final[dict[str, grpc.UnaryUnaryMultiCallable]] = {}

    def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Send a request and wait for the answer. Raises grpc.RpcError."""
        answer: bytes = self._method(method)(request, timeout=timeout_s)
        return answer

    def begin(self, method: str, request: bytes, timeout_s: float) -> grpc.Future:
        """Send a request; return the future of its answer. Raises LogLostError: the connection is closed."""
        try:
            return self._method(method).future(request, timeout=timeout_s)
        except ValueError as error:
            raise LogLostError(_CLOSED) from error

    def watch(self, requests: Iterator[bytes]) -> grpc.Call:
        """Begin a watch; return the iterator of its messages. Raises LogLostError: the connection is closed."""
        try:
            return self._channel.stream_stream(WATCH)(requests, metadata=_WITH_LEADER)
        except ValueError as error:
            raise LogLostError(_CLOSED) from error

    def close(self) -> None:
        """End the connection and all its calls."""
        self._channel.close()

    def _method(self, method: str) -> grpc.UnaryUnaryMultiCallable:
        found = self._methods.get(method)
        if found is None:
            found = self._methods[method] = self._channel.unary_unary(method)
        return found


@final
class Nodes:
    """The nodes of etcd. Several threads may call at once.

    Attributes:
        failures: Tries to which a node gave no answer.
    """

    def __init__(self, endpoints: Sequence[str], ca: Path, certificate: Path, key: Path) -> None:
        """Read the certificates; nothing is connected yet.

        Args:
            endpoints: `https://host:port` of each node.
            ca: PEM file of the authority that issued the nodes' certificates.
            certificate: PEM file of the own certificate.
            key: PEM file of its key, without a password.

        Raises:
            ConfigurationError: An endpoint is not an address.
            CertificateFileError: A file is missing, unreadable or not PEM of its kind.
        """
        if not endpoints:
            raise ConfigurationError("a cluster needs the endpoints of etcd: set `endpoints` of [cluster]")
        client_context(ca, certificate, key, name_checked=True)  # its errors name the file
        credentials = grpc.ssl_channel_credentials(ca.read_bytes(), key.read_bytes(), certificate.read_bytes())
        self.failures = 0
        self._nodes: Final = tuple(Node(endpoint, credentials) for endpoint in endpoints)
        self._preferred = 0
        self._closed: Final = threading.Event()

    @property
    def closed(self) -> bool:
        """Return True if `close` was called."""
        return self._closed.is_set()

    def __len__(self) -> int:
        return len(self._nodes)

    def call(self, method: str, request: bytes, decode: Callable[[bytes], T], try_s: float, call_s: float) -> T:
        """Return the answer to a request, from the first node that gives one.

        Args:
            method: Path of the method.
            request: Encoded request, which may be sent more than once.
            decode: Decodes the answer.
            try_s: Longest wait for one node.
            call_s: Longest wait in all. If all nodes refuse at once, `try_s` is the longest.

        Raises:
            LogLostError: No node answered. The request may have taken effect.
            RefusedError: A node refused it.
        """
        begins = time.monotonic()
        ends = begins + call_s
        pause_s = _PAUSE_S
        tries = 0
        while True:
            at = self._preferred
            node = self._nodes[at]
            try:
                return decode(node.call(method, request, min(try_s, max(ends - time.monotonic(), _PAUSE_S))))
            except grpc.RpcError as error:
                problem = _problem(error)
                if any(one in problem for one in (*_TOO_LARGE, _NO_SPACE, _COMPACTED)):
                    raise RefusedError(problem, node.address, alone=not tries) from None
            except (ValueError, IndexError) as error:  # a closed channel, or an answer that is none
                problem = str(error) or "an answer that is cut short"
            tries += 1
            self.failures += 1
            self.turn(at)
            now = time.monotonic()
            over = now + pause_s >= ends or (tries >= len(self._nodes) and now - begins >= try_s)
            if over or self._closed.wait(pause_s):
                raise LogLostError(f"etcd at {node.address} gave no answer: {problem}")
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def turn(self, at: int | None = None) -> None:
        """Prefer the next node.

        Args:
            at: Number of the node that failed. Nothing is done if another one is preferred already. None is the preferred one.
        """
        if at is None or at == self._preferred:
            self._preferred = (self._preferred + 1) % len(self._nodes)

    def watch(self, request: bytes) -> "Watch":
        """Begin a watch at the preferred node."""
        return Watch(self._nodes[self._preferred], request)

    def each(self, method: str, request: bytes, timeout_s: float) -> Iterator[tuple[str, bytes | str]]:
        """Send a request to one node after the other; yield address and answer of each, or the problem as text."""
        for node in self._nodes:
            yield node.address, _result(node.begin(method, request, timeout_s))

    def status(self) -> list[tuple[str, StatusAnswer | None]]:
        """Return the address and the state of each node, which are asked at once; None for one that gives no answer."""
        begun = [(node.address, node.begin(STATUS, STATUS_REQUEST, _STATUS_S)) for node in self._nodes]
        states: list[tuple[str, StatusAnswer | None]] = []
        for address, future in begun:
            answer = _result(future)
            try:
                states.append((address, None if isinstance(answer, str) else status_answer(answer)))
            except (ValueError, IndexError):
                states.append((address, None))
        return states

    def close(self) -> None:
        """End all connections and calls."""
        self._closed.set()
        for node in self._nodes:
            node.close()


@final
class Watch:
    """A watch at one node. A context manager: leaving ends it.

    A thread of its own moves its messages into a short queue, because an iterator of gRPC cannot be read with a time limit.
    """

    def __init__(self, node: Node, request: bytes) -> None:
        self._closed: Final = threading.Event()
        self._messages: Final[queue.Queue[bytes | None]] = queue.Queue(_WAITING_MAX)
        self._call: Final = node.watch(self._requests(request))
        self._thread: Final = threading.Thread(target=self._read, name="maxam-etcd-watch", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> WatchAnswer | None:
        """Return the next message; None if there is none within the time. Raises LogLostError: the watch has ended."""
        try:
            message = self._messages.get(timeout=max(timeout_s, 0))
        except queue.Empty:
            return None
        if message is None:
            raise LogLostError("the watch has ended")
        try:
            answer = watch_answer(message)
        except (ValueError, IndexError) as error:
            raise LogLostError("the watch sent an answer that is cut short") from error
        if answer.canceled:
            raise LogLostError(f"etcd has ended the watch: {answer.reason or 'no reason given'}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed.set()
        self._call.cancel()
        self._thread.join()

    def _requests(self, request: bytes) -> Iterator[bytes]:
        yield request
        self._closed.wait()  # etcd ends a watch when its requests end

    def _read(self) -> None:
        try:
            for message in self._call:
                if not self._put(message):
                    return
        except grpc.RpcError:
            pass  # the end of the watch, which its reader notices
        self._put(None)

    def _put(self, message: bytes | None) -> bool:
        while not self._closed.is_set():
            try:
                self._messages.put(message, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False


def _result(future: grpc.Future) -> bytes | str:
    """Return the answer that a future brings, or the problem as text."""
    try:
        answer: bytes = future.result()
    except grpc.RpcError as error:
        return _problem(error)
    except grpc.FutureCancelledError:
        return _CLOSED
    return answer


def _problem(error: grpc.RpcError) -> str:
    """Return the code and the text of an error."""
    if not isinstance(error, grpc.Call):
        return str(error)
    return f"{error.code().name.lower()}: {error.details()}"

"""The listening socket and the sockets it accepts: options, and the reaction when the process has no descriptors left."""

import contextlib
import errno
import logging
import math
import resource
import socket
from collections.abc import Callable
from typing import Final, final

import trio

from maxam.config import Limits, ListenerSettings
from maxam.errors import ConfigurationError
from maxam.gateway.log import LogLimit, log_bug, log_event

_BACKLOG: Final = 1024
_ACCEPTS_PER_PASS: Final = 16
ACCEPT_PAUSE_S: Final = 0.2  # when the process or the machine is out of sockets
_SPARE_FILES: Final = 64  # kept for the journal and the rest, beside the places of other listeners
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_SHOWN_S: Final = 60.0  # after the last failed accept, health shows it for this long


def address_text(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(address: str) -> str:
    """Return an address without its port, which some come without."""
    bare = not address.startswith("[") and address.count(":") != 1
    return address if bare else address.rpartition(":")[0]


def affordable_connections(wanted: int, others: int) -> int:
    """Raise the limit of open files as far as allowed; return how many connections it leaves room for beside `others`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    affordable = wanted if soft == resource.RLIM_INFINITY else min(wanted, max(1, soft - _SPARE_FILES - others))
    if affordable < wanted:
        log_event(
            logging.WARNING,
            "connections-limited",
            wanted=wanted,
            affordable=affordable,
            action="raise the limit of files",
        )
    return affordable


def listen(settings: ListenerSettings, section: str = "listener") -> socket.socket:
    """Open the listening socket of a section of the configuration.

    Raises:
        ConfigurationError: The address cannot be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"[{section}] host and port: cannot listen on {address_text(settings.host, settings.port)}:"
            f" {error.strerror}; is another gateway running, or the address not of this machine?"
        ) from error
    listening.setblocking(False)
    return listening


@final
class AcceptFailures:
    """Counts accepts that failed because no sockets were left, of all listeners of the gateway.

    Attributes:
        count: Since the start.
    """

    def __init__(self, log_limit: LogLimit) -> None:
        self.count = 0
        self._log_limit: Final = log_limit
        self._last_s = -math.inf

    def take(self, listener: str, error: OSError, now_s: float) -> bool:
        """Count and log an error of accept, and return True if no sockets are left; return False for another error."""
        if error.errno not in _EXHAUSTED:
            return False
        self.count += 1
        self._last_s = now_s
        if self._log_limit.admit("accept-paused", listener, now_s):
            log_event(logging.ERROR, "accept-paused", listener=listener, error=error.strerror, seconds=ACCEPT_PAUSE_S)
        return True

    def degraded(self, now_s: float) -> list[str]:
        """Return a line for health if an accept failed a short time ago."""
        if now_s - self._last_s > _SHOWN_S:
            return []
        return [
            f"accept-paused: no file descriptors were left for new connections {self.count} times, last"
            f" {now_s - self._last_s:.0f} s ago. Raise the limit of open files (LimitNOFILE of the unit)"
        ]


def prepare(connected: socket.socket, limits: Limits) -> None:
    """Set the options of a client's socket."""
    connected.setblocking(False)
    with contextlib.suppress(OSError):  # the peer may be gone already, and its first read will show that
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Bytes in the kernel are stale when they leave: keep them few, the unsent part of them fewer still.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes_max)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limits.send_unsent_bytes_max)
        # A vanished peer that agreed on no heart-beats is noticed within two minutes.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


@final
class Acceptor:
    """Accepts without ever waiting for a peer, and goes on when no descriptors are left."""

    def __init__(self, listening: socket.socket, limits: Limits, failures: AcceptFailures) -> None:
        self._listening: Final = listening
        self._limits: Final = limits
        self._failures: Final = failures

    async def run(self, accepted: Callable[[socket.socket, str, int], None]) -> None:
        """Call `accepted` with each new socket, its host and port, until cancelled; close the listening socket then."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._listening)
                for _ in range(_ACCEPTS_PER_PASS):
                    try:
                        connected, address = self._listening.accept()
                    except (BlockingIOError, InterruptedError):
                        break
                    except OSError as error:  # no descriptors are left, or the connection ended before it was accepted
                        if self._failures.take("stomp", error, trio.current_time()):
                            await trio.sleep(ACCEPT_PAUSE_S)
                        break
                    try:
                        prepare(connected, self._limits)
                        accepted(connected, address[0], address[1])
                    except Exception as error:  # noqa: BLE001  # a bug met by one connection must not end the others
                        connected.close()
                        log_bug("internal-error", error, address=address_text(address[0], address[1]))
        finally:
            self._listening.close()

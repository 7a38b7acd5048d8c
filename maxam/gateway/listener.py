"""The listening socket and the sockets it accepts: options, and what happens when the process has no more of them."""

import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Callable
from typing import Final, final

import trio

from maxam.config import Limits, ListenerSettings
from maxam.errors import ConfigurationError
from maxam.gateway.log import LogLimit, log_event

_BACKLOG: Final = 1024
_ACCEPTS_PER_PASS: Final = 16
_PAUSE_S: Final = 0.2  # when the process or the machine is out of sockets
_SPARE_FILES: Final = 64  # kept for the journal, the admin listener and the rest
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def address_text(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def affordable_connections(wanted: int) -> int:
    """Raise the limit of open files as far as allowed; return how many connections it leaves room for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    affordable = wanted if soft == resource.RLIM_INFINITY else min(wanted, max(1, soft - _SPARE_FILES))
    if affordable < wanted:
        log_event(
            logging.WARNING,
            "connections-limited",
            wanted=wanted,
            affordable=affordable,
            action="raise the limit of files",
        )
    return affordable


def listen(settings: ListenerSettings) -> socket.socket:
    """Open the listening socket.

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
            f"[listener] host and port: cannot listen on {address_text(settings.host, settings.port)}:"
            f" {error.strerror}; is another gateway running, or the address not of this machine?"
        ) from error
    listening.setblocking(False)
    return listening


@final
class Acceptor:
    """Accepts without ever waiting for a peer, and goes on when there are no more sockets."""

    def __init__(self, listening: socket.socket, limits: Limits, log_limit: LogLimit) -> None:
        self._listening: Final = listening
        self._limits: Final = limits
        self._log_limit: Final = log_limit

    async def run(self, accepted: Callable[[socket.socket, str, int], None]) -> None:
        """Call `accepted` with each new socket, its host and port, until cancelled; close the listening socket then."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._listening)
                try:
                    for _ in range(_ACCEPTS_PER_PASS):
                        connected, address = self._listening.accept()
                        self._prepare(connected)
                        accepted(connected, address[0], address[1])
                except (BlockingIOError, InterruptedError):
                    continue
                except OSError as error:
                    if error.errno in _EXHAUSTED:
                        if self._log_limit.admit("accept-paused", "", trio.current_time()):
                            log_event(logging.ERROR, "accept-paused", error=error.strerror, seconds=_PAUSE_S)
                        await trio.sleep(_PAUSE_S)
                    # anything else is the fate of one connection that ended before it was accepted
        finally:
            self._listening.close()

    def _prepare(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        with contextlib.suppress(OSError):  # the peer may be gone already, and its first read will tell
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # What the kernel holds is stale when it leaves: keep it small, the unsent part of it smaller still.
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._limits.send_buffer_bytes_max)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._limits.send_unsent_bytes_max)
            # A vanished peer that agreed on no heart-beats is noticed within two minutes.
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

"""One client's transport: a reader and a writer task around a ServerConnection, and the deadlines of its beginning and end.

The ServerConnection decides everything that belongs to the protocol. Here are only TLS, time and the order of shutting down. Only the
writer waits while sending. Nothing but the end of the connection cancels it, because half a TLS record makes a stream useless.
"""

import math
import ssl
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from itertools import count
from typing import Final, final

import trio

from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.gateway.auto_reset_event import AutoResetEvent
from maxam.gateway.clock import WallClock
from maxam.gateway.delivery_scheduler import DeliveryScheduler
from maxam.gateway.grants import Grant
from maxam.gateway.log import log_bug
from maxam.gateway.revocation import Chain, read_chain
from maxam.gateway.server_connection import ServerConnection
from maxam.gateway.tls import TlsSocket, TransportClosedError, handshake_problem
from maxam.gateway.web_socket import WebSocket

# One encryption and one send: what a large body may add to the memory of a connection and hold up the loop.
SLICE_BYTES: Final = 65_536
# Fed to the protocol at a time, less after a slow feed: expensive frames (a complex glob takes 1 ms) must not block other
# connections. Inexpensive ones go on until _TURN_S is over: each pause is a batch, and costs an fsync.
FEED_BYTES: Final = 16_384
_SLOW_FEED_BYTES: Final = 512
_TURN_S: Final = 0.005
# A feed is slow if it takes longer than both: this long, and this long for each of its frames. A SEND takes 0.02 ms.
_SLOW_FEED_S: Final = 0.0003
_SLOW_FRAME_S: Final = 0.0001
# A writer that never has to wait lets the others run after so much.
TURN_BYTES: Final = 262_144
_opened: Final = count(1)


def opening_number() -> int:
    """Return the number of the next connection, of whichever listener of this process: they are paged through in this order."""
    return next(_opened)


class Writer(IntEnum):
    """States of the writer of a connection, which decide who sends what becomes due."""

    PARKED = 0  # It sleeps: everything that was due is sent.
    FEEDING = 1  # It sleeps. The reader is feeding bytes to the peer, and nothing has become due by them.
    FED = 2  # The same, but something has become due: the reader sends it after the feed.
    SCHEDULED = 3  # It sleeps, and the scheduler is about to send for it.
    RUNNING = 4  # It runs, or somebody sends for it now, until nothing is due.


# An attribute of a class of constants takes ten times as long.
_PARKED: Final = Writer.PARKED
_FEEDING: Final = Writer.FEEDING
_FED: Final = Writer.FED
_SCHEDULED: Final = Writer.SCHEDULED
_RUNNING: Final = Writer.RUNNING


@final
class Transport:
    """One accepted connection, from its TLS handshake to its end.

    Attributes:
        address: The peer's `host:port`.
        host: The peer's address alone.
        number: In the order of opening, over all listeners.
        opened_at_s: When it was accepted, on the clock of the event loop.
        fingerprint: Its identity; empty before the handshake is complete, and for a client without a certificate.
        grant: Rights of a client without a certificate. None for another one, and before its CONNECT.
        chain: Its certificates as they were verified; empty before the handshake is complete.
        expelled: `expel` was called.
        large_messages: How many messages larger than SLICE_BYTES were begun.
        peer: Its protocol; None before the handshake is complete.
        reason: Why it ended; empty while it lives.
        opened_at_us: The same, microseconds since the epoch.
        tls_version: TLS version and cipher; empty before the handshake is complete.
        bytes_in: Plaintext received.
        bytes_out: Plaintext sent.
    """

    __slots__ = (
        "_clock",
        "_deliveries",
        "_limits",
        "_parked_until_s",
        "_paused",
        "_resume",
        "_scope",
        "_slices",
        "_tls",
        "_writer",
        "_writer_wakeup",
        "address",
        "bytes_in",
        "bytes_out",
        "chain",
        "expelled",
        "fingerprint",
        "grant",
        "host",
        "large_messages",
        "number",
        "opened_at_s",
        "opened_at_us",
        "peer",
        "reason",
        "tls_version",
    )

    def __init__(
        self,
        tls: TlsSocket | WebSocket,
        address: str,
        host: str,
        limits: Limits,
        deliveries: DeliveryScheduler,
        clock: WallClock,
        number: int = 0,
    ) -> None:
        self.address: Final = address
        self.host: Final = host
        self.number: Final = number or opening_number()  # the gateway numbers those that it hands to fronts
        self.opened_at_s: Final = trio.current_time()
        self.opened_at_us: Final = time.time_ns() // 1000
        self.bytes_in = 0
        self.bytes_out = 0
        self.tls_version = ""
        self.fingerprint = ""
        self.chain: Chain = ()
        self.grant: Grant | None = None
        self.expelled = False
        self.large_messages = 0
        self.peer: ServerConnection | None = None
        self.reason = ""
        self._tls: Final = tls
        self._limits: Final = limits
        self._deliveries: Final = deliveries
        self._clock: Final = clock
        self._writer = _RUNNING
        self._writer_wakeup: Final = AutoResetEvent()
        self._parked_until_s = math.inf  # when a writer that sleeps wakes by itself
        self._resume: Final = AutoResetEvent()  # the reader's
        self._paused = False
        self._slices: Final[deque[memoryview]] = deque()  # of a large body under way
        self._scope: Final = trio.CancelScope()  # the whole connection

    async def run(
        self,
        turns: trio.CapacityLimiter,
        make_peer: Callable[[str, Chain, Callable[[], None], float], ServerConnection],
        schedule_commit: Callable[[], None],
        connected: Callable[["Transport"], None],
    ) -> None:
        """Serve the connection to its end; the socket is closed then. Raises only what is a bug.

        Args:
            turns: Limit on costly handshake steps, shared by all connections.
            make_peer: Makes the ServerConnection from fingerprint, chain of certificates, wake-up and time.
            schedule_commit: Called after anything that may have appended to the broker.
            connected: Called once, when CONNECT was accepted.
        """
        try:
            with self._scope:
                if isinstance(self._tls, WebSocket) or await self._handshake(self._tls, turns):
                    peer = make_peer(self.fingerprint, self.chain, self._wake, trio.current_time())
                    self.peer = peer
                    await self._converse(peer, schedule_commit, connected)
                    with trio.move_on_after(self._limits.linger_timeout_s):
                        await self._tls.linger()
        except (OSError, TransportClosedError) as error:
            self._note(str(error))
        finally:
            self._note("cut off")
            self._tls.close(abort=self._scope.cancel_called)

    @property
    def message_under_way(self) -> bool:
        """Whether a large message was begun and is not wholly encrypted yet."""
        return len(self._slices) > 0

    def expel(self, failure: ProtocolError) -> None:
        """End gracefully: what was read is completed and answered, then comes the ERROR. Unauthenticated clients are cut off."""
        self.expelled = True
        if self.peer is None or self.peer.connection is None:
            self.cut(failure.message)
        else:
            self.peer.connection.expel(failure)

    def cut(self, reason: str) -> None:
        """End at once: nothing more is encrypted or admitted."""
        self._note(reason)
        self._slices.clear()
        if self.peer is not None:
            self.peer.cut()  # its tasks may run once more before they are cancelled
        self._scope.cancel()

    def resume(self) -> None:
        """Have reading go on if it may again."""
        self._wake()

    def forget(self) -> None:
        """Let go of the peer, which holds on to us by its wake-up.

        Else each connection that ended would stay, with some 50 KiB of TLS, until the next collection of cycles, which is rare.
        """
        self.peer = None

    def _note(self, reason: str) -> None:
        self.reason = self.reason or reason

    def ping(self, web_socket: WebSocket) -> None:
        """Have a ping sent by the WebSocket of this connection, unless bytes wait for the peer already."""
        if not web_socket.unsent:
            web_socket.ping()
            self._wake()

    async def _handshake(self, tls: TlsSocket, turns: trio.CapacityLimiter) -> bool:
        problem = ""
        with trio.move_on_after(self._limits.tls_handshake_timeout_s) as waited:
            try:
                await tls.handshake(turns, self._limits.tls_handshake_bytes_max)
                self.fingerprint = tls.peer_fingerprint
                self.chain = read_chain(tls.peer_chain)
                self.tls_version = tls.version
            except ssl.SSLError as error:
                problem = handshake_problem(error)
                self._note(problem)  # the peer may reset the connection below
                with trio.move_on_after(self._limits.linger_timeout_s):
                    await tls.linger()  # the peer reads its alert
            except TransportClosedError as error:
                problem = str(error)
            except ValueError as error:  # verified, but it is not known whether it was revoked
                problem = f"client certificate refused: {error}"
        if waited.cancelled_caught and not problem:
            problem = f"TLS handshake not complete within {self._limits.tls_handshake_timeout_s:g} s"
        if problem:
            self._note(problem)
        return not problem

    async def _converse(
        self, peer: ServerConnection, schedule_commit: Callable[[], None], connected: Callable[["Transport"], None]
    ) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, peer, schedule_commit, connected)
                await self._write(peer, schedule_commit)
                nursery.cancel_scope.cancel()
        finally:
            peer.closed(trio.current_time(), self.reason)
            schedule_commit()

    def _lose(self, error: Exception) -> None:
        """End because the transport failed: nothing can be sent."""
        self._note(str(error))
        self._scope.cancel()

    async def _read(
        self, peer: ServerConnection, schedule_commit: Callable[[], None], connected: Callable[["Transport"], None]
    ) -> None:
        announced = False
        feed_bytes = _SLOW_FEED_BYTES
        feeds = self._deliveries.feeds
        slow = False  # the last feed
        sends = 0
        try:
            data = self._tls.decrypt()  # what came with the end of the handshake
            while data is not None:
                self.bytes_in += len(data)
                start = 0
                turn_s = time.perf_counter()  # when this task last let others run
                while start < len(data):
                    if feeds.busy and feeds.over(peer.principal, slow):
                        schedule_commit()
                        await feeds.wait(peer.principal, slow)
                        feed_bytes = _SLOW_FEED_BYTES
                        turn_s = time.perf_counter()
                    began_s = time.perf_counter()
                    if began_s - turn_s > _TURN_S or not peer.receiving:
                        schedule_commit()
                        await self._readable(peer)
                        await trio.lowlevel.checkpoint()
                        turn_s = began_s = time.perf_counter()
                    frames = peer.frames
                    took_s = self._feed(peer, data[start : start + feed_bytes]) - began_s
                    start += feed_bytes
                    slow = took_s > _SLOW_FEED_S and took_s > _SLOW_FRAME_S * (peer.frames - frames)
                    feed_bytes = _SLOW_FEED_BYTES if slow or took_s > _TURN_S else min(feed_bytes * 2, FEED_BYTES)
                    if slow and announced:
                        feeds.spend(peer.principal, took_s)
                    if not announced and peer.connection is not None:
                        announced = True
                        connected(self)
                schedule_commit()
                await self._readable(peer)
                if not announced and peer.connection is not None:  # on a front, which has waited for its session
                    announced = True
                    connected(self)
                data = await self._tls.receive(peer.receive_bytes_max)
                peer.received_bytes = self._tls.received_bytes
                if not data:
                    peer.hear(trio.current_time())  # half a TLS record
                if sends == peer.sends and announced:
                    await self._deliveries.admit_reader()  # publishers do not wait for readers
                sends = peer.sends
        except (OSError, TransportClosedError) as error:
            self._lose(error)
        except ProtocolError as failure:  # of a WebSocket
            peer.close_with(failure, trio.current_time())
            self._run_writer()
        except Exception as error:  # noqa: BLE001  # a bug met by one client must not end the others, and it is logged
            log_bug("internal-error", error, address=self.address)
            self.expel(ProtocolError("internal error", "the broker failed on this frame; its log has the details"))
            self._run_writer()
        else:
            self._note("closed by the client")
            peer.receive_eof(trio.current_time())
            self._run_writer()

    def _feed(self, peer: ServerConnection, data: bytes) -> float:
        """Feed bytes to the peer, and send what they were answered; return when the first of that was done."""
        now_s = trio.current_time()
        if self._writer is _PARKED:
            self._writer = _FEEDING
        try:
            peer.receive_data(data, now_s, self._clock.at(now_s))
        except BaseException:
            self._run_writer()
            raise
        fed_s = time.perf_counter()
        if self._writer is _FEEDING:
            self._writer = _PARKED
        elif self._writer is _FED:
            self._send_for_writer(peer, now_s)
        return fed_s

    def _send_for_writer(self, peer: ServerConnection, now_s: float) -> None:
        """Send what is due while the writer sleeps; let it run if that was not all, or if it would sleep too long."""
        self._writer = _RUNNING
        if self._send_due(peer, now_s) and not peer.finished:
            due_s = peer.next_due_s
            if due_s is None or due_s >= self._parked_until_s:
                self._writer = _PARKED
                return
        self._run_writer()

    def _send_scheduled(self) -> None:
        """Send what is due, as the scheduler asks. A failure ends this connection alone."""
        peer = self.peer
        if peer is None or self._writer is not _SCHEDULED:
            return
        try:
            self._send_for_writer(peer, trio.current_time())
        except (OSError, TransportClosedError) as error:
            self._lose(error)
        except Exception as error:  # noqa: BLE001  # nor must a bug met by it end the others
            log_bug("internal-error", error, address=self.address)
            self.cut("internal error")

    async def _readable(self, peer: ServerConnection) -> None:
        """Wait until the peer takes more, and what TLS itself had to answer is sent."""
        if peer.receiving and not self._tls.unsent:
            return
        if self._tls.unsent:
            self._run_writer()
        peer.listen(False, trio.current_time())
        while not peer.receiving or self._tls.unsent:
            self._paused = True
            await self._resume.wait()
        peer.listen(True, trio.current_time())

    def _wake(self) -> None:
        """Have what is due sent: by the reader after its feed, by the scheduler, or by a writer that runs in any case."""
        if self._writer is _FEEDING:
            self._writer = _FED
        elif self._writer is _PARKED:
            self._writer = _SCHEDULED
            self._deliveries.schedule(self._send_scheduled)

    def _run_writer(self) -> None:
        self._writer = _RUNNING
        self._writer_wakeup.set()

    async def _write(self, peer: ServerConnection, schedule_commit: Callable[[], None]) -> None:
        tls = self._tls
        timeout_s = self._limits.write_timeout_s
        try:
            while True:
                now_s = trio.current_time()
                due_s = peer.next_due_s
                if due_s is not None and due_s <= now_s:
                    if tls.has_input():
                        peer.hear(now_s)  # the event loop is late: what came has not been read
                    untaken_bytes = tls.untaken_bytes
                    peer.tick(now_s, untaken_bytes, self.bytes_out - untaken_bytes)
                    schedule_commit()
                if not self._send_due(peer, now_s):
                    if tls.unsent:
                        await tls.flush(timeout_s)
                    elif peer.values_ready and not tls.has_room():
                        await tls.wait_room(timeout_s)
                    else:
                        await trio.lowlevel.checkpoint()  # enough for one turn
                elif peer.finished:
                    return
                else:
                    due_s = peer.next_due_s
                    self._parked_until_s = math.inf if due_s is None else due_s
                    self._writer = _PARKED
                    await self._writer_wakeup.wait(self._parked_until_s)
                    self._writer = _RUNNING
        except (OSError, TransportClosedError) as error:
            self._lose(error)

    def _send_due(self, peer: ServerConnection, now_s: float) -> bool:
        """Send what is due without waiting; return whether nothing more is.

        The writer calls it, and the reader while the writer is parked: to wake a task for one message costs as much as the
        message.
        """
        tls = self._tls
        turn_bytes = self.bytes_out + TURN_BYTES
        done = False
        while not done and self.bytes_out < turn_bytes and not tls.unsent:
            if self._slices:
                data: bytes | memoryview = self._slices.popleft()
            else:
                if peer.values_ready and not tls.has_room():
                    break
                parts = peer.data_to_send(now_s)
                if not parts:
                    done = True
                    break
                last = parts[-1]  # only this one may be large: more is handed out until there is enough
                if len(last) > SLICE_BYTES:
                    self.large_messages += 1
                    view = memoryview(last)  # a large body is shared by its subscribers: no copy
                    self._slices.extend(view[at : at + SLICE_BYTES] for at in range(0, len(last), SLICE_BYTES))
                    parts.pop()
                    if not parts:
                        continue
                data = b"".join(parts)
            self.bytes_out += len(data)
            if not tls.send(data, len(self._slices) > 0):
                break
        if self._paused and peer.receiving:
            self._paused = False
            self._resume.set()
        return done

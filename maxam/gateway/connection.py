"""One client's transport: a reader and a writer task around a Peer, and the deadlines of its beginning and end.

The Peer decides everything that the protocol says; here are only TLS, time and the order of shutting down. Only the writer waits
while sending, and nothing cancels it but the end of the connection: half a TLS record makes a stream useless. While it is parked
the reader sends what its own frames were answered at once.
"""

import math
import ssl
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final, final

import trio

from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.gateway.bell import Bell
from maxam.gateway.deliveries import Deliveries
from maxam.gateway.log import log_bug
from maxam.gateway.peer import Peer
from maxam.gateway.revocation import Chain, read_chain
from maxam.gateway.tls import TlsSocket, TransportClosedError, handshake_problem

# One encryption and one send: what a large body may add to the memory of a connection and hold up the loop.
SLICE_BYTES: Final = 65_536
# Fed to the protocol at a time, less after a feed that took long: dear frames (a complex glob costs 20 ms) must not keep
# others waiting. Cheap ones go on until _TURN_S is over: every turn is a batch, and costs an fsync.
FEED_BYTES: Final = 16_384
_DEAR_FEED_BYTES: Final = 512
_TURN_S: Final = 0.005
# A writer that never has to wait lets the others run after so much.
TURN_BYTES: Final = 262_144
_AWAKE: Final = -1.0
_opened: Final = count(1)


def opening_number() -> int:
    """Return the number of the next connection, of whichever listener of this process: they are paged through in this order."""
    return next(_opened)


@final
class ClientConnection:
    """One accepted connection, from its TLS handshake to its end.

    Attributes:
        address: The peer's `host:port`.
        host: The peer's address alone.
        number: In the order of opening, over all listeners.
        opened_at_s: When it was accepted, on the clock of the event loop.
        fingerprint: Its identity; empty before the handshake is complete.
        chain: Its certificates as they were verified; empty before the handshake is complete.
        large_messages: How many messages larger than SLICE_BYTES were begun.
        peer: Its protocol; None before the handshake is complete.
        reason: Why it ended; empty while it lives.
        opened_at_us: The same, microseconds since the epoch.
        tls_version: TLS version and cipher; empty before the handshake is complete.
        bytes_in: Plaintext received.
        bytes_out: Plaintext sent.
    """

    __slots__ = (
        "_bell",
        "_deliveries",
        "_feeding",
        "_limits",
        "_parked_until_s",
        "_paused",
        "_resume",
        "_scope",
        "_slices",
        "_talk",
        "_tls",
        "_wanted",
        "address",
        "bytes_in",
        "bytes_out",
        "chain",
        "fingerprint",
        "host",
        "large_messages",
        "number",
        "opened_at_s",
        "opened_at_us",
        "peer",
        "reason",
        "tls_version",
    )

    def __init__(self, tls: TlsSocket, address: str, host: str, limits: Limits, deliveries: Deliveries) -> None:
        self.address: Final = address
        self.host: Final = host
        self.number: Final = opening_number()
        self.opened_at_s: Final = trio.current_time()
        self.opened_at_us: Final = time.time_ns() // 1000
        self.bytes_in = 0
        self.bytes_out = 0
        self.tls_version = ""
        self.fingerprint = ""
        self.chain: Chain = ()
        self.large_messages = 0
        self.peer: Peer | None = None
        self.reason = ""
        self._tls: Final = tls
        self._limits: Final = limits
        self._deliveries: Final = deliveries
        self._bell: Final = Bell()  # the writer's
        self._resume: Final = Bell()  # the reader's
        self._paused = False
        self._parked_until_s = _AWAKE  # until when the writer sleeps: everything that was due is sent
        self._feeding = False  # the reader is at work, and will send what comes of it
        self._wanted = False
        self._slices: Final[deque[memoryview]] = deque()  # of a large body under way
        self._scope: Final = trio.CancelScope()  # the whole connection
        self._talk: Final = trio.CancelScope()  # reader and writer

    async def run(
        self,
        turns: trio.CapacityLimiter,
        make_peer: Callable[[str, Chain, Callable[[], None], float], Peer],
        touch: Callable[[], None],
        connected: Callable[["ClientConnection"], None],
    ) -> None:
        """Serve the connection to its end; the socket is closed then. Raises only what is a bug.

        Args:
            turns: Shared turns of costly handshake steps.
            make_peer: Makes the Peer from fingerprint, chain of certificates, wake-up and time.
            touch: Called after anything that may have appended to the broker.
            connected: Called once, when CONNECT was accepted.
        """
        try:
            with self._scope:
                if await self._handshake(turns):
                    peer = make_peer(self.fingerprint, self.chain, self._wake, trio.current_time())
                    self.peer = peer
                    await self._converse(peer, touch, connected)
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
        """End gracefully: what was read is completed and answered, then comes the ERROR. Strangers are cut off."""
        if self.peer is None or self.peer.connection is None:
            self.cut(failure.message)
        else:
            self.peer.connection.expel(failure)

    def cut(self, reason: str) -> None:
        """End at once: nothing more is encrypted or admitted."""
        self._note(reason)
        self._slices.clear()
        if self.peer is not None:
            self.peer.finished = True  # its tasks may be about to run before they hear that they are cancelled
        self._scope.cancel()

    def forget(self) -> None:
        """Let go of the peer, which holds on to us by its wake-up.

        Else each connection that ended would stay, with some 50 KiB of TLS, until the next look for cycles, which is rare.
        """
        self.peer = None

    def _note(self, reason: str) -> None:
        self.reason = self.reason or reason

    async def _handshake(self, turns: trio.CapacityLimiter) -> bool:
        problem = ""
        with trio.move_on_after(self._limits.tls_handshake_timeout_s) as waited:
            try:
                await self._tls.handshake(turns)
                self.fingerprint = self._tls.peer_fingerprint
                self.chain = read_chain(self._tls.peer_chain)
                self.tls_version = self._tls.version
            except ssl.SSLError as error:
                problem = handshake_problem(error)
                self._note(problem)  # the peer may reset the connection below
                with trio.move_on_after(self._limits.linger_timeout_s):
                    await self._tls.linger()  # the peer reads its alert
            except TransportClosedError as error:
                problem = str(error)
            except ValueError as error:  # verified, but we cannot say whether it was revoked
                problem = f"client certificate refused: {error}"
        if waited.cancelled_caught and not problem:
            problem = f"TLS handshake not complete within {self._limits.tls_handshake_timeout_s:g} s"
        if problem:
            self._note(problem)
        return not problem

    async def _converse(
        self, peer: Peer, touch: Callable[[], None], connected: Callable[["ClientConnection"], None]
    ) -> None:
        try:
            with self._talk:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read, peer, touch, connected)
                    await self._write(peer, touch)
                    self._talk.cancel()
        finally:
            peer.closed(trio.current_time(), self.reason)
            touch()

    def _lose(self, error: Exception) -> None:
        """End because the transport failed: nothing can be sent any more."""
        self._note(str(error))
        self._scope.cancel()

    async def _read(
        self, peer: Peer, touch: Callable[[], None], connected: Callable[["ClientConnection"], None]
    ) -> None:
        announced = False
        feed_bytes = _DEAR_FEED_BYTES
        sends = 0
        try:
            data = self._tls.decrypt()  # what came with the end of the handshake
            while data is not None:
                self.bytes_in += len(data)
                start = 0
                turn_s = time.perf_counter()  # when this task last let others run
                while start < len(data):
                    began_s = time.perf_counter()
                    if began_s - turn_s > _TURN_S or not peer.receiving:
                        touch()
                        await self._readable(peer)
                        await trio.lowlevel.checkpoint()
                        turn_s = began_s = time.perf_counter()
                    self._feed(peer, data[start : start + feed_bytes])
                    start += feed_bytes
                    quick = time.perf_counter() - began_s < _TURN_S
                    feed_bytes = min(feed_bytes * 2, FEED_BYTES) if quick else _DEAR_FEED_BYTES
                    if not announced and peer.connection is not None:
                        announced = True
                        connected(self)
                touch()
                await self._readable(peer)
                data = await self._tls.receive(peer.receive_bytes_max)
                if sends == peer.sends and announced:
                    await self._deliveries.turn()  # whoever publishes has not to wait for those who read
                sends = peer.sends
        except (OSError, TransportClosedError) as error:
            self._lose(error)
        except Exception as error:  # noqa: BLE001  # a bug met by one client must not end the others, and it is told
            log_bug("internal-error", error, address=self.address)
            self.expel(ProtocolError("internal error", "the broker failed on this frame; its log says more"))
            self._rouse_writer()
        else:
            self._note("closed by the client")
            peer.receive_eof(trio.current_time())
            self._bell.ring()

    def _feed(self, peer: Peer, data: bytes) -> None:
        now_s = trio.current_time()
        self._feeding = True
        try:
            peer.receive_data(data, now_s, time.time_ns() // 1000)
        finally:
            self._feeding = False
        if self._wanted:
            self._wanted = False
            self._send_or_rouse(peer, now_s)

    def _send_or_rouse(self, peer: Peer, now_s: float) -> None:
        """Send what is due while the writer is parked; let it do what is left."""
        if self._parked_until_s == _AWAKE or not self._send_due(peer, now_s) or peer.finished:
            self._rouse_writer()
        else:
            due_s = peer.next_due_s
            if due_s is not None and due_s < self._parked_until_s:
                self._rouse_writer()  # it would sleep too long

    def _hand_out(self) -> None:
        """Send what a commit has made due. A failure here is that of this connection alone."""
        peer = self.peer
        if peer is None or self._parked_until_s == _AWAKE:
            return
        try:
            self._send_or_rouse(peer, trio.current_time())
        except (OSError, TransportClosedError) as error:
            self._lose(error)
        except Exception as error:  # noqa: BLE001  # nor must a bug met by it end the others
            log_bug("internal-error", error, address=self.address)
            self.cut("internal error")

    async def _readable(self, peer: Peer) -> None:
        """Wait until the peer takes more, and what TLS itself had to answer is sent."""
        if self._tls.unsent:
            self._bell.ring()
        while not peer.receiving or self._tls.unsent:
            self._paused = True
            await self._resume.wait()

    def _wake(self) -> None:
        """Let what is due be sent: by the reader when it is through with what it feeds, behind a commit, or by the writer."""
        if self._feeding:
            self._wanted = True
        elif self._parked_until_s == _AWAKE or not self._deliveries.note(self._hand_out):
            self._rouse_writer()

    def _rouse_writer(self) -> None:
        self._parked_until_s = _AWAKE  # from now on the rest is its
        self._bell.ring()

    async def _write(self, peer: Peer, touch: Callable[[], None]) -> None:
        tls = self._tls
        timeout_s = self._limits.write_timeout_s
        try:
            while True:
                now_s = trio.current_time()
                due_s = peer.next_due_s
                if due_s is not None and due_s <= now_s:
                    peer.tick(now_s)
                    touch()
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
                    await self._bell.wait(self._parked_until_s)
                    self._parked_until_s = _AWAKE
        except (OSError, TransportClosedError) as error:
            self._lose(error)

    def _send_due(self, peer: Peer, now_s: float) -> bool:
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
            if not tls.send(data):
                break
        if self._paused and peer.receiving:
            self._paused = False
            self._resume.ring()
        return done

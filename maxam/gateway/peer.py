"""One client connection behind its TLS handshake, without I/O: protocol, broker and deadlines joined.

Theory of operation: `receive_data` decodes and admits; `data_to_send` is asked for bytes until it has none; `tick` is called
when `next_due_s` has come. A connection ends in one of four ways: the client's DISCONNECT or a failure, which first flush what they
owe; a transport that is gone; or silence. In each, `closed` is called last, and only then does the session let go.

Invariants: nothing is read after a DISCONNECT or a failure; the ERROR or the DISCONNECT's RECEIPT is the last frame sent.
"""

from collections.abc import Callable
from typing import Final, final

from maxam import __version__
from maxam.broker.broker import Broker
from maxam.broker.delivery import Connection
from maxam.config import Settings
from maxam.errors import ProtocolError
from maxam.records import Identity
from maxam.stomp.encoder import HEART_BEAT, connected, error
from maxam.stomp.events import (
    VERSION_1_2,
    Ack,
    Connect,
    Disconnect,
    Event,
    Failure,
    Nack,
    Send,
    Subscribe,
    Unsubscribe,
)
from maxam.stomp.protocol import HeartBeat, Protocol

RECEIVE_BYTES_MAX: Final = 262_144  # at a time, once connected
_NEVER_S: Final = float("inf")
_IGNORED: Final = ((b"result", b"ignored"),)


def unknown_principal(fingerprint: str) -> str:
    """Return who a certificate stands for that the policy does not name, where such clients may connect."""
    return f"fingerprint:{fingerprint}"


@final
class Peer:
    """A client that has proven its certificate.

    Attributes:
        fingerprint: SHA-256 of its certificate's DER, lower-case hex.
        principal: Who that is, once connected; else empty.
        client_id: Name of its session, once connected; else empty.
        version: `1.1` or `1.2`, once connected; else empty.
        connected_at_s: When it was answered CONNECTED; 0.0 before.
        sends: SEND frames decoded.
        frames: All frames decoded.
        finished: Everything that had to be flushed was handed out: write it, then close.
        end: Why it ended or is about to: one line for the log; empty while it lives.
    """

    __slots__ = (
        "_broker",
        "_connect_by_s",
        "_connection",
        "_error",
        "_flush_by_s",
        "_heart_beat",
        "_leaving",
        "_objection",
        "_output",
        "_protocol",
        "_session_id",
        "_settings",
        "_wake",
        "client_id",
        "connected_at_s",
        "end",
        "fingerprint",
        "finished",
        "frames",
        "principal",
        "sends",
        "version",
    )

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        fingerprint: str,
        session_id: str,
        wake: Callable[[], None],
        now_s: float,
        objection: Callable[[], ProtocolError | None] | None = None,
    ) -> None:
        """Make the state of a connection whose TLS handshake has just ended.

        Args:
            broker: What it talks to.
            settings: Of the gateway.
            fingerprint: SHA-256 of the client's certificate.
            session_id: 128 random bits as text, to name its session unless the client does.
            wake: Called when `data_to_send` or the attributes are worth another look.
            now_s: Monotonic seconds.
            objection: Asked when the client says CONNECT: why its certificate, though verified, does not count.
        """
        self._broker: Final = broker
        self._objection: Final = objection
        self._settings: Final = settings
        self._session_id: Final = session_id
        self._wake: Final = wake
        self._protocol: Final = Protocol(settings.limits, settings.listener.virtual_hosts)
        self._connection: Connection | None = None
        self._connect_by_s: Final = now_s + settings.limits.connect_timeout_s
        self._heart_beat: HeartBeat | None = None
        self._output: list[bytes] = []  # frames outside receipt order: CONNECTED
        self._error: ProtocolError | None = None  # the connection ends with this ERROR
        self._leaving = False  # the connection ends with a DISCONNECT
        self._flush_by_s = 0.0  # when an ending connection stops waiting for commits
        self.fingerprint: Final = fingerprint
        self.principal = ""
        self.client_id = ""
        self.version = ""
        self.connected_at_s = 0.0
        self.sends = 0
        self.frames = 0
        self.finished = False
        self.end = ""

    @property
    def connection(self) -> Connection | None:
        """Its place in the broker, once connected."""
        return self._connection

    @property
    def messages(self) -> int:
        """MESSAGE frames handed out."""
        return 0 if self._connection is None else self._connection.messages

    @property
    def heard_at_s(self) -> float | None:
        """When it was last heard of while we listened; None before it is connected."""
        return None if self._heart_beat is None else self._heart_beat.heard_at_s

    @property
    def receive_bytes_max(self) -> int:
        """How much to read at a time: little from somebody who has not said CONNECT."""
        return self._settings.limits.connect_receive_bytes_max if self._connection is None else RECEIVE_BYTES_MAX

    @property
    def receiving(self) -> bool:
        """Whether to read on: not while it ends, nor while too many RECEIPTs wait for it to take them."""
        if self._ending or self.finished:
            return False
        connection = self._connection
        return connection is None or (
            connection.failure is None and connection.receipts_bytes < self._settings.limits.receipts_pending_bytes_max
        )

    @property
    def _ending(self) -> bool:
        return self._leaving or self._error is not None

    def receive_data(self, data: bytes, now_s: float, wall_us: int) -> None:
        """Take bytes from the client: every frame in them takes effect, up to one that ends the connection.

        Args:
            data: Decrypted bytes.
            now_s: Monotonic seconds.
            wall_us: Microseconds since the epoch, for `accepted_at`.
        """
        if not self._alive(now_s):
            return
        if self._heart_beat is not None:
            self._heart_beat.received(now_s)
        broker = self._broker
        events = self._protocol.receive_data(data)
        self.frames += len(events)
        for event in events:
            connection = self._connection
            if type(event) is Send and connection is not None:
                self.sends += 1
                broker.send(connection, event, wall_us)
            elif type(event) is Ack and connection is not None:
                broker.ack(connection, event, now_s)
            else:
                try:
                    self._handle(event, now_s, wall_us)
                except ProtocolError as failure:
                    self._fail(failure, now_s)
                if self._ending:
                    break
        if self._connection is not None:
            broker.await_receipts(self._connection)
        if self._heart_beat is not None:
            self._heed_silence(self._heart_beat, now_s)
        broker.flush()

    @property
    def values_ready(self) -> bool:
        """Whether `data_to_send` would hand out values, which are the newest only if they can be written at once."""
        return self._connection is not None and self._connection.values_ready

    def receive_eof(self, now_s: float) -> None:
        """Say that the client sends no more. It may still read: RECEIPTs of what was received follow, for a moment.

        Spec: STOMP 1.2 "If the client disconnects, previously received frames SHOULD continue to get processed by the server."
        """
        if self._alive(now_s):
            self._leave(now_s, self._settings.limits.linger_timeout_s, "closed by the client")

    def data_to_send(self, now_s: float) -> list[bytes]:
        """Hand out the next bytes, to be written in order before the next call; empty when there is nothing now.

        Only the last part may be larger than the small limits of `delivery`: a body is. What the call before this one
        handed out counts as written.
        """
        if self.finished:
            return []  # nothing follows the last words, though a late commit may have made receipts due
        self._alive(now_s)
        out = self._output
        if out:
            self._output = []
        elif self._connection is not None:
            out = self._connection.drain(now_s)
        if not out:
            if self._ending:
                out = self._last_words(now_s)
            elif self._heart_beat is not None and now_s >= self._heart_beat.send_due_s:
                out = [HEART_BEAT]
        if self._heart_beat is not None:
            if out:
                self._heart_beat.sent(now_s)
            self._heed_silence(self._heart_beat, now_s)
        return out

    @property
    def next_due_s(self) -> float | None:
        """When `tick` must be called, or None."""
        if self.finished:
            return None
        if self._ending:
            return self._flush_by_s
        connection = self._connection
        if connection is None:
            return self._connect_by_s
        due_s = _NEVER_S if connection.due_s is None else connection.due_s
        if self._heart_beat is not None:
            due_s = min(due_s, self._heart_beat.send_due_s, self._heart_beat.dead_due_s)
        return None if due_s == _NEVER_S else due_s

    def tick(self, now_s: float) -> None:
        """Do what is due by now: deadlines, the window's probe; heart-beats come with the next `data_to_send`."""
        if not self._alive(now_s):
            return
        connection = self._connection
        if connection is None:
            if now_s >= self._connect_by_s:
                self._fail(
                    ProtocolError(
                        "no CONNECT",
                        f"no CONNECT came within {self._settings.limits.connect_timeout_s:g} s (limit connect_timeout_s)",
                    ),
                    now_s,
                )
            return
        connection.probe(now_s)
        if self._heart_beat is not None:
            self._heed_silence(self._heart_beat, now_s)
            if now_s >= self._heart_beat.dead_due_s:
                self._fail(self._heart_beat.error(now_s), now_s)

    def closed(self, now_s: float, reason: str) -> None:
        """Say that the transport is gone, or is being closed because this has finished. The session lets go."""
        if not self.end:
            self.end = reason
        self.finished = True
        if self._connection is not None:
            self._broker.detach(self._connection, now_s)

    def _alive(self, now_s: float) -> bool:
        """Take up a failure that the broker has decided on; return whether the connection goes on."""
        connection = self._connection
        if connection is not None and connection.failure is not None and not self._ending:
            self._fail(connection.failure, now_s)
        return not self._ending and not self.finished

    def _heed_silence(self, heart_beat: HeartBeat, now_s: float) -> None:
        """Count the client's silence only while we listen."""
        if self.receiving:
            heart_beat.resume(now_s)
        else:
            heart_beat.pause(now_s)

    def _handle(self, event: Event, now_s: float, wall_us: int) -> None:
        connection = self._connection
        if type(event) is Connect:
            self._connect(event, now_s)
        elif type(event) is Failure:
            raise event.error
        elif connection is None:
            raise AssertionError("the protocol lets nothing through before CONNECT")
        elif type(event) is Subscribe:
            self._broker.subscribe(connection, event, wall_us)
        elif type(event) is Unsubscribe:
            self._broker.unsubscribe(connection, event)
        elif type(event) is Nack:
            if event.receipt is not None:
                connection.promise(event.receipt, _IGNORED)
        elif type(event) is Disconnect:
            if event.receipt is not None:
                connection.promise(event.receipt, ())
            self._leave(now_s, self._settings.limits.write_timeout_s, "disconnect")

    def _connect(self, event: Connect, now_s: float) -> None:
        objection = None if self._objection is None else self._objection()
        if objection is not None:
            raise objection
        principal = self._broker.policy.principal_of(self.fingerprint)
        if principal is None:
            if self._settings.policy.unknown_clients == "refuse":
                raise ProtocolError(
                    "unknown client",
                    f"the policy names no principal for the certificate with the SHA-256 fingerprint {self.fingerprint}; "
                    "have it added to the policy",
                )
            principal = unknown_principal(self.fingerprint)
        identity = Identity(principal, self.fingerprint)
        self._connection = connection = self._broker.connect(event, identity, self._session_id, self._wake, now_s)
        heart_beat_ms = (self._settings.listener.heart_beat_ms, self._settings.listener.heart_beat_ms)
        self._heart_beat = HeartBeat(heart_beat_ms, event.heart_beat_ms, now_s)
        self.principal = principal
        self.client_id = connection.session.client_id
        self.version = "1.2" if event.version == VERSION_1_2 else "1.1"
        self.connected_at_s = now_s
        self._output.append(connected(event.version, self.client_id, heart_beat_ms, f"maxam/{__version__}"))
        self._wake()

    def _leave(self, now_s: float, timeout_s: float, reason: str) -> None:
        """End without an ERROR: start no more values, and finish once all RECEIPTs have left or time is up."""
        if self._connection is not None:
            self._connection.quiet = True
        self._leaving = True
        self._flush_by_s = now_s + timeout_s
        self.end = reason
        self._wake()

    def _fail(self, failure: ProtocolError, now_s: float) -> None:
        if self._ending:
            return
        self._error = failure
        self._flush_by_s = now_s + self._settings.limits.linger_timeout_s
        self.end = f"error: {failure.message}"
        if self._connection is not None:
            self._connection.quiet = True
        self._wake()

    def _last_words(self, now_s: float) -> list[bytes]:
        """Return the ERROR once the receipts before it have left or waited long enough; finish then."""
        waiting = self._connection is not None and bool(self._connection.receipts)
        if waiting and now_s < self._flush_by_s:
            return []
        self.finished = True
        if self._error is None:
            return []
        version = VERSION_1_2 if self._connection is None else self._connection.version
        return [error(version, self._error)]

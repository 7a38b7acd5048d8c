"""One client connection after its TLS handshake, without I/O: protocol, broker and deadlines joined.

Theory of operation. `receive_data` decodes and admits. `data_to_send` is asked for bytes until it has none. `tick` is called
when `next_due_s` has come. A DISCONNECT or a failure ends a connection after its RECEIPTs were sent. Silence or a lost transport ends it
at once. In each case `closed` is called last, and only then is the session released.

Invariants:
* nothing is read after a DISCONNECT or a failure;
* the ERROR or the DISCONNECT's RECEIPT is the last frame sent.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final, final

from maxam import __version__
from maxam.broker.broker import Broker
from maxam.broker.outbox import Outbox
from maxam.broker.policy import Rights
from maxam.config import Settings
from maxam.errors import ProtocolError
from maxam.gateway.frame_pace import FramePace
from maxam.gateway.handshake import Admit, Handshake
from maxam.gateway.holdings import FrameHolder, Holdings
from maxam.records import Identity
from maxam.stomp.encoder import HEART_BEAT, connected, error
from maxam.stomp.events import (
    VERSION_1_2,
    Ack,
    Connect,
    Disconnect,
    Event,
    Failure,
    JsonSend,
    Nack,
    Send,
    SkippedSend,
    Subscribe,
    Unsubscribe,
)
from maxam.stomp.heart_beat import HeartBeat
from maxam.stomp.protocol import Protocol

RECEIVE_BYTES_MAX: Final = 262_144  # at a time, once connected
Claim = Callable[["ServerConnection", str, str], None]  # with principal and client-id
_NEVER_S: Final = float("inf")
_IGNORED: Final = ((b"result", b"ignored"),)


class Phase(IntEnum):
    """Phases of a connection after its TLS handshake, in their order. Each but the last may end in any later one.

    CONNECTING -> CONNECTED: its CONNECT was accepted.
    CONNECTING, CONNECTED -> LEAVING: it has sent DISCONNECT, or ended its stream.
    CONNECTING, CONNECTED -> FAILING: something ends it with an ERROR.
    LEAVING, FAILING -> FINISHED: its RECEIPTs have left or waited long enough.
    Each -> FINISHED: the transport is gone.
    """

    CONNECTING = 0  # Its CONNECT has not come.
    CONNECTED = 1
    LEAVING = 2  # Nothing is read. Its RECEIPTs are sent, and then it finishes.
    FAILING = 3  # The same, and its ERROR is the last frame.
    FINISHED = 4  # Everything that had to be sent was handed out.


# An attribute of a class of constants takes ten times as long.
_CONNECTING: Final = Phase.CONNECTING
_CONNECTED: Final = Phase.CONNECTED
_LEAVING: Final = Phase.LEAVING
_FAILING: Final = Phase.FAILING
_FINISHED: Final = Phase.FINISHED


@final
class ServerConnection(FrameHolder):
    """A client that has proven its certificate.

    Attributes:
        fingerprint: SHA-256 of its certificate's DER, lower-case hex.
        client_id: Name of its session, once connected; else empty.
        version: `1.1` or `1.2`, once connected; else empty.
        connected_at_s: When it was answered CONNECTED; 0.0 before.
        sends: SEND frames decoded.
        frames: All frames decoded.
        received_bytes: Bytes received from the transport, set by the reader. TLS records that are not complete count.
        phase: The phase of the connection.
        end: Why it ended or is about to end, as one line for the log. Empty before.
    """

    __slots__ = (
        "_broker",
        "_claim",
        "_connection",
        "_error",
        "_flush_by_s",
        "_handshake",
        "_heart_beat",
        "_holdings",
        "_listening",
        "_output",
        "_pace",
        "_protocol",
        "_receipts_bytes",
        "_settings",
        "_wake",
        "client_id",
        "connected_at_s",
        "end",
        "fingerprint",
        "frames",
        "phase",
        "received_bytes",
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
        denial: Callable[[], ProtocolError | None] | None = None,
        holdings: Holdings | None = None,
        claim: "Claim | None" = None,
        admit: Admit | None = None,
        connect_by_s: float = 0.0,
    ) -> None:
        """Make the state of a connection whose TLS handshake has just ended.

        Args:
            broker: The broker.
            settings: Of the gateway.
            fingerprint: SHA-256 of the client's certificate.
            session_id: 128 random bits as text, to name its session unless the client does.
            wake: Called when `data_to_send` or the attributes may have changed.
            now_s: Monotonic seconds.
            denial: Called at CONNECT; returns why the certificate, though verified, is not accepted.
            holdings: The memory of all connections. With None it shares limits with no other.
            claim: On a front, called with the session that a CONNECT wants. `granted` or `refused` follows. None elsewhere.
            admit: Returns identity and rights for the credentials in a CONNECT. With None they are those of the certificate.
            connect_by_s: When CONNECT must have come. With 0 it is `connect_timeout_s` from now.
        """
        super().__init__()
        self._broker: Final = broker
        self._claim: Final = claim
        self._settings: Final = settings
        due_s = connect_by_s or now_s + settings.limits.connect_timeout_s
        self._handshake: Final = Handshake(broker, settings, fingerprint, session_id, denial, admit, due_s)
        self._wake: Final = wake
        hosts = settings.listener.virtual_hosts
        self._protocol: Final = Protocol(settings.limits, hosts, self._keeps_body, admit is not None)
        self._holdings: Final = Holdings(settings.limits) if holdings is None else holdings
        self._receipts_bytes = 0  # of its RECEIPTs that wait, as its holdings count them
        self._listening = True  # somebody reads the transport
        self._pace: Final = FramePace()
        self.received_bytes = 0
        self._connection: Outbox | None = None
        self._heart_beat: HeartBeat | None = None
        self._output: list[bytes] = []  # frames outside receipt order: CONNECTED
        self._error: ProtocolError | None = None  # the last frame of a connection that is failing
        self._flush_by_s = 0.0  # when an ending connection stops waiting for commits
        self.fingerprint: Final = fingerprint
        self.client_id = ""
        self.version = ""
        self.connected_at_s = 0.0
        self.sends = 0
        self.frames = 0
        self.phase = _CONNECTING
        self.end = ""

    @property
    def connection(self) -> Outbox | None:
        """Its place in the broker, once connected."""
        return self._connection

    @property
    def finished(self) -> bool:
        """Whether everything that had to be sent was handed out: write it, then close."""
        return self.phase is _FINISHED

    @property
    def host(self) -> bytes | None:
        """The `host` header of CONNECT, also of one that was refused; None before."""
        return self._protocol.host

    @property
    def messages(self) -> int:
        """MESSAGE frames handed out."""
        return 0 if self._connection is None else self._connection.messages

    @property
    def heard_at_s(self) -> float | None:
        """When it was last heard of while we listened; None before it is connected."""
        return None if self._heart_beat is None else self._heart_beat.heard_at_s

    @property
    def heart_beat_s(self) -> float:
        """How often the client agreed to send something; 0 for never, or if it is not connected."""
        return 0.0 if self._heart_beat is None else self._heart_beat.receive_interval_s

    @property
    def receive_bytes_max(self) -> int:
        """How much to read at a time: little before CONNECT."""
        return self._settings.limits.connect_receive_bytes_max if self._connection is None else RECEIVE_BYTES_MAX

    @property
    def receiving(self) -> bool:
        """Whether to read on: not while it ends or is paused, nor while too many RECEIPTs wait for it to take them."""
        if not self._open:
            return False
        connection = self._connection
        if connection is None:
            return not self._handshake.waiting
        return (
            connection.failure is None
            and connection.paused_until_s < 0
            and connection.receipts_bytes < self._holdings.receipts_each_bytes_max
        )

    @property
    def _open(self) -> bool:
        return self.phase is _CONNECTED or self.phase is _CONNECTING

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
        events = self._protocol.receive_data(data)
        self.frames += len(events)
        self._take(events, now_s, wall_us)

    def _take(self, events: list[Event], now_s: float, wall_us: int) -> None:
        broker = self._broker
        try:
            for event in events:
                connection = self._connection
                if type(event) is Send and connection is not None:
                    self.sends += 1
                    broker.send(connection, event, wall_us)
                elif type(event) is Ack and connection is not None:
                    broker.ack(connection, event, now_s)
                else:
                    self._handle(event, now_s, wall_us)
                    if not self._open:
                        break
                    if self._handshake.waiting:
                        self._handshake.hold(events[events.index(event) + 1 :])
                        break
        except ProtocolError as failure:
            self.close_with(failure, now_s)
        if self._connection is not None:
            broker.end_of_input(self._connection)
            if self._connection.receipts_bytes != self._receipts_bytes:
                self._count_receipts(self._connection.receipts_bytes)
        unfinished_bytes = self._protocol.unfinished_bytes
        if (unfinished_bytes or self.unfinished_bytes) and self._open:
            self._count_frame(unfinished_bytes, bool(events), now_s)
        if self._heart_beat is not None:
            self._check_silence(self._heart_beat, now_s)

    def hear(self, now_s: float) -> None:
        """Record that the client sent something that is not complete, such as half a TLS record: it is alive."""
        if self._heart_beat is not None:
            self._heart_beat.received(now_s)

    def listen(self, listening: bool, now_s: float) -> None:
        """Record whether the transport is read. The client's silence, and the time that its frames take, count only then."""
        self._listening = listening
        if self._heart_beat is not None:
            self._check_silence(self._heart_beat, now_s)

    def check_pace(self, now_s: float) -> None:
        """Fail if the frame under way has come too slowly while we read."""
        heart_beat = self._heart_beat
        if heart_beat is None or not self.unfinished_bytes or not self._alive(now_s):
            return  # before CONNECT there is an absolute deadline
        least = self._settings.limits.frame_rate_bytes_per_s_min
        failure = self._pace.failure(heart_beat.listened_s(now_s), self.received_bytes, least)
        if failure is not None:
            self._holdings.frames_slow += 1
            self.close_with(failure, now_s)

    @property
    def values_ready(self) -> bool:
        """Whether `data_to_send` would hand out values, which are the newest only if they can be written at once."""
        return self._connection is not None and self._connection.values_ready

    def receive_eof(self, now_s: float) -> None:
        """Record that the client has ended its stream. It may still read: RECEIPTs of what was received follow for a moment.

        Spec: STOMP 1.2 "If the client disconnects, previously received frames SHOULD continue to get processed by the server."
        """
        if self._alive(now_s):
            self._end(_LEAVING, self._settings.limits.linger_timeout_s, "closed by the client", now_s)

    def data_to_send(self, now_s: float) -> list[bytes]:
        """Hand out the next bytes, to be written in order before the next call; empty when there is nothing now.

        Only the last part may be larger than the small limits of `outbox`, as a body may be. The parts of the call before this one
        count as written.
        """
        if self.phase is _FINISHED:
            return []  # nothing follows the last words, though a late commit may have made receipts due
        self._alive(now_s)
        out = self._output
        if out:
            self._output = []
        elif self._connection is not None:
            out = self._connection.drain(now_s)
            if self._connection.receipts_bytes != self._receipts_bytes:
                self._count_receipts(self._connection.receipts_bytes)
        if not out:
            if not self._open:
                out = self._last_words(now_s)
            elif self._heart_beat is not None and now_s >= self._heart_beat.send_due_s:
                out = [HEART_BEAT]
        if self._heart_beat is not None:
            if out:
                self._heart_beat.sent(now_s)
            self._check_silence(self._heart_beat, now_s)
        return out

    @property
    def next_due_s(self) -> float | None:
        """When `tick` must be called, or None."""
        if not self._open:
            return None if self.phase is _FINISHED else self._flush_by_s
        connection = self._connection
        if connection is None:
            return self._handshake.due_s
        due_s = _NEVER_S if connection.due_s is None else connection.due_s
        if connection.paused_until_s >= 0:
            due_s = min(due_s, connection.paused_until_s)
        if self._heart_beat is not None:
            due_s = min(due_s, self._heart_beat.send_due_s, self._heart_beat.dead_due_s)
        return None if due_s == _NEVER_S else due_s

    def tick(self, now_s: float, untaken_bytes: int = 0, taken_bytes: int = 0) -> None:
        """Act on deadlines and probe the window. Heart-beats come with the next `data_to_send`.

        Args:
            now_s: Monotonic seconds.
            untaken_bytes: Bytes written that the client's system has not taken.
            taken_bytes: Bytes that it has taken since the connection was opened.
        """
        if not self._alive(now_s):
            return
        connection = self._connection
        if connection is None:
            if now_s >= self._handshake.due_s:
                self.close_with(self._handshake.overdue(), now_s)
            return
        connection.probe(now_s)
        if 0 <= connection.paused_until_s <= now_s:
            connection.paused_until_s = -1.0
        if self._heart_beat is not None:
            self._check_silence(self._heart_beat, now_s)
            if now_s >= self._heart_beat.dead_due_s and self._heart_beat.is_dead(untaken_bytes, taken_bytes, now_s):
                self.close_with(self._heart_beat.error(now_s), now_s)

    def cut(self) -> None:
        """Finish at once: nothing more is admitted or handed out. `closed` must follow."""
        self.phase = _FINISHED

    def closed(self, now_s: float, reason: str) -> None:
        """Release the session: the transport is gone, or is being closed because the connection has finished."""
        if not self.end:
            self.end = reason
        self.phase = _FINISHED
        self._release(now_s)
        if self._connection is not None:
            self._count_receipts(0)
            self._broker.detach(self._connection, now_s)

    def _alive(self, now_s: float) -> bool:
        """Take up a failure that the broker has decided on; return whether the connection goes on."""
        connection = self._connection
        if connection is not None and connection.failure is not None:
            self.close_with(connection.failure, now_s)
        return self._open

    def _check_silence(self, heart_beat: HeartBeat, now_s: float) -> None:
        """Count the client's silence only while we listen."""
        if self._listening and self.receiving:
            heart_beat.resume(now_s)
        else:
            heart_beat.pause(now_s)

    def _keeps_body(self, command: bytes, headers: dict[bytes, bytes]) -> bool:
        """Return whether a body of which more is to come is worth keeping. It is judged again when it is complete."""
        if command != b"SEND" or self._connection is None:
            return True  # it can have no body
        destination = headers.get(b"destination")
        return destination is not None and self._broker.keeps_body(self._connection, destination)

    def _count_receipts(self, pending_bytes: int) -> None:
        self._holdings.count_receipts(pending_bytes - self._receipts_bytes)
        self._receipts_bytes = pending_bytes

    def _count_frame(self, held_bytes: int, begun: bool, now_s: float) -> None:
        """Record what is held of the frame under way; `begun` if it may be another than before."""
        if self._heart_beat is not None and (begun or not self.unfinished_bytes):
            self._pace.begin(self._heart_beat.listened_s(now_s), self.received_bytes)
        self._holdings.count_frame(self, held_bytes, now_s)

    def _release(self, now_s: float) -> None:
        """Free what was received of an unfinished frame: nothing more is read."""
        self._protocol.stop()
        if self.unfinished_bytes:
            self._holdings.count_frame(self, 0, now_s)

    def _handle(self, event: Event, now_s: float, wall_us: int) -> None:
        connection = self._connection
        if type(event) is Connect:
            self._connect(event, now_s, wall_us)
        elif type(event) is Failure:
            raise event.error
        elif connection is None:
            raise AssertionError("the protocol lets nothing through before CONNECT")
        elif type(event) is JsonSend:
            self.sends += 1
            self._broker.send_json(connection, event, wall_us)
        elif type(event) is SkippedSend:
            self.sends += 1
            self._broker.send_skipped(connection, event, wall_us)
        elif type(event) is Subscribe:
            self._broker.subscribe(connection, event, wall_us)
            self._broker.charge(connection, now_s)
        elif type(event) is Unsubscribe:
            self._broker.unsubscribe(connection, event)
            self._broker.charge(connection, now_s)
        elif type(event) is Nack:
            if event.receipt is not None:
                connection.promise(event.receipt, _IGNORED)
        elif type(event) is Disconnect:
            self._broker.last_wills.disconnected(connection)
            if event.receipt is not None:
                connection.promise(event.receipt, ())
            self._end(_LEAVING, self._settings.limits.write_timeout_s, "disconnect", now_s)

    def _connect(self, event: Connect, now_s: float, wall_us: int) -> None:
        identity = self._handshake.identify(event, wall_us)
        if identity is not None and self._claim is not None:
            self.admitted(event, identity)
        elif identity is not None:
            self._join(event, identity, now_s)

    def admitted(self, event: Connect, identity: Identity, rights: Rights | None = None) -> None:
        """Claim the session of a CONNECT, unless the connection has ended. `rights` are of credentials that others have judged."""
        if self._open and self._claim is not None:
            self._handshake.wait(event, identity, rights)
            self.principal = identity.principal
            self._claim(self, identity.principal, event.client_id or self._handshake.session_id)

    def granted(self, now_s: float, wall_us: int) -> bool:
        """Connect to the session that was claimed; return False if the connection has ended, so that the session is free."""
        claimed, held = self._handshake.end_wait()
        if claimed is None or not self._open:
            return False
        try:
            self._join(*claimed, now_s)
        except ProtocolError as failure:
            self.close_with(failure, now_s)
            return False
        self._take(held, now_s, wall_us)
        return True

    def refused(self, failure: ProtocolError, now_s: float) -> None:
        """End the connection, because it does not get the session that was claimed, or its credentials are refused."""
        self._handshake.end_wait()
        self.close_with(failure, now_s)

    def _join(self, event: Connect, identity: Identity, now_s: float) -> None:
        self._connection = connection = self._handshake.join(event, identity, self._wake, now_s)
        heart_beat_ms = (self._settings.listener.heart_beat_ms, self._settings.listener.heart_beat_ms)
        self._heart_beat = HeartBeat(heart_beat_ms, event.heart_beat_ms, now_s)
        self.phase = _CONNECTED
        self.principal = identity.principal
        self.client_id = connection.session.client_id
        self.version = "1.2" if event.version == VERSION_1_2 else "1.1"
        self.connected_at_s = now_s
        incarnation = self._broker.incarnation if event.incarnation else None
        self._output.append(
            connected(event.version, self.client_id, heart_beat_ms, f"maxam/{__version__}", incarnation)
        )
        self._wake()

    def close_with(self, failure: ProtocolError, now_s: float) -> None:
        """End with an ERROR, after all RECEIPTs that are due within `linger_timeout_s`."""
        if self._open:
            self._error = failure
            self._end(_FAILING, self._settings.limits.linger_timeout_s, f"error: {failure.message}", now_s)

    def _end(self, phase: Phase, timeout_s: float, reason: str, now_s: float) -> None:
        """Start no further value, and finish once all RECEIPTs have left or time is up."""
        if self._connection is not None:
            self._connection.quiet = True
        self.phase = phase
        self._release(now_s)
        self._flush_by_s = now_s + timeout_s
        self.end = reason
        self._wake()

    def _last_words(self, now_s: float) -> list[bytes]:
        """Return the ERROR once the receipts before it have left or waited long enough; finish then."""
        waiting = self._connection is not None and bool(self._connection.receipts)
        if waiting and now_s < self._flush_by_s:
            return []
        self.phase = _FINISHED
        if self._error is None:
            return []
        version = VERSION_1_2 if self._connection is None else self._connection.version
        return [error(version, self._error)]

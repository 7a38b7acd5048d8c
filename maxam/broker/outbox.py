"""Delivery to one connection: its receipts in order, its window, and its ready subscriptions.

Theory of operation. An outbox has queues of work, not of messages: receipts of frames that were read, and subscriptions that have topics
ready. A value is read from its topic when its bytes are asked for, and not before.

Invariants:
* a receipt leaves when the operation at its position is done, and never before one that was put in earlier;
* `ready_queue` holds each subscription of this connection with a non-empty `ready` exactly once;
* `in_flight` is the number of un-acked messages over all its subscriptions;
* what was handed out for durable subscriptions in ack mode auto is in `unwritten` until the next `drain` proves it written.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias, final

from maxam.broker.acknowledgements import Acknowledgements
from maxam.broker.operations import OperationLog
from maxam.broker.policy import Rights
from maxam.broker.refined_delivery import RefinedDelivery
from maxam.broker.refinement import Refinement
from maxam.broker.session import NOT_OWED, Session, Subscription, Topic
from maxam.broker.unknown import UnknownTopics
from maxam.broker.window import Window
from maxam.broker.wire_cache import Chunk, WireCache
from maxam.errors import ProtocolError
from maxam.metrics import Counters
from maxam.records import Headers, Identity
from maxam.stomp.encoder import receipt, receipt_accepted

VALUES_BYTES_MAX: Final = 16_384  # handed out at a time: what the socket does not take grows stale
RECEIPTS_BYTES_MAX: Final = 65_536  # handed out at a time; a receipt cannot grow stale
WITHHELD_MAX: Final = 1000  # values without a right to them that one `drain` skips: 1 ms
_BYTES_PER_WEIGHT: Final = 20  # that the evaluation of a selector and a conversion count as
SUBSCRIPTION_REFUSED: Final = ProtocolError(
    "disk full", "the durable subscription could not be stored; try again later"
)
_RECEIPT_BYTES: Final = 96  # of a pending receipt, in addition to its id and the texts of a rejection


@final
class ConditionalReceipt:
    """The answer to a SEND, if an operation is applied that is not yet: one that it was compared with, or its own.

    Attributes:
        headers: The answer.
        position: Of that operation.
    """

    __slots__ = ("headers", "position")

    def __init__(self, headers: Headers, position: int) -> None:
        self.headers: Final = headers
        self.position: Final = position


# None stands for "accepted", a subscription for the position that it has when the RECEIPT is sent.
Answer: TypeAlias = Headers | ConditionalReceipt | Subscription | None


@final
class Outbox:
    """The frames that one connected client is to be sent.

    Attributes:
        refined: Delivery to subscriptions that have a refinement; None until there is one.
        quiet: No further value is started: the client disconnects, failed, or lost its session.
        failure: Why the broker closes it. The ERROR comes after all receipts.
        position: Of the last operation that a frame of it appended.
        messages: MESSAGE frames handed out.
        rejections_end: A rejected SEND ends the connection with an ERROR.
        number: On a front, its number for the broker that orders its SENDs, if rejections end it; else 0.
        rejected: SENDs that were `rejected-invalid` or `rejected-unauthorised`.
        unheard: Those of them that neither a RECEIPT nor an ERROR reported to the client.
    """

    __slots__ = (
        "_acknowledgements",
        "_counters",
        "_log",
        "_wake",
        "_wires",
        "awake",
        "failure",
        "full_since_s",
        "identity",
        "in_flight",
        "journalled",
        "messages",
        "number",
        "paused_until_s",
        "position",
        "quiet",
        "ready_queue",
        "receipts",
        "receipts_bytes",
        "refined",
        "rejected",
        "rejections_end",
        "rights",
        "session",
        "skipped_s",
        "unheard",
        "unwritten",
        "version",
        "waiting",
        "window",
    )

    def __init__(
        self,
        log: OperationLog,
        wires: WireCache,
        acknowledgements: Acknowledgements,
        counters: Counters,
        identity: Identity,
        session: Session,
        version: int,
        window: Window,
        wake: Callable[[], None],
        rejections_end: bool,
    ) -> None:
        self._log: Final = log
        self._wires: Final = wires
        self._acknowledgements: Final = acknowledgements
        self._counters: Final = counters
        self.rejections_end: Final = rejections_end
        self.number = 0
        self.rejected = 0
        self.unheard = 0
        self._wake: Final = wake
        self.identity: Final = identity
        self.session: Final = session
        self.version: Final = version
        self.window: Final = window
        self.rights: Rights = session.rights
        self.refined: RefinedDelivery | None = None
        self.quiet = False
        self.failure: ProtocolError | None = None
        self.awake = False  # the writer was woken, and `drain` has handed out something ever since
        self.waiting = False  # its receipts wait for the batch that is being gathered
        self.position = 0
        self.receipts: Final[deque[tuple[int, bytes, Answer]]] = deque()
        self.receipts_bytes = 0
        self.ready_queue: Final[deque[Subscription]] = deque()
        self.in_flight = 0
        self.journalled = 0  # durable SUBSCRIBEs and UNSUBSCRIBEs since `Broker.charge`
        self.paused_until_s = -1.0  # no frame of it is read before this time, unless it is negative
        self.skipped_s = (
            -1.0
        )  # when `drain` stopped because of withheld values and must be called again, unless negative
        self.full_since_s = -1.0  # since when the window is full while values wait, unless negative
        self.unwritten: Final[
            list[tuple[Subscription, Topic, int, int]]
        ] = []  # with revision, and since when it was lacked
        self.messages = 0

    def wake(self) -> None:
        """Have the writer check again what it may send, and the state of the connection."""
        self._wake()

    def promise(self, receipt_id: bytes, headers: Answer) -> None:
        """Owe a RECEIPT for the frame just handled: after its operation is done, and after all earlier ones."""
        self.receipts.append((self.position, receipt_id, headers))
        self.receipts_bytes += _receipt_bytes(receipt_id, headers)

    def promise_of_ack(self, receipt_id: bytes, subscription: Subscription) -> None:
        """Owe the RECEIPT of an ACK; it has the position of the subscription when it is sent, if the client asked for positions."""
        refinement = subscription.refinement
        self.promise(receipt_id, subscription if refinement is not None and refinement.markers else ())

    def _position_of(self, subscription: Subscription) -> Headers:
        refinement = subscription.refinement
        if self.refined is None or refinement is None or not refinement.markers:
            return ()
        position = self.refined.position(subscription, refinement)
        return ((b"position", position.encode()),) if position else ()

    def wake_if_due(self) -> None:
        """Wake the writer if there may be something to send, unless it was woken and has not found out yet."""
        if not self.awake and (self.ready_queue or self.receipts):
            self.awake = True
            self._wake()

    def add_ready(self, subscription: Subscription) -> None:
        """Put a subscription that has become ready into the queue, and wake the writer."""
        subscription.queued = True
        self.ready_queue.append(subscription)
        if not self.awake:
            self.awake = True
            self._wake()

    def leave(self, subscription: Subscription) -> None:
        """Take a subscription out of the queue."""
        if subscription.queued:
            subscription.queued = False
            self.ready_queue.remove(subscription)
        if self.refined is not None:
            self.refined.leave(subscription)
        if self.in_flight < self.window.size:
            self.full_since_s = -1.0

    def refuse(self, headers: Headers, done: int, moved: dict[int, int], failed: set[int]) -> None:
        """Answer every SEND whose operation was given back, or was compared with one, with `headers`; other receipts wait on.

        Args:
            headers: The answer.
            done: Operations that were done before. All later ones were given back, except those in `moved`.
            moved: Old and new positions.
            failed: Positions whose place the ERROR takes. Nothing comes after it.
        """
        receipts = list(self.receipts)
        self.receipts.clear()
        self.receipts_bytes = 0
        last = 0  # positions never fall: a receipt that waits for the last one waits for all
        for position, receipt_id, answer in receipts:
            if position in failed:
                self.expel(SUBSCRIPTION_REFUSED)
                break
            last = max(last, moved.get(position, position))
            refused = (
                position > done if answer is None else type(answer) is ConditionalReceipt and answer.position > done
            )
            if refused and self.rejections_end:
                self.expel(rejection_error(headers, receipt_id))
                break
            answer = headers if refused else answer  # noqa: PLW2901  # as it is now
            self.receipts.append((last, receipt_id, answer))
            self.receipts_bytes += _receipt_bytes(receipt_id, answer)
        self.position = max(self.position, last)

    def answer_send(self, position: int, headers: Headers) -> bytes | None:
        """Replace the answer to the SEND with a position; return the id of its RECEIPT, None if it has none."""
        for index, (place, receipt_id, answer) in enumerate(self.receipts):
            if place > position:
                break
            if place == position and (answer is None or type(answer) is ConditionalReceipt):
                self.receipts_bytes += _receipt_bytes(receipt_id, headers) - _receipt_bytes(receipt_id, answer)
                self.receipts[index] = (place, receipt_id, headers)
                return receipt_id
        return None

    def answer_with_revision(self, position: int, headers: Headers) -> None:
        """Complete the answer to the SEND with a position, if that has the revision of the change."""
        for index, (place, receipt_id, answer) in enumerate(self.receipts):
            if place > position:
                break
            if place == position and type(answer) is ConditionalReceipt:
                self.receipts_bytes += _receipt_bytes(receipt_id, headers) - _receipt_bytes(receipt_id, answer)
                self.receipts[index] = (place, receipt_id, headers)

    def drop_receipts(self, position: int) -> None:
        """Drop the answers to the frame with a position and to all later ones: the ERROR takes their place."""
        while self.receipts and self.receipts[-1][0] >= position:
            _, receipt_id, answer = self.receipts.pop()
            self.receipts_bytes -= _receipt_bytes(receipt_id, answer)

    def expel(self, failure: ProtocolError) -> None:
        """Have the connection closed with an ERROR; the first reason stands."""
        if self.failure is None and not self.quiet:
            self.failure = failure
            self.quiet = True
            self.wake()

    @property
    def values_ready(self) -> bool:
        """Whether `drain` would hand out values."""
        return bool(self.ready_queue) and not self.quiet and self.in_flight < self.window.size

    def drain(self, now_s: float) -> list[bytes]:
        """Hand out the next bytes: receipts that are due, then values.

        The parts of the call before this one count as written.

        Returns:
            Parts to be written in order: about VALUES_BYTES_MAX of values, or one large one. Empty when nothing is due; `wake` is
            called when that changes.
        """
        if self.unwritten:
            self._confirm(now_s)
        self.skipped_s = -1.0
        out: list[bytes] = []
        refined = self.refined
        if refined is not None:
            for subscription in refined.run_timers(now_s):
                self.add_ready(subscription)
        if self.receipts and self.receipts[0][0] <= self._log.applied_seq:
            self._drain_receipts(out)
        if not self.quiet and self.ready_queue:
            self._drain_values(out, now_s)
        if refined is not None and refined.marking and not self.quiet:
            refined.markers(now_s, out)
            if refined.marking:
                self.skipped_s = now_s
        self.awake = bool(out) or self.skipped_s >= 0
        return out

    def _drain_receipts(self, out: list[bytes]) -> None:
        receipts = self.receipts
        done = self._log.applied_seq
        version = self.version
        size = 0
        while receipts and receipts[0][0] <= done and size < RECEIPTS_BYTES_MAX:
            _, receipt_id, headers = receipts.popleft()
            self.receipts_bytes -= _receipt_bytes(receipt_id, headers)
            if headers is None:
                frame = receipt_accepted(version, receipt_id)
            elif type(headers) is Subscription:
                frame = receipt(version, receipt_id, self._position_of(headers))
            else:
                frame = receipt(
                    version, receipt_id, headers.headers if type(headers) is ConditionalReceipt else headers
                )
            size += len(frame)
            out.append(frame)

    def _drain_values(self, out: list[bytes], now_s: float) -> None:  # noqa: C901 - the hot path: calls cost more
        ready_queue = self.ready_queue
        count = 0
        size = 0
        withheld = 0
        if len(ready_queue) == 1 and self.in_flight < self.window.size:
            alone = ready_queue[0]
            plain = not alone.acknowledged and not alone.durable and alone.refinement is None
            if plain and alone.checked is self.rights:
                count = self._drain_alone(alone, out)
                size = VALUES_BYTES_MAX
        subscription: Subscription | None = None
        while size < VALUES_BYTES_MAX:
            if subscription is None and not ready_queue:
                break
            if self.in_flight >= self.window.size:
                if self.full_since_s < 0:
                    self.full_since_s = now_s
                break
            if subscription is None:
                subscription = ready_queue.popleft()
            topic = subscription.take()
            current = subscription
            if not current.ready:
                current.queued = False
                subscription = None
            elif ready_queue:
                ready_queue.append(current)
                subscription = None
            # else it stays first
            permitted = current.checked is self.rights or current.permits(topic, self.rights)
            if permitted and current.refinement is None:
                shared = self._shared(topic, current.variant)
                out.append(current.prefix)
                out.append(shared)
                size += len(current.prefix) + len(shared)
            elif (added := self._drain_refined(current, topic, out, now_s, permitted)) == 0:
                withheld += 1 if current.refinement is None else 1 + current.refinement.spend()
                if withheld < WITHHELD_MAX:
                    continue
                self.skipped_s = now_s
                break
            else:
                size += added
            count += 1
            if current.acknowledged:
                self._hold(current, topic, now_s, subscription is None and not ready_queue)
            elif current.durable:
                self.unwritten.append((current, topic, topic.change.revision, current.taken_since_us()))
        if subscription is not None:
            ready_queue.appendleft(subscription)
        self.messages += count
        self._counters.messages += count

    def _drain_refined(
        self, subscription: Subscription, topic: Topic, out: list[bytes], now_s: float, permitted: bool
    ) -> int:
        """Hand out a topic with all that its subscription asked for; return how many bytes, 0 if nothing is to be sent now."""
        if self.refined is None or subscription.refinement is None:
            return 0  # a plain one, not permitted
        if not permitted:
            self.refined.withhold(subscription, subscription.refinement, topic)
            return 0
        parts = self.refined.frame(subscription, subscription.refinement, topic, now_s)
        out += parts
        if not parts and subscription.durable and topic not in subscription.owed:
            # As if it had been written: it is settled with what was written before, and not earlier.
            self.unwritten.append((subscription, topic, topic.change.revision, subscription.taken_since_us()))
        return sum([len(part) for part in parts]) + (
            _BYTES_PER_WEIGHT * subscription.refinement.spend() if parts else 0
        )

    def _drain_alone(self, subscription: Subscription, out: list[bytes]) -> int:
        """Hand out values to the only subscription that has some ready, when nothing need be noted of them; return how many."""
        prefix = subscription.prefix
        variant = subscription.variant
        parts: list[bytes] = []
        topics: list[Topic] = []
        size = 0
        chunk = self._wires.chunks.get(subscription.next())
        if (
            chunk is not None
            and chunk.prefix == prefix
            and chunk.variant == variant
            and subscription.take_alike(chunk.topics)
        ):
            out.append(chunk.data)
            size = chunk.size
            count = len(chunk.topics)
        else:
            chunk = None
            count = 0
        while size < VALUES_BYTES_MAX and subscription.ready:
            topic = subscription.take()
            topics.append(topic)
            shared = self._shared(topic, variant)
            parts.append(prefix)
            parts.append(shared)
            size += len(prefix) + len(shared)
        count += len(topics)
        if chunk is None and count > 1 and len(topics[0].routes) > 1 and size < 2 * VALUES_BYTES_MAX:
            topics.reverse()
            chunk = Chunk(prefix, variant, topics, size, b"".join(parts))
            self._wires.keep_chunk(chunk)
            out.append(chunk.data)
        else:
            out += parts
        if not subscription.ready:
            subscription.queued = False
            self.ready_queue.clear()
        return count

    def _shared(self, topic: Topic, variant: int) -> bytes:
        wire = topic.change.wire
        return wire[1] if wire is not None and wire[0] == variant else self._wires.encode(topic, variant)

    def _hold(self, subscription: Subscription, topic: Topic, now_s: float, last: bool) -> None:
        """Note that a value was handed out that the client will acknowledge; `last` when nothing waits after it."""
        self.in_flight += 1
        change = topic.change
        revision = change.revision
        subscription.sent.append(revision)
        subscription.held[topic] = NOT_OWED
        subscription.unacked[revision] = (topic, self.window.sent(now_s, last), subscription.taken_since_us())

    def _confirm(self, now_s: float) -> None:
        for subscription, topic, revision, _ in self.unwritten:
            if not subscription.removed:
                self._acknowledgements.written(subscription, topic.destination, revision, now_s)
        self.unwritten.clear()

    def unconfirm(self, subscription: Subscription) -> None:
        """Forget which values were handed out for a subscription and not proven written: it owes them again.

        If they were acknowledged now, the journal would have that after the record that makes it owe them.
        """
        again = [one for one in self.unwritten if one[0] is subscription and not one[1].change.deleted]
        if again:
            self.unwritten[:] = [one for one in self.unwritten if one[0] is not subscription or one[1].change.deleted]
        for _, topic, _, since_us in reversed(again):
            subscription.give_back(topic, since_us)

    def lost(self) -> None:
        """Owe again what was handed out and not proven written."""
        for subscription, topic, _, since_us in reversed(self.unwritten):
            if not subscription.removed:
                subscription.give_back(topic, since_us)
        self.unwritten.clear()

    def pause(self, until_s: float) -> None:
        """Have no frame read before a time: the principal has used up what it may journal."""
        self.paused_until_s = until_s
        self.wake()

    @property
    def due_s(self) -> float | None:
        """When `probe` and then `drain` must be called, or None."""
        due_s = self.skipped_s if self.skipped_s >= 0 else self._stalled_at_s
        if self.refined is None or self.refined.due_s < 0:
            return due_s
        return self.refined.due_s if due_s is None else min(due_s, self.refined.due_s)

    def notify(self, subscription: Subscription) -> None:
        """Have the notices of a subscription sent."""
        if self.refined is not None:
            self.refined.notify(subscription)
            self.wake()

    def begin_initial(self, subscription: Subscription, refinement: Refinement) -> None:
        """Record that a subscription owes all of its initial state."""
        if self.refined is not None:
            self.refined.begin_initial(subscription, refinement)
            if self.refined.marking:
                self.wake()

    def refine(self, subscription: Subscription, refinement: Refinement, unknown: UnknownTopics) -> None:
        """Have a subscription delivered as its newest SUBSCRIBE refines it."""
        subscription.refinement = refinement
        if self.refined is None:
            self.refined = RefinedDelivery(self._log, self._wires, self.version, unknown)
        self.refined.arm(subscription, refinement)

    @property
    def _stalled_at_s(self) -> float | None:
        if self.full_since_s < 0 or self.window.size >= self.window.limit:
            return None
        return self.full_since_s + self.window.stall_timeout_s

    def probe(self, now_s: float) -> None:
        """Widen a window that has been full for too long, so that a client that acks many messages at once goes on."""
        due_s = self._stalled_at_s
        if due_s is not None and now_s >= due_s:
            self.window.stalled()
            self.full_since_s = now_s
            self.wake()


def rejection_error(headers: Headers, receipt_id: bytes | None) -> ProtocolError:
    """Return the ERROR for a rejected SEND; `headers` are those of its RECEIPT, in the order in which `Broker` makes them."""
    disposition, _, result, reason = [value.decode() for _, value in headers]
    return ProtocolError(
        f"{disposition}/{result}",
        f"The SEND was rejected: {reason}. It had no effect, and no SEND after it has one; correct it, then reconnect. "
        "A connection without rejections:error gets this in a RECEIPT and lives on.",
        receipt_id,
        headers,
    )


def _receipt_bytes(receipt_id: bytes, headers: Answer) -> int:
    size = len(receipt_id) + _RECEIPT_BYTES
    if headers is None or type(headers) is Subscription:
        return size
    return size + sum(
        [len(value) for _, value in (headers.headers if type(headers) is ConditionalReceipt else headers)]
    )

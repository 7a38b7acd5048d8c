"""Delivery to one connection: its receipts in order, its window, and the turns of its subscriptions.

Theory: nothing is queued here but what names work: receipts of frames that were read, and subscriptions that have topics
ready. A value is looked up when its bytes are asked for, and not a moment before.

Invariants:
* a receipt leaves when the operation at its position is done, and never before one that was put in earlier;
* `turns` holds each subscription of this connection with a non-empty `ready` exactly once;
* `in_flight` is the number of un-acked messages over all its subscriptions;
* what was handed out for durable subscriptions in ack mode auto is in `unwritten` until the next `drain` proves it written.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from maxam.broker.store import Topic
from maxam.broker.window import Window
from maxam.errors import ProtocolError
from maxam.records import Headers, Identity
from maxam.stomp.encoder import receipt, receipt_accepted

if TYPE_CHECKING:
    from maxam.broker.broker import Broker
    from maxam.broker.policy import Rights
    from maxam.broker.session import Session, Subscription

VALUES_BYTES_MAX: Final = 16_384  # handed out at a time: what the socket does not take grows stale
RECEIPTS_BYTES_MAX: Final = 65_536  # handed out at a time; a receipt cannot grow stale
SUBSCRIPTION_REFUSED: Final = ProtocolError(
    "disk full", "the durable subscription could not be stored; try again later"
)
_RECEIPT_BYTES: Final = 96  # of a pending receipt beside its id and what a rejection says


@final
class Chunk:
    """Values as they were handed out in one go, for the next subscription with the same id and ack mode auto that is owed the same.

    Dashboards of one make are many, and those that keep up are always owed the same.
    """

    __slots__ = ("data", "prefix", "size", "topics", "variant")

    def __init__(self, prefix: bytes, variant: int, topics: list[Topic], size: int, data: bytes) -> None:
        self.prefix: Final = prefix
        self.variant: Final = variant
        self.topics: Final = topics  # in reverse
        self.size: Final = size  # as VALUES_BYTES_MAX counts
        self.data: Final = data  # of the newest changes: void after the next commit


@final
class Compared:
    """What a RECEIPT says of a SEND if an operation is done that is not yet: one that it was compared with, or its own.

    Attributes:
        headers: The answer.
        position: Of that operation.
    """

    __slots__ = ("headers", "position")

    def __init__(self, headers: Headers, position: int) -> None:
        self.headers: Final = headers
        self.position: Final = position


@final
class Connection:
    """What one connected client is to be sent.

    Attributes:
        quiet: No value is started any more: the client disconnects, failed, or lost its session.
        failure: Why the broker closes it, set by whoever decides that; the ERROR takes its place behind all receipts.
        position: Of the last operation that a frame of it appended.
        messages: MESSAGE frames handed out.
    """

    __slots__ = (
        "_broker",
        "_wake",
        "awake",
        "failure",
        "full_since_s",
        "identity",
        "in_flight",
        "messages",
        "position",
        "quiet",
        "receipts",
        "receipts_bytes",
        "rights",
        "session",
        "turns",
        "unwritten",
        "version",
        "waiting",
        "window",
    )

    def __init__(
        self,
        broker: "Broker",
        identity: Identity,
        session: "Session",
        version: int,
        window: Window,
        wake: Callable[[], None],
    ) -> None:
        self._broker: Final = broker
        self._wake: Final = wake
        self.identity: Final = identity
        self.session: Final = session
        self.version: Final = version
        self.window: Final = window
        self.rights: Rights = session.rights
        self.quiet = False
        self.failure: ProtocolError | None = None
        self.awake = False  # a wake-up is under way, or the writer is at work
        self.waiting = False  # its receipts wait for the batch that is being gathered
        self.position = 0
        self.receipts: Final[deque[tuple[int, bytes, Headers | Compared | None]]] = deque()  # None: accepted
        self.receipts_bytes = 0
        self.turns: Final[deque[Subscription]] = deque()
        self.in_flight = 0
        self.full_since_s = -1.0  # since when the window is full while values wait; negative: it is not
        self.unwritten: Final[
            list[tuple[Subscription, Topic, int, int]]
        ] = []  # with revision, and since when it was lacked
        self.messages = 0

    def wake(self) -> None:
        """Tell the writer that there may be something to send."""
        self._wake()

    def promise(self, receipt_id: bytes, headers: Headers | Compared | None) -> None:
        """Owe a RECEIPT for the frame just handled: after its operation is done, and after all earlier ones."""
        self.receipts.append((self.position, receipt_id, headers))
        self.receipts_bytes += _receipt_bytes(receipt_id, headers)

    def turn(self, subscription: "Subscription") -> None:
        """Put a subscription that has become ready into the queue for its turn."""
        subscription.turning = True
        self.turns.append(subscription)

    def leave(self, subscription: "Subscription") -> None:
        """Take a subscription out of the queue."""
        if subscription.turning:
            subscription.turning = False
            self.turns.remove(subscription)
        if self.in_flight < self.window.size:
            self.full_since_s = -1.0

    def refuse(self, headers: Headers, done: int, moved: dict[int, int], failed: set[int]) -> None:
        """Answer every SEND whose operation was given back, or was compared with one, with `headers`; other receipts wait on.

        Args:
            headers: The answer.
            done: Operations that were done before; all behind them were given back, but those in `moved`.
            moved: Old and new positions.
            failed: Positions whose place the ERROR takes; nothing comes behind it.
        """
        receipts = list(self.receipts)
        self.receipts.clear()
        self.receipts_bytes = 0
        last = 0  # positions never fall, so that whoever waits for the last one waits for all
        for position, receipt_id, answer in receipts:
            if position in failed:
                self.expel(SUBSCRIPTION_REFUSED)
                break
            last = max(last, moved.get(position, position))
            refused = position > done if answer is None else type(answer) is Compared and answer.position > done
            answer = headers if refused else answer  # noqa: PLW2901  # as it is now
            self.receipts.append((last, receipt_id, answer))
            self.receipts_bytes += _receipt_bytes(receipt_id, answer)
        self.position = max(self.position, last)

    def expel(self, failure: ProtocolError) -> None:
        """Have the connection closed with an ERROR; the first reason stands."""
        if self.failure is None and not self.quiet:
            self.failure = failure
            self.quiet = True
            self.wake()

    @property
    def values_ready(self) -> bool:
        """Whether `drain` would hand out values."""
        return bool(self.turns) and not self.quiet and self.in_flight < self.window.size

    def drain(self, now_s: float) -> list[bytes]:
        """Hand out the next bytes: receipts that are due, then values.

        What the call before this one handed out counts as written.

        Returns:
            Parts to be written in order, about VALUES_BYTES_MAX of values or one large one; empty when nothing is due, and
            then `wake` is called when that changes.
        """
        if self.unwritten:
            self._confirm(now_s)
        out: list[bytes] = []
        if self.receipts and self.receipts[0][0] <= self._broker.done:
            self._drain_receipts(out)
        if not self.quiet and self.turns:
            self._drain_values(out, now_s)
        self.awake = bool(out)
        return out

    def _drain_receipts(self, out: list[bytes]) -> None:
        receipts = self.receipts
        done = self._broker.done
        version = self.version
        size = 0
        while receipts and receipts[0][0] <= done and size < RECEIPTS_BYTES_MAX:
            _, receipt_id, headers = receipts.popleft()
            self.receipts_bytes -= _receipt_bytes(receipt_id, headers)
            if headers is None:
                frame = receipt_accepted(version, receipt_id)
            else:
                frame = receipt(version, receipt_id, headers.headers if type(headers) is Compared else headers)
            size += len(frame)
            out.append(frame)

    def _drain_values(self, out: list[bytes], now_s: float) -> None:
        turns = self.turns
        count = 0
        size = 0
        if len(turns) == 1 and self.in_flight < self.window.size:
            alone = turns[0]
            if not alone.acknowledged and not alone.durable and alone.checked is self.rights:
                count = self._drain_alone(alone, out)
                size = VALUES_BYTES_MAX
        subscription: Subscription | None = None
        while size < VALUES_BYTES_MAX:
            if subscription is None and not turns:
                break
            if self.in_flight >= self.window.size:
                if self.full_since_s < 0:
                    self.full_since_s = now_s
                break
            if subscription is None:
                subscription = turns.popleft()
            topic = subscription.take()
            current = subscription
            if not current.ready:
                current.turning = False
                subscription = None
            elif turns:
                turns.append(current)
                subscription = None
            # else it has the next turn too
            if current.checked is not self.rights and not current.permits(topic, self.rights):
                continue
            shared = self._shared(topic, current.variant)
            out.append(current.prefix)
            out.append(shared)
            size += len(current.prefix) + len(shared)
            count += 1
            if current.acknowledged:
                self._hold(current, topic, now_s, subscription is None and not turns)
            elif current.durable:
                self.unwritten.append((current, topic, topic.change.revision, current.lacked_since_us(topic)))
        if subscription is not None:
            turns.appendleft(subscription)
        self.messages += count
        self._broker.counters.messages += count

    def _drain_alone(self, subscription: "Subscription", out: list[bytes]) -> int:
        """Hand out values to the only subscription that has some ready, when nothing need be noted of them; return how many."""
        broker = self._broker
        prefix = subscription.prefix
        variant = subscription.variant
        parts: list[bytes] = []
        topics: list[Topic] = []
        size = 0
        chunk = broker.chunks.get(subscription.next())
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
            broker.keep_chunk(chunk)
            out.append(chunk.data)
        else:
            out += parts
        if not subscription.ready:
            subscription.turning = False
            self.turns.clear()
        return count

    def _shared(self, topic: Topic, variant: int) -> bytes:
        wire = topic.change.wire
        return wire[1] if wire is not None and wire[0] == variant else self._broker.encode(topic, variant)

    def _hold(self, subscription: "Subscription", topic: Topic, now_s: float, last: bool) -> None:
        """Note that a value was handed out that the client will acknowledge; `last` when nothing waits behind it."""
        self.in_flight += 1
        change = topic.change
        revision = change.revision
        subscription.sent.append(revision)
        subscription.held.add(topic)
        since_us = subscription.taken_us or change.accepted_at_us  # as `lacked_since_us` has it
        subscription.unacked[revision] = (topic, self.window.sent(now_s, last), since_us)

    def _confirm(self, now_s: float) -> None:
        for subscription, topic, revision, _ in self.unwritten:
            if not subscription.removed:
                self._broker.settle(subscription, topic.destination, revision, now_s)
        self.unwritten.clear()

    def unconfirm(self, subscription: "Subscription") -> None:
        """Forget which values were handed out for a subscription and not proven written: it owes them again.

        Were they acknowledged now, the journal would say so behind what makes it owe them.
        """
        again = [one for one in self.unwritten if one[0] is subscription and not one[1].change.deleted]
        if again:
            self.unwritten[:] = [one for one in self.unwritten if one[0] is not subscription or one[1].change.deleted]
        for _, topic, _, since_us in reversed(again):
            subscription.give_back(topic, since_us)

    def lacked_before(self, subscription: "Subscription", topic: Topic, since_us: int) -> None:
        """Take note that what was handed out of a topic, if anything, and is not proven written, was lacked since then at least."""
        for place, (one, other, revision, lacked_us) in enumerate(self.unwritten):
            if one is subscription and other is topic and lacked_us > since_us:
                self.unwritten[place] = (one, other, revision, since_us)

    def lost(self) -> None:
        """Owe again what was handed out and not proven written."""
        for subscription, topic, _, since_us in reversed(self.unwritten):
            if not subscription.removed:
                subscription.give_back(topic, since_us)
        self.unwritten.clear()

    @property
    def due_s(self) -> float | None:
        """When `probe` must be called, or None."""
        if self.full_since_s < 0 or self.window.size >= self.window.limit:
            return None
        return self.full_since_s + self.window.stall_timeout_s

    def probe(self, now_s: float) -> None:
        """Widen a window that has been full for too long, so that a client that acks many messages at once goes on."""
        due_s = self.due_s
        if due_s is not None and now_s >= due_s:
            self.window.stalled()
            self.full_since_s = now_s
            self.wake()


def _receipt_bytes(receipt_id: bytes, headers: Headers | Compared | None) -> int:
    size = len(receipt_id) + _RECEIPT_BYTES
    if headers is None:
        return size
    return size + sum([len(value) for _, value in (headers.headers if type(headers) is Compared else headers)])

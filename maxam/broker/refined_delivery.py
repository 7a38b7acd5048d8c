"""Delivery to the subscriptions of one connection that have a refinement: their frames, their timers and their markers.

Theory of operation. The outbox takes topics as for any subscription and asks here for the frame of each. Intervals and markers need
time: each subscription has at most one timer that counts, in one heap. Markers and notices are outside the window. They follow the values
that were taken before them.
"""

from heapq import heapify, heappop, heappush
from typing import Final, final

from maxam.broker.operations import OperationLog
from maxam.broker.positions import position_text, void_position
from maxam.broker.refinement import COMPLETE, LEAVE, LINK_DOWN, OVERDUE, SKIP, WAIT, WITHDRAWN, Refinement
from maxam.broker.session import OVERDUE as OVERDUE_TOPIC
from maxam.broker.session import Subscription, Topic
from maxam.broker.unknown import UnknownTopics
from maxam.broker.wire_cache import WireCache
from maxam.content import EMPTY_CONTENT
from maxam.stomp.encoder import marker, notice, with_conflated

NOTICES_MAX: Final = 1000  # handed out at a time: 1 ms
INTERVALS_MAX: Final = 1000  # ended at a time: 0.6 ms
_SINCE_UNAVAILABLE: Final = (b"result", b"since-unavailable")


@final
class RefinedDelivery:
    """Frames, timers and markers for the refined subscriptions of one connection."""

    __slots__ = ("_left", "_log", "_marking", "_numbers", "_timers", "_unknown", "_version", "_wires")

    def __init__(self, log: OperationLog, wires: WireCache, version: int, unknown: UnknownTopics) -> None:
        self._log: Final = log
        self._unknown: Final = unknown
        self._wires: Final = wires
        self._version: Final = version
        self._timers: list[tuple[float, int, Subscription]] = []  # the number keeps subscriptions from being compared
        self._numbers = 0
        self._left = 0  # subscriptions that were forgotten since void timers were dropped
        self._marking: Final[dict[Subscription, None]] = {}  # subscriptions whose markers are due

    @property
    def due_s(self) -> float:
        """When `run_timers` must be called; negative for never."""
        return self._timers[0][0] if self._timers else -1.0

    @property
    def marking(self) -> bool:
        """Whether `markers` has something to hand out."""
        return len(self._marking) > 0

    def frame(self, subscription: Subscription, refinement: Refinement, topic: Topic, now_s: float) -> list[bytes]:
        """Return the parts of the MESSAGE for a topic that was just taken; empty if nothing is sent."""
        change = topic.change
        json = refinement.json
        if json is not None:
            json.with_pii = subscription.session.rights.pii
        verdict = refinement.decide(change)
        parts: list[bytes] = []
        if verdict == WAIT:
            subscription.put_back(topic)
        elif verdict != SKIP:
            fresh = refinement.believes_stale(change.destination)
            skipped = refinement.handed_out(change, verdict, subscription.acknowledged, now_s)
            variant = subscription.variant
            prefix = subscription.prefix
            wire = change.wire
            if refinement.metadata:
                prefix = with_conflated(prefix, skipped)
            value = None if json is None or verdict == LEAVE or change.deleted else json.content(change)
            if value is not None:
                shared = self._wires.encode_json(topic, variant, fresh, value)
            elif verdict == LEAVE:
                kind = b"left" if refinement.metadata or refinement.markers else b""
                shared = self._wires.encode_kind(topic, variant, kind, b"selector", EMPTY_CONTENT, len(EMPTY_CONTENT))
            elif fresh and not change.deleted:
                shared = self._wires.encode_kind(topic, variant, b"fresh", b"", change.content, change.body_at)
            elif wire is not None and wire[0] == variant:
                shared = wire[1]
            else:
                shared = self._wires.encode(topic, variant)
            parts = [prefix, shared]
            if refinement.markers and refinement.rights is not subscription.session.rights:
                parts = [*self._void(subscription, refinement, dropped=False), *parts]
            if topic.freshness == OVERDUE_TOPIC:
                stale = refinement.gone_stale(change.destination, OVERDUE)
            else:
                stale = (
                    refinement.markers and self._unknown.link_of(change.destination, change.publisher.principal) != ""
                )
                stale = stale and refinement.gone_stale(change.destination, LINK_DOWN)
            if stale:
                self._marking[subscription] = None
        else:
            refinement.replaced(change.destination)
            refinement.delivered(change.destination, change.revision, False)
        self._note_taken(subscription, refinement)
        return parts

    def withhold(self, subscription: Subscription, refinement: Refinement, topic: Topic) -> None:
        """Record that a topic was taken that the client may not receive."""
        refinement.delivered(topic.destination, topic.change.revision, False)
        self._note_taken(subscription, refinement)

    def _note_taken(self, subscription: Subscription, refinement: Refinement) -> None:
        if refinement.initial_left > 0:
            refinement.initial_left -= 1
            if refinement.initial_left == 0:
                self.complete(subscription, refinement)
        if refinement.markers and not subscription.owed:
            refinement.caught_up = True
        self.arm(subscription, refinement)

    # Time.

    def arm(self, subscription: Subscription, refinement: Refinement) -> None:
        """Have `run_timers` called in time for a subscription."""
        due_s = refinement.next_due_s
        if due_s >= 0 and (refinement.armed_s < 0 or due_s < refinement.armed_s):
            refinement.armed_s = due_s
            self._numbers += 1
            heappush(self._timers, (due_s, self._numbers, subscription))

    def run_timers(self, now_s: float) -> list[Subscription]:
        """Do what is due; return the subscriptions that have become ready. `due_s` is still past if that was not all."""
        ready = []
        timers = self._timers
        left = INTERVALS_MAX
        while timers and timers[0][0] <= now_s and left > 0:
            due_s, _, subscription = heappop(timers)
            refinement = subscription.refinement
            if refinement is None or not _is_valid(due_s, subscription):
                continue
            refinement.armed_s = -1.0
            ended = refinement.end_intervals(now_s, left)
            left -= 1 + len(ended)
            subscription.end_waits(ended)
            if subscription.ready and not subscription.queued:
                ready.append(subscription)
            if 0 <= refinement.marker_due_s <= now_s:
                self._marking[subscription] = None
            else:
                self.arm(subscription, refinement)
        return ready

    def leave(self, subscription: Subscription) -> None:
        """Forget a subscription, which has no refinement now. Timers are dropped when half of them may be void."""
        self._marking.pop(subscription, None)
        self._left += 1
        if 2 * self._left > len(self._timers):
            self._left = 0
            self._timers = [timer for timer in self._timers if _is_valid(timer[0], timer[2])]
            heapify(self._timers)

    # Markers and notices.

    def notify(self, subscription: Subscription) -> None:
        """Hand out the notices of a subscription with the next markers."""
        self._marking[subscription] = None

    def begin_initial(self, subscription: Subscription, refinement: Refinement) -> None:
        """Record that all topics of the initial state are owed."""
        if refinement.markers and refinement.resumed:
            self._unknown.resumed += 1
        refinement.initial_left = subscription.ready_count
        if refinement.initial_left == 0:
            self.complete(subscription, refinement)

    def complete(self, subscription: Subscription, refinement: Refinement) -> None:
        """Have the marker `complete` follow the frames handed out so far."""
        refinement.initial_left = COMPLETE
        if refinement.markers:
            refinement.completing = True
            self._marking[subscription] = None

    def markers(self, now_s: float, out: list[bytes]) -> None:
        """Append the notices and markers that are due; `marking` is still true if that was not all."""
        left = NOTICES_MAX
        for subscription in list(self._marking):
            refinement = subscription.refinement
            if refinement is not None:
                left = self._notices(subscription, refinement, left, out)
                if left <= 0:
                    return
                if refinement.completing or 0 <= refinement.marker_due_s <= now_s:
                    self._marker(subscription, refinement, now_s, out)
                if refinement.withdrawals and refinement.initial_left == COMPLETE and not subscription.scans:
                    left = self._withdraw(subscription, refinement, left, out)
                    if left <= 0:
                        return
                    self._marker(subscription, refinement, now_s, out)
            del self._marking[subscription]

    def _notices(self, subscription: Subscription, refinement: Refinement, left: int, out: list[bytes]) -> int:
        """Append the notices of a subscription, `left` at most; return how many more may follow."""
        notices = refinement.notices
        while notices and left > 0:
            destination = next(iter(notices))
            out.append(notice(self._version, subscription.id, destination, notices.pop(destination)))
            left -= 1
        return left

    def _withdraw(self, subscription: Subscription, refinement: Refinement, left: int, out: list[bytes]) -> int:
        """Do the same for topics that the client may no longer receive. Those count too that it may receive again.

        No position can be used that the client has before it has all of these notices. With the rights before it would lack a dropped
        topic, if the right had come back meanwhile. With the new rights it would keep one.
        """
        withdrawals = refinement.withdrawals
        while withdrawals and left > 0:
            destination = next(iter(withdrawals))
            del withdrawals[destination]
            left -= 1
            if subscription.session.rights.may_receive(destination):
                continue  # the right came back
            out += self._void(subscription, refinement, dropped=True)
            out.append(notice(self._version, subscription.id, destination, WITHDRAWN))
            refinement.dropped(destination)
        return left

    def _void(self, subscription: Subscription, refinement: Refinement, dropped: bool) -> list[bytes]:
        """Return a marker with a position that cannot be used, if the client has one of other rights, or drops a topic now.

        The client could use its position again if those rights came back. It would keep the topic that it is sent now.
        """
        rights = subscription.session.rights
        refinement.rights = rights
        void = void_position(self._log.incarnation)
        before = refinement.reported or refinement.earlier
        other = before.startswith(f"{self._log.incarnation}.") and not before.endswith(rights.receive_digest)
        if void in {"", before} or not (dropped or other):
            return []
        refinement.reported = void
        return [marker(self._version, subscription.id, ((b"kind", b"position"), (b"position", void.encode())))]

    def _marker(self, subscription: Subscription, refinement: Refinement, now_s: float, out: list[bytes]) -> None:
        """Append a marker, unless it would repeat the position before."""
        before = refinement.reported
        completing = refinement.completing
        refinement.completing = False
        position = self.position(subscription, refinement)
        if completing and refinement.unavailable and not position:
            position = refinement.reported = void_position(self._log.incarnation)
        if completing or position != before:
            headers = [(b"kind", b"complete" if completing else b"position")]
            if completing:
                headers.append((b"count", b"%d" % refinement.sent))
                if refinement.unavailable:
                    headers.append(_SINCE_UNAVAILABLE)
            if position:
                headers.append((b"position", position.encode()))
            out.append(marker(self._version, subscription.id, tuple(headers)))
        refinement.caught_up = False
        refinement.reported_s = now_s
        self.arm(subscription, refinement)

    def position(self, subscription: Subscription, refinement: Refinement) -> str:
        """Return the position of a subscription as text, which counts as reported then; the one before until `complete` was sent."""
        complete = refinement.initial_left == COMPLETE and not refinement.completing
        if complete and subscription.applied and not subscription.scans and not refinement.withdrawals:
            refinement.rights = subscription.session.rights
            revision = refinement.position(self._log.committed_revision)
            refinement.reported = position_text(self._log.incarnation, revision, subscription.session.rights)
        return refinement.reported


def _is_valid(due_s: float, subscription: Subscription) -> bool:
    """Return True unless the subscription was forgotten since a timer was set, or an earlier one was set."""
    refinement = subscription.refinement
    return refinement is not None and refinement.armed_s == due_s

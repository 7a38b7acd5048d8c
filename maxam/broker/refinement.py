"""Delivery as a subscription refines it: by a selector, an interval, changes only, with metadata, with markers.

Theory of operation. A plain subscription has no refinement. A refinement belongs to the newest SUBSCRIBE of its subscription, as the ack
mode does. `decide` returns whether the change of a taken topic is sent. Routing asks `concerns` before, so that a topic
that would not be sent is not owed.

The *focus* of a subscription consists of the topics of which its client may hold a value. A topic in the focus that no longer satisfies the
selector is reported once, as `left`. A new subscription has an empty focus. One that is resumed has all topics in its focus that are not known
to be outside.

The *position* of a subscription is a revision. The client has been sent everything up to there that the subscription may receive. In the
acknowledging modes it has acknowledged that too. Each topic that is owed or un-acked is *missing* since a revision. The position lies right before the earliest of
these.

All state is kept by destination, because the store may replace a topic that was deleted.

Invariants:
* a destination is in `_due_s` exactly while its interval lasts, and once in `_pace`;
* for each destination in `_missing` the heap has an entry with the same revision.
"""

from collections import deque
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import Final, final

from maxam.broker.json_values import JsonView
from maxam.broker.policy import Rights
from maxam.records import Change, Headers
from maxam.selectors.selector import Selector
from maxam.stomp.events import SubscribeOptions

SKIP: Final = 0  # nothing is sent
SEND: Final = 1  # the value or the delete
LEAVE: Final = 2  # a notice that the topic no longer satisfies the selector
WAIT: Final = 3  # nothing before the interval is over

IDLE_MARKER_S: Final = 1.0  # least time between two position markers
MARKER_S: Final = 5.0  # time after which a position that moved is reported
OVERDUE: Final = ((b"kind", b"stale"), (b"reason", b"overdue"))  # notices
LINK_DOWN: Final = ((b"kind", b"stale"), (b"reason", b"link-down"))
LINK_UP: Final = ((b"kind", b"fresh"), (b"reason", b"link-up"))
WITHDRAWN: Final = ((b"kind", b"left"), (b"reason", b"rights"))
SCANNED: Final = -2
COMPLETE: Final = -1
_NEVER: Final = -1.0
_ENDED_MAX: Final = 10_000  # topics that one client lets go of at once: 1 ms
_STEPS_ORDINARY: Final = 512  # of a selector, 25 us at most and mostly below 1 us
_TOPICS_PER_ORDINARY: Final = 20
_STALE_ENTRIES: Final = 64  # of the heap, beside as many as are valid


@final
class Refinement:
    """The headers of one SUBSCRIBE that refine delivery, and the state that they need.

    Attributes:
        markers: The client gets marker MESSAGEs and notices.
        metadata: Each MESSAGE has the metadata of its change.
        selector: The condition on values, or None.
        json: The part of values that the client gets as JSON; None if it gets bodies as they were sent.
        weight: How many topics a scan could visit while the selector is evaluated once; 0 for an ordinary selector.
        notices: Topics about which the client is to be sent a notice, in order.
        withdrawals: Topics that it may no longer receive, in order. Their notices come when no scan goes on.
        stale: Topics that were reported as stale, until their next value or the notice that they are current.
        unavailable: It had a position that cannot be used.
        sent: MESSAGEs of values, deletes and topics that left, since the SUBSCRIBE.
        initial_left: Topics that are still to be taken before the initial state is complete; COMPLETE, or SCANNED if not all of them
            are known yet.
        reported: The newest position that the client was given, as text. Empty for none.
        reported_s: When that was.
        earlier: The position that the client gave, if it is not used. Empty for none.
        rights: Rights with which the rights of `reported` or `earlier` were compared last. None before.
        armed_s: When a timer is set to call for it; negative if none is.
        completing: The marker `complete` is due.
        caught_up: Nothing was owed at a time since the newest position was reported.
    """

    __slots__ = (
        "_bodies",
        "_changes_only",
        "_due_s",
        "_focus",
        "_heap",
        "_inside",
        "_interval_s",
        "_missing",
        "_pace",
        "_skipped",
        "_tracking",
        "armed_s",
        "caught_up",
        "completing",
        "earlier",
        "initial_left",
        "json",
        "markers",
        "metadata",
        "notices",
        "reported",
        "reported_s",
        "rights",
        "selector",
        "sent",
        "stale",
        "unavailable",
        "weight",
        "withdrawals",
    )

    def __init__(
        self,
        options: SubscribeOptions,
        selector: Selector | None,
        resumed: bool,
        since: int = -1,
        json: JsonView | None = None,
    ) -> None:
        """Begin with the headers of a SUBSCRIBE.

        Args:
            options: The headers.
            selector: Its selector, compiled; None for none.
            resumed: The client may hold values of the subscription.
            since: The position that the client gave, if it can be used; -1 for none.
            json: The part of values that it gets as JSON, or None.
        """
        self.json: Final = json
        self.markers: Final = options.markers
        self.metadata: Final = options.metadata
        self.unavailable: Final = options.since is not None and since < 0 and not resumed
        self.sent = 0
        self.initial_left = SCANNED
        self.reported = options.since.decode() if options.since is not None and since >= 0 else ""
        self.rights: Rights | None = None
        self.earlier: Final = options.since.decode() if options.since is not None and since < 0 else ""
        self.reported_s = _NEVER
        self.armed_s = _NEVER
        self.completing = False
        self.caught_up = False
        self._interval_s: Final = options.interval_ms / 1000
        self._changes_only: Final = options.changes_only
        self.selector: Final = selector
        self.weight: Final[int] = 0 if selector is None else selector.steps // _STEPS_ORDINARY * _TOPICS_PER_ORDINARY
        self.notices: Final[dict[bytes, Headers]] = {}
        self.withdrawals: Final[dict[bytes, None]] = {}
        self.stale: Final[set[bytes]] = set()
        self._tracking: Final = options.markers or selector is not None
        self._inside: Final = resumed or since >= 0
        self._focus: Final[set[bytes]] = set()  # or, if `_inside`, the destinations that are outside
        self._bodies: Final[dict[bytes, bytes]] = {}  # digests of the values sent last
        self._due_s: Final[dict[bytes, float]] = {}  # when the interval of a topic ends
        self._pace: Final[deque[tuple[float, bytes]]] = deque()  # the same, in order
        self._skipped: Final[dict[bytes, int]] = {}  # values since the last one sent, if there are any
        self._missing: Final[dict[bytes, int]] = {}
        self._heap: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        """Count the entries that it keeps, in the size of an entry of a set: 64 bytes."""
        pairs = len(self._bodies) + len(self._skipped) + len(self._missing) + len(self._heap)
        pairs += len(self.notices) + len(self.withdrawals) + 2 * len(self._due_s)
        return len(self._focus) + len(self.stale) + 2 * pairs

    # Decisions.

    def concerns(self, change: Change) -> bool:
        """Return False if a change would not be sent, and its topic is outside the focus."""
        selector = self.selector
        return selector is None or selector.matches(change) or self.is_held(change.destination)

    def decide(self, change: Change) -> int:
        """Return SKIP, SEND, LEAVE or WAIT for a change that was taken."""
        destination = change.destination
        if self.selector is not None and not self.selector.matches(change):
            if not self.is_held(destination):
                return SKIP
            return SEND if change.deleted else LEAVE
        if change.deleted:
            return SEND
        if self._changes_only and self._bodies.get(destination) == self._digest(change):
            return SKIP
        return WAIT if destination in self._due_s else SEND

    def waits(self, change: Change) -> bool:
        """Return True if a change has to wait for the end of an interval. A delete never does."""
        return change.destination in self._due_s and not self.is_urgent(change)

    def is_urgent(self, change: Change) -> bool:
        """Return True if the change ends a value or takes it out of the focus: no interval delays that."""
        return change.deleted or (self.selector is not None and not self.selector.matches(change))

    def is_held(self, destination: bytes) -> bool:
        """Return True if the client may hold a value of a topic."""
        return (destination in self._focus) is not self._inside

    @property
    def holds_any(self) -> bool:
        """Return True if the client may hold a value of some topic."""
        return self._inside or len(self._focus) > 0

    def end(self) -> None:
        """Take its client out of the holders of its selector, which others use, unless there are too many topics for one step."""
        selector = self.selector
        if selector is not None and not self._inside and len(self._focus) <= _ENDED_MAX:
            for destination in self._focus:
                selector.let_go(destination)

    def spend(self) -> int:
        """Return how many topics could have been handed out in the time that the last one took in addition."""
        return self.weight if self.json is None else self.weight + self.json.take_spent_us()

    # Facts for operators.

    @property
    def interval_s(self) -> float:
        """The interval in seconds; 0 for none."""
        return self._interval_s

    @property
    def changes_only(self) -> bool:
        """Whether a value with the body of the one sent last is not sent."""
        return self._changes_only

    @property
    def resumed(self) -> bool:
        """Whether the client could hold values when it subscribed."""
        return self._inside

    def held_until_s(self, destination: bytes) -> float:
        """Return when the interval of a topic ends; negative if none lasts."""
        return self._due_s.get(destination, _NEVER)

    # The outcome of changes.

    def replaced(self, destination: bytes) -> None:
        """Count a value that was not sent."""
        if self.metadata:
            self._skipped[destination] = self._skipped.get(destination, 0) + 1

    def handed_out(self, change: Change, verdict: int, acknowledged: bool, now_s: float) -> int:
        """Record that a change was sent; return how many values of its topic were skipped before it."""
        destination = change.destination
        self.sent += 1
        self.notices.pop(destination, None)
        self.withdrawals.pop(destination, None)
        self.stale.discard(destination)
        if change.deleted or verdict == LEAVE:
            self._bodies.pop(destination, None)
            self._leave_focus(destination)
        else:
            if self._changes_only:
                self._bodies[destination] = self._digest(change)
            if self._interval_s > 0:
                due_s = now_s + self._interval_s
                self._due_s[destination] = due_s
                self._pace.append((due_s, destination))
            self._enter_focus(destination)
        if acknowledged:
            self.lacks(change)
        else:
            self.delivered(destination, change.revision, False)
        return self._skipped.pop(destination, 0) if self.metadata else 0

    def lost(self, change: Change) -> None:
        """Record that a change was sent and did not arrive."""
        self._bodies.pop(change.destination, None)
        self.lacks(change)

    def lacks(self, change: Change) -> None:
        """Record that a change is missing from now on, unless an older one of its topic is."""
        destination = change.destination
        if self.markers and destination not in self._missing:
            self._set_missing(destination, change.revision)

    def believes_stale(self, destination: bytes) -> bool:
        """Return True if the client was sent the notice that a topic is stale, and none that it is current."""
        return (destination in self.stale) is not (destination in self.notices)

    def gone_stale(self, destination: bytes, notice: Headers) -> bool:
        """Have the client sent a notice that a value may not be current; return False if it does not get any, or has one."""
        if not self.markers or destination in self.stale or not self.is_held(destination):
            return False
        if self.notices.pop(destination, None) is None:  # else the client does not know yet that it was current
            self.notices[destination] = notice
        self.stale.add(destination)
        return True

    def current_again(self, destination: bytes) -> bool:
        """Have the client sent a notice that a stale value is current; return False if it is not stale for it."""
        if destination not in self.stale:
            return False
        self.stale.discard(destination)
        if self.notices.pop(destination, None) is None:
            self.notices[destination] = LINK_UP
        return True

    def withdrawn(self, destination: bytes) -> bool:
        """Have the client sent a notice that it may no longer receive a topic; return False if it does not get any.

        The topic stays in the focus until then, because the right may come back.
        """
        if not self.markers or not self.is_held(destination):
            return False
        if self.notices.pop(destination, None) is not None:
            self.stale.discard(destination)
        self.withdrawals[destination] = None
        return True

    def dropped(self, destination: bytes) -> None:
        """Record that the client was sent that notice."""
        self.stale.discard(destination)
        self._bodies.pop(destination, None)
        self._leave_focus(destination)

    def forget(self, destinations: set[bytes]) -> None:
        """Forget topics that were deleted and that the store has forgotten. The client may hold a value if one of them comes again."""
        if self._inside:
            self._focus.difference_update(self._focus & destinations)
        for destination in self._skipped.keys() & destinations:
            del self._skipped[destination]
        for destination in self._bodies.keys() & destinations:
            del self._bodies[destination]

    def delivered(self, destination: bytes, revision: int, again: bool) -> None:
        """Record that the client has the change of a revision; `again` if a newer one is missing."""
        if again and self.markers:
            self._set_missing(destination, revision + 1)
        else:
            self._missing.pop(destination, None)

    def position(self, head: int) -> int:
        """Return the position, where `head` is the revision of the newest change."""
        heap = self._heap
        while heap and self._missing.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] - 1 if heap else head

    # Time.

    def end_intervals(self, now_s: float, most: int) -> list[bytes]:
        """End the intervals that are over, `most` at most; return their destinations."""
        ended: list[bytes] = []
        pace = self._pace
        while pace and pace[0][0] <= now_s and len(ended) < most:
            destination = pace.popleft()[1]
            del self._due_s[destination]
            ended.append(destination)
        return ended

    @property
    def marker_due_s(self) -> float:
        """When a position is to be reported that has moved; negative for never."""
        if not self.markers or self.reported_s < 0:
            return _NEVER
        return self.reported_s + (IDLE_MARKER_S if self.caught_up else MARKER_S)

    @property
    def next_due_s(self) -> float:
        """When it has something to do next, negative for never."""
        due_s = self._pace[0][0] if self._pace else _NEVER
        marker_s = self.marker_due_s
        return max(due_s, marker_s) if due_s < 0 or marker_s < 0 else min(due_s, marker_s)

    # Pieces.

    def _set_missing(self, destination: bytes, revision: int) -> None:
        self._missing[destination] = revision
        heappush(self._heap, (revision, destination))
        if len(self._heap) > 2 * len(self._missing) + _STALE_ENTRIES:
            self._heap = [(revision, destination) for destination, revision in self._missing.items()]
            heapify(self._heap)

    def _enter_focus(self, destination: bytes) -> None:
        if self._tracking:
            if self._inside:
                self._focus.discard(destination)
            elif destination not in self._focus:
                self._focus.add(destination)
                if self.selector is not None:
                    self.selector.hold(destination)

    def _leave_focus(self, destination: bytes) -> None:
        if self._tracking:
            if self._inside:
                self._focus.add(destination)
            elif destination in self._focus:
                self._focus.discard(destination)
                if self.selector is not None:
                    self.selector.let_go(destination)

    def _digest(self, change: Change) -> bytes:
        """Return the digest of the body that the client gets."""
        value = None if self.json is None else self.json.content(change)
        if value is not None:
            return blake2b(memoryview(value.content)[value.body_at :], digest_size=16).digest()
        return blake2b(memoryview(change.content)[change.body_at :], digest_size=16).digest()

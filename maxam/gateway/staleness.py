"""The staleness of each subscription: the age of the oldest change that it has not received yet.

Theory of operation. A subscription *lacks* the topics that it is owed. It also lacks those it was sent and has not acknowledged (ack
mode `client`). The third kind are those handed to a writer and not proven written (durable, ack mode `auto`). `Subscription` keeps the times, at no cost to
those that keep up. They are read here, in batches, on request. One scan serves all requests while it is under way and for some time
after it. So ten consoles and a scrape cost what one does, and never more than a twentieth of the time.

Time is the broker's: that of the wall clock, but never before the newest change.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappush, heappushpop, nlargest
from itertools import count
from operator import attrgetter
from typing import Any, Final, Literal, final

import trio

from maxam.broker.broker import Broker
from maxam.broker.session import Session, Subscription

KEPT_S: Final = 1.0  # a scan's result, at least
WORST_MAX: Final = 200  # that a scan remembers: one page
SLICE_S: Final = 0.0005  # reads before the event loop runs other tasks
_KEPT_PER_TAKEN: Final = 20  # and at least this many times the duration of the scan
_US: Final = 1_000_000

# Why a subscription is behind, as far as the broker knows.
Cause = Literal["", "detached", "paused", "unacknowledged", "unread", "catching-up", "held"]
AckMode = Literal["", "auto", "client", "client-individual"]
State = Literal["connected", "detached"]


def _wall_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class RefinementRow:
    """The headers with which a client refined its subscription.

    Attributes:
        selector: Text of its selector. None without one.
        min_interval_ms: The shortest time between two values of a topic. 0 without a limit.
        changes_only: A value with the body of the one sent last is not sent.
        markers: The client gets markers and notices.
        metadata: Each MESSAGE has the metadata of its change.
        format: `json` if values are sent as JSON, else empty.
        fields: Paths of the fields that are sent as JSON. Empty for all.
    """

    selector: str | None
    min_interval_ms: int
    changes_only: bool
    markers: bool
    metadata: bool
    format: Literal["json", ""]
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """One subscription as an operator sees it.

    Attributes:
        principal: Of its session.
        client_id: Of its session.
        id: Of its SUBSCRIBE.
        glob: Pattern of its topics.
        ack: "auto" or "client", or "" while nothing is delivered.
        durable: It outlives its connection.
        delivering: False if it waits for its re-SUBSCRIBE, or is paused.
        connected: Its session has a connection.
        owed: Topics of which it was not sent the newest change.
        unacked: Messages sent and not acknowledged.
        oldest_owed_s: How long it has lacked the oldest topic that it is owed.
        oldest_unacked_s: How long it has lacked the oldest topic that it has not acknowledged.
        staleness_s: The larger of these. 0.0 exactly when it has everything but topics that wait for the end of an interval.
        behind: It has lacked a topic for longer than `Staleness.behind_after_s`. Topics lacked for less are on their way.
        conflated: Changes that were replaced before it was sent them.
        window: Un-acked messages that its connection may have now. None without one.
        cause: One of Cause. `detached` means that its session has no connection, and `paused` that it is connected and has not
            re-subscribed. `unacknowledged` means that a subscription of its connection does not ACK, and it gets nothing more.
            `unread` means that it reads more slowly than topics change. `catching-up` means that its backfill is under way.
            `held` means that all that it lacks waits for the end of an interval. Empty means that it has everything.
        refinement: The headers that refine its delivery. None without any.
    """

    principal: str
    client_id: str
    id: str
    glob: str
    ack: AckMode
    durable: bool
    delivering: bool
    connected: bool
    owed: int
    unacked: int
    oldest_owed_s: float
    oldest_unacked_s: float
    staleness_s: float
    behind: bool
    conflated: int
    window: int | None
    cause: Cause
    refinement: RefinementRow | None


@dataclass(frozen=True, slots=True)
class LagReport:
    """The result of a scan.

    Attributes:
        at_us: Time of its end, microseconds since the epoch.
        looked_at: Subscriptions.
        behind: How many of these lack a topic for longer than is allowed.
        counts: How many there are of each state.
        largest_s: The largest staleness of each state. 0.0 if none lacks a topic.
        worst: Those that lack a topic, worst first, WORST_MAX at most.
        incomplete: A front did not answer, so its subscriptions are missing.
    """

    at_us: int
    looked_at: int
    behind: int
    counts: dict[State, int]
    largest_s: dict[State, float]
    worst: tuple[SubscriptionRow, ...]
    incomplete: bool = False


@final
class Pace:
    """Lets the event loop run other tasks during a long scan."""

    def __init__(self) -> None:
        self._until_s = time.perf_counter() + SLICE_S

    async def step(self) -> None:
        """Yield if a batch is over."""
        if time.perf_counter() >= self._until_s:
            await trio.lowlevel.checkpoint()
            self._until_s = time.perf_counter() + SLICE_S


@final
class Staleness:
    """Reads all subscriptions on request.

    Attributes:
        last: Result of the newest scan. Empty before the first.
        behind_after_s: Staleness above which a subscription counts as behind.
        others: Reads the subscriptions of fronts: their results, and whether one is missing. None without fronts.
    """

    def __init__(
        self, broker: Broker, behind_after_s: float, wall_us: Callable[[], int] = _wall_us, *, front: bool = False
    ) -> None:
        """Make it. On a `front`, only sessions that have their connection there count: others know the state of the rest."""
        self._broker: Final = broker
        self._wall_us: Final = wall_us  # microseconds since the epoch
        self.behind_after_s: Final = behind_after_s
        self.last = LagReport(0, 0, 0, {"connected": 0, "detached": 0}, {"connected": 0.0, "detached": 0.0}, ())
        self._kept_until_s = -1.0
        self._walking: trio.Event | None = None
        self._front: Final = front
        self.others: Callable[[], Awaitable[tuple[list[LagReport], bool]]] | None = None

    async def report(self) -> LagReport:
        """Return the result of a scan that ended less than KEPT_S ago, or, for long scans, less than _KEPT_PER_TAKEN durations ago."""
        while trio.current_time() >= self._kept_until_s:
            if self._walking is None:
                await self._walk()
            else:
                await self._walking.wait()  # if it is cancelled, somebody else begins
        return self.last

    def now_us(self) -> int:
        """Return the broker's time; microseconds since the epoch."""
        return max(self._wall_us(), self._broker.accepted_at_us)

    def row(self, session: Session, subscription: Subscription) -> SubscriptionRow:
        """Return one subscription as it is now."""
        since_us = lacked_since_us(session, subscription)
        return _row(session, subscription, since_us, self.now_us(), self.behind_after_s)

    async def of_session(self, principal: str, client_id: str, pace: Pace) -> float:
        """Return the largest staleness of a session's subscriptions in seconds; 0.0 if it is gone."""
        session = self._broker.sessions.get((principal, client_id))
        largest_s = 0.0
        for subscription in _subscriptions(session):
            await pace.step()
            if session is not None and not subscription.removed:
                largest_s = max(largest_s, _age_s(_oldest_us(lacked_since_us(session, subscription)), self.now_us()))
        return largest_s

    async def _walk(self) -> None:
        walking = self._walking = trio.Event()
        began_s = trio.current_time()
        try:
            self.last = await self._all_found()
            now_s = trio.current_time()
            self._kept_until_s = now_s + max(KEPT_S, _KEPT_PER_TAKEN * (now_s - began_s))
        finally:
            self._walking = None
            walking.set()

    def is_here(self, session: Session) -> bool:
        """Return True if this process knows the state of a session's subscriptions best."""
        return session.connection is not None or not (self._front or session.holder)

    async def _all_found(self) -> LagReport:
        found = await self._found()
        return found if self.others is None else _merged(found, *await self.others())

    async def _found(self) -> LagReport:
        pace = Pace()
        looked_at = behind = 0
        counts: dict[State, int] = {"connected": 0, "detached": 0}
        largest_s: dict[State, float] = {"connected": 0.0, "detached": 0.0}
        worst: list[tuple[float, int, SubscriptionRow]] = []
        number = count()
        for session in list(self._broker.sessions.values()):
            if not self.is_here(session):
                continue
            for subscription in _subscriptions(session):
                await pace.step()
                if subscription.removed:
                    continue
                looked_at += 1
                state: State = "detached" if session.connection is None else "connected"
                counts[state] += 1
                since_us = lacked_since_us(session, subscription)
                now_us = self.now_us()
                staleness_s = _age_s(_oldest_us(since_us), now_us)
                if staleness_s == 0.0:
                    continue
                behind += staleness_s > self.behind_after_s
                largest_s[state] = max(largest_s[state], staleness_s)
                if len(worst) < WORST_MAX or staleness_s > worst[0][0]:
                    one = (
                        staleness_s,
                        -next(number),
                        _row(session, subscription, since_us, now_us, self.behind_after_s),
                    )
                    if len(worst) < WORST_MAX:
                        heappush(worst, one)
                    else:
                        heappushpop(worst, one)
        worst.sort(reverse=True)
        return LagReport(self.now_us(), looked_at, behind, counts, largest_s, tuple(row for _, _, row in worst))


def _merged(own: LagReport, others: list[LagReport], incomplete: bool) -> LagReport:
    """Return the result of the scans of all processes."""
    reports = [own, *others]
    return replace(
        own,
        looked_at=sum(report.looked_at for report in reports),
        behind=sum(report.behind for report in reports),
        counts={state: sum(report.counts[state] for report in reports) for state in own.counts},
        largest_s={state: max(report.largest_s[state] for report in reports) for state in own.largest_s},
        worst=tuple(nlargest(WORST_MAX, [row for report in reports for row in report.worst], key=_STALENESS)),
        incomplete=incomplete,
    )


_STALENESS: Final = attrgetter("staleness_s")


def read_report(told: dict[str, Any]) -> LagReport:
    """Return the result of a scan from its JSON, as `dataclasses.asdict` has it."""
    return LagReport(**{**told, "worst": tuple([read_row(row) for row in told["worst"]])})


def read_row(told: dict[str, Any]) -> SubscriptionRow:
    """Return one subscription from its JSON."""
    refinement = told["refinement"]
    return SubscriptionRow(**{**told, "refinement": None if refinement is None else RefinementRow(**refinement)})


def lacked_since_us(session: Session, subscription: Subscription) -> tuple[int, int]:
    """Return since when a subscription lacks owed topics, and since when un-acked ones. 0 if it lacks none."""
    owed_us = subscription.owed_since_us()
    connection = session.connection
    if connection is not None:
        for one, _, _, since_us in connection.unwritten:
            if one is subscription:
                owed_us = min(owed_us, since_us) if owed_us else since_us
    return owed_us, subscription.unacked_since_us()


def _subscriptions(session: Session | None) -> Iterator[Subscription]:
    return iter([] if session is None else list(session.subscriptions.values()))


def _oldest_us(since_us: tuple[int, int]) -> int:
    return min([one_us for one_us in since_us if one_us], default=0)


def _age_s(since_us: int, now_us: int) -> float:
    """Return how long ago a time was, never 0.0; that of none, 0, is 0.0."""
    return max(now_us - since_us, 1) / _US if since_us else 0.0


def _row(
    session: Session, subscription: Subscription, since_us: tuple[int, int], now_us: int, behind_after_s: float
) -> SubscriptionRow:
    owed_us, unacked_us = since_us
    connection = session.connection
    delivering = subscription.connection is not None
    staleness_s = _age_s(_oldest_us(since_us), now_us)
    return SubscriptionRow(
        principal=session.principal,
        client_id=session.client_id,
        id=subscription.id.decode(),
        glob=subscription.glob.text,
        ack=_ack_mode(subscription) if delivering else "",
        durable=subscription.durable,
        delivering=delivering,
        connected=connection is not None,
        owed=len(subscription.owed),
        unacked=len(subscription.sent),
        oldest_owed_s=_age_s(owed_us, now_us),
        oldest_unacked_s=_age_s(unacked_us, now_us),
        staleness_s=staleness_s,
        behind=staleness_s > behind_after_s,
        conflated=subscription.conflated,
        window=None if connection is None else connection.window.size,
        cause=_cause(session, subscription) if staleness_s else "held" if subscription.waiting else "",
        refinement=refinement_row(subscription),
    )


def refinement_row(subscription: Subscription) -> RefinementRow | None:
    """Return the headers that refine the delivery of a subscription, None without any."""
    refinement = subscription.refinement
    if refinement is None:
        return None
    return RefinementRow(
        selector=None if refinement.selector is None else refinement.selector.text,
        min_interval_ms=round(refinement.interval_s * 1000),
        changes_only=refinement.changes_only,
        markers=refinement.markers,
        metadata=refinement.metadata,
        format="" if refinement.json is None else "json",
        fields=() if refinement.json is None else tuple([".".join(path) for path in refinement.json.fields]),
    )


def _ack_mode(subscription: Subscription) -> AckMode:
    if not subscription.acknowledged:
        return "auto"
    return "client-individual" if subscription.individual else "client"


def _cause(session: Session, subscription: Subscription) -> Cause:
    connection = session.connection
    if connection is None:
        return "detached"
    if subscription.connection is None:
        return "paused"
    if subscription.sent or connection.in_flight >= connection.window.size:
        return "unacknowledged"
    return "unread" if subscription.ready or not subscription.scans else "catching-up"

"""The sessions of the broker and the lives of their subscriptions: made, applied, paused, removed, expired.

A subscription that a SUBSCRIBE makes is in its session at once and takes effect when its operation is done (`activate`). `remove` is the
one way out: it ends all that other parts of the broker hold for the subscription.
"""

from collections.abc import Iterator
from typing import Final, final

from sortedcontainers import SortedDict

from maxam.broker.acknowledgements import Acknowledgements
from maxam.broker.backfill import Backfills
from maxam.broker.outbox import SUBSCRIPTION_REFUSED, Outbox
from maxam.broker.policy import Rights
from maxam.broker.quotas import Quotas
from maxam.broker.refinement_table import RefinementTable
from maxam.broker.routing import Routing
from maxam.broker.scans import Grants, Scanner
from maxam.broker.session import PENDING, REMOVED, ROUTED, UNMATCHED, WITHDRAWN, Session, Subscription, Topic
from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.globs import Glob
from maxam.metrics import Counters

TAKEOVER: Final = "session taken over by a newer connection"  # message of the ERROR to whom had it
CROWDED: Final = 0.8  # of a limit, from which on operators are warned
# Between two sessions that are searched for unused subscriptions: 100,000 take three hours.
_LOOK_INTERVAL_S: Final = 0.1
# A client that has connected has this long to subscribe again before durable subscriptions that it does not use expire.
_RESUBSCRIBE_S: Final = 600.0


@final
class SessionTable:
    """All sessions, with what they and their subscriptions hold in the other parts of the broker.

    Attributes:
        sessions: By (principal, client-id), in that order, so that a listing in pages need not sort.
        quotas: How many sessions and subscriptions principals have.
        backfills: Records that recovery has noted, by which durable subscriptions are still to owe topics.
        crowded: Keys of sessions that were found to have nearly as many subscriptions as they may.
    """

    __slots__ = (
        "_acknowledgements",
        "_counters",
        "_detached",
        "_limits",
        "_look_at_s",
        "_looked_at",
        "_routing",
        "_scanner",
        "backfills",
        "crowded",
        "quotas",
        "refinements",
        "sessions",
    )

    def __init__(
        self,
        limits: Limits,
        routing: Routing,
        scanner: Scanner,
        acknowledgements: Acknowledgements,
        refinements: RefinementTable,
        counters: Counters,
    ) -> None:
        self.sessions: Final[SortedDict[tuple[str, str], Session]] = SortedDict()
        self.quotas: Final = Quotas(limits, self.sessions)
        self.backfills: Final = Backfills()
        self.refinements: Final = refinements
        self.crowded: Final[dict[tuple[str, str], None]] = {}
        self._limits: Final = limits
        self._routing: Final = routing
        self._scanner: Final = scanner
        self._acknowledgements: Final = acknowledgements
        self._counters: Final = counters
        self._detached: Final[dict[Session, None]] = {}  # oldest first
        self._look_at_s = 0.0  # when the next session is searched for unused subscriptions
        self._looked_at: tuple[str, str] | None = None  # the last one that was

    # Sessions.

    def open(self, principal: str, client_id: str) -> Session:
        """Make a session."""
        session = Session(principal, client_id, self.rights_of(principal))
        self.sessions[session.key] = session
        self.quotas.add_session(session)
        return session

    def rights_of(self, principal: str) -> Rights:
        """Return the rights of a principal by the policy in force."""
        return self._routing.policy.rights(principal)

    def close(self, session: Session) -> None:
        """Forget a session that has no subscriptions left."""
        del self.sessions[session.key]
        self.crowded.pop(session.key, None)
        self._detached.pop(session, None)
        self.quotas.remove_session(session)

    def end(self, session: Session) -> None:
        """Remove all subscriptions of a session, and forget it."""
        for subscription in list(session.subscriptions.values()):
            self.remove(subscription)
        session.subscriptions.clear()
        self.close(session)

    def attached(self, session: Session) -> None:
        """Record that a session has a connection."""
        self._detached.pop(session, None)

    def detach(self, session: Session, now_s: float) -> None:
        """Record that a session has lost its connection, from which on it expires; one that is not durable ends."""
        if session.durable:
            session.detached_at_s = now_s
            self._detached[session] = None
        else:
            self.close(session)

    def release_all(self, session: Session) -> None:
        """Pause the durable subscriptions of a session and remove the others."""
        for subscription in list(session.subscriptions.values()):
            if subscription.durable:
                self.pause(subscription)
            else:
                del session.subscriptions[subscription.id]
                self.remove(subscription)

    def take_over(self, session: Session, old: Outbox, now_s: float) -> None:
        """Take a session from the connection that has it, for a newer one.

        Raises:
            ProtocolError: It was taken over too often; nothing has changed.
        """
        takeovers_s = session.takeovers_s
        while takeovers_s and takeovers_s[0] <= now_s - 60:
            takeovers_s.popleft()
        if len(takeovers_s) >= self._limits.takeovers_per_minute_max:
            raise ProtocolError(
                "too many takeovers",
                f"the session {session.client_id} was taken over {len(takeovers_s)} times within a minute "
                "(limit takeovers_per_minute_max); let one connection keep it, or use a client-id of your own",
            )
        takeovers_s.append(now_s)
        self._counters.takeovers += 1
        old.expel(
            ProtocolError(
                TAKEOVER,
                f"another connection of {session.principal} has the client-id {session.client_id} now. The newest has the "
                "session; connect again only to take it back, or with a client-id of your own",
            )
        )
        old.lost()
        self.release_all(session)

    def needed_of(self, tombstones: set[Topic]) -> set[Topic]:
        """Return those of some deleted topics that a subscription is owed, or that a client may not have received."""
        needed: set[Topic] = set()
        for session in self.sessions.values():
            for subscription in session.subscriptions.values():
                if subscription.owed or subscription.held:
                    needed |= subscription.owed & tombstones
                    needed |= subscription.held.keys() & tombstones
            if session.connection is not None:
                needed.update([one[1] for one in session.connection.unwritten])
        return needed

    def forget_topics(self, destinations: set[bytes]) -> None:
        """Have refined subscriptions forget topics that the store has forgotten."""
        if destinations:
            for session in self.sessions.values():
                for subscription in session.subscriptions.values():
                    if subscription.refinement is not None:
                        subscription.refinement.forget(destinations)

    # Subscriptions.

    def find(self, principal: str, client_id: str, id_: bytes) -> Subscription | None:
        """Return a subscription by its names, None if there is none."""
        session = self.sessions.get((principal, client_id))
        return session.subscriptions.get(id_) if session is not None else None

    def durable_subscriptions(self) -> Iterator[Subscription]:
        """Iterate over the durable subscriptions of all sessions."""
        for session in self.sessions.values():
            for subscription in session.subscriptions.values():
                if subscription.durable:
                    yield subscription

    def add(self, session: Session, id_: bytes, glob: Glob, durable: bool) -> Subscription:
        """Make a subscription, which has not taken effect yet."""
        subscription = Subscription(session, id_, glob, durable)
        session.subscriptions[id_] = subscription
        self.quotas.add_subscription(subscription)
        return subscription

    def activate(self, subscription: Subscription, eager: bool, after: int = -1) -> None:
        """Have a subscription take effect: it owes the changes that come from now on.

        Args:
            subscription: Its SUBSCRIBE is done.
            eager: It owes all current values too.
            after: Or it owes all changes after this revision; -1 for none.
        """
        if subscription.life is WITHDRAWN:
            subscription.life = REMOVED  # but it was stored: a SUBSCRIBE that resumed it meanwhile has not failed
        if subscription.life is not PENDING:
            return  # a resumed one took effect before
        subscription.life = UNMATCHED
        current = eager or subscription.eager  # the latter if a resumption asked for it before it was applied
        if after >= 0:
            subscription.eager = True  # its client continues from all values: it lacks those that a later policy grants
        if not subscription.session.rights.can_receive_any(subscription.glob):
            self._scanner.drop(subscription)
            subscription.complete_initial()
            return  # until a policy grants something that it matches
        self._routing.add(subscription)
        if current:
            # If a resumption asked for it, the deletes after the position are owed still.
            self._scanner.owe_current(subscription, 0 if after >= 0 else -1)
        elif after >= 0:
            rights = subscription.session.rights
            checked = subscription.checked or rights  # since the SUBSCRIBE another policy may have come into force
            # A topic that it grants may have changed before the position.
            self._scanner.owe_current(subscription, after if checked.receives_all_of(rights) else 0)
            if not rights.receives_all_of(checked):
                self._scanner.withdraw(subscription, checked, Grants(checked, rights), subscription.asked_us)
        else:
            subscription.complete_initial()

    def refuse(self, subscription: Subscription) -> None:
        """Fail the connection of a subscription that the disk had no room for; forget it unless it took effect before."""
        connection = subscription.connection
        if connection is not None:
            connection.expel(SUBSCRIPTION_REFUSED)
        if subscription.life is PENDING:
            session = subscription.session
            del session.subscriptions[subscription.id]
            self.remove(subscription)
            if session.connection is None and not session.durable:
                self.close(session)

    def pause(self, subscription: Subscription) -> None:
        """Detach a subscription from its connection, if it has one: it owes again what is un-acked."""
        connection = subscription.connection
        if subscription.refinement is not None:
            self.refinements.remove(subscription.session.principal, subscription.refinement)
        if connection is not None:
            connection.in_flight -= subscription.release()
            connection.leave(subscription)
            subscription.connection = None

    def remove(self, subscription: Subscription) -> None:
        """End a subscription that was taken out of its session, and all that it owes."""
        self.pause(subscription)
        routed = subscription.life is ROUTED
        self.quotas.remove_subscription(subscription)
        self._counters.conflated += subscription.conflated
        subscription.conflated = 0
        subscription.forget()
        self._acknowledgements.drop(subscription)
        self._scanner.drop(subscription)
        self.backfills.drop(subscription)
        if routed:
            self._routing.discard(subscription)

    # Time.

    @property
    def next_expiry_s(self) -> float | None:
        """When the next session expires, None if all have connections."""
        if not self._detached:
            return None
        return next(iter(self._detached)).detached_at_s + self._limits.session_expiry_s

    def next_expired(self, now_s: float) -> Session | None:
        """Return the session that was detached longest, if it has expired."""
        if not self._detached:
            return None
        session = next(iter(self._detached))
        return None if now_s < session.detached_at_s + self._limits.session_expiry_s else session

    def restored(self, now_s: float) -> None:
        """Make ready for clients after a recovery: all sessions count as detached from now on."""
        for session in self.sessions.values():
            session.detached_at_s = now_s
            self._detached[session] = None
            for subscription in session.subscriptions.values():
                self.backfills.restore(subscription)

    def find_unused(self, now_s: float) -> list[Subscription]:
        """Search the next session, if it is time to; return its durable subscriptions that its client no longer uses."""
        if now_s < self._look_at_s:
            return []
        self._look_at_s = now_s + _LOOK_INTERVAL_S
        after = self._looked_at
        key = next(self.sessions.irange(after, None, (False, False)), None)
        self._looked_at = key
        if key is None:
            return []  # the round is over
        session = self.sessions[key]
        if len(session.subscriptions) >= CROWDED * self._limits.subscriptions_per_session_max:
            self.crowded[key] = None
        else:
            self.crowded.pop(key, None)
        expiry_s = self._limits.session_expiry_s
        settled_in = session.connection is not None and now_s >= session.connected_at_s + min(_RESUBSCRIBE_S, expiry_s)
        unused: list[Subscription] = []
        for subscription in session.subscriptions.values():
            if subscription.connection is not None:
                continue
            if subscription.unused_since_s < 0:
                subscription.unused_since_s = now_s
            elif settled_in and now_s >= subscription.unused_since_s + expiry_s:
                unused.append(subscription)
        return unused

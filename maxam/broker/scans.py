"""Scans of all topics for subscriptions that ask for current values, or that a new policy grants some.

A scan goes on in parts. It rests while its subscriber has enough to read. A value that is not owed yet costs no memory, and is newer when
it is owed later. Principals alternate, and within a principal its scans. Subscriptions whose glob no right could match are compared
with the grants of a later policy, a few in each pass.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, final

from maxam.broker.operations import OperationLog
from maxam.broker.policy import Policy, Rights
from maxam.broker.routing import Routing
from maxam.broker.session import PENDING, ROUTED, UNMATCHED, Session, Subscription, Topic
from maxam.broker.store import Store
from maxam.globs import Glob

SCAN_TOPICS: Final = 1000  # topics that one part of a scan visits
_RESTING_LOOKS: Final = 256  # resting scans that one call visits before it leaves the others to the next call
# Subscribed globs that the grants of a policy are compared with at once, for each pair of old and new rights. Comparing and compiling one
# takes 0.1 ms, or 1 ms for the longest.
_RECHECKS_AT_ONCE: Final = 64
_NOTHING: Final[frozenset[Topic]] = frozenset()
_RECHECKS_PER_PASS: Final = 8  # subscribed globs that are compared in each later pass


@final
class Scan:
    """A scan of all topics for one subscription, in parts: it owes what matches and has not changed since it began.

    After a position it owes the topics only that have changed since then, and deletes too. Or it owes nothing, and withdraws the topics that
    the client may no longer receive.

    It owes only topics that were allowed all the time. A topic that one policy withholds and a later one grants again is owed by the scan
    that the later one begins.
    """

    __slots__ = (
        "after",
        "before",
        "began_us",
        "cursor",
        "number",
        "owed",
        "principal",
        "revision",
        "since",
        "subscription",
        "withdrawn",
    )

    def __init__(
        self,
        subscription: Subscription,
        revision: int,
        before: Rights | None,
        began_us: int,
        after: int = -1,
        withdrawn: bool = False,
    ) -> None:
        self.subscription: Final = subscription
        self.principal: Final = subscription.session.principal
        self.revision: Final = revision  # newer changes reach the subscription by themselves
        self.withdrawn: Final = withdrawn  # topics that `before` granted and the rights in force do not are withdrawn
        self.after: Final = after  # older changes are not owed; -1 owes all values and no deletes
        self.before: Final = before  # only topics that these rights did not grant are owed; all if None
        # they come by themselves, perhaps before the scan gets there; emptied when the scan is over
        self.owed = _NOTHING if withdrawn else frozenset(subscription.owed)
        self.began_us: Final = (
            began_us  # what it finds, and what changes meanwhile, is lacked since then at the earliest
        )
        self.number: Final = subscription.eager_scans
        self.since: Final[list[Rights]] = [subscription.session.rights]  # all that were in force since it began
        self.cursor: bytes | None = None

    @property
    def over(self) -> bool:
        """Whether its subscription is gone, or has asked for everything since."""
        return self.subscription.removed or self.number != self.subscription.eager_scans

    def regrant(self, rights: Rights) -> None:
        """Record that other rights are in force."""
        for known in self.since:
            if rights.receives_all_of(known):
                return  # they withhold nothing that is not withheld already
        self.since.append(rights)

    def may_owe(self, name: bytes) -> bool:
        """Return True if a topic was allowed all the time, and not before."""
        for rights in self.since:
            if not rights.may_receive(name):
                return False
        return self.before is None or not self.before.may_receive(name)


@final
class Grants:
    """The difference between the old and the new rights of a principal to receive.

    Attributes:
        grown: Whether there is any.
        shrunk: Whether the old rights allow something that the new ones do not.
        changed: Whether it may receive more, or less.
    """

    __slots__ = ("_beyond", "_known", "_lost", "_lost_known", "changed", "grown", "shrunk")

    def __init__(self, before: Rights, rights: Rights) -> None:
        self.grown: Final = not before.receives_all_of(rights)
        self.shrunk: Final = not rights.receives_all_of(before)
        self.changed: Final = self.grown or self.shrunk
        self._beyond: Final = rights.received_beyond(before)
        self._known: Final[dict[str, bool]] = {}
        self._lost: Final = before.received_beyond(rights)
        self._lost_known: Final[dict[str, bool]] = {}

    def may_concern(self, glob: Glob) -> bool | None:
        """Return whether some of it may match a subscribed glob; None after _RECHECKS_AT_ONCE different ones."""
        known = self._known.get(glob.text)
        if known is None and len(self._known) < _RECHECKS_AT_ONCE:
            known = self._known[glob.text] = self._beyond.overlaps(glob)
        return known

    def may_withdraw(self, glob: Glob) -> bool:
        """Return False if a subscribed glob matches nothing that the old rights allow and the new ones do not."""
        known = self._lost_known.get(glob.text)
        if known is None and len(self._lost_known) < _RECHECKS_AT_ONCE:
            known = self._lost_known[glob.text] = self._lost.overlaps(glob)
        return known is not False


@final
class Scans:
    """The queue of the scans under way. Principals alternate, and within a principal its scans.

    Attributes:
        eager: The newest eager scan of each subscription, unless it has ended.
    """

    __slots__ = ("_count", "_of", "eager")

    def __init__(self) -> None:
        self.eager: Final[dict[Subscription, Scan]] = {}
        self._of: Final[dict[str, deque[Scan]]] = {}  # by principal; the next one first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Scan]:
        for scans in self._of.values():
            yield from scans

    def append(self, scan: Scan) -> None:
        """Add a scan after the others of its principal."""
        self._of.setdefault(scan.principal, deque()).append(scan)
        self._count += 1

    def supersede(self, subscription: Subscription) -> None:
        """Free what the eager scan of a subscription holds, as it is over. It stays in the queue until it is popped."""
        scan = self.eager.pop(subscription, None)
        if scan is not None:
            scan.owed = frozenset()

    def owe_deletes(self, subscription: Subscription) -> bool:
        """Return True if a scan for a subscription, which is to be superseded, owes deletes too."""
        if subscription.scans == 0:
            return False
        for scan in self._of.get(subscription.session.principal, ()):
            if scan.subscription is subscription and scan.after >= 0 and not scan.over:
                return True
        return False

    def pop(self) -> Scan:
        """Remove and return the next scan; its principal comes after all others then."""
        principal = next(iter(self._of))
        scans = self._of.pop(principal)
        self._count -= 1
        scan = scans.popleft()
        if scans:
            self._of[principal] = scans
        return scan


@final
class Scanner:
    """Begins scans, and carries them on together with the other work that is done in parts.

    Attributes:
        scans: Those under way.
    """

    __slots__ = ("_active", "_at_once", "_expected", "_log", "_rechecks", "_routing", "_store", "scans")

    def __init__(self, log: OperationLog, store: Store, routing: Routing) -> None:
        self.scans: Final = Scans()
        self._log: Final = log
        self._store: Final = store
        self._routing: Final = routing
        # Subscriptions that are not in the index, with the rights when it was last found that none can match.
        self._rechecks: Final[dict[Subscription, Rights]] = {}
        self._expected: Final[dict[Subscription, int]] = {}  # positions of SUBSCRIBEs that have not taken effect
        self._at_once = SCAN_TOPICS  # topics that eager SUBSCRIBEs may still scan on the spot until the next commit
        self._active = False  # a scan or a recheck has something to do now

    @property
    def scanning(self) -> bool:
        """Whether `scan` has something to do now."""
        return self._active or self._routing.clearing

    @property
    def resting(self) -> bool:
        """Whether a scan is under way that may go on when its subscriber has read: call `scan` again soon."""
        return len(self.scans) > 0

    def batch_applied(self) -> None:
        """Let the eager SUBSCRIBEs of another batch scan on the spot."""
        self._at_once = SCAN_TOPICS

    @property
    def floor(self) -> int:
        """The revision after which all deletes are known."""
        return self._store.floor

    def expect(self, subscription: Subscription, after: int) -> None:
        """Record that a scan after a position begins when the SUBSCRIBE takes effect, which owes all deletes since then."""
        self._expected[subscription] = after

    def needed_of(self, tombstones: set[Topic]) -> set[Topic]:
        """Return those of some deleted topics that a scan after a position may still owe, or will."""
        late = self._routing.late.needed_of(tombstones)
        scans = [scan for scan in self.scans if scan.after >= 0 and not scan.over]
        positions = [scan.after for scan in scans]
        positions += self._expected.values()
        if not positions:
            return late
        oldest = min(positions)
        # A withdrawn topic is found by its scan only, even if it is deleted after the scan began.
        unbounded = len(self._expected) > 0 or any(scan.withdrawn for scan in scans)
        newest = self._log.committed_revision if unbounded else max([scan.revision for scan in scans])
        return late | {topic for topic in tombstones if oldest < topic.change.revision <= newest}

    def resting_sessions(self) -> set[Session]:
        """Return the sessions whose clients read too slowly, so that scans for them rest that owe deletes."""
        scans = [scan for scan in self.scans if scan.after >= 0 and not scan.over]
        return {scan.subscription.session for scan in scans if scan.subscription.sated}

    def drop(self, subscription: Subscription) -> None:
        """Forget the eager scan of a subscription, under way or expected."""
        self._expected.pop(subscription, None)
        self.scans.supersede(subscription)

    def owe_current(self, subscription: Subscription, after: int = -1) -> None:
        """Make a subscription owe the values that all topics hold now, or all changes after a revision, at once or in parts."""
        if after < 0 and self.scans.owe_deletes(subscription):
            after = 0
        subscription.eager_scans += 1
        self.drop(subscription)
        began_us = self._log.uncommitted_since_us(subscription.asked_us)
        scan = Scan(subscription, self._log.committed_revision, None, began_us, after)
        self._routing.late.caught_up(subscription, self._routing.owner_of(subscription), scan.revision)
        # A store that one part covers is scanned on the spot, so that the first values leave with the receipt.
        if len(self._store.topics) <= SCAN_TOPICS and self._at_once > 0:
            seen, ended = self._scan_slice(scan, self._at_once)
            self._at_once -= seen
            if ended:
                scan.subscription.complete_initial()
                return
        self.scans.eager[subscription] = scan
        self._begin(scan)

    def replace_policy(self, policy: Policy, sessions: Iterable[Session], now_us: int) -> None:
        """Put another policy in force, and begin the scans for what it grants.

        Args:
            policy: The new one.
            sessions: All sessions.
            now_us: When it came into force, microseconds since the epoch.
        """
        policy.keep_rights_of(self._routing.policy)
        self._routing.policy = policy
        began_us = self._log.uncommitted_since_us(now_us)
        for scan in self.scans:
            if not scan.over:
                session = scan.subscription.session
                scan.regrant(session.rights if session.granted else policy.rights(scan.principal))
        routes_change = False
        granted: dict[tuple[int, int], Grants] = {}
        for session in sessions:
            before = session.rights
            rights = session.rights if session.granted else policy.rights(session.principal)
            if rights is before:
                continue
            session.rights = rights
            if session.connection is not None:
                session.connection.rights = rights
            changes = (before.number, rights.number)
            grants = granted.get(changes)
            if grants is None:
                grants = granted[changes] = Grants(before, rights)
            for subscription in session.subscriptions.values():
                if subscription.life is PENDING:
                    continue  # `checked` has the rights at its SUBSCRIBE
                # Topics that it owes were found under rights that may come back, with some that others allowed.
                subscription.checked = None if subscription.owed else rights
                if grants.shrunk and subscription.refinement is not None:
                    self.withdraw(subscription, before, grants, began_us)
                if subscription.life is ROUTED:
                    routes_change = routes_change or grants.changed
                    if grants.grown and subscription.backfilled and grants.may_concern(subscription.glob) is not False:
                        self.owe_granted(subscription, before, began_us)
                elif grants.grown and subscription.life is UNMATCHED:
                    self.recheck(subscription, before, grants.may_concern(subscription.glob), began_us)
        if routes_change:
            self._routing.void()  # the routes of every topic are made again, under the new rights

    def withdraw(self, subscription: Subscription, before: Rights, grants: Grants, began_us: int) -> None:
        """Begin a scan for the topics that its client may hold by the rights before, and may no longer receive, if there may be any."""
        refinement = subscription.refinement
        if refinement is None or not refinement.markers or not refinement.holds_any:
            return
        if not grants.may_withdraw(subscription.glob):
            return
        # A position of 0 keeps the deletes that it has not come to yet.
        self._begin(Scan(subscription, self._log.committed_revision, before, began_us, 0, withdrawn=True))

    def owe_granted(self, subscription: Subscription, before: Rights, began_us: int) -> None:
        """Begin to owe a subscription the topics that the rights now in force grant, and those before did not.

        Args:
            subscription: It is in the index.
            before: The rights before.
            began_us: When the policy came into force, no later than the oldest change that is not done; microseconds since the
                epoch.
        """
        refinement = subscription.refinement
        # The client may hold values of topics that were deleted while the right was withdrawn.
        after = 0 if refinement is not None and refinement.markers else -1
        self._begin(Scan(subscription, self._log.committed_revision, before, began_us, after))

    def recheck(self, subscription: Subscription, before: Rights, possible: bool | None, began_us: int) -> None:
        """Add a subscription to the index if a right can match it now.

        Args:
            subscription: It is not in the index.
            before: The rights that were in force when it was last found that none can match.
            possible: Whether one of the new rights can; None decides that in a later pass.
            began_us: When the policy came into force, microseconds since the epoch.
        """
        if possible is None:
            self._rechecks.setdefault(subscription, before)
            self._active = True
        elif possible:
            before = self._rechecks.pop(subscription, before)  # not yet compared with what an earlier policy granted
            subscription.glob.prepare()
            self._routing.add(subscription)
            if subscription.backfilled:
                self.owe_granted(subscription, before, self._log.uncommitted_since_us(began_us))

    def scan(self, topics: int) -> bool:
        """Do the next part of the work, with `topics` topics at most; return whether more is to do now."""
        if self._routing.clearing:
            self._routing.clear(topics // 2)
            topics -= topics // 2
        for subscription in list(islice(self._rechecks, _RECHECKS_PER_PASS)):
            before = self._rechecks.pop(subscription)
            if subscription.life is UNMATCHED:
                possible = subscription.session.rights.can_receive_any(subscription.glob)
                self.recheck(subscription, before, possible, self._log.accepted_at_us)
        scans = self.scans
        rested: set[Scan] = set()
        looks = _RESTING_LOOKS
        while topics > 0 and looks > 0 and len(rested) < len(scans):
            scan = scans.pop()
            if scan.over:
                scan.subscription.end_scan(scan.began_us)
                scan.subscription.complete_initial()
                continue
            if scan.subscription.sated:
                looks -= 1
                rested.add(scan)
                scans.append(scan)
                continue
            seen, ended = self._scan_slice(scan, topics)
            topics -= seen
            if ended:
                scan.subscription.end_scan(scan.began_us)
                if scans.eager.get(scan.subscription) is scan:
                    del scans.eager[scan.subscription]
                scan.subscription.complete_initial()
            else:
                scans.append(scan)
        self._active = len(self._rechecks) > 0 or (looks > 0 and len(rested) < len(scans))
        return self.scanning

    @staticmethod
    def _withdraw(scan: Scan, name: bytes) -> None:
        """Have the client sent a notice of a topic that it may no longer receive, if it may hold a value."""
        subscription = scan.subscription
        refinement = subscription.refinement
        connection = subscription.connection
        if refinement is None or connection is None or scan.before is None:
            return
        lost = scan.before.may_receive(name) and not subscription.session.rights.may_receive(name)
        if lost and subscription.glob.matches(name.decode()) and refinement.withdrawn(name):
            connection.notify(subscription)

    def _begin(self, scan: Scan) -> None:
        scan.subscription.begin_scan(scan.began_us)
        self.scans.append(scan)
        self._active = True

    def _scan_slice(self, scan: Scan, topics: int) -> tuple[int, bool]:
        """Visit the next `topics` topics at most; return how many it were, and whether the scan has ended."""
        subscription = scan.subscription
        if scan.over:
            return 0, True
        found = self._owe_slice(scan, topics)
        connection = subscription.connection
        if connection is not None and subscription.ready and not subscription.queued:
            connection.add_ready(subscription)
        return found

    def _owe_slice(self, scan: Scan, topics: int) -> tuple[int, bool]:
        subscription = scan.subscription
        seen = 0
        glob = subscription.glob
        weight = 0 if subscription.refinement is None else subscription.refinement.weight
        for name in self._store.names_after(glob.prefix.encode(), scan.cursor):
            if seen >= topics:
                break
            seen += 1
            scan.cursor = name
            topic = self._store.topics[name]
            change = topic.change
            if scan.withdrawn:
                self._withdraw(scan, name)
                continue
            if (
                (change.deleted if scan.after < 0 else change.revision <= scan.after)
                or change.revision > scan.revision
                or topic in scan.owed
                or not glob.matches(name.decode())
                or not scan.may_owe(name)
            ):
                continue
            subscription.owe_present(topic, scan.began_us)
            seen += weight
        else:
            return max(seen, 1), True
        return seen, False

"""Which subscriptions a topic's changes go to: a topic keeps its *routes*, and an index over globs completes them.

Theory of operation. Routes are complete up to a position of the index, within an *epoch*. A new epoch begins when the index numbers its
positions again, and when a policy changes the rights to receive. Routes of another epoch are void and made again when the topic next
changes. Routes keep subscriptions that were removed since. A background scan drops the void routes of idle topics once enough
subscriptions have gone.

Invariant: a topic's routes are complete whenever a change of it is delivered, except for owners of globs for whom it is late.
"""

from typing import Final, final

from maxam.broker.destinations import MatchIndex
from maxam.broker.late_routes import LateRoutes
from maxam.broker.policy import Policy, Rights
from maxam.broker.selected_routes import SelectedRoutes
from maxam.broker.session import ROUTED, Subscription, Topic
from maxam.broker.store import Store
from maxam.records import Change

NO_ROUTES: Final[list[Subscription]] = []  # shared by all topics without subscribers
_REMOVED_MIN: Final = 1000  # subscriptions that went before it is worth a scan of all topics to let go of them
_TOPICS_PER_REMOVED: Final = 64  # nor for fewer than one in this many topics
_ROUTES_PER_TOPIC: Final = 4  # subscriptions that take as long to drop as a topic to check
_GRANTED: Final = (
    "\0"  # before the digest of granted rights, which own subscriptions in the index; no principal begins with it
)


@final
class Routing:
    """The way of changes into the store and to the subscriptions that want them.

    Attributes:
        policy: The policy in force; `replace_policy` sets another one.
        clearing: A scan that drops void routes is under way: `clear` has something to do.
        epoch: Of index and policy: routes of another one are void.
        late: Topics for which the globs of a principal take too long.
        recovering: No topic becomes late. Recovery has notes of its own on what is to be owed.
    """

    __slots__ = (
        "_cleared",
        "_clearing_after",
        "_generation",
        "_granted",
        "_index",
        "_owners",
        "_position",
        "_removed",
        "_selected",
        "_store",
        "clearing",
        "epoch",
        "late",
        "policy",
        "recovering",
    )

    def __init__(self, store: Store, policy: Policy, selected: SelectedRoutes) -> None:
        self.policy = policy
        self.clearing = False
        self.recovering = False
        self.epoch = 0
        self._store: Final = store
        self._selected: Final = selected
        self._index: Final[MatchIndex[Subscription]] = MatchIndex()
        self.late: Final = LateRoutes(self._index, store)
        self._generation = 0  # of the policy in force
        self._owners: Final[dict[Subscription, str]] = {}  # of subscriptions whose rights are those of a grant
        self._granted: Final[dict[str, tuple[Rights, int]]] = {}  # by owner, with the number of its subscriptions
        self._position = 0  # of the index: what a topic's routes must be complete up to
        self._removed = 0  # subscriptions, since the last scan that drops void routes began
        self._cleared = 0  # the epoch when it began
        self._clearing_after: bytes | None = None  # where it is

    def __len__(self) -> int:
        """Count the subscriptions that changes are routed to."""
        return len(self._index)

    def deliver(self, change: Change) -> None:
        """Make a change the newest of its topic, and have every subscription that wants it owe it."""
        # Among a million topics one that was looked up when its SEND came has left the processor's cache again by now.
        target = change.target
        change.target = None
        topic = target if type(target) is Topic else None
        if topic is None or topic.change.deleted:  # it is new, or the sweep may have forgotten it since
            topic = self._store.topics.get(change.destination)
        if topic is None:
            if change.deleted:
                return
            topic = self._store.add(change, NO_ROUTES)
            self._route(topic, not self.recovering)
        elif change.deleted and topic.change.deleted:
            return
        else:
            self._store.put(topic, change)
        if topic.routed != self._position or topic.epoch != self.epoch:
            self._route(topic, False)
        removed = False
        for subscription in self._selected.concerned(topic) if self._selected.worthwhile else topic.routes:
            if subscription.owe(topic):
                connection = subscription.connection
                if connection is not None:
                    connection.add_ready(subscription)
                if subscription.removed:
                    removed = True
                    subscription.forget()
        if removed:
            topic.routes = [s for s in topic.routes if not s.removed] or NO_ROUTES

    def complete(self, topic: Topic) -> None:
        """Make the routes of a topic complete, however long it takes."""
        if topic.routed != self._position or topic.epoch != self.epoch:
            self._route(topic, False)

    def add(self, subscription: Subscription) -> None:
        """Route changes to a subscription from now on."""
        subscription.life = ROUTED
        session = subscription.session
        owner = session.principal
        if session.granted:
            owner = self._owners[subscription] = f"{_GRANTED}{session.rights.receive_digest}"
            self._granted[owner] = (session.rights, 1 + (self._granted[owner][1] if owner in self._granted else 0))
        self._index.add(subscription.glob, subscription, owner)
        self.late.subscribed(subscription, owner)
        self._note_index()

    def discard(self, subscription: Subscription) -> None:
        """Route no change to a subscription again that was added."""
        epoch = self._index.epoch
        self._index.discard(subscription)
        if self._index.epoch != epoch:
            self.late.renumber()
        owner = self._owners.pop(subscription, None)
        if owner is not None:
            rights, number = self._granted.pop(owner)
            if number > 1:
                self._granted[owner] = (rights, number - 1)
        self._note_index()
        self._removed += 1
        if not self.clearing:
            self._clear_if_due()

    def void(self) -> None:
        """Have the routes of every topic made again, as the policy has changed."""
        self._generation += 1
        self.late.regrant()
        self._note_index()
        self._clear_from_start()

    def clear(self, topics: int) -> None:
        """Drop the void routes of the next `topics` topics."""
        for name in self._store.names_after(b"", self._clearing_after):
            topic = self._store.topics[name]
            topics -= 1
            if topic.epoch != self.epoch:
                topics -= len(topic.routes) // _ROUTES_PER_TOPIC
                topic.routes = NO_ROUTES
            self._clearing_after = name
            if topics <= 0:
                return
        self.clearing = False
        self._clear_if_due()

    def find_late(self, globs: int) -> None:
        """Compare up to `globs` globs with topics that are late."""
        self.late.find(globs, self.epoch)

    def _clear_if_due(self) -> None:
        """Begin to drop void routes, if the subscriptions that they may hold on to are enough to be worth it.

        Those that are not void hold on to no more than the index, which gives a new epoch when it has that many discarded ones.
        """
        worth = max(_REMOVED_MIN, len(self._store.topics) // _TOPICS_PER_REMOVED)
        if self._removed >= worth and self._cleared != self.epoch:
            self._clear_from_start()

    def _clear_from_start(self) -> None:
        self._removed = 0
        self._cleared = self.epoch
        self.clearing = True
        self._clearing_after = None

    def _note_index(self) -> None:
        self._position = self._index.position
        self.epoch = (self._generation << 32) + self._index.epoch

    def _route(self, topic: Topic, new: bool) -> None:
        """Make the routes of a topic complete. A new one may become late."""
        current = topic.epoch == self.epoch
        if not self._index:  # as for all topics of a snapshot, which come before its subscriptions
            topic.routes = NO_ROUTES
            topic.epoch = self.epoch
            topic.routed = self._position
            return
        found = self._index.matches(
            topic.name, topic.routed if current else 0, self._may_see_now if new else self._may_see, new
        )
        routes = [s for s in found if s.session.rights.may_receive(topic.destination)]
        if not current:
            topic.routes = routes or NO_ROUTES
        elif routes:
            topic.routes = topic.routes + routes
        topic.epoch = self.epoch
        topic.routed = self._position
        if new:
            for owner in self._index.cut:
                self.late.add(owner, topic)
        elif not current and len(self.late):
            self.late.complete(topic.destination)

    def owner_of(self, subscription: Subscription) -> str:
        """Return the owner of a subscription in the index."""
        return self._owners.get(subscription, subscription.session.principal)

    def _may_see(self, owner: str, destination: str) -> bool:
        granted = self._granted.get(owner)
        rights = self.policy.rights(owner) if granted is None else granted[0]
        return rights.may_receive(destination.encode())

    def _may_see_now(self, owner: str, destination: str) -> bool:
        """Return whether the globs of an owner are compared with a new topic at once. An owner with late topics gets another one."""
        if not self._may_see(owner, destination):
            return False
        if not self.late.concerns(owner):
            return True
        self._index.cut.append(owner)
        return False

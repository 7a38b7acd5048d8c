"""The links to other gateways, as the bridges publish them on `B/<venue>.Link`, and the topics that are *unknown* as their link is down.

Theory of operation. A bridge publishes the value of its link again and again. The link is *down* if the value is older than its
`link_timeout_s`, shows another state than UP, or was deleted. Then the topics that the bridge publishes here are unknown. `UnknownTopics` has
the globs of all links that are down, and decides for deliveries from then on. Earlier deliveries need a *sweep* of the topics of the
link, in batches. It reports each topic to its subscribers, as stale or as current, and has its deadline checked again. Reporting a topic twice
changes nothing, so a sweep begins again when the link changes. Another one follows when clients subscribe again that may hold topics.

The topics `B/<venue>.Link` are the only state. A link that was up when the gateway stopped counts as heard of at the start. One that
was down stays down. A deleted one stays down until its topics are gone, or the gateway is started again.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, final

from maxam.avro.json.decoding import iso_time
from maxam.broker.broker import Broker
from maxam.broker.policy import Rights
from maxam.broker.session import OVERDUE
from maxam.errors import GlobError
from maxam.gateway.batches import run_batches
from maxam.gateway.freshness import Freshness
from maxam.gateway.log import log_event
from maxam.globs import Glob, compile_glob
from maxam.links import STORE, UP, Link, decode_link, venue_of
from maxam.records import Change

BATCH_TOPICS: Final = 200  # of a sweep, before the event loop runs other tasks
SEARCH_INTERVAL_S: Final = 1.0  # between two searches for links
GONE_INTERVAL_S: Final = 60.0  # between two sweeps of the topics of a deleted link
_SEARCHED_AT_ONCE: Final = 1000
_CHANGE_COST: Final = 10  # topics of a batch that one link takes which goes down or up
_GLOBS_AT_ONCE: Final = 8  # with which a topic is compared for the price of one
_IDLE_S: Final = 0.25
_LISTED_MAX: Final = 20  # lines of health

# Reasons why a link is down, beside the states of a Link other than UP.
SILENT: Final = "silent"
DELETED: Final = "deleted"
UNREADABLE: Final = "unreadable"


@dataclass(slots=True)
class BridgeLink:
    """One link, as far as it is known.

    Attributes:
        venue: Name of the venue.
        topic: Destination of its topic.
        change: The newest change of its topic.
        link: The newest value that could be read, None if there was none.
        readable: The newest value could be read.
        heard_us: When the value was accepted, or the gateway started; microseconds since the epoch.
        down: Why the link is down; empty if it is up.
        unknown_since_us: Since when its topics are unknown; 0 if they are known.
        globs: Globs of its topics.
        publisher: Principal that has published the newest value.
        rights: Of that principal.
        sweeping: Globs of the sweep that goes on. Empty for none.
        prefixes: Prefixes of destinations that the sweep has not finished.
        cursor: Place within the last of these.
        found: Topics with a value that the sweep found.
        wanted: Another sweep is to follow.
        again_s: When the topics of a deleted link are searched again; monotonic seconds.
    """

    venue: str
    topic: bytes
    change: Change
    publisher: str
    rights: Rights
    link: Link | None = None
    readable: bool = False
    heard_us: int = 0
    down: str = ""
    unknown_since_us: int = 0
    globs: tuple[Glob, ...] = ()
    sweeping: tuple[Glob, ...] = ()
    prefixes: list[bytes] = field(default_factory=list)
    cursor: bytes | None = None
    found: int = 0
    wanted: bool = False
    again_s: float = 0.0

    def behind_s(self, now_us: int) -> float:
        """Return the age of the oldest change that may be missing here, in seconds."""
        if self.unknown_since_us:
            return max(0, now_us - self.unknown_since_us) / 1e6
        return 0.0 if self.link is None else self.link.behind_ms / 1000


@final
class BridgeLinks:
    """Watches the links of all venues.

    Attributes:
        links: By venue.
    """

    def __init__(self, broker: Broker, freshness: Freshness, wall_us: Callable[[], int]) -> None:
        """Make one that has not seen any link yet.

        Args:
            broker: The broker, recovered.
            freshness: Checks deadlines of topics.
            wall_us: The gateway's time, microseconds since the epoch.
        """
        self._broker: Final = broker
        self._freshness: Final = freshness
        self._wall_us: Final = wall_us
        self._stopped_us: Final = broker.accepted_at_us  # what happened later than that, happened in this run
        self._started_us: Final = max(wall_us(), broker.accepted_at_us)
        self._search_at_s = -1.0
        self._cursor: bytes | None = None  # of the search
        self._resumed = 0  # of `UnknownTopics`, when sweeps were requested for all links
        self.links: Final[dict[str, BridgeLink]] = {}

    @property
    def now_us(self) -> int:
        """The broker's time; microseconds since the epoch."""
        return max(self._wall_us(), self._broker.accepted_at_us)

    @property
    def swept(self) -> bool:
        """True if no sweep goes on or is to follow."""
        return not any(one.sweeping or one.wanted for one in self.links.values())

    def unknown_since_us(self, destination: bytes) -> int:
        """Return since when a topic is unknown, 0 if it is not; microseconds since the epoch."""
        topic = self._broker.store.topics.get(destination)
        if topic is None:
            return 0
        link = self._broker.notices.unknown.link_of(destination, topic.change.publisher.principal)
        found = self.links.get(link)
        return 0 if found is None else found.unknown_since_us

    def degraded(self) -> list[str]:
        """Return a line for each link that is down."""
        down = [one for one in self.links.values() if one.down]
        lines = [
            f"bridge {one.venue}: the link is down ({one.down}), its topics are unknown since {iso_time(one.unknown_since_us)}"
            for one in down[:_LISTED_MAX]
        ]
        if len(down) > _LISTED_MAX:
            lines.append(f"bridge: {len(down) - _LISTED_MAX} other links are down")
        return lines

    async def run(self) -> None:
        """Watch until cancelled."""
        await run_batches(self.step, _IDLE_S)

    def step(self, now_s: float) -> bool:
        """Process one batch of the work that is due. Return True if more is due.

        Args:
            now_s: Monotonic seconds.
        """
        if now_s >= self._search_at_s:
            self._search(now_s)
        unknown = self._broker.notices.unknown
        if unknown.resumed != self._resumed:
            self._resumed = unknown.resumed
            for one in self.links.values():
                one.wanted = one.down != ""
        now_us = self.now_us
        left = BATCH_TOPICS
        for one in list(self.links.values()):
            if self._update(one, now_us, now_s):
                left -= _CHANGE_COST
            if left <= 0:
                return True  # those before are not changed again
        for one in list(self.links.values()):
            if one.sweeping and left > 0:
                left = self._sweep(one, left, now_s)
        return left <= 0

    # The state of links.

    def _search(self, now_s: float) -> None:
        """Find links that have come since."""
        store = self._broker.store
        names = store.names_slice(STORE, self._cursor, _SEARCHED_AT_ONCE)
        for name in names:
            venue = venue_of(name)
            change = store.topics[name].change
            if venue and venue not in self.links and not change.deleted:
                publisher = change.publisher.principal
                self.links[venue] = BridgeLink(venue, name, change, publisher, self._broker.policy.rights(publisher))
                self._take(self.links[venue], change)
        self._cursor = names[-1] if len(names) == _SEARCHED_AT_ONCE else None
        if self._cursor is None:
            self._search_at_s = now_s + SEARCH_INTERVAL_S

    def _take(self, one: BridgeLink, change: Change) -> None:
        """Read the newest change of a link's topic."""
        one.change = change
        if change.deleted:
            return
        one.heard_us = change.accepted_at_us
        one.publisher = change.publisher.principal
        link = decode_link(change.body)
        one.readable = link is not None
        timeout_us = 0 if link is None else link.timeout_s * 1_000_000
        if change.accepted_at_us <= self._stopped_us <= change.accepted_at_us + timeout_us:
            one.heard_us = max(one.heard_us, self._started_us)  # no bridge could be heard while the gateway was stopped
        if link is None:
            return
        if one.link is None or one.link.globs_here != link.globs_here:
            one.globs = tuple(self._compiled(link))
        one.link = link

    def _compiled(self, link: Link) -> Iterator[Glob]:
        for text in link.globs_here:
            try:
                yield compile_glob(text, self._broker.limits)
            except GlobError:  # it matches no topic here
                continue

    def _update(self, one: BridgeLink, now_us: int, now_s: float) -> bool:
        """Decide whether a link is up. Return True if that has changed, or its routes while it is down."""
        topic = self._broker.store.topics.get(one.topic)
        before = one.globs
        if topic is not None and topic.change is not one.change:
            self._take(one, topic.change)
        why, since_us = self._why_down(one, topic is None or topic.change.deleted, now_us)
        rights = self._broker.policy.rights(one.publisher)
        others = not rights.grants_the_same_as(one.rights)
        one.rights = rights
        changed = bool(why) != bool(one.down) or (why and (one.globs != before or others))
        if why != one.down:
            self._log(one, why, since_us)
            one.unknown_since_us = min(one.unknown_since_us or since_us, since_us) if why else 0
            one.down = why
        if changed:
            self._broker.notices.unknown.set(one.venue, one.globs if why else (), one.publisher, rights)
            self._begin_sweep(one, tuple(dict.fromkeys((*one.globs, *before, *one.sweeping))))
        elif not one.sweeping and (one.wanted or (one.down == DELETED and now_s >= one.again_s)):
            self._begin_sweep(one, one.globs)
        if one.down == DELETED and not one.globs:
            del self.links[one.venue]
        return bool(changed)

    def _why_down(self, one: BridgeLink, deleted: bool, now_us: int) -> tuple[str, int]:
        """Return why a link is down, empty if it is up, and since when the topics are unknown."""
        link, at_us = one.link, one.change.accepted_at_us
        if deleted:
            return DELETED, at_us
        if link is None or not one.readable:
            return UNREADABLE, at_us
        if now_us > one.heard_us + link.timeout_s * 1_000_000:
            return SILENT, at_us
        if link.state != UP:
            return link.state.lower(), max(1, min(at_us, link.since_ms * 1000))  # 0 is that of known topics
        return "", 0

    def _log(self, one: BridgeLink, why: str, since_us: int) -> None:
        if not why:
            log_event(logging.INFO, "bridge-link-up", venue=one.venue, after=one.down)
        elif one.down or one.link is None:
            log_event(logging.WARNING, "bridge-link-down", venue=one.venue, reason=why)
        else:
            seconds = f"{max(0, self.now_us - since_us) / 1e6:.1f}"
            log_event(logging.WARNING, "bridge-link-down", venue=one.venue, reason=why, unknown_for_s=seconds)

    # Sweeps.

    def _begin_sweep(self, one: BridgeLink, globs: tuple[Glob, ...]) -> None:
        one.sweeping, one.cursor, one.found, one.wanted = globs, None, 0, False
        one.prefixes = []
        for prefix in sorted(glob.prefix.encode() for glob in globs):
            if not one.prefixes or not prefix.startswith(one.prefixes[-1]):
                one.prefixes.append(prefix)

    def _sweep(self, one: BridgeLink, left: int, now_s: float) -> int:
        """Go on with the sweep of a link, for at most this number of topics; return how many others the batch may still have."""
        store = self._broker.store
        cost = 1 + len(one.sweeping) // _GLOBS_AT_ONCE
        while left > 0 and one.prefixes:
            wanted = -(-left // cost)
            names = store.names_slice(one.prefixes[-1], one.cursor, wanted)
            for name in names:
                text = name.decode()
                if any(glob.matches(text) for glob in one.sweeping):
                    one.found += self._reconcile(name)
            if len(names) < wanted:
                one.prefixes.pop()
                one.cursor = None
            else:
                one.cursor = names[-1]
            left -= max(1, len(names)) * cost
        if not one.prefixes:
            one.sweeping = ()
            one.again_s = now_s + GONE_INTERVAL_S
            unknown = self._broker.notices.unknown
            if one.down == DELETED and one.venue not in unknown.links:
                del self.links[one.venue]
            elif one.down == DELETED and not one.found:
                unknown.set(
                    one.venue, (), one.publisher, one.rights
                )  # one more sweep, for topics that have come meanwhile
                self._begin_sweep(one, one.globs)
        return left

    def _reconcile(self, name: bytes) -> bool:
        """Make deadline and notices of a topic agree with the links; return False if it has no value."""
        broker = self._broker
        topic = broker.store.topics[name]
        if topic.change.deleted:
            return False
        self._freshness.recheck(topic)
        if broker.notices.unknown.link_of(name, topic.change.publisher.principal):
            broker.notices.link_down(topic)
        elif topic.freshness != OVERDUE:
            broker.notices.link_up(topic)
        return True

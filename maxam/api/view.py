"""The state of the gateway that several routes read: the caller's rights, the topics, and the schemas of their values."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, final

from maxam.api.conditions import Conditions
from maxam.api.live.shared import SLICE_NAMES, Live
from maxam.avro.json.decoding import iso_time
from maxam.avro.judging import judging_text
from maxam.avro.registry import Registry
from maxam.broker.broker import Broker
from maxam.broker.policy import Policy
from maxam.broker.topic_events import TopicEvent, TopicReader
from maxam.enrolment.enrolment import Enrolment
from maxam.gateway.revocation import Chain
from maxam.gateway.server import Gateway
from maxam.globs import Glob
from maxam.records import Change, Validation

SLICE_TOPICS: Final = 500  # read before the event loop runs other tasks: about 1 ms
SLICE_COST: Final = (
    16_384  # bytes of bodies that a condition reads before the event loop runs other tasks: 1 ms at most
)
Wanted = Callable[[Change], tuple[bool, int]]


@final
class View:
    """The state that routes share. No method blocks or yields.

    Attributes:
        gateway: The gateway.
        enrolment: The enrolment of clients. None if this gateway has none.
        live: The live streams.
        conditions: The conditions of listings.
    """

    def __init__(self, gateway: Gateway, enrolment: Enrolment | None = None) -> None:
        self.gateway: Final = gateway
        self.enrolment: Final = enrolment
        self.live: Final = Live(self.read_events)
        self.conditions: Final = Conditions(gateway.broker.limits)
        self._feed: TopicReader | None = None

    @property
    def _broker(self) -> Broker:
        return self.gateway.broker

    @property
    def policy(self) -> Policy:
        """The policy in force, which is immutable."""
        return self._broker.policy

    @property
    def registry(self) -> Registry:
        """The schema registry in force, which is immutable."""
        return self._broker.registry

    # The caller.

    def principal_of(self, fingerprint: str) -> str | None:
        """Return the principal of a certificate, or None when the policy knows none."""
        return self._broker.policy.principal_of(fingerprint)

    def denial(self, chain: Chain) -> str | None:
        """Return why a certificate that was verified when its connection began is no longer valid, or None."""
        failure = self.gateway.denial(chain)
        return None if failure is None else failure.detail

    def admin_rights(self, principal: str) -> frozenset[str]:
        """Return the admin rights of a principal."""
        return self._broker.policy.rights(principal).admin

    def may_receive(self, principal: str, destination: bytes) -> bool:
        """Return True if the principal may see values of a topic."""
        return self._broker.policy.rights(principal).may_receive(destination)

    # Topics.

    def topics_slice(
        self,
        glob: Glob,
        after: bytes | None,
        matches_max: int,
        value_bytes_max: int | None = None,
        wanted: Wanted | None = None,
    ) -> tuple[list[Change], bytes | None]:
        """Read the next SLICE_TOPICS destinations that share the glob's literal prefix, or fewer if enough match.

        Args:
            glob: Pattern of the topics.
            after: Place where the batch before this one ended. None begins.
            matches_max: Number of matches after which the batch ends, at least 1.
            value_bytes_max: Bytes of their headers and bodies after which it ends too.
            wanted: Called with each topic that the glob matches. It returns whether the topic is wanted, and the cost of the answer.
                The batch ends after SLICE_COST too.

        Returns:
            The newest changes of matching topics that hold a value, in byte order of their destinations, and where to go on. None at
            the end. Topics made or deleted between batches appear or not. No other is missed or seen twice.
        """
        store = self._broker.store
        changes: list[Change] = []
        looked_at = value_bytes = cost = 0
        for name in islice(store.names_after(glob.prefix.encode(), after), SLICE_TOPICS):
            looked_at += 1
            after = name
            topic = store.topics[name]
            if topic.change.deleted or not glob.matches(topic.name):
                continue
            if wanted is not None:
                match, spent = wanted(topic.change)
                cost += spent
                if not match:
                    if cost >= SLICE_COST:
                        return changes, name
                    continue
            changes.append(topic.change)
            value_bytes += len(topic.change.content)
            enough = len(changes) == matches_max or cost >= SLICE_COST
            if enough or (value_bytes_max is not None and value_bytes >= value_bytes_max):
                return changes, name
        return changes, after if looked_at == SLICE_TOPICS else None

    def find_slice(
        self, glob: Glob, literal: bytes, after: bytes | None, matches_max: int
    ) -> tuple[list[bytes], bytes | None]:
        """Search matching destinations, as `topics_slice` does, but at SLICE_NAMES, and by name alone as far as that goes.

        Args:
            glob: Pattern of the wanted ones.
            literal: Part that each match contains, to skip most of the others quickly.
            after: Place where the batch before this one ended. None begins.
            matches_max: Number of matches after which the batch ends.

        Returns:
            Destinations that hold a value, in order, and where to go on. None at the end.
        """
        store = self._broker.store
        names = store.names_slice(glob.prefix.encode(), after, SLICE_NAMES)
        found: list[bytes] = []
        for name in [name for name in names if literal in name] if literal else names:
            if glob.matches(name.decode()) and not store.topics[name].change.deleted:
                found.append(name)
                if len(found) == matches_max:
                    return found, name
        return found, names[-1] if len(names) == SLICE_NAMES else None

    @property
    def topics_live(self) -> int:
        """How many topics hold a value."""
        return self._broker.store.live

    def read_events(self, wanted: bool) -> None:
        """Read from now on, or no longer, what happens to topics."""
        events = self._broker.store.events
        if self._feed is not None:
            events.close(self._feed)
        self._feed = events.open() if wanted else None

    @property
    def events_end(self) -> int:
        """Position after the newest event of a topic."""
        return 0 if self._feed is None else self._feed.end

    def events_since(self, position: int, events_max: int) -> list[TopicEvent] | None:
        """Return the first events of topics since `events_end` was `position`. None if some were lost: all topics must be read again."""
        return None if self._feed is None else self._feed.since(position, events_max)

    def topic(self, destination: bytes) -> Change | None:
        """Return the newest committed value of a topic, or None when it has none."""
        topic = self._broker.store.topics.get(destination)
        return None if topic is None or topic.change.deleted else topic.change

    def updates(self, destination: bytes) -> int:
        """Return how many changes of a topic were applied since this process has known it, its recovery included."""
        topic = self._broker.store.topics.get(destination)
        return 0 if topic is None else topic.updates

    def unknown_since(self, destinations: Iterable[bytes]) -> dict[str, str]:
        """Return those topics that are not known to be current, as their link is down, and since when."""
        if not self._broker.notices.unknown.links:
            return {}
        since = {name.decode(): self.gateway.bridge_links.unknown_since_us(name) for name in destinations}
        return {name: iso_time(since_us) for name, since_us in since.items() if since_us}

    def schema_text(self, validation: Validation) -> bytes | None:
        """Return the self-contained text of the schema that judged a body, None without one or if what has its name now is another.

        A field that any version of the same fingerprint marks as personal is marked.
        """
        return judging_text(self.registry, validation)

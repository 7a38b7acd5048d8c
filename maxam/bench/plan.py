"""The work of a run, as values: publishers with topics and rates, and subscribers with globs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from maxam.bench.errors import LoadError
from maxam.bench.syntax import DestinationSyntax
from maxam.bench.target import Target

TOPICS_MAX: Final = 10**7  # the digits of a stamp
SECONDS_MAX: Final = 3600.0  # each second has a histogram of its own
OBSERVE_AT_MAXIMUM: Final = 50
ACKS: Final = ("auto", "client", "client-individual")

USER_HEADERS: Final = 3

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SubscriberGroup:
    """Subscribers that are alike: each has a connection and one glob, the globs dealt out in turn."""

    name: str
    connections: int
    globs: tuple[str, ...]  # in the broker's own syntax
    ack: str = "auto"
    delay_ms: float = 0.0  # what each takes for a message; 0 reads as fast as it can
    eager: bool = False
    durable: bool = False
    observe: int = 1  # one in this many receives is read in full, the others are counted; only with `auto`, no delay and not durable
    each_topic: bool = False  # subscribe to each topic that the glob matches by itself, on the same connection
    headers: Headers = ()  # further ones of SUBSCRIBE
    connect_headers: Headers = ()  # further ones of CONNECT
    receive_buffer_bytes: int = 0  # SO_RCVBUF; 0 leaves it to the system
    round_trip_ms: float = 0.0  # of a simulated link to the broker, 0 for none
    jitter_ms: float = 0.0  # by how much a round trip may take longer, evenly distributed
    processes: int = 1

    @property
    def counts_only(self) -> bool:
        """Whether most reads are only counted."""
        return self.observe > 1 and self.ack == "auto" and not self.delay_ms and not self.durable


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    target: Target
    bodies: tuple[bytes, ...]
    groups: tuple[SubscriberGroup, ...] = ()
    publishers: int = 1
    publisher_processes: int = 1
    topics: int = 1000
    per_second: float = 0.0  # of all publishers together, 0 for as fast as receipts come
    window: int = 1000  # SENDs of one publisher without their RECEIPT at the most, at maximum rate
    receipts: bool = True
    headers: Headers = ()  # further ones of SEND, with `{n}` and `{destination}` of the topic
    once: bool = False  # one value for each topic, as fast as receipts come and for as long as that takes
    warm_up_s: float = 1.0
    seconds: float = 5.0
    settle_s: float = 10.0  # for the last RECEIPTs and values, once the publishers have stopped
    connects_per_second: float = 0.0  # of all processes together, 0 for as fast as they are answered
    cores: frozenset[int] | None = field(default=None)  # where the load may run, None for where this process may

    @property
    def syntax(self) -> DestinationSyntax:
        """How the broker writes destinations."""
        return self.target.syntax

    @property
    def span_s(self) -> float:
        """How long the publishers send."""
        return self.warm_up_s + self.seconds

    @property
    def sends(self) -> int:
        """How many SENDs a fixed rate makes; 0 at maximum rate."""
        return max(1, round(self.per_second * self.span_s)) if self.per_second else 0

    def topics_of(self, publisher: int) -> range:
        """Return the numbers of the topics that one publisher sends to: each has one, so that its last value is one."""
        return range(publisher, self.topics, self.publishers)

    def topics_sent(self) -> int:
        """Return how many topics get a value: a slow rate may not come round."""
        return min(self.topics, self.sends) if self.per_second else self.topics

    def check(self) -> None:
        """Refuse a plan that is impossible or would measure nothing.

        Raises:
            LoadError: The text has the option to change.
        """
        problems = [
            (not 1 <= self.topics <= TOPICS_MAX, f"the topics are {self.topics}; give 1 to {TOPICS_MAX}"),
            (
                self.publishers > self.topics,
                f"{self.publishers} publishers share {self.topics} topics; give each at least one, as two would disagree on its last value",
            ),
            (self.publishers < 1, "there is no publisher; give at least one"),
            (self.window < 1, "the window is less than 1; give the number of SENDs that may wait for their RECEIPT"),
            (
                not 0 < self.span_s <= SECONDS_MAX or self.seconds < 1,
                f"warm-up and measurement take {self.span_s:g} s; give at least 1 s to measure and {SECONDS_MAX:g} in all at most",
            ),
            (
                self.once and bool(self.per_second or self.warm_up_s),
                "one value for each topic goes with neither a rate nor a warm-up",
            ),
            (not self.bodies, "there are no bodies"),
            (any(b"\nbench:" in body for body in self.bodies), "a body holds the mark of the load's own header"),
        ]
        for wrong, text in problems:
            if wrong:
                raise LoadError(text)
        for group in self.groups:
            if group.connections < len(group.globs):
                raise LoadError(
                    f"{group.connections} {group.name} have {len(group.globs)} globs, one each; give as many as there are globs"
                )
            if group.jitter_ms and not group.round_trip_ms:
                raise LoadError(f"the {group.name} have jitter on no link; give a round trip too")
            if group.round_trip_ms and self.target.others:
                raise LoadError(
                    f"the {group.name} have a simulated link, which leads to one address; give one --server"
                )
            if group.durable and group.each_topic:
                raise LoadError(f"the {group.name} are durable and subscribe to each topic; give one of the two")


def user_headers(number: int) -> Headers:
    """Return short user headers that make a SEND have N of them with the one of the load itself."""
    return tuple((f"user-{n}", f"value-{n}") for n in range(2, number + 1))


def wanted_topics(plan: Plan) -> dict[str, Sequence[int]]:
    """Return for each glob the numbers of the topics that it matches, of those that get a value.

    Raises:
        LoadError: It matches none, so that its subscribers would get nothing.
    """
    numbers = range(plan.topics_sent())
    destinations = [plan.syntax.topic(number) for number in numbers]
    wanted: dict[str, Sequence[int]] = {}
    for group in plan.groups:
        for glob in group.globs:
            if glob in wanted:
                continue
            matches = plan.syntax.matcher(glob)
            found = [number for number in numbers if matches(destinations[number])]
            if not found:
                raise LoadError(
                    f"the glob {glob!r} matches none of the {len(numbers)} topics {destinations[0]!r} to {destinations[-1]!r}, so its subscribers would get nothing. Change --glob or --topic-template"
                )
            wanted[glob] = numbers if len(found) == len(numbers) else found
    return wanted

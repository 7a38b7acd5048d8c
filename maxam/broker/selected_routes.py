"""The routes of a topic by selector: a change that does not match skips all subscriptions that share one.

Theory of operation. The routes of a topic are one list. While enough subscriptions have selectors, this list is divided once for each topic, and
kept until it changes. A selector is evaluated once for each change. If it does not match, and no client with that selector holds a value
of the topic, none of its subscriptions is asked. A client that may hold anything, such as one that was resumed, is always asked.
"""

from typing import Final, final

from maxam.broker.refinement_table import RefinementTable
from maxam.broker.session import Subscription, Topic
from maxam.selectors.selector import Selector

SELECTIVE_MIN: Final = 8  # subscriptions with selectors, of a broker and of a topic, from which on it is worth it
_REFERENCES_MAX: Final = 4_000_000  # that are kept for all topics: 32 MiB. Beyond that, routes are not divided


@final
class _Division:
    """The routes of one topic, divided.

    Attributes:
        routes: The list that was divided.
        always: Subscriptions that are asked about each change.
        selected: The other ones, by selector.
    """

    __slots__ = ("always", "routes", "selected")

    def __init__(self, routes: list[Subscription]) -> None:
        self.routes: Final = routes
        self.always: Final[list[Subscription]] = []
        self.selected: Final[list[tuple[Selector, list[Subscription]]]] = []
        groups: dict[Selector, list[Subscription]] = {}
        for subscription in routes:
            refinement = subscription.refinement
            selector = None if refinement is None or refinement.resumed else refinement.selector
            if selector is None:
                self.always.append(subscription)
            elif selector in groups:
                groups[selector].append(subscription)
            else:
                groups[selector] = [subscription]
        self.selected.extend(groups.items())


@final
class SelectedRoutes:
    """The divided routes of topics."""

    __slots__ = ("_divisions", "_references", "_refinements", "_version")

    def __init__(self, refinements: RefinementTable) -> None:
        self._refinements: Final = refinements
        self._version = -1
        self._divisions: Final[dict[Topic, _Division]] = {}
        self._references = 0

    @property
    def worthwhile(self) -> bool:
        """Whether enough subscriptions have selectors."""
        return self._refinements.selective >= SELECTIVE_MIN

    def concerned(self, topic: Topic) -> list[Subscription]:
        """Return the routes of a topic, without those that its newest change does not concern because of their selectors."""
        routes = topic.routes
        if len(routes) < SELECTIVE_MIN:
            return routes
        if self._version != self._refinements.version:
            self._divisions.clear()
            self._references = 0
            self._version = self._refinements.version
        division = self._divisions.get(topic)
        if division is None or division.routes is not routes:
            if division is not None:
                self._references -= len(division.routes)
                del self._divisions[topic]
            if self._references + len(routes) > _REFERENCES_MAX:
                return routes
            division = _Division(routes)
            self._divisions[topic] = division
            self._references += len(routes)
        change = topic.change
        found = division.always[:]
        for selector, members in division.selected:
            if selector.concerns(change):
                found.extend(members)
        return found

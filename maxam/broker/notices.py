"""Notices of topics whose values may not be current, to the subscriptions with markers."""

from typing import Final, final

from maxam.broker.refinement import LINK_DOWN, OVERDUE
from maxam.broker.refinement_table import RefinementTable
from maxam.broker.routing import Routing
from maxam.broker.session import Topic
from maxam.broker.unknown import UnknownTopics
from maxam.records import Headers


@final
class Notices:
    """Has notices sent to all clients of a topic.

    Attributes:
        unknown: Topics whose link is down. The notices of those that had a value before are the caller's task.
    """

    __slots__ = ("_refinements", "_routing", "unknown")

    def __init__(self, routing: Routing, refinements: RefinementTable) -> None:
        self._routing: Final = routing
        self._refinements: Final = refinements
        self.unknown: Final[UnknownTopics] = refinements.unknown

    def overdue(self, topic: Topic) -> None:
        """Report that a topic was not updated in time."""
        self._send(topic, OVERDUE)

    def link_down(self, topic: Topic) -> None:
        """Report that the link of a topic is down."""
        self._send(topic, LINK_DOWN)

    def link_up(self, topic: Topic) -> None:
        """Report that the value of a topic is current, where it was reported as stale."""
        self._send(topic, None)

    def _send(self, topic: Topic, stale: Headers | None) -> None:
        if not self._refinements.markers:
            return
        self._routing.complete(topic)
        destination = topic.destination
        for subscription in topic.routes:
            connection, refinement = subscription.connection, subscription.refinement
            if connection is None or refinement is None:
                continue
            if refinement.current_again(destination) if stale is None else refinement.gone_stale(destination, stale):
                connection.notify(subscription)

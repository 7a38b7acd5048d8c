"""How far an application has come with a subscription that has markers, and the topics that it holds.

A marker takes effect in the order of the messages: once the application has taken all messages before it. So a position that is
stored with the values never covers a change that the values lack.
"""

from collections.abc import Callable, MutableMapping
from typing import Final, Literal, cast, final

import anyio

from maxam.errors import ClientError
from maxam.stomp.answers import MARKER, Delivery

Kind = Literal["value", "delete", "left", "stale", "fresh"]

NOT_IN_SNAPSHOT: Final = "not-in-snapshot"  # `reason` of a `left` that the client made itself
_KINDS: Final = frozenset((b"value", b"delete", b"left", b"stale", b"fresh"))


def kind_of(delivery: Delivery) -> Kind:
    """Return the kind of a MESSAGE on a subscription that asked for kinds. Without this header the body decides."""
    text = delivery.headers.get(b"kind", b"")
    if text in _KINDS:
        return cast("Kind", text.decode())
    return "value" if delivery.body else "delete"


def is_position(delivery: Delivery) -> bool:
    """Return True if it is a marker with nothing but a position."""
    return delivery.destination == MARKER and delivery.headers.get(b"kind") == b"position"


def position_marker(subscription: bytes, position: str) -> Delivery:
    """Return the marker that has this position."""
    return Delivery(subscription, b"0", MARKER, {b"kind": b"position", b"position": position.encode()}, b"")


@final
class Progress:
    """The state of one subscription that has to survive its connections.

    Attributes:
        position: Position from which it is safe to resume, or None if none is known.
        caught_up: True unless a snapshot or a catch-up is under way.
        values: The mapping that is kept equal to the broker's values, or None.
        tracking: True if it is known which topics the application holds. Never of a durable subscription, as a resumed
            one does not report topics that may no longer be received.
    """

    __slots__ = ("_changed", "_missing", "_topics", "caught_up", "position", "tracking", "values")

    def __init__(self, position: str | None, values: MutableMapping[str, bytes] | None, tracking: bool) -> None:
        self.position = position
        self.caught_up = False
        self.values: Final = values
        self.tracking: Final = tracking or values is not None
        self._topics: Final[set[str] | None] = set() if self.tracking and values is None else None
        self._missing: set[str] | None = None  # held topics that the snapshot under way has not named
        self._changed = anyio.Event()

    @property
    def topics(self) -> set[str]:
        """A copy of the topics that the application has a value of, as far as this is tracked."""
        return set(self._topics or ()) if self.values is None else set(self.values)

    def begin(self, snapshot: bool) -> None:
        """Record that SUBSCRIBE was answered. With `snapshot` all values come before `complete`: held topics not among them are gone."""
        self.caught_up = False
        if snapshot:
            self.position = None
        self._missing = self.topics if snapshot and self.tracking else None
        self.notify()

    def take(self, delivery: Delivery) -> None:
        """Record that the application takes a message, and apply it to `values`."""
        if not self.tracking:
            return
        kind, destination = kind_of(delivery), delivery.destination.decode()
        if kind == "stale" or (kind == "fresh" and not delivery.body):
            return
        if self._missing is not None:
            self._missing.discard(destination)
        if kind in ("delete", "left"):
            if self.values is not None:
                self.values.pop(destination, None)
            elif self._topics is not None:
                self._topics.discard(destination)
        elif self.values is not None:
            self.values[destination] = delivery.body
        elif self._topics is not None:
            self._topics.add(destination)

    def pass_marker(self, marker: Delivery) -> list[Delivery]:
        """Record that the application has taken all messages before `marker`.

        Returns:
            `left` messages for the topics that a snapshot did not name. If there are any, the application takes them first, and
            the marker comes after them again.
        """
        complete = marker.headers.get(b"kind") == b"complete"
        if self._missing is not None and not complete:
            return []  # what is gone has not been dropped: no position is safe yet
        if self._missing:
            gone, self._missing = self._missing, set()
            headers = {b"kind": b"left", b"reason": NOT_IN_SNAPSHOT.encode()}
            return [Delivery(marker.subscription, b"0", topic.encode(), headers, b"") for topic in sorted(gone)]
        position = marker.headers.get(b"position")
        if position is not None:
            self.position = position.decode()
        if complete:
            self.caught_up = True
            self._missing = None
        self.notify()
        return []

    def notify(self) -> None:
        """Wake all tasks that wait for a change."""
        self._changed.set()
        self._changed = anyio.Event()

    async def complete(self, failure: Callable[[], ClientError | None]) -> None:
        """Wait until it has caught up, or raise what `failure` returns."""
        while not self.caught_up:
            await self._change(failure)

    async def position_after(self, position: str | None, failure: Callable[[], ClientError | None]) -> str:
        """Wait for another position than `position` and return it, or raise what `failure` returns."""
        while self.position is None or self.position == position:
            await self._change(failure)
        return self.position

    async def _change(self, failure: Callable[[], ClientError | None]) -> None:
        problem = failure()
        if problem is not None:
            raise problem
        await self._changed.wait()

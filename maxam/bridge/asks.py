"""The wishes of a relay that have gathered, the connected lanes, and the transient subscriptions."""

from typing import Final, Literal, final

from maxam.bridge.wishes import Log, Subscribe, Unsubscribe, Wish

LOG_S: Final = 60.0  # between two events of one kind, where there may be many
Kind = Literal["link", "wanted", "inventory"]


@final
class Asks:
    """Wishes and their numbers.

    Attributes:
        now_s: Time of the newest fact.
        wishes: Those that have not been taken.
        lanes: Incarnations of the connected lanes.
        listens: Transient subscriptions by handle: kind, lane and glob.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.wishes: list[Wish] = []
        self.lanes: Final[dict[int, str]] = {}
        self.listens: Final[dict[int, tuple[Kind, int, str]]] = {}
        self._number = 0  # of handles and tickets
        self._logged: Final[dict[str, float]] = {}

    def new(self) -> int:
        """Return the next handle or ticket."""
        self._number += 1
        return self._number

    def listen(self, kind: Kind, lane: int, glob: str) -> int:
        """Subscribe to all values of a glob, for the life of the connection. Return the handle."""
        handle = self.new()
        self.listens[handle] = kind, lane, glob
        self.wishes.append(Subscribe(handle, lane, f"{kind}-{handle}", glob, False, True))
        return handle

    def end(self, handle: int) -> None:
        """End a transient subscription."""
        kind, lane, _ = self.listens.pop(handle)
        if lane in self.lanes:
            self.wishes.append(Unsubscribe(self.new(), lane, f"{kind}-{handle}"))

    def lost(self, lane: int) -> None:
        """Forget a lane and its transient subscriptions."""
        self.lanes.pop(lane, None)
        for handle in [handle for handle, (_, place, _) in self.listens.items() if place == lane]:
            del self.listens[handle]

    def log(self, event: str, **fields: str) -> None:
        """Have an event logged, of each kind at most one a minute."""
        if self.now_s >= self._logged.get(event, -LOG_S) + LOG_S:
            self._logged[event] = self.now_s
            self.wishes.append(Log(event, dict(fields)))

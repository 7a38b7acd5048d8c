"""SENDs that exceed a limit of their gateway on frames. It answers those with an ERROR, which ends the connection.

The limits are not known beforehand. The first SEND that is refused shows one, and no SEND of its size is made from then on. A gateway
has the same limits as long as it runs. So they are forgotten with a connection that was lost for another reason.
"""

from collections.abc import Callable, Mapping
from typing import Final, final

from maxam.bridge.flow import Item


def _body(item: Item) -> int:
    return len(item.body)


def _lines(item: Item) -> int:
    return len(item.headers)


def _longest(item: Item) -> int:
    return max([len(name.encode()) + len(value.encode()) for name, value in item.headers.items()], default=0)


def _head(item: Item) -> int:
    return len(item.topic.encode()) + sum(
        [len(name.encode()) + len(value.encode()) + 2 for name, value in item.headers.items()]
    )


_SIZES: Final[Mapping[str, Callable[[Item], int]]] = {  # by `message` of the ERROR
    "body too long": _body,
    "too many headers": _lines,
    "header line too long": _longest,
    "headers too long": _head,
}


@final
class Refusals:
    """The sizes that are too large for each lane."""

    def __init__(self) -> None:
        self._least: Final[dict[tuple[int, str], int]] = {}  # that is too large, by lane and `message`
        self._ended: Final[set[int]] = set()  # lanes whose connection such a SEND ends

    def learn(self, lane: int, item: Item, message: str) -> None:
        """Record the SEND that an ERROR refuses."""
        size = _SIZES.get(message)
        if size is not None:
            self._ended.add(lane)
            key = lane, message
            self._least[key] = min(size(item), self._least.get(key, size(item)))

    def lost(self, lane: int) -> None:
        """Record the end of a connection."""
        if lane in self._ended:
            self._ended.discard(lane)
            return
        for key in [key for key in self._least if key[0] == lane]:
            del self._least[key]

    def problem(self, lane: int, item: Item) -> str:
        """Return why a SEND would be refused; empty if that is not known of it."""
        for (of, message), least in self._least.items():
            if of == lane and _SIZES[message](item) >= least:
                return f"{message}: it is as large as one that the gateway refused. Raise its limit, or publish less"
        return ""

"""The files and the memory in which members of a cluster differ from the one that leads.

A member that takes over with another policy or other schemas judges otherwise than the leader before. One with less memory than the
leader uses cannot take over at all. So the leader compares what live members announce with its own.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, final

from maxam.cluster.membership import Announcement
from maxam.gateway.loaded_config import CLIENT_CA, CRL, POLICY, SCHEMAS

MEMORY: Final = "memory"
COMPARED: Final = (POLICY, SCHEMAS, CLIENT_CA, CRL, MEMORY)  # certificates are each member's own
SHOWN_S: Final = 60.0  # files are given to all members one after the other
_DIGEST_CHARS: Final = 16


def digests_text(digests: Mapping[str, str]) -> str:
    """Return the digests of the compared items, as a member announces them: `item=digest`, separated by spaces."""
    return " ".join(f"{item}={digests[item][:_DIGEST_CHARS]}" for item in COMPARED if item in digests)


@final
class Differences:
    """The differences between the leader and the other live members.

    Attributes:
        found: Item and member of each difference, in order, and since when it is known, seconds of the monotonic clock.
    """

    def __init__(self, report: Callable[..., None]) -> None:
        """Know of none.

        Args:
            report: Logs an event.
        """
        self.found: dict[tuple[str, str], float] = {}
        self._report: Final = report
        self._reported: Final[set[tuple[str, str]]] = set()

    def compare(self, now_s: float, own: Announcement, others: Iterable[Announcement], used_bytes: int) -> None:
        """Compare the leader with the other live members. A member that does not lead gives none.

        Args:
            now_s: Time of the monotonic clock.
            own: Announcement of the leader.
            others: Those of the other live members.
            used_bytes: Memory that the leader uses.
        """
        former = self.found
        self.found = {one: former.get(one, now_s) for one in sorted(_differing(own, others, used_bytes))}
        self._reported.intersection_update(self.found)
        for one in self._lasting(now_s):
            if one not in self._reported:
                self._reported.add(one)
                self._report("differs", logging.WARNING, item=one[0], other=one[1])

    def count(self, item: str) -> int:
        """Return the number of members that differ in an item."""
        return sum(found == item for found, _ in self.found)

    def degraded(self) -> list[str]:
        """Return the differences that have lasted for a minute."""
        reasons = []
        for item, member in self._lasting(time.monotonic()):
            if item == MEMORY:
                reasons.append(f"differs: {member} has less memory than this leader uses, so it cannot take over")
            else:
                reasons.append(f"differs: {item} differs on {member}. Give all members the same files")
        return reasons

    def _lasting(self, now_s: float) -> Iterator[tuple[str, str]]:
        return (one for one, since_s in self.found.items() if now_s - since_s >= SHOWN_S)


def _differing(own: Announcement, others: Iterable[Announcement], used_bytes: int) -> Iterator[tuple[str, str]]:
    ours = _digests(own)
    for one in others:
        theirs = _digests(one)
        for item in ours.keys() & theirs.keys():
            if ours[item] != theirs[item]:
                yield item, one.name
        if 0 < one.memory_bytes < used_bytes:
            yield MEMORY, one.name


def _digests(one: Announcement) -> dict[str, str]:
    """Return the digests of a member by item; none if its release announces none."""
    words = (word.partition("=") for word in one.digests.split())
    return {item: digest for item, _, digest in words}

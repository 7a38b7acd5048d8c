"""The work of a cluster member once a second: announce itself, learn of the others, trim the log, and note its place.

The note has the cluster and the index of an entry that is synced. The next start searches the log from there. It is only a hint.
"""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, final

import trio

from maxam import __version__
from maxam.cluster.entry import CLUSTER_ID_BYTES
from maxam.cluster.keeper import Keeper
from maxam.cluster.log import Log, LogError, LogSize
from maxam.cluster.logged import LoggedJournal
from maxam.cluster.member import SILENT_S, OtherMember, Role
from maxam.cluster.membership import (
    Announcement,
    Membership,
    read_announcements,
    update_membership,
    write_membership,
)
from maxam.cluster.trimming import Trimming
from maxam.errors import DiskFullError, MaxamError
from maxam.gateway.differences import digests_text
from maxam.gateway.log import log_event
from maxam.journal.disk import OsDisk
from maxam.link_config import ClusterSettings

if TYPE_CHECKING:
    from maxam.gateway.member import ClusterMember
    from maxam.gateway.server import Gateway

ANNOUNCE_S: Final = 1.0
READY_S: Final = 1.0  # a member is ready while it was at the head within this time
_TRIM_S: Final = 10.0
_SIZE_S: Final = 5.0  # between two questions for the size of the log
_STEP_S: Final = 10.0  # a journal is in step if it has what the log had this long ago


@final
class Announcer:
    """Announces a member to the others, and knows what they announce.

    Attributes:
        members: The newest announcements by name, of this member too.
        cluster: Identifier of the cluster; empty until it is known.
        hint: Index of an entry that was synced at the end of the last run; 0 for none.
        size: Size of the log, and the nodes of the engine that answer. None until it is known.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        folder: str,
        note: Membership | None,
        log: Log,
        logged: LoggedJournal,
        keeper: Keeper,
    ) -> None:
        """Know no other member yet.

        Args:
            settings: Of the cluster.
            folder: Of the journal.
            note: As it was read there; None for a new journal.
            log: Of the cluster.
            logged: Knows the place in the log, and trims it.
            keeper: Knows what is synced.
        """
        self._settings: Final = settings
        self._folder: Final = folder
        self._log: Final = log
        self._logged: Final = logged
        self._keeper: Final = keeper
        self.hint: Final = 0 if note is None else note.index
        self.cluster = b"" if note is None else note.cluster
        self.members: dict[str, Announcement] = {}
        self.size: LogSize | None = None
        self._noted = self.hint
        self._trimming: Final = Trimming(settings.copies_min, settings.log_keep_s)
        self._trim_s = time.monotonic() + _TRIM_S
        self._size_s = 0.0
        self._heard: Final[dict[str, tuple[int, float]]] = {}  # number of the newest announcement, and when it changed
        self._indexes: Final[deque[tuple[float, int]]] = deque()  # of the log, in the last seconds
        self._changed = trio.Event()

    # for the member

    async def run(
        self,
        own: Callable[[], Announcement],
        call: Callable[..., Awaitable[Any]],
        learned: Callable[[float, dict[str, OtherMember]], None],
        failed: Callable[[MaxamError], None],
    ) -> None:
        """Do its work once a second until cancelled.

        Args:
            own: Returns the announcement of this member.
            call: Makes a call that may wait, on a thread.
            learned: Is called with the time and the other members.
            failed: Is called if the engine gives no answer.
        """
        while True:
            begun_s = time.monotonic()
            try:
                self.members = await call(self._exchange, own())
                now_s = time.monotonic()
                self._hear(begun_s, now_s)
                learned(now_s, {one.name: OtherMember(one.number, one.priority, one.ready) for one in self._others()})
                last = self._due(now_s)
                if last:
                    await call(self._logged.trim, last)
                if now_s >= self._size_s:
                    self._size_s = now_s + _SIZE_S
                    self.size = await call(self._log.size)
            except LogError as error:
                failed(error)
            await trio.sleep(max(0.0, begun_s + ANNOUNCE_S - time.monotonic()))

    async def next(self) -> None:
        """Wait for the next announcements."""
        await self._changed.wait()

    def tell(self, own: Announcement) -> None:
        """Announce this member once more, before its process ends. Blocks. Raises LogError."""
        self._log.announce(own.name, own.encode())

    def begin(self, first: int) -> None:
        """Note, durably, that this journal belongs to the cluster and follows from an index on. It is only a hint."""
        try:
            write_membership(self._folder, Membership(self.cluster, first - 1), OsDisk())
        except (OSError, DiskFullError) as error:
            log_event(logging.WARNING, "cluster-note-failed", error=error)

    def note(self) -> None:
        """Note what is synced."""
        index = self._keeper.synced_index
        if index > self._noted and len(self.cluster) == CLUSTER_ID_BYTES:
            try:
                update_membership(self._folder, Membership(self.cluster, index))
                self._noted = index
            except OSError as error:
                log_event(logging.WARNING, "cluster-note-failed", error=error)

    def forget(self, name: str) -> None:
        """Remove a member, which must be silent. Blocks. Raises LogError."""
        self._log.forget(name)
        self.members = {other: one for other, one in self.members.items() if other != name}

    def links(self, leader: str) -> list[tuple[str, int]]:
        """Return the links of the other members, the leader's first."""
        linked = [one for one in self._others() if one.link]
        return [(one.host, one.link) for one in sorted(linked, key=lambda one: one.name != leader)]

    # for operators

    @property
    def failures(self) -> int:
        """Number of tries to which no node of the engine gave an answer."""
        return self._log.failures

    @property
    def live(self) -> list[Announcement]:
        """The other members that have announced themselves in the last seconds."""
        return [one for one in self._others() if self.is_live(one.name)]

    def is_live(self, name: str) -> bool:
        """Return True if a member has announced itself in the last seconds, by the own clock."""
        _, heard_s = self._heard.get(name, (0, float("-inf")))
        return time.monotonic() - heard_s < SILENT_S

    def in_step(self) -> int:
        """Return the number of live members whose journals have synced what the log had some seconds ago."""
        index = self._indexes[0][1] if self._indexes else 0
        return sum(one.synced >= index and self.is_live(one.name) for one in self.members.values())

    # parts

    def _exchange(self, own: Announcement) -> dict[str, Announcement]:
        self.note()
        self._log.announce(own.name, own.encode())
        return read_announcements(self._log.announced())

    def _others(self) -> Iterator[Announcement]:
        return (one for one in self.members.values() if one.name != self._settings.own_name)

    def _hear(self, asked_s: float, now_s: float) -> None:
        for name, one in self.members.items():
            known = self._heard.get(name)
            if known is None or known[0] != one.number:
                # the first announcement that is read may be an old one of a member that is gone
                fresh = known is not None or name == self._settings.own_name
                self._heard[name] = one.number, now_s if fresh else now_s - SILENT_S
        for name in self._heard.keys() - self.members.keys():
            del self._heard[name]
        indexes, index = self._indexes, self._logged.place.index
        indexes.append((now_s, index))
        while len(indexes) > 1 and indexes[1][0] <= now_s - _STEP_S:
            indexes.popleft()
        self._trimming.seen(now_s, self._logged.place.block)
        self._trimming.announced(asked_s, {one.name: (one.number, one.synced) for one in self.members.values()})
        self._changed.set()
        self._changed = trio.Event()

    def _due(self, now_s: float) -> int:
        """Return the index up to which the log is to be trimmed now; 0 for none."""
        if now_s < self._trim_s:
            return 0
        self._trim_s = now_s + _TRIM_S
        return self._trimming.due(now_s, (self._settings.own_name, self._keeper.synced_index), len(self.members))


def announcement_of(member: "ClusterMember", settings: ClusterSettings, gateway: "Gateway") -> Announcement:
    """Return what a member announces of itself now."""
    keeper = member.keeper
    ready = member.machine.role is Role.FOLLOWING and member.lag_s < READY_S and member.able and gateway.fronts_loaded
    link = None if gateway.links is None else gateway.links.address
    return Announcement(
        settings.own_name,
        time.time_ns(),
        __version__,
        member.refused or member.name,
        settings.priority,
        ready,
        member.applied,
        keeper.synced_index,
        keeper.synced.revision,
        settings.own_host,
        gateway.address[1],
        gateway.admin_port,
        0 if link is None else link[1],
        gateway.watermarks.free_bytes,
        gateway.watermarks.memory_bytes_max,
        member.enrolled.state,
        digests_text(gateway.reloader.loaded.digests),
        round(member.lag_s, 3),
    )

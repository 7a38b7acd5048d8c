"""The role of a gateway among others: it serves by itself, follows another gateway, or is a member of a cluster."""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol, final

from maxam.gateway.commit_loop import Written, exit_at_once
from maxam.journal.files import Journal

if TYPE_CHECKING:
    from maxam.gateway.links import Links
    from maxam.gateway.member import ClusterMember
    from maxam.gateway.observer import Observer
    from maxam.gateway.server import Gateway


class Writer(Protocol):
    """The thread that writes the journal."""

    @property
    def alive(self) -> bool:
        """Whether the thread makes progress."""

    @property
    def disk_full(self) -> bool:
        """Whether the journal has no room for the next block."""


class GatewayRole(Protocol):
    """A role. The gateway asks it, and knows none by name."""

    @property
    def name(self) -> str:
        """The role, as operators are shown it."""

    @property
    def observer(self) -> "Observer | None":
        """The role itself, if the gateway follows another one."""

    @property
    def member(self) -> "ClusterMember | None":
        """The role itself, if the gateway is a member of a cluster."""

    @property
    def serves(self) -> bool:
        """Whether the gateway takes changes now. If not, it is a replica."""

    @property
    def copied(self) -> bool:
        """Whether another journal took the place of the own one, so that the gateway has to be opened again."""

    @property
    def seals(self) -> bool:
        """Whether a stop seals the open segment. A replica seals its segments where its source does."""

    @property
    def where(self) -> str:
        """The gateway that takes changes, as far as it is known here; empty for this one."""

    @property
    def as_of_us(self) -> int:
        """The time of the state that is shown here, microseconds since the epoch."""

    @property
    def written(self) -> Written:
        """The journal that the loop of commits writes."""

    def die(self, error: BaseException) -> None:
        """Take an error of the thread of commits."""

    def keep_schemas(self, texts: Iterable[tuple[str, bytes]]) -> None:
        """Store the schemas by which values are judged here. Raises DiskFullError."""

    def writer(self, commits: Writer, /) -> Writer:
        """Return the thread that writes the journal now: that of the loop of commits, or another one."""

    def join(self, links: "Links") -> None:
        """Have other gateways follow the journal, as this role writes it."""

    async def run(self, gateway: "Gateway") -> None:
        """Play the role until cancelled. Raises JournalError if a person must act."""

    def stop(self) -> bool:
        """Hand over before a stop. Return False if there is nothing to hand over."""

    def unready(self) -> list[str]:
        """Return why no client is served; empty while clients are."""

    def degraded(self) -> list[str]:
        """Return what an operator should repair."""


@final
class Alone:
    """The role of a gateway that serves by itself."""

    name: Final = "serving"
    observer: Final = None
    member: Final = None
    serves: Final = True
    copied: Final = False
    seals: Final = True
    where: Final = ""

    def __init__(self, journal: Journal) -> None:
        """Take the own journal."""
        self.written: Final = journal
        self.die: Final[Callable[[BaseException], None]] = exit_at_once

    @property
    def as_of_us(self) -> int:
        """The present time."""
        return time.time_ns() // 1000

    def keep_schemas(self, texts: Iterable[tuple[str, bytes]]) -> None:
        """Store schemas in the own journal. Raises DiskFullError."""
        self.written.keep_schemas(texts)

    def writer(self, commits: Writer, /) -> Writer:
        """Return the thread of the loop of commits."""
        return commits

    def join(self, links: "Links") -> None:
        """Do nothing: the journal feeds the links by itself."""

    async def run(self, gateway: "Gateway") -> None:
        """Do nothing: the gateway serves."""

    def stop(self) -> bool:
        """Return False."""
        return False

    def unready(self) -> list[str]:
        """Return nothing."""
        return []

    def degraded(self) -> list[str]:
        """Return nothing."""
        return []

"""A gateway that follows another one: its journal gets the blocks of the source, its broker is a replica, and no client connects.

Theory of operation. `cluster.follower` receives and checks the blocks on a thread. `cluster.keeper` stores them on another one. Here,
on the event loop, the broker applies their records in batches, and forgets what is no longer needed (`gateway.replica`). Nothing is
appended, so the journal stays equal to that of the source. Only a person makes an observer serve clients (`maxam-admin cluster promote`).
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import trio

from maxam.broker.broker import Broker
from maxam.cluster.follower import CopiedError, Follower, FollowStatus
from maxam.cluster.keeper import Keeper
from maxam.cluster.promotion import Followed, write_followed
from maxam.config import Settings
from maxam.gateway.audit import FOLLOWING
from maxam.gateway.commit_loop import Written, exit_at_once
from maxam.gateway.link_credentials import LinkCredentials
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.log import log_event
from maxam.gateway.replica import Replica
from maxam.gateway.role import Writer
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal
from maxam.link_config import LinkSettings, link_address

if TYPE_CHECKING:
    from maxam.gateway.links import Links
    from maxam.gateway.server import Gateway

_NOTE_S: Final = 5.0  # between two notes of what was heard of the source
_NOTE_LOOK_S: Final = 0.05  # between two checks whether there is a link


@final
class Observer:
    """The role of a gateway that follows another one.

    Attributes:
        follower: Receives the blocks of the source.
        keeper: Stores them.
        copied: The journal of the source was copied: the gateway must be opened again.
    """

    name: Final = "observer"
    member: Final = None
    serves: Final = False
    seals: Final = False

    def __init__(self, settings: Settings, loaded: LoadedConfig, broker: Broker, journal: Journal) -> None:
        """Take a recovered journal and its broker.

        Args:
            settings: With `[follow]`.
            loaded: Its files, as they are in force at the start.
            broker: Has applied what the journal holds.
            journal: Opened without an incarnation of its own.

        Raises:
            ConfigurationError: A file of `[link]` cannot be used.
        """
        self.copied = False
        self._broker: Final = broker
        self._journal: Final = journal
        self._folder: Final = str(Path(settings.journal.folder).absolute())
        self._replica: Final = Replica(broker, journal, settings.limits.scan_topics_per_pass_max, self._report)
        self._status = FollowStatus()
        self.die: Final[Callable[[BaseException], None]] = exit_at_once
        self.keeper: Final = Keeper(journal, journal.position, self.die)
        self._loaded: Final = loaded
        self._gateway: Gateway | None = None  # while it runs
        credentials = LinkCredentials(settings.tls, settings.link or LinkSettings(), self._files)
        follow = () if settings.follow is None else settings.follow.from_
        self.follower: Final = Follower(
            [address for text in follow if (address := link_address(text)) is not None],
            credentials.client,
            self.keeper,
            self._folder,
            OsDisk(),
            journal.position,
            journal.incarnation,
            credentials.denial_of,
        )

    # As a role of the gateway.

    @property
    def observer(self) -> "Observer":
        """This role."""
        return self

    @property
    def written(self) -> Written:
        """The own journal, which nothing is written to while the gateway follows."""
        return self._journal

    def keep_schemas(self, texts: Iterable[tuple[str, bytes]]) -> None:
        """Do nothing: the journal gets the schemas of the source, with the blocks."""

    def writer(self, _commits: Writer, /) -> Writer:
        """Return the thread of the keeper."""
        return self.keeper

    def join(self, links: "Links") -> None:
        """Have other gateways follow the journal, as the keeper writes it."""
        self.keeper.ring = links.ring
        links.role = "following"
        links.now_us = lambda: self.as_of_us

    def stop(self) -> bool:
        """Return False: there is nothing to hand over."""
        return False

    # For operators.

    @property
    def as_of_us(self) -> int:
        """The time of the source's state that is shown here, microseconds since the epoch."""
        head = self.follower.head
        if head is not None and self.follower.steps.applied.revision >= head.position.revision:
            return max(head.at_us, self._broker.accepted_at_us)
        return self._broker.accepted_at_us

    @property
    def where(self) -> str:
        """The gateway that takes changes, as far as it is known here."""
        status = self.follower.status
        return f"{status.source} ({status.address})" if status.source else status.address

    def lag_changes(self) -> int:
        """Return the number of changes that the source has and that are not applied here, as of its last sign of life."""
        head = self.follower.head
        return 0 if head is None else max(0, head.position.revision - self.follower.steps.applied.revision)

    def lag_bytes(self) -> int:
        """Return the bytes that were received, and are not applied or not stored yet."""
        return self.follower.steps.waiting_bytes + self.keeper.waiting_bytes

    def unready(self) -> list[str]:
        """Return why no client is served."""
        status = self.follower.status
        if status.state == "copying":
            return [f"copying: the journal of {self.where} is being copied"]
        reasons = [f"following: this gateway follows {self.where or 'no gateway yet'} and serves no clients"]
        return [*reasons, "disk-full: the journal has no room"] if self.keeper.disk_full else reasons

    def degraded(self) -> list[str]:
        """Return what an operator should repair."""
        status = self.follower.status
        if status.refused:
            return [f"follow-refused: {self.where} refuses this gateway as {status.refused} ({status.problem})"]
        if status.problem:
            return [f"follow-lost: there is no link to {self.where} ({status.problem})"]
        return []

    # Work.

    async def run(self, gateway: "Gateway") -> None:
        """Follow until cancelled. If the journal of the source was copied, end the gateway and return.

        When this ends, the keeper has stored and synced what it was given.
        """
        self._gateway = gateway
        self.keeper.start()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._replica.keep_house)
                nursery.start_soon(self._keep_note)
                try:
                    await self.follower.run(self._replica.apply)
                except CopiedError as error:
                    log_event(logging.WARNING, "journal-copied", result=error, action="the gateway starts again")
                    self._audit("copied", reason=str(error))
                    self.copied = True
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self.keeper.close)
                await trio.to_thread.run_sync(self._write_note)
        if self.copied:
            gateway.end()

    async def _keep_note(self) -> None:
        """Note at intervals what was heard of the source."""
        while True:
            if self.follower.status.linked_at_s is not None and self.follower.head is not None:
                await trio.to_thread.run_sync(self._write_note)
                await trio.sleep(_NOTE_S)
            else:
                await trio.sleep(_NOTE_LOOK_S)

    def _report(self) -> None:
        """Log what has changed about the link."""
        before, status = self._status, self.follower.status
        self._status = status
        if (before.state, before.refused, before.problem == "") == (status.state, status.refused, status.problem == ""):
            return
        facts = {
            "source": status.source or None,
            "address": status.address,
            "revision": self._broker.committed_revision,
        }
        if status.state == "following":
            log_event(logging.INFO, "following", **facts, incarnation=status.incarnation)
            self._audit("following", address=status.address, revision=self._broker.committed_revision)
        elif status.refused:
            log_event(logging.ERROR, "follow-refused", **facts, code=status.refused, error=status.problem)
            self._audit(status.refused, address=status.address, reason=status.problem)
        elif status.problem:
            log_event(logging.WARNING, "follow-lost", **facts, error=status.problem)
            self._audit("lost", address=status.address, reason=status.problem)

    def _files(self) -> LoadedConfig:
        """Return the configuration in force."""
        return self._loaded if self._gateway is None else self._gateway.reloader.loaded

    def _audit(self, outcome: str, address: str = "", reason: str = "", revision: int | None = None) -> None:
        if self._gateway is not None:
            self._gateway.audit.record(FOLLOWING, outcome, address=address, reason=reason, revision=revision)

    def _write_note(self) -> None:
        """Note what was heard of the source last, for the person who promotes this journal."""
        head, status, heard_at_us = self.follower.head, self.follower.status, self.follower.heard_at_us
        if head is None:
            return
        note = Followed(status.source, status.address, head.position.revision, head.at_us, heard_at_us)
        try:
            write_followed(self._folder, note)
        except OSError as error:
            log_event(logging.WARNING, "follow-note-failed", error=error)

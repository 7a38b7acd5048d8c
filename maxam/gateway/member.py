"""The role of a gateway that is a member of a cluster: it follows the log, and serves clients while it leads.

Theory of operation. `cluster.member` decides. It gets facts, and returns wishes. Here each wish becomes a call: of the log, of the
broker or of the gateway. Calls that may wait are made on threads, and come back as facts. All facts are reported on the event loop.

* A follower reads the log on a thread (`cluster.log_reader`). The keeper stores the entries, and the broker applies them.
* A leader writes the log through `LoggedJournal`, on the thread of the loop of commits. It reads the log no longer.
* A leader that loses its place ends the process. Its next start follows.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import trio

from maxam import __version__
from maxam.cluster.engine import open_log
from maxam.cluster.entry import HANDOVER, Entry
from maxam.cluster.keeper import SYNC_S_MAX, Keeper
from maxam.cluster.log import Head, Log, LogError, LogFullError, LogLostError, SupersededError
from maxam.cluster.log_place import LogPlace
from maxam.cluster.log_reader import LogReader, entry_reader
from maxam.cluster.logged import LoggedJournal
from maxam.cluster.member import RESTART, Member, OtherMember
from maxam.cluster.membership import Announcement, read_membership
from maxam.cluster.placing import FOLLOW, ForkedError, find_place
from maxam.cluster.recent import RecentEntries
from maxam.cluster.steps import Step, Steps
from maxam.cluster.wishes import (
    Beat,
    Claim,
    Copy,
    End,
    FindPlace,
    Follow,
    HandOver,
    Lead,
    ReadAgain,
    ReadHead,
    Resume,
    StopReading,
    Suspend,
    Wish,
)
from maxam.config import Settings
from maxam.errors import DiskFullError, JournalError
from maxam.gateway.announcing import ANNOUNCE_S, READY_S, Announcer, announcement_of
from maxam.gateway.audit import FOLLOWING
from maxam.gateway.catching_up import catch_up
from maxam.gateway.commit_loop import Written, exit_at_once
from maxam.gateway.differences import Differences
from maxam.gateway.enrolled_file import EnrolledFile
from maxam.gateway.leaving import leave
from maxam.gateway.link_credentials import LinkCredentials
from maxam.gateway.log import log_event
from maxam.gateway.log_facts import LogFacts
from maxam.gateway.replica import Replica
from maxam.gateway.role import Writer
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal
from maxam.journal.identity import with_chain
from maxam.link_config import ClusterSettings, LinkSettings

if TYPE_CHECKING:
    from maxam.gateway.links import Links
    from maxam.gateway.server import Gateway

_TICK_S: Final = 0.05
_DRAIN_S: Final = 0.5  # for what was read from clients before a handover
_TELL_S: Final = 2.0  # for the last announcement of a member that a person must return
_RANKS_OF_REFUSED: Final = 2  # a member whose files are refused claims this many ranks later
_CODES: Final = {
    "no-log": "the cluster {name} has no log. Make one with `maxam-admin cluster init` on the member that has the journal",
    "other-cluster": "the journal in {folder} belongs to another cluster than {name}. Correct [cluster] name or [journal] folder",
    "forked": "the journal in {folder} has changes that the cluster {name} does not have. `maxam-admin cluster rejoin` shows them and"
    " sets them aside",
}


def open_member(settings: Settings, cluster: ClusterSettings, journal: Journal) -> "ClusterMember":
    """Open the log of a cluster, and return the role of a member with a recovered journal. Raises ConfigurationError."""
    log = open_log(cluster.name, cluster.endpoints, cluster.ca, cluster.certificate, cluster.key)
    with suppress(LogLostError):  # no node answers yet: the member waits for one
        log.check()
    return ClusterMember(settings, cluster, journal, log)


def _recent(settings: Settings, cluster: ClusterSettings) -> RecentEntries | None:
    """Return what fronts on other machines need of the log, if there can be any."""
    wanted = settings.link is not None and settings.fronts is not None and settings.fronts.count
    return RecentEntries(cluster.log_keep_s, cluster.hold_s) if wanted else None


@final
class ClusterMember:
    """A member of a cluster.

    Attributes:
        machine: Decides about its role.
        keeper: Stores the entries in its journal.
        announcer: Knows the other members.
        enrolled: The file of enrolled clients.
        differences: Between this member and the others, while it leads.
        logged: The journal that the loop of commits writes while it leads.
        leads: It serves clients.
        suspended: It leads without a proof: it takes no connection.
        refused: Code of the reason for which a person must act, such as `forked`; empty without one.
        copied: The journal of another member was copied, or followed up to the log: the gateway must be opened again.
        facts: Reports how calls of the log end.
    """

    observer: Final = None
    seals: Final = False

    def __init__(self, settings: Settings, cluster: ClusterSettings, journal: Journal, log: Log) -> None:
        """Take a recovered journal.

        Args:
            settings: Of the gateway.
            cluster: Its section `[cluster]`.
            journal: Opened without an incarnation of its own.
            log: Of the cluster.
        """
        self._settings: Final = settings
        self._cluster: Final = cluster
        self._journal: Final = journal
        self._log: Final = log
        self._folder: Final = str(settings.journal.folder.absolute())
        self._name: Final = cluster.own_name
        note = read_membership(self._folder, OsDisk())
        own = b"" if note is None else note.cluster
        self.machine: Final = Member(self._name, cluster.priority, cluster.lease_s, cluster.cut_off_s, own)
        self.facts: Final = LogFacts(self.machine, self._report_fact, self._report)
        position = with_chain(self._folder, journal.position)
        self.keeper: Final = Keeper(journal, position, exit_at_once, SYNC_S_MAX)
        self._steps: Final = Steps(self.keeper, position)
        place = LogPlace(position, journal.extent, journal.incarnation)
        self.logged: Final = LoggedJournal(
            log, self._name, journal, self.keeper, place, self.facts, cluster.block_bytes_max, cluster.log_bytes_max
        )
        self.logged.recent = _recent(settings, cluster)
        self.announcer: Final = Announcer(cluster, self._folder, note, log, self.logged, self.keeper)
        self.enrolled: Final = EnrolledFile(settings.policy.enrolled, self.logged, lambda: self.announcer.members)
        self.keeper.store_file = self.enrolled.store
        self.differences: Final = Differences(self._report)
        self._reader: Final = LogReader(log, self.logged, self._steps, self.facts)
        self._threads: Final = trio.CapacityLimiter(16)  # of calls that may wait for an engine that gives no answer
        self.leads = False
        self.suspended = False
        self.refused = ""
        self.copied = False
        self._at_head_s = time.monotonic() - READY_S  # the lag counts from the start
        self._applied = 0  # index of the last entry that the broker has applied
        self._ending = False
        self._stops_after_handover = False
        self._failure: JournalError | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._gateway: Gateway
        self._nursery: trio.Nursery

    # as a role of the gateway

    @property
    def name(self) -> str:
        """The role, such as `following` or `leading`."""
        return self.machine.role.value

    @property
    def member(self) -> "ClusterMember":
        """This role."""
        return self

    @property
    def serves(self) -> bool:
        """Whether this member leads."""
        return self.leads

    @property
    def written(self) -> Written:
        """The log, which the own journal follows."""
        return self.logged

    def keep_schemas(self, texts: Iterable[tuple[str, bytes]]) -> None:
        """Store schemas in the log, if this member leads. Raises DiskFullError."""
        self.logged.keep_schemas(texts)

    def writer(self, commits: Writer) -> Writer:
        """Return the thread of commits of a leader, else the keeper's."""
        return commits if self.leads else self.keeper

    def join(self, links: "Links") -> None:
        """Have other gateways follow the journal, as the keeper writes it."""
        self.keeper.ring = links.ring
        links.role = "following"
        links.now_us = lambda: self.as_of_us

    @property
    def leader(self) -> Announcement | None:
        """The member that leads, as it announced itself; None if it is not known."""
        head = self.machine.head
        return None if head is None else self.announcer.members.get(head.leader)

    @property
    def where(self) -> str:
        """The member that takes changes, and the address of its admin listener, as far as they are known here."""
        leader = self.leader
        if leader is None:
            return "" if self.machine.head is None else self.machine.head.leader
        return f"{leader.name} ({leader.host}:{leader.admin})" if leader.admin else leader.name

    @property
    def as_of_us(self) -> int:
        """The time of the state that is shown here, microseconds since the epoch."""
        current = self.leads or self.lag_s < READY_S
        return max(time.time_ns() // 1000 if current else 0, self._steps.applied.accepted_at_us)

    @property
    def applied(self) -> int:
        """Index of the last entry that the broker has."""
        return self.logged.place.index if self.leads else self._applied

    @property
    def lag_s(self) -> float:
        """Seconds since this member had all of the log, as far as it knows; 0 while it leads."""
        return 0.0 if self.leads else time.monotonic() - self._at_head_s

    def unready(self) -> list[str]:
        """Return why no client is served; empty while this member leads."""
        if self.leads:
            return self.facts.unready() if self.suspended else []
        role = self.machine.role
        reasons = [f"{role.value}: {self.where or 'no other member'} leads, and this member serves no clients"]
        return [*reasons, "disk-full: the journal has no room"] if self.keeper.disk_full else reasons

    def degraded(self) -> list[str]:
        """Return conditions that an operator should correct."""
        reasons = [*self.facts.degraded(), *self.enrolled.degraded(), *self.differences.degraded()]
        if self._reader.damaged:
            reasons.append(f"log-damaged: {self._reader.damaged}")
        return reasons

    # facts, from any thread

    def die(self, error: BaseException) -> None:
        """Take an error of the thread of commits. The outcome of a swap is known already."""
        if not isinstance(error, SupersededError | LogLostError):
            exit_at_once(error)

    def _report_fact(self, fact: Callable[[], list[Wish]]) -> None:
        """Report a fact on the event loop."""
        token = self._token
        if token is not None:
            token.run_sync_soon(self._take, fact)

    def _take(self, fact: Callable[[], list[Wish]]) -> None:
        """Report a fact, after the time that has passed: a process that was stopped finds that out first."""
        if self._ending:
            return
        self._do(self.machine.tick(time.monotonic()))
        self._do(fact())

    # on the event loop

    async def run(self, gateway: "Gateway") -> None:
        """Be a member until cancelled.

        Raises:
            JournalError: A person must act.
        """
        self._gateway = gateway
        self._token = trio.lowlevel.current_trio_token()
        replica = Replica(
            gateway.broker,
            self._journal,
            self._settings.limits.scan_topics_per_pass_max,
            self._check_fitness,
            self._on_entry,
        )
        self.keeper.start()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._steps.run, partial(self._apply, replica))
                nursery.start_soon(self._keep_house, replica)
                nursery.start_soon(self.announcer.run, self._announcement, self._call, self._learned, self.facts.failed)
                self._do(self.machine.recovered())
                while self._failure is None:
                    await trio.sleep(_TICK_S)
                    if not self._ending:
                        self._do(self.machine.tick(time.monotonic()))
                        if not self.leads:
                            self._progress()
                raise self._failure
        finally:
            self._ending = True
            self._reader.stop()
            self.logged.end()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._close)

    def stop(self) -> bool:
        """Begin to hand over, if this member leads and another one can. Return False if there is nothing to hand over."""
        if not self.leads or self._ending or self.hand_over("", 0):
            return False
        self._stops_after_handover = True
        return True

    def hand_over(self, successor: str, status: int = RESTART) -> str:
        """Begin to hand over to a member, or to the first in rank; return why not, empty if it begins. Then end with a status."""
        wishes = self.machine.handover_asked(time.monotonic(), successor, status)
        for wish in wishes:
            if isinstance(wish, ReadAgain):
                return wish.why
        self._do(wishes)
        return ""

    def _do(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            self._do_one(wish)

    def _do_one(self, wish: Wish) -> None:
        start = self._nursery.start_soon
        match wish:
            case Beat():
                self._gateway.committer.call(self.logged.beat)
            case ReadHead():
                start(self._read_head)
            case FindPlace():
                start(self._find_place, wish.head)
            case Follow():
                self._applied = wish.first - 1
                self.logged.place.start(wish.first)
                start(self._follow, wish.first)
            case Copy():
                start(self._copy)
            case Claim():
                start(self._claim, wish.before)
            case Lead():
                start(self._lead, wish.head)
            case Suspend() | Resume():
                self._suspend(isinstance(wish, Suspend))
            case StopReading():
                start(self._drain)
            case HandOver():
                self._gateway.committer.call(partial(self._hand_over, wish.successor))
            case ReadAgain():
                self._report("handover-failed", logging.WARNING, reason=wish.why)
                if self._stops_after_handover:
                    self._gateway.end()
            case End():
                self._end(wish.status, wish.code)

    def _suspend(self, suspended: bool) -> None:
        self.suspended = self._gateway.clients.closed = suspended
        self._report("log-lost" if suspended else "log-back", logging.WARNING, error=self.facts.problem or None)

    async def _keep_house(self, replica: Replica) -> None:
        """Do what a broker without clients needs, until this member leads."""
        with trio.CancelScope() as self._housekeeping:
            await replica.keep_house()

    async def _apply(self, replica: Replica, steps: list[Step]) -> None:
        await replica.apply(steps)
        self._applied = steps[-1].index
        self._progress()

    def _progress(self) -> None:
        """Report how far the broker and the journal are. The thread of the reader may be ahead of what it has noted."""
        machine, applied, journalled = self.machine, self._applied, self.logged.place.index
        if machine.head is not None and applied >= machine.head.index:
            self._at_head_s = time.monotonic()
        if (applied, journalled) != (machine.applied, machine.journalled):
            self._take(lambda: machine.progressed(time.monotonic(), applied, journalled))

    def _on_entry(self, entry: Entry) -> None:
        if entry.kind == HANDOVER:
            self._take(lambda: self.machine.handed(time.monotonic(), entry.index, entry.successor()))

    async def _call(self, work: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401  # of any call
        return await trio.to_thread.run_sync(work, *arguments, abandon_on_cancel=True, limiter=self._threads)

    async def _read_head(self) -> None:
        try:
            head = await self._call(self._log.head)
        except LogError as error:
            self.facts.failed(error)
            return
        if head is not None and not self.announcer.cluster:
            self.announcer.cluster = head.cluster
        self.facts.problem = ""
        self._take(lambda: self.machine.head_read(time.monotonic(), head))

    async def _find_place(self, head: Head) -> None:
        position = self._steps.position
        try:
            place = await self._call(find_place, position, self.announcer.hint, head, entry_reader(self._log))
            if place.outcome == FOLLOW:
                await self._call(self.logged.read_back, place.first)
        except LogError as error:
            self.facts.failed(error)
            return
        self._report("placed", outcome=place.outcome, first=place.first or None, revision=position.revision)
        self._take(lambda: self.machine.placed(place))

    async def _follow(self, first: int) -> None:
        self.keeper.begin(first)
        self._steps.begin()
        await self._call(self.announcer.begin, first)
        self._report("following", first=first)
        await self._call(self._reader.run)

    async def _copy(self) -> None:
        """Get what the log has forgotten from another member."""
        self._reader.stop()
        credentials = LinkCredentials(
            self._settings.tls, self._settings.link or LinkSettings(), lambda: self._gateway.reloader.loaded
        )
        self._report("copying")
        await self._call(self.enrolled.set_aside)
        while not (addresses := self.announcer.links("" if self.leader is None else self.leader.name)):
            await self.announcer.next()
        journal, position = self._journal, self._steps.position
        await catch_up(addresses, credentials, self.keeper, self._folder, position, journal.incarnation)
        self._take(self.machine.copied)

    async def _claim(self, before: Head) -> None:
        try:
            await self._call(self.logged.claim, before, __version__, self._steps)
        except (SupersededError, LogFullError, LogLostError, ForkedError) as error:
            self._report("claim-failed", error=error)
            if isinstance(error, ForkedError):  # the machine knows the others already
                self._take(self.machine.diverged)

    async def _lead(self, head: Head) -> None:
        """Serve clients: the broker is up to date with all that any leader before has logged."""
        begun_s = time.monotonic()
        gateway, place = self._gateway, self.logged.place
        self._reader.stop()
        self._housekeeping.cancel()
        if not await self._log_schemas() or self._ending:  # it was cut off meanwhile
            return
        broker, position, at_s = gateway.broker, place.position, trio.current_time()
        broker.recovered(at_s, position.revision, position.accepted_at_us, wills_s=at_s + self.logged.hold_s)
        broker.incarnation = self._journal.incarnation
        gc.collect()
        gc.freeze()
        self.leads = True
        if gateway.links is not None:
            gateway.links.role = "serving"
        self._report("leading", logging.WARNING, seconds=f"{time.monotonic() - begun_s:.3f}", before=head.index)
        gateway.audit.record(FOLLOWING, "leading", term=head.term, revision=broker.committed_revision)
        gateway.begin()

    async def _log_schemas(self) -> bool:
        """Log the schemas that this member judges by; return False if it does not lead any longer."""
        while True:
            try:
                await self._call(self.logged.keep_schemas, list(self._gateway.registry.texts()))
            except (SupersededError, LogLostError):  # the machine knows it already
                return False
            except DiskFullError as error:
                self._report("log-full", logging.ERROR, error=error)
                await trio.sleep(ANNOUNCE_S)
            else:
                return True

    async def _drain(self) -> None:
        """Commit what was read from clients."""
        with trio.move_on_after(_DRAIN_S):
            await self._gateway.committer.drained()
        self._take(lambda: self.machine.drained(time.monotonic()))

    def _hand_over(self, successor: str) -> None:
        """Append a handover, on the thread of commits, and wait there for the successor."""
        try:
            self.logged.hand_over(successor)
        except LogFullError:  # the machine knows it already
            return
        self._report("handover", logging.WARNING, successor=successor)
        head = self.logged.await_successor()
        if head is not None:
            self.facts.saw(head)

    def _end(self, status: int, code: str) -> None:
        if code == "copied":
            self.copied = True
            self._gateway.end()
        elif code in _CODES:
            self._nursery.start_soon(self._refuse, code)
        else:
            self._ending = True
            self._report(code, logging.WARNING, action=f"the process ends with status {status}")
            trio.lowlevel.spawn_system_task(leave, self._gateway, status, code, self.logged.end, self._close)

    async def _refuse(self, code: str) -> None:
        """End with an error for a person, after the other members have got its code."""
        self.refused = code
        self._gateway.audit.record(FOLLOWING, code, revision=self._steps.position.revision)
        with trio.move_on_after(_TELL_S), suppress(LogError):
            await self._call(self.announcer.tell, self._announcement())
        self._failure = JournalError(_CODES[code].format(name=self._cluster.name, folder=self._folder))

    def _close(self) -> None:
        """Store what is taken, and let go of the engine."""
        self.keeper.close()
        self.announcer.note()
        self._log.close()

    # once a second

    @property
    def able(self) -> bool:
        """Whether the disk has room, so that this member may lead."""
        return not self.keeper.disk_full and self._gateway.watermarks.free_bytes != 0

    def _learned(self, now_s: float, peers: dict[str, OtherMember]) -> None:
        self.machine.announced(now_s, peers)
        live = self.announcer.live if self.leads else []
        self.differences.compare(now_s, self._announcement(), live, self._gateway.watermarks.memory_used_bytes)
        if self.leads:
            self._check_fitness()
            if self.enrolled.lacked:
                self._nursery.start_soon(self._call, self.enrolled.complete)

    def _check_fitness(self) -> None:
        able = self.able
        refused = any(state.failure for state in self._gateway.reloader.items.values())
        later = _RANKS_OF_REFUSED if refused or self.enrolled.stale else 0
        self._take(lambda: self.machine.fitness(time.monotonic(), able, later))

    def _announcement(self) -> Announcement:
        return announcement_of(self, self._cluster, self._gateway)

    def _report(self, event: str, level: int = logging.INFO, **facts: Any) -> None:  # noqa: ANN401  # of any event
        head = self.machine.head
        log_event(
            level,
            event,
            cluster=self._cluster.name,
            member=self._name,
            term=None if head is None else head.term,
            index=self.logged.place.index,
            **facts,
        )

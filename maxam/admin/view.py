"""The one place where the admin listener looks into the broker and the gateway, and acts on them."""

import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, final

import trio

from maxam.admin.live import SLICE_NAMES, Live
from maxam.avro.registry import Registry
from maxam.broker.broker import Broker
from maxam.broker.delivery import Connection
from maxam.broker.policy import Policy
from maxam.broker.session import Session
from maxam.broker.store import TURNS_MAX
from maxam.config import JournalSettings, Limits
from maxam.errors import ProtocolError
from maxam.gateway.audit import Audit
from maxam.gateway.backups import Backups
from maxam.gateway.bell import Bell
from maxam.gateway.commit_times import Recent
from maxam.gateway.connection import ClientConnection
from maxam.gateway.entitlement import Visitor
from maxam.gateway.freshness import Freshness
from maxam.gateway.measures import Measure, measures
from maxam.gateway.quarantine import Quarantine, Quarantined
from maxam.gateway.rates import Rates
from maxam.gateway.reload import Reloader
from maxam.gateway.revocation import Chain
from maxam.gateway.shadow import Shadows
from maxam.gateway.staleness import Pace, Staleness, SubscriptionRow
from maxam.gateway.watermarks import Watermarks
from maxam.globs import Glob, compile_glob
from maxam.records import Change, Identity, Judgement
from maxam.stomp.events import VERSION_1_2, Condition, Connect, Send
from maxam.stomp.frames import SERVER_COMMANDS, Decoder

if TYPE_CHECKING:
    from maxam.admin.enrolment import Enrolment
    from maxam.gateway.server import Gateway

RESUBMISSIONS_MAX: Final = 10  # of one rejected SEND that are remembered, the last ones
SLICE_ORPHANS: Final = 250  # the same, each asked for its rule
SLICE_SUBSCRIPTIONS: Final = 1000  # of sessions, the same
SLICE_TOPICS: Final = 500  # looked at before the event loop has its turn: about 1 ms


FIGURES: Final = (
    "revision",
    "topics",
    "topics_overdue",
    "tombstones",
    "sessions",
    "rejects_quarantined",
    "rejects_stored",
    "rejects_failed",
    "rejects_over_rate",
    "rejects_over_queue",
)


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session as an operator sees it."""

    principal: str
    client_id: str
    connected: bool
    durable: bool
    peer: str | None  # address of the live connection
    fingerprint: str | None  # of the certificate of the live connection
    connected_at_us: int | None
    window: int | None  # un-acked messages that the connection may have now
    unacked: int
    owed: int
    conflated: int
    subscriptions: int


@final
class View:
    """What operators may see and do, in plain values.

    Everything returned is a copy or immutable. Methods that are not async neither block nor yield.
    """

    def __init__(self, gateway: "Gateway", enrolment: "Enrolment | None" = None) -> None:
        self._gateway: Final = gateway
        self.enrolment: Final = enrolment  # None: this gateway enrols nobody
        self.live: Final = Live()

    @property
    def _broker(self) -> Broker:
        return self._gateway.broker

    # Who asks.

    def principal_of(self, fingerprint: str) -> str | None:
        """Return the principal of a certificate, or None when the policy knows none."""
        return self._broker.policy.principal_of(fingerprint)

    def objection(self, chain: Chain) -> str | None:
        """Say why a certificate that was verified when its connection began does not count (any more), or None."""
        failure = self._gateway.objection(chain)
        return None if failure is None else failure.detail

    def admin_rights(self, principal: str) -> frozenset[str]:
        """Return the admin rights of a principal."""
        return self._broker.policy.rights(principal).admin

    def may_receive(self, principal: str, destination: bytes) -> bool:
        """Say whether the principal may see values of a topic."""
        return self._broker.policy.rights(principal).may_receive(destination)

    @property
    def policy(self) -> Policy:
        """The policy in force, which is immutable."""
        return self._broker.policy

    @property
    def audit(self) -> Audit:
        """Where it is kept who did what."""
        return self._gateway.audit

    # Topics.

    @property
    def destination_bytes_max(self) -> int:
        """How long a destination may be."""
        return self._broker.limits.destination_bytes_max

    def glob(self, text: str) -> Glob:
        """Compile a glob under the broker's limits; raises GlobError."""
        return compile_glob(text, self._broker.limits)

    def topics_slice(
        self, glob: Glob, after: bytes | None, matches_max: int, value_bytes_max: int | None = None
    ) -> tuple[list[Change], bytes | None]:
        """Look at the next SLICE_TOPICS destinations that share the glob's literal prefix, or fewer if enough match.

        Args:
            glob: Which topics are wanted.
            after: Where the slice before this one ended; None begins.
            matches_max: Ends the slice, at least 1.
            value_bytes_max: Ends it too, once their headers and bodies have so many bytes.

        Returns:
            The newest changes of matching topics that hold a value, in byte order of their destinations, and where to go
            on; None at the end. Topics made or deleted between slices appear or not; no other is missed or seen twice.
        """
        store = self._broker.store
        changes: list[Change] = []
        looked_at = value_bytes = 0
        for name in islice(store.names_after(glob.prefix.encode(), after), SLICE_TOPICS):
            looked_at += 1
            after = name
            topic = store.topics[name]
            if not topic.change.deleted and glob.matches(topic.name):
                changes.append(topic.change)
                value_bytes += len(topic.change.content)
                if len(changes) == matches_max or (value_bytes_max is not None and value_bytes >= value_bytes_max):
                    return changes, name
        return changes, after if looked_at == SLICE_TOPICS else None

    def find_slice(
        self, glob: Glob, literal: bytes, after: bytes | None, matches_max: int
    ) -> tuple[list[bytes], bytes | None]:
        """Look for destinations that match, as `topics_slice` does, but at SLICE_NAMES, and by name alone as far as that goes.

        Args:
            glob: Which are wanted.
            literal: What each match holds, to pass over most of the others quickly.
            after: Where the slice before this one ended; None begins.
            matches_max: Ends the slice.

        Returns:
            Destinations that hold a value, in order, and where to go on; None at the end.
        """
        store = self._broker.store
        names = store.names_slice(glob.prefix.encode(), after, SLICE_NAMES)
        found: list[bytes] = []
        for name in [name for name in names if literal in name] if literal else names:
            if glob.matches(name.decode()) and not store.topics[name].change.deleted:
                found.append(name)
                if len(found) == matches_max:
                    return found, name
        return found, names[-1] if len(names) == SLICE_NAMES else None

    @property
    def topics_live(self) -> int:
        """How many topics hold a value."""
        return self._broker.store.live

    def tell_turns(self, wanted: bool) -> None:
        """Have it remembered, or not any more, which topics get a value and which lose it."""
        self._broker.store.turns = deque(maxlen=TURNS_MAX) if wanted else None

    @property
    def turned(self) -> int:
        """How many topics have got a value or lost it while that was remembered."""
        return self._broker.store.turned

    def turns(self, position: int, turns_max: int) -> list[tuple[bytes, bool]] | None:
        """Return which topics have got a value (True) or lost it since `turned` was `position`, in order, the first ones of them.

        None: there were too many since; whoever asks must look at all topics again.
        """
        store = self._broker.store
        turns = store.turns
        missed = store.turned - position
        if turns is None or missed > len(turns):
            return None
        start = len(turns) - missed
        return [turns[at] for at in range(start, start + min(missed, turns_max))]

    def topic(self, destination: bytes) -> Change | None:
        """Return the newest committed value of a topic, or None when it has none."""
        topic = self._broker.store.topics.get(destination)
        return None if topic is None or topic.change.deleted else topic.change

    def updates(self, destination: bytes) -> int:
        """Return how many changes of a topic were applied since this process has known it, its recovery included."""
        topic = self._broker.store.topics.get(destination)
        return 0 if topic is None else topic.updates

    @property
    def limits(self) -> Limits:
        """The broker's limits."""
        return self._broker.limits

    async def send(self, caller: Identity, event: Send) -> dict[str, str]:
        """Send as the caller, with a receipt; return the headers of the RECEIPT, and `revision` if it has changed the topic.

        Cancelled, it may take effect or not, as with a client that leaves before its RECEIPT.

        Raises:
            ProtocolError: The caller's principal has too many sessions.
        """
        with _Errand(self._gateway, caller) as errand:
            return await errand.send(event)

    # Rejected SENDs and trials of candidates.

    @property
    def quarantine(self) -> Quarantine:
        """The last rejected SENDs."""
        return self._gateway.quarantine

    @property
    def shadows(self) -> Shadows:
        """The trials of candidate versions."""
        return self._gateway.shadows

    def started_at_us(self) -> int:
        """Return since when the gateway runs; microseconds since the epoch."""
        return self._gateway.started_at_us

    def changed_since(self, record: Quarantined) -> bool:
        """Say whether a topic has been changed, or a change of it appended, since a SEND to it was rejected."""
        newest = self._broker.newest(record.destination)
        if newest:
            return newest > record.head
        topic = self._broker.store.topics.get(record.destination)
        return record.revision > 0 or (topic is not None and topic.change.revision > record.head)

    async def resubmit(self, caller: Identity, record: Quarantined) -> dict[str, str]:
        """Send a rejected SEND again as the caller; return the headers of its RECEIPT, once that is due.

        It keeps the number of its source, so that what that has sent since is not undone; its `if-revision` is not asked again. It is
        admitted before this first yields, so what the caller has just found out still holds.

        Raises:
            ProtocolError: The caller's principal has too many sessions.
        """
        condition = record.condition
        if condition is not None and not condition.problem:
            source = condition.source
            condition = None if source is None else Condition(source, condition.number, -1)
        with _Errand(self._gateway, caller) as errand:
            answer = await errand.send(Send(record.destination, record.body, record.headers, b"resubmit", condition))
        record.resubmitted.append((caller.principal, time.time_ns() // 1000, answer))
        del record.resubmitted[:-RESUBMISSIONS_MAX]
        return answer

    @property
    def freshness(self) -> Freshness:
        """Which topics are older than their rule allows."""
        return self._gateway.freshness

    @property
    def rates(self) -> Rates:
        """How much is going on."""
        return self._gateway.rates

    # Schemas.

    def schema_text(self, judgement: Judgement) -> bytes | None:
        """Return the self-contained text of the schema that judged a body; None without one, or if what has its name now is another."""
        version = self._broker.registry.schema(judgement.schema, judgement.schema_version)
        if version is None or judgement.schema_fingerprint not in (version.crc_64, version.sha_256):
            return None
        return version.schema.text

    @property
    def registry(self) -> Registry:
        """The schema registry in force, which is immutable."""
        return self._broker.registry

    # Sessions.

    def sessions_after(
        self, after: tuple[str, str] | None, limit: int, principal: str | None, client_id: str | None, find: str
    ) -> tuple[list[SessionRow], tuple[str, str] | None, bool]:
        """Return the next sessions in order of (principal, client-id), which are filtered.

        Args:
            after: Where the slice before this one ended; None begins.
            limit: How many at most; fewer once SLICE_SUBSCRIPTIONS sessions and subscriptions were looked at.
            principal: Only those of this one; None: of all.
            client_id: Only those of this name; None: of all.
            find: In lower case: only those with it in principal, client-id or address; empty: all.

        Returns:
            The rows, where to go on, and whether there may be more.
        """
        sessions, clients = self._broker.sessions, self._gateway.connected
        rows: list[SessionRow] = []
        looked_at = 0
        start = ("", "") if after is None else after
        if principal is not None:
            start = max(start, (principal, client_id or ""))
        last = after
        for key in sessions.irange(start):
            if key == after:
                continue
            if principal is not None and key[0] != principal:
                break
            if len(rows) == limit or looked_at >= SLICE_SUBSCRIPTIONS:
                return rows, last, True
            last = key
            looked_at += 1
            session = sessions[key]
            if (client_id is None or key[1] == client_id) and (not find or _has(session, clients, find)):
                looked_at += len(session.subscriptions)
                rows.append(_session_row(session, clients))
        return rows, None, False

    @property
    def staleness(self) -> Staleness:
        """Who is behind, and by how much."""
        return self._gateway.staleness

    def subscriptions_after(
        self, after: tuple[str, str, str | None] | None, limit: int, principal: str | None, client_id: str | None
    ) -> tuple[list[SubscriptionRow], tuple[str, str, str | None] | None, bool]:
        """Return the next subscriptions in order of (principal, client-id, id), which are filtered.

        Args:
            after: Where the slice before this one ended, behind an id, or before a session's first (None); None begins.
            limit: How many at most.
            principal: Only those of this one; None: of all.
            client_id: Only those of sessions of this name; None: of all.

        Returns:
            The rows, where to go on, and whether there may be more.
        """
        sessions, staleness = self._broker.sessions, self._gateway.staleness
        rows: list[SubscriptionRow] = []
        looked_at = 0
        start = ("", "") if after is None else after[:2]
        if principal is not None:
            start = max(start, (principal, client_id or ""))
        for key in sessions.irange(start):
            if principal is not None and key[0] != principal:
                break
            behind = None if after is None or after[2] is None or key != after[:2] else after[2].encode()
            if looked_at >= SLICE_SUBSCRIPTIONS:
                return rows, (*key, None), True
            session = sessions[key]
            looked_at += 1 + len(session.subscriptions)
            if client_id is not None and key[1] != client_id:
                continue
            for id_ in sorted([id_ for id_ in session.subscriptions if behind is None or id_ > behind]):
                if len(rows) == limit:
                    return rows, after, True
                after = (*key, id_.decode())
                rows.append(staleness.row(session, session.subscriptions[id_]))
        return rows, None, False

    async def session(self, principal: str, client_id: str) -> tuple[SessionRow, list[SubscriptionRow]] | None:
        """Return a session and its subscriptions in order of their making."""
        session = self._broker.sessions.get((principal, client_id))
        if session is None:
            return None
        staleness, pace = self._gateway.staleness, Pace()
        subscriptions: list[SubscriptionRow] = []
        for subscription in list(session.subscriptions.values()):
            await pace.step()
            if not subscription.removed:
                subscriptions.append(staleness.row(session, subscription))
        return _session_row(session, self._gateway.connected), subscriptions

    def has_session(self, principal: str, client_id: str) -> bool:
        """Say whether there is such a session."""
        return (principal, client_id) in self._broker.sessions

    def kick(self, principal: str, client_id: str) -> bool:
        """Close the live connection of a session with an ERROR; False when it has none."""
        session = self._broker.sessions.get((principal, client_id))
        if session is None or session.connection is None:
            return False
        session.connection.expel(ProtocolError("closed by an operator", "an operator closed this connection"))
        return True

    async def drop(self, principal: str, client_id: str, caller: Identity) -> bool:
        """End a session for good, its live connection with it, and wait until that is journalled; False: unknown.

        Cancelled, the session is ended nevertheless, but a crash may bring it back.
        """
        session = self._broker.sessions.get((principal, client_id))
        if session is None:
            return False
        with _Errand(self._gateway, caller) as errand:
            self._broker.end_session(session)
            await errand.committed()
        return True

    # Connections.

    @property
    def clients(self) -> Mapping[ClientConnection, None]:
        """The connections of clients, in the order of their numbers."""
        return self._gateway.connections

    @property
    def visitors(self) -> Mapping[Visitor, None]:
        """The connections of operators, in the order of their numbers."""
        return self._gateway.entitlement.visitors

    # The journal and its backups.

    @property
    def backups(self) -> Backups:
        """What makes backups when operators ask for one."""
        return self._gateway.backups

    @property
    def journal_settings(self) -> JournalSettings:
        """Where the journal is and how it is kept."""
        return self._gateway.settings.journal

    @property
    def watermarks(self) -> Watermarks:
        """What is known of the journal's disk."""
        return self._gateway.watermarks

    @property
    def disk_full(self) -> bool:
        """Whether SENDs are refused because the journal has no room."""
        return self._gateway.committer.group.disk_full

    def commits(self) -> Recent:
        """Return what commits took lately."""
        return self._gateway.committer.times.recent(time.perf_counter())

    def positions(self) -> tuple[int, int, int]:
        """Return the revision of the newest accepted change, of the newest committed one, and how many operations wait for the disk."""
        broker = self._broker
        return broker.head, broker.revision, broker.appended - broker.done

    # The gateway itself.

    @property
    def gateway(self) -> "Gateway":
        """The gateway, for those who tell of its own state (`health_api`)."""
        return self._gateway

    def stomp_address(self) -> tuple[str, int]:
        """Return where STOMP clients connect."""
        return self._gateway.address

    def virtual_host(self) -> str:
        """Return a `host` that CONNECT accepts."""
        accepted = self._gateway.settings.listener.virtual_hosts[0]
        return "MAXVAPI" if accepted == "*" else accepted

    def unready_reasons(self) -> list[str]:
        """Return why the broker is not fully in service; empty when it is."""
        full = self._gateway.committer.group.disk_full
        reasons = ["disk-full: SENDs are refused until there is room"] if full else []
        return reasons + self._gateway.watermarks.unready()

    def degraded_reasons(self) -> list[str]:
        """Return what an operator should see to, though the broker is in service."""
        return self._gateway.watermarks.degraded() + self._gateway.degraded_reasons()

    @property
    def reloader(self) -> Reloader:
        """What puts changed files into force."""
        return self._gateway.reloader

    def orphans_slice(self, after: bytes | None, matches_max: int) -> tuple[list[Change], bytes | None]:
        """Look at the next topics for those that hold a value and have no rule; arguments and result as of `topics_slice`."""
        broker = self._broker
        topics, rule_for = broker.store.topics, broker.registry.rule_for
        orphans: list[Change] = []
        looked_at = 0
        for name in islice(broker.store.names_after(b"", after), SLICE_ORPHANS):
            looked_at += 1
            after = name
            topic = topics[name]
            if not topic.change.deleted and rule_for(topic.name) is None:
                orphans.append(topic.change)
                if len(orphans) == matches_max:
                    return orphans, name
        return orphans, after if looked_at == SLICE_ORPHANS else None

    async def measures(self) -> AsyncIterator[Measure]:
        """Iterate over the present values of all metrics of `metrics_api.METRICS`; the event loop has its turn in between."""
        await self._gateway.traffic.gather()
        await self._gateway.staleness.look()
        yield "maxam_ready", (), 0 if self.unready_reasons() else 1
        for measure in measures(self._gateway):
            yield measure

    def figures(self) -> dict[str, int]:
        """Return what FIGURES names: sizes and positions of the broker, and what became of rejected SENDs since the start."""
        broker = self._broker
        counters = broker.counters
        return {
            "revision": broker.revision,
            "topics": broker.store.live,
            "topics_overdue": self.freshness.count,
            "tombstones": len(broker.store.tombstones),
            "sessions": len(broker.sessions),
            "rejects_quarantined": len(self.quarantine),
            "rejects_stored": counters.rejects_stored,
            "rejects_failed": counters.rejects_failed,
            "rejects_over_rate": counters.rejects_over_rate,
            "rejects_over_queue": counters.rejects_over_queue,
        }


def _has(session: Session, clients: Mapping[Connection, ClientConnection], text: str) -> bool:
    client = None if session.connection is None else clients.get(session.connection)
    address = "" if client is None else client.address
    return text in f"{session.principal}\n{session.client_id}\n{address}".lower()


def _session_row(session: Session, clients: Mapping[Connection, ClientConnection]) -> SessionRow:
    connection = session.connection
    client = None if connection is None else clients.get(connection)
    subscriptions = session.subscriptions.values()
    return SessionRow(
        principal=session.principal,
        client_id=session.client_id,
        connected=connection is not None,
        durable=session.durable,
        peer=None if client is None else client.address,
        fingerprint=None if connection is None else connection.identity.fingerprint,
        connected_at_us=None if client is None else client.opened_at_us,
        window=None if connection is None else connection.window.size,
        unacked=sum([len(subscription.sent) for subscription in subscriptions]),
        owed=sum([len(subscription.owed) for subscription in subscriptions]),
        conflated=sum([subscription.conflated for subscription in subscriptions]),
        subscriptions=len(subscriptions),
    )


@final
class _Errand:
    """A connection inside the process, of the caller's own principal, for one frame and its RECEIPT."""

    def __init__(self, gateway: "Gateway", caller: Identity) -> None:
        self._gateway: Final = gateway
        self._broker: Final = gateway.broker
        self._bell: Final = Bell()
        event = Connect(VERSION_1_2, b"", None, None, (0, 0))
        name = f"admin-{secrets.token_hex(16)}"
        self._connection: Final = gateway.broker.connect(event, caller, name, self._bell.ring, trio.current_time())

    def __enter__(self) -> "_Errand":
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.detach(self._connection, trio.current_time())

    async def send(self, event: Send) -> dict[str, str]:
        """Send with a receipt; return the RECEIPT's headers, and `revision` of an accepted change though nobody asked for it."""
        head = self._broker.head
        self._broker.send(self._connection, event, time.time_ns() // 1000)
        revision = self._broker.head
        answer = await self._receipt()
        if revision > head and answer["disposition"] == "accepted":
            answer["revision"] = str(revision)
        return answer

    async def committed(self) -> None:
        """Wait until all that was appended so far is committed or refused."""
        self._connection.position = self._broker.appended
        self._connection.promise(b"committed", ())
        await self._receipt()

    async def _receipt(self) -> dict[str, str]:
        self._broker.await_receipts(self._connection)
        self._broker.flush()
        self._gateway.committer.touch()
        decoder = Decoder(self._broker.limits, SERVER_COMMANDS)
        while True:
            for frame in decoder.feed(b"".join(self._connection.drain(trio.current_time()))):
                return {name.decode(): value.decode() for name, value in frame.headers.items()}
            await self._bell.wait()

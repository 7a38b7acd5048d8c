"""SUBSCRIBE and UNSUBSCRIBE: subscriptions started, resumed, replaced, paused and removed."""

from typing import Final, final

from maxam.broker.acknowledgements import Acknowledgements
from maxam.broker.operations import OperationLog, TransientSubscribe
from maxam.broker.outbox import Outbox
from maxam.broker.positions import usable_revision
from maxam.broker.quotas import shown
from maxam.broker.refinement import Refinement
from maxam.broker.scans import Scanner
from maxam.broker.session import Session, Subscription
from maxam.broker.session_table import SessionTable
from maxam.broker.wire_cache import METADATA
from maxam.config import Limits
from maxam.errors import GlobError, ProtocolError
from maxam.globs import Glob, compile_glob
from maxam.records import Headers, SubscriptionRecord, UnsubscriptionRecord
from maxam.stomp.encoder import message_prefix
from maxam.stomp.events import Subscribe, Unsubscribe
from maxam.token_bucket import TokenBuckets

_CREATED: Final = ((b"result", b"created"),)
_RESUMED: Final = ((b"result", b"resumed"),)
_REPLACED: Final = ((b"result", b"replaced"),)
_SINCE_UNAVAILABLE: Final = ((b"result", b"since-unavailable"),)
_PAUSED: Final = ((b"result", b"paused"),)
_REMOVED: Final = ((b"result", b"removed"),)
_UNKNOWN_SUBSCRIPTION: Final = ((b"result", b"unknown-subscription"),)
_FILTERED: Final = ((b"filtered", b"true"),)
_NOT_DURABLE: Final = ((b"filtered", b"true"), (b"durable", b"false"))


@final
class Subscribing:
    """The way of subscriptions in and out.

    Attributes:
        individual_acks: Of ack mode client-individual an ACK covers its message alone, not those before it.
        memory_low: New durable subscriptions are refused, as little memory is left.
    """

    __slots__ = (
        "_acknowledgements",
        "_journalling",
        "_limits",
        "_log",
        "_scanner",
        "_table",
        "individual_acks",
        "memory_low",
    )

    def __init__(
        self,
        limits: Limits,
        log: OperationLog,
        table: SessionTable,
        scanner: Scanner,
        acknowledgements: Acknowledgements,
    ) -> None:
        self.individual_acks = True
        self.memory_low = False
        self._limits: Final = limits
        self._log: Final = log
        self._table: Final = table
        self._scanner: Final = scanner
        self._acknowledgements: Final = acknowledgements
        self._journalling: Final = TokenBuckets(
            limits.durable_changes_per_s_max, limits.durable_subscriptions_per_principal_max
        )

    def subscribe(self, connection: Outbox, event: Subscribe, wall_us: int) -> None:
        """Start, resume or replace a subscription; `wall_us` is when its frame was read, microseconds since the epoch."""
        session = connection.session
        glob = self._compile(event.glob, event.receipt)
        # A subscription that no right matches owes nothing that a restart must restore. It ends with its connection.
        filtered = (event.durable or event.receipt is not None) and not connection.rights.can_receive_any(glob)
        durable = event.durable and not filtered
        old = session.subscriptions.get(event.subscription)
        self._check_subscribe(session, event, old, glob, durable)
        json = self._table.refinements.json_view(event, glob, session.rights)
        selector = self._table.refinements.selector(session.principal, event, glob, session.rights.received)
        after = -1
        if old is not None and old.glob == glob:
            subscription = old
            result = _RESUMED
        else:
            result = _CREATED if old is None else _REPLACED
            if event.options is not None and event.options.since is not None:
                after = self._usable_position(event.options.since, connection) if old is None else -1
                if after < 0:
                    result = _SINCE_UNAVAILABLE
            if old is not None:
                self._record_removal(connection, old)  # stands even if there is no room for its successor
                self._table.remove(old)
            subscription = self._table.add(session, event.subscription, glob, durable)
        if after >= 0:
            self._scanner.expect(subscription, after)
        eager = event.eager and after < 0
        self._attach(subscription, connection, event, eager, wall_us)
        if event.options is not None:
            refinement = Refinement(event.options, selector, subscription is old, after, json)
            self._table.refinements.add(refinement)
            connection.refine(subscription, refinement, self._table.refinements.unknown)
        if subscription.durable and (subscription is not old or (eager and not filtered)):
            self._record(subscription, connection, eager, after)
        elif not subscription.durable or not subscription.applied:  # or resumed before what made it is on the disk
            transient = TransientSubscribe(subscription, eager and not subscription.durable, after)
            connection.position = self._log.append(transient)
        if subscription.applied:
            if eager and not filtered:
                connection.unconfirm(subscription)
                self._scanner.owe_current(subscription)  # at once, so that nothing it owes already comes twice
            else:
                subscription.complete_initial()
        if subscription.ready and not subscription.queued:
            connection.add_ready(subscription)
        if event.receipt is not None:
            reported = event.durable or result == _SINCE_UNAVAILABLE
            headers: Headers = (*(result if reported else ()), _ack_mode(subscription))
            if filtered:
                headers += _FILTERED if subscription.durable or not event.durable else _NOT_DURABLE
            connection.promise(event.receipt, headers)

    def _check_subscribe(
        self, session: Session, event: Subscribe, old: Subscription | None, glob: Glob, durable: bool
    ) -> None:
        """Raise ProtocolError for a SUBSCRIBE that cannot be accepted; `old` is the subscription with its id."""
        if old is not None and old.connection is not None:
            raise ProtocolError(
                "duplicate subscription id",
                f"the subscription id {shown(event.subscription)} is in use on this connection; UNSUBSCRIBE it first "
                "or choose another id",
                event.receipt,
            )
        if old is not None and not event.durable:
            raise ProtocolError(
                "subscription is durable",
                f"the id {shown(event.subscription)} is that of a durable subscription of this session; resume it with "
                "durable:true, or remove it with UNSUBSCRIBE and durable:true",
                event.receipt,
            )
        if session.granted and event.durable:
            raise ProtocolError(
                "not durable",
                "a subscription of a ticket or token cannot be durable; subscribe without durable, and use since to go on "
                "where the last connection ended",
                event.receipt,
            )
        if old is None:
            self._table.quotas.check_subscription(session, durable, event.receipt)
        if self.memory_low and durable and (old is None or old.glob != glob):
            raise ProtocolError(
                "memory low",
                "the durable subscription would need memory, and there is little; try again later, or subscribe without durable",
                event.receipt,
            )

    def unsubscribe(self, connection: Outbox, event: Unsubscribe) -> None:
        """Remove or pause a subscription."""
        session = connection.session
        subscription = session.subscriptions.get(event.subscription)
        if subscription is None:
            headers = _UNKNOWN_SUBSCRIPTION
        elif subscription.durable and not event.durable:
            self._table.pause(subscription)
            headers = _PAUSED
        else:
            del session.subscriptions[event.subscription]
            if subscription.durable:
                self._record_removal(connection, subscription)
            self._table.remove(subscription)
            headers = _REMOVED
        if event.receipt is not None:
            connection.promise(event.receipt, headers)
        connection.wake_if_due()

    def charge(self, connection: Outbox, now_s: float) -> None:
        """Pause the reading of a connection that has had more durable SUBSCRIBEs and UNSUBSCRIBEs journalled than its principal may."""
        if connection.journalled:
            bucket = self._journalling.of(connection.identity.principal, now_s)
            bucket.take(connection.journalled, now_s)
            connection.journalled = 0
            ready_s = bucket.ready_s(now_s)
            if ready_s > now_s:
                connection.pause(ready_s)

    def _compile(self, text: bytes, receipt: bytes | None) -> Glob:
        try:
            return compile_glob(text.decode(), self._limits)
        except GlobError as error:
            raise ProtocolError("bad destination", f"the glob {shown(text)}: {error}", receipt) from error

    def _usable_position(self, since: bytes, connection: Outbox) -> int:
        """Return the revision after which changes are to be owed, -1 if the position cannot be used."""
        log = self._log
        return usable_revision(since, log.incarnation, connection.rights, self._scanner.floor, log.committed_revision)

    def _attach(
        self, subscription: Subscription, connection: Outbox, event: Subscribe, eager: bool, wall_us: int
    ) -> None:
        if subscription.applied or not subscription.asked_us:  # until it is applied, all wait for the first one
            subscription.asked_us = max(wall_us, self._log.accepted_at_us)
        subscription.connection = connection
        subscription.unused_since_s = -1.0
        subscription.acknowledged = event.acknowledged
        subscription.individual = event.individual and self.individual_acks
        # Until it is applied, what any of its SUBSCRIBEs asked for is still to be done.
        subscription.eager = eager or (subscription.eager and not subscription.applied)
        metadata = METADATA if event.options is not None and event.options.metadata else 0
        subscription.variant = connection.version * 2 + (1 if event.acknowledged else 0) + metadata
        subscription.prefix = message_prefix(connection.version, subscription.id, event.acknowledged)
        if connection.rights.can_receive_any(subscription.glob):
            subscription.glob.prepare()  # here, not when a publisher's topic is matched with it

    def _record(self, subscription: Subscription, connection: Outbox, eager: bool, after: int) -> None:
        """Append what the journal keeps of a durable SUBSCRIBE."""
        if subscription.unrecorded:
            self._acknowledgements.record(subscription)  # before what eager owes again, in the journal too
        session = subscription.session
        record = SubscriptionRecord(
            self._log.accepted_at_us,
            session.principal,
            session.client_id,
            subscription.id,
            subscription.glob.text.encode(),
            eager,
            None if after < 0 else after,
        )
        record.target = subscription
        connection.position = self._log.append(record)
        connection.journalled += 1

    def _record_removal(self, connection: Outbox, subscription: Subscription) -> None:
        session = subscription.session
        record = UnsubscriptionRecord(self._log.accepted_at_us, session.principal, session.client_id, subscription.id)
        record.target = subscription
        connection.position = self._log.append(record)
        connection.journalled += 1


def _ack_mode(subscription: Subscription) -> tuple[bytes, bytes]:
    """Return the header with the ack mode in effect."""
    if not subscription.acknowledged:
        return (b"ack", b"auto")
    return (b"ack", b"client-individual" if subscription.individual else b"client")

"""SENDs: whether they take effect, and what they are answered.

A SEND is judged (`admission`), compared if it has a condition (`conditions`), and then appended as a change. A rejected one is answered in
a RECEIPT, or ends its connection where that has asked for it.
"""

from collections.abc import Callable
from typing import Final, final

from maxam.broker.admission import UNAUTHORISED, Admission
from maxam.broker.conditions import Conditions
from maxam.broker.json_sends import converted
from maxam.broker.operations import Operation, OperationLog, Terms
from maxam.broker.outbox import ConditionalReceipt, Outbox, rejection_error
from maxam.broker.policy import Rights
from maxam.broker.session import Topic
from maxam.broker.store import Store
from maxam.config import Limits
from maxam.content import pack
from maxam.metrics import Counters
from maxam.records import Change, Headers, Identity, Rejection, Validation
from maxam.stomp.events import Condition, JsonSend, Send, SkippedSend
from maxam.token_bucket import TokenBucket, TokenBuckets

_SEND_BURST_S: Final = 10  # seconds of `send_bytes_per_s_max` that a principal may send at once
ACCEPTED: Final = ((b"disposition", b"accepted"), (b"content-disposition", b"accepted"))
SUPERSEDED: Final = (*ACCEPTED, (b"result", b"superseded"))
INVALID: Final = b"rejected-invalid"
_NOT_AUTHORISED: Final = b"rejected-unauthorised"
UNAVAILABLE: Final = b"rejected-unavailable"
UNAVAILABLE_RESULTS: Final = frozenset(("memory-low", "too-fast"))  # of rejections that a later try may not get
_NO_BRIDGE: Final = "origin-gateway, origin-publisher, origin-timestamp and via need a capability with bridge = true"
_BRIDGE_REQUIRED: Final = Rejection("bridge-required", _NO_BRIDGE)
_ENDING_MIN: Final = 100  # connections among which those that have ended are searched
MEMORY_LOW: Final = Rejection("memory-low", "the broker has little memory left; try again later")

OnRejected = Callable[
    [Identity, Send, bytes, Rejection, int], None
]  # sender, SEND, disposition, why, microseconds since the epoch


@final
class Offers:
    """SENDs of a front that are not settled, and whose answer depends on the order.

    Attributes:
        connections: Connections of SENDs with terms, by the number of the operation.
        ending: Connections that a rejected SEND ends, by the identity of their SENDs.
    """

    __slots__ = ("_ending_max", "_numbers", "_terms", "connections", "ending")

    def __init__(self) -> None:
        self.connections: Final[dict[int, Outbox]] = {}
        self.ending: Final[dict[Identity, Outbox]] = {}
        self._terms: dict[int, Terms] = {}
        self._numbers = 0
        self._ending_max = _ENDING_MIN

    def begin(self, connection: Outbox) -> None:
        """Note a connection that a rejected SEND ends, and forget those that have ended."""
        if len(self.ending) >= self._ending_max:
            for identity in [one for one, found in self.ending.items() if found.session.connection is not found]:
                del self.ending[identity]
            self._ending_max = max(_ENDING_MIN, 2 * len(self.ending))
        self._numbers += 1
        connection.number = self._numbers
        self.ending[connection.identity] = connection

    def note(self, number: int, condition: Condition, connection: Outbox) -> None:
        """Note a SEND with a condition that was appended."""
        self._terms[number] = Terms(connection.number, condition.expected, condition.source, condition.number)
        self.connections[number] = connection

    def take_terms(self, first: int, operations: list[Operation]) -> dict[int, Terms]:
        """Return the terms of operations that leave, by their number; `first` is that of the first one."""
        terms = self._terms
        self._terms = {}
        if self.ending:
            for number, operation in enumerate(operations, first):
                if type(operation) is Change and number not in terms:
                    connection = self.ending.get(operation.publisher)
                    if connection is not None:
                        terms[number] = Terms(connection.number, -1, None, 0)
                        self.connections[number] = connection
        return terms


@final
class Publishing:
    """The way of SENDs into the order of operations.

    Attributes:
        memory_low: Values are rejected, as little memory is left.
        offers: On a front, the SENDs whose answer depends on the order; None on a broker that keeps the order itself.
        on_rejected: Called for every SEND that is answered, or would be, `rejected-invalid` or `rejected-unauthorised`; it must not call back.
    """

    __slots__ = (
        "_admission",
        "_conditions",
        "_counters",
        "_json_bytes_max",
        "_log",
        "_rate",
        "_sending",
        "_store",
        "memory_low",
        "offers",
        "on_rejected",
    )

    def __init__(
        self,
        limits: Limits,
        log: OperationLog,
        store: Store,
        conditions: Conditions,
        admission: Admission,
        counters: Counters,
    ) -> None:
        self.memory_low = False
        self.on_rejected: OnRejected | None = None
        self.offers: Offers | None = None
        self._log: Final = log
        self._store: Final = store
        self._conditions: Final = conditions
        self._admission: Final = admission
        self._counters: Final = counters
        self._json_bytes_max: Final = limits.json_bytes_max
        self._rate: Final = limits.send_bytes_per_s_max
        self._sending: Final = TokenBuckets(self._rate, self._rate * _SEND_BURST_S) if self._rate else None

    def send(self, connection: Outbox, event: Send, wall_us: int) -> None:
        """Admit a SEND, and append it if it is accepted.

        Raises:
            ProtocolError: It was rejected, and the connection ends with that.
        """
        topic = self._store.topics.get(event.destination)
        verdict = self._admission.validate(connection.identity, connection.rights, event, topic, wall_us)
        if type(verdict) is Rejection:
            self._reject(connection, event, verdict, wall_us)
            return
        deleted = not event.body or verdict.tombstone
        if self.memory_low and not (deleted and topic is not None):  # deletes are the way out
            self._reject(connection, event, MEMORY_LOW, wall_us)
            return
        bucket = None if self._sending is None else self.bucket(connection.identity.principal, wall_us / 1e6)
        if bucket is not None and bucket.empty(wall_us / 1e6):
            self._reject(
                connection, event, self.too_fast(connection.identity.principal, bucket, wall_us / 1e6), wall_us
            )
            return
        condition = event.condition
        if condition is not None and not self._holds(connection, event, condition, topic, deleted, wall_us):
            return
        log = self._log
        if wall_us > log.accepted_at_us:
            log.accepted_at_us = wall_us
        content, body_at = event.content, event.body_at
        if deleted and event.body:  # an envelope that deletes
            content, body_at = pack(event.headers, b"")
        change = Change(
            log.head_revision + 1,
            log.accepted_at_us,
            event.destination if topic is None else topic.destination,  # held once, not again for its value
            deleted,
            connection.identity,
            verdict,
            content,
            body_at,
            event.plain,
        )
        change.target = topic
        position = connection.position = log.append_change(change)
        if bucket is not None:
            bucket.take(len(event.destination) + len(content), wall_us / 1e6)
        if condition is not None:
            if self.offers is not None:
                self.offers.note(position, condition, connection)
            elif condition.source is not None:
                self._conditions.expect(event.destination, condition.source, condition.number, position)
        if event.receipt is not None:
            if condition is None or condition.expected < 0:
                connection.promise(event.receipt, None)
            else:  # so that the client can go on from there
                connection.promise(
                    event.receipt, ConditionalReceipt((*ACCEPTED, (b"revision", b"%d" % log.head_revision)), position)
                )

    def send_json(self, connection: Outbox, event: JsonSend, wall_us: int) -> None:
        """Admit a SEND as `send` does; its body is converted from JSON first if a schema judges it.

        Raises:
            ProtocolError: It was rejected, and the connection ends with that.
        """
        topic = self._store.topics.get(event.destination)
        refused = self._admission.validate_head(connection.rights, event.destination, topic)  # before schemas are shown
        rule = self._admission.registry.rule_for(event.destination.decode()) if refused is None else None
        sent: Send = event
        if rule is not None and rule.schema and event.body:
            outcome = converted(event, rule, self._admission.registry, self._json_bytes_max)
            if type(outcome) is Rejection:
                self._reject(connection, event, outcome, wall_us)
                return
            assert isinstance(outcome, Send)  # noqa: S101 - there is nothing else
            sent = outcome
        self.send(connection, sent, wall_us)

    def publish(self, identity: Identity, rights: Rights, event: Send, wall_us: int) -> Rejection | None:
        """Admit a SEND without a condition that comes from no connection, and append it if it is accepted.

        It is judged as `send` does, except that no limit of rate applies.

        Returns:
            Why it was rejected, which is reported as other rejections are; None if it was accepted.
        """
        topic = self._store.topics.get(event.destination)
        verdict = self._admission.validate(identity, rights, event, topic, wall_us)
        if type(verdict) is not Rejection:
            deleted = not event.body or verdict.tombstone
            if not self.memory_low or (deleted and topic is not None):
                self.append(identity, event, topic, verdict, deleted, wall_us)
                return None
            verdict = MEMORY_LOW
        self.report(identity, event, verdict, wall_us)
        return verdict

    def append(
        self,
        identity: Identity,
        event: Send,
        topic: Topic | None,
        validation: Validation,
        deleted: bool,
        wall_us: int,
    ) -> None:
        """Append the change of a SEND that was judged, comes from no connection and has no condition."""
        log = self._log
        if wall_us > log.accepted_at_us:
            log.accepted_at_us = wall_us
        content, body_at = event.content, event.body_at
        if deleted and event.body:  # an envelope that deletes
            content, body_at = pack(event.headers, b"")
        destination = event.destination if topic is None else topic.destination
        change = Change(
            log.head_revision + 1, log.accepted_at_us, destination, deleted, identity, validation, content, body_at
        )
        change.target = topic
        log.append_change(change)

    def keeps_body(self, connection: Outbox, destination: bytes) -> bool:
        """Return True if a SEND to this destination would get as far as its body: the form and the right are as they must be."""
        topic = self._store.topics.get(destination)
        rights = connection.rights
        known = topic is not None and topic.permitted == rights.number
        return known or self._admission.validate_head(rights, destination, topic) is None

    def send_skipped(self, connection: Outbox, event: SkippedSend, wall_us: int) -> None:
        """Reject a SEND of which `keeps_body` was False. A right that was granted since then comes too late: the body is gone."""
        topic = self._store.topics.get(event.destination)
        refused = self._admission.validate_head(connection.rights, event.destination, topic)
        self._reject(connection, event, UNAUTHORISED if refused is None else refused, wall_us)

    def _holds(
        self,
        connection: Outbox,
        event: Send,
        condition: Condition,
        topic: Topic | None,
        deleted: bool,
        wall_us: int,
    ) -> bool:
        """Return True if a SEND that was found valid may take effect, and answer it if not; its source is compared first."""
        if condition.provenance and not connection.rights.bridge:
            self._reject(connection, event, _BRIDGE_REQUIRED, wall_us)
            return False
        if condition.problem:
            self._reject(connection, event, Rejection("bad-condition", condition.problem), wall_us)
            return False
        if self.offers is not None:
            return True
        destination = event.destination
        source = condition.source
        if (
            source is not None
        ):  # first: a retry of what has succeeded is to hear that, not that it is in conflict with itself
            now_us = max(wall_us, self._log.accepted_at_us)
            number, position = self._conditions.newest_of_source(destination, source, now_us)
            if number >= condition.number:
                self._counters.sends_superseded += 1
                if event.receipt is not None:
                    self._promise_compared(connection, event.receipt, SUPERSEDED, position)
                return False
        if condition.expected >= 0:
            revision, position = self._conditions.newest(destination, topic)
            if revision != condition.expected:
                rejection = conflict(connection.rights, destination, revision, condition.expected)
                self._reject(connection, event, rejection, wall_us, position)
                return False
        if (
            source is not None
            and deleted
            and (topic is None or topic.change.deleted)
            and not self._conditions.sequences.holds(destination)
            and self._admission.full()
        ):
            self._reject(connection, event, self._admission.no_room(), wall_us)
            return False
        return True

    def _promise_compared(self, connection: Outbox, receipt_id: bytes, headers: Headers, position: int) -> None:
        """Promise an answer that holds only if the operation at a position is done."""
        if position <= self._log.applied_seq and self._log.proves:
            position = self._log.prove()
        if position > self._log.applied_seq:
            connection.position = max(connection.position, position)
            connection.promise(receipt_id, ConditionalReceipt(headers, position))
        else:
            connection.promise(receipt_id, headers)

    def bucket(self, principal: str, now_s: float) -> TokenBucket | None:
        """Return what a principal may still send. None without a limit, and on a front: one limit holds for all fronts."""
        if self._sending is None or self.offers is not None:
            return None
        return self._sending.of(principal, now_s)

    def too_fast(self, principal: str, bucket: TokenBucket, now_s: float) -> Rejection:
        """Return why a SEND of a principal whose bucket is empty is rejected."""
        wait_s = int(bucket.ready_s(now_s) - now_s) + 1
        reason = (
            f"the principal {principal} sends more than {self._rate} bytes/s "
            f"(limit send_bytes_per_s_max); try again in {wait_s} s, and send less"
        )
        return Rejection("too-fast", reason)

    def _reject(self, connection: Outbox, event: Send, rejection: Rejection, wall_us: int, position: int = -1) -> None:
        """Answer a SEND; `position` is that of the operation it was compared with, -1 if it was not compared.

        Raises:
            ProtocolError: The answer is an ERROR.
        """
        disposition = self.report(connection.identity, event, rejection, wall_us)
        if disposition is not UNAVAILABLE:
            connection.rejected += 1
            if event.receipt is None and not connection.rejections_end:
                connection.unheard += 1
        if connection.rejections_end:
            raise rejection_error(rejection_headers(disposition, rejection), event.receipt)
        if event.receipt is not None:
            headers = rejection_headers(disposition, rejection)
            if position < 0:
                connection.promise(event.receipt, headers)
            else:
                self._promise_compared(connection, event.receipt, headers, position)

    def keep(self, change: Change) -> None:
        """Record the mark of a change that another broker has ordered."""
        self._conditions.keep(change)

    def report(self, identity: Identity, event: Send, rejection: Rejection, wall_us: int) -> bytes:
        """Count and report a rejected SEND; return its disposition."""
        return self.report_as(identity, event, rejection, disposition_of(rejection), wall_us)

    def report_as(
        self, identity: Identity, event: Send, rejection: Rejection, disposition: bytes, wall_us: int
    ) -> bytes:
        """Do the same with a disposition that is known."""
        if disposition == _NOT_AUTHORISED:
            self._counters.sends_unauthorised += 1
        elif disposition == UNAVAILABLE:
            self._counters.sends_unavailable += 1
        else:
            self._counters.sends_invalid += 1
        self._counters.reject(rejection.result)
        if self.on_rejected is not None and disposition != UNAVAILABLE:
            self.on_rejected(identity, event, disposition, rejection, wall_us)
        return disposition


def conflict(rights: Rights, destination: bytes, revision: int, expected: int) -> Rejection:
    """Return why a SEND is rejected that expects another revision of its topic."""
    reason = "the topic has changed"
    if rights.may_receive(destination):  # else it is not theirs to know
        reason = f"the topic has revision {revision}" if revision else "the topic has no value"
    return Rejection("conflict", f"{reason}; if-revision is {expected}")


def disposition_of(rejection: Rejection) -> bytes:
    """Return the disposition of a rejected SEND."""
    if rejection is UNAUTHORISED or rejection is _BRIDGE_REQUIRED:
        return _NOT_AUTHORISED
    return UNAVAILABLE if rejection.result in UNAVAILABLE_RESULTS else INVALID


def rejection_headers(disposition: bytes, rejection: Rejection) -> Headers:
    """Return the headers of the RECEIPT for a rejected SEND, in this order."""
    return (
        (b"disposition", disposition),
        (b"content-disposition", disposition),
        (b"result", rejection.result.encode()),
        (b"reason", rejection.reason.encode()),
    )

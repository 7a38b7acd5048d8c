"""The plain values that the journal writes and the broker applies.

Wire text (destinations, subscription ids, header names and values) is UTF-8-checked, unescaped `bytes`. Names that people
give to each other (principal, client-id, schema) are `str`. Objects are shared freely and never changed after they were made,
except in two kinds of slots. Slots marked *cache* hold derived bytes that may be dropped at any time. `target` is kept by the broker
that made a record until the record is applied.
"""

from typing import Final, final

from mypy_extensions import i32, mypyc_attr

from maxam.content import unpack_headers

REVISION_NONE: Final = 0  # the first change of a broker has revision 1


@final
@mypyc_attr(acyclic=True)
class Identity:
    """The sender of a frame: the principal and the SHA-256 (64 lower-case hex digits) of its certificate's DER.

    One object per connection, shared by every change that it sent.
    """

    __slots__ = ("encoded", "fingerprint", "principal")

    def __init__(self, principal: str, fingerprint: str) -> None:
        self.principal: Final = principal
        self.fingerprint: Final = fingerprint
        self.encoded: bytes | None = None  # cache: the journal's bytes of both fields


GATEWAY: Final = Identity("$gateway", "")
"""The publisher of changes that the gateway makes by itself. No principal of a policy has this name."""


@final
@mypyc_attr(acyclic=True)
class Validation:
    """Which schema judged a body, and where the bare datum lies in it.

    One object per minor version for encodings with a fixed place of the datum, shared by every change that it judged.

    Attributes:
        encoding: `datum`, `single-object`, `envelope`, `confluent` or `none`.
        schema: Full type name such as `egm.EGMStatus_v1`; empty when nothing was checked.
        schema_version: The minor, such as `1.0`; empty when nothing was checked, as with an empty body, which deletes.
        schema_fingerprint: Bytes of the registry's configured fingerprint; empty when nothing was checked.
        value_offset: Bytes before the datum in the body.
        value_length: Bytes of the datum; -1 means all the rest of the body.
        tombstone: The body is an envelope that deletes the topic.
    """

    __slots__ = (
        "encoded",
        "encoding",
        "schema",
        "schema_fingerprint",
        "schema_version",
        "tombstone",
        "value_length",
        "value_offset",
    )

    def __init__(
        self,
        encoding: str,
        schema: str,
        schema_version: str,
        schema_fingerprint: bytes,
        value_offset: int = 0,
        value_length: int = -1,
        tombstone: bool = False,
    ) -> None:
        self.encoding: Final = encoding
        self.schema: Final = schema
        self.schema_version: Final = schema_version
        self.schema_fingerprint: Final = schema_fingerprint
        self.value_offset: Final = value_offset
        self.value_length: Final = value_length
        self.tombstone: Final = tombstone
        self.encoded: bytes | None = None  # cache: the journal's bytes of encoding, schema, version and fingerprint


UNJUDGED: Final = Validation("none", "", "", b"")


REJECTION_RESULTS: Final = {
    "conflict": "rejected-invalid",
    "bad-condition": "rejected-invalid",
    "invalid-destination": "rejected-invalid",
    "no-rule": "rejected-invalid",
    "schema-mismatch": "rejected-invalid",
    "schema-version-required": "rejected-invalid",
    "unknown-schema-version": "rejected-invalid",
    "bad-json": "rejected-invalid",
    "bad-single-object": "rejected-invalid",
    "unknown-fingerprint": "rejected-invalid",
    "fingerprint-of-other-type": "rejected-invalid",
    "bad-confluent": "rejected-invalid",
    "unknown-schema-id": "rejected-invalid",
    "schema-id-of-other-type": "rejected-invalid",
    "bad-envelope": "rejected-invalid",
    "envelope-empty": "rejected-invalid",
    "envelope-duplicate-item": "rejected-invalid",
    "envelope-topic-mismatch": "rejected-invalid",
    "unauthorised": "rejected-unauthorised",
    "bridge-required": "rejected-unauthorised",
    "disk-full": "rejected-unavailable",
    "memory-low": "rejected-unavailable",
    "too-fast": "rejected-unavailable",
}
"""The result codes of rejected SENDs with the disposition of each: the closed table in docs/protocol.md."""


@final
@mypyc_attr(acyclic=True)
class Rejection:
    """The reason of a refused SEND.

    Attributes:
        result: One of REJECTION_RESULTS.
        reason: One line of text, which has all of the following too.
        schema: Full name of the type that the destination's rule requires. Empty when there was no rule to ask.
        schema_version: The version by which the body was judged. Empty when there was none.
        path: The field at fault, such as `meters[3].credit`. Empty for the body, or the item of an envelope, as a whole.
        expected: Expected value. Empty when the fault has no place in the body.
        found: Value that was there.
        offset: Place in the body, in bytes. -1 when the fault has no place in it.
        item: Index of the envelope's item that holds the fault, from 0. -1 when none does.
        item_key: The key of that item.
    """

    __slots__ = (
        "expected",
        "found",
        "item",
        "item_key",
        "offset",
        "path",
        "reason",
        "result",
        "schema",
        "schema_version",
    )

    def __init__(
        self,
        result: str,
        reason: str,
        schema: str = "",
        schema_version: str = "",
        path: str = "",
        expected: str = "",
        found: str = "",
        offset: int = -1,
        item: int = -1,
        item_key: int = 0,
    ) -> None:
        self.result: Final = result
        self.reason: Final = reason
        self.schema: Final = schema
        self.schema_version: Final = schema_version
        self.path: Final = path
        self.expected: Final = expected
        self.found: Final = found
        self.offset: Final = offset
        self.item: Final = item
        self.item_key: Final = item_key


Headers = tuple[tuple[bytes, bytes], ...]


@mypyc_attr(acyclic=True)
class Named:
    """An object that the broker keeps for a destination."""

    __slots__ = ("destination",)

    def __init__(self, destination: bytes) -> None:
        self.destination: Final = destination


@final
@mypyc_attr(acyclic=True)
class Change:
    """An accepted value of a topic, or its deletion. The only record with a revision of its own.

    Attributes:
        revision: Position in the one gapless order of accepted changes, from 1.
        accepted_at_us: Microseconds since the epoch, UTC; never decreases with the revision.
        destination: The topic.
        deleted: The topic has no value after this change, and `body` is empty.
        publisher: Sender of the change.
        validation: Validation of its schema.
        content: User headers that travel on to MESSAGE, in order, and the body as sent: as `pack` of maxam/content.py makes it.
        body_at: Where in `content` the body begins.
        plain: Destination and user headers are known to need no escape in a frame. Not in the journal.
        target: Object that the broker keeps for the destination, until the change is applied.
        wire: Cache, owned by the encoder's caller: a variant, and the shared bytes of its MESSAGE in that.
    """

    __slots__ = (
        "accepted_at_us",
        "body_at",
        "content",
        "deleted",
        "destination",
        "plain",
        "publisher",
        "revision",
        "target",
        "validation",
        "wire",
    )

    def __init__(
        self,
        revision: int,
        accepted_at_us: int,
        destination: bytes,
        deleted: bool,
        publisher: Identity,
        validation: Validation,
        content: bytes,
        body_at: int,
        plain: bool = False,
    ) -> None:
        self.revision: Final = revision
        self.accepted_at_us: Final = accepted_at_us
        self.destination: Final = destination
        self.deleted: Final = deleted
        self.plain: Final = plain
        self.body_at: Final[i32] = body_at  # beside `deleted`, as machine code puts both into eight bytes
        self.publisher: Final = publisher
        self.validation: Final = validation
        self.content: Final = content
        self.target: object | None = None
        self.wire: tuple[int, bytes] | None = None

    @property
    def headers(self) -> Headers:
        """The user headers, decoded again at each access."""
        return unpack_headers(self.content)[0] if self.content[0] else ()

    @property
    def body(self) -> bytes:
        """The body, copied again at each access."""
        return self.content[self.body_at :]

    @property
    def body_bytes(self) -> int:
        """The length of the body."""
        return len(self.content) - self.body_at


@final
@mypyc_attr(acyclic=True)
class RejectedSend:
    """A SEND that was refused, as the journal of rejected ones keeps it. It never changes anything.

    Attributes:
        revision: Position in that journal's own gapless order, from 1.
        rejected_at_us: Microseconds since the epoch, UTC; never decreases with the revision.
        destination: As sent.
        deleted: It had no body, and would have deleted the topic.
        publisher: Sender of the SEND.
        validation: Encoding and type that the rule of the destination expects, as far as there is one.
        headers: User headers; of an unauthorised one only `content-length` and `body-sha256`, made by the broker.
        body: As sent. Empty for an unauthorised one.
        disposition: `rejected-invalid` or `rejected-unauthorised`.
        rejection: Reason of the refusal.
    """

    __slots__ = (
        "body",
        "deleted",
        "destination",
        "disposition",
        "headers",
        "publisher",
        "rejected_at_us",
        "rejection",
        "revision",
        "validation",
    )

    def __init__(
        self,
        revision: int,
        rejected_at_us: int,
        destination: bytes,
        deleted: bool,
        publisher: Identity,
        validation: Validation,
        headers: Headers,
        body: bytes,
        disposition: str,
        rejection: Rejection,
    ) -> None:
        self.revision: Final = revision
        self.rejected_at_us: Final = rejected_at_us
        self.destination: Final = destination
        self.deleted: Final = deleted
        self.publisher: Final = publisher
        self.validation: Final = validation
        self.headers: Final = headers
        self.body: Final = body
        self.disposition: Final = disposition
        self.rejection: Final = rejection


@final
class SubscriptionRecord:
    """A durable subscription was created or, under the same id with another glob, replaced; it owes what comes after.

    In a snapshot `low_water` is a revision: the subscription owes every matching topic whose change is above it. Following
    AcknowledgementRecords take topics away, and OwedRecords add some. In a segment it is None: nothing owed yet.
    """

    __slots__ = ("accepted_at_us", "client_id", "eager", "glob", "low_water", "principal", "subscription", "target")

    def __init__(
        self,
        accepted_at_us: int,
        principal: str,
        client_id: str,
        subscription: bytes,
        glob: bytes,
        eager: bool,
        low_water: int | None = None,
    ) -> None:
        self.accepted_at_us: Final = accepted_at_us
        self.principal: Final = principal
        self.client_id: Final = client_id
        self.subscription: Final = subscription
        self.glob: Final = glob
        self.eager: Final = eager  # owes every matching topic that holds a value when this record is applied
        self.low_water: Final = low_water
        self.target: object | None = None  # the live subscription, for the broker that made the record


@final
class UnsubscriptionRecord:
    """A durable subscription was removed for good."""

    __slots__ = ("accepted_at_us", "client_id", "principal", "subscription", "target")

    def __init__(self, accepted_at_us: int, principal: str, client_id: str, subscription: bytes) -> None:
        self.accepted_at_us: Final = accepted_at_us
        self.principal: Final = principal
        self.client_id: Final = client_id
        self.subscription: Final = subscription
        self.target: object | None = None  # the live subscription, for the broker that made the record


Positions = tuple[tuple[bytes, int], ...]  # (destination, revision) pairs


@final
class AcknowledgementRecord:
    """A durable subscription has seen these topics up to these revisions: whatever it owes of them at or below is settled."""

    __slots__ = ("accepted_at_us", "client_id", "positions", "principal", "subscription", "target")

    def __init__(
        self, accepted_at_us: int, principal: str, client_id: str, subscription: bytes, positions: Positions
    ) -> None:
        self.accepted_at_us: Final = accepted_at_us
        self.principal: Final = principal
        self.client_id: Final = client_id
        self.subscription: Final = subscription
        self.positions: Final = positions
        self.target: object | None = None  # the live subscription, for the broker that made the record


@final
class OwedRecord:
    """A durable subscription owes the current change of these topics: a snapshot's exceptions below low water."""

    __slots__ = ("accepted_at_us", "client_id", "positions", "principal", "subscription")

    def __init__(
        self, accepted_at_us: int, principal: str, client_id: str, subscription: bytes, positions: Positions
    ) -> None:
        self.accepted_at_us: Final = accepted_at_us
        self.principal: Final = principal
        self.client_id: Final = client_id
        self.subscription: Final = subscription
        self.positions: Final = positions


@final
class SessionEndRecord:
    """A session with durable subscriptions expired or was dropped, and all that it owed with it."""

    __slots__ = ("accepted_at_us", "client_id", "principal", "target")

    def __init__(self, accepted_at_us: int, principal: str, client_id: str) -> None:
        self.accepted_at_us: Final = accepted_at_us
        self.principal: Final = principal
        self.client_id: Final = client_id
        self.target: object | None = None  # the live session, for the broker that made the record


@final
class WillRecord:
    """A session has a last will: a SEND of the broker, for the case that the connection ends without DISCONNECT.

    It replaces an earlier will of the session.

    Attributes:
        accepted_at_us: When it was stored.
        client_id: Of the session.
        publisher: The principal of the session, and the certificate by which it connected.
        destination: Of the SEND.
        content: User headers and body of the SEND, as `pack` of maxam/content.py makes them.
        body_at: Where in `content` the body begins.
        delay_s: From the end of the connection to the SEND.
    """

    __slots__ = ("accepted_at_us", "body_at", "client_id", "content", "delay_s", "destination", "publisher", "target")

    def __init__(
        self,
        accepted_at_us: int,
        client_id: str,
        publisher: Identity,
        destination: bytes,
        content: bytes,
        body_at: int,
        delay_s: int,
    ) -> None:
        self.accepted_at_us: Final = accepted_at_us
        self.client_id: Final = client_id
        self.publisher: Final = publisher
        self.destination: Final = destination
        self.content: Final = content
        self.body_at: Final = body_at
        self.delay_s: Final = delay_s
        self.target: object | None = None  # the session's will, for the broker that made the record

    @property
    def principal(self) -> str:
        """Of the session."""
        return self.publisher.principal

    @property
    def headers(self) -> Headers:
        """The user headers, decoded again at each access."""
        return unpack_headers(self.content)[0]

    @property
    def body(self) -> bytes:
        """The body, copied again at each access."""
        return self.content[self.body_at :]


@final
class WillEndRecord:
    """A session has no last will any longer: it was cancelled, it was rejected, or it is sent by the change in the same block."""

    __slots__ = ("accepted_at_us", "client_id", "fired", "principal", "target")

    def __init__(self, accepted_at_us: int, principal: str, client_id: str, fired: bool = False) -> None:
        self.accepted_at_us: Final = accepted_at_us
        self.principal: Final = principal
        self.client_id: Final = client_id
        self.fired: Final = fired  # the change before it sends the will; not in the journal
        self.target: object | None = None  # the session's will, for the broker that made the record


Sequences = tuple[tuple[bytes, int], ...]  # (source, number) pairs


@final
class SequencesRecord:
    """The newest number of each source of a topic, as a snapshot holds it after the topic's change.

    Attributes:
        revision: Of the topic's newest change. If that is a delete, the snapshot may hold an older delete, or none.
        accepted_at_us: Of the same change.
        destination: The topic.
        sequences: The sources that changed the topic last, oldest first.
    """

    __slots__ = ("accepted_at_us", "destination", "revision", "sequences")

    def __init__(self, revision: int, accepted_at_us: int, destination: bytes, sequences: Sequences) -> None:
        self.revision: Final = revision
        self.accepted_at_us: Final = accepted_at_us
        self.destination: Final = destination
        self.sequences: Final = sequences


SessionRecord = (
    SubscriptionRecord
    | UnsubscriptionRecord
    | AcknowledgementRecord
    | OwedRecord
    | SessionEndRecord
    | WillRecord
    | WillEndRecord
)
Record = Change | SessionRecord | SequencesRecord

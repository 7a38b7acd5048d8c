"""The requests of a client, as plain values made by the protocol and consumed by the broker.

All text is unescaped, UTF-8-checked `bytes`. `receipt` is the value of the frame's `receipt` header, or None.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from maxam.content import pack, unpack_headers
from maxam.errors import ProtocolError

VERSION_1_1: Final = 0  # versions are small integers so that they index caches
VERSION_1_2: Final = 1

CONTENT_TYPE: Final = b"content-type"
JSON_TYPE: Final = b"application/json"
SCHEMA_VERSION: Final = b"schema-version"
SOURCE: Final = b"source"  # these two of SEND are passed on; a topic's mark consists of them
SOURCE_REVISION: Final = b"source-revision"
SOURCE_BYTES_MAX: Final = 128
PROVENANCE: Final = frozenset((b"origin-gateway", b"origin-publisher", b"origin-timestamp", b"via"))  # of bridges only
DROPPED_HEADERS: Final = PROVENANCE | frozenset(  # names that a SEND does not pass on, except those of a bridge
    (
        b"receipt",
        b"transaction",
        b"content-length",
        b"destination",
        b"message-id",
        b"subscription",
        b"ack",
        b"receipt-id",
        b"revision",
        b"timestamp",
        b"publisher",
        b"schema",
        b"kind",
        b"conflated",
        b"if-revision",
        b"kept-source",
    )
)
DELAY_S_MAX: Final = 3600  # of a last will
NUMBER_DIGITS_MAX: Final = 19  # of any number in a header: 64 bits
INTERVAL_MS_MIN: Final = 10  # of `min-interval`
INTERVAL_MS_MAX: Final = 3_600_000
NUMBER_MAX: Final = 2**63 - 1  # of `source-revision` and `if-revision`: an Avro long


def parse_number(text: bytes) -> int:
    """Return the value of 1 to 19 ASCII digits, or -1 when `text` is anything else."""
    if text.isdigit() and len(text) <= NUMBER_DIGITS_MAX:
        return int(text)
    return -1


def is_mark(source: bytes, number: int) -> bool:
    """Return True if these two can identify a value of a source."""
    return 0 < len(source) <= SOURCE_BYTES_MAX and 0 <= number <= NUMBER_MAX


@final
class Will:
    """The last will of a CONNECT: a SEND for the case that the connection ends without DISCONNECT.

    Attributes:
        destination: Of the SEND.
        body: Of the SEND; an empty one deletes the topic.
        headers: User headers of the SEND.
        delay_s: Seconds from the end of the connection to the SEND.
    """

    __slots__ = ("body", "delay_s", "destination", "headers")

    def __init__(self, destination: bytes, body: bytes, headers: tuple[tuple[bytes, bytes], ...], delay_s: int) -> None:
        self.destination: Final = destination
        self.body: Final = body
        self.headers: Final = headers
        self.delay_s: Final = delay_s

    @property
    def size(self) -> int:
        """Bytes of destination, headers and body."""
        return len(self.destination) + len(self.body) + sum([len(name) + len(value) for name, value in self.headers])


@final
class Connect:
    """CONNECT or STOMP, negotiated and valid as far as the frame itself shows.

    Attributes:
        version: VERSION_1_1 or VERSION_1_2, the highest in common.
        host: The `host` header.
        client_id: The `client-id` header, 1 to 128 printable ASCII characters, or None. The gateway replaces None by that of a ticket.
        window: The `window` header, at least 1, or None.
        heart_beat_ms: Heart-beats that the client offers and wants, `(cx, cy)`.
        rejections_end: A rejected SEND is answered with ERROR and ends the connection.
        incarnation: CONNECTED is to have the incarnation of the journal.
        will: The last will, or None. The gateway replaces None by the will that the policy binds to the principal.
        login: The `login` header, where credentials are read. Empty if there is none.
        passcode: The `passcode` header, likewise.
    """

    __slots__ = (
        "client_id",
        "heart_beat_ms",
        "host",
        "incarnation",
        "login",
        "passcode",
        "rejections_end",
        "version",
        "will",
        "window",
    )

    def __init__(
        self,
        version: int,
        host: bytes,
        client_id: str | None,
        window: int | None,
        heart_beat_ms: tuple[int, int],
        rejections_end: bool = False,
        incarnation: bool = False,
        will: Will | None = None,
        login: bytes = b"",
        passcode: bytes = b"",
    ) -> None:
        self.login: Final = login
        self.passcode: Final = passcode
        self.version: Final = version
        self.incarnation: Final = incarnation
        self.will = will
        self.host: Final = host
        self.client_id = client_id
        self.window: Final = window
        self.heart_beat_ms: Final = heart_beat_ms
        self.rejections_end: Final = rejections_end


@final
@mypyc_attr(acyclic=True)
class Condition:
    """Conditions that a SEND sets for its acceptance.

    Attributes:
        source: Name of the source of the SEND's value, or None.
        number: Its `source-revision`.
        expected: Its `if-revision`, or -1.
        problem: Reason why its headers cannot be used, one line. Empty if they can.
        provenance: The SEND has a header that only bridges may send.
    """

    __slots__ = ("expected", "number", "problem", "provenance", "source")

    def __init__(
        self, source: bytes | None, number: int, expected: int, problem: str = "", provenance: bool = False
    ) -> None:
        self.source: Final = source
        self.number: Final = number
        self.expected: Final = expected
        self.problem: Final = problem
        self.provenance: Final = provenance


@mypyc_attr(acyclic=True)
class Send:
    """SEND.

    Attributes:
        versions: Those of its headers that a schema rule reads.
        content: Its user headers and body, as `pack` of maxam/content.py makes it.
        body_at: Where in `content` the body begins.
        plain: Destination and user headers are known to need no escape in a frame.
    """

    __slots__ = ("body", "body_at", "condition", "content", "destination", "plain", "receipt", "versions")

    def __init__(
        self,
        destination: bytes,
        body: bytes,
        headers: tuple[tuple[bytes, bytes], ...],
        receipt: bytes | None,
        condition: Condition | None = None,
        content: bytes = b"",
        body_at: int = 0,
        plain: bool = False,
    ) -> None:
        """Make a SEND. With `content`, `headers` are those that a schema rule reads."""
        self.plain: Final = plain
        self.versions: Final = headers if content else tuple([one for one in headers if one[0] == SCHEMA_VERSION])
        if not content:
            content, body_at = pack(headers, body)
        self.destination: Final = destination
        self.body: Final = body
        self.receipt: Final = receipt
        self.condition: Final = condition
        self.content: Final = content
        self.body_at: Final = body_at

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The user headers that travel on: first of repeats, in order, without the reserved names. They are decoded at each access."""
        return unpack_headers(self.content)[0]


@final
@mypyc_attr(acyclic=True)
class JsonSend(Send):
    """SEND whose body is JSON by its `content-type`, see `is_json`."""

    __slots__ = ()


@final
@mypyc_attr(acyclic=True)
class SkippedSend(Send):
    """SEND whose body was not wanted when its head was complete, and was not kept.

    Attributes:
        body_bytes: Length of the body.
        body_sha256: SHA-256 of the body, in hexadecimal.
    """

    __slots__ = ("body_bytes", "body_sha256")

    def __init__(self, send: Send, body_bytes: int, body_sha256: str) -> None:
        """Make it from the frame's head, with an empty body."""
        super().__init__(send.destination, b"", send.headers, send.receipt, send.condition)
        self.body_bytes: Final = body_bytes
        self.body_sha256: Final = body_sha256


@final
class SubscribeOptions:
    """The headers of a SUBSCRIBE that refine delivery. A SUBSCRIBE without any of them has no such object.

    Attributes:
        since: The `since` header, a position that the client kept, or None.
        markers: The `markers` header.
        metadata: The `metadata` header.
        interval_ms: The `min-interval` header, milliseconds; 0 if there is none.
        selector: The `selector` header, or None.
        changes_only: The `changes-only` header.
        json: The header `accept-format:json`.
        fields: The `fields` header, or None.
    """

    __slots__ = ("changes_only", "fields", "interval_ms", "json", "markers", "metadata", "selector", "since")

    def __init__(
        self,
        since: bytes | None = None,
        markers: bool = False,
        metadata: bool = False,
        interval_ms: int = 0,
        selector: str | None = None,
        changes_only: bool = False,
        json: bool = False,
        fields: str | None = None,
    ) -> None:
        self.json: Final = json
        self.fields: Final = fields
        self.since: Final = since
        self.markers: Final = markers
        self.metadata: Final = metadata
        self.interval_ms: Final = interval_ms
        self.selector: Final = selector
        self.changes_only: Final = changes_only


@final
class Subscribe:
    """SUBSCRIBE.

    Attributes:
        subscription: The `id` header.
        glob: The `destination` header.
        acknowledged: Another ack mode than auto.
        durable: The `durable` header.
        eager: The `eager` header.
        receipt: The `receipt` header, or None.
        individual: Ack mode client-individual.
        options: The headers that refine delivery, or None if there are none.
    """

    __slots__ = ("acknowledged", "durable", "eager", "glob", "individual", "options", "receipt", "subscription")

    def __init__(
        self,
        subscription: bytes,
        glob: bytes,
        acknowledged: bool,
        durable: bool,
        eager: bool,
        receipt: bytes | None,
        individual: bool = False,
        options: SubscribeOptions | None = None,
    ) -> None:
        self.subscription: Final = subscription
        self.glob: Final = glob
        self.individual: Final = individual
        self.options: Final = options
        self.acknowledged: Final = acknowledged
        self.durable: Final = durable
        self.eager: Final = eager
        self.receipt: Final = receipt


@final
class Unsubscribe:
    """UNSUBSCRIBE. `durable` is True only for `durable:true`; absent and `false` mean the same."""

    __slots__ = ("durable", "receipt", "subscription")

    def __init__(self, subscription: bytes, durable: bool, receipt: bytes | None) -> None:
        self.subscription: Final = subscription
        self.durable: Final = durable
        self.receipt: Final = receipt


@final
@mypyc_attr(acyclic=True)
class Ack:
    """ACK of either version. `revision` is 0, which no message has, if no message can have the id."""

    __slots__ = ("receipt", "revision", "subscription")

    def __init__(self, subscription: bytes, revision: int, receipt: bytes | None) -> None:
        self.subscription: Final = subscription
        self.revision: Final = revision
        self.receipt: Final = receipt


@final
class Nack:
    """NACK: ignored, but a receipt on it is answered."""

    __slots__ = ("receipt",)

    def __init__(self, receipt: bytes | None) -> None:
        self.receipt: Final = receipt


@final
class Disconnect:
    """DISCONNECT: nothing after it is read."""

    __slots__ = ("receipt",)

    def __init__(self, receipt: bytes | None) -> None:
        self.receipt: Final = receipt


@final
class Failure:
    """The client broke the protocol: frames before this one stand, nothing after it is read."""

    __slots__ = ("error",)

    def __init__(self, error: ProtocolError) -> None:
        self.error: Final = error


def is_json(content_type: bytes) -> bool:
    """Return True if a media type is that of JSON, with parameters or without."""
    return content_type.startswith(JSON_TYPE) and content_type[len(JSON_TYPE) :].lstrip()[:1] in b";"


Event = Connect | Send | JsonSend | SkippedSend | Subscribe | Unsubscribe | Ack | Nack | Disconnect | Failure

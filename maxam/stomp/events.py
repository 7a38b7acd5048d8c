"""What a client asks, as plain values made by the protocol and consumed by the broker.

All text is unescaped, UTF-8-checked `bytes`. `receipt` is the value of the frame's `receipt` header, or None.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from maxam.errors import ProtocolError

VERSION_1_1: Final = 0  # versions are small integers so that they index caches
VERSION_1_2: Final = 1

SOURCE: Final = b"source"  # these two of SEND are passed on, and are what a topic's mark is found by
SOURCE_REVISION: Final = b"source-revision"
SOURCE_BYTES_MAX: Final = 128
NUMBER_DIGITS_MAX: Final = 19  # of any number in a header: 64 bits
NUMBER_MAX: Final = 2**63 - 1  # of `source-revision` and `if-revision`: an Avro long


def parse_number(text: bytes) -> int:
    """Return the value of 1 to 19 ASCII digits, or -1 when `text` is anything else."""
    if text.isdigit() and len(text) <= NUMBER_DIGITS_MAX:
        return int(text)
    return -1


def is_mark(source: bytes, number: int) -> bool:
    """Say whether these two can name a value of a source."""
    return 0 < len(source) <= SOURCE_BYTES_MAX and 0 <= number <= NUMBER_MAX


@final
class Connect:
    """CONNECT or STOMP, negotiated and valid as far as the frame itself can tell.

    Attributes:
        version: VERSION_1_1 or VERSION_1_2, the highest in common.
        host: The `host` header.
        client_id: The `client-id` header, 1 to 128 printable ASCII characters, or None.
        window: The `window` header, at least 1, or None.
        heart_beat_ms: What the client offers and wants, `(cx, cy)`.
    """

    __slots__ = ("client_id", "heart_beat_ms", "host", "version", "window")

    def __init__(
        self, version: int, host: bytes, client_id: str | None, window: int | None, heart_beat_ms: tuple[int, int]
    ) -> None:
        self.version: Final = version
        self.host: Final = host
        self.client_id: Final = client_id
        self.window: Final = window
        self.heart_beat_ms: Final = heart_beat_ms


@final
@mypyc_attr(acyclic=True)
class Condition:
    """What a SEND wants to be compared with before it is accepted.

    Attributes:
        source: Of which source the SEND is a value, None if it does not say.
        number: Its `source-revision`.
        expected: Its `if-revision`, -1 if it does not say.
        problem: Why its headers cannot be used, one line; empty if they can.
    """

    __slots__ = ("expected", "number", "problem", "source")

    def __init__(self, source: bytes | None, number: int, expected: int, problem: str = "") -> None:
        self.source: Final = source
        self.number: Final = number
        self.expected: Final = expected
        self.problem: Final = problem


@final
@mypyc_attr(acyclic=True)
class Send:
    """SEND. `headers` are the user headers that travel on: first of repeats, in order, without the reserved names."""

    __slots__ = ("body", "condition", "destination", "headers", "receipt")

    def __init__(
        self,
        destination: bytes,
        body: bytes,
        headers: tuple[tuple[bytes, bytes], ...],
        receipt: bytes | None,
        condition: Condition | None = None,
    ) -> None:
        self.destination: Final = destination
        self.body: Final = body
        self.headers: Final = headers
        self.receipt: Final = receipt
        self.condition: Final = condition


@final
class Subscribe:
    """SUBSCRIBE. `glob` is the `destination` header; `acknowledged` is False for ack mode auto."""

    __slots__ = ("acknowledged", "durable", "eager", "glob", "receipt", "subscription")

    def __init__(
        self,
        subscription: bytes,
        glob: bytes,
        acknowledged: bool,
        durable: bool,
        eager: bool,
        receipt: bytes | None,
    ) -> None:
        self.subscription: Final = subscription
        self.glob: Final = glob
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
    """ACK of either version. `revision` is 0, which no message has, when the id names none that can exist."""

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


Event = Connect | Send | Subscribe | Unsubscribe | Ack | Nack | Disconnect | Failure

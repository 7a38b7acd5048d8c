"""What a client asks, as plain values made by the protocol and consumed by the broker.

All text is unescaped, UTF-8-checked `bytes`. `receipt` is the value of the frame's `receipt` header, or None.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from maxam.errors import ProtocolError

VERSION_1_1: Final = 0  # versions are small integers so that they index caches
VERSION_1_2: Final = 1


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
class Send:
    """SEND. `headers` are the user headers that travel on: first of repeats, in order, without the reserved names."""

    __slots__ = ("body", "destination", "headers", "receipt")

    def __init__(
        self,
        destination: bytes,
        body: bytes,
        headers: tuple[tuple[bytes, bytes], ...],
        receipt: bytes | None,
    ) -> None:
        self.destination: Final = destination
        self.body: Final = body
        self.headers: Final = headers
        self.receipt: Final = receipt


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

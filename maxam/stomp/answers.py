"""The frames of a server as plain values for a client: the counterpart of `events`.

All text is unescaped, UTF-8-checked `bytes`, except text that is only shown to people.
"""

from collections.abc import Mapping
from typing import Final, final

from maxam.errors import ProtocolError
from maxam.stomp.encoder import VERSION_TEXTS
from maxam.stomp.events import parse_number
from maxam.stomp.frames import Frame

MARKER: Final = b"$marker"  # destination of the MESSAGEs that have no value: no topic can have this name
SINCE_UNAVAILABLE: Final = "since-unavailable"  # `result` of a SUBSCRIBE whose `since` cannot be used
SESSION_TAKEN_OVER: Final = "session taken over by a newer connection"  # `message` of the ERROR to the older connection


@final
class Connected:
    """CONNECTED. `session` is the client-id to resume with. It and `incarnation` are empty if the server sends none."""

    __slots__ = ("heart_beat_ms", "incarnation", "server", "session", "version")

    def __init__(
        self, version: int, session: str, heart_beat_ms: tuple[int, int], server: str, incarnation: str = ""
    ) -> None:
        self.version: Final = version
        self.incarnation: Final = incarnation
        self.session: Final = session
        self.heart_beat_ms: Final = heart_beat_ms
        self.server: Final = server


@final
class Delivery:
    """MESSAGE. `headers` are all of its headers. An empty `body` means that the topic was deleted."""

    __slots__ = ("body", "destination", "headers", "message_id", "subscription")

    def __init__(
        self, subscription: bytes, message_id: bytes, destination: bytes, headers: Mapping[bytes, bytes], body: bytes
    ) -> None:
        self.subscription: Final = subscription
        self.message_id: Final = message_id
        self.destination: Final = destination
        self.headers: Final = headers
        self.body: Final = body


@final
class Receipt:
    """RECEIPT: the result of the frame that asked for it.

    Attributes:
        receipt_id: Value of the frame's `receipt` header.
        disposition: Of a SEND: `accepted`, `rejected-invalid`, `rejected-unauthorised` or `rejected-unavailable`.
            `accepted` for a RECEIPT without this header, as other brokers send it.
        result: Code of the closed table in docs/protocol.md, or empty. `superseded` comes with `accepted`: the topic already
            has this value of its source, or a newer one.
        reason: One line of text for people, or empty.
        filtered: Of a SUBSCRIBE: True if no right of the client can match any topic of the glob.
        revision: Next revision to expect, after an accepted SEND with `if-revision`. None for any other frame.
        position: Of an ACK on a subscription with markers: the position from which it is safe to resume. Otherwise None.
    """

    __slots__ = ("disposition", "filtered", "position", "reason", "receipt_id", "result", "revision")

    def __init__(
        self,
        receipt_id: bytes,
        disposition: str,
        result: str,
        reason: str,
        filtered: bool,
        revision: int | None = None,
        position: str | None = None,
    ) -> None:
        self.receipt_id: Final = receipt_id
        self.disposition: Final = disposition
        self.result: Final = result
        self.reason: Final = reason
        self.filtered: Final = filtered
        self.revision: Final = revision
        self.position: Final = position

    @property
    def accepted(self) -> bool:
        """True if the frame took effect. A rejected frame has no effect, and no subscriber receives it."""
        return self.disposition == "accepted"

    def __repr__(self) -> str:
        """Show the fields that are not empty."""
        shown = [f"receipt_id={self.receipt_id!r}", f"disposition={self.disposition!r}"]
        shown += [
            f"{name}={value!r}"
            for name, value in (("result", self.result), ("reason", self.reason), ("filtered", self.filtered))
            if value
        ]
        if self.revision is not None:
            shown.append(f"revision={self.revision}")
        if self.position is not None:
            shown.append(f"position={self.position!r}")
        return f"Receipt({', '.join(shown)})"


@final
class Refusal:
    """ERROR: the server ends the connection.

    Attributes:
        message: Its `message` header.
        detail: Its body.
        receipt_id: The `receipt` of the frame that it refuses, or None.
        versions: Those that the server speaks, or empty. Some brokers list them in each ERROR.
        code: Its `code` header, or empty.
    """

    __slots__ = ("code", "detail", "message", "receipt_id", "versions")

    def __init__(self, message: str, detail: str, receipt_id: bytes | None, versions: str, code: str = "") -> None:
        self.code: Final = code
        self.message: Final = message
        self.detail: Final = detail
        self.receipt_id: Final = receipt_id
        self.versions: Final = versions


Answer = Connected | Delivery | Receipt | Refusal


def read_answer(frame: Frame) -> Answer:
    """Return the values of a server's frame.

    Raises:
        ProtocolError: A header is missing or malformed, or no server sends such a frame.
    """
    headers = frame.headers
    match frame.command:
        case b"MESSAGE":
            return Delivery(
                _required(frame, b"subscription"),
                _required(frame, b"message-id"),
                _required(frame, b"destination"),
                headers,
                frame.body,
            )
        case b"RECEIPT":
            # Spec: MaXaM calls it "a content-disposition header" in one place and "a disposition header" in another
            disposition = headers.get(b"disposition") or headers.get(b"content-disposition", b"accepted")
            position = headers.get(b"position")
            return Receipt(
                _required(frame, b"receipt-id"),
                disposition.decode(),
                headers.get(b"result", b"").decode(),
                headers.get(b"reason", b"").decode(),
                headers.get(b"filtered") == b"true",
                _read_revision(frame),
                None if position is None else position.decode(),
            )
        case b"ERROR":
            return Refusal(
                headers.get(b"message", b"ERROR without a message").decode(),
                frame.body.decode(errors="replace").strip(),
                headers.get(b"receipt-id"),
                headers.get(b"version", b"").decode(),
                headers.get(b"code", b"").decode(),
            )
        case b"CONNECTED":
            return _read_connected(frame)
        case _:
            raise ProtocolError("unexpected frame", f"No server sends {frame.command.decode()}.")


def _read_revision(frame: Frame) -> int | None:
    text = frame.headers.get(b"revision")
    if text is None:
        return None
    revision = parse_number(text)
    if revision < 0:
        raise ProtocolError("bad revision", "The revision of RECEIPT is malformed; expected a number.")
    return revision


def _read_connected(frame: Frame) -> Connected:
    headers = frame.headers
    version = _required(frame, b"version")
    if version not in VERSION_TEXTS:
        raise ProtocolError("no common version", f"The server answered {version.decode()}; we speak 1.1 and 1.2.")
    can, comma, wants = headers.get(b"heart-beat", b"0,0").partition(b",")
    heart_beat_ms = (parse_number(can), parse_number(wants))
    if not comma or min(heart_beat_ms) < 0:
        raise ProtocolError("bad heart-beat", "The heart-beat of CONNECTED is malformed; expected two numbers.")
    return Connected(
        VERSION_TEXTS.index(version),
        headers.get(b"session", b"").decode(),
        heart_beat_ms,
        headers.get(b"server", b"").decode(),
        headers.get(b"incarnation", b"").decode(),
    )


def _required(frame: Frame, name: bytes) -> bytes:
    value = frame.headers.get(name)
    if value is None:
        raise ProtocolError("missing header", f"{frame.command.decode()} has no {name.decode()} header.")
    return value

"""The server's side of one connection: frames in, events out.

Invariants: `receive_data` never raises for anything a client can send. Events come in the order of their frames. The last
event of a connection is Failure or Disconnect, and no later frame is read.

Theory of operation: the phase alone decides which commands are valid. Each phase is one literal table from command to the
function that makes the event. Before CONNECT the table holds `_connect` only. After it comes the table of the negotiated
version.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final, final

from maxam.config import Limits
from maxam.content import pack, pack_named, text
from maxam.errors import ProtocolError
from maxam.stomp.events import (
    CONTENT_TYPE,
    DROPPED_HEADERS,
    INTERVAL_MS_MAX,
    INTERVAL_MS_MIN,
    JSON_TYPE,
    NUMBER_MAX,
    PROVENANCE,
    SCHEMA_VERSION,
    SOURCE,
    SOURCE_BYTES_MAX,
    SOURCE_REVISION,
    VERSION_1_1,
    VERSION_1_2,
    Ack,
    Condition,
    Connect,
    Disconnect,
    Event,
    Failure,
    JsonSend,
    Nack,
    Send,
    SkippedSend,
    Subscribe,
    SubscribeOptions,
    Unsubscribe,
    is_json,
    is_mark,
    parse_number,
)
from maxam.stomp.frames import CLIENT_COMMANDS, FIRST_COMMANDS, Decoder, Frame, SkippedBody
from maxam.stomp.last_will import read_will

_ZERO: Final = 48  # "0"
_COLON: Final = 58
_CLIENT_ID_BYTES_MAX: Final = 128
_VERSIONS: Final = ((b"1.2", VERSION_1_2), (b"1.1", VERSION_1_1))  # best first
_FLAGS: Final[Mapping[bytes, bool]] = {b"true": True, b"false": False}
_ACK_MODES: Final = (b"auto", b"client", b"client-individual")


@final
class _Plan:
    """How a SEND was read by its headers, for SENDs with the same header names and content-type.

    Attributes:
        names: The list of `Frame.names`.
        destination_at: Index of the destination.
        receipt_at: Index of the receipt; -1 without one.
        type_at: Index of the content-type; -1 without one.
        version_at: Index of the schema-version; -1 without one.
        content_type: The content-type, empty without one.
        passed_at: Indexes of the user headers.
        passed: Names of them, each as `text` of maxam/content.py.
    """

    __slots__ = (
        "content_type",
        "destination_at",
        "names",
        "passed",
        "passed_at",
        "receipt_at",
        "type_at",
        "version_at",
    )

    def __init__(self, names: list[bytes], event: Send, headers: Mapping[bytes, bytes]) -> None:
        passed = [name for name, _ in event.headers]
        self.names: Final = names
        self.destination_at: Final = names.index(b"destination")
        self.receipt_at: Final = names.index(b"receipt") if event.receipt is not None else -1
        self.type_at: Final = names.index(CONTENT_TYPE) if CONTENT_TYPE in headers else -1
        self.version_at: Final = names.index(SCHEMA_VERSION) if SCHEMA_VERSION in headers else -1
        self.content_type: Final = headers.get(CONTENT_TYPE, b"")
        self.passed_at: Final = [names.index(name) for name in passed]
        self.passed: Final = [text(name) for name in passed]

    def fits(self, frame: Frame) -> bool:
        """Return True if the plan is for this frame."""
        return self.names is frame.names and (self.type_at < 0 or frame.values[self.type_at] == self.content_type)

    def send(self, values: list[bytes], body: bytes) -> Send:
        """Return the SEND with these values of the headers."""
        destination = values[self.destination_at]
        plain = _COLON not in destination  # the only character to escape that an unescaped head may hold
        passed: list[bytes] = []
        for at in self.passed_at:
            value = values[at]
            passed.append(value)
            if plain and _COLON in value:
                plain = False
        content, body_at = pack_named(self.passed, passed, body) if passed else pack((), body)
        receipt = values[self.receipt_at] if self.receipt_at >= 0 else None
        versions = ((SCHEMA_VERSION, values[self.version_at]),) if self.version_at >= 0 else ()
        return Send(destination, body, versions, receipt, None, content, body_at, plain)


@final
class Protocol:
    """Decode what one client sends.

    Attributes:
        version: VERSION_1_1 or VERSION_1_2 once Connect was returned; before it VERSION_1_2, whose escapes an ERROR needs.
        closed: True once Failure or Disconnect was returned: nothing more is read.
        host: The `host` header of CONNECT, also of a refused one. None before CONNECT.
    """

    __slots__ = (
        "_decoder",
        "_limits",
        "_names",
        "_plan",
        "_readers",
        "_reads_credentials",
        "_virtual_hosts",
        "closed",
        "host",
        "version",
    )

    def __init__(
        self,
        limits: Limits,
        virtual_hosts: Collection[str] = ("MAXVAPI",),
        keeps_body: Callable[[bytes, dict[bytes, bytes]], bool] | None = None,
        reads_credentials: bool = False,
    ) -> None:
        """Make a connection that awaits CONNECT.

        Args:
            limits: Limits of frames.
            virtual_hosts: Accepted `host` headers; `"*"` accepts any.
            keeps_body: Called with command and headers when a head is complete and its body is not; False skips the body.
            reads_credentials: `login` and `passcode` of CONNECT are read; else they are ignored.
        """
        self.version = VERSION_1_2
        self.closed = False
        self.host: bytes | None = None
        self._reads_credentials: Final = reads_credentials
        self._limits: Final = limits
        self._virtual_hosts: Final = tuple(virtual_hosts)
        self._decoder: Final = Decoder(limits, FIRST_COMMANDS, VERSION_1_2, keeps_body)
        self._readers: Mapping[bytes, _Reader] | None = None  # None before CONNECT
        self._names: list[bytes] | None = None  # `Frame.names` of the last SEND
        self._plan: _Plan | None = None

    @property
    def unfinished_bytes(self) -> int:
        """Bytes held of a frame that has begun and is not complete; 0 between frames."""
        return self._decoder.unfinished_bytes

    def stop(self) -> None:
        """Read nothing more, and free what is held."""
        self.closed = True
        self._decoder.drop()

    def receive_data(self, data: bytes) -> list[Event]:
        """Return the events of the frames that `data` completes. Nothing is returned after Failure or Disconnect."""
        events: list[Event] = []
        if self.closed:
            return events
        decoder = self._decoder
        decoder.receive_data(data)
        limits = self._limits
        readers = self._readers
        skipped = decoder.skipped
        try:
            if skipped is not None and (first := decoder.next_frame()) is not None:
                events.append(_skipped_send(first, limits, skipped))
            while (frame := decoder.next_frame()) is not None:
                if readers is None:
                    events.append(self._connect(frame))
                    readers = self._readers
                    continue
                command = frame.command
                if command == b"SEND":  # nearly every frame: without the table
                    plan = self._plan
                    if plan is not None and plan.fits(frame):
                        events.append(plan.send(frame.values, frame.body))
                    else:
                        events.append(self._learn(frame))
                    continue
                events.append(readers[command](frame, limits))
                if command == b"DISCONNECT":
                    self.closed = True
                    break
        except ProtocolError as error:
            self.closed = True
            events.append(Failure(error))
        if self.closed:
            decoder.drop()  # the rest will not be read
        return events

    def _learn(self, frame: Frame) -> Send:
        """Read a SEND by its headers, and plan for the next ones if the one before had the same names."""
        event = _send(frame, self._limits)
        names = frame.names
        if names is not None and names is self._names and event.condition is None and type(event) is Send:
            self._plan = _Plan(names, event, frame.headers)
        self._names = names
        return event

    def _connect(self, frame: Frame) -> Connect:
        version = _negotiate(frame)
        self.host = host = frame.headers.get(b"host")
        hosts = self._virtual_hosts
        accepted = f"expected {' or '.join(hosts)}" if "*" not in hosts else "expected any name"
        if host is None:
            raise _refusal(frame, "missing header", f"CONNECT has no host header; {accepted}. Add host:<name>.")
        if "*" not in hosts and host.decode() not in hosts:
            raise _refusal(frame, "unknown host", f"The host of CONNECT is not served here; {accepted}.")
        connect = Connect(
            version,
            host,
            _read_client_id(frame),
            _read_window(frame, self._limits.window),
            _read_heart_beat(frame),
            _read_rejections(frame),
            _flag(frame, b"incarnation"),
            read_will(frame.headers, self._limits),
            *self._credentials(frame),
        )
        self.version = version
        self._readers = _READERS[version]
        self._decoder.expect(CLIENT_COMMANDS, version)
        return connect

    def _credentials(self, frame: Frame) -> tuple[bytes, bytes]:
        if not self._reads_credentials:
            return b"", b""
        return frame.headers.get(b"login", b""), frame.headers.get(b"passcode", b"")


_Reader = Callable[[Frame, Limits], Event]


def _send(frame: Frame, _limits: Limits) -> Send:
    headers = frame.headers
    destination = headers.get(b"destination")
    receipt = headers.get(b"receipt")
    if destination is None:
        raise _missing(frame, b"destination")
    expected = 1 + (receipt is not None) + (b"content-length" in headers)
    if len(headers) == expected:
        return Send(destination, frame.body, (), receipt)
    if b"transaction" in headers:
        raise _transaction(frame)
    # Spec: STOMP 1.2 "The user defined headers MUST be passed through in the MESSAGE frame."
    passed = tuple([item for item in headers.items() if item[0] not in DROPPED_HEADERS])
    condition = None
    if SOURCE_REVISION in headers or b"if-revision" in headers:
        condition = _condition(headers)
    if len(passed) + expected < len(headers) and not PROVENANCE.isdisjoint(headers):
        passed = tuple([item for item in headers.items() if item[0] not in DROPPED_HEADERS or item[0] in PROVENANCE])
        if condition is None:
            condition = Condition(None, -1, -1, provenance=True)
        else:
            condition = Condition(
                condition.source, condition.number, condition.expected, condition.problem, provenance=True
            )
    content_type = headers.get(CONTENT_TYPE)
    if content_type is not None and content_type.startswith(JSON_TYPE) and is_json(content_type):
        return JsonSend(destination, frame.body, passed, receipt, condition)
    return Send(destination, frame.body, passed, receipt, condition)


def _skipped_send(frame: Frame, limits: Limits, body: SkippedBody) -> SkippedSend:
    return SkippedSend(_send(frame, limits), body.size, body.sha256)


def _condition(headers: Mapping[bytes, bytes]) -> Condition:
    """Read the condition of a SEND. A problem of its headers is part of it, because the broker answers it."""
    source: bytes | None = None
    number = expected = -1
    problem = ""
    if SOURCE_REVISION in headers:
        source = headers.get(SOURCE, b"")
        number = parse_number(headers[SOURCE_REVISION])
        if not is_mark(source, number):
            problem = (
                f"source must be 1 to {SOURCE_BYTES_MAX} bytes, found {len(source)}"
                if 0 <= number <= NUMBER_MAX
                else f"source-revision must be a number of digits from 0 to {NUMBER_MAX}"
            )
    if b"if-revision" in headers:
        expected = parse_number(headers[b"if-revision"])
        if not 0 <= expected <= NUMBER_MAX:
            problem = problem or f"if-revision must be a number of digits from 0 to {NUMBER_MAX}"
    return Condition(source, number, expected, problem)


def _ack_1_1(frame: Frame, _limits: Limits) -> Event:
    headers = frame.headers
    if b"transaction" in headers:
        raise _transaction(frame)
    subscription = _required(frame, b"subscription")
    return Ack(subscription, _parse_revision(_required(frame, b"message-id")), headers.get(b"receipt"))


def _ack_1_2(frame: Frame, _limits: Limits) -> Event:
    headers = frame.headers
    if b"transaction" in headers:
        raise _transaction(frame)
    # Spec: MaXaM "must be subscription and message-id concatenated joined on space"; the subscription may hold spaces too
    identifier = _required(frame, b"id")
    subscription, space, message_id = identifier.rpartition(b" ")
    if not space:
        return Ack(identifier, 0, headers.get(b"receipt"))
    return Ack(subscription, _parse_revision(message_id), headers.get(b"receipt"))


def _nack(frame: Frame, _limits: Limits) -> Event:
    # Spec: MaXaM "| NACK | Not implemented | Will be ignored |", so nothing in it is checked
    return Nack(frame.headers.get(b"receipt"))


def _subscribe(frame: Frame, limits: Limits) -> Event:
    subscription = _required(frame, b"id")
    glob = _required(frame, b"destination")
    _limit(frame, b"id", subscription, "subscription_id_bytes_max", limits.subscription_id_bytes_max)
    _limit(frame, b"destination", glob, "destination_bytes_max", limits.destination_bytes_max)
    # Spec: STOMP 1.2 "If the header is not set, it defaults to auto."
    ack = frame.headers.get(b"ack", b"auto")
    if ack not in _ACK_MODES:
        raise _refusal(frame, "bad ack", "The ack of SUBSCRIBE is unknown; expected auto, client or client-individual.")
    durable = _flag(frame, b"durable")
    eager = _flag(frame, b"eager")
    receipt = frame.headers.get(b"receipt")
    options = None if _OPTIONS.isdisjoint(frame.headers) else _read_options(frame, limits)
    return Subscribe(subscription, glob, ack != b"auto", durable, eager, receipt, ack == b"client-individual", options)


def _read_options(frame: Frame, limits: Limits) -> SubscribeOptions | None:
    headers = frame.headers
    interval_ms = 0
    if b"min-interval" in headers:
        interval_ms = parse_number(headers[b"min-interval"])
        if not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
            raise _refusal(
                frame,
                "bad min-interval",
                f"The min-interval of SUBSCRIBE is malformed or out of range; expected {INTERVAL_MS_MIN} to "
                f"{INTERVAL_MS_MAX} milliseconds.",
            )
    since = headers.get(b"since")
    selector = headers.get(b"selector")
    if selector is not None:
        _limit(frame, b"selector", selector, "selector_bytes_max", limits.selector_bytes_max)
    markers = _flag(frame, b"markers")
    metadata = _flag(frame, b"metadata")
    changes_only = _flag(frame, b"changes-only")
    json = b"accept-format" in headers
    if json and headers[b"accept-format"] != b"json":
        raise _refusal(
            frame,
            "bad accept-format",
            "The accept-format of SUBSCRIBE is unknown; expected json. Leave it out for bodies as they were sent.",
        )
    fields = headers.get(b"fields")
    if fields is not None:
        _limit(frame, b"fields", fields, "selector_bytes_max", limits.selector_bytes_max)
        if not json:
            raise _refusal(frame, "bad fields", "The fields of SUBSCRIBE need accept-format:json; add it.")
    if not (markers or metadata or changes_only or interval_ms or json) and since is None and selector is None:
        return None
    text = None if selector is None else selector.decode()
    names = None if fields is None else fields.decode()
    return SubscribeOptions(since, markers, metadata, interval_ms, text, changes_only, json, names)


def _unsubscribe(frame: Frame, _limits: Limits) -> Event:
    return Unsubscribe(_required(frame, b"id"), _flag(frame, b"durable"), frame.headers.get(b"receipt"))


def _disconnect(frame: Frame, _limits: Limits) -> Event:
    return Disconnect(frame.headers.get(b"receipt"))


def _not_implemented(frame: Frame, _limits: Limits) -> Event:
    # Spec: MaXaM "| BEGIN | Not implemented | Will generate error |"; COMMIT and ABORT too
    raise _refusal(
        frame,
        "not implemented",
        f"{frame.command.decode()} and transactions are not implemented. Send without them: each SEND stands alone.",
    )


def _second_connect(frame: Frame, _limits: Limits) -> Event:
    raise _refusal(
        frame, "already connected", f"{frame.command.decode()} may come once, as the first frame; reconnect."
    )


_COMMON_READERS: Final[Mapping[bytes, _Reader]] = {
    b"SEND": _send,
    b"NACK": _nack,
    b"SUBSCRIBE": _subscribe,
    b"UNSUBSCRIBE": _unsubscribe,
    b"DISCONNECT": _disconnect,
    b"BEGIN": _not_implemented,
    b"COMMIT": _not_implemented,
    b"ABORT": _not_implemented,
    b"CONNECT": _second_connect,
    b"STOMP": _second_connect,
}
_OPTIONS: Final = frozenset(
    (
        b"since",
        b"markers",
        b"metadata",
        b"min-interval",
        b"selector",
        b"changes-only",
        b"accept-format",
        b"fields",
    )
)
_READERS: Final[tuple[Mapping[bytes, _Reader], Mapping[bytes, _Reader]]] = (
    {**_COMMON_READERS, b"ACK": _ack_1_1},
    {**_COMMON_READERS, b"ACK": _ack_1_2},
)


def _refusal(frame: Frame, message: str, detail: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> ProtocolError:
    # Spec: STOMP 1.2 "Any client frame other than CONNECT MAY specify a receipt header"
    receipt = None if frame.command in FIRST_COMMANDS else frame.headers.get(b"receipt")
    return ProtocolError(message, detail, receipt, headers)


def _missing(frame: Frame, name: bytes) -> ProtocolError:
    command = frame.command.decode()
    return _refusal(
        frame,
        "missing header",
        f"{command} has no {name.decode()} header, which it must have; add {name.decode()}:<value>.",
    )


def _required(frame: Frame, name: bytes) -> bytes:
    value = frame.headers.get(name)
    if value is None:
        raise _missing(frame, name)
    return value


def _limit(frame: Frame, name: bytes, value: bytes, limit: str, bytes_max: int) -> None:
    if len(value) > bytes_max:
        raise _refusal(
            frame,
            f"{name.decode()} too long",
            f"The {name.decode()} of {frame.command.decode()} is {len(value)} bytes; "
            f"expected at most {bytes_max}, the limit {limit}. Shorten it.",
        )


def _flag(frame: Frame, name: bytes) -> bool:
    value = frame.headers.get(name)
    if value is None:
        return False
    flag = _FLAGS.get(value)
    if flag is None:
        text = name.decode()
        raise _refusal(
            frame,
            f"bad {text}",
            f"The {text} of {frame.command.decode()} is unknown; expected {text}:true or {text}:false.",
        )
    return flag


def _transaction(frame: Frame) -> ProtocolError:
    # Spec: MaXaM "| SEND | transaction | Not implemented | Will generate error |"
    return _refusal(
        frame,
        "not implemented",
        f"{frame.command.decode()} has a transaction header; transactions are not implemented. Send it without one.",
    )


def _parse_revision(message_id: bytes) -> int:
    """Return the revision of a message-id, or 0 if this broker never writes such an id."""
    revision = parse_number(message_id)
    return revision if revision > 0 and message_id[0] != _ZERO else 0


def _negotiate(frame: Frame) -> int:
    # Spec: STOMP 1.2 "The protocol that will be used for the rest of the session will be the highest protocol version
    # that both the client and server have in common."
    accepted = frame.headers.get(b"accept-version")
    if accepted is not None:
        offered = accepted.split(b",")
        for text, version in _VERSIONS:
            if text in offered:
                return version
        found = "The accept-version of CONNECT has neither"
    else:
        # Spec: STOMP 1.2 "If the accept-version header is missing, it means that the client only supports version 1.0"
        found = "CONNECT has no accept-version, which means 1.0"
    raise _refusal(
        frame,
        "no common version",
        f"Supported protocol versions are 1.1 and 1.2. {found}; expected accept-version:1.1,1.2 or one of them.",
        ((b"version", b"1.1,1.2"),),
    )


def _read_client_id(frame: Frame) -> str | None:
    value = frame.headers.get(b"client-id")
    if value is None:
        return None
    text = value.decode()
    if not 1 <= len(text) <= _CLIENT_ID_BYTES_MAX or not text.isascii() or not text.isprintable():
        raise _refusal(
            frame,
            "bad client-id",
            f"The client-id of CONNECT is {len(value)} bytes or has other characters than printable ASCII; "
            f"expected 1 to {_CLIENT_ID_BYTES_MAX} of those. Leave it out for a new session with a name of our making.",
        )
    return text


def _read_window(frame: Frame, window_max: int) -> int | None:
    value = frame.headers.get(b"window")
    if value is None:
        return None
    window = parse_number(value)
    if not 1 <= window <= window_max:
        raise _refusal(
            frame,
            "bad window",
            f"The window of CONNECT is out of range; expected 1 to {window_max}, the limit window. "
            "Leave it out and the broker adapts it.",
        )
    return window


def _read_rejections(frame: Frame) -> bool:
    value = frame.headers.get(b"rejections", b"receipt")
    if value not in {b"receipt", b"error"}:
        raise _refusal(
            frame,
            "bad rejections",
            "The rejections of CONNECT is unknown; expected rejections:receipt or rejections:error.",
        )
    return value == b"error"


def _read_heart_beat(frame: Frame) -> tuple[int, int]:
    # Spec: STOMP 1.2 'A missing heart-beat header MUST be treated the same way as a "heart-beat:0,0" header'
    can, comma, wants = frame.headers.get(b"heart-beat", b"0,0").partition(b",")
    heart_beat = (parse_number(can), parse_number(wants))
    # Spec: STOMP 1.2 "MUST contain two positive integers separated by a comma", of which 0 has a meaning too
    if not comma or min(heart_beat) < 0:
        raise _refusal(
            frame,
            "bad heart-beat",
            "The heart-beat of CONNECT is malformed; expected two numbers of milliseconds such as heart-beat:10000,10000.",
        )
    return heart_beat

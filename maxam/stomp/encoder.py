"""Write frames: what a server sends, in pieces that many subscribers share, and what a client sends."""

from base64 import b64encode
from typing import Final

from maxam.content import unpack_headers
from maxam.errors import ProtocolError
from maxam.records import Headers
from maxam.stomp.events import VERSION_1_1, VERSION_1_2, SubscribeOptions, Will

HEART_BEAT: Final = b"\n"
_NUL: Final = 0
_LF: Final = 10
_CR: Final = 13
_COLON: Final = 58
_BACKSLASH: Final = 92
VERSION_TEXTS: Final = (b"1.1", b"1.2")  # by version

# Spec: MaXaM "RECEIPTS may contain a content-disposition header", elsewhere "a disposition header": both are written
_ACCEPTED: Final = b"\ndisposition:accepted\ncontent-disposition:accepted\n\n\0"
_ESCAPED: Final = b":\\\n\r\0"
_LENGTH_MAX: Final = 127  # encodings of a length up to here are one byte
_COMMAND_BYTES: Final = len(b"MESSAGE\n")
_NUL_REPLACED: Final = "\ufffd".encode()
_VIEWED_BYTES_MIN: Final = 16_384  # a longer body is copied once, into its MESSAGE; a view of a shorter one costs more
_LENGTHS: Final = [b"%d\n\n" % size for size in range(1024)]  # a content-length's value and the end of its head


def escape(version: int, text: bytes) -> bytes:
    """Return `text` as a header name or value of any frame but CONNECT and CONNECTED.

    NUL, which has no escape and is in no header that was received, becomes U+FFFD: a peer may take it for a frame's end.
    Spec: STOMP 1.2 "Value Encoding"
    """
    if not (_COLON in text or _BACKSLASH in text or _LF in text or _CR in text or _NUL in text):
        return text
    text = text.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b":", b"\\c").replace(b"\0", _NUL_REPLACED)
    return text if version == VERSION_1_1 else text.replace(b"\r", b"\\r")


def connected(
    version: int, session: str, heart_beat_ms: tuple[int, int], server: str, incarnation: str | None = None
) -> bytes:
    """Return CONNECTED, with the journal's incarnation if there is one.

    Raises:
        ValueError: A value cannot be written, as CONNECTED has no escapes.
    """
    return _unescaped_frame(
        b"CONNECTED",
        (
            (b"version", VERSION_TEXTS[version]),
            (b"session", session.encode()),
            (b"heart-beat", b"%d,%d" % heart_beat_ms),
            (b"server", server.encode()),
            *(() if incarnation is None else ((b"incarnation", incarnation.encode()),)),
        ),
    )


def receipt(version: int, receipt_id: bytes, headers: Headers = ()) -> bytes:
    """Return RECEIPT with its `receipt-id`, followed by `headers`, unescaped."""
    return _frame(version, b"RECEIPT", ((b"receipt-id", receipt_id), *headers))


def receipt_accepted(version: int, receipt_id: bytes) -> bytes:
    """Return the RECEIPT of an accepted SEND."""
    return b"RECEIPT\nreceipt-id:" + escape(version, receipt_id) + _ACCEPTED


def error(version: int, error: ProtocolError) -> bytes:
    """Return ERROR; before a version is negotiated write it as VERSION_1_2, which escapes most."""
    headers: Headers = ((b"message", error.message.encode()), (b"content-type", b"text/plain"), *error.headers)
    if error.receipt is not None:
        # Spec: STOMP 1.2 "the ERROR frame SHOULD set the receipt-id header to match the value of the receipt header"
        headers = ((b"receipt-id", error.receipt), *headers)
    return _frame_with_body(version, b"ERROR", headers, error.detail.encode())


def message_prefix(version: int, subscription: bytes, acknowledged: bool) -> bytes:
    """Return the beginning of a MESSAGE on `subscription`. `message_shared` of the same arguments follows.

    Spec: MaXaM "MESSAGE ack", "subscription and message-id concatenated joined on space"
    """
    name = escape(version, subscription)
    if acknowledged:
        return b"MESSAGE\nsubscription:" + name + b"\nack:" + name + b" "
    return b"MESSAGE\nsubscription:" + name + b"\n"


def with_conflated(prefix: bytes, skipped: int) -> bytes:
    """Return the `message_prefix` of a MESSAGE with the number of values that were skipped before it."""
    return b"MESSAGE\nconflated:%d\n" % skipped + prefix[_COMMAND_BYTES:]


def metadata_lines(
    version: int, accepted_at_us: int, publisher: bytes, schema: bytes, kind: bytes, reason: bytes
) -> bytes:
    """Return the header lines with the metadata of a change; an empty `schema` or `reason` has no line."""
    lines = b"timestamp:%d\npublisher:%b\n" % (accepted_at_us // 1000, escape(version, publisher))
    if schema:
        lines += b"schema:%b\n" % escape(version, schema)
    return lines + kind_lines(kind, reason)


def kind_lines(kind: bytes, reason: bytes) -> bytes:
    """Return the header lines with the kind of a MESSAGE; an empty `reason` has no line."""
    return b"kind:%b\nreason:%b\n" % (kind, reason) if reason else b"kind:%b\n" % kind


def marker(version: int, subscription: bytes, headers: Headers) -> bytes:
    """Return a marker, a MESSAGE that no topic causes; no value has its message-id."""
    return notice(version, subscription, b"$marker", headers)


def notice(version: int, subscription: bytes, destination: bytes, headers: Headers) -> bytes:
    """Return a MESSAGE about a topic that is no value and is not acknowledged."""
    names = ((b"subscription", subscription), (b"message-id", b"0"), (b"destination", destination))
    return _frame_with_body(version, b"MESSAGE", (*names, *headers), b"")


def message_shared(
    version: int,
    acknowledged: bool,
    destination: bytes,
    revision: int,
    content: bytes,
    body_at: int,
    metadata: bytes = b"",
    plain: bool = False,
) -> bytes:
    """Return the rest of a MESSAGE, the same for each subscription with the same `version` and `acknowledged`.

    Args:
        version: The subscriber's.
        acknowledged: In another ack mode than auto.
        destination: The topic.
        revision: Of the value.
        content: Its user headers and body, as `pack` of maxam/content.py makes it.
        body_at: Where in it the body begins.
        metadata: Header lines that come before the user headers, so that a client that takes the first of repeats takes these.
        plain: Destination and user headers are known to need no escape.
    """
    id_ = b"%d" % revision
    size = len(content) - body_at
    # Spec: MaXaM "all avro messages WILL use content-length"
    parts: list[bytes | bytearray | memoryview] = [
        id_ + b"\nmessage-id:" if acknowledged else b"message-id:",
        id_,
        b"\ndestination:",
        destination if plain else escape(version, destination),
        b"\ncontent-length:",
        _LENGTHS[size] if size < len(_LENGTHS) else b"%d\n\n" % size,
        content[body_at:] if size < _VIEWED_BYTES_MIN else memoryview(content)[body_at:],
        b"\0",
    ]
    if content[0] or metadata:  # these come before content-length, which is parts[4]
        lines: bytes | bytearray | None = _plain_lines(content, body_at) if plain and content[0] else None
        if lines is None:
            lines = _content_lines(version, content) if content[0] else b""
        parts[4:5] = (b"\n", metadata, lines, b"content-length:")
    return b"".join(parts)


def connect(
    host: str,
    versions: tuple[int, ...] = (VERSION_1_1, VERSION_1_2),
    heart_beat_ms: tuple[int, int] = (0, 0),
    client_id: str | None = None,
    window: int | None = None,
    incarnation: bool = False,
    will: Will | None = None,
    credentials: tuple[str, str] | None = None,
) -> bytes:
    """Return CONNECT. With `incarnation` it asks for the incarnation of the journal; `will` is the last will.

    `credentials` are `login` and `passcode`, for a WebSocket.

    Raises:
        ValueError: A value cannot be written, as CONNECT has no escapes.
    """
    headers: list[tuple[bytes, bytes]] = [
        (b"accept-version", b",".join([VERSION_TEXTS[version] for version in versions])),
        (b"host", host.encode()),
        (b"heart-beat", b"%d,%d" % heart_beat_ms),
    ]
    if client_id is not None:
        headers.append((b"client-id", client_id.encode()))
    if window is not None:
        headers.append((b"window", b"%d" % window))
    headers.extend(_flag_header(b"incarnation", incarnation))
    if credentials is not None:
        headers += [(b"login", credentials[0].encode()), (b"passcode", credentials[1].encode())]
    if will is not None:
        headers += [(b"will-destination", will.destination), (b"will-delay", b"%d" % will.delay_s)]
        headers += [
            (b"will-body-base64", b64encode(will.body)),
            *[(b"will-" + name, text) for name, text in will.headers],
        ]
    return _unescaped_frame(b"CONNECT", tuple(headers))


def send(
    version: int, destination: bytes, body: bytes, headers: Headers = (), receipt_id: bytes | None = None
) -> bytes:
    """Return SEND; an empty `body` deletes the topic's value."""
    return _frame_with_body(
        version, b"SEND", ((b"destination", destination), *_receipt_header(receipt_id), *headers), body
    )


def subscribe(
    version: int,
    subscription: bytes,
    glob: bytes,
    ack: bytes = b"client",
    durable: bool = False,
    eager: bool = False,
    receipt_id: bytes | None = None,
    options: SubscribeOptions | None = None,
) -> bytes:
    """Return SUBSCRIBE; `ack` is `auto`, `client` or `client-individual`."""
    flags = (*_flag_header(b"durable", durable), *_flag_header(b"eager", eager), *_option_headers(options))
    headers = ((b"id", subscription), (b"destination", glob), (b"ack", ack), *flags, *_receipt_header(receipt_id))
    return _frame(version, b"SUBSCRIBE", headers)


def unsubscribe(version: int, subscription: bytes, durable: bool = False, receipt_id: bytes | None = None) -> bytes:
    """Return UNSUBSCRIBE; `durable` removes a durable subscription for good."""
    headers = ((b"id", subscription), *_flag_header(b"durable", durable), *_receipt_header(receipt_id))
    return _frame(version, b"UNSUBSCRIBE", headers)


def ack(
    version: int,
    subscription: bytes,
    message_id: bytes,
    receipt_id: bytes | None = None,
    identifier: bytes | None = None,
) -> bytes:
    """Return ACK for a MESSAGE.

    Args:
        version: VERSION_1_1 or VERSION_1_2.
        subscription: Header of the MESSAGE.
        message_id: Likewise.
        receipt_id: Ask for a RECEIPT with this id.
        identifier: Header `ack` of the MESSAGE, which 1.2 repeats. None: compose it as this broker does.
    """
    if version == VERSION_1_1:
        headers: Headers = ((b"subscription", subscription), (b"message-id", message_id))
    else:
        # Spec: STOMP 1.2 "The ACK frame MUST include an id header matching the ack header of the MESSAGE"
        headers = ((b"id", subscription + b" " + message_id if identifier is None else identifier),)
    return _frame(version, b"ACK", (*headers, *_receipt_header(receipt_id)))


def disconnect(version: int, receipt_id: bytes | None = None) -> bytes:
    """Return DISCONNECT."""
    return _frame(version, b"DISCONNECT", _receipt_header(receipt_id))


def _receipt_header(receipt_id: bytes | None) -> Headers:
    return () if receipt_id is None else ((b"receipt", receipt_id),)


def _flag_header(name: bytes, flag: bool) -> Headers:
    return ((name, b"true"),) if flag else ()


def _option_headers(options: SubscribeOptions | None) -> Headers:
    if options is None:
        return ()
    since, selector, interval_ms, fields = options.since, options.selector, options.interval_ms, options.fields
    return (
        *(() if since is None else ((b"since", since),)),
        *_flag_header(b"markers", options.markers),
        *_flag_header(b"metadata", options.metadata),
        *(((b"min-interval", b"%d" % interval_ms),) if interval_ms else ()),
        *(() if selector is None else ((b"selector", selector.encode()),)),
        *_flag_header(b"changes-only", options.changes_only),
        *(((b"accept-format", b"json"),) if options.json else ()),
        *(() if fields is None else ((b"fields", fields.encode()),)),
    )


def _plain_lines(content: bytes, body_at: int) -> bytearray | None:
    """Return the header lines of a content whose headers need no escape, or None if they are many or long.

    The lengths between the texts are replaced by colons and line feeds.
    """
    if content[0] > _LENGTH_MAX:
        return None
    lines = bytearray(content[2:body_at])
    length = content[1]
    place = 1  # in `content`, of a length
    for _ in range(content[0] >> 1):
        if length > _LENGTH_MAX:
            return None
        place += 1 + (length >> 1)
        length = content[place]
        lines[place - 2] = _COLON
        if length > _LENGTH_MAX:
            return None
        place += 1 + (length >> 1)
        length = content[place]
        lines[place - 2] = _LF
    del lines[place - 1 :]
    return lines


def _content_lines(version: int, content: bytes) -> bytes:
    """Return the header lines of a content that has headers. Few and short ones without escapes are written in one go."""
    parts: list[bytes] = []
    count = content[0] >> 1
    place = 1
    short = content[0] <= _LENGTH_MAX
    if short:
        for _ in range(count):
            length = content[place]
            value_at = place + 1 + (length >> 1)
            value_length = content[value_at]
            if length > _LENGTH_MAX or value_length > _LENGTH_MAX:
                short = False
                break
            parts.append(content[place + 1 : value_at])
            parts.append(b":")
            place = value_at + 1 + (value_length >> 1)
            parts.append(content[value_at + 1 : place])
            parts.append(b"\n")
    lines = b"".join(parts)
    # each header has one colon and one line feed that are not escaped
    if short and len(lines.translate(None, _ESCAPED)) == len(lines) - 2 * count:
        return lines
    return _header_lines(version, unpack_headers(content)[0])


def _header_lines(version: int, headers: Headers) -> bytes:
    return b"".join([escape(version, name) + b":" + escape(version, value) + b"\n" for name, value in headers])


def _frame(version: int, command: bytes, headers: Headers) -> bytes:
    return command + b"\n" + _header_lines(version, headers) + b"\n\0"


def _frame_with_body(version: int, command: bytes, headers: Headers, body: bytes) -> bytes:
    return b"%b\n%bcontent-length:%d\n\n%b\0" % (command, _header_lines(version, headers), len(body), body)


def _unescaped_frame(command: bytes, headers: Headers) -> bytes:
    # Spec: STOMP 1.2 "The CONNECT and CONNECTED frames do not escape the carriage return, line feed or colon octets"
    for name, value in headers:
        if name.find(b":") >= 0 or len((name + value).translate(None, b"\r\n\0")) != len(name + value):
            raise ValueError(
                f"{command.decode()} cannot carry {value!r} as {name!r}: it has no escapes for CR, LF or NUL. Leave them out"
            )
    lines = [name + b":" + value + b"\n" for name, value in headers]
    return command + b"\n" + b"".join(lines) + b"\n\0"

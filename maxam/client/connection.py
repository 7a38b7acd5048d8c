"""One connection: requests that await their RECEIPT, and the handshake that opens it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

import anyio

from maxam.client.credentials import Credentials
from maxam.client.errors import ConnectionLostError, OutcomeUnknownError, UnreachableError, VersionError
from maxam.client.link import RECEIVE_BYTES_MAX, Link, Posted, background, refusal_error
from maxam.client.progress import Progress
from maxam.client.subscription import AckMode, Subscription, check_values, read_options
from maxam.client.transport import Stream, loss
from maxam.client.values import Followed, KeepsValues
from maxam.config import Limits
from maxam.errors import ClientError, ProtocolError
from maxam.stomp import encoder
from maxam.stomp.answers import Answer, Connected, Receipt, Refusal, read_answer
from maxam.stomp.events import VERSION_1_1, VERSION_1_2, SubscribeOptions, Will
from maxam.stomp.frames import SERVER_COMMANDS, Decoder

Headers = Mapping[str, str]
Source = tuple[str, int]  # name and number

HEART_BEAT_MS: Final = (10_000, 10_000)  # Spec: MaXaM "set to 10000 (ms) or less"
VERSIONS: Final = {"1.1": (VERSION_1_1,), "1.2": (VERSION_1_2,), None: (VERSION_1_1, VERSION_1_2)}
DISCONNECT_TIMEOUT_S: Final = 5.0  # for the RECEIPT of DISCONNECT
SEARCH_PAUSE_S: Final = 1.0  # between two searches for another address, while heart-beats are late

# Twice and more of a gateway's defaults: MESSAGE has headers of its own beside the sender's.
_LIMITS: Final = Limits(
    frame_headers_max=250,
    frame_header_line_bytes_max=65_536,
    frame_headers_bytes_max=262_144,
    frame_body_bytes_max=67_108_864,
)


@dataclass(frozen=True, slots=True)
class LastWill:
    """A SEND that the gateway makes if the connection ends without DISCONNECT.

    Attributes:
        destination: The topic.
        body: The value. An empty one deletes the topic.
        delay_s: From the end of the connection to the SEND, 0 to 3600 s. A connection within that time cancels it.
        headers: User headers of the SEND.
    """

    destination: str
    body: bytes = b""
    delay_s: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)

    def sent(self) -> Will:
        """Return it as the protocol has it."""
        headers = tuple([(name.encode(), text.encode()) for name, text in self.headers.items()])
        return Will(self.destination.encode(), self.body, headers, self.delay_s)


@final
class Client(KeepsValues):
    """A connection to a gateway. Its methods may be called from any number of tasks. Requests do not wait for each other.

    Attributes:
        session: The client-id with which this session can be resumed.
        server: Name and version of the server, from CONNECTED.
        version: `1.1` or `1.2`.
        incarnation: Identifies the journal of the gateway: positions of another one are unavailable. Empty for other servers.
        address: Host and port that it was made to, of several. None over a stream of the caller's.
    """

    def __init__(self, link: Link, connected: Connected) -> None:
        self.session: Final = connected.session
        self.server: Final = connected.server
        self.version: Final = encoder.VERSION_TEXTS[connected.version].decode()
        self.incarnation: Final = connected.incarnation
        self.address: tuple[str, int] | None = None
        self._link: Final = link

    async def send(
        self,
        destination: str,
        body: bytes,
        headers: Headers | None = None,
        *,
        source: Source | None = None,
        if_revision: int | None = None,
    ) -> Receipt:
        """Send `body` as the new value of a topic and wait for its RECEIPT. An empty body deletes the topic.

        A rejection is no exception: check `accepted`, `result` and `reason` of the Receipt. Many tasks may send at once.
        SENDs of one task keep their order. Cancelled, the SEND may have been written, whole, and then takes effect.

        Args:
            destination: The topic.
            body: The value, in the encoding that the destination's rule requires.
            headers: User headers, passed on to subscribers.
            source: Name and number of the value's source. The number must grow from value to value. If the topic has had this
                number from this source, or a higher one, the result is `superseded` and nothing changes. So a SEND of unknown
                outcome may be sent again.
            if_revision: Revision that the topic's value must have, 0 for no value. With any other the SEND has no effect, its
                result is `conflict`, and the Receipt has the new revision.

        Raises:
            OutcomeUnknownError: The connection went between writing and RECEIPT.
            GatewayError: The gateway took this very frame for a breach of protocol; it had no effect.
            ClientError: The connection is gone, and nothing was written.
        """
        posted = await self.post(destination, body, headers, source=source, if_revision=if_revision)
        return await posted.receipt()

    async def post(
        self,
        destination: str,
        body: bytes,
        headers: Headers | None = None,
        *,
        source: Source | None = None,
        if_revision: int | None = None,
    ) -> Posted:
        """Send like `send`, but return as soon as there is room. `Posted.receipt` waits for the RECEIPT.

        So one task keeps many SENDs under way, written and answered in the order of its calls. The caller limits their number.

        Raises:
            ClientError: The connection is gone, and nothing was written.
        """
        link, receipt_id = self._link, self._link.new_id()
        pairs = () if not headers else tuple([(name.encode(), value.encode()) for name, value in headers.items()])
        if source is not None:
            pairs = (*pairs, (b"source", source[0].encode()), (b"source-revision", b"%d" % source[1]))
        if if_revision is not None:
            pairs = (*pairs, (b"if-revision", b"%d" % if_revision))
        frame = encoder.send(link.version, destination.encode(), body, pairs, receipt_id)
        return await link.post(frame, receipt_id, OutcomeUnknownError)

    def serve_frames(self, take: Callable[[Answer], bool], after_read: Callable[[], None]) -> Link:
        """Handle the frames of this connection instead of subscriptions and RECEIPTs, as a bridge does.

        Args:
            take: Called with each frame, in order. It returns False for a frame that it does not want.
            after_read: Called when all frames that came together have been handled.

        Returns:
            Writes frames.
        """
        self._link.take = take
        self._link.after_read = after_read
        return self._link

    def subscribe(
        self,
        glob: str,
        *,
        id: str | None = None,  # noqa: A002 - STOMP's name
        ack: AckMode = "client",
        automatic: bool = True,
        eager: bool = False,
        durable: bool = False,
        metadata: bool = False,
        markers: bool = False,
        since: str | None = None,
        values: MutableMapping[str, bytes] | None = None,
        selector: str | None = None,
        min_interval_s: float | None = None,
        changes_only: bool = False,
        json: bool = False,
        fields: Sequence[str] = (),
    ) -> Subscription:
        """Return a subscription to enter with `async with`.

        With ack `auto` read it all the time, in a task that awaits nothing else of this client. While it is full, the
        connection is not read and no RECEIPT arrives.

        Args:
            glob: Pattern of the topics, such as `X/EGM.*`.
            id: Its name, by which durable subscriptions are resumed. None creates a new one.
            ack: `client` delivers the newest values, and an ACK covers earlier messages. With `client-individual` it covers
                its message alone. `auto` needs no ACK.
            automatic: Acknowledge each message when the next is asked for. If False, call `Message.ack`.
            eager: Deliver the current value of each matching topic first.
            durable: Let it outlive this connection. The next connection must have the same client-id.
            metadata: Messages have `accepted_at`, `publisher`, `schema`, `conflated`, `kind` and `reason`.
            markers: Keep `position` of the subscription up to date. Topics that are overdue, or may no longer be received, are
                reported as messages of the kinds `stale` and `left`.
            since: A `position` that was kept: deliver all values and deletes that came after it. Implies `markers`. If the
                gateway no longer knows all of them, and there is no `values`, entering raises PositionUnavailableError.
            values: A mapping that the subscription keeps equal to the gateway's values. It has those of the position
                `since`. Each message is applied when it is handed out. Topics that are gone come as messages of kind
                `left`. Implies `markers`. Without `since`, or if `since` is unavailable, all values are delivered first. Not
                with `durable`.
            selector: Condition on the values of the topics to deliver, in the syntax of docs/protocol.md.
            min_interval_s: Minimum time between two values of one topic, 0.01 to 3600 s. The newest value always arrives.
            changes_only: Do not deliver a value with the body that the topic's last delivered value had.
            json: The bodies are JSON, converted by the schema that judged the value: see "Values as JSON" in docs/protocol.md.
            fields: With `json`: paths of the fields to deliver, such as `faults.code`. None: all of them.

        Raises:
            ClientError: `min_interval_s` is out of range, or there is `values` with `durable`, or `fields` without `json`.
        """
        name = self._link.new_id().decode() if id is None else id
        marked = markers or since is not None or values is not None
        check_values(values is not None, durable)
        options = read_options(marked, metadata, selector, min_interval_s, changes_only, json, fields)
        progress = Progress(since, values, False) if marked else None
        return self.subscribe_as(glob, name, ack, automatic, eager, durable, options, progress)

    def subscribe_as(
        self,
        glob: str,
        name: str,
        ack: AckMode,
        automatic: bool,
        eager: bool,
        durable: bool,
        options: SubscribeOptions | None,
        progress: Progress | None,
    ) -> Subscription:
        """Return a subscription that continues from `progress`, which it has exactly if the options have markers."""
        return Subscription(self._link, glob, name, ack, automatic and ack != "auto", eager, durable, options, progress)

    def _is_connected(self) -> bool:
        return self._link.failure is None

    def _follow(self, glob: str, **options: Any) -> Followed:  # noqa: ANN401 - those of `subscribe`
        return self.subscribe(glob, **options)

    async def disconnect(self) -> None:
        """Leave gracefully, so that everything sent before takes effect. Await the RECEIPT for at most 5 s. Raise nothing.

        Subscriptions end. A request without a RECEIPT raises OutcomeUnknownError if the gateway does not answer it.
        """
        link = self._link
        if link.leaving or link.failure is not None:
            return
        receipt_id = link.new_id()
        with anyio.move_on_after(DISCONNECT_TIMEOUT_S), suppress(ClientError):
            posted = await link.post(encoder.disconnect(link.version, receipt_id), receipt_id)
            link.leaving = True
            link.resume_reading()  # frames before the RECEIPT are read and dropped
            # Spec: MaXaM "The client MUST handle the case where the broker closes [...] before the client can receive"
            await posted.receipt()
        link.fail(ConnectionLostError("this client has disconnected"))

    async def replaced(self, search: Callable[[], Awaitable[str]]) -> None:
        """End the connection when a heart-beat is late and `search` finds another address that takes connections."""
        while True:
            await self._link.late()
            found = await search()
            if found:
                self._link.fail(
                    ConnectionLostError(f"a heart-beat of the gateway is late, and {found} takes connections")
                )
                return
            await anyio.sleep(SEARCH_PAUSE_S)

    @property
    def failure(self) -> ClientError | None:
        """The reason why the connection has ended, or None."""
        return self._link.failure

    async def ended(self) -> ClientError:
        """Wait until the connection is over, and return the reason."""
        await self._link.ended.wait()
        return self._link.reason()


@asynccontextmanager
async def converse(
    stream: Stream,
    *,
    client_id: str | None = None,
    host: str = "MAXVAPI",
    window: int | None = None,
    version: Literal["1.1", "1.2"] | None = None,
    heart_beat_ms: tuple[int, int] = HEART_BEAT_MS,
    timeout_s: float = 10.0,
    will: LastWill | None = None,
    credentials: Credentials | None = None,
) -> AsyncIterator[Client]:
    """Speak STOMP over `stream`, which stays the caller's to close; the arguments are those of `connect`."""
    offered = VERSIONS[version]
    try:
        request = encoder.connect(
            host,
            offered,
            heart_beat_ms,
            client_id,
            window,
            incarnation=True,
            will=None if will is None else will.sent(),
            credentials=None if credentials is None else await credentials.headers(),
        )
    except ValueError as error:
        raise ClientError(str(error)) from error
    decoder = Decoder(_LIMITS, SERVER_COMMANDS)
    connected: Connected | None = None
    with anyio.move_on_after(timeout_s):
        connected = await _shake_hands(stream, decoder, request, {encoder.VERSION_TEXTS[each] for each in offered})
    if connected is None:
        raise UnreachableError(f"TLS was set up, but CONNECT has no answer within {timeout_s:g} s")
    if connected.version not in offered:
        raise VersionError("no common version", f"we asked for {version}, the gateway chose another")
    decoder.expect(SERVER_COMMANDS, connected.version)
    link = Link(stream, decoder, connected, heart_beat_ms)
    client = Client(link, connected)
    async with background() as nursery:
        nursery.start_soon(link.run)
        try:
            yield client
            await client.disconnect()
        finally:
            link.fail(ConnectionLostError("this client was closed"))


async def _shake_hands(stream: Stream, decoder: Decoder, request: bytes, offered: set[bytes]) -> Connected:
    try:
        await stream.send_all(request)
        while (frame := decoder.next_frame()) is None:
            data = bytes(await stream.receive_some(RECEIVE_BYTES_MAX))
            if not data:
                raise ConnectionLostError(
                    "the gateway closed the connection instead of answering CONNECT; it may not accept our certificate"
                )
            decoder.receive_data(data)
        answer = read_answer(frame)
    except anyio.BrokenResourceError as error:
        raise loss(error) from error
    except ProtocolError as error:
        raise ConnectionLostError(f"the answer to CONNECT cannot be used; is that a STOMP broker? {error}") from error
    match answer:
        case Connected():
            return answer
        case Refusal():
            # Spec: STOMP 1.2 "If the client and server do not share any common protocol versions, then the server MUST
            # respond with an ERROR frame"; some brokers list theirs in other ERRORs too
            if answer.versions and not offered & set(answer.versions.encode().split(b",")):
                raise VersionError(answer.message, answer.detail)
            raise refusal_error(answer)
        case _:
            raise ConnectionLostError("the answer to CONNECT is neither CONNECTED nor ERROR; is that a STOMP broker?")

"""One STOMP connection: requests that await their RECEIPT, and subscriptions that are iterated.

Theory of operation: two background tasks per connection. The reader decodes and hands out: a RECEIPT to the task that awaits
it by id, a MESSAGE to the buffer of its subscription. The writer alone writes, everything that has gathered at once, or a
heart-beat. A request puts a whole frame where the writer finds it, so that cancelling a request never cuts a frame.
When the connection ends, every task that waits on it is told why, and the body of `converse` learns it at its next call.

Bounds: unwritten frames (requests wait for room), and unread messages. What a subscription with ack `client` holds is
bounded by the gateway's delivery window. One with `auto` has no window: at its limit the whole connection is read
no further until it is taken from, and the gateway conflates meanwhile.
"""
# ruff: noqa: SLF001 - client, subscription and message are three faces of one thing

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from types import TracebackType
from typing import Final, Literal, Self, final

import trio

from maxam.client.errors import (
    ConnectionLostError,
    GatewayError,
    OutcomeUnknownError,
    UnreachableError,
    VersionError,
)
from maxam.client.transport import loss
from maxam.config import Limits
from maxam.errors import ClientError, ProtocolError
from maxam.stomp import encoder
from maxam.stomp.answers import Answer, Connected, Delivery, Receipt, Refusal, read_answer
from maxam.stomp.events import VERSION_1_1, VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder
from maxam.stomp.protocol import HeartBeat

AckMode = Literal["client", "auto"]
Headers = Mapping[str, str]
Source = tuple[str, int]  # name and number

HEART_BEAT_MS: Final = (10_000, 10_000)  # Spec: MaXaM "set to 10000 (ms) or less"
VERSIONS: Final = {"1.1": (VERSION_1_1,), "1.2": (VERSION_1_2,), None: (VERSION_1_1, VERSION_1_2)}

RECEIVE_BYTES_MAX: Final = 65_536  # at a time
UNWRITTEN_BYTES_MAX: Final = 262_144  # frames that wait for the writer; then requests wait for room
UNREAD_MESSAGES_MAX: Final = 100  # of a subscription with ack auto: what waits here is not the newest any more
UNREAD_BYTES_MAX: Final = 1_048_576  # likewise, in bytes of bodies
DISCONNECT_TIMEOUT_S: Final = 5.0  # for the RECEIPT of DISCONNECT
# An iteration goes through what has arrived without letting other tasks run, up to this time, so that the ACKs of a quick
# consumer leave in one write. A slow one yields between any two messages, and each of its ACKs leaves at once.
YIELD_S: Final = 0.001
ERROR_TIMEOUT_S: Final = 1.0  # for an ERROR to arrive when writing has failed already

# Twice and more what a gateway takes by default: MESSAGE has headers of its own beside the sender's.
_LIMITS: Final = Limits(
    frame_headers_max=250,
    frame_header_line_bytes_max=65_536,
    frame_headers_bytes_max=262_144,
    frame_body_bytes_max=67_108_864,
)


@final
class Message:
    """The value of a topic as it was when the gateway wrote it; an empty `body` says that the topic was deleted."""

    __slots__ = ("_client", "_delivery", "_settled")

    def __init__(self, client: "Client", delivery: Delivery, settled: bool) -> None:
        self._client: Final = client
        self._delivery: Final = delivery
        self._settled = settled  # acknowledged, or of a subscription that needs no ACK

    @property
    def destination(self) -> str:
        """The topic."""
        return self._delivery.destination.decode()

    @property
    def body(self) -> bytes:
        """The body as it was sent."""
        return self._delivery.body

    @property
    def deleted(self) -> bool:
        """Whether the topic has no value any more."""
        return not self._delivery.body

    @property
    def message_id(self) -> str:
        """The `message-id`; of a maxam gateway the revision in decimal."""
        return self._delivery.message_id.decode()

    @property
    def headers(self) -> dict[str, str]:
        """All headers of the MESSAGE, the sender's among them."""
        return {name.decode(): value.decode() for name, value in self._delivery.headers.items()}

    async def ack(self, *, receipt: bool = False) -> None:
        """Acknowledge this message and every earlier one of its subscription; again, or in mode auto, do nothing.

        Without `receipt` it is put on its way only, and when the connection is gone it does nothing: whether
        an ACK was heard is not known then in any case, and a durable subscription gets the newest value again. With `receipt`
        it returns when the gateway has recorded it. Cancelled, it may have been sent.

        Raises:
            ClientError: With `receipt`: the connection went before the RECEIPT came.

        Spec: MaXaM "STOMP ACK"
        """
        if self._settled:
            return
        await trio.lowlevel.checkpoint_if_cancelled()  # without yielding: see YIELD_S
        await self._client._acknowledge(self._delivery, receipt)
        self._settled = True


@final
class Subscription:
    """A glob that we listen to: `async with` subscribes and unsubscribes, `async for` gives its messages.

    With ack `client` and `automatic`, asking for the next message acknowledges the one before, so that a message is
    acknowledged when the loop's body has dealt with it, and not if it raised. A `break` leaves the last one un-acked.
    The iteration ends after our own `disconnect`, and raises when the connection is lost, both after what had arrived.

    Attributes:
        id: Its name within the session.
        glob: What it listens to.
        result: Once entered: what the RECEIPT says, of durable ones `created`, `resumed` or `replaced`.
        filtered: Once entered: no right of ours can match any topic of the glob.
    """

    def __init__(
        self,
        client: "Client",
        glob: str,
        id: str,  # noqa: A002 - STOMP's name
        ack: AckMode,
        automatic: bool,
        eager: bool,
        durable: bool,
    ) -> None:
        self._client: Final = client
        self.id: Final = id
        self.glob: Final = glob
        self.result = ""
        self.filtered = False
        self._ack: Final[AckMode] = ack
        self._automatic: Final = automatic
        self._eager: Final = eager
        self._durable: Final = durable
        self._entered = False
        self._last: Message | None = None
        self._messages: Final[deque[Message]] = deque()
        self._messages_bytes = 0
        self._arrived = trio.Event()
        self._yielded_s = 0.0  # when the iteration last let other tasks run

    async def __aenter__(self) -> Self:
        """Subscribe and await the RECEIPT; messages may have arrived by then.

        Raises:
            GatewayError: The gateway refused it and ended the connection.
            ClientError: The connection is gone.
        """
        receipt = await self._client._subscribe(self, self._ack, self._durable, self._eager)
        self.result = receipt.result
        self.filtered = receipt.filtered
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Unsubscribe; a durable one goes on collecting and is resumed by subscribing with the same id again."""
        if error is None:
            await self._client._unsubscribe(self, False)
        else:
            self._client._abandon(self)

    async def remove(self) -> str:
        """End it now, a durable one for good; return the RECEIPT's result.

        Raises:
            ClientError: The connection is gone; a durable subscription is still there then.
        """
        receipt = await self._client._unsubscribe(self, self._durable)
        if receipt is None:
            raise ConnectionLostError(f"not known to be removed: {self._client._reason()}")
        return receipt.result

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message, after acknowledging the last one if that is automatic. Cancelled, none is lost.

        Raises:
            ClientError: Why the connection ended.
        """
        if self._automatic and self._last is not None:
            await self._last.ack()
        self._last = None
        if self._messages and trio.current_time() < self._yielded_s + YIELD_S:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
            self._yielded_s = trio.current_time()
        while not self._messages:
            if self._client._over(self):
                raise StopAsyncIteration
            self._arrived = trio.Event()
            await self._arrived.wait()
        self._last = message = self._messages.popleft()
        self._messages_bytes -= len(message.body)
        if self._ack == "auto":
            self._client._taken()
        return message

    @property
    def _crowded(self) -> bool:
        # Until it is entered nobody can take from it, and the RECEIPT that lets it be entered must be read.
        return (
            self._ack == "auto"
            and self._entered
            and (len(self._messages) >= UNREAD_MESSAGES_MAX or self._messages_bytes >= UNREAD_BYTES_MAX)
        )

    def _put(self, message: Message) -> None:
        self._messages.append(message)
        self._messages_bytes += len(message.body)
        self._arrived.set()

    def _wake(self) -> None:
        self._arrived.set()


@final
class _Answered:
    """A RECEIPT that a task waits for."""

    __slots__ = ("event", "receipt")

    def __init__(self) -> None:
        self.event: Final = trio.Event()
        self.receipt: Receipt | None = None


@final
class Posted:
    """A SEND that is on its way, see `Client.post`."""

    __slots__ = ("_answered", "_client", "_receipt_id")

    def __init__(self, client: "Client", receipt_id: bytes, answered: _Answered) -> None:
        self._client: Final = client
        self._receipt_id: Final = receipt_id
        self._answered: Final = answered

    @property
    def settled(self) -> bool:
        """Whether `receipt` has its answer, or its exception, without waiting."""
        return self._answered.event.is_set()

    async def receipt(self) -> Receipt:
        """Await what became of the SEND, without letting other tasks run if that is known; raises like `Client.send`."""
        if not self._answered.event.is_set():
            await self._answered.event.wait()
        if self._answered.receipt is None:
            raise self._client._unanswered(self._receipt_id, OutcomeUnknownError)
        return self._answered.receipt


@final
class Client:
    """A connection to a gateway. Its methods may be called from any number of tasks; requests do not wait for each other.

    Attributes:
        session: The client-id with which this session can be resumed.
        server: What the gateway calls itself.
        version: `1.1` or `1.2`.
    """

    def __init__(
        self, stream: trio.abc.Stream, decoder: Decoder, connected: Connected, heart_beat_ms: tuple[int, int]
    ) -> None:
        self.session: Final = connected.session
        self.server: Final = connected.server
        self.version: Final = encoder.VERSION_TEXTS[connected.version].decode()
        self._version: Final = connected.version
        self._stream: Final = stream
        self._decoder: Final = decoder
        self._heart_beat: Final = HeartBeat(heart_beat_ms, connected.heart_beat_ms, trio.current_time())
        self._ids: Final = count(1)
        self._receipts: Final[dict[bytes, _Answered]] = {}
        self._subscriptions: Final[dict[bytes, Subscription]] = {}
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._unwritten_some = trio.Event()
        self._room = trio.Event()  # for requests
        self._uncrowded = trio.Event()  # for the reader
        self._leaving = False  # DISCONNECT is on its way
        self._failure: ClientError | None = None
        self._ended: Final = trio.Event()
        self._scope: Final = trio.CancelScope()  # of the two background tasks

    async def send(
        self,
        destination: str,
        body: bytes,
        headers: Headers | None = None,
        *,
        source: Source | None = None,
        if_revision: int | None = None,
    ) -> Receipt:
        """Send `body` as the new value of a topic (an empty one deletes it) and await what became of it.

        A rejection is no exception: look at `accepted`, `result` and `reason` of the Receipt. Many tasks may send at once;
        SENDs of one task keep their order. Cancelled, the SEND may have been written, whole, and then takes effect.

        Args:
            destination: The topic.
            body: As the destination's rule wants it.
            headers: User headers, passed on to subscribers.
            source: Name and number, which must grow from value to value: a number that the topic has had from this source, or a
                lower one, is answered `superseded` and changes nothing, so a SEND of unknown outcome may be sent again.
            if_revision: Take effect only if the topic's value has this revision, 0: only if it has none; else the result is
                `conflict`. The Receipt has the new revision.

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
        """Send like `send`, but return as soon as there is room, with what the RECEIPT is awaited by.

        So one task keeps many SENDs under way, written and answered in the order of its calls. How many is its own affair.

        Raises:
            ClientError: The connection is gone, and nothing was written.
        """
        receipt_id = self._new_id()
        pairs = () if not headers else tuple([(name.encode(), value.encode()) for name, value in headers.items()])
        if source is not None:
            pairs = (*pairs, (b"source", source[0].encode()), (b"source-revision", b"%d" % source[1]))
        if if_revision is not None:
            pairs = (*pairs, (b"if-revision", b"%d" % if_revision))
        await self._put(encoder.send(self._version, destination.encode(), body, pairs, receipt_id))
        self._receipts[receipt_id] = answered = _Answered()
        return Posted(self, receipt_id, answered)

    def subscribe(
        self,
        glob: str,
        *,
        id: str | None = None,  # noqa: A002 - STOMP's name
        ack: AckMode = "client",
        automatic: bool = True,
        eager: bool = False,
        durable: bool = False,
    ) -> Subscription:
        """Return a subscription to enter with `async with`.

        With ack `auto` read it all the time, in a task that awaits nothing else of this client: while it is full the
        connection is not read, and no RECEIPT arrives.

        Args:
            glob: Which topics, such as `X/EGM.*`.
            id: Its name; durable subscriptions are resumed by it. None: a new one.
            ack: `client` keeps what is delivered fresh; `auto` needs no ACK.
            automatic: Acknowledge each message when the next is asked for; else call `Message.ack`.
            eager: Deliver the current value of each matching topic first.
            durable: Let it outlive this connection; the next one must connect with the same client-id.
        """
        name = self._new_id().decode() if id is None else id
        return Subscription(self, glob, name, ack, automatic and ack == "client", eager, durable)

    async def disconnect(self) -> None:
        """Leave gracefully: everything sent before takes effect; awaits the RECEIPT at most 5 s. Raises nothing.

        Subscriptions end; whatever still waits for a RECEIPT raises OutcomeUnknownError if the gateway does not answer it.
        """
        if self._leaving or self._failure is not None:
            return
        receipt_id = self._new_id()
        with trio.move_on_after(DISCONNECT_TIMEOUT_S):
            try:
                await self._put(encoder.disconnect(self._version, receipt_id))
            except ClientError:
                return
            self._leaving = True
            self._uncrowded.set()  # what comes before the RECEIPT is read and dropped
            # Spec: MaXaM "The client MUST handle the case where the broker closes [...] before the client can receive"
            await self._receipt(receipt_id)
        self._fail(ConnectionLostError("this client has disconnected"))

    async def ended(self) -> ClientError:
        """Wait until the connection is over, and return why."""
        await self._ended.wait()
        return self._reason()

    # What subscriptions and messages ask for

    async def _subscribe(self, subscription: Subscription, ack: AckMode, durable: bool, eager: bool) -> Receipt:
        receipt_id = self._new_id()
        name = subscription.id.encode()
        if name in self._subscriptions:
            raise ClientError(f"the subscription id {subscription.id} is in use on this connection; choose another")
        await self._put(
            encoder.subscribe(self._version, name, subscription.glob.encode(), ack.encode(), durable, eager, receipt_id)
        )
        self._subscriptions[name] = subscription
        try:
            receipt = await self._receipt(receipt_id)
        except trio.Cancelled:
            self._abandon(subscription)
            raise
        if receipt is None:
            raise self._unanswered(receipt_id, ConnectionLostError)
        return receipt

    async def _unsubscribe(self, subscription: Subscription, for_good: bool) -> Receipt | None:
        """End a subscription that has not ended yet and await the RECEIPT; None: the connection is gone."""
        if not self._forget(subscription) or self._failure is not None or self._leaving:
            return None
        receipt_id = self._new_id()
        try:
            await self._put(encoder.unsubscribe(self._version, subscription.id.encode(), for_good, receipt_id))
        except ClientError:
            return None
        return await self._receipt(receipt_id)

    def _abandon(self, subscription: Subscription) -> None:
        """End a subscription that has not ended yet, without waiting for anything."""
        if self._forget(subscription):
            self._put_now(encoder.unsubscribe(self._version, subscription.id.encode()))

    def _forget(self, subscription: Subscription) -> bool:
        """Drop what still comes for it; return whether it was there."""
        name = subscription.id.encode()
        if self._subscriptions.get(name) is not subscription:
            return False
        del self._subscriptions[name]
        subscription._wake()
        self._uncrowded.set()
        return True

    async def _acknowledge(self, delivery: Delivery, awaited: bool) -> None:
        receipt_id = self._new_id() if awaited else None
        frame = encoder.ack(self._version, delivery.subscription, delivery.message_id, receipt_id)
        try:
            await self._put(frame)
        except ClientError:
            if awaited:
                raise
            return
        if receipt_id is not None and await self._receipt(receipt_id) is None:
            raise self._unanswered(receipt_id, ConnectionLostError)

    def _over(self, subscription: Subscription) -> bool:
        """Whether nothing more can come, by our own wish; raise why if it was not."""
        if self._leaving or self._subscriptions.get(subscription.id.encode()) is not subscription:
            return True
        if self._failure is not None:
            raise self._failure
        return False

    def _taken(self) -> None:
        self._uncrowded.set()

    # Requests

    def _new_id(self) -> bytes:
        return b"%d" % next(self._ids)

    async def _put(self, frame: bytes) -> None:
        """Give a frame to the writer, waiting for room; cancelled or raising, nothing of it is written."""
        while self._unwritten_bytes >= UNWRITTEN_BYTES_MAX and self._failure is None:
            await self._room.wait()
        if self._failure is not None or self._leaving:
            raise ConnectionLostError(f"nothing was sent: {self._reason()}") from self._failure
        self._put_now(frame)

    def _put_now(self, frame: bytes) -> None:
        self._unwritten.append(frame)
        self._unwritten_bytes += len(frame)
        self._unwritten_some.set()

    async def _receipt(self, receipt_id: bytes) -> Receipt | None:
        """Wait for the RECEIPT of a frame just given to the writer; None: it will not come."""
        if self._failure is not None:
            return None
        self._receipts[receipt_id] = answered = _Answered()
        try:
            await answered.event.wait()
        finally:
            self._receipts.pop(receipt_id, None)
        return answered.receipt

    def _reason(self) -> ClientError:
        return self._failure or ConnectionLostError("this client is disconnecting")

    def _unanswered(self, receipt_id: bytes, kind: type[ClientError]) -> ClientError:
        """Return what to raise for a frame that was written and has no RECEIPT: the ERROR if it names that frame."""
        failure = self._reason()
        if isinstance(failure, GatewayError) and failure.receipt_id == receipt_id:
            return failure
        error = kind(f"written, but no RECEIPT came: {failure}")
        error.__cause__ = failure
        return error

    # The background

    async def _serve(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, self._read)
                nursery.start_soon(self._watch, self._write)

    async def _watch(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except ClientError as error:
            self._fail(error)
        except ProtocolError as error:
            self._fail(ConnectionLostError(f"what the gateway sent is no STOMP: {error}"))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._fail(loss(error))

    def _fail(self, failure: ClientError) -> None:
        if self._failure is None:
            self._failure = failure
        self._ended.set()
        self._room.set()
        for answered in self._receipts.values():
            answered.event.set()
        for subscription in self._subscriptions.values():
            subscription._wake()
        self._scope.cancel()

    async def _write(self) -> None:
        while True:
            if not self._unwritten:
                self._unwritten_some = trio.Event()
                with trio.move_on_at(self._heart_beat.send_due_s):
                    await self._unwritten_some.wait()
            data = b"".join(self._unwritten) or encoder.HEART_BEAT
            self._unwritten.clear()
            self._unwritten_bytes = 0
            self._room.set()
            self._room = trio.Event()
            try:
                await self._stream.send_all(data)
            except trio.BrokenResourceError:
                await trio.sleep(ERROR_TIMEOUT_S)  # the reader may yet find the ERROR that says why
                raise
            self._heart_beat.sent(trio.current_time())

    async def _read(self) -> None:
        while True:
            while (frame := self._decoder.next_frame()) is not None:
                self._take(read_answer(frame))
            await self._wait_until_uncrowded()
            with trio.move_on_at(self._heart_beat.dead_due_s) as patience:
                data = bytes(await self._stream.receive_some(RECEIVE_BYTES_MAX))
            if patience.cancelled_caught:
                raise ConnectionLostError(
                    f"nothing from the gateway for {2 * self._heart_beat.receive_interval_s:g} s, twice the heart-beat agreed"
                )
            if not data:
                raise ConnectionLostError("the gateway closed the connection")
            self._heart_beat.received(trio.current_time())
            self._decoder.receive_data(data)

    async def _wait_until_uncrowded(self) -> None:
        while not self._leaving and any(each._crowded for each in self._subscriptions.values()):
            self._heart_beat.pause(trio.current_time())
            self._uncrowded = trio.Event()
            await self._uncrowded.wait()
            self._heart_beat.resume(trio.current_time())

    def _take(self, answer: Answer) -> None:
        match answer:
            case Delivery():
                subscription = self._subscriptions.get(answer.subscription)
                if subscription is not None and not self._leaving:  # else it came while we unsubscribed
                    settled = subscription._ack == "auto"
                    subscription._put(Message(self, answer, settled))
            case Receipt():
                answered = self._receipts.pop(answer.receipt_id, None)
                if answered is not None:  # else its request was cancelled
                    answered.receipt = answer
                    answered.event.set()
            case Refusal():
                raise _refused(answer)
            case Connected():
                raise ProtocolError("unexpected frame", "CONNECTED came twice.")


@asynccontextmanager
async def converse(
    stream: trio.abc.Stream,
    *,
    client_id: str | None = None,
    host: str = "MAXVAPI",
    window: int | None = None,
    version: Literal["1.1", "1.2"] | None = None,
    heart_beat_ms: tuple[int, int] = HEART_BEAT_MS,
    timeout_s: float = 10.0,
) -> AsyncIterator[Client]:
    """Speak STOMP over `stream`, which stays the caller's to close; the arguments are those of `connect`."""
    offered = VERSIONS[version]
    try:
        request = encoder.connect(host, offered, heart_beat_ms, client_id, window)
    except ValueError as error:
        raise ClientError(str(error)) from error
    decoder = Decoder(_LIMITS, SERVER_COMMANDS)
    connected: Connected | None = None
    with trio.move_on_after(timeout_s):
        connected = await _shake_hands(stream, decoder, request)
    if connected is None:
        raise UnreachableError(f"TLS was set up, but CONNECT has no answer within {timeout_s:g} s")
    if connected.version not in offered:
        raise VersionError("no common version", f"we asked for {version}, the gateway chose another")
    decoder.expect(SERVER_COMMANDS, connected.version)
    client = Client(stream, decoder, connected, heart_beat_ms)
    problem: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client._serve)
        try:
            yield client
            await client.disconnect()
        except BaseException as error:  # noqa: BLE001 - raised again below, outside, so that no ExceptionGroup wraps it
            problem = error
        client._fail(ConnectionLostError("this client was closed"))
        nursery.cancel_scope.shield = (
            True  # the background ends at once, and an outer cancellation is `problem` already
        )
        nursery.cancel_scope.cancel()
    if problem is not None:
        raise problem


async def _shake_hands(stream: trio.abc.Stream, decoder: Decoder, request: bytes) -> Connected:
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
    except trio.BrokenResourceError as error:
        raise loss(error) from error
    except ProtocolError as error:
        raise ConnectionLostError(f"the answer to CONNECT cannot be used; is that a STOMP broker? {error}") from error
    match answer:
        case Connected():
            return answer
        case Refusal():
            raise _refused(answer)
        case _:
            raise ConnectionLostError("the answer to CONNECT is neither CONNECTED nor ERROR; is that a STOMP broker?")


def _refused(refusal: Refusal) -> GatewayError:
    kind = VersionError if refusal.versions else GatewayError
    return kind(refusal.message, refusal.detail, refusal.receipt_id)

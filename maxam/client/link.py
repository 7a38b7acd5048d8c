"""Frames over one stream: the background tasks of a connection, its RECEIPTs and its heart-beats.

Theory of operation: the reader decodes frames and hands them out. A RECEIPT goes to the task that awaits it by id, a MESSAGE
to the inbox of its subscription. The writer alone writes: everything that has gathered at once. A request puts a whole frame
into the writer's queue, so that cancelling a request never cuts a frame. The timer puts heart-beats there, and ends a connection
that is silent for too long. So neither reading nor writing needs a deadline of its own. When the connection ends, each waiting
task gets the reason as an exception.

Bounds: frames that are not written yet (requests wait for room), and unread messages. While an inbox is full, the whole
connection is not read.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Final, final

import anyio
import anyio.abc
import anyio.lowlevel

from maxam.client.errors import ConnectionLostError, GatewayError, OutcomeUnknownError
from maxam.client.progress import Progress, is_position, position_marker
from maxam.client.transport import Stream, clock, loss
from maxam.errors import ClientError, ProtocolError
from maxam.stomp import encoder
from maxam.stomp.answers import Answer, Connected, Delivery, Receipt, Refusal, read_answer
from maxam.stomp.frames import Decoder
from maxam.stomp.heart_beat import HeartBeat

RECEIVE_BYTES_MAX: Final = 65_536  # at a time
UNWRITTEN_BYTES_MAX: Final = 262_144  # frames in the writer's queue; when they are more, requests wait for room
UNREAD_MESSAGES_MAX: Final = 100  # of a subscription with ack auto: a value that waits here is no longer the newest
UNREAD_BYTES_MAX: Final = 1_048_576  # likewise, in bytes of bodies
LATE_CHECK_S: Final = 1.0  # between two checks whether a heart-beat is late
ERROR_TIMEOUT_S: Final = 1.0  # for an ERROR to arrive when writing has failed already
_LAST_CHANCE_PASSES: Final = 5  # of the event loop, for bytes that came while the program kept it busy


@final
class Inbox:
    """The messages of one subscription that its task has not taken yet.

    Attributes:
        deliveries: The messages, oldest first.
        limited: True if the connection is not read while this is full.
        arrived: Set when there is a message, or when subscription or connection may have ended.
        progress: Of a subscription with markers; None for any other.
    """

    __slots__ = ("_bytes", "arrived", "deliveries", "limited", "progress")

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress: Final = progress
        self.deliveries: Final[deque[Delivery]] = deque()
        self.limited = False
        self.arrived = anyio.Event()
        self._bytes = 0

    @property
    def full(self) -> bool:
        """True if it is limited and holds as many messages as it may."""
        return self.limited and (len(self.deliveries) >= UNREAD_MESSAGES_MAX or self._bytes >= UNREAD_BYTES_MAX)

    def put(self, delivery: Delivery) -> None:
        """Add a message or marker. A position replaces the position just before it."""
        if self.progress is not None and is_position(delivery) and self.deliveries and is_position(self.deliveries[-1]):
            self.deliveries.pop()
        self.deliveries.append(delivery)
        self._bytes += len(delivery.body)
        self.arrived.set()

    def pop(self) -> Delivery:
        """Remove and return the oldest message."""
        delivery = self.deliveries.popleft()
        self._bytes -= len(delivery.body)
        return delivery

    def clear(self) -> None:
        """Drop all messages."""
        self.deliveries.clear()
        self._bytes = 0

    def wake(self) -> None:
        """Let all tasks that wait check whether subscription or connection has ended."""
        self.arrived.set()
        if self.progress is not None:
            self.progress.notify()


@final
class Link:
    """Writes and reads the frames of one connection.

    Attributes:
        version: VERSION_1_1 or VERSION_1_2.
        incarnation: Of the server's journal. Empty if the server does not know the options of SUBSCRIBE that we ask for.
        inboxes: Those of all subscriptions, by id. A MESSAGE of an unknown subscription is dropped.
        leaving: True once DISCONNECT was put into the queue: nothing may follow it.
        failure: The reason why the connection ended, or None.
        ended: Set when the connection has ended.
        now_s: Returns the time of the event loop.
        take: Handles frames before all others, if there is one: see `Client.serve_frames`.
        after_read: Called when all frames that came together have been handled.
    """

    def __init__(self, stream: Stream, decoder: Decoder, connected: Connected, heart_beat_ms: tuple[int, int]) -> None:
        self.version: Final = connected.version
        self.incarnation: Final = connected.incarnation
        self.inboxes: Final[dict[bytes, Inbox]] = {}
        self.leaving = False
        self.failure: ClientError | None = None
        self.ended: Final = anyio.Event()
        self.now_s: Final = clock()
        self.take: Callable[[Answer], bool] | None = None
        self.after_read: Callable[[], None] | None = None
        self._stream: Final = stream
        self._decoder: Final = decoder
        self._heart_beat: Final = HeartBeat(heart_beat_ms, connected.heart_beat_ms, self.now_s())
        self._ids: Final = count(1)
        self._posted: Final[dict[bytes, Posted]] = {}
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._unwritten_some = anyio.Event()
        self._room: anyio.Event | None = None  # that requests wait for
        self._drained = anyio.Event()  # for the reader
        self._scope: Final = anyio.CancelScope()  # of the background tasks

    def new_id(self) -> bytes:
        """Return a receipt id that this connection has not used."""
        return b"%d" % next(self._ids)

    async def put(self, frame: bytes) -> None:
        """Give a frame to the writer, and wait for room before. Cancelled or raising, nothing of it is written.

        Raises:
            ConnectionLostError: The connection has ended or is ending.
        """
        while self._unwritten_bytes >= UNWRITTEN_BYTES_MAX and self.failure is None:
            if self._room is None:
                self._room = anyio.Event()
            await self._room.wait()
        if self.failure is not None or self.leaving:
            raise ConnectionLostError(f"nothing was sent: {self.reason()}") from self.failure
        self.put_now(frame)

    def put_now(self, frame: bytes) -> None:
        """Give a frame to the writer without waiting."""
        self._unwritten.append(frame)
        self._unwritten_bytes += len(frame)
        self._unwritten_some.set()

    async def post(self, frame: bytes, receipt_id: bytes, lost: type[ClientError] = ConnectionLostError) -> "Posted":
        """Give a frame with a `receipt` header to the writer, as `put` does. `lost` is the error if no RECEIPT comes."""
        await self.put(frame)
        self._posted[receipt_id] = posted = Posted(self, receipt_id, lost)
        return posted

    def reason(self) -> ClientError:
        """Return the reason why nothing more can be sent."""
        return self.failure or ConnectionLostError("this client is disconnecting")

    def resume_reading(self) -> None:
        """Check again whether an inbox is full."""
        self._drained.set()

    def fail(self, failure: ClientError) -> None:
        """End the connection, and wake all tasks that wait for it. Only the first reason counts."""
        if self.failure is None:
            self.failure = failure
        self.ended.set()
        self._make_room()
        for posted in self._posted.values():
            posted.resolve()
        for inbox in self.inboxes.values():
            inbox.wake()
        self._scope.cancel()

    async def run(self) -> None:
        """Read and write until the connection ends."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, self._read)
                tasks.start_soon(self._watch, self._write)
                tasks.start_soon(self._watch, self._beat)

    async def _watch(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except ClientError as error:
            self.fail(error)
        except ProtocolError as error:
            self.fail(ConnectionLostError(f"what the gateway sent is no STOMP: {error}"))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            self.fail(loss(error))

    async def _write(self) -> None:
        while True:
            if not self._unwritten:
                self._unwritten_some = anyio.Event()
                await self._unwritten_some.wait()
            data = b"".join(self._unwritten)
            self._unwritten.clear()
            self._unwritten_bytes = 0
            self._make_room()
            try:
                await self._stream.send_all(data)
            except anyio.BrokenResourceError:
                await anyio.sleep(ERROR_TIMEOUT_S)  # the reader may yet find the ERROR that has the reason
                raise
            self._heart_beat.sent(self.now_s())

    async def _read(self) -> None:
        while True:
            while (frame := self._decoder.next_frame()) is not None:
                self._take(read_answer(frame))
            if self.after_read is not None:
                self.after_read()
            await self._wait_for_inboxes()
            data = await self._stream.receive_some(RECEIVE_BYTES_MAX)
            if not data:
                raise ConnectionLostError("the gateway closed the connection")
            self._heart_beat.received(self.now_s())
            self._decoder.receive_data(data)

    async def _beat(self) -> None:
        """Send heart-beats that are due, and end the connection when none of the gateway's have come."""
        beat = self._heart_beat
        longest_s = max(beat.send_interval_s, 2 * beat.receive_interval_s)  # without reading, no silence is due
        while longest_s:
            due_s = min(beat.send_due_s, beat.dead_due_s, self.now_s() + longest_s)
            await anyio.sleep(due_s - self.now_s())
            if self.now_s() >= beat.send_due_s:
                if not self._unwritten:
                    self.put_now(encoder.HEART_BEAT)
                beat.sent(self.now_s())
            if self.now_s() >= beat.dead_due_s:
                for _ in range(_LAST_CHANCE_PASSES):
                    await anyio.lowlevel.checkpoint()
            if self.now_s() >= beat.dead_due_s:
                raise ConnectionLostError(
                    f"nothing from the gateway for {2 * beat.receive_interval_s:g} s, twice the heart-beat agreed"
                )

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    async def late(self) -> None:
        """Wait until a heart-beat of the gateway is late."""
        while (due_s := self._heart_beat.late_due_s) > (now_s := self.now_s()):  # noqa: ASYNC110  # it moves
            await anyio.sleep(min(due_s - now_s, LATE_CHECK_S))

    async def _wait_for_inboxes(self) -> None:
        while not self.leaving and any(inbox.full for inbox in self.inboxes.values()):
            self._heart_beat.pause(self.now_s())
            self._drained = anyio.Event()
            await self._drained.wait()
            self._heart_beat.resume(self.now_s())

    def _take(self, answer: Answer) -> None:
        if self.take is not None and self.take(answer):
            return
        match answer:
            case Delivery():
                inbox = self.inboxes.get(answer.subscription)
                if inbox is not None and not self.leaving:  # else it came while we unsubscribed
                    inbox.put(answer)
            case Receipt():
                posted = self._posted.pop(answer.receipt_id, None)
                if posted is not None:
                    if answer.position is not None and posted.inbox is not None:
                        posted.inbox.put(position_marker(b"", answer.position))
                    posted.answer = answer
                    posted.resolve()
            case Refusal():
                raise refusal_error(answer)
            case Connected():
                raise ProtocolError("unexpected frame", "CONNECTED came twice.")


@final
class Posted:
    """A frame that is on its way and asks for a RECEIPT, such as a SEND of `Client.post`.

    Attributes:
        answer: The RECEIPT, once it has come.
        inbox: Where a position of the RECEIPT goes, among the messages before and after it.
        resolved: True if `receipt` returns or raises without waiting: there is a RECEIPT, or the connection has ended.
    """

    __slots__ = ("_link", "_lost", "_receipt_id", "_waited", "answer", "inbox", "resolved")

    def __init__(self, link: Link, receipt_id: bytes, lost: type[ClientError] = OutcomeUnknownError) -> None:
        self._link: Final = link
        self._receipt_id: Final = receipt_id
        self._lost: Final = lost
        self._waited: anyio.Event | None = None
        self.answer: Receipt | None = None
        self.inbox: Inbox | None = None
        self.resolved = False

    def resolve(self) -> None:
        """Record that there is a RECEIPT, or that the connection has ended."""
        self.resolved = True
        if self._waited is not None:
            self._waited.set()

    async def receipt(self) -> Receipt:
        """Wait for the RECEIPT and return it. Other tasks do not run if it is there already.

        Raises:
            ClientError: The connection went before the RECEIPT came. For a SEND the errors are those of `Client.send`.
        """
        if not self.resolved:
            if self._waited is None:
                self._waited = anyio.Event()
            await self._waited.wait()
        if self.answer is not None:
            return self.answer
        failure = self._link.reason()
        if isinstance(failure, GatewayError) and failure.receipt_id == self._receipt_id:
            raise failure  # the ERROR refers to this very frame
        raise self._lost(f"written, but no RECEIPT came: {failure}") from failure


def refusal_error(refusal: Refusal) -> GatewayError:
    """Return the error for an ERROR frame."""
    return GatewayError(refusal.message, refusal.detail, refusal.receipt_id, refusal.code)


@asynccontextmanager
async def background() -> AsyncIterator[anyio.abc.TaskGroup]:
    """Open a task group whose tasks end with the block. Errors of the block come out as they are, in no ExceptionGroup."""
    problem: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except BaseException as error:  # noqa: BLE001 - raised again below, outside of the group
            problem = error
        tasks.cancel_scope.shield = True  # the tasks end at once, and an outer cancellation is `problem` already
        tasks.cancel_scope.cancel()
    if problem is not None:
        raise problem

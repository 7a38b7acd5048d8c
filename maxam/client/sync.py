"""The Python client without `async`, for scripts and notebooks: the names of `maxam.client`, and each call waits.

A thread of its own runs the event loop of each client. It sends heart-beats and ACKs and keeps live maps current, whatever the
program does meanwhile. Any thread of the program may use a client. A child process made by fork may not: there each call raises
ClientError, and the connection stays the parent's.
"""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar, final, overload

from maxam.client import connect as connect_async
from maxam.client import resuming as resuming_async
from maxam.client.connection import Client as AsyncClient
from maxam.client.connection import Headers, Source
from maxam.client.progress import Kind
from maxam.client.resume import ResumingClient, ResumingSubscription
from maxam.client.states import State
from maxam.client.subscription import AckMode
from maxam.client.subscription import Message as AsyncMessage
from maxam.client.subscription import Subscription as AsyncSubscription
from maxam.client.values import Change, MapOfValues
from maxam.client.values import LiveValues as AsyncLiveValues
from maxam.errors import ClientError
from maxam.stomp.answers import Receipt

__all__ = ["Client", "LiveValues", "Message", "Subscription", "connect", "resuming"]

T = TypeVar("T")
P = ParamSpec("P")

LEAVE_TIMEOUT_S: Final = 10.0  # at the end of the program, for a client that was not closed
_CLOSED: Final = "this client is closed; connect again"
_threads: Final["weakref.WeakSet[_LoopThread]"] = weakref.WeakSet()  # that run


@final
class _CutError(Exception):
    """The block of the program ended by an exception, so the block in the event loop ends by one."""


@final
class _Held(Generic[T]):
    """An async context manager that is entered and left in one task of the event loop, whichever threads ask for it."""

    def __init__(self, manager: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self.entered: Final[Future[T]] = Future()
        self._manager: Final = manager
        self._leave: Final = asyncio.Event()
        self._cut = False

    async def run(self) -> None:
        """Enter, wait for `leave`, and leave."""
        try:
            async with self._manager() as value:
                self.entered.set_result(value)
                await self._leave.wait()
                if self._cut:
                    raise _CutError  # noqa: TRY301 - for the manager
        except _CutError:
            pass
        except BaseException as error:
            if self.entered.done():
                raise
            self.entered.set_exception(ClientError(_CLOSED) if isinstance(error, asyncio.CancelledError) else error)
            if not isinstance(error, Exception):
                raise

    def leave(self, cut: bool) -> None:
        """Leave, by an exception if `cut`. To be called in the event loop."""
        self._cut = cut
        self._leave.set()


class _LoopThread:
    """A thread with an event loop, and the client that lives there."""

    def __init__(
        self,
        manager: Callable[[], AbstractAsyncContextManager[AsyncClient | ResumingClient]],
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
    ) -> None:
        self._process: Final = os.getpid()
        self._started: Final[Future[tuple[asyncio.AbstractEventLoop, _Held[Any]]]] = Future()
        self._manager: Final = manager
        self._loop_factory: Final = loop_factory
        self._tasks: Final[dict[_Held[Any], asyncio.Task[None]]] = {}  # those of `hold`
        self._task: asyncio.Task[None] | None = None  # the client's
        self._thread: Final = threading.Thread(target=self._run, name="maxam-client", daemon=True)
        self._thread.start()
        self._loop, self._held = self._started.result()
        try:
            self.client: Final[AsyncClient | ResumingClient] = self._held.entered.result()
        except BaseException:  # also Ctrl-C
            self._soon(self._cancel)
            raise
        _threads.add(self)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the event loop and return its result. Interrupted, as by Ctrl-C, it is cancelled.

        Raises:
            ClientError: The client is closed, or belongs to another process.
        """
        try:
            self.check()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException as error:
            work.close()
            if isinstance(error, RuntimeError):
                raise ClientError(_CLOSED) from None
            raise
        try:
            return future.result()
        except CancelledError:
            raise ClientError(_CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def hold(self, manager: Callable[[], AbstractAsyncContextManager[T]]) -> "tuple[T, _Held[T]]":
        """Enter an async context manager in a task of its own, which `release` ends."""

        async def enter() -> _Held[T]:
            held = _Held(manager)
            task = asyncio.get_running_loop().create_task(held.run())
            self._tasks[held] = task
            task.add_done_callback(lambda _: self._tasks.pop(held, None))
            entered = asyncio.wrap_future(held.entered)
            try:
                await asyncio.wait([entered])  # which does not cancel it
            except asyncio.CancelledError:
                entered.add_done_callback(asyncio.Future.exception)  # no one asks for it
                task.cancel()
                raise
            await entered
            return held

        held = self.call(enter())
        return held.entered.result(), held

    def release(self, held: _Held[Any], cut: bool) -> None:
        """Leave what `hold` has entered, and wait for that."""

        async def leave() -> None:
            task = self._tasks.get(held)
            held.leave(cut)
            if task is not None:
                await asyncio.wait([task])

        if self.running:
            self.call(leave())

    @property
    def running(self) -> bool:
        """True in the process that made it, until the client is closed."""
        return self._process == os.getpid() and self._thread.is_alive()

    def check(self) -> None:
        """Raise ClientError in another process than the one that connected, and in the thread of the event loop."""
        if self._process != os.getpid():
            raise ClientError(
                f"this client belongs to the process {self._process}, and a child made by fork cannot use it. "
                "Connect again in the child"
            )
        if threading.current_thread() is self._thread:
            raise ClientError("a callback of the client cannot wait for the client; do that in another thread")

    def end(self, cut: bool, timeout_s: float | None = None) -> None:
        """Leave gracefully, or cut the connection, and wait for that. Do nothing in another process."""
        if self._process != os.getpid():
            return
        self._soon(lambda: self._held.leave(cut))
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def abandon(self) -> None:
        """Leave gracefully, without waiting."""
        if self._process == os.getpid():
            self._soon(lambda: self._held.leave(False))

    def _soon(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(function)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        async def main() -> None:
            self._task = asyncio.current_task()
            held = _Held(self._manager)
            self._started.set_result((asyncio.get_running_loop(), held))
            await held.run()

        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=self._loop_factory) as runner:
            runner.run(main())


@atexit.register
def _leave_all() -> None:
    for thread in list(_threads):
        thread.end(False, LEAVE_TIMEOUT_S)


@final
class Message:
    """A message of a subscription: `maxam.client.Message`, whose `ack` waits."""

    __slots__ = ("_inner", "_thread")

    def __init__(self, thread: _LoopThread, inner: AsyncMessage) -> None:
        self._thread: Final = thread
        self._inner: Final = inner

    @property
    def destination(self) -> str:
        """The topic."""
        return self._inner.destination

    @property
    def body(self) -> bytes:
        """The body as it was sent, or JSON if the subscription asked for it."""
        return self._inner.body

    @property
    def deleted(self) -> bool:
        """True if the topic has no value for this subscription."""
        return self._inner.deleted

    @property
    def kind(self) -> Kind:
        """The meaning of this message: see `maxam.client.Message.kind`."""
        return self._inner.kind

    @property
    def reason(self) -> str:
        """The reason for the kind, or empty."""
        return self._inner.reason

    @property
    def accepted_at(self) -> datetime | None:
        """The time at which the gateway accepted the value, in UTC. Needs `metadata=True`."""
        return self._inner.accepted_at

    @property
    def publisher(self) -> str:
        """The principal that sent the value. Needs `metadata=True`."""
        return self._inner.publisher

    @property
    def schema(self) -> str:
        """Type and version that the body was checked against. Needs `metadata=True`."""
        return self._inner.schema

    @property
    def conflated(self) -> int:
        """Number of values of the topic that were skipped since the last one. Needs `metadata=True`."""
        return self._inner.conflated

    @property
    def message_id(self) -> str:
        """The `message-id`: the revision in decimal."""
        return self._inner.message_id

    @property
    def headers(self) -> dict[str, str]:
        """All headers of the MESSAGE, the sender's among them."""
        return self._inner.headers

    def ack(self, *, receipt: bool = False) -> None:
        """Acknowledge this message: see `maxam.client.Message.ack`."""
        self._thread.call(self._inner.ack(receipt=receipt))


class _Entered(Generic[T]):
    """A subscription or map of a client. It ends with `close`, with the `with` block, or with the client."""

    def __init__(self, thread: _LoopThread, manager: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._thread: Final = thread
        self._inner, self._held = thread.hold(manager)

    def close(self) -> None:
        """End it, and wait until the gateway knows."""
        self._thread.release(self._held, cut=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.release(self._held, error is not None)


@final
class Subscription(_Entered[AsyncSubscription | ResumingSubscription]):
    """A glob that we listen to. Iterating gives its messages, and acknowledges each when the next one is asked for.

    It ends with `close`, with the `with` block, or with the client.
    """

    @property
    def result(self) -> str:
        """`result` of the RECEIPT: for a durable one `created`, `resumed` or `replaced`."""
        return self._inner.result

    @property
    def filtered(self) -> bool:
        """True if no right of ours can match any topic of the glob."""
        return self._inner.filtered

    @property
    def position(self) -> str | None:
        """Position that covers all messages before the current one, for `since` of a later subscription."""
        return self._inner.position

    @property
    def caught_up(self) -> bool:
        """True if no snapshot or catch-up is under way. False without `markers`."""
        return self._inner.caught_up

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self._thread.call(self._next(None))
        if message is None:
            raise StopIteration
        return Message(self._thread, message)

    def next(self, timeout_s: float) -> Message | None:
        """Return the next message, or None if there is none within `timeout_s`, or no longer."""
        message = self._thread.call(self._next(timeout_s))
        return None if message is None else Message(self._thread, message)

    async def _next(self, timeout_s: float | None) -> AsyncMessage | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._inner.__anext__()
        except (StopAsyncIteration, TimeoutError):
            return None


@final
class LiveValues(MapOfValues[T], _Entered[AsyncLiveValues[T]]):
    """The values of all topics of a glob, kept equal to the gateway's by the thread of the client.

    A mapping of topics to values, which may change between two calls. Iterating it gives the topics, as for any mapping, and
    `changes` gives the changes. It ends with `close`, with the `with` block, or with the client.
    """

    def __init__(
        self, thread: _LoopThread, manager: Callable[[], AbstractAsyncContextManager[AsyncLiveValues[T]]]
    ) -> None:
        _Entered.__init__(self, thread, manager)
        MapOfValues.__init__(self, self._inner.board)
        self._condition: Final = threading.Condition(self._board.lock)
        self._inner.listen(self._condition.notify_all)

    @property
    def synced(self) -> bool:
        """True if the map has all that the gateway has reported. False while there is no connection."""
        return self._thread.running and self._inner.synced

    @property
    def position(self) -> str | None:
        """The position that the map has reached: see `maxam.client.Subscription.position`."""
        return self._inner.position

    def sync(self) -> None:
        """Wait until the map has all values of the gateway, or all changes since a connection was lost.

        Raises:
            ClientError: We will not connect again, or the gateway refuses the subscription.
        """
        self._thread.call(self._inner.sync())

    def changes(self) -> Iterator[Change[T]]:
        """Wait for changes and return them one by one: the newest state of each topic that changed.

        Raises:
            ClientError: We will not connect again, or the gateway refuses the subscription.
        """
        while (change := self.change()) is not None:
            yield change

    def change(self, timeout_s: float | None = None) -> Change[T] | None:
        """Return the next change, or None if there is none within `timeout_s`, or no longer."""
        self._thread.check()
        with self._condition:
            while (change := self._board.take()) is None:
                if self._inner.ended() or not self._condition.wait(timeout_s):
                    return None
            return change


@final
class Client:
    """A connection to a gateway, for any number of threads. `with` closes it at the end of the block, and so does `close`.

    `connect` and `resuming` make one.

    Args:
        manager: Makes the connection, in the thread of the client.
        loop_factory: Makes the event loop of that thread. None: that of asyncio.
    """

    def __init__(
        self,
        manager: Callable[[], AbstractAsyncContextManager[AsyncClient | ResumingClient]],
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self._thread: Final = _LoopThread(manager, loop_factory)
        self._inner: Final = self._thread.client
        weakref.finalize(self, self._thread.abandon).atexit = False

    @property
    def session(self) -> str | None:
        """The client-id with which this session can be resumed."""
        return self._inner.session

    @property
    def incarnation(self) -> str:
        """Identifies the journal of the gateway. Empty for other servers."""
        return self._inner.incarnation

    @property
    def state(self) -> State:
        """Connected, waiting for the next attempt, or closed, with the reason."""
        if not self._thread.running:
            return State("closed")
        if isinstance(self._inner, ResumingClient):
            return self._inner.state
        return State("closed", self._inner.failure) if self._inner.failure is not None else State("connected")

    def send(
        self,
        destination: str,
        body: bytes,
        headers: Headers | None = None,
        *,
        source: Source | None = None,
        if_revision: int | None = None,
        retry: bool = False,
    ) -> Receipt:
        """Send `body` as the new value of a topic, and wait for its RECEIPT. An empty body deletes the topic.

        A rejection is no exception: check `accepted`, `result` and `reason` of the Receipt. For the arguments and errors see
        `maxam.client.Client.send`, and for `retry` `maxam.client.ResumingClient.send`. Only a client of `resuming` has `retry`.
        """
        inner = self._inner
        if isinstance(inner, ResumingClient):
            sent = inner.send(destination, body, headers, source=source, if_revision=if_revision, retry=retry)
        elif retry:
            raise ClientError("`retry` needs a client that connects again: use `resuming` in place of `connect`")
        else:
            sent = inner.send(destination, body, headers, source=source, if_revision=if_revision)
        return self._thread.call(sent)

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
        selector: str | None = None,
        min_interval_s: float | None = None,
        changes_only: bool = False,
        json: bool = False,
        fields: Sequence[str] = (),
    ) -> Subscription:
        """Subscribe and wait for the RECEIPT. For the arguments and errors see `maxam.client.Client.subscribe`."""
        inner = self._inner

        def manager() -> AbstractAsyncContextManager[AsyncSubscription | ResumingSubscription]:
            return inner.subscribe(
                glob,
                id=id,
                ack=ack,
                automatic=automatic,
                eager=eager,
                durable=durable,
                metadata=metadata,
                markers=markers,
                since=since,
                selector=selector,
                min_interval_s=min_interval_s,
                changes_only=changes_only,
                json=json,
                fields=fields,
            )

        return Subscription(self._thread, manager)

    @overload
    def values(
        self,
        glob: str,
        *,
        fields: Sequence[str] = (),
        selector: str | None = None,
        min_interval_s: float | None = None,
        sync: bool = True,
    ) -> LiveValues[Any]: ...
    @overload
    def values(
        self,
        glob: str,
        *,
        type: type[T] | Callable[[Any], T],
        fields: Sequence[str] = (),
        selector: str | None = None,
        min_interval_s: float | None = None,
        sync: bool = True,
    ) -> LiveValues[T]: ...
    def values(
        self,
        glob: str,
        *,
        type: Any = object,  # noqa: A002 - it is the type
        fields: Sequence[str] = (),
        selector: str | None = None,
        min_interval_s: float | None = None,
        sync: bool = True,
    ) -> LiveValues[Any]:
        """Return a live map of the topics of a glob, once all values have arrived. See `maxam.client.Client.values`."""
        inner = self._inner

        def manager() -> AbstractAsyncContextManager[AsyncLiveValues[Any]]:
            return inner.values(
                glob, type=type, fields=fields, selector=selector, min_interval_s=min_interval_s, sync=sync
            )

        return LiveValues(self._thread, manager)

    def close(self) -> None:
        """Leave gracefully, so that everything sent before takes effect. Its subscriptions and maps end. Raise nothing."""
        self._thread.end(cut=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave gracefully, or cut the connection if the block ends with an exception."""
        self._thread.end(error is not None)


def _blocking(
    manager: Callable[P, AbstractAsyncContextManager[AsyncClient | ResumingClient]],
) -> Callable[P, Client]:
    def make(*arguments: P.args, **options: P.kwargs) -> Client:
        return Client(lambda: manager(*arguments, **options))

    return make


connect = _blocking(connect_async)
connect.__doc__ = """Connect to a gateway: the arguments and errors of `maxam.client.connect`."""
resuming = _blocking(resuming_async)
resuming.__doc__ = """Connect to a gateway, and again after each loss: the arguments and errors of `maxam.client.resuming`.

`on_loss` and `on_state` are called in the thread of the client. They must not wait for it."""

"""A client that survives its connections: it dials again, resumes its subscriptions, and never repeats a SEND unasked.

Each subscription is made again with the same id and options. A durable one continues with its owed topics. One with markers
continues from its position. If the gateway cannot do that, it gets all values again and drops the topics that are gone. An eager
one delivers all current values again. Any other misses the changes that came meanwhile.
"""
# ruff: noqa: SLF001 - client and subscription share their state

import random
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from types import TracebackType
from typing import Any, Final, Self, final

import anyio
import anyio.abc

from maxam.client.connection import Client, Headers, Source
from maxam.client.errors import ConnectionLostError, GatewayError, OutcomeUnknownError, PositionUnavailableError
from maxam.client.link import background
from maxam.client.progress import Progress
from maxam.client.states import PASSING, State, is_final
from maxam.client.subscription import AckMode, Message, Subscription, check_values, read_options
from maxam.client.values import Followed, KeepsValues
from maxam.errors import ClientError
from maxam.stomp.answers import Receipt

PAUSE_MIN_S: Final = 0.25  # at most, before the first attempt to dial again; doubles with each, up to the greatest
PAUSE_MAX_S: Final = 30.0  # by default: a herd of clients must not burden a gateway that starts
# The greatest pause with several addresses, at first: the next leader of a cluster serves within seconds. An attempt at a member that
# follows is a refused connection.
PAUSE_SEARCH_S: Final = 0.4
SEARCH_S: Final = 30.0  # after a loss, the time for which that holds
STABLE_AFTER_S: Final = 10.0  # after a connection that lived this long, the pauses start again with the shortest

Dial = Callable[[str | None], AbstractAsyncContextManager[Client]]  # argument: the client-id
OnLoss = Callable[[ClientError, float], None]
OnState = Callable[[State], None]


@asynccontextmanager
async def resume(
    dial: Dial,
    client_id: str | None = None,
    on_loss: OnLoss | None = None,
    search: Callable[[], Awaitable[str]] | None = None,
    on_state: OnState | None = None,
    final: Callable[[ClientError], bool] = is_final,
    pause_max_s: float = PAUSE_MAX_S,
) -> AsyncIterator["ResumingClient"]:
    """Keep a connection made by `dial` while the block runs; the first one is made before it begins.

    Args:
        dial: Makes one connection.
        client_id: Identifier of the session. None lets the gateway choose one at the first connection.
        on_loss: Called with the reason why a connection was lost or not made, and the seconds until the next attempt.
        search: Returns another address that takes connections; empty for none. It is asked while a heart-beat is late. With it
            the pauses stay short for a while after a loss, as another address may serve soon.
        on_state: Called with each new state.
        final: Returns True for a reason after which there is no further attempt.
        pause_max_s: Greatest pause before an attempt, 0.25 or more.

    Raises:
        ClientError: The first connection could not be made. Later ones are tried until the block ends. Or `pause_max_s` is too small.
    """
    if not pause_max_s >= PAUSE_MIN_S:  # NaN too
        raise ClientError(
            f"pause_max_s is {pause_max_s:g}; give {PAUSE_MIN_S:g} or more, to spare a gateway that starts"
        )
    client = ResumingClient(dial, client_id, on_loss, search, on_state, final, pause_max_s)
    async with background() as nursery:
        problem: ClientError | None = await nursery.start(client._serve)
        if problem is not None:
            raise problem
        try:
            yield client
            await client.disconnect()
        finally:
            client._fail(ConnectionLostError("this client was closed"))


@final
class ResumingClient(KeepsValues):
    """Like `Client`, but it connects again after a loss. While there is no connection, requests wait.

    Attributes:
        session: The client-id of the session, kept from connection to connection.
        connections: Number of connections so far.
        incarnation: Like `Client.incarnation`, of the newest connection.
        address: Like `Client.address`, of the newest connection.
        state: Connected, waiting for the next attempt, or closed, with the reason.
    """

    def __init__(
        self,
        dial: Dial,
        client_id: str | None,
        on_loss: OnLoss | None,
        search: Callable[[], Awaitable[str]] | None = None,
        on_state: OnState | None = None,
        final: Callable[[ClientError], bool] = is_final,
        pause_max_s: float = PAUSE_MAX_S,
    ) -> None:
        self.session = client_id
        self.connections = 0
        self.incarnation = ""
        self.address: tuple[str, int] | None = None
        self._dial: Final = dial
        self.state = State("connecting")
        self._on_loss: Final = on_loss
        self._search: Final = search
        self._on_state: Final = on_state
        self._final: Final = final
        self._pause_max_s: Final = pause_max_s
        self._ids: Final = count(1)
        self._subscriptions: Final[list[ResumingSubscription]] = []
        self._client: Client | None = None  # connected, and its subscriptions resumed
        self._changed = anyio.Event()
        self._failure: ClientError | None = None  # it will not dial again

    async def send(
        self,
        destination: str,
        body: bytes,
        headers: Headers | None = None,
        *,
        source: Source | None = None,
        if_revision: int | None = None,
        retry: bool = False,
    ) -> Receipt:
        """Send like `Client.send`. Without a connection, wait for one first.

        With `retry` a SEND of unknown outcome is sent again after the next connection, until it has a RECEIPT. That is right
        when it has a `source`, or when we are the only publisher of the topic and one task sends its values. In other cases an
        old value may follow a newer one. One with `if_revision` and no `source` may be in conflict with itself then.

        Raises:
            OutcomeUnknownError: Only without `retry`: the connection went between writing and RECEIPT.
            GatewayError: The gateway refused this very frame and ended the connection.
            ClientError: We will not connect again.
        """
        while True:
            client = await self._connected()
            try:
                return await client.send(destination, body, headers, source=source, if_revision=if_revision)
            except OutcomeUnknownError:
                if not retry:
                    raise
            except ConnectionLostError:
                pass  # nothing was written
            await self._gone(client)

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
    ) -> "ResumingSubscription":
        """Return a subscription like `Client.subscribe`, which continues after lost connections.

        With markers (`markers`, `since` or `values`) it continues from its position. If that is unavailable, it gets all values
        again. Messages of kind `left` follow for the topics that the application holds and the gateway no longer has.
        If it has `since` without `values`, or is durable, these topics are unknown. The next message then raises
        PositionUnavailableError.
        """
        name = f"resuming-{next(self._ids)}" if id is None else id
        marked = markers or since is not None or values is not None
        check_values(values is not None, durable)
        options = read_options(marked, metadata, selector, min_interval_s, changes_only, json, fields)
        progress = Progress(since, values, since is None and not durable) if marked else None

        def subscribe(client: Client) -> Subscription:
            return client.subscribe_as(glob, name, ack, automatic, eager, durable, options, progress)

        return ResumingSubscription(self, subscribe, progress, durable)

    def _is_connected(self) -> bool:
        return self._client is not None and self._client.failure is None

    def _follow(self, glob: str, **options: Any) -> Followed:  # noqa: ANN401 - those of `subscribe`
        return self.subscribe(glob, **options)

    async def disconnect(self) -> None:
        """Leave gracefully and do not connect again."""
        client = self._client
        self._fail(ConnectionLostError("this client has disconnected"))
        if client is not None:
            await client.disconnect()

    async def _connected(self) -> Client:
        while self._client is None:
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()
        return self._client

    async def _gone(self, client: Client) -> None:
        """Wait until `client`, which failed, is no longer the connection."""
        while self._client is client and self._failure is None:
            await self._changed.wait()

    def _set(self, client: Client | None) -> None:
        self._client = client
        if client is None:
            for subscription in self._subscriptions:
                subscription._interrupt()
        self._changed.set()
        self._changed = anyio.Event()

    def _fail(self, failure: ClientError, reason: ClientError | None = None) -> None:
        first = self._failure is None
        if first:
            self._failure = failure
        self._set(None)
        if first:
            self._show(State("closed", reason))

    def _show(self, state: State) -> None:
        self.state = state
        if self._on_state is not None:
            self._on_state(state)

    async def _ended(self, client: Client) -> ClientError:
        """Wait until a connection is over, and return the reason."""
        async with background() as tasks:
            if self._search is not None:
                tasks.start_soon(client.replaced, self._search)
            return await client.ended()

    async def _serve(self, task_status: anyio.abc.TaskStatus[ClientError | None]) -> None:
        pause_s = PAUSE_MIN_S
        lost_s = anyio.current_time()
        while True:
            began_s = anyio.current_time()
            try:
                async with self._dial(self.session) as client:
                    self.session = self.session or client.session or None
                    self.incarnation = client.incarnation
                    self.address = client.address
                    for subscription in list(self._subscriptions):
                        await subscription._continue(client)
                    self.connections += 1
                    self._set(client)
                    self._show(State("connected"))
                    if self.connections == 1:
                        task_status.started(None)
                    reason = await self._ended(client)
                    lost_s = anyio.current_time()
            except ClientError as error:
                reason = error
            self._set(None)
            if self.connections == 0:
                task_status.started(reason)
                return
            if self._failure is not None:
                return
            if self._final(reason):
                self._fail(reason, reason)
                return
            if anyio.current_time() - began_s > STABLE_AFTER_S:
                pause_s = PAUSE_MIN_S
            # full jitter, so that the clients of a restarted gateway do not come all at once
            wait_s = random.uniform(0.0, pause_s)  # noqa: S311 - no secret
            self._show(State("waiting", reason, wait_s))
            if self._on_loss is not None:
                self._on_loss(reason, wait_s)
            await anyio.sleep(wait_s)
            self._show(State("connecting", reason))
            searching = self._search is not None and anyio.current_time() - lost_s < SEARCH_S
            pause_s = min(2 * pause_s, PAUSE_SEARCH_S if searching else self._pause_max_s)


@final
class ResumingSubscription:
    """Like `Subscription`, but it continues on the next connection after a loss.

    Messages of a lost connection cannot be acknowledged: their `ack()` does nothing. If the subscription is durable, their
    topics are owed again. After a resume, the value of a topic may be one that was seen already.
    """

    def __init__(
        self,
        owner: ResumingClient,
        subscribe: Callable[[Client], Subscription],
        progress: Progress | None,
        durable: bool,
    ) -> None:
        self._owner: Final = owner
        self._subscribe: Final = subscribe
        self._progress: Final = progress
        self._durable: Final = durable
        self._inner: Subscription | None = None
        self._incarnation = ""
        self._failure: ClientError | None = None  # it does not continue, although the connection does

    @property
    def result(self) -> str:
        """Result of the last SUBSCRIBE: for a durable one `created`, `resumed` or `replaced`."""
        return "" if self._inner is None else self._inner.result

    @property
    def filtered(self) -> bool:
        """True if no right of ours can match any topic of the glob."""
        return self._inner is not None and self._inner.filtered

    async def __aenter__(self) -> Self:
        """Subscribe, on the next connection if this one is lost.

        Raises:
            PositionUnavailableError: The position in `since` cannot be used, and there is no `values`.
            GatewayError: The gateway refused this very SUBSCRIBE and ended the connection.
            ClientError: We will not connect again, or the id is in use.
        """
        owner = self._owner
        while True:
            client = await owner._connected()
            try:
                await self._resume(client)
            except ConnectionLostError:
                await owner._gone(client)
                continue
            owner._subscriptions.append(self)
            return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Unsubscribe. A durable one goes on collecting and is resumed by subscribing with the same id again."""
        self._owner._subscriptions.remove(self)
        if self._inner is not None:
            await self._inner.__aexit__(kind, error, traceback)

    @property
    def position(self) -> str | None:
        """Like `Subscription.position`; it is kept from connection to connection."""
        return None if self._progress is None else self._progress.position

    @property
    def caught_up(self) -> bool:
        """Like `Subscription.caught_up`. False from a loss until a later connection has delivered what was missed."""
        return self._progress is not None and self._progress.caught_up

    async def complete(self) -> None:
        """Wait until `caught_up`; see `Subscription.complete`.

        Raises:
            ClientError: There are no `markers`, or we will not connect again.
        """
        await self._entered()._marked().complete(self._ending)

    async def position_after(self, position: str | None) -> str:
        """Wait until `self.position` is another one than `position`, and return it.

        Raises:
            ClientError: There are no `markers`, or we will not connect again.
        """
        return await self._entered()._marked().position_after(position, self._ending)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message, of this connection or a later one.

        Raises:
            PositionUnavailableError: It cannot continue without a gap: see `ResumingClient.subscribe`.
            ClientError: We will not connect again.
        """
        while True:
            inner = self._entered()
            try:
                return await inner.__anext__()
            except ClientError:
                while self._inner is inner:
                    failure = self._ending()
                    if failure is not None:
                        raise failure from None
                    await self._owner._changed.wait()

    def _entered(self) -> Subscription:
        if self._inner is None:
            raise ClientError("enter the subscription with `async with` before iterating it")
        return self._inner

    def _ending(self) -> ClientError | None:
        return self._failure or self._owner._failure

    async def _continue(self, client: Client) -> None:
        """Resume on the next connection, unless a gap would remain that the application has to know of."""
        if self._failure is not None:
            return
        try:
            await self._resume(client)
        except PositionUnavailableError as error:
            self._give_up(error)
        except GatewayError as error:  # to this very SUBSCRIBE: it is not repeated on the next connection
            if error.message not in PASSING:
                self._give_up(error)
            raise

    def _interrupt(self) -> None:
        if self._progress is not None:
            self._progress.caught_up = False
            self._progress.notify()

    def _give_up(self, failure: ClientError) -> None:
        self._failure = failure
        if self._progress is not None:
            self._progress.notify()

    async def _resume(self, client: Client) -> None:
        if self._progress is not None and self._inner is not None:
            self._inner.drop_unread()  # all that comes after the position comes again
            if self._durable and client.incarnation != self._incarnation:
                raise PositionUnavailableError(
                    f"the journal of the gateway is another one, so the session does not owe all that changed on "
                    f"{self._inner.glob}. Drop the values that you keep, and subscribe again with eager=True"
                )
        inner = self._subscribe(client)
        await inner.__aenter__()
        self._incarnation = client.incarnation
        self._inner = inner

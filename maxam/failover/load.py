"""Clients of a gateway whose leader is killed: what each kill does to publishers and subscribers.

Each topic has one value under way at a time. While it waits for its RECEIPT, newer values of the topic replace each other. A
program that sends the newest reading does the same. A value is *due* at its time in the schedule; ages count from there.

A newer value would hide the loss of an accepted one. So every second topic of each publisher is a *witness*. It gets no further
value from a kill on, until a new subscriber has compared what the next leader has with what was accepted.
"""

import math
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import trio

from maxam.client import ClientError, OutcomeUnknownError, ResumingClient, connect, resuming
from maxam.client.addresses import Address
from maxam.client.link import background
from maxam.client.subscription import Subscription
from maxam.errors import MaxamError
from maxam.failover.measures import AGES_KEPT, HEADER, Published, Received

RECOVERY_S: Final = 60.0  # until each client has been served after a kill
_FIRST_S: Final = 60.0  # until each topic has a value
_CHECK_S: Final = 20.0  # for one comparison with the next leader
_RETRY_S: Final = 0.2
_DUES_KEPT: Final = 500  # of each topic
_POLL_S: Final = 0.01


@final
class FailoverError(MaxamError):
    """Report that the clients were not served again after a kill."""

    code = "load-failed"


@final
@dataclass(frozen=True, slots=True)
class Identity:
    """Certificate files of a client, as `maxam.client.connect` takes them."""

    certificate: Path
    key: Path
    ca: Path
    check_name: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Work:
    """The work of the clients.

    Attributes:
        addresses: Of all members.
        publisher: Identity of the publishers.
        subscriber: Identity of the subscribers.
        destinations: The topics, at least two for each publisher. The number of a topic is its place here.
        glob: Matches all of them, and no topic that others publish.
        body: Returns the next value of a topic, by its number.
        per_second: Values that are due in a second, of all topics.
        publishers: Number of publishing connections.
        subscribers: Number of subscribed connections.
        host: The virtual host.
    """

    addresses: Sequence[Address]
    publisher: Identity
    subscriber: Identity
    destinations: Sequence[str]
    glob: str
    body: Callable[[int], bytes]
    per_second: float
    publishers: int = 1
    subscribers: int = 1
    host: str = "MAXVAPI"

    def __post_init__(self) -> None:
        """Raise ValueError if there are too few topics."""
        if len(self.destinations) < 2 * self.publishers:
            raise ValueError(f"{len(self.destinations)} topics for {self.publishers} publishers: give two for each")


@final
@dataclass(slots=True)
class Outage:
    """The effect of one kill.

    Attributes:
        before: Address that the first publisher was connected to.
        after: Address that it is connected to now.
        no_receipt_s: Longest time in which no publisher got a RECEIPT.
        publisher_s: Longest time in which one publisher got no RECEIPT.
        no_message_s: Longest time in which one subscriber got no newer value.
        stale_s: Greatest staleness of a topic at a subscriber, the age of the oldest value that it lacked.
        unknown: SENDs whose connection ended before their RECEIPT.
        reconnected: Connections that were made again.
        lost: Topics whose accepted value the next leader did not have.
    """

    before: Address | None
    after: Address | None = None
    no_receipt_s: float = 0.0
    publisher_s: float = 0.0
    no_message_s: float = 0.0
    stale_s: float = 0.0
    unknown: int = 0
    reconnected: int = 0
    lost: int = 0


@dataclass(slots=True)
class _Client:
    """A publisher or subscriber, and when it was served last."""

    connection: ResumingClient
    served_s: float
    fresh_s: float = -math.inf  # when the newest value that was served was due


@final
class Load:
    """Clients that work while `running` is entered.

    Attributes:
        work: Their work.
        published: The values of the publishers.
        received: Those of each subscriber.
        receipts: RECEIPTs so far.
        unknown: SENDs whose connection ended before their RECEIPT.
        lost: Topics with a lost value, of all kills.
        outages: All kills.
        answers_s: Newest times from a SEND to its RECEIPT.
    """

    def __init__(self, work: Work) -> None:
        """Take the work."""
        self.work: Final = work
        self._run: Final = secrets.token_hex(4)
        self.published: Final = Published(self._run)
        self.received: Final = [Received(self.published, "") for _ in range(work.subscribers)]
        self.receipts = 0
        self.unknown = 0
        self.lost = 0
        self.outages: Final[list[Outage]] = []
        self.answers_s: Final[deque[float]] = deque(maxlen=AGES_KEPT)
        self._publishers: Final[list[_Client]] = []
        self._subscribers: Final[list[_Client]] = []
        self._receipt_s = 0.0  # of any publisher
        # the newest values of each topic: place and when each was due
        self._dues: Final = {topic: deque[tuple[int, float]](maxlen=_DUES_KEPT) for topic in work.destinations}
        self._outage: Outage | None = None
        self._released = trio.Event()  # witnesses go on
        self._released.set()
        self._stopping: Final = trio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Connect all clients, and have them work while the block runs.

        Raises:
            ClientError: A client cannot connect. From a task it comes in an ExceptionGroup.
        """
        work = self.work
        async with AsyncExitStack() as stack:
            for number in range(work.subscribers):
                client = _client(work, work.subscriber, self._session("subscriber", number))
                self._subscribers.append(_Client(await stack.enter_async_context(client), trio.current_time()))
            for number in range(work.publishers):
                client = _client(work, work.publisher, self._session("publisher", number))
                self._publishers.append(_Client(await stack.enter_async_context(client), trio.current_time()))
            async with trio.open_nursery() as nursery:
                for subscriber, received in zip(self._subscribers, self.received, strict=True):
                    await nursery.start(self._watch, subscriber, received)
                self._receipt_s = trio.current_time()
                for number in range(len(work.destinations)):
                    nursery.start_soon(self._publish, self._publishers[number % work.publishers], number)
                yield
                nursery.cancel_scope.cancel()

    def _session(self, kind: str, number: int) -> str:
        return f"{kind}-{number + 1}-{self._run}"

    @property
    def address(self) -> Address | None:
        """Where the first publisher is connected."""
        return self._publishers[0].connection.address

    @property
    def older(self) -> int:
        """Messages with an older value than one that the subscriber had."""
        return sum(one.older for one in self.received)

    @property
    def lacking(self) -> int:
        """Topics of which a subscriber has no value, or an older one than was accepted last, of all subscribers."""
        return sum(one.stale() for one in self.received)

    @property
    def silent_s(self) -> float:
        """Seconds since the last RECEIPT."""
        return trio.current_time() - self._receipt_s

    async def until_all_have_a_value(self) -> None:
        """Wait until each topic has an accepted value.

        Raises:
            FailoverError: That took too long, or a value was rejected.
        """
        with trio.move_on_after(_FIRST_S):
            await _until(
                lambda: len(self.published.accepted) == len(self.work.destinations) or bool(self.published.rejected)
            )
            if not self.published.rejected:
                return
        published = self.published
        why = (
            published.reason
            or f"{len(published.accepted)} of {len(self.work.destinations)} topics after {_FIRST_S:g} s"
        )
        raise FailoverError(f"the load could not begin: {why}")

    async def kill(self, leader: Callable[[Address], Awaitable[None]]) -> Outage:
        """Have the leader killed, wait until all clients are served again, and compare what was accepted with what is there.

        Args:
            leader: Kills the gateway at an address; when it returns, that gateway has ended.

        Raises:
            FailoverError: Not all clients were served again within `RECOVERY_S`.
        """
        before = self.address
        if before is None:
            raise FailoverError("no publisher is connected, so no leader is known")
        outage = self._outage = Outage(before)
        unknown, connections = self.unknown, self._connections()
        self._released = trio.Event()
        try:
            await leader(before)
            killed_s = trio.current_time()
            with trio.move_on_after(RECOVERY_S) as patience:
                await _until(lambda: self._served_since(killed_s))
            if patience.cancelled_caught:
                raise FailoverError(
                    f"{RECOVERY_S:g} s after the kill of {before[0]}:{before[1]} some clients are still not served."
                    " Check that another member can lead, and that all addresses were given"
                )
            self._outage = None
            outage.lost = await self._count_lost()
        finally:
            self._outage = None
            self._released.set()
        outage.after = self.address
        outage.unknown = self.unknown - unknown
        outage.reconnected = self._connections() - connections
        self.lost += outage.lost
        self.outages.append(outage)
        return outage

    async def stop(self, settle_s: float) -> int:
        """End publishing; return how many values subscribers lack after `settle_s`, summed."""
        self._stopping.set()
        with trio.move_on_after(settle_s):
            await _until(lambda: self.lacking == 0)
        return self.lacking

    def _connections(self) -> int:
        return sum(one.connection.connections for one in (*self._publishers, *self._subscribers))

    def _served_since(self, since_s: float) -> bool:
        return all(one.fresh_s >= since_s for one in (*self._publishers, *self._subscribers))

    # publishers and subscribers

    async def _publish(self, client: _Client, number: int) -> None:
        """Send the values of one topic, one after the other."""
        work = self.work
        destination = work.destinations[number]
        witness = number // work.publishers % 2 == 1
        interval_s = len(work.destinations) / work.per_second
        due_s = trio.current_time() + number / work.per_second
        while True:
            with trio.move_on_at(due_s):
                await self._stopping.wait()
            if witness:
                await self._released.wait()
            if self._stopping.is_set():
                return
            late_s = trio.current_time() - due_s
            due_s += late_s // interval_s * interval_s  # the values that were due meanwhile are replaced by this one
            await self._send(client, number, destination, due_s, witness)
            due_s += interval_s

    async def _send(self, client: _Client, number: int, destination: str, due_s: float, witness: bool) -> None:
        body = self.work.body(number)
        place, headers = self.published.sending(destination, due_s)
        self._dues[destination].append((place, due_s))
        began_s = trio.current_time()
        receipt = None
        while receipt is None:
            try:
                receipt = await client.connection.send(destination, body, headers)
            except OutcomeUnknownError:
                self.unknown += 1
                if witness:
                    return
        now_s = trio.current_time()
        self.receipts += 1
        self.answers_s.append(now_s - began_s)
        outage = self._outage
        if outage is not None:
            outage.no_receipt_s = max(outage.no_receipt_s, now_s - self._receipt_s)
            outage.publisher_s = max(outage.publisher_s, now_s - client.served_s)
        self._receipt_s = client.served_s = now_s
        client.fresh_s = max(client.fresh_s, began_s)
        if receipt.accepted:
            self.published.accepted[destination] = place
        else:
            self.published.rejected += 1
            self.published.reason = f"{receipt.disposition} {receipt.result} {receipt.reason} ({destination})"

    async def _watch(self, client: _Client, received: Received, *, task_status: trio.TaskStatus[None]) -> None:
        async with client.connection.subscribe(self.work.glob, eager=True) as subscription:
            task_status.started()
            async for message in subscription:
                now_s = trio.current_time()
                lacked_s = self._lacked_since(message.destination, received.place(message.destination))
                due_s = received.take(message.destination, message.headers.get(HEADER, ""), now_s)
                if due_s is None:
                    continue
                outage = self._outage
                if outage is not None:
                    outage.stale_s = max(outage.stale_s, now_s - min(lacked_s, due_s))
                    outage.no_message_s = max(outage.no_message_s, now_s - client.served_s)
                client.served_s = now_s
                client.fresh_s = max(client.fresh_s, due_s)

    def _lacked_since(self, destination: str, place: int) -> float:
        """Return when the first value of a topic after this one was due, as far as is known; infinity if there is none."""
        since_s = math.inf
        for later, due_s in reversed(self._dues.get(destination, ())):
            if later <= place:
                break
            since_s = due_s
        return since_s

    async def _count_lost(self) -> int:
        """Return how many topics have an older value than the one accepted last. A new subscriber reads them."""
        work = self.work
        problem = ""
        with trio.move_on_after(RECOVERY_S):
            while True:
                accepted = dict(self.published.accepted)
                try:
                    with trio.fail_after(_CHECK_S):
                        there = await self._values()
                except (ClientError, trio.TooSlowError) as error:
                    problem = str(error)
                    await trio.sleep(_RETRY_S)
                    continue
                return sum(there.get(destination, 0) < place for destination, place in accepted.items())
        raise FailoverError(f"the values of {work.glob} could not be compared: {problem}")

    async def _values(self) -> dict[str, int]:
        """Return the place of the value that each topic has at the gateway."""
        there: dict[str, int] = {}
        work = self.work
        async with (
            connect(**_addressed(work, work.subscriber)) as client,
            client.subscribe(work.glob, eager=True, markers=True) as subscription,
            background() as nursery,
        ):
            nursery.start_soon(self._note_places, subscription, there)
            await subscription.complete()
        return there

    async def _note_places(self, subscription: Subscription, there: dict[str, int]) -> None:
        with suppress(ClientError):  # `complete` raises it
            async for message in subscription:
                read = self.published.read(message.headers.get(HEADER, ""))
                if read is not None:
                    there[message.destination] = read[0]


def _client(work: Work, identity: Identity, session: str) -> AbstractAsyncContextManager[ResumingClient]:
    """Return a client of all addresses that connects again."""
    return resuming(**_addressed(work, identity), client_id=session)


def _addressed(work: Work, identity: Identity) -> dict[str, Any]:
    """Return what `connect` and `resuming` need for all addresses."""
    (address, port), *others = work.addresses
    return {"address": address, "port": port, **asdict(identity), "host": work.host, "others": others}


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a figure of many tasks
        await trio.sleep(_POLL_S)

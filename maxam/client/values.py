"""The live map: the values of all topics of a glob, kept equal to the gateway's, as objects of a given type.

Theory of operation: a subscription with ack `auto` and markers is read all the time, so a slow program holds up nothing. For each
topic that changed, the board keeps the value that the program saw last. So at most one change waits for each topic,
with the newest value.
"""

import builtins
import dataclasses
import importlib
import json
import threading
from collections.abc import AsyncIterator, Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar, final, overload

import anyio
import anyio.lowlevel

from maxam.client.link import background
from maxam.client.subscription import Message
from maxam.client.value_types import ValueTypeError, reader
from maxam.errors import ClientError

T = TypeVar("T")

_NONE: Final[Any] = object()  # no value, where None could be one
_JSON: Final = "application/json"


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """The change of a topic since the program last took one of it.

    Attributes:
        destination: The topic.
        value: The newest value, or None if there is none.
        previous: The value that the program saw last, or None.
        deleted: True if the topic has no value any longer, or we may no longer receive it.
        stale: True if the value may not be current: it is overdue, or a link to its gateway is down.
        problem: The reason why the newest value could not be converted to the type, or None.
    """

    destination: str
    value: T | None
    previous: T | None
    deleted: bool
    stale: bool
    problem: ClientError | None


@final
class Board(Generic[T]):
    """The values of a live map, and the changes that the program has not taken. Any thread may call its methods.

    Attributes:
        values: The values by topic.
        stale: Topics whose value may not be current.
        problems: Topics whose newest value could not be converted, with the reason. They are not in `values`.
        recording: True if changes are kept for the program.
        lock: Held while anything changes.
    """

    def __init__(self, read: Callable[[Message], T], notify: Callable[[], None]) -> None:
        self.values: Final[dict[str, T]] = {}
        self.stale: Final[set[str]] = set()
        self.problems: Final[dict[str, ClientError]] = {}
        self.recording = False
        self.lock: Final = threading.RLock()
        self._read: Final = read
        self._notify: Final = notify  # called with the lock held
        self._seen: Final[dict[str, T]] = {}  # of topics that changed: the value that the program saw last

    def apply(self, message: Message) -> None:
        """Take over a message."""
        destination = message.destination
        with self.lock:
            before, known = self.values.get(destination, _NONE), self._known(destination)
            changed = self._change(destination, message)
            if changed and self.recording:
                seen = self._seen.setdefault(destination, before if known else _NONE)
                if seen is _NONE and not self._known(destination):  # it came and went unseen
                    del self._seen[destination]
                self._notify()

    def take(self) -> Change[T] | None:
        """Return the change that waits longest, or None."""
        with self.lock:
            for destination in self._seen:
                previous, value = self._seen.pop(destination), self.values.get(destination, _NONE)
                return Change(
                    destination,
                    None if value is _NONE else value,
                    None if previous is _NONE else previous,
                    not self._known(destination),
                    destination in self.stale,
                    self.problems.get(destination),
                )
            return None

    def _known(self, destination: str) -> bool:
        return destination in self.values or destination in self.problems

    def _change(self, destination: str, message: Message) -> bool:
        """Apply a message and return whether it changed anything."""
        kind, was_stale = message.kind, destination in self.stale
        if kind == "stale":
            if was_stale or not self._known(destination):
                return False
            self.stale.add(destination)
            return True
        self.stale.discard(destination)
        if message.deleted:
            known = self._known(destination)
            self.values.pop(destination, None)
            self.problems.pop(destination, None)
            return known
        if kind == "fresh" and not message.body:
            return was_stale
        return self._put(destination, message) or was_stale

    def _put(self, destination: str, message: Message) -> bool:
        try:
            value = self._read(message)
        except ClientError as error:
            self.problems[destination] = error
            self.values.pop(destination, None)
            return True
        had_problem = self.problems.pop(destination, None) is not None
        before = self.values.get(destination, _NONE)
        if before is not _NONE and before == value:
            return had_problem
        self.values[destination] = value
        return True


class MapOfValues(Mapping[str, T]):
    """The values by topic, as both faces of the client show them. It only grows and shrinks by messages of the gateway."""

    def __init__(self, board: Board[T]) -> None:
        self._board: Final = board

    def __getitem__(self, destination: str) -> T:
        return self._board.values[destination]

    def __len__(self) -> int:
        return len(self._board.values)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._board.values))

    def items(self) -> ItemsView[str, T]:
        """Return topics and values as they are now."""
        return dict(self._board.values).items()

    def values(self) -> ValuesView[T]:
        """Return the values as they are now."""
        return dict(self._board.values).values()

    @property
    def stale(self) -> frozenset[str]:
        """Topics whose value may not be current: they are overdue, or a link to their gateway is down."""
        return frozenset(tuple(self._board.stale))

    @property
    def problems(self) -> dict[str, ClientError]:
        """Topics whose newest value does not fit the type, with the reason. They are not in the map."""
        return dict(self._board.problems)

    def to_pandas(self) -> Any:
        """Return a DataFrame of the values: one row per topic in the order of topics, one column per field.

        The columns of nested fields have dots in their names. A value without fields is in the column `value`.

        Raises:
            ClientError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise ClientError("to_pandas needs pandas, which is not here: pip install 'maxam[pandas]'") from error
        rows = sorted(self.items())
        frame = pandas.json_normalize([_row(value) for _, value in rows])
        frame.index = pandas.Index([destination for destination, _ in rows], name="destination")
        return frame

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} topics>"


@final
class LiveValues(MapOfValues[T]):
    """The values of all topics of a glob, kept equal to the gateway's. Only `async with client.values(...)` makes one.

    A mapping of topics to values. `async for` gives the changes: the newest state of each topic that changed. It raises when the
    client will not connect again.
    """

    def __init__(self, read: Callable[[Message], T], subscription: "Followed", connected: Callable[[], bool]) -> None:
        super().__init__(Board(read, self._wake))
        self._subscription: Final = subscription
        self._connected: Final = connected
        self._changed = anyio.Event()
        self._listener: Callable[[], None] | None = None
        self._closed = False
        self._failure: ClientError | None = None

    @property
    def board(self) -> Board[T]:
        """The values and changes, for another thread."""
        return self._board

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` at each change, and when the subscription has ended, with the lock of the board held."""
        self._listener = listener

    def ended(self) -> bool:
        """Return True if no change will come any longer.

        Raises:
            ClientError: The subscription has ended for this reason.
        """
        if self._failure is not None:
            raise self._failure
        return self._closed

    @property
    def synced(self) -> bool:
        """True if the map has all that the gateway has reported. False while there is no connection."""
        return self._subscription.caught_up and self._connected()

    @property
    def position(self) -> str | None:
        """The position that the map has reached: see `Subscription.position`."""
        return self._subscription.position

    async def sync(self) -> None:
        """Wait until the map has all values of the gateway, or all changes since a connection was lost.

        Raises:
            ClientError: We will not connect again, or the gateway refuses the subscription.
        """
        await self._subscription.complete()
        while not self.synced and not self.ended():  # a loss that the client has not noticed yet
            await anyio.lowlevel.checkpoint()
            await self._subscription.complete()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change[T]:
        """Return the next change. Cancelled, none is lost.

        Raises:
            ClientError: We will not connect again, or the gateway refuses the subscription.
        """
        await anyio.lowlevel.checkpoint()
        while (change := self._board.take()) is None:
            if self.ended():
                raise StopAsyncIteration
            self._changed = anyio.Event()
            await self._changed.wait()
        return change

    def _wake(self) -> None:
        self._changed.set()
        if self._listener is not None:
            self._listener()

    async def follow(self) -> None:
        """Apply all messages until the subscription ends."""
        try:
            async for message in self._subscription:
                self._board.apply(message)
        except ClientError as error:
            self._failure = error
        finally:
            self._closed = True
            with self._board.lock:
                self._wake()


class Followed(Protocol):
    """A subscription of one connection, or one that survives it."""

    @property
    def position(self) -> str | None: ...  # noqa: D102
    @property
    def caught_up(self) -> bool: ...  # noqa: D102
    async def complete(self) -> None: ...  # noqa: D102
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Message: ...


class KeepsValues:
    """Gives a client its live maps."""

    def _is_connected(self) -> bool:
        raise NotImplementedError

    def _follow(self, glob: str, **options: Any) -> Followed:
        raise NotImplementedError

    @overload
    def values(
        self,
        glob: str,
        *,
        fields: Sequence[str] = (),
        selector: str | None = None,
        min_interval_s: float | None = None,
        sync: bool = True,
    ) -> AbstractAsyncContextManager[LiveValues[Any]]: ...
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
    ) -> AbstractAsyncContextManager[LiveValues[T]]: ...
    def values(
        self,
        glob: str,
        *,
        type: Any = object,  # noqa: A002 - it is the type
        fields: Sequence[str] = (),
        selector: str | None = None,
        min_interval_s: float | None = None,
        sync: bool = True,
    ) -> AbstractAsyncContextManager[LiveValues[Any]]:
        """Return a live map of the topics of a glob, to enter with `async with`.

        The map survives lost connections if the client does. It never misses a change, and a topic that is gone leaves it.

        Args:
            glob: Pattern of the topics, such as `X/EGM.*`.
            type: Type of the values: a dataclass or TypedDict, or a function of the JSON value. `bytes` gives the bodies
                as they were sent. Without it values are JSON as Python has it: decimals and times are text. See
                `maxam.client.value_types.reader`.
            fields: Paths of the fields that are needed, such as `status` and `faults.code`. None: all of them.
            selector: Condition on the values, in the syntax of docs/protocol.md. A topic that no longer satisfies it leaves.
            min_interval_s: Minimum time between two values of one topic, 0.01 to 3600 s. The newest value always arrives.
            sync: Entering waits until all values have arrived. If False it returns at once, and each value is a change.

        Raises:
            GatewayError: The gateway refused the subscription and ended the connection.
            ClientError: The type cannot be used, `min_interval_s` is out of range, or we will not connect again.
        """
        read = message_reader(type)
        subscription = self._follow(
            glob,
            ack="auto",
            eager=True,
            markers=True,
            json=type is not bytes,
            fields=fields,
            selector=selector,
            min_interval_s=min_interval_s,
        )
        return _entered(LiveValues(read, subscription, self._is_connected), subscription, sync)


@asynccontextmanager
async def _entered(values: LiveValues[T], subscription: Followed, sync: bool) -> AsyncIterator[LiveValues[T]]:
    values.board.recording = not sync
    async with subscription, background() as tasks:
        tasks.start_soon(values.follow)
        if sync:
            await values.sync()
            values.board.recording = True
        yield values


def message_reader(wanted: Any) -> Callable[[Message], Any]:
    """Return the function that converts a message to `type` of `values`. It raises ValueTypeError for one that does not fit."""
    if wanted is bytes:
        return lambda message: message.body
    convert = reader(wanted)

    def read(message: Message) -> Any:
        form = message.header("content-type") or ""
        if message.header("value-state") == "undecoded":
            raise ValueTypeError("the gateway cannot convert it: its schema is no longer in force, or it is too long")
        if form == _JSON:
            try:
                return convert(json.loads(message.body))
            except ValueError as error:
                raise ValueTypeError(f"the body is no JSON: {error}") from error
        if form.startswith("text/"):
            return convert(message.body.decode(errors="replace"))
        if wanted is object:
            return message.body
        raise ValueTypeError("no schema judged the value, so there is no JSON of it. Use type=bytes")

    return read


def _row(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, builtins.type):
        return dataclasses.asdict(value)
    return value if isinstance(value, dict) else {"value": value}

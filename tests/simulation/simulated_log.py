"""A log of a cluster under a seed: always linearizable, and otherwise as unreliable as its faults make it.

`Engine` is what all nodes of a real engine are together. `SimulatedLog` is one member's view of it. Its calls block by a `Waiting`, so
that the simulation runs other members meanwhile. With `RealTime` it serves tests with real threads.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol, TypeVar

from maxam.cluster.log import Head, LogFullError, LogLostError, LogSize, LogTrimmedError, SupersededError

T = TypeVar("T")
QUIET_S: Final = 1.0  # after which a watch yields None


class Waiting(Protocol):
    """How the calls of one member wait."""

    def now(self) -> float:
        """Return the time."""

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""

    def changed(self, seconds: float) -> None:
        """Wait for a change of the log, at most for some seconds."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How unreliable a view is.

    Attributes:
        delay_s: Longest way of a request and of an answer.
        deadline_s: Of a call.
        lost: Share of requests that get lost.
        late: Share of requests that arrive after their deadline, and perhaps after later ones.
        late_s: The latest arrival.
        unheard: Share of answers that get lost.
        damaged: Share of entries that arrive with a wrong byte.
        dropped: Share of events that a watch leaves out.
        repeated: Share of events that a watch repeats, with some before them.
    """

    delay_s: float = 0.0
    deadline_s: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    late_s: float = 3.0
    unheard: float = 0.0
    damaged: float = 0.0
    dropped: float = 0.0
    repeated: float = 0.0


NONE: Final = Faults()


class Engine:
    """The log itself.

    Attributes:
        head: Of the log; None before the first.
        entries: By their index.
        first: Index of the oldest entry that is held.
        full: There is no room.
        announcements: By the names of members.
        events: Index of each entry and each head, in the order in which they came.
        noted: Called with each entry, or b"" for a beat, and its head, before others can see them.
        trims: Called with the index up to which entries will be forgotten.
    """

    def __init__(self) -> None:
        self.head: Head | None = None
        self.entries: dict[int, bytes] = {}
        self.first = 1
        self.full = False
        self.announcements: dict[str, bytes] = {}
        self.events: list[int | Head] = []
        self.noted: Callable[[bytes, Head], None] = lambda _entry, _head: None
        self.trims: Callable[[int], None] = lambda _last: None
        self.lock: Final = threading.Condition(threading.RLock())
        self.watchers: list[Callable[[], None]] = []
        self._heads: dict[int, Head] = {}  # the newest one with each index
        self._version = 0
        self._late: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def swap(self, entry: bytes, head: Head, before: Head | None) -> Head:
        """Replace the head, and append an entry unless it is empty."""
        now = self.head
        if now is not None and head.wrote(now):
            return now  # an earlier try took effect
        if _identity(now) != _identity(before):
            raise SupersededError(now)
        if self.full:
            raise LogFullError("the simulated log is full")
        self._version += 1
        new = Head(
            head.cluster,
            head.term,
            head.index,
            head.leader,
            head.position,
            head.format,
            head.beat,
            head.nonce,
            self._version,
        )
        self.noted(entry, new)
        if entry:
            self.entries[head.index] = entry
            self.events.append(head.index)
        self.head = self._heads[head.index] = new
        self.events.append(new)
        with self.lock:
            self.lock.notify_all()
        for watcher in list(self.watchers):
            watcher()
        return new

    def read(self, first: int, bytes_max: int) -> list[bytes]:
        """Return entries from an index on."""
        if first < self.first:
            raise LogTrimmedError(self.first)
        found: list[bytes] = []
        size = 0
        while (entry := self.entries.get(first + len(found))) is not None:
            size += len(entry)
            if found and size > bytes_max:
                break
            found.append(entry)
        return found

    def trim(self, last: int) -> None:
        """Forget entries up to an index, which may be one of before the log was set back."""
        last = min(last, self.head.index if self.head is not None else 0)
        self.trims(last)
        for index in range(self.first, last + 1):
            self.entries.pop(index, None)
        self.first = max(self.first, last + 1)

    def set_back(self, index: int) -> None:
        """Restore a backup that ends with an entry, as an operator does by mistake."""
        self.head = self._heads[index]
        self._version = self.head.version
        for known in [known for known in self.entries if known > index]:
            del self.entries[known]
        self._late.clear()
        self.events.append(self.head)

    def arrive_later(self, at_s: float, request: Callable[[], object]) -> None:
        """Have a request arrive at some time."""
        heappush(self._late, (at_s, next(self._numbers), request))

    def advance(self, now_s: float) -> None:
        """Let all requests arrive that are due."""
        while self._late and self._late[0][0] <= now_s:
            _, _, request = heappop(self._late)
            with suppress(SupersededError, LogFullError, LogTrimmedError):  # no caller waits for the answer
                request()


def _identity(head: Head | None) -> object:
    """Return what is compared. A log that was set back repeats versions, so the version alone is too little."""
    return head and (head.version, head.nonce)


class RealTime:
    """Waits for an engine in real time; the way to it takes none."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def now(self) -> float:
        """Return the time."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let other threads go on."""
        time.sleep(min(seconds, 0.001))

    def changed(self, seconds: float) -> None:
        """Wait for a change."""
        with self._engine.lock:
            self._engine.lock.wait(seconds)


class SimulatedLog:
    """The view that one member has of an engine.

    Attributes:
        faults: Of calls and watches, from now on.
        cut: Neither requests nor answers arrive.
        deaf: Requests arrive and answers do not.
        stalled: Watches show nothing, and raise nothing.
    """

    def __init__(
        self,
        engine: Engine,
        waiting: Waiting | None = None,
        rng: random.Random | None = None,
        faults: Faults = NONE,
    ) -> None:
        self.faults = faults
        self.failures = 0
        self.cut = self.deaf = self.stalled = False
        self._engine = engine
        self._waiting: Waiting = RealTime(engine) if waiting is None else waiting
        self._rng = random.Random(0) if rng is None else rng  # noqa: S311 - a simulation, not a secret
        self._unknown: set[bytes] = set()  # nonces of swaps whose outcome the caller does not know
        self._closed = False

    # Calls.

    def head(self) -> Head | None:
        """Return the head."""
        return self._call(lambda: self._engine.head)

    def append(self, entry: bytes, head: Head, before: Head | None) -> Head:
        """Append an entry."""
        return self._swap(entry, head, before)

    def beat(self, head: Head, before: Head) -> Head:
        """Replace the head alone."""
        return self._swap(b"", head, before)

    def read(self, first: int, bytes_max: int) -> list[bytes]:
        """Return entries from an index on."""
        return [self._damaged(entry) for entry in self._call(lambda: self._engine.read(first, bytes_max))]

    def trim(self, last: int) -> None:
        """Forget entries."""
        self._call(lambda: self._engine.trim(last))

    def announce(self, name: str, text: bytes) -> None:
        """Publish what others see of a member."""
        self._call(lambda: self._engine.announcements.update({name: text}))

    def announced(self) -> dict[str, bytes]:
        """Return all announcements."""
        return self._call(lambda: dict(self._engine.announcements))

    def forget(self, name: str) -> None:
        """Remove what a member announced."""
        self._call(lambda: self._engine.announcements.pop(name, None))

    def size(self) -> LogSize:
        """Return the size."""
        return self._call(
            lambda: LogSize(n := sum(map(len, self._engine.entries.values())), n, 0, (("simulated", "1"),))
        )

    def close(self) -> None:
        """End all calls."""
        self._closed = True

    def _swap(self, entry: bytes, head: Head, before: Head | None) -> Head:
        try:
            found = self._call(lambda: self._engine.swap(entry, head, before))
        except LogLostError:
            self._unknown.add(head.nonce)
            raise
        except LogFullError:
            if head.nonce in self._unknown:
                raise LogLostError("the log is full, and an earlier try may be under way") from None
            raise
        except SupersededError:
            self._unknown.discard(head.nonce)
            raise
        self._unknown.discard(head.nonce)
        return found

    def _call(self, request: Callable[[], T]) -> T:
        """Have a request arrive, and return its answer, unless either is lost."""
        if self._closed:
            raise LogLostError("the log is closed")
        waiting, faults, rng = self._waiting, self.faults, self._rng
        begins_s = waiting.now()
        waiting.sleep(rng.random() * faults.delay_s)
        fate = rng.random()
        if self.cut or fate < faults.lost:
            self._lose(begins_s)
        if fate < faults.lost + faults.late:
            self._engine.arrive_later(waiting.now() + rng.random() * faults.late_s, request)
            self._lose(begins_s)
        with self._engine.lock:
            self._engine.advance(waiting.now())
            try:
                found: T | None = request()
                error = None
            except (SupersededError, LogFullError, LogTrimmedError) as failure:
                found, error = None, failure
        waiting.sleep(rng.random() * faults.delay_s)
        if self.cut or self.deaf or rng.random() < faults.unheard:
            self._lose(begins_s)
        if error is not None:
            raise error
        return found  # type: ignore[return-value]  # of an answer it is what the request returned

    def _lose(self, begins_s: float) -> None:
        """Wait for the deadline of a call, and raise LogLostError."""
        self._waiting.sleep(max(0.0, begins_s + self.faults.deadline_s - self._waiting.now()))
        raise LogLostError("no answer from the simulated log")

    def _damaged(self, entry: bytes) -> bytes:
        if self._rng.random() >= self.faults.damaged:
            return entry
        place = self._rng.randrange(len(entry))
        return entry[:place] + bytes((entry[place] ^ 0x10,)) + entry[place + 1 :]

    # The watch.

    def follow(self, first: int) -> Iterator[bytes | Head | None]:
        """Yield entries from an index on, and heads as they change."""
        engine, waiting, rng = self._engine, self._waiting, self._rng
        entries, head, at = self._call(lambda: (engine.read(first, 1 << 60), engine.head, len(engine.events)))
        yield from map(self._damaged, entries)
        yield head
        heard_s = waiting.now()
        while not self._closed:
            if self.cut or self.deaf:
                waiting.sleep(self.faults.deadline_s)
                if self.cut or self.deaf:
                    raise LogLostError("the watch has ended")
            if at < len(engine.events) and not self.stalled:
                waiting.sleep(rng.random() * self.faults.delay_s)
                if rng.random() < self.faults.dropped:
                    at += 1
                    continue
                event = engine.events[at]
                at = max(0, at - 2) if rng.random() < self.faults.repeated else at + 1
                heard_s = waiting.now()
                if isinstance(event, Head):
                    yield event
                elif event < engine.first:
                    raise LogTrimmedError(engine.first)
                elif event in engine.entries:
                    yield self._damaged(engine.entries[event])
            elif waiting.now() - heard_s >= QUIET_S:
                heard_s = waiting.now()
                yield None
            else:
                waiting.changed(max(0.001, QUIET_S - (waiting.now() - heard_s)))
        raise LogLostError("the log is closed")

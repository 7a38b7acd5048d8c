"""The journal of a leader: blocks go to the log of the cluster, and from there into the own journal.

`LoggedJournal` takes the place of `Journal` in the loop of commits. A block is committed once the log has it. The own journal gets it
after that, as each follower's does, on the thread of the keeper. So a journal never holds an entry that the log did not accept.

Each write to the log is a *swap*: it compares the head with the one that this leader wrote last, and replaces it. One swap is under
way at a time. Its outcome may be unknown; the same swap is tried again then, until it is known.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol, final

from maxam.cluster.entry import (
    BLOCK,
    FILE,
    HANDOVER,
    PROOF,
    SCHEMAS,
    SEAL,
    TERM,
    Entry,
    file_payload,
    same_position,
    term_payload,
    texts_payload,
)
from maxam.cluster.keeper import Keeper
from maxam.cluster.log import NONCE_BYTES, Head, Log, LogError, LogFullError, LogLostError, SupersededError
from maxam.cluster.log_place import LogPlace
from maxam.cluster.placing import ForkedError
from maxam.cluster.recent import RecentEntries
from maxam.cluster.steps import Steps
from maxam.cluster.swap import swap_until_known
from maxam.errors import DiskFullError, JournalError
from maxam.journal.encoding import SYNC_BYTES, Block, Encoder, Position
from maxam.journal.files import Journal
from maxam.records import Record

_KEEPER_S: Final = 0.02  # between two checks whether the own disk has caught up
_SUCCESSOR_S: Final = 0.01  # between two checks whether the next leader has claimed
_TEXTS_BYTES: Final = 262_144  # of schemas in one entry
_SETTLING_SHARE: Final = 1.1  # of the limit on the log: blocks that only shrink what is owed may use a tenth more


class Swaps(Protocol):
    """Learns of each swap of the head, in order and on the thread that makes it."""

    def began(self, at_s: float) -> None:
        """Record that the first try of a swap begins, at a time of the monotonic clock."""

    def succeeded(self, head: Head) -> None:
        """Record that the swap is in the log."""

    def superseded(self, head: Head | None) -> None:
        """Record that the swap failed because the head is another one."""

    def refused(self, error: LogFullError) -> None:
        """Record that the swap failed because the log is full."""


@final
class LoggedJournal:
    """The journal that the loop of commits of a leader writes.

    `encode` belongs to the event loop. `write`, `beat`, `has_room` and `seal_aged` belong to the thread of commits, `keep_schemas` to
    any other. A lock makes swaps of both follow one another.

    Attributes:
        place: The end of the log, as far as this member has taken it.
        recent: The newest entries, for fronts that outlive their leader. None without such fronts. To be set before the first entry.
    """

    def __init__(
        self,
        log: Log,
        name: str,
        journal: Journal,
        keeper: Keeper,
        place: LogPlace,
        swaps: Swaps,
        block_bytes_max: int,
        log_bytes_max: int,
        monotonic: Callable[[], float] = time.monotonic,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Prepare to lead; `claim` does.

        Args:
            log: Of the cluster.
            name: Of this member.
            journal: Its own, which `keeper` writes.
            keeper: Stores entries after the log has them.
            place: Follows the log until `claim`, and this object from then on.
            swaps: Learns of swaps.
            block_bytes_max: Size from which on a block takes no further operation.
            log_bytes_max: Limit on what the log holds.
            monotonic: Clock of `swaps`, seconds.
            random_bytes: Source of nonces and sync markers.
        """
        self.place: Final = place
        self.recent: RecentEntries | None = None
        self._log: Final = log
        self._name: Final = name
        self._journal: Final = journal
        self._keeper: Final = keeper
        self._swaps: Final = swaps
        self._block_bytes_max: Final = block_bytes_max
        self._log_bytes_max: Final = log_bytes_max
        self._monotonic: Final = monotonic
        self._random_bytes: Final = random_bytes
        self._lock: Final = threading.Lock()
        self._ending: Final = threading.Event()
        self._encoder = Encoder(place.position, random_bytes(SYNC_BYTES))
        self._head: Head | None = None
        self._term = 0
        self._full = False  # the engine had no room for the last swap
        self._handed_over = False
        self._texts: set[str] | None = None  # file names of the schemas that the cluster has

    # what the loop of commits asks for

    @property
    def position(self) -> Position:
        """The position after the last block that the log has."""
        return self.place.position

    @property
    def block_bytes_max(self) -> int:
        """Size from which on a block takes no further operation."""
        return self._block_bytes_max

    @property
    def proves(self) -> bool:
        """Whether operations without a record need a block too: an empty one proves that this member leads."""
        return True

    @property
    def hold_s(self) -> float:
        """For how long fronts on other machines may keep their clients until they find this leader, seconds."""
        return 0.0 if self.recent is None else self.recent.hold_s

    @property
    def term(self) -> int:
        """The term of this leader."""
        return self._term

    @property
    def head(self) -> Head | None:
        """The head that this leader wrote last. None before it leads."""
        return self._head

    def encode(self, records: list[Record]) -> Block:
        """Return one block of records that follow those encoded before; an empty one for none.

        Raises:
            ValueError: A revision is not the next one, or time runs backwards.
        """
        if records:
            return self._encoder.encode(records)
        position = self._encoder.position
        return Block(b"", position, position, settling=True)

    def write(self, block: Block) -> None:
        """Append a block to the log; when this returns it is durable there. An empty one without origins is a sign of life.

        Raises:
            DiskFullError: The log or the own disk has no room. The next `encode` continues after the last block that was written.
            SupersededError: Another member leads.
            LogLostError: The journal is being closed.
        """
        if not block.data and not block.origins:
            self.beat()
            return
        self._await_keeper()
        with self._lock:
            place = self.place
            try:
                self._require_room(len(block.data) + len(block.origins), block.settling)
                begins = bool(block.data) and place.rolls(block, self._journal.settings)
                marker = self._random_bytes(SYNC_BYTES) if begins else place.marker
                kind, payload = (BLOCK, block.data[:-SYNC_BYTES]) if block.data else (PROOF, b"")
                index, term = place.index + 1, self._term
                self._append(
                    Entry(kind, begins, block.before, block.after, marker, payload, index, term, block.origins)
                )
            except (LogFullError, DiskFullError) as error:
                self._encoder.position = place.position
                raise DiskFullError(f"no room for {len(block.data)} bytes: {error}") from error

    def beat(self) -> None:
        """Prove that this member leads, with a sign of life. Raises as `write`."""
        with self._lock:
            place = self.place
            try:
                self._swap(None, self._leading(), place.index, place.position)
            except LogFullError as error:
                raise DiskFullError(f"no room for a sign of life: {error}") from error

    def has_room(self, size: int) -> bool:
        """Return True if a block of `size` bytes would fit now, into the log and onto the own disk."""
        if self._keeper.disk_full or self.place.held_bytes + size > self._log_bytes_max:
            return False
        if not self._full:
            return True
        try:
            found = self._log.size()
        except LogLostError:
            return False
        # etcd compares the size of its file with the quota, so room that trimming freed does not count before it is defragmented
        return not found.full and (not found.quota or found.bytes + 2 * size < found.quota)

    def seal_aged(self, now_us: int) -> None:
        """Seal the open segment if it holds a change and is old enough, though nothing is to be written."""
        with self._lock:
            place = self.place
            if place.seals(now_us, self._journal.settings):
                try:
                    self._append(self._entry(SEAL, b""))
                except LogFullError as error:
                    raise DiskFullError(f"no room for a seal: {error}") from error

    # of the reloader

    def keep_schemas(self, texts: Iterable[tuple[str, bytes]]) -> None:
        """Store schemas in the log and in the own journal, unless the cluster has them. Does nothing while this member does not lead.

        Args:
            texts: Lower-case hex SHA-256 and self-contained text of each.

        Raises:
            DiskFullError: Some may be missing.
        """
        new = list(texts)
        with self._lock:
            if self._head is None:
                return
            known = self._texts
            if known is None:
                known = self._texts = set(self._journal.schema_names())
            new = [one for one in new if f"{one[0]}.avsc" not in known]
            for some in _portions(new):
                try:
                    self._append(self._entry(SCHEMAS, texts_payload(some)))
                except LogFullError as error:
                    raise DiskFullError(f"no room for schemas: {error}") from error
                known.update(f"{digest}.avsc" for digest, _ in some)
            index = self.place.index if new else 0
        self._await_stored(index, "schemas")

    # of enrolment

    def keep_file(self, name: str, contents: bytes) -> None:
        """Log the contents of a file. When this returns, the own keeper has stored them.

        Raises:
            DiskFullError: The log or the own disk has no room. The entry may be in the log.
            JournalError: This member does not lead.
            SupersededError: Another member leads.
            LogLostError: The journal is being closed.
        """
        with self._lock:
            try:
                self._append(self._entry(FILE, file_payload(name, contents)))
            except LogFullError as error:
                raise DiskFullError(f"no room for {name}: {error}") from error
            index = self.place.index
        self._await_stored(index, name)

    # of the member

    def read_back(self, first: int) -> None:
        """Read the origins before the entry that is followed first: some may be new to this process. Raises LogError."""
        if self.recent is not None:
            self.recent.read_back(self._log, first)

    def follow(self, entry: Entry, size: int, steps: Steps) -> bool:
        """Hand the next entry of another leader to `steps`; return False for one that was taken before.

        Raises:
            EntryError: It is not the next one.
        """
        with self._lock:
            if self._head is not None or entry.index <= self.place.index:
                return False
            self.place.check(entry)
            steps.take(entry)
            self._took(entry, size)
            return True

    def claim(self, before: Head, release: str, steps: Steps) -> None:
        """Append the own `term` entry. If that succeeds, this member leads, and the entry goes to `steps`.

        Raises:
            SupersededError: Another member was first.
            ForkedError: The log was set back. It has other entries than this member has taken.
            LogFullError: The log is full.
            LogLostError: The journal is being closed.
        """
        with self._lock:
            if self.place.index > before.index:  # an entry of the other member was taken meanwhile
                self._swaps.superseded(before)
                raise SupersededError(before)
            if not same_position(self.place.position, before.position):
                raise ForkedError(f"entry {before.index} of the log does not end where the own journal does")
            self._term = before.term + 1
            payload = term_payload(self._name, release)
            at, index = before.position, before.index + 1
            entry = Entry(TERM, False, at, at, self.place.marker, payload, index, self._term)
            try:
                size = self._swap(entry, before, index, at)
            except LogError:
                self._head = None
                raise
            self._encoder = Encoder(self.place.position, self.place.marker)
            self._took(entry, size)
            steps.take(entry)

    def hand_over(self, successor: str) -> None:
        """Append a `handover` to a member. Nothing is appended after it. Raises as `claim`."""
        with self._lock:
            self._append(self._entry(HANDOVER, successor.encode()))
            self._handed_over = True

    def await_successor(self) -> Head | None:
        """Wait after a handover. Return the head of the next leader; None if the engine gives no answer, or the gateway ends."""
        while not self._ending.wait(_SUCCESSOR_S):
            try:
                head = self._log.head()
            except LogError:
                return None
            if head is not None and head.term > self._term:
                return head
        return None

    def trim(self, last: int) -> None:
        """Have the log forget the entries up to an index. A member that does not lead only records it.

        Raises:
            LogLostError: The engine gave no answer.
        """
        if self._head is not None:
            self._log.trim(last)
        self.place.forgot(last)

    def end(self) -> None:
        """End all waiting: calls that are under way raise LogLostError or DiskFullError."""
        self._ending.set()

    # swaps; the lock is held

    def _entry(self, kind: int, payload: bytes) -> Entry:
        at = self.place.position
        return Entry(kind, False, at, at, self.place.marker, payload, self.place.index + 1, self._term)

    def _append(self, entry: Entry) -> None:
        """Append an entry, and hand it to the keeper."""
        size = self._swap(entry, self._leading(), entry.index, entry.after)
        self._took(entry, size)
        self._keeper.offer(entry)

    def _took(self, entry: Entry, size: int) -> None:
        """Record an entry that is in the log."""
        self.place.take(entry, size)
        if self.recent is not None:
            self.recent.take(entry)

    def _leading(self) -> Head:
        """Return the head that this leader wrote last."""
        if self._handed_over:  # the outcome of what clients have sent since stays unknown
            self._ending.wait()
            raise LogLostError("the gateway has handed over, and ends")
        if self._head is None:
            raise JournalError("this member does not lead")
        return self._head

    def _swap(self, entry: Entry | None, before: Head, index: int, position: Position) -> int:
        """Replace the head, with an entry or without; return the entry's size."""
        data = b"" if entry is None else entry.encode()
        beat = 0 if before.term != self._term else before.beat + (entry is None)
        head = Head(
            before.cluster,
            self._term,
            index,
            self._name,
            position,
            self.place.format,
            beat,
            self._random_bytes(NONCE_BYTES),
        )
        self._swaps.began(self._monotonic())
        try:
            self._head = swap_until_known(partial(self._try, data, head, before), self._pause)
        except LogFullError as error:
            self._full = True
            self._swaps.refused(error)
            raise
        except SupersededError as error:
            self._swaps.superseded(error.head)
            raise
        self._full = False
        self._swaps.succeeded(self._head)
        return len(data)

    def _try(self, data: bytes, head: Head, before: Head) -> Head:
        return self._log.append(data, head, before) if data else self._log.beat(head, before)

    def _pause(self, pause_s: float) -> None:
        if self._ending.wait(pause_s):
            raise LogLostError("the gateway ends; the outcome of its last swap stays unknown")

    def _require_room(self, size: int, settling: bool) -> None:
        held = self.place.held_bytes
        if held + size > self._log_bytes_max * (_SETTLING_SHARE if settling else 1):
            raise DiskFullError(
                f"the log of the cluster holds {held} bytes ([cluster] log_bytes_max {self._log_bytes_max}): too few members have them"
            )
        if self._keeper.disk_full and not settling:
            raise DiskFullError("the disk of the journal is full")

    def _await_stored(self, index: int, what: str) -> None:
        """Wait until the own keeper has stored an entry. The lock is not held. Raises DiskFullError."""
        while self._keeper.synced_index < index:
            if self._keeper.disk_full or not self._keeper.alive:
                raise DiskFullError(f"the disk has no room for {what} yet; it gets them as soon as it has")
            self._ending.wait(_KEEPER_S)

    def _await_keeper(self) -> None:
        """Wait until the own disk has caught up; signs of life go on."""
        while self._keeper.full and not self._keeper.disk_full:
            self.beat()
            if self._ending.wait(_KEEPER_S):
                raise LogLostError("the gateway ends")


def _portions(texts: list[tuple[str, bytes]]) -> Iterable[list[tuple[str, bytes]]]:
    """Yield the texts in lists whose size fits one entry."""
    some: list[tuple[str, bytes]] = []
    size = 0
    for one in texts:
        if some and size + len(one[1]) > _TEXTS_BYTES:
            yield some
            some, size = [], 0
        some.append(one)
        size += len(one[1])
    if some:
        yield some

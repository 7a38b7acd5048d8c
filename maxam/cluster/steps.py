"""Entries on their way into a replica: each one is checked, given to the keeper, and handed to the event loop as a step.

One thread takes entries, from a link or from the log of a cluster. The event loop applies the steps in order. Blocks may be applied
before the keeper has synced them.
"""

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, final

import trio

from maxam.cluster.entry import BLOCK, SEAL, Entry, EntryError
from maxam.cluster.keeper import Keeper
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import Position
from maxam.journal.segments import follows
from maxam.records import Record

_WAITING_BYTES_MAX: Final = 16_777_216  # of blocks that wait for the event loop
_BATCH_BYTES: Final = 1_048_576  # of blocks in one call of `apply`


@final
class Step:
    """One entry, as the event loop applies it.

    Attributes:
        records: Records of a block, in order; none for other kinds.
        position: Position of the journal after it.
        size: Bytes of the block.
        entry: The entry, unless it is a block.
        index: Its place in the log of a cluster; 0 on a feed.
    """

    __slots__ = ("entry", "index", "position", "records", "size")

    def __init__(self, records: list[Record], position: Position, size: int, index: int, entry: Entry | None) -> None:
        self.records: Final = records
        self.position: Final = position
        self.size: Final = size
        self.index: Final = index
        self.entry: Final = entry


@final
class Steps:
    """The entries that a replica has taken, on their way to its journal and its broker.

    Attributes:
        position: After the last entry that was taken.
        applied: After the last step that `apply` has taken.
    """

    def __init__(self, keeper: Keeper, position: Position) -> None:
        """Begin where a journal ends.

        Args:
            keeper: Stores the entries in that journal.
            position: Where it ends.
        """
        self.position = position
        self.applied = position
        self._keeper: Final = keeper
        self._decoder = Decoder(position.revision, position.accepted_at_us)
        self._steps: Final[deque[Step]] = deque()
        self._waiting_bytes = 0
        self._lock: Final = threading.Lock()
        self._arrived = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None

    @property
    def waiting_bytes(self) -> int:
        """Bytes of blocks that wait for the event loop."""
        return self._waiting_bytes

    # on the thread that takes entries

    @property
    def full(self) -> bool:
        """Whether the disk or the event loop has to catch up before the next entry is taken."""
        return self._waiting_bytes > _WAITING_BYTES_MAX or self._keeper.full

    def begin(self) -> None:
        """Begin at the position: with a new link, or with a log."""
        self._decoder = Decoder(self.position.revision, self.position.accepted_at_us)

    def take(self, entry: Entry) -> None:
        """Take the entry that follows.

        Raises:
            EntryError: It does not follow the position, or its records are wrong. Nothing of it was taken.
        """
        if entry.kind == BLOCK:
            step = Step(self._records(entry), entry.after, len(entry.payload), entry.index, None)
            self._keeper.offer(entry)
            self.position = entry.after
            self._hand_over(step)
            return
        if entry.kind == SEAL and entry.before.revision != self.position.revision:
            raise EntryError(f"a seal at revision {entry.before.revision} where {self.position.revision} was reached")
        self._keeper.offer(entry)
        if entry.index:
            self._hand_over(Step([], self.position, 0, entry.index, entry))

    def _hand_over(self, step: Step) -> None:
        with self._lock:
            self._waiting_bytes += step.size
        self._steps.append(step)
        token = self._token
        if token is not None:
            token.run_sync_soon(self._wake, idempotent=True)

    def _records(self, entry: Entry) -> list[Record]:
        """Return the records of a block, after checking that it follows."""
        if not follows(entry.before, self.position, entry.begins):
            raise EntryError(
                f"the block that begins after revision {entry.before.revision} does not follow what was received up to"
                f" {self.position.revision}"
            )
        decoder = self._decoder
        decoder.accepted_at_us = max(decoder.accepted_at_us, entry.before.accepted_at_us)
        try:
            records = decoder.decode(*entry.records())
        except (ValueError, IndexError) as error:
            raise EntryError(f"the records of a block are wrong: {error}") from error
        if decoder.revision != entry.after.revision or decoder.accepted_at_us != entry.after.accepted_at_us:
            raise EntryError("the records of a block do not lead to its position")
        return records

    # on the event loop

    async def run(self, apply: Callable[[list[Step]], Awaitable[None]]) -> None:
        """Call `apply` with steps in order, until cancelled. While it is awaited, no further list is handed over."""
        self._token = trio.lowlevel.current_trio_token()
        while True:
            while self._steps:
                steps: list[Step] = []
                size = 0
                while self._steps and size < _BATCH_BYTES:
                    steps.append(self._steps.popleft())
                    size += steps[-1].size
                await apply(steps)
                self.applied = steps[-1].position
                with self._lock:
                    self._waiting_bytes -= size
            await self._arrived.wait()
            self._arrived = trio.Event()

    def _wake(self) -> None:
        self._arrived.set()

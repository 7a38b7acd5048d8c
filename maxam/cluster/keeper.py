"""The journal of a gateway that follows another one: a thread that stores entries in their order and syncs them in groups."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Final, final

from maxam.cluster.entry import BLOCK, FILE, INCARNATION, SCHEMAS, SEAL, Entry
from maxam.cluster.ring import Ring
from maxam.errors import DiskFullError
from maxam.journal.encoding import Block, Position
from maxam.journal.files import Journal

QUEUE_BYTES_MAX: Final = 67_108_864  # of entries that wait for the disk
SYNC_BYTES_MAX: Final = 8_388_608  # stored without a sync
SYNC_S_MAX: Final = 0.2  # that a stored block waits for its sync
_FULL_PAUSE_S: Final = 1.0  # between two tries on a full disk
_ENTRY_BYTES: Final = 200  # of memory, beside the payload


@final
class Keeper:
    """Stores the entries of a feed in a journal, on a thread of its own.

    Attributes:
        synced: Position up to which the journal is durable.
        synced_index: Index of the last entry of a log that is durable; 0 on a feed.
        disk_full: The disk has no room for the next entry. It is tried again every second.
        ring: Buffer of durable blocks, for gateways that follow this one. None for none. To be set before `start`.
        store_file: Stores name and contents of a `file`, durably. It may raise DiskFullError. None ignores them. To be set before
            `start`.
    """

    def __init__(
        self,
        journal: Journal,
        position: Position,
        die: Callable[[BaseException], None],
        gather_s: float = 0.0,
    ) -> None:
        """Take a recovered journal.

        Args:
            journal: Belongs to the keeper until it is closed.
            position: Where it ends.
            die: Called on the keeper's thread with an error after which it is not known what the disk holds. Must end the process.
            gather_s: How long a stored block waits for its sync while no entry follows, so that others share that sync.
        """
        self.synced = position
        self.synced_index = 0
        self._stored_index = 0
        self._gather_s: Final = gather_s
        self.disk_full = False
        self.ring: Ring | None = None
        self.store_file: Callable[[str, bytes], None] | None = None
        self._journal: Final = journal
        self._die: Final = die
        self._unshown: Final[list[Entry]] = []  # not durable yet
        self._entries: Final[queue.SimpleQueue[Entry | None]] = queue.SimpleQueue()
        self._bytes = 0  # that wait
        self._lock: Final = threading.Lock()
        self._stored = position
        self._unsynced_bytes = 0
        self._unsynced_s = 0.0  # when the oldest block without a sync was stored
        self._ending = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="keeper", daemon=True)

    def begin(self, first: int) -> None:
        """Record that all entries of a log before an index are durable. Call it before the first one is offered."""
        self.synced_index = self._stored_index = first - 1

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of entries that are not stored yet."""
        return self._bytes

    @property
    def alive(self) -> bool:
        """Whether the thread is alive. A disk that does not answer leaves it alive."""
        return self._thread.is_alive()

    @property
    def full(self) -> bool:
        """Whether no further entry should be offered now."""
        return self._bytes > QUEUE_BYTES_MAX

    def offer(self, entry: Entry) -> None:
        """Store an entry after all that were offered before. Call it on one thread."""
        with self._lock:
            self._bytes += len(entry.payload) + _ENTRY_BYTES
        self._entries.put(entry)

    def close(self) -> None:
        """Store and sync all that was offered, unless the disk is full, and end the thread. The journal stays open."""
        self._ending.set()
        self._entries.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (entry := self._next()) is not None and self._store(entry):
                with self._lock:
                    self._bytes -= len(entry.payload) + _ENTRY_BYTES
                if self._unsynced_bytes >= SYNC_BYTES_MAX or time.monotonic() - self._unsynced_s >= SYNC_S_MAX:
                    self._sync()
            self._sync()
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is not known what the disk holds
            self._die(error)

    def _next(self) -> Entry | None:
        """Return the next entry, None at the end. Sync before waiting for one."""
        try:
            if self._gather_s and self._unsynced_bytes:
                waits_s = self._unsynced_s + self._gather_s - time.monotonic()
                return self._entries.get(timeout=max(0.0, waits_s))
            return self._entries.get_nowait()
        except queue.Empty:
            self._sync()
            return self._entries.get()

    def _sync(self) -> None:
        if self._unsynced_bytes:
            self._journal.sync()
            self._unsynced_bytes = 0
            self.synced = self._stored
        self.synced_index = self._stored_index
        ring = self.ring
        if ring is not None:
            for entry in self._unshown:
                if entry.kind == SEAL:
                    ring.sealed(entry.marker)
                else:
                    ring.wrote(_block(entry), entry.begins)
        self._unshown.clear()

    def _store(self, entry: Entry) -> bool:
        """Store an entry. On a full disk, try again until there is room; return False if the keeper is to end first."""
        while True:
            try:
                self._try(entry)
            except DiskFullError:
                self.disk_full = True
                self._sync()  # what there was room for
                if self._ending.wait(_FULL_PAUSE_S):
                    return False
            else:
                self.disk_full = False
                return True

    def _try(self, entry: Entry) -> None:
        journal = self._journal
        if entry.kind == BLOCK:
            block = _block(entry)
            journal.put(block, entry.marker, entry.begins)
            if not self._unsynced_bytes:
                self._unsynced_s = time.monotonic()
            self._unsynced_bytes += len(block.data)
            self._stored = entry.after
            self._unshown.append(entry)
        elif entry.kind == SEAL:
            journal.put_seal()
            self._unshown.append(entry)
        elif entry.kind == SCHEMAS:
            journal.keep_schemas(entry.texts())
        elif entry.kind == FILE and self.store_file is not None:
            self.store_file(*entry.file())
        elif entry.kind == INCARNATION:
            incarnation = entry.payload.decode()
            self._sync()
            journal.adopt(incarnation)
            if self.ring is not None:
                self.ring.renew(incarnation)
        self._stored_index = entry.index


def _block(entry: Entry) -> Block:
    return Block(entry.payload + entry.marker, entry.before, entry.after, settling=False)

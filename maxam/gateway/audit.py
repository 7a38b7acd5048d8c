"""The audit log: who did what, with which outcome and why; append-only, bounded, and chained line by line (`chain`).

Theory of operation. Whoever has something to tell calls `tell`, on the event loop: it costs a dict in a queue, and never waits. A thread of
its own writes the lines, numbers and chains them. What a peer can cause is bounded: each principal, and all strangers together, have so
many lines a minute; what is over is counted by event, outcome, reason and address, and told once a minute as one line with count, first and last.
Rejected SENDs are counted from the second of a kind on. So a flood fills neither the disk nor pushes out what else was told.

Whatever the disk does, the broker goes on: what cannot be written is counted, told once, and stands as a line of its own in the log once there is
room again. Lines are written as they come and synced within a second: `kill -9` loses what is in the queue, a power cut the last second.
"""

import contextlib
import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import trio

from maxam.config import AuditSettings, Settings
from maxam.errors import ProtocolError
from maxam.gateway.chain import GENESIS, LINE_BYTES_MAX, Anchor, digest, file_name, first_sequence, write_line
from maxam.gateway.log import log_bug, log_event
from maxam.journal.disk import Disk
from maxam.records import Identity, Rejection

if TYPE_CHECKING:
    from maxam.gateway.connection import ClientConnection

CLOSE_TIMEOUT_S: Final = 1.0
RETRY_S: Final = 30.0  # after the disk refused: until it is asked again
SYNC_S: Final = 1.0  # what a power cut may take
HEAD_INTERVAL_S: Final = 600.0  # between two lines of the ordinary log that tell the head: an anchor that is elsewhere
_WINDOW_S: Final = 60.0
_TICK_S: Final = 5.0  # between looks for windows that are over
_QUEUE_MAX: Final = 10_000  # lines that wait for the disk: some 5 MB
_BATCH_MAX: Final = 100  # written at once: less than the smallest file may hold
_GROUPS_MAX: Final = 10_000  # principals of which lines are counted within one minute; more count as strangers
_HELD_MAX: Final = 50  # kinds that are counted each for itself within one minute, of one principal
_OPERATOR_FACTOR: Final = 10  # of lines a minute, for what only entitled people can cause
_VALUE_CHARACTERS_MAX: Final = 300
STRANGERS: Final = ""  # the group of all who are no principals of the policy

# Events. Each is a row in docs/security.md.
STARTED: Final = "started"
STOPPED: Final = "stopped"
CONNECTED: Final = "connected"
REFUSED: Final = "refused"
DISCONNECTED: Final = "disconnected"
TAKEN_OVER: Final = "taken-over"
EXPELLED: Final = "expelled"
SEND_REJECTED: Final = "send-rejected"
RELOADED: Final = "reload"
ADMIN: Final = "admin"
LOST: Final = "lines-lost"
CUT: Final = "unfinished-line-cut"
ENROLMENT: Final = "enrolment"
EVENTS: Final = frozenset(
    {
        STARTED,
        STOPPED,
        CONNECTED,
        REFUSED,
        DISCONNECTED,
        TAKEN_OVER,
        EXPELLED,
        SEND_REJECTED,
        RELOADED,
        ADMIN,
        ENROLMENT,
        LOST,
        CUT,
    }
)
_OPERATORS: Final = frozenset({STARTED, STOPPED, RELOADED, ADMIN, ENROLMENT})
_NOBODY: Final = Identity("", "")
_COMMON: Final = frozenset(
    {"event", "outcome", "principal", "reason", "result"}
)  # what all that are counted together have

_Kind = tuple[str, str, str, str]  # event, outcome, reason, address


@dataclass(slots=True)
class _Held:
    """Events of one kind that are counted instead of told."""

    facts: dict[str, object]
    count: int
    first_s: float
    last_s: float


@final
class _Group:
    """What one principal, or all strangers, caused within a minute."""

    __slots__ = ("held", "lines", "rejected", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s: Final = since_s
        self.lines = 0
        self.held: Final[dict[_Kind, _Held]] = {}
        self.rejected: Final[set[str]] = set()  # results of SENDs that one line was written of


def stamp(at_s: float) -> str:
    """Return a time, in seconds since the epoch, as it stands in lines."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@final
class AuditFiles:
    """Writes lines to the files of a folder, and lives with whatever the disk does. Belongs to one thread, knows no clock but what it is told.

    Attributes:
        head: The last line that was written.
        lines: How many were, since the start.
        lost: How many could not be.
        failure: Why nothing can be written; empty while it can.
    """

    def __init__(self, folder: Path, disk: Disk, settings: AuditSettings) -> None:
        self.head = Anchor(0, GENESIS)
        self.lines = 0
        self.lost = 0
        self.failure = ""
        self._folder: Final = folder
        self._disk: Final = disk
        self._settings: Final = settings
        self._untold = 0  # lines lost that no line tells of yet
        self._lock = -1
        self._handle = -1
        self._size = 0  # of whole lines in the open file
        self._opened_at_s = 0.0  # about when its first line was written
        self._retry_at_s = 0.0
        self._unsynced = False

    def write(self, batch: list[dict[str, object]], now_s: float, wall: str) -> None:
        """Write lines, or count them as lost.

        Args:
            batch: What they say, in order.
            now_s: Monotonic seconds.
            wall: The time, for lines about the log itself.
        """
        if not self._open(now_s, wall):
            self._lose(len(batch))
            return
        if self._untold:
            batch = [{"at": wall, "event": LOST, "outcome": "failed", "count": self._untold}, *batch]
        head = self.head
        parts: list[bytes] = []
        for facts in batch:
            line = write_line(head.sequence + 1, head.sha256, facts)
            if len(line) > LINE_BYTES_MAX:
                line = write_line(
                    head.sequence + 1, head.sha256, {"at": wall, "event": LOST, "outcome": "too long", "count": 1}
                )
            head = Anchor(head.sequence + 1, digest(line))
            parts += [line, b"\n"]
        data = b"".join(parts)
        try:
            if self._size and (
                self._size + len(data) > self._settings.file_bytes_max
                or now_s - self._opened_at_s >= self._settings.file_age_s_max
            ):
                self._rotate(now_s)
            at = 0
            while at < len(data):
                at += self._disk.pwrite(self._handle, data[at:], self._size + at)
        except OSError as error:
            self._fail(error, now_s)
            self._lose(len(batch) - (1 if self._untold else 0))
            return
        self._unsynced = True
        self._size += len(data)
        self.head = head
        self.lines += len(batch)
        if self._untold:
            log_event(logging.WARNING, "audit-works", lost=self._untold)
            self._untold = 0

    def sync(self, now_s: float) -> None:
        """Make what was written durable."""
        if self._unsynced and self._handle >= 0:
            self._unsynced = False
            try:
                self._disk.fdatasync(self._handle)
            except OSError as error:
                self._fail(error, now_s)

    def close(self, now_s: float) -> None:
        """Sync and let go."""
        self.sync(now_s)
        self._let_go()

    def _lose(self, count: int) -> None:
        self.lost += count
        self._untold += count

    def _open(self, now_s: float, wall: str) -> bool:
        if self._handle >= 0:
            return True
        if now_s < self._retry_at_s:
            return False
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            if self._lock < 0:
                self._lock = self._disk.lock(str(self._folder / "lock"))
            self._resume(now_s, wall)
        except BlockingIOError:
            self._fail(OSError(f"another process writes to {self._folder}"), now_s)
        except OSError as error:
            self._fail(error, now_s)
        if self._handle >= 0:
            self.failure = ""
        return self._handle >= 0

    def _resume(self, now_s: float, wall: str) -> None:
        """Go on behind the last line that there is."""
        names = sorted(name for name in self._disk.names(str(self._folder)) if first_sequence(name) is not None)
        head, cut = Anchor(0, GENESIS), 0
        while names:
            path = str(self._folder / names[-1])
            last, end, size = self._last_line(path)
            cut += size - end
            torn = b"" if size == end else self._disk.read(path, end, min(size - end, 2 * LINE_BYTES_MAX))
            if last is None:  # not even one: the file was made, and its first line never finished
                if size:
                    self._note_cut(path, end, torn)
                if len(names) > 1 or first_sequence(names[-1]) == 1:
                    self._disk.unlink(path)
                    names.pop()
                    continue
                head = Anchor((first_sequence(names[-1]) or 1) - 1, GENESIS)
                break
            head = Anchor(_sequence_of(last, names[-1]), digest(last))
            handle = self._disk.open(path)
            try:
                if size > end:
                    self._note_cut(path, end, torn)
                    self._disk.truncate(handle, end)
            except OSError:
                self._disk.close(handle)
                raise
            if end < self._settings.file_bytes_max:
                self._handle, self._size = handle, end
            else:
                self._disk.close(handle)
            break
        self.head = head
        if self._handle < 0:
            self._create(head.sequence + 1)
        self._opened_at_s = now_s
        if cut:
            self.write([{"at": wall, "event": CUT, "outcome": "cut", "bytes": cut}], now_s, wall)

    def _note_cut(self, path: str, offset: int, torn: bytes) -> None:
        fingerprint = sha256(torn).hexdigest()
        log_event(logging.WARNING, "audit-tail-cut", path=path, offset=offset, length=len(torn), sha256=fingerprint)

    def _last_line(self, path: str) -> tuple[bytes | None, int, int]:
        """Return the last whole line of a file, None when there is none; where it ends, and where the file does."""
        size = self._disk.size(path)
        start, data = size, b""
        while start > 0 and data.count(b"\n") < 2:
            length = min(start, LINE_BYTES_MAX)
            start -= length
            data = self._disk.read(path, start, length) + data
        end = data.rfind(b"\n")
        if end < 0:
            return None, 0, size
        begin = data.rfind(b"\n", 0, end) + 1
        return data[begin:end], start + end + 1, size

    def _rotate(self, now_s: float) -> None:
        """Begin a new file, and remove the oldest ones above `files_max`."""
        self.sync(now_s)
        if self._handle < 0:
            raise OSError(self.failure)
        self._disk.close(self._handle)
        self._handle = -1
        self._create(self.head.sequence + 1)
        self._opened_at_s = now_s
        names = sorted(name for name in self._disk.names(str(self._folder)) if first_sequence(name) is not None)
        for name in names[: -self._settings.files_max]:
            self._disk.unlink(str(self._folder / name))
        self._disk.fsync_folder(str(self._folder))

    def _create(self, sequence: int) -> None:
        self._handle = self._disk.create(str(self._folder / file_name(sequence)))
        self._size = 0
        self._disk.fsync_folder(str(self._folder))

    def _fail(self, error: OSError, now_s: float) -> None:
        """Let go of the file, so that the next try looks at what is really there."""
        if self._handle >= 0:
            with contextlib.suppress(
                OSError
            ):  # half a line; if it cannot be cut off now, it is when the file is opened again
                self._disk.truncate(self._handle, self._size)
            with contextlib.suppress(OSError):
                self._disk.close(self._handle)
            self._handle = -1
        self._unsynced = False
        self._retry_at_s = now_s + RETRY_S
        if not self.failure:
            action = f"what happens is counted, not written; tried again every {RETRY_S:g} s"
            log_event(logging.ERROR, "audit-failed", folder=self._folder, error=error, action=action)
        self.failure = str(error)

    def _let_go(self) -> None:
        for handle in (self._handle, self._lock):
            if handle >= 0:
                with contextlib.suppress(OSError):
                    self._disk.close(handle)
        self._handle = self._lock = -1


def _sequence_of(line: bytes, name: str) -> int:
    """Return the number of a line; of one that is damaged, something that no line has."""
    try:
        sequence = json.loads(line)["sequence"]
    except (ValueError, TypeError, KeyError, RecursionError):
        sequence = None
    # `audit verify` tells of the damage; to go on is all that can be done here.
    return sequence if isinstance(sequence, int) else (first_sequence(name) or 1) + 1_000_000


@final
class Audit:
    """Takes what is to be told from the event loop and has a thread write it. All methods but `close` belong to the event loop."""

    def __init__(
        self,
        settings: AuditSettings,
        folder: Path,
        disk: Disk,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; nothing is written before `start`. With `files_max` of 0 nothing ever is.

        Args:
            settings: What may be kept.
            folder: Where.
            disk: The same.
            clock: Monotonic seconds.
            wall: Seconds since the epoch.
        """
        self._on: Final = settings.files_max > 0
        self._lines_max: Final = settings.lines_per_minute_max
        self._clock: Final = clock
        self._wall: Final = wall
        self._files: Final = AuditFiles(folder, disk, settings)
        self._groups: Final[dict[str, _Group]] = {}
        self._queue: Final[queue.SimpleQueue[dict[str, object] | None]] = queue.SimpleQueue()
        # what went in and what came out: each written by one thread, so neither needs a lock
        self._in = 0
        self._out = 0
        self._dropped = 0  # since the last line that tells of it
        self._dropped_all = 0
        self._thread: Final = threading.Thread(target=self._run, name="audit", daemon=True)

    # What operators see.

    @property
    def head(self) -> Anchor:
        """The last line that was written."""
        return self._files.head

    @property
    def written(self) -> int:
        """Lines written since the start."""
        return self._files.lines

    @property
    def lost(self) -> int:
        """Lines that could not be written since the start."""
        return self._files.lost + self._dropped_all

    @property
    def failure(self) -> str:
        """Why nothing can be written; empty while it can."""
        return self._files.failure

    # What happens.

    def tell(
        self, event: str, outcome: str, who: Identity = _NOBODY, address: str = "", reason: str = "", **facts: object
    ) -> None:
        """Tell of one event.

        Args:
            event: What happened.
            outcome: What became of it.
            who: Principal and fingerprint; either may be empty, and is left out then.
            address: The peer's, `host:port`.
            reason: Why.
            facts: What else; those that are None are left out. No bodies, no secrets.
        """
        if not self._on:
            return
        if event == STOPPED:
            self._summarise_all()
        line = self._line(event, outcome, who, address, reason, facts)
        group = self._group(who.principal)
        entitled = event in _OPERATORS and outcome != "refused"  # what is refused, anybody can cause
        allowed = self._lines_max * (_OPERATOR_FACTOR if entitled else 1)
        if group.lines < allowed:
            group.lines += 1
            self._put(line)
        else:
            self._hold(group, line, event, outcome, reason, address)

    def rejected(self, who: Identity, destination: bytes, disposition: str, rejection: Rejection) -> None:
        """Tell of a rejected SEND: of the first of its kind within a minute by a line, of the others by their number."""
        if not self._on:
            return
        group = self._group(who.principal)
        result = rejection.result
        if result in group.rejected or group.lines >= self._lines_max:
            kind = (SEND_REJECTED, disposition, result, "")
            held = group.held.get(kind)
            if held is not None:  # a flood should cost little
                held.count += 1
                held.last_s = self._wall()
                return
        facts: dict[str, object] = {
            "result": result,
            "destination": destination.decode("utf-8", "backslashreplace"),
            "schema": rejection.schema or None,
        }
        line = self._line(SEND_REJECTED, disposition, who, "", rejection.reason, facts)
        if result in group.rejected or group.lines >= self._lines_max:
            self._hold(group, line, SEND_REJECTED, disposition, result, "")
        else:
            group.rejected.add(result)
            group.lines += 1
            self._put(line)

    def refused(self, listener: str, address: str, reason: str) -> None:
        """Tell of a connection that another listener than the clients' refused."""
        self.tell(REFUSED, "refused", address=address, reason=reason, listener=listener)

    def reloaded(self, item: str, outcome: str, detail: str, trigger: str) -> None:
        """Tell of an item that was put into force, or refused, and who asked."""
        self.tell(RELOADED, outcome, reason=detail, item=item, trigger=trigger)

    def expelled(self, connection: "ClientConnection", failure: ProtocolError) -> None:
        """Tell of a client whose connection ends because it is entitled to none any more."""
        peer = connection.peer
        who = Identity("" if peer is None else peer.principal, connection.fingerprint)
        session = None if peer is None else peer.client_id
        self.tell(EXPELLED, failure.message, who, connection.address, failure.detail, session=session)

    def tick(self) -> None:
        """Tell the numbers of minutes that are over."""
        now_s = self._clock()
        for name in [name for name, group in self._groups.items() if now_s - group.since_s >= _WINDOW_S]:
            self._summarise(self._groups.pop(name))

    # Life.

    def start(self) -> None:
        """Start the thread."""
        if self._on:
            self._thread.start()

    async def run(self) -> None:
        """Tell numbers as minutes end, and the head to the ordinary log, until cancelled."""
        told, told_at_s = self.head, self._clock()
        while self._on:
            await trio.sleep(_TICK_S)
            self.tick()
            if self.head != told and self._clock() - told_at_s >= HEAD_INTERVAL_S:
                told, told_at_s = self.head, self._clock()
                self._tell_head()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write what waits and all numbers, and end; what is not done by then is lost."""
        if not self._on:
            return
        self._summarise_all()
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self._tell_head()

    def _tell_head(self) -> None:
        log_event(
            logging.INFO, "audit-head", sequence=self.head.sequence, sha256=self.head.sha256, lost=self.lost or None
        )

    def _line(
        self, event: str, outcome: str, who: Identity, address: str, reason: str, facts: dict[str, object]
    ) -> dict[str, object]:
        line: dict[str, object] = {"at": stamp(self._wall()), "event": event, "outcome": outcome}
        for name, value in (
            ("principal", who.principal),
            ("fingerprint", who.fingerprint),
            ("address", address),
            ("reason", reason),
        ):
            if value:
                line[name] = _short(value)
        for name, fact in facts.items():
            if fact is not None:
                line[name] = fact if isinstance(fact, int | float) else _short(str(fact))
        return line

    def _group(self, principal: str) -> _Group:
        name = STRANGERS if principal.startswith("fingerprint:") else principal
        if name not in self._groups and len(self._groups) >= _GROUPS_MAX:
            name = STRANGERS
        group = self._groups.get(name)
        if group is None or self._clock() - group.since_s >= _WINDOW_S:
            if group is not None:
                self._summarise(group)
            group = self._groups[name] = _Group(self._clock())
        return group

    def _hold(
        self, group: _Group, line: dict[str, object], event: str, outcome: str, reason: str, address: str
    ) -> None:
        kind = (event, outcome, reason, _host(address))
        held = group.held.get(kind)
        if held is None and len(group.held) >= _HELD_MAX:
            kind = (event, "", "", "")  # there are few events
            line = {"event": event, "outcome": "various", "principal": line.get("principal")}
            held = group.held.get(kind)
        at = self._wall()
        if held is None:
            group.held[kind] = _Held(line, 1, at, at)
        else:
            held.count += 1
            held.last_s = at

    def _summarise_all(self) -> None:
        for group in self._groups.values():
            self._summarise(group)
        self._groups.clear()

    def _summarise(self, group: _Group) -> None:
        at = stamp(self._wall())
        for (_, _, _, host), held in group.held.items():
            facts = {name: value for name, value in held.facts.items() if name in _COMMON and value is not None}
            if host:
                facts["address"] = host
            self._put(
                {"at": at, **facts, "count": held.count, "first": stamp(held.first_s), "last": stamp(held.last_s)}
            )

    def _put(self, line: dict[str, object]) -> None:
        if self._in - self._out >= _QUEUE_MAX:
            self._dropped += 1
            self._dropped_all += 1
            return
        if self._dropped:
            lost = {"at": stamp(self._wall()), "event": LOST, "outcome": "too many waited", "count": self._dropped}
            self._dropped = 0
            self._in += 1
            self._queue.put(lost)
        self._in += 1
        self._queue.put(line)

    # The thread.

    def _run(self) -> None:
        try:
            self._write_all()
        except Exception as error:  # noqa: BLE001  # a bug here must not touch the broker, which goes on without this
            log_bug("internal-error", error, action="the audit log is no longer written")

    def _write_all(self) -> None:
        files = self._files
        sync_s: float | None = None  # when what was written is synced
        ending = False
        while not ending:
            timeout_s = None if sync_s is None else max(0.0, sync_s - time.monotonic())
            batch: list[dict[str, object]] = []
            with contextlib.suppress(queue.Empty):
                line = self._queue.get(timeout=timeout_s)
                while line is not None:
                    batch.append(line)
                    if len(batch) == _BATCH_MAX:
                        break
                    line = self._queue.get_nowait()
                else:
                    ending = True
            now_s = time.monotonic()
            if batch:
                files.write(batch, now_s, stamp(self._wall()))
                self._out += len(batch)
                sync_s = now_s + SYNC_S if sync_s is None else sync_s
            if sync_s is not None and (now_s >= sync_s or ending):
                files.sync(now_s)
                sync_s = None
        files.close(time.monotonic())


def audit_folder(settings: Settings) -> Path:
    """Return where the audit log of a gateway is."""
    journal = settings.journal.folder.absolute()
    return settings.audit.folder or journal.with_name(f"{journal.name}-audit")


def _short(text: str) -> str:
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[:_VALUE_CHARACTERS_MAX] + "…"


def _host(address: str) -> str:
    """Return an address without its port, which some come without."""
    bare = not address.startswith("[") and address.count(":") != 1
    return address if bare else address.rpartition(":")[0]

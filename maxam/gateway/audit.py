"""The audit log: each event with client, outcome and reason. It is append-only, bounded, and chained line by line (`audit_chain`).

Theory of operation. A part of the gateway that has an event to log calls `record`, on the event loop. That costs a dict in a queue, and
never waits. A thread of its own numbers the lines, chains them and writes them. The lines that peers can cause are bounded. Each
principal has a number of lines a minute, and so have all unauthenticated clients together. Events above that are counted by event,
outcome, reason and address, and logged once a minute as one line with count, first and last. Rejected SENDs are counted from the
second of a kind on. So a flood neither fills the disk nor pushes out other events.

The broker goes on when the disk fails. Lines that cannot be written are counted and reported once. Once there is room again, their
number is a line of its own in the log. Lines are written as they come and synced within a second: `kill -9` loses those in the queue,
a power cut those of the last second.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

import trio

from maxam.audit_chain import Anchor
from maxam.config import AuditSettings, Settings
from maxam.gateway.audit_files import CUT, LOST, AuditFiles, stamp
from maxam.gateway.audit_shipping import AuditShipper
from maxam.gateway.listener import host_of
from maxam.gateway.log import log_bug, log_event
from maxam.journal.disk import Disk
from maxam.records import Identity, Rejection

CLOSE_TIMEOUT_S: Final = 1.0
SYNC_S: Final = 1.0  # lines of this time may be lost in a power cut
HEAD_INTERVAL_S: Final = 600.0  # between two lines of the ordinary log with the head: an anchor that is elsewhere
_WINDOW_S: Final = 60.0
_TICK_S: Final = 5.0  # between checks for windows that are over
_QUEUE_MAX: Final = 10_000  # lines that wait for the disk: some 5 MB
_BATCH_MAX: Final = 100  # written at once: less than the smallest file may hold
_GROUPS_MAX: Final = 10_000  # principals of which lines are counted within one minute; more count as unauthenticated
_HELD_MAX: Final = 50  # kinds that are counted each for itself within one minute, of one principal
_OPERATOR_FACTOR: Final = 10  # of lines a minute, for what only entitled people can cause
_VALUE_CHARACTERS_MAX: Final = 300
UNAUTHENTICATED: Final = ""  # the group of all who are no principals of the policy

# Events. Each is a row in docs/operate/security.md.
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
ENROLMENT: Final = "enrolment"
FOLLOWING: Final = "following"
PROMOTED: Final = "promoted"
_OPERATORS: Final = frozenset({STARTED, STOPPED, RELOADED, ADMIN, ENROLMENT, FOLLOWING, PROMOTED})
EVENTS: Final = frozenset(
    {*_OPERATORS, CONNECTED, REFUSED, DISCONNECTED, TAKEN_OVER, EXPELLED, SEND_REJECTED, LOST, CUT}
)
_NO_ONE: Final = Identity("", "")
_COMMON: Final = frozenset(
    {"event", "outcome", "principal", "reason", "result"}
)  # equal in all events counted together

_Kind = tuple[str, str, str, str]  # event, outcome, reason, address


@dataclass(slots=True)
class _Held:
    """Events of one kind that are counted instead of logged."""

    facts: dict[str, object]
    count: int
    first_s: float
    last_s: float


@dataclass(slots=True)
class _Group:
    """Events that one principal, or all unauthenticated clients, caused within a minute.

    Attributes:
        since_s: Start of the minute.
        lines: Number of lines written.
        held: Events that are counted instead of logged.
        rejected: Results of SENDs that a line was written for.
    """

    since_s: float
    lines: int = 0
    held: dict[_Kind, _Held] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)


@final
class Audit:
    """Takes events from the event loop and has a thread write them. All methods but `close` belong to the event loop.

    Attributes:
        observers: Called with each event, its principal, address, reason and facts, before it is written or counted.
    """

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
            settings: Limits of the log.
            folder: Folder of the files.
            disk: The disk that holds it.
            clock: Monotonic seconds.
            wall: Seconds since the epoch.
        """
        self.observers: Final[list[Callable[[str, Identity, str, str, Mapping[str, object]], None]]] = []
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
        self._dropped = 0  # since the last line that reports them
        self._dropped_all = 0
        self._thread: Final = threading.Thread(target=self._run, name="audit", daemon=True)
        self._shipper: Final = AuditShipper(settings.syslog, folder) if settings.syslog else None

    # For operators.

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

    @property
    def shipping_failure(self) -> str:
        """Why lines cannot be sent to the collector of syslog; empty while they can."""
        return "" if self._shipper is None else self._shipper.failure

    # Events.

    def record(
        self, event: str, outcome: str, who: Identity = _NO_ONE, address: str = "", reason: str = "", **facts: object
    ) -> None:
        """Log one event.

        Args:
            event: Name of the event.
            outcome: Result of the event.
            who: Principal and fingerprint. Either may be empty, and is left out then.
            address: The peer's, `host:port`.
            reason: Reason for the outcome.
            facts: Further facts. Those that are None are left out. No bodies, no secrets.
        """
        for observe in self.observers:
            observe(event, who, address, reason, facts)
        if not self._on:
            return
        if event == STOPPED:
            self._summarise_all()
        line = self._line(event, outcome, who, address, reason, facts)
        group = self._group(who.principal)
        entitled = event in _OPERATORS and outcome != "refused"  # any client can cause a refusal
        allowed = self._lines_max * (_OPERATOR_FACTOR if entitled else 1)
        if group.lines < allowed:
            group.lines += 1
            self._put(line)
        else:
            self._hold(group, line, event, outcome, reason, address)

    def rejected(self, who: Identity, destination: bytes, disposition: str, rejection: Rejection) -> None:
        """Log a rejected SEND: the first of its kind within a minute by a line, the others by their number."""
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
        """Log a connection that another listener than the clients' refused."""
        self.record(REFUSED, "refused", address=address, reason=reason, listener=listener)

    def reloaded(self, item: str, outcome: str, detail: str, trigger: str) -> None:
        """Log an item that was put into force, or refused, and the origin of the request."""
        self.record(RELOADED, outcome, reason=detail, item=item, trigger=trigger)

    def tick(self) -> None:
        """Log the numbers of minutes that are over."""
        now_s = self._clock()
        for name in [name for name, group in self._groups.items() if now_s - group.since_s >= _WINDOW_S]:
            self._summarise(self._groups.pop(name))

    # Life.

    def start(self) -> None:
        """Start the thread."""
        if self._on:
            self._thread.start()
            if self._shipper is not None:
                self._shipper.start()

    async def run(self) -> None:
        """Log numbers as minutes end, and the head to the ordinary log, until cancelled."""
        logged, logged_at_s = self.head, self._clock()
        while self._on:
            await trio.sleep(_TICK_S)
            self.tick()
            if self.head != logged and self._clock() - logged_at_s >= HEAD_INTERVAL_S:
                logged, logged_at_s = self.head, self._clock()
                self._log_head()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write what waits and all numbers, and end; what is not done by then is lost."""
        if not self._on:
            return
        self._summarise_all()
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._shipper is not None:
            self._shipper.close(timeout_s)
        self._log_head()

    def _log_head(self) -> None:
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
        name = UNAUTHENTICATED if principal.startswith("fingerprint:") else principal
        if name not in self._groups and len(self._groups) >= _GROUPS_MAX:
            name = UNAUTHENTICATED
        group = self._groups.get(name)
        if group is None or self._clock() - group.since_s >= _WINDOW_S:
            if group is not None:
                self._summarise(group)
            group = self._groups[name] = _Group(self._clock())
        return group

    def _hold(
        self, group: _Group, line: dict[str, object], event: str, outcome: str, reason: str, address: str
    ) -> None:
        kind = (event, outcome, reason, host_of(address))
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

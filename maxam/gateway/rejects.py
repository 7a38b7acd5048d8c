"""Pass rejected SENDs to a journal of their own, beside everything that the broker promises.

Bodies that must not be kept are removed where a `RejectedEvent` is made, before anything queues or keeps it. Bodies of unauthorised
SENDs, and those that a rule excludes, are hashed there and dropped. The event loop then only decides whether the SEND is to be stored.
It decides by its principal's rate and by the length of the queue, and puts the SEND in the queue. A thread does the rest: it looks up
the expectation of the rule, and writes. The broker goes on when the disk fails. Lost records are counted, and reported once.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final, final

from maxam.avro.registry import Registry
from maxam.config import Settings
from maxam.errors import MaxamError
from maxam.gateway.log import log_bug, log_event
from maxam.journal.disk import Disk
from maxam.journal.rejects import RejectedJournal, RejectedSettings
from maxam.metrics import Counters
from maxam.records import UNJUDGED, Headers, Identity, RejectedSend, Rejection, Validation
from maxam.stomp.events import Send, SkippedSend
from maxam.token_bucket import TokenBuckets

TIDY_S: Final = 60.0  # how often what was written is synced, and what is old is sealed or removed
RETRY_S: Final = 30.0  # after the disk refused: until it is asked again
_CALM_US: Final = 60_000_000  # without a loss: then the next one is reported again
_BATCH_RECORDS_MAX: Final = 1000  # of one block
_BATCH_BYTES_MAX: Final = 1_048_576  # the same, or one SEND alone
_RECORD_BYTES: Final = 256  # of a record beside destination, headers and body: publisher, schema, reason
_PRINCIPALS_MAX: Final = 10_000  # principals whose rates and losses are remembered
_SEGMENTS_MIN: Final = 8  # that the room for all is divided into at least, as whole ones are removed
CLOSE_TIMEOUT_S: Final = 0.5
_UNAUTHORISED: Final = b"rejected-unauthorised"

BODY_KEPT: Final = "kept"
BODY_UNAUTHORISED: Final = "unauthorised"  # the body of a client without rights is not kept, only its hash
BODY_PRIVATE: Final = "private"  # its rule forbids to keep rejected bodies


@final
class RejectedEvent:
    """One rejected SEND, without the parts that may not be kept.

    Attributes:
        identity: Sender of the SEND.
        destination: As sent.
        headers: User headers. Without the body only its length and SHA-256.
        body: As sent. Empty unless `body_state` is BODY_KEPT.
        body_bytes: Its length as sent.
        body_sha256: In hexadecimal. Empty while the body is kept.
        body_state: BODY_KEPT, BODY_UNAUTHORISED or BODY_PRIVATE.
        deleted: It had no body, and would have deleted the topic.
        condition: Condition of its acceptance.
        disposition: Disposition of the answer, also if none was sent.
        rejection: Reason of the rejection.
        registry: Registry that judged it.
        at_us: Time of the rejection; microseconds since the epoch.
        queued_bytes: Bytes that it counts for while it waits.
    """

    __slots__ = (
        "at_us",
        "body",
        "body_bytes",
        "body_sha256",
        "body_state",
        "condition",
        "deleted",
        "destination",
        "disposition",
        "headers",
        "identity",
        "queued_bytes",
        "registry",
        "rejection",
    )

    def __init__(
        self,
        identity: Identity,
        event: Send,
        disposition: bytes,
        rejection: Rejection,
        registry: Registry,
        at_us: int,
    ) -> None:
        self.identity: Final = identity
        self.destination: Final = event.destination
        self.body_bytes: Final = event.body_bytes if isinstance(event, SkippedSend) else len(event.body)
        self.deleted: Final = not self.body_bytes
        self.condition: Final = event.condition
        self.disposition: Final = disposition
        self.rejection: Final = rejection
        self.registry: Final = registry
        self.at_us: Final = at_us
        # A malformed destination has no rights, and rights are checked after its form.
        authorised = disposition != _UNAUTHORISED and rejection.result != "invalid-destination"
        self.body_state: Final = body_state_by_rule(event.destination, registry) if authorised else BODY_UNAUTHORISED
        if self.body_state == BODY_KEPT:
            self.headers: Headers = event.headers
            self.body = event.body
            self.body_sha256 = ""
        else:
            self.body_sha256 = event.body_sha256 if isinstance(event, SkippedSend) else self.digest(event.body)
            digest = self.body_sha256.encode()
            self.headers = ((b"content-length", b"%d" % self.body_bytes), (b"body-sha256", digest))
            self.body = b""
        sizes = [len(name) + len(value) for name, value in self.headers]
        self.queued_bytes: Final = _RECORD_BYTES + len(self.destination) + len(self.body) + sum(sizes)

    @staticmethod
    def digest(body: bytes) -> str:
        """Return the SHA-256 of a body in hexadecimal."""
        return sha256(body).hexdigest()

    @property
    def cost_bytes(self) -> int:
        """About what it takes on the disk; of one whose body is only hashed, a share of that too."""
        if self.body_state == BODY_KEPT:
            return self.queued_bytes
        return _RECORD_BYTES + len(self.destination) + self.body_bytes // 64


@final
class LossReport:
    """Reports the first of a run of losses, and its end, a minute without any, by their number."""

    __slots__ = ("_lost", "_lost_at_us")

    def __init__(self) -> None:
        self._lost = 0
        self._lost_at_us = 0

    def lost(self, now_us: int) -> bool:
        """Count a loss; return whether it is the first of a run."""
        first = not self._lost or now_us - self._lost_at_us >= _CALM_US
        self._lost = 1 if first else self._lost + 1
        self._lost_at_us = now_us
        return first

    def ended(self, now_us: int) -> int:
        """Return how many a run was that has just ended, or 0."""
        if not self._lost or now_us - self._lost_at_us < _CALM_US:
            return 0
        lost, self._lost = self._lost, 0
        return lost


@final
class RejectedStore:
    """Writes batches of rejected SENDs, and lives with whatever the disk does. Belongs to one thread, knows no clock."""

    def __init__(
        self, folder: str, disk: Disk, settings: RejectedSettings, counters: Counters, sync_marker: bytes
    ) -> None:
        self._folder: Final = folder
        self._disk: Final = disk
        self._settings: Final = settings
        self._counters: Final = counters
        self._sync_marker: Final = sync_marker
        self._journal: RejectedJournal | None = None
        self._retry_at_s = 0.0
        self._lost = 0  # since the disk refused
        self._failing = False

    def store(self, batch: list[RejectedEvent], now_s: float) -> None:
        """Store a batch, or count it as lost.

        Args:
            batch: In the order in which they were rejected.
            now_s: Monotonic seconds.
        """
        journal = self._open(now_s)
        if journal is not None:
            try:
                journal.append(_records(batch, journal.head, journal.accepted_at_us))
            except (OSError, MaxamError) as error:
                self._fail(error, now_s)
            else:
                self._counters.rejects_stored += len(batch)
                if self._failing:
                    self._failing = False
                    log_event(logging.WARNING, "rejected-journal-works", lost=self._lost)
                    self._lost = 0
                return
        self._counters.rejects_failed += len(batch)
        self._lost += len(batch)

    def tidy(self, now_s: float, wall_us: int) -> None:
        """Do what is due without new records; `wall_us` in microseconds since the epoch."""
        journal = self._open(now_s)
        if journal is not None:
            try:
                journal.tidy(wall_us)
            except (OSError, MaxamError) as error:
                self._fail(error, now_s)

    def close(self) -> None:
        """Seal what is open, if the disk lets it."""
        if self._journal is not None:
            try:
                self._journal.close()
            except (OSError, MaxamError) as error:
                self._fail(error, 0.0)

    def _open(self, now_s: float) -> RejectedJournal | None:
        if self._journal is None and now_s >= self._retry_at_s:
            try:
                self._journal = RejectedJournal.open(self._folder, self._disk, self._settings, self._sync_marker)
            except (OSError, MaxamError) as error:
                self._fail(error, now_s)
                return None
            if not self._failing:  # else it is what the failed write left
                for path, offset, length in self._journal.cut:
                    log_event(logging.WARNING, "rejected-tail-cut", path=path, offset=offset, length=length)
        return self._journal

    def _fail(self, error: Exception, now_s: float) -> None:
        if self._journal is not None:
            self._journal.abandon()
            self._journal = None
        self._retry_at_s = now_s + RETRY_S
        if not self._failing:
            self._failing = True
            log_event(
                logging.ERROR,
                "rejected-journal-failed",
                error=error,
                action=f"rejected SENDs are counted, not stored; tried again every {RETRY_S:g} s",
            )


@final
class RejectedSends:
    """Takes rejected SENDs from the broker and has a thread store them. `record` belongs to the event loop."""

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        counters: Counters,
        sync_marker: bytes,
        wall_us: Callable[[], int],
    ) -> None:
        """Prepare; nothing is stored before `start`.

        Args:
            settings: Of the gateway.
            disk: Where the journal is.
            counters: Where losses are counted.
            sync_marker: 16 random bytes.
            wall_us: Returns the gateway's time in microseconds since the epoch; called in the thread.
        """
        stored = settings.journal
        how = RejectedSettings(
            min(stored.segment_bytes_max, max(1, stored.rejected_bytes_max // _SEGMENTS_MIN)),
            stored.segment_age_s_max,
            stored.rejected_bytes_max,
            stored.rejected_days_max,
            stored.durability == "fsync",
        )
        self._store: Final = RejectedStore(str(stored.folder), disk, how, counters, sync_marker)
        self._limits: Final = settings.limits
        self._counters: Final = counters
        self._wall_us: Final = wall_us
        # Bytes that each principal may still store. A bucket that is not empty grants a SEND of any size, so large bodies are kept too.
        per_s, burst = settings.limits.rejected_principal_bytes_per_s, settings.limits.rejected_principal_burst_bytes
        self._buckets: Final = TokenBuckets(per_s, burst, _PRINCIPALS_MAX)
        # Of principals over their rate, until the run is logged as ended
        self._losses: Final[dict[str, LossReport]] = {}
        self._full: Final = LossReport()
        self._queue: Final[queue.SimpleQueue[RejectedEvent | None]] = queue.SimpleQueue()
        # what went in, written by the event loop, and what came out, written by the thread: so neither needs a lock
        self._in_records = self._in_bytes = 0
        self._out_records = self._out_bytes = 0
        self._thread: Final = threading.Thread(target=self._run, name="rejects", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Store what waits, seal and end; what is not done by then is lost."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def record(self, event: RejectedEvent) -> None:
        """Queue one rejected SEND, or count why not."""
        principal = event.identity.principal
        wall_us = event.at_us
        bucket = self._buckets.of(principal, wall_us / 1_000_000)
        losses = self._losses.get(principal)
        if bucket.empty(wall_us / 1_000_000):  # first of all: a flood should cost little
            self._counters.rejects_over_rate += 1
            if losses is None:
                if len(self._losses) >= _PRINCIPALS_MAX:
                    del self._losses[next(iter(self._losses))]
                losses = self._losses[principal] = LossReport()
            if losses.lost(wall_us):
                log_event(
                    logging.WARNING,
                    "rejects-not-stored",
                    principal=principal,
                    reason="its rate is over rejected_principal_bytes_per_s",
                )
            return
        if losses is not None and (count := losses.ended(wall_us)):
            del self._losses[principal]
            log_event(logging.INFO, "rejects-stored-again", principal=principal, lost=count)
        waiting = self._in_records - self._out_records
        room = self._limits.rejected_queue_bytes_max - (self._in_bytes - self._out_bytes)
        full = waiting >= self._limits.rejected_queue_records_max or room <= 0
        if full or (waiting and event.queued_bytes > room):
            self._counters.rejects_over_queue += 1
            if self._full.lost(wall_us):
                log_event(logging.WARNING, "rejects-not-stored", reason="too many wait for the disk")
            return
        if count := self._full.ended(wall_us):
            log_event(logging.INFO, "rejects-stored-again", lost=count)
        bucket.take(event.cost_bytes, wall_us / 1_000_000)
        self._in_records += 1
        self._in_bytes += event.queued_bytes
        self._queue.put(event)

    def _run(self) -> None:
        try:
            self._store_all()
        except Exception as error:  # noqa: BLE001  # a bug here must not touch the broker, which goes on without this
            log_bug("internal-error", error, action="rejected SENDs are no longer stored")

    def _store_all(self) -> None:
        tidy_s = time.monotonic()
        ending = False
        while not ending:
            now_s = time.monotonic()
            if now_s >= tidy_s:
                self._store.tidy(now_s, self._wall_us())
                tidy_s = now_s + TIDY_S
            try:
                event = self._queue.get(timeout=max(0.0, tidy_s - now_s))
            except queue.Empty:
                continue
            batch: list[RejectedEvent] = []
            size = 0
            while event is not None:
                batch.append(event)
                size += event.queued_bytes
                if len(batch) == _BATCH_RECORDS_MAX or size >= _BATCH_BYTES_MAX:
                    break
                try:
                    event = self._queue.get_nowait()
                except queue.Empty:
                    break
            else:
                ending = True
            if batch:
                self._store.store(batch, time.monotonic())
                self._out_records += len(batch)
                self._out_bytes += size
        self._store.close()


def _records(batch: list[RejectedEvent], head: int, at_us: int) -> list[RejectedSend]:
    """Return the records of a batch that follows a position."""
    records: list[RejectedSend] = []
    for event in batch:
        head += 1
        at_us = max(at_us, event.at_us)
        records.append(
            RejectedSend(
                head,
                at_us,
                event.destination,
                event.deleted,
                event.identity,
                _expected(event.registry, event.destination),
                event.headers,
                event.body,
                event.disposition.decode(),
                event.rejection,
            )
        )
    return records


def body_state_by_rule(destination: bytes, registry: Registry) -> str:
    """Return whether the body of a rejected SEND may be kept. A destination without a rule has none that could forbid it."""
    if registry.rejected_bodies_stored:
        return BODY_KEPT  # no rule forbids it: a flood should not cost a search for one
    rule = registry.rule_for(destination.decode())
    return BODY_KEPT if rule is None or rule.rejected_bodies_stored else BODY_PRIVATE


def _expected(registry: Registry, destination: bytes) -> Validation:
    """Return encoding and type that the rule of a destination asks for; no minor judged the body, and no datum was found in it."""
    rule = registry.rule_for(destination.decode())
    return UNJUDGED if rule is None else Validation(rule.encoding, rule.schema, "", b"", 0, 0)

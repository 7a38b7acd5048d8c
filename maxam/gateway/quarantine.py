"""The last rejected SENDs, in memory, for operators to look at and to send again.

Of each principal the last ones are kept, and no principal can push out those of others: whoever holds the largest share of the
records or bytes, loses its oldest. So with n principals each keeps what is within an n-th of both. Principals that no policy names
share one share, as a certificate alone is enough to be one of them. The last record that a principal has loses its body first.

What must not be kept is gone before it gets here: the body of an unauthorised SEND, and of one whose rule says
`store_rejected_bodies = false`; see `RejectedEvent`. Belongs to the event loop, knows no clock; a new run begins with none.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, final

from maxam.broker.broker import Broker, OnRejected
from maxam.gateway.audit import Audit
from maxam.gateway.rejects import BODY_KEPT, RejectedEvent, RejectedSends
from maxam.records import Headers, Identity, Rejection
from maxam.stomp.events import Condition, Send

BODY_GIVEN_UP: Final = "given-up"  # there was no room for it
_RECORD_BYTES: Final = 1024  # of a record beside what a client wrote: objects, reason, its place in share and heap
_UNKNOWN: Final = "fingerprint:"  # what the names of principals begin with that no policy names
_LONE_SHARE: Final = 4  # of all bytes: a body longer than this part of them is not kept


@final
class Quarantined:
    """One rejected SEND that is kept.

    Attributes:
        number: Its place in the order of rejection, from 1 in each run.
        identity: Who sent it.
        destination: As sent; it may be malformed.
        headers: User headers; of a SEND whose body may not be kept only its length and SHA-256.
        body: As sent; empty unless `body_state` is BODY_KEPT.
        body_bytes: Its length as sent.
        body_sha256: In hexadecimal; empty while the body is kept.
        body_state: BODY_KEPT, or why it is not: BODY_UNAUTHORISED, BODY_PRIVATE, BODY_GIVEN_UP.
        condition: What it wanted to be compared with.
        disposition: What it was answered, or would have been.
        rejection: Why.
        rejected_at_us: Microseconds since the epoch.
        head: The newest change of all that had been appended then.
        revision: The topic's newest committed value then; 0: it had none.
        resubmitted: Who sent it again, and what was answered, oldest first.
        size: What it counts for.
    """

    __slots__ = (
        "body",
        "body_bytes",
        "body_sha256",
        "body_state",
        "condition",
        "destination",
        "disposition",
        "head",
        "headers",
        "identity",
        "number",
        "rejected_at_us",
        "rejection",
        "resubmitted",
        "revision",
        "size",
    )

    def __init__(self, number: int, told: RejectedEvent, head: int, revision: int) -> None:
        self.number: Final = number
        self.identity: Final[Identity] = told.identity
        self.destination: Final[bytes] = told.destination
        self.headers: Headers = told.headers
        self.body: bytes = told.body
        self.body_bytes: Final[int] = told.body_bytes
        self.body_sha256: str = told.body_sha256
        self.body_state: str = told.body_state
        self.condition: Final[Condition | None] = told.condition
        self.disposition: Final[bytes] = told.disposition
        self.rejection: Final[Rejection] = told.rejection
        self.rejected_at_us: Final[int] = told.at_us
        self.head: Final = head
        self.revision: Final = revision
        self.resubmitted: Final[list[tuple[str, int, dict[str, str]]]] = []
        self.size = told.queued_bytes + _RECORD_BYTES

    def digest(self) -> str:
        """Return the SHA-256 of the body in hexadecimal, kept or not."""
        return self.body_sha256 or RejectedEvent.digest(self.body)

    def give_up_body(self) -> None:
        """Keep only the body's length and SHA-256."""
        self.size -= len(self.body)
        self.body_sha256 = self.digest()
        self.body = b""
        self.body_state = BODY_GIVEN_UP


@final
class _Share:
    """What one principal holds, oldest first."""

    __slots__ = ("held", "records_max", "bytes_max", "size")  # noqa: RUF023 in the order of their use

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self.held: Final[deque[Quarantined]] = deque()
        self.size = 0
        self.records_max: Final = records_max
        self.bytes_max: Final = bytes_max

    @property
    def weight(self) -> int:
        """The larger of its shares of the records and of the bytes, in parts of a whole that is the same for all."""
        return max(len(self.held) * self.bytes_max, self.size * self.records_max)


@final
class Quarantine:
    """Keeps the last rejected SENDs within bounds.

    Attributes:
        run: What the names of this run's records begin with.
        size: Bytes that what is kept counts for.
        forgotten: How many were kept and are no more.
    """

    def __init__(self, records_max: int, bytes_max: int, run: str) -> None:
        """Begin with none.

        Args:
            records_max: How many are kept.
            bytes_max: And for how many bytes they may count.
            run: Unique among the runs of the gateway, without `-`.
        """
        self.run: Final = run
        self.size = 0
        self.forgotten = 0
        self._records_max: Final = records_max
        self._bytes_max: Final = bytes_max
        self._count = 0
        self._held: Final[dict[int, Quarantined]] = {}  # by number: oldest first
        self._shares: Final[dict[str, _Share]] = {}
        # The heaviest share first, as of when it was put there; what has changed since is passed over.
        self._heaviest: list[tuple[int, int, str]] = []

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._held)

    def keep(self, told: RejectedEvent, head: int, revision: int) -> Quarantined:
        """Keep a rejected SEND, and forget what there is no more room for.

        Args:
            told: The SEND.
            head: The newest change appended.
            revision: The newest committed value of its topic; 0: it has none.
        """
        self._count += 1
        record = Quarantined(self._count, told, head, revision)
        if len(record.body) > self._bytes_max // _LONE_SHARE:
            record.give_up_body()
        name = _UNKNOWN if told.identity.principal.startswith(_UNKNOWN) else told.identity.principal
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = _Share(self._records_max, self._bytes_max)
        share.held.append(record)
        share.size += record.size
        self.size += record.size
        self._held[record.number] = record
        self._weigh(name, share)
        while len(self._held) > self._records_max or self.size > self._bytes_max:
            self._forget_one()
        return record

    def get(self, identifier: str) -> Quarantined | None:
        """Return what has a name; None when it is unknown, forgotten or of another run."""
        run, _, number = identifier.rpartition("-")
        if run != self.run or not (number.isascii() and number.isdigit() and len(number) < 20):
            return None
        return self._held.get(int(number))

    def name(self, record: Quarantined) -> str:
        """Return the name of a record, which no other has in any run."""
        return f"{self.run}-{record.number}"

    def before(self, number: int | None) -> Iterator[Quarantined]:
        """Iterate, the newest first, over all that came before a number; None: over all. Void once something is kept."""
        for record in reversed(self._held.values()):
            if number is None or record.number < number:
                yield record

    def _weigh(self, name: str, share: _Share) -> None:
        if len(self._heaviest) > 4 * len(self._shares) + 64:
            self._heaviest = [(-one.weight, one.held[0].number, key) for key, one in self._shares.items()]
            heapify(self._heaviest)
        heappush(self._heaviest, (-share.weight, share.held[0].number, name))

    def _forget_one(self) -> None:
        """Take the oldest away from whoever holds most, or what is left of it if it is the last."""
        while True:
            weight, oldest, name = self._heaviest[0]
            share = self._shares.get(name)
            if share is not None and -weight == share.weight and oldest == share.held[0].number:
                break
            heappop(self._heaviest)
        record = share.held[0]
        before = record.size
        if len(share.held) == 1 and record.body_state == BODY_KEPT and record.body:
            record.give_up_body()
            share.size -= before - record.size
            self.size -= before - record.size
        else:
            share.held.popleft()
            del self._held[record.number]
            share.size -= before
            self.size -= before
            self.forgotten += 1
        if share.held:
            self._weigh(name, share)
        else:
            del self._shares[name]


def take_rejected(
    broker: Broker, quarantine: Quarantine, journal: RejectedSends | None, audit: Audit | None = None
) -> OnRejected:
    """Return what hands rejected SENDs of a broker over to the quarantine and, if they are stored, to their journal; the audit log is told."""

    def take(identity: Identity, event: Send, disposition: bytes, rejection: Rejection, wall_us: int) -> None:
        told = RejectedEvent(identity, event, disposition, rejection, broker.registry, wall_us)
        topic = broker.store.topics.get(event.destination)
        revision = 0 if topic is None or topic.change.deleted else topic.change.revision
        quarantine.keep(told, broker.head, revision)
        if journal is not None:
            journal.tell(told)
        if audit is not None:
            audit.rejected(identity, event.destination, disposition.decode(), rejection)

    return take

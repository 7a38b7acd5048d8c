"""The last rejected SENDs, in memory, for operators to read and to send again.

Of each principal the last ones are kept, and no principal can push out those of others. The holder of the largest share of the
records or bytes loses its oldest. So each of n principals keeps records within an n-th of both limits. Principals that no policy
lists share one share, as a certificate alone is enough to be one of them. The last record of a principal loses its body first.

Bodies that must not be kept are removed before they get here: those of unauthorised SENDs, and of SENDs whose rule has
`store_rejected_bodies = false`. See `RejectedEvent`. Belongs to the event loop, knows no clock. A new run begins with none.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, final

from maxam.broker.broker import Broker
from maxam.broker.publishing import OnRejected
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
        identity: Sender of the SEND.
        destination: As sent; it may be malformed.
        headers: User headers; of a SEND whose body may not be kept only its length and SHA-256.
        body: As sent; empty unless `body_state` is BODY_KEPT.
        body_bytes: Its length as sent.
        body_sha256: In hexadecimal; empty while the body is kept.
        body_state: BODY_KEPT, or why it is not: BODY_UNAUTHORISED, BODY_PRIVATE, BODY_GIVEN_UP.
        condition: Condition of its acceptance.
        disposition: Disposition of the answer, also if none was sent.
        rejection: Why.
        rejected_at_us: Microseconds since the epoch.
        head: The newest change of all that had been appended then.
        revision: The topic's newest committed value then, 0 if it had none.
        resubmitted: Principals who sent it again, each with the answer, oldest first.
        size: Bytes that it counts for.
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

    def __init__(self, number: int, sent: RejectedEvent, head: int, revision: int) -> None:
        self.number: Final = number
        self.identity: Final[Identity] = sent.identity
        self.destination: Final[bytes] = sent.destination
        self.headers: Headers = sent.headers
        self.body: bytes = sent.body
        self.body_bytes: Final[int] = sent.body_bytes
        self.body_sha256: str = sent.body_sha256
        self.body_state: str = sent.body_state
        self.condition: Final[Condition | None] = sent.condition
        self.disposition: Final[bytes] = sent.disposition
        self.rejection: Final[Rejection] = sent.rejection
        self.rejected_at_us: Final[int] = sent.at_us
        self.head: Final = head
        self.revision: Final = revision
        self.resubmitted: Final[list[tuple[str, int, dict[str, str]]]] = []
        self.size = sent.queued_bytes + _RECORD_BYTES

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
    """Records of one principal, oldest first."""

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
        run: Prefix of the names of this run's records.
        size: Bytes that the kept records count for.
        forgotten: Number of records that were kept and have been removed.
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
        # The heaviest share first, as of when it was put there. A share that has changed since is skipped.
        self._heaviest: list[tuple[int, int, str]] = []

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._held)

    def keep(self, sent: RejectedEvent, head: int, revision: int) -> Quarantined:
        """Keep a rejected SEND, and remove records that have no room beside it.

        Args:
            sent: The SEND.
            head: The newest change appended.
            revision: The newest committed value of its topic, 0 if it has none.
        """
        self._count += 1
        record = Quarantined(self._count, sent, head, revision)
        if len(record.body) > self._bytes_max // _LONE_SHARE:
            record.give_up_body()
        name = _UNKNOWN if sent.identity.principal.startswith(_UNKNOWN) else sent.identity.principal
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
        """Iterate, the newest first, over all that came before a number, or over all for None. Void once something is kept."""
        for record in reversed(self._held.values()):
            if number is None or record.number < number:
                yield record

    def _weigh(self, name: str, share: _Share) -> None:
        if len(self._heaviest) > 4 * len(self._shares) + 64:
            self._heaviest = [(-one.weight, one.held[0].number, key) for key, one in self._shares.items()]
            heapify(self._heaviest)
        heappush(self._heaviest, (-share.weight, share.held[0].number, name))

    def _forget_one(self) -> None:
        """Remove the oldest record of the principal with the largest share. If it is its last, remove the body first."""
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
    """Return the callback that passes rejected SENDs to the quarantine, to their journal if they are stored, and to the audit log."""

    def take(identity: Identity, event: Send, disposition: bytes, rejection: Rejection, wall_us: int) -> None:
        sent = RejectedEvent(identity, event, disposition, rejection, broker.registry, wall_us)
        topic = broker.store.topics.get(event.destination)
        revision = 0 if topic is None or topic.change.deleted else topic.change.revision
        quarantine.keep(sent, broker.head_revision, revision)
        if journal is not None:
            journal.record(sent)
        if audit is not None:
            audit.rejected(identity, event.destination, disposition.decode(), rejection)

    return take

"""Journal records of what durable subscriptions have acknowledged, gathered for a moment where no RECEIPT waits for them."""

from typing import Final, final

from maxam.broker.operations import OperationLog
from maxam.broker.session import Subscription
from maxam.records import AcknowledgementRecord

POSITIONS_PER_RECORD: Final = 10_000  # so that no record grows with the number of topics


@final
class Acknowledgements:
    """The durable subscriptions with acknowledgements that the journal does not hold yet."""

    __slots__ = ("_delay_s", "_due_s", "_log", "_waiting")

    def __init__(self, log: OperationLog, delay_s: float) -> None:
        """Begin with none; each is appended `delay_s` after the first one that waits."""
        self._log: Final = log
        self._delay_s: Final = delay_s
        self._waiting: dict[Subscription, None] = {}
        self._due_s = -1.0

    @property
    def due_s(self) -> float | None:
        """When `record_all` must be called, or None."""
        return self._due_s if self._waiting else None

    def written(self, subscription: Subscription, destination: bytes, revision: int, now_s: float) -> None:
        """Record that a durable subscription in ack mode auto was written this change."""
        subscription.unrecorded[destination] = revision
        self.wait(subscription, now_s)

    def wait(self, subscription: Subscription, now_s: float) -> None:
        """Have the acknowledgements of a subscription appended soon."""
        if not self._waiting:
            self._due_s = now_s + self._delay_s
        self._waiting[subscription] = None

    def record(self, subscription: Subscription) -> None:
        """Append the acknowledgements of a subscription now."""
        session = subscription.session
        names = (session.principal, session.client_id, subscription.id)
        settled = tuple(subscription.unrecorded.items())
        for start in range(0, len(settled), POSITIONS_PER_RECORD):
            positions = settled[start : start + POSITIONS_PER_RECORD]
            record = AcknowledgementRecord(self._log.accepted_at_us, *names, positions)
            record.target = subscription  # which left what it owed when that was sent
            self._log.append(record)
        subscription.unrecorded.clear()

    def record_all(self) -> None:
        """Append every acknowledgement that the journal does not hold yet."""
        waiting = self._waiting
        self._waiting = {}
        for subscription in waiting:
            if subscription.unrecorded:
                self.record(subscription)

    def drop(self, subscription: Subscription) -> None:
        """Forget a subscription that is gone."""
        self._waiting.pop(subscription, None)

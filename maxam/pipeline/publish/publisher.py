"""Publish rows to a gateway: many SENDs under way, each with an answer, over as many connections as it takes.

Theory of operation: one task writes rows in their order and takes their RECEIPTs in the same order, at most `window` of them
missing. When the connection goes, rows without RECEIPT are written again on the next one, before any new row. That is safe, as every
SEND carries `source` and `source-revision`. A topic that has seen this number or a higher one of this source answers
`result:superseded` and stays as it is. So no older value comes after a newer one, however often rows are repeated, by us or by another
attempt of the same Spark task.

Rows that the gateway cannot store now (`rejected-unavailable`) are offered again. The time limit counts from the last answer that
settled a row. It covers a gateway that is away, cannot store, or keeps the connection alive and answers nothing.
"""

import random
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn, final

import trio

from maxam.client import (
    CertificateFileError,
    Client,
    ClientError,
    GatewayError,
    Posted,
    Receipt,
    TlsError,
    VersionError,
    connect,
)
from maxam.pipeline.errors import PipelineError
from maxam.stomp.events import DROPPED_HEADERS

PAUSE_MIN_S: Final = 0.25  # before we connect again, or offer again what could not be stored; doubles each time
PAUSE_MAX_S: Final = 5.0
REFUSALS_MAX: Final = 3  # connections that the gateway ended in a row, for a reason of its own, before any answer
STOPPING: Final = "broker is stopping"  # `message` of the ERROR of a graceful stop: another gateway follows
UNAVAILABLE: Final = "rejected-unavailable"
SUPERSEDED: Final = "superseded"
EXAMPLES_MAX: Final = 5  # of rejected rows, in error texts
SHOWN_MAX: Final = 100  # characters of a destination, there
# No gateway can take more. A line of a header is at most 8192 bytes, and each byte may be escaped. A frame refused for its first line
# ends the connection without reporting which SEND it was.
DESTINATION_BYTES_MAX: Final = 4000

PROTOCOL_HEADERS: Final = frozenset(name.decode() for name in DROPPED_HEADERS)
"""Headers of a frame that are not user headers: the gateway does not pass them on."""

RESERVED_HEADERS: Final = PROTOCOL_HEADERS | {"source", "source-revision"}
"""Headers that a row may not set: those, and the publisher's own."""


class Row(NamedTuple):
    """One row to publish.

    Attributes:
        number: Its place in the order of its source, from 0; must rise with the age of the values of a topic.
        destination: The topic.
        body: The body as the gateway shall get it; empty deletes the topic's value.
        headers: User headers, without reserved ones.
    """

    number: int
    destination: str
    body: bytes
    headers: Mapping[str, str] | None = None


class Rejected(NamedTuple):
    """A row that the gateway did not take.

    Attributes:
        number: Of the row; -1 when it has none.
        destination: Of the row; empty when it has none.
        disposition: The gateway's word, or `refused` when the SEND ended the connection or could not be made.
        result: A code of docs/protocol.md, `protocol-error`, or what is wrong with the row.
        reason: One line of text.
    """

    number: int
    destination: str
    disposition: str
    result: str
    reason: str


@dataclass(slots=True)
class Counts:
    """The results of rows.

    Attributes:
        accepted: Became the value of their topic, or deleted it.
        superseded: The topic had seen this row or a later one of the same source. In a repeated run, the run before had published
            it. In others, a repeated SEND had.
        rejected: How often each pair of disposition and result came.
        examples: The first few rejected rows.
        connections: Number of connections it took.
    """

    accepted: int = 0
    superseded: int = 0
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: list[Rejected] = field(default_factory=list)
    connections: int = 0

    def add(self, other: "Counts") -> None:
        """Add what another task counted."""
        self.accepted += other.accepted
        self.superseded += other.superseded
        self.rejected.update(other.rejected)
        self.examples = [*self.examples, *other.examples][:EXAMPLES_MAX]
        self.connections += other.connections

    def reject(self, row: Rejected) -> None:
        """Count a rejected row."""
        self.rejected[row.disposition, row.result] += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(row)

    def __str__(self) -> str:
        parts = [f"{self.accepted} accepted", f"{self.superseded} superseded"]
        parts += [f"{count} {disposition} {result}" for (disposition, result), count in sorted(self.rejected.items())]
        return ", ".join(parts)


class PublishError(PipelineError):
    """Rows could not be published. The text has the progress. Publishing them again with the same source is safe."""

    code = "publish-failed"


@final
@dataclass(frozen=True, slots=True)
class Target:
    """A gateway and our identity for it.

    Attributes:
        address: Host name or IP address of its STOMP listener.
        port: Its port.
        certificate: PEM file of our certificate.
        key: PEM file of its key, without a password.
        ca: PEM file of the authorities whose gateways we trust.
        host: The virtual host.
        check_name: The name that the gateway's certificate must carry. None accepts any that `ca` signed.
        window: Maximum number of SENDs without RECEIPT.
        retry_s: Give up when no row was settled for this long although rows wait.
    """

    address: str
    port: int
    certificate: str
    key: str
    ca: str
    host: str = "MAXVAPI"
    check_name: str | None = None
    window: int = 1000
    retry_s: float = 60.0

    def connect(self) -> AbstractAsyncContextManager[Client]:
        """Connect once, see `maxam.client.connect`."""
        return connect(
            self.address,
            self.port,
            certificate=self.certificate,
            key=self.key,
            ca=self.ca,
            check_name=self.check_name,
            host=self.host,
        )


def publish_rows(
    target: Target,
    source: str,
    batches: Iterator[list[Row]],
    reject: Callable[[Rejected], None] | None = None,
    rejected_max: int | None = None,
) -> Counts:
    """Publish rows in their order and wait until each is settled.

    Args:
        target: Where to.
        source: Name of the order that the rows' numbers belong to.
        batches: Lists of rows, taken in a thread of their own, one at a time, so that heart-beats go on while they are
            made. No connection is made before the first row.
        reject: Called with each rejected row, in no particular order.
        rejected_max: Number of rejected rows at which no further rows are taken. Rows under way are settled.

    Raises:
        PublishError: The gateway cannot be reached or used, or took too long. Published rows stay so.
    """
    return trio.run(_Publisher(target, source, batches, reject, rejected_max).run)


@final
class _LostError(Exception):
    """The connection went; `reason` is why."""

    def __init__(self, reason: ClientError) -> None:
        super().__init__()
        self.reason: Final = reason


@final
class _Publisher:
    def __init__(
        self,
        target: Target,
        source: str,
        batches: Iterator[list[Row]],
        reject: Callable[[Rejected], None] | None,
        rejected_max: int | None,
    ) -> None:
        self._target: Final = target
        self._source: Final = source
        self._batches: Final = batches
        self._reject: Final = reject
        self._rejected_max: Final = rejected_max
        self._rejections = 0
        self._counts: Final = Counts()
        self._waiting: Final[deque[Row]] = deque()  # to be written next
        self._under_way: Final[deque[tuple[Row, Posted]]] = deque()
        self._unavailable: Final[list[Row]] = []  # to be offered again, in their order
        self._exhausted = False  # no batches are left
        self._settled_s = 0.0  # when a row was last settled, or the first of a new batch began to wait
        self._settled = 0  # rows

    async def run(self) -> Counts:
        pause_s = PAUSE_MIN_S
        refusals = 0
        while self._waiting or await self._take_batch():
            settled = self._settled
            try:
                async with self._target.connect() as client:
                    self._counts.connections += 1
                    await self._publish(client)
            except _LostError as lost:
                reason = lost.reason
                final = False
            except ClientError as error:
                reason = error
                final = _is_final(error)
            else:
                continue
            if self._settled != settled:
                pause_s, refusals = PAUSE_MIN_S, 0
            if isinstance(reason, GatewayError) and reason.message != STOPPING:
                refusals += 1
            if final or refusals >= REFUSALS_MAX:
                raise self._failure(str(reason)) from reason
            await self._pause(pause_s, str(reason))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return self._counts

    async def _publish(self, client: Client) -> None:
        """Publish until all rows are settled.

        Raises:
            _LostError: The connection went; what was under way waits again.
        """
        pause_s = PAUSE_MIN_S
        while True:
            if not self._unavailable:
                await self._fill(client)
            if self._under_way:
                settled = self._settled
                await self._await_oldest()
                if self._settled != settled:
                    pause_s = PAUSE_MIN_S
            elif self._unavailable:
                # Later rows of the same topics may have been accepted: then these are superseded.
                self._waiting.extendleft(reversed(self._unavailable))
                self._unavailable.clear()
                await self._pause(pause_s, "the gateway cannot store values now (rejected-unavailable)")
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            else:
                return

    async def _fill(self, client: Client) -> None:
        """Write rows until the window is full, or there are none."""
        window = self._target.window
        under_way = self._under_way
        waiting = self._waiting
        source = self._source
        while len(under_way) < window:
            if not waiting:
                if under_way and under_way[0][1].resolved:
                    return  # answers first: the next batch may take long
                if not await self._take_batch():
                    return
            number, destination, body, own = waiting[0]
            if len(destination) > DESTINATION_BYTES_MAX // 4 and len(destination.encode()) > DESTINATION_BYTES_MAX:
                reason = f"the destination has more than {DESTINATION_BYTES_MAX} bytes"
                self._refuse(waiting.popleft(), "refused", "destination-too-long", reason)
                continue
            headers = {"source": source, "source-revision": str(number)}
            if own:
                headers.update(own)
            try:
                with trio.move_on_at(self._deadline_s) as patience:
                    posted = await client.post(destination, body, headers)
            except ClientError as error:
                await self._lose(error)
            if patience.cancelled_caught:
                raise self._failure(f"the gateway takes nothing; {self._too_long}")
            under_way.append((waiting.popleft(), posted))

    async def _await_oldest(self) -> None:
        """Wait for the oldest RECEIPT and take all that came with it."""
        under_way = self._under_way
        while True:
            row, posted = under_way[0]
            try:
                with trio.move_on_at(self._deadline_s) as patience:
                    receipt = await posted.receipt()
            except ClientError as error:
                await self._lose(error)
            if patience.cancelled_caught:
                raise self._failure(f"the gateway does not answer; {self._too_long}", row)
            del under_way[0]
            self._take(row, receipt)
            if not under_way or not under_way[0][1].resolved:
                break

    def _take(self, row: Row, receipt: Receipt) -> None:
        if receipt.accepted:
            if receipt.result == SUPERSEDED:
                self._counts.superseded += 1
            else:
                self._counts.accepted += 1
        elif receipt.disposition == UNAVAILABLE:
            self._unavailable.append(row)
            return
        else:
            self._refuse(row, receipt.disposition, receipt.result, receipt.reason)
        self._settled += 1
        self._settled_s = trio.current_time()

    def _refuse(self, row: Row, disposition: str, result: str, reason: str) -> None:
        rejected = Rejected(row.number, row.destination, disposition, result, reason)
        self._rejections += 1
        self._counts.reject(rejected)
        if self._reject is not None:
            self._reject(rejected)

    async def _lose(self, reason: ClientError) -> NoReturn:
        """Settle what has an answer although the connection is gone; the rest waits again, in its order.

        Raises:
            _LostError: Always.
        """
        again = self._unavailable  # written before what is under way
        for row, posted in self._under_way:
            try:
                receipt = await posted.receipt()
            except GatewayError as error:  # the error refers to this very SEND
                self._refuse(row, "refused", "protocol-error", f"{error.message}: {error.detail}")
                self._settled += 1
                self._settled_s = trio.current_time()
            except ClientError:
                again.append(row)
            else:
                self._take(row, receipt)
        self._waiting.extendleft(reversed(again))
        again.clear()
        self._under_way.clear()
        cause = reason.__cause__
        raise _LostError(cause if isinstance(cause, ClientError) else reason)

    async def _take_batch(self) -> bool:
        """Take the next batch that is not empty; return whether there is one."""
        while not self._exhausted and not self._waiting:
            if self._rejected_max is not None and self._rejections >= self._rejected_max:
                self._exhausted = True
                break
            batch = await trio.to_thread.run_sync(next, self._batches, None)
            if batch is None:
                self._exhausted = True
                break
            self._waiting.extend(batch)
        self._settled_s = trio.current_time()
        return bool(self._waiting)

    async def _pause(self, pause_s: float, reason: str) -> None:
        """Wait, some of the time at random so that the tasks of a job do not all come back at once."""
        if trio.current_time() + pause_s > self._deadline_s:
            raise self._failure(f"{reason}; {self._too_long}")
        await trio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    @property
    def _deadline_s(self) -> float:
        return self._settled_s + self._target.retry_s

    @property
    def _too_long(self) -> str:
        return f"nothing was settled for {self._target.retry_s:g} s"

    def _failure(self, reason: str, row: Row | None = None) -> PublishError:
        where = f"{self._target.address}:{self._target.port}"
        if row is None and self._waiting:
            row = self._waiting[0]
        place = "" if row is None else f" at row {row.number} ({shown(row.destination)})"
        return PublishError(f"publishing to {where} failed{place}: {reason}. So far: {self._counts}")


def shown(destination: str) -> str:
    """Return a destination as error texts name it."""
    return destination if len(destination) <= SHOWN_MAX else f"{destination[:SHOWN_MAX]}..."


def _is_final(error: ClientError) -> bool:
    """Whether connecting again would only fail again."""
    match error:
        case GatewayError():
            return error.message != STOPPING
        case CertificateFileError() | VersionError():
            return True
        case TlsError():  # but a gateway that goes in the middle of a handshake
            stream_error = error.__cause__
            return not isinstance(stream_error and stream_error.__cause__, ssl.SSLEOFError)
        case _:
            return False

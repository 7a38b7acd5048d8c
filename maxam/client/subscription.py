"""A subscription of one connection, and the messages that arrive on it.

The gateway's delivery window bounds the messages that a subscription with ack `client` holds. One with `auto` has no window. At
its limit the connection is not read until a message is taken from it, and the gateway conflates meanwhile.
"""
# ruff: noqa: SLF001 - a message and its subscription share their state

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, Literal, Self, final

import anyio
import anyio.lowlevel

from maxam.client.errors import ConnectionLostError, PositionUnavailableError
from maxam.client.link import Inbox, Link
from maxam.client.progress import Kind, Progress, kind_of
from maxam.errors import ClientError
from maxam.stomp import encoder
from maxam.stomp.answers import MARKER, SINCE_UNAVAILABLE, Delivery, Receipt
from maxam.stomp.events import INTERVAL_MS_MAX, INTERVAL_MS_MIN, SubscribeOptions, parse_number

AckMode = Literal["client", "auto", "client-individual"]

# An iteration goes through the messages that have arrived without letting other tasks run, up to this time. So the ACKs of a
# quick consumer leave in one write. A slow one yields between any two messages, and each of its ACKs leaves at once.
YIELD_S: Final = 0.001
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def check_values(given: bool, durable: bool) -> None:
    """Raise ClientError if a durable subscription is to keep values."""
    if given and durable:
        raise ClientError(
            "a durable subscription cannot keep `values`: it does not report each topic that you may no longer receive. "
            "Leave out durable. Then `since` delivers the changes of the meantime"
        )


def read_options(
    markers: bool,
    metadata: bool,
    selector: str | None,
    min_interval_s: float | None,
    changes_only: bool,
    json: bool,
    fields: Sequence[str],
) -> SubscribeOptions | None:
    """Return the options of a SUBSCRIBE, without `since`, or None if there are none.

    Raises:
        ClientError: The interval is out of range, or there are fields without JSON. The gateway would end the connection for it.
    """
    interval_ms = 0
    if min_interval_s is not None:
        interval_ms = round(min_interval_s * 1000)
        if not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
            raise ClientError(
                f"min_interval_s of {min_interval_s:g} s is out of range; "
                f"expected {INTERVAL_MS_MIN / 1000:g} to {INTERVAL_MS_MAX / 1000:g} s"
            )
    if fields and not json:
        raise ClientError("`fields` selects fields of JSON; add json=True")
    if not (markers or metadata or changes_only or interval_ms or json) and selector is None:
        return None
    paths = ",".join([fields] if isinstance(fields, str) else fields) or None
    return SubscribeOptions(None, markers, metadata, interval_ms, selector, changes_only, json, paths)


@final
class Message:
    """The value of a topic as it was when the gateway wrote it, or what became of it: see `kind`.

    The properties that need `metadata=True` of the subscription are empty, None or 0 without it.
    """

    __slots__ = ("_delivery", "_number", "_settled", "_subscription")

    def __init__(self, subscription: "Subscription", delivery: Delivery, number: int) -> None:
        self._subscription: Final = subscription
        self._delivery: Final = delivery
        self._number: Final = number  # among those of its subscription
        # acknowledged, or in need of no ACK: in mode `auto`, and notices of the gateway
        self._settled = subscription._ack == "auto" or (subscription._refined and b"ack" not in delivery.headers)

    @property
    def destination(self) -> str:
        """The topic."""
        return self._delivery.destination.decode()

    @property
    def body(self) -> bytes:
        """The body as it was sent."""
        return self._delivery.body

    @property
    def deleted(self) -> bool:
        """True if the topic has no value for this subscription: its kind is `delete` or `left`."""
        return not self._delivery.body and self.kind not in ("stale", "fresh")

    @property
    def kind(self) -> Kind:
        """The meaning of this message.

        `value`: a new value. `delete`: the topic was deleted. `left`: the topic may no longer be received, or no longer
        satisfies the selector. `stale`: its value may not be current, and stays the newest. `fresh`: the first value after that,
        or, without a body, the value that you have is current again.
        Subscriptions with neither `metadata` nor `markers` have only the first two.
        """
        if self._subscription._refined:
            return kind_of(self._delivery)
        return "value" if self._delivery.body else "delete"

    @property
    def reason(self) -> str:
        """The reason for the kind, or empty.

        Of `delete`: `deleted` or `expired`, with `metadata=True`. Of `left`: `rights`, `selector`, or `not-in-snapshot` if the
        topic went while we were away. Of `stale`: `overdue` or `link-down`. Of `fresh` without a body: `link-up`. A value may
        have a header `reason` of its publisher.
        """
        given = b"kind" in self._delivery.headers and (not self._delivery.body or self.kind not in ("value", "fresh"))
        return self._text(b"reason") if given else ""

    @property
    def accepted_at(self) -> datetime | None:
        """The time at which the gateway accepted the value, in UTC. Needs `metadata=True`."""
        ms = parse_number(self._text(b"timestamp").encode())
        return None if ms < 0 else _EPOCH + timedelta(milliseconds=ms)

    @property
    def publisher(self) -> str:
        """The principal that sent the value. Needs `metadata=True`."""
        return self._text(b"publisher")

    @property
    def schema(self) -> str:
        """Type and version that the body was checked against, such as `egm.EGMStatus_v1 1.0`. Needs `metadata=True`."""
        return self._text(b"schema")

    @property
    def conflated(self) -> int:
        """Number of values of the topic that were skipped since the last one on this subscription. Needs `metadata=True`."""
        return max(parse_number(self._text(b"conflated").encode()), 0)

    @property
    def message_id(self) -> str:
        """The `message-id`. A maxam gateway sends the revision in decimal."""
        return self._delivery.message_id.decode()

    @property
    def headers(self) -> dict[str, str]:
        """All headers of the MESSAGE, the sender's among them."""
        return {name.decode(): value.decode() for name, value in self._delivery.headers.items()}

    def header(self, name: str) -> str | None:
        """Return a header of the MESSAGE, or None."""
        value = self._delivery.headers.get(name.encode())
        return None if value is None else value.decode()

    async def ack(self, *, receipt: bool = False) -> None:
        """Acknowledge this message, and in mode `client` every earlier one of its subscription.

        Do nothing in mode `auto`, for a message that is acknowledged already, and when its subscription has ended: brokers close
        connections for such an ACK.

        Without `receipt` the ACK is only put on its way, and it does nothing when the connection is gone. In either case it
        is unknown whether the ACK arrived, and a durable subscription gets the newest value again. With `receipt` this
        returns when the gateway has recorded the ACK. Cancelled, it may have been sent.

        Raises:
            ClientError: With `receipt`: the connection went before the RECEIPT came.

        Spec: MaXaM "STOMP ACK"
        """
        if not self._settled and self._number > self._subscription._acknowledged_to:
            await anyio.lowlevel.checkpoint_if_cancelled()  # without yielding: see YIELD_S
            await self._put_ack(receipt)

    async def _put_ack(self, receipt: bool) -> None:
        subscription = self._subscription
        if self._settled or self._number <= subscription._acknowledged_to:
            return
        await subscription._acknowledge(self._delivery, receipt)
        self._settled = True
        if subscription._ack == "client" and self._number > subscription._acknowledged_to:
            subscription._acknowledged_to = self._number

    def _text(self, name: bytes) -> str:
        """Return a header that the gateway adds on request. A publisher's header of this name does not count."""
        return self._delivery.headers.get(name, b"").decode() if self._subscription._refined else ""


@final
class Subscription:
    """A glob that we listen to: `async with` subscribes and unsubscribes, `async for` gives its messages.

    With `automatic`, and another ack mode than `auto`, asking for the next message acknowledges the one before. So a message
    is acknowledged when the loop's body has processed it, and not if the body raised. A `break` leaves the last one un-acked.
    The iteration ends after our own `disconnect`, and raises when the connection is lost, both after the messages that had
    arrived.

    Attributes:
        id: Its name within the session.
        glob: Pattern of the topics that it listens to.
        result: Once entered: `result` of the RECEIPT, of durable ones `created`, `resumed` or `replaced`. With `values` it
            may be `since-unavailable`.
        filtered: Once entered: True if no right of ours can match any topic of the glob.
    """

    def __init__(
        self,
        link: Link,
        glob: str,
        id: str,  # noqa: A002 - STOMP's name
        ack: AckMode,
        automatic: bool,
        eager: bool,
        durable: bool,
        options: SubscribeOptions | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._link: Final = link
        self.id: Final = id
        self.glob: Final = glob
        self.result = ""
        self.filtered = False
        self._name: Final = id.encode()
        self._ack: Final[AckMode] = ack
        self._automatic: Final = automatic
        self._eager: Final = eager
        self._durable: Final = durable
        self._options: Final = options
        self._progress: Final = progress
        self._refined: Final = options is not None and (options.markers or options.metadata)
        self._inbox: Final = Inbox(progress)
        self._last: Message | None = None
        self._taken = 0  # messages
        self._acknowledged_to = 0  # number of the newest that an ACK of mode `client` was sent for
        self._yielded_s = 0.0  # when the iteration last let other tasks run

    async def __aenter__(self) -> Self:
        """Subscribe and wait for the RECEIPT. Messages may have arrived by then.

        Raises:
            PositionUnavailableError: The position in `since` cannot be used, and there is no `values`.
            GatewayError: The gateway refused it and ended the connection.
            ClientError: The connection is gone, or the server does not know the options.
        """
        link, receipt_id = self._link, self._link.new_id()
        if self._name in link.inboxes:
            raise ClientError(f"the subscription id {self.id} is in use on this connection; choose another")
        options = self._options_now()
        if options is not None and not link.incarnation:
            raise ClientError(
                "this server knows none of since, markers, values, metadata, selector, min_interval_s and changes_only; "
                "update the gateway or leave them out"
            )
        eager = self._eager_now()
        frame = encoder.subscribe(
            link.version, self._name, self.glob.encode(), self._ack.encode(), self._durable, eager, receipt_id, options
        )
        posted = await link.post(frame, receipt_id)
        link.inboxes[self._name] = self._inbox
        try:
            receipt = await posted.receipt()
        except anyio.get_cancelled_exc_class():
            self._abandon()
            raise
        self.result = receipt.result
        self.filtered = receipt.filtered
        self._inbox.limited = (
            self._ack == "auto"
        )  # only now: the RECEIPT had to be read, however many messages came first
        if self._progress is not None and options is not None:
            await self._begin(self._progress, options.since, eager)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Unsubscribe. A durable one goes on collecting and is resumed by subscribing with the same id again."""
        if error is None:
            await self._unsubscribe(False)
        else:
            self._abandon()

    async def remove(self) -> str:
        """End it now, a durable one for good, and return the RECEIPT's result.

        Raises:
            ClientError: The connection is gone. A durable subscription is still there then.
        """
        receipt = await self._unsubscribe(self._durable)
        if receipt is None:
            raise ConnectionLostError(f"not known to be removed: {self._link.reason()}")
        return receipt.result

    @property
    def position(self) -> str | None:
        """Position that covers all messages before the current one, for `since` of a later subscription.

        None without `markers`, and while none is known. Keep it together with the values.
        """
        return None if self._progress is None else self._progress.position

    @property
    def caught_up(self) -> bool:
        """True if no snapshot or catch-up is under way. False without `markers`."""
        return self._progress is not None and self._progress.caught_up

    async def complete(self) -> None:
        """Wait until the snapshot, or the changes after `since`, have been taken from the iteration in another task.

        Raises:
            ClientError: There are no `markers`, or the connection has ended.
        """
        await self._marked().complete(self._ending)

    async def position_after(self, position: str | None) -> str:
        """Wait until `self.position` is another one than `position`, and return it.

        Raises:
            ClientError: There are no `markers`, or the connection has ended.
        """
        return await self._marked().position_after(position, self._ending)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message, after acknowledging the last one if that is automatic. Cancelled, none is lost.

        Raises:
            ClientError: The reason why the connection ended.
        """
        inbox = self._inbox
        if inbox.deliveries and self._link.now_s() < self._yielded_s + YIELD_S:
            await anyio.lowlevel.checkpoint_if_cancelled()
        else:
            await anyio.lowlevel.checkpoint()
            self._yielded_s = self._link.now_s()
        if self._automatic and self._last is not None:
            await self._last._put_ack(False)
        self._last = None
        self._pass_markers()
        while not inbox.deliveries:
            if self._link.leaving or not self._listening:
                raise StopAsyncIteration
            if self._link.failure is not None:
                raise self._link.failure
            inbox.arrived = anyio.Event()
            await inbox.arrived.wait()
            self._pass_markers()
        self._taken += 1
        delivery = inbox.pop()
        if self._progress is not None:
            self._progress.take(delivery)
        self._last = message = Message(self, delivery, self._taken)
        if inbox.limited:
            self._link.resume_reading()
        return message

    def drop_unread(self) -> None:
        """Drop all messages that have not been taken, once the connection has ended."""
        self._inbox.clear()

    @property
    def _listening(self) -> bool:
        return self._link.inboxes.get(self._name) is self._inbox

    def _marked(self) -> Progress:
        if self._progress is None:
            raise ClientError("the subscription has no markers; pass markers=True to `subscribe`")
        return self._progress

    def _ending(self) -> ClientError | None:
        if self._link.failure is not None or self._listening:
            return self._link.failure
        return ClientError("the subscription is not entered, or has ended")

    def _options_now(self) -> SubscribeOptions | None:
        """Return the options with the position that is known now."""
        options, position = self._options, self.position
        if options is None or position is None:
            return options
        return SubscribeOptions(
            position.encode(),
            options.markers,
            options.metadata,
            options.interval_ms,
            options.selector,
            options.changes_only,
            options.json,
            options.fields,
        )

    def _eager_now(self) -> bool:
        """Return whether to ask for all values: also if they are needed in case that the position is unavailable."""
        progress = self._progress
        if self._eager or progress is None or not progress.tracking:
            return self._eager
        return progress.position is not None or progress.values is not None or bool(progress.topics)

    async def _begin(self, progress: Progress, since: bytes | None, eager: bool) -> None:
        """Prepare for what comes after the RECEIPT."""
        unavailable = self.result == SINCE_UNAVAILABLE
        if unavailable and not (eager and progress.tracking):
            progress.position = None
            await self._unsubscribe(self._durable)
            raise PositionUnavailableError(
                f"the gateway cannot resume {self.glob} from the position {(since or b'').decode()}: its journal was restored, "
                "deletes since then are forgotten, or the receive rights were widened. Drop the values that you keep, and "
                "subscribe with eager=True and without since"
            )
        resumed = self.result == "resumed"  # what the session owes takes the place of `since`
        continued = since is not None and not unavailable and not resumed
        progress.begin(eager and not continued)

    def _pass_markers(self) -> None:
        """Take the markers that come before the next message."""
        inbox, progress = self._inbox, self._progress
        if progress is None:
            return
        while inbox.deliveries and inbox.deliveries[0].destination == MARKER:
            marker = inbox.pop()
            gone = progress.pass_marker(marker)
            if gone:
                inbox.deliveries.extendleft(reversed([*gone, marker]))
            if inbox.limited:
                self._link.resume_reading()

    async def _unsubscribe(self, for_good: bool) -> Receipt | None:
        """End it if it has not ended yet. Return the RECEIPT, or None if there is none."""
        link = self._link
        if not self._forget() or link.failure is not None or link.leaving:
            return None
        receipt_id = link.new_id()
        try:
            posted = await link.post(encoder.unsubscribe(link.version, self._name, for_good, receipt_id), receipt_id)
            return await posted.receipt()
        except ClientError:
            return None

    def _abandon(self) -> None:
        """End it if it has not ended yet, without waiting."""
        if self._forget():
            self._link.put_now(encoder.unsubscribe(self._link.version, self._name))

    def _forget(self) -> bool:
        """Drop all messages that still come. Return True if it had not ended yet."""
        if not self._listening:
            return False
        del self._link.inboxes[self._name]
        self._inbox.wake()
        self._link.resume_reading()
        return True

    async def _acknowledge(self, delivery: Delivery, awaited: bool) -> None:
        link = self._link
        if not self._listening and link.failure is None:
            return
        receipt_id = link.new_id() if awaited else None
        identifier = delivery.headers.get(b"ack")
        frame = encoder.ack(link.version, self._name, delivery.message_id, receipt_id, identifier)
        if receipt_id is not None:
            posted = await link.post(frame, receipt_id)
            posted.inbox = None if self._progress is None else self._inbox
            await posted.receipt()
            self._pass_markers()
            return
        try:
            await link.put(frame)
        except ClientError:
            return  # see `Message.ack`

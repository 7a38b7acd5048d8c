"""A subscription of one connection, and the messages that arrive on it.

The gateway's delivery window bounds the messages that a subscription with ack `client` holds. One with `auto` has no window. At
its limit the connection is not read until a message is taken from it, and the gateway conflates meanwhile.
"""
# ruff: noqa: SLF001 - a message and its subscription share their state

from types import TracebackType
from typing import Final, Literal, Self, final

import trio

from maxam.client.errors import ConnectionLostError
from maxam.client.link import Inbox, Link
from maxam.errors import ClientError
from maxam.stomp import encoder
from maxam.stomp.answers import Delivery, Receipt

AckMode = Literal["client", "auto", "client-individual"]

# An iteration goes through the messages that have arrived without letting other tasks run, up to this time. So the ACKs of a
# quick consumer leave in one write. A slow one yields between any two messages, and each of its ACKs leaves at once.
YIELD_S: Final = 0.001


@final
class Message:
    """The value of a topic as it was when the gateway wrote it. An empty `body` means that the topic was deleted."""

    __slots__ = ("_delivery", "_number", "_settled", "_subscription")

    def __init__(self, subscription: "Subscription", delivery: Delivery, number: int) -> None:
        self._subscription: Final = subscription
        self._delivery: Final = delivery
        self._number: Final = number  # among those of its subscription
        self._settled = subscription._ack == "auto"  # acknowledged, or of a subscription that needs no ACK

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
        """True if the topic has no value."""
        return not self._delivery.body

    @property
    def message_id(self) -> str:
        """The `message-id`. A maxam gateway sends the revision in decimal."""
        return self._delivery.message_id.decode()

    @property
    def headers(self) -> dict[str, str]:
        """All headers of the MESSAGE, the sender's among them."""
        return {name.decode(): value.decode() for name, value in self._delivery.headers.items()}

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
        subscription = self._subscription
        if self._settled or self._number <= subscription._acknowledged_to:
            return
        await trio.lowlevel.checkpoint_if_cancelled()  # without yielding: see YIELD_S
        await subscription._acknowledge(self._delivery, receipt)
        self._settled = True
        if subscription._ack == "client" and self._number > subscription._acknowledged_to:
            subscription._acknowledged_to = self._number


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
        result: Once entered: `result` of the RECEIPT, of durable ones `created`, `resumed` or `replaced`.
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
        self._inbox: Final = Inbox()
        self._last: Message | None = None
        self._taken = 0  # messages
        self._acknowledged_to = 0  # number of the newest that an ACK of mode `client` was sent for
        self._yielded_s = 0.0  # when the iteration last let other tasks run

    async def __aenter__(self) -> Self:
        """Subscribe and wait for the RECEIPT. Messages may have arrived by then.

        Raises:
            GatewayError: The gateway refused it and ended the connection.
            ClientError: The connection is gone.
        """
        link, receipt_id = self._link, self._link.new_id()
        if self._name in link.inboxes:
            raise ClientError(f"the subscription id {self.id} is in use on this connection; choose another")
        frame = encoder.subscribe(
            link.version, self._name, self.glob.encode(), self._ack.encode(), self._durable, self._eager, receipt_id
        )
        posted = await link.post(frame, receipt_id)
        link.inboxes[self._name] = self._inbox
        try:
            receipt = await posted.receipt()
        except trio.Cancelled:
            self._abandon()
            raise
        self.result = receipt.result
        self.filtered = receipt.filtered
        self._inbox.limited = (
            self._ack == "auto"
        )  # only now: the RECEIPT had to be read, however many messages came first
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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message, after acknowledging the last one if that is automatic. Cancelled, none is lost.

        Raises:
            ClientError: The reason why the connection ended.
        """
        if self._automatic and self._last is not None:
            await self._last.ack()
        self._last = None
        inbox = self._inbox
        if inbox.deliveries and trio.current_time() < self._yielded_s + YIELD_S:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
            self._yielded_s = trio.current_time()
        while not inbox.deliveries:
            if self._link.leaving or not self._listening:
                raise StopAsyncIteration
            if self._link.failure is not None:
                raise self._link.failure
            inbox.arrived = trio.Event()
            await inbox.arrived.wait()
        self._taken += 1
        self._last = message = Message(self, inbox.pop(), self._taken)
        if inbox.limited:
            self._link.resume_reading()
        return message

    @property
    def _listening(self) -> bool:
        return self._link.inboxes.get(self._name) is self._inbox

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
        self._inbox.arrived.set()
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
            await (await link.post(frame, receipt_id)).receipt()
            return
        try:
            await link.put(frame)
        except ClientError:
            return  # see `Message.ack`

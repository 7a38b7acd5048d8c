"""One connection of a bridge, kept alive: its frames are facts for the relay, and the relay's wishes are its frames."""

import logging
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, final

import trio

from maxam.bridge.config import SideSettings
from maxam.bridge.relay import Relay
from maxam.bridge.wishes import Ack, Send, Subscribe, Unsubscribe
from maxam.client import Client, ClientError, ConnectionLostError, GatewayError, connect
from maxam.client.link import Link
from maxam.gateway.log import log_event
from maxam.stomp import encoder
from maxam.stomp.answers import MARKER, SESSION_TAKEN_OVER, Answer, Delivery, Receipt
from maxam.stomp.events import SubscribeOptions

PAUSE_MIN_S: Final = 0.25  # before the first attempt to connect again; doubles with each
PAUSE_MAX_S: Final = 4.0  # short, so that the centre is current soon after the line is back
BAD_WINDOW: Final = "bad window"  # `message` of the ERROR for a window above the gateway's limit
STABLE_AFTER_S: Final = 1.0  # after a connection that lived this long, the pauses begin again


@final
class TakenOverError(Exception):
    """Another bridge has connected under our name."""


@final
class Lane:
    """A connection under one client-id.

    Attributes:
        number: Of the lane, as the relay knows it.
        connections: Number of connections so far.
        problem: The reason why there is no connection, or empty.
    """

    def __init__(
        self,
        number: int,
        side: SideSettings,
        client_id: str | None,
        relay: Relay,
        now: Callable[[], float],
        pump: Callable[[], None],
    ) -> None:
        self.number: Final = number
        self.connections = 0
        self.problem = "not connected yet"
        self._side: Final = side
        self._client_id: Final = client_id
        self._relay: Final = relay
        self._now: Final = now
        self._pump: Final = pump
        self._link: Link | None = None
        self._scope: trio.CancelScope | None = None
        self._closed = False  # for good
        self._wait_s: float | None = None  # that the relay asked for
        self._useful = False  # the gateway has accepted a SEND of this connection
        self._turn = 0
        self._window: int | None = None if client_id is None else relay.plan.window
        self._handles: Final[dict[bytes, int]] = {}  # of subscriptions, by id
        self._ids: Final[dict[int, bytes]] = {}

    async def keep(self) -> None:
        """Connect, and connect again after each loss, until it is closed for good.

        Raises:
            TakenOverError: Another connection has the session.
        """
        pause_s = PAUSE_MIN_S
        while not self._closed:
            began_s = trio.current_time()
            reason = await self._connect_once()
            if isinstance(reason, GatewayError) and reason.message == SESSION_TAKEN_OVER:
                raise TakenOverError(self._side.name)
            if self._window is not None and isinstance(reason, GatewayError) and reason.message == BAD_WINDOW:
                self._window = None  # the gateway adapts it, up to its own limit
                action = f"set [limits] window of the gateway to {self._relay.plan.window} if the line is long"
                log_event(logging.INFO, "bridge-window", gateway=self._side.name, lane=self.number, action=action)
                continue
            if self._over():
                return
            cut = self._useful and not isinstance(reason, GatewayError)  # by the line, and not by the gateway
            if cut or trio.current_time() - began_s > STABLE_AFTER_S:
                pause_s = PAUSE_MIN_S
            wait_s = pause_s * random.uniform(0.5, 1.0)  # noqa: S311  # so that the bridges of a restarted centre do not come all at once
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            if self._wait_s is not None:
                wait_s, self._wait_s = self._wait_s, None
            text = str(reason) if reason is not None else "closed by the bridge"
            if text != self.problem:
                log_event(
                    logging.WARNING, "bridge-disconnected", gateway=self._side.name, lane=self.number, reason=text
                )
            self.problem = text
            await trio.sleep(wait_s)

    async def _connect_once(self) -> ClientError | None:
        """Connect to the next address and serve the connection. Return the reason for its end, None if we closed it."""
        side = self._side
        addresses = side.stomp_addresses()
        host, port = addresses[self._turn % len(addresses)]
        self._turn += 1
        reason: ClientError | None = None
        known = self._useful = False
        with trio.CancelScope() as self._scope:
            try:
                async with connect_to(side, host, port, self._client_id, self._window) as client:
                    if not client.incarnation:
                        raise ConnectionLostError(
                            f"the gateway {side.name} has no incarnation; update it to this release"
                        )
                    self._handles.clear()
                    self._ids.clear()
                    self._link = client.serve_frames(self._take, self._pump)
                    self.connections += 1
                    self.problem = ""
                    log_event(
                        logging.INFO,
                        "bridge-connected",
                        gateway=side.name,
                        lane=self.number,
                        address=f"{host}:{port}",
                        incarnation=client.incarnation,
                    )
                    known = True
                    self._relay.connected(self._now(), self.number, client.incarnation)
                    self._pump()
                    reason = await client.ended()
            except ClientError as error:
                reason = error
            finally:
                self._link = None
        if known:
            if isinstance(reason, GatewayError) and reason.receipt_id is not None and reason.receipt_id[:1] == b"t":
                self._relay.refused(self._now(), int(reason.receipt_id[1:]), reason.message)
            self._relay.lost(self._now(), self.number)
            self._pump()
        return reason

    def _over(self) -> bool:
        return self._closed

    def close(self, wait_s: float | None) -> None:
        """End the connection, and connect again after `wait_s`, or never if that is None."""
        self._closed = wait_s is None
        self._wait_s = wait_s
        self._link = None
        if self._scope is not None:
            self._scope.cancel()

    def do(self, wish: Send | Subscribe | Unsubscribe) -> None:
        """Put the frame of a wish on its way, unless the connection has ended."""
        link = self._link
        if link is None:
            return
        match wish:
            case Send():
                pairs = [(name.encode(), value.encode()) for name, value in wish.headers.items()]
                if wish.source is not None:
                    pairs += [(b"source", wish.source[0].encode()), (b"source-revision", b"%d" % wish.source[1])]
                if wish.if_revision is not None:
                    pairs.append((b"if-revision", b"%d" % wish.if_revision))
                link.put_now(
                    encoder.send(link.version, wish.topic.encode(), wish.body, tuple(pairs), b"t%d" % wish.ticket)
                )
            case Subscribe():
                name = wish.id.encode()
                self._handles[name] = wish.handle
                self._ids[wish.handle] = name
                options = SubscribeOptions(None, True, wish.durable, wish.min_interval_ms, None, False)
                ack = b"client" if wish.durable else b"auto"
                link.put_now(
                    encoder.subscribe(
                        link.version,
                        name,
                        wish.glob.encode(),
                        ack,
                        wish.durable,
                        wish.eager,
                        b"s%d" % wish.handle,
                        options,
                    )
                )
            case Unsubscribe():
                name = wish.id.encode()
                old = self._handles.pop(name, None)
                if old is not None:
                    del self._ids[old]
                link.put_now(encoder.unsubscribe(link.version, name, wish.for_good, b"u%d" % wish.handle))

    def acknowledge(self, wish: Ack) -> bool:
        """Send an ACK if its subscription is one of this connection. Return True if it is."""
        name = self._ids.get(wish.handle)
        if name is None:
            return False
        if self._link is not None:
            self._link.put_now(encoder.ack(self._link.version, name, b"%d" % wish.revision))
        return True

    def _take(self, answer: Answer) -> bool:
        """Report a frame to the relay. Return False if it is the client's."""
        relay = self._relay
        match answer:
            case Delivery():
                handle = self._handles.get(answer.subscription)
                if handle is not None:
                    self._deliver(handle, answer)
            case Receipt():
                kind, number = answer.receipt_id[:1], answer.receipt_id[1:]
                if kind == b"t":
                    self._useful |= answer.disposition == "accepted"
                    relay.receipt(self._now(), int(number), answer.disposition, answer.result, answer.reason)
                elif kind == b"s":
                    relay.subscribed(self._now(), int(number), answer.result == "resumed", answer.filtered)
                elif kind == b"u":
                    relay.unsubscribed(self._now(), int(number), answer.result in ("paused", "removed"))
                else:
                    return False
            case _:
                return False
        return True

    def _deliver(self, handle: int, delivery: Delivery) -> None:
        relay, now_s = self._relay, self._now()
        headers = delivery.headers
        if delivery.destination == MARKER:
            position = headers.get(b"position", b"").split(b".")
            if len(position) > 1 and position[1].isdigit():
                relay.position(now_s, handle, int(position[1]))
            if headers.get(b"kind") == b"complete":
                relay.complete(now_s, handle)
        elif delivery.message_id == b"0":
            if headers.get(b"kind") == b"left":
                relay.left(now_s, handle)
        else:
            texts = {name.decode(): value.decode() for name, value in headers.items()}
            relay.message(now_s, handle, int(delivery.message_id), delivery.destination.decode(), delivery.body, texts)


def connect_to(
    side: SideSettings, host: str, port: int, client_id: str | None = None, window: int | None = None
) -> AbstractAsyncContextManager[Client]:
    """Connect to an address of a side with the certificate of the bridge there."""
    return connect(
        host,
        port,
        certificate=side.certificate,
        key=side.key,
        ca=side.ca,
        check_name=side.server_name or None,
        client_id=client_id,
        host=side.virtual_host,
        window=window,
    )

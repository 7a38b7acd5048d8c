"""Drive `maxam.client` with one promise broken: `broken.py NAME`. The kit must find each."""

import itertools
import random
import ssl
import sys
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import anyio

from maxam import client, client_tls
from maxam.client import link
from maxam.client.errors import OutcomeUnknownError
from maxam.client.progress import Progress
from maxam.client.resume import ResumingClient, ResumingSubscription
from maxam.client.subscription import Subscription
from maxam.client.values import LiveValues
from maxam.errors import ClientError, ProtocolError
from maxam.stomp import encoder
from maxam.stomp.answers import MARKER, Receipt, read_answer
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import Frame
from tests.conformance.drivers import python_client


async def _nothing(*_: Any) -> None:
    return None


def forgets_subscriptions() -> Any:
    """A client that does not subscribe again."""
    return patch.object(ResumingSubscription, "_continue", _nothing)


def stores_early() -> Any:
    """A client that stores a position when it comes, not when the application is done with the values before it."""
    put = link.Inbox.put

    def put_now(inbox: link.Inbox, delivery: Any) -> None:
        put(inbox, delivery)
        position = delivery.headers.get(b"position")
        if position is not None and inbox.progress is not None:
            inbox.progress.position = position.decode()
            inbox.progress.notify()

    return patch.object(link.Inbox, "put", put_now)


def pauses_alike() -> Any:
    """A client whose pauses are not random."""
    return patch.object(random, "uniform", lambda _least, greatest: greatest)


def repeats_refused_connect() -> Any:
    """A client that repeats a CONNECT that was refused for good."""
    return patch.object(client, "is_final", lambda reason, **_: "taken over" in str(reason))


def fights_for_session() -> Any:
    """A client that takes its session back."""
    return patch.object(client, "is_final", lambda reason, **_: "unknown host" in str(reason))


def acknowledges_early() -> Any:
    """A client that acknowledges when the value comes."""
    take = link.Link._take

    def take_and_ack(self: link.Link, answer: Any) -> None:
        take(self, answer)
        headers: Mapping[bytes, bytes] = getattr(answer, "headers", {})
        if b"ack" in headers:
            self.put_now(encoder.ack(self.version, answer.subscription, answer.message_id))

    return patch.object(link.Link, "_take", take_and_ack)


def is_silent() -> Any:
    """A client that sends no heart-beats, though it agreed to."""
    put_now = link.Link.put_now
    return patch.object(
        link.Link, "put_now", lambda self, frame: None if frame == encoder.HEART_BEAT else put_now(self, frame)
    )


def repeats_sends() -> Any:
    """A client that repeats a SEND of unknown outcome unasked."""
    send = ResumingClient.send

    async def send_again(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return await send(self, *arguments, **options)
        except OutcomeUnknownError:
            await send(self, *arguments, **options)
            raise

    return patch.object(ResumingClient, "send", send_again)


def gives_up() -> Any:
    """A client that does not connect again."""
    return patch.object(client, "is_final", lambda _reason, **_: True)


def trusts_any_server() -> Any:
    """A client that checks no certificate."""
    make = client_tls.client_context

    def make_trusting(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = make(*arguments, **options)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    return patch("maxam.client.transport.client_context", make_trusting)


def waits_for_silent_servers() -> Any:
    """A client that sends heart-beats and expects none, though it asked for them."""

    async def beat(self: Any) -> None:
        while True:
            await anyio.sleep(0.5)
            self.put_now(encoder.HEART_BEAT)

    return patch.object(link.Link, "_beat", beat)


def _changing_sends(change: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
    """Return the patch for a client that changes headers and body of each SEND."""
    send = encoder.send

    def send_changed(version: int, destination: bytes, body: bytes, headers: Any = (), *rest: Any) -> bytes:
        headers, body = change(headers, body)
        return send(version, destination, body, headers, *rest)

    return patch.object(encoder, "send", send_changed)


def escapes_twice() -> Any:
    """A client that escapes the values of headers, and its encoder again."""
    return _changing_sends(
        lambda headers, body: ([(name, encoder.escape(VERSION_1_2, value)) for name, value in headers], body)
    )


def ends_bodies_at_nul() -> Any:
    """A client whose bodies end with the first NUL, as text in C does."""
    return _changing_sends(lambda headers, body: (headers, body.partition(b"\0")[0] or body))


def renumbers_sends() -> Any:
    """A client that gives a SEND a new number when it repeats it."""
    numbers = itertools.count(100)

    def renumbered(headers: Any, body: Any) -> tuple[Any, Any]:
        marks = {b"source-revision": b"%d" % next(numbers)}
        return [(name, marks.get(name, value)) for name, value in headers], body

    return _changing_sends(renumbered)


def ignores_receipts() -> Any:
    """A client for which each RECEIPT is an acceptance."""
    return patch.object(Receipt, "accepted", True)


def _changing_frames(change: Callable[[Frame], Frame]) -> Any:
    """Return the patch for a client that misreads frames."""
    return patch("maxam.client.link.read_answer", lambda frame: read_answer(change(frame)))


def keeps_escapes() -> Any:
    """A client that leaves the headers of a MESSAGE escaped."""

    def change(frame: Frame) -> Frame:
        headers = {name: encoder.escape(VERSION_1_2, value) for name, value in frame.headers.items()}
        return Frame(frame.command, headers, frame.body) if frame.command == b"MESSAGE" else frame

    return _changing_frames(change)


def cuts_bodies_at_nul() -> Any:
    """A client that ignores `content-length`."""
    return _changing_frames(lambda frame: Frame(frame.command, frame.headers, frame.body.partition(b"\0")[0]))


def refuses_new_headers() -> Any:
    """A client that takes a header which it does not know for an error."""

    def change(frame: Frame) -> Frame:
        if b"x-later" in frame.headers:
            raise ProtocolError("unknown header", "x-later")
        return frame

    return _changing_frames(change)


def reads_last_header() -> Any:
    """A client for which the last one of repeated headers counts."""

    def change(frame: Frame) -> Frame:
        wrong = frame.command == b"MESSAGE" and frame.headers.get(b"destination") != b"$marker"
        headers = {**frame.headers, b"destination": b"X/wrong"} if wrong else frame.headers
        return Frame(frame.command, headers, frame.body)

    return _changing_frames(change)


def acknowledges_nothing() -> Any:
    """A client that sends no ACK."""
    return patch.object(Subscription, "_acknowledge", _nothing)


def repeats_refused_subscriptions() -> Any:
    """A client that repeats a SUBSCRIBE that was refused."""

    async def enter(self: Any) -> Any:
        while True:
            client = await self._owner._connected()
            try:
                await self._resume(client)
            except ClientError:
                await self._owner._gone(client)
                continue
            self._owner._subscriptions.append(self)
            return self

    return patch.object(ResumingSubscription, "__aenter__", enter)


def keeps_what_is_gone() -> Any:
    """A client that drops no topic when its position cannot be used."""
    begin = Progress.begin

    def begin_forgetfully(self: Any, snapshot: bool) -> None:
        begin(self, snapshot)
        self._missing = None

    return patch.object(Progress, "begin", begin_forgetfully)


def syncs_early() -> Any:
    """A client whose map counts as complete when it is subscribed."""
    return patch.object(LiveValues, "sync", _nothing)


def drops_deletes() -> Any:
    """A client that takes a MESSAGE without body for nothing."""
    put = link.Inbox.put

    def put_bodies(inbox: link.Inbox, delivery: Any) -> None:
        if delivery.body or delivery.destination == MARKER:
            put(inbox, delivery)

    return patch.object(link.Inbox, "put", put_bodies)


# Each with the promises that it breaks.
BROKEN: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "gives-up": (gives_up, ("reconnects",)),
    "trusts-any-server": (trusts_any_server, ("server-trusted",)),
    "pauses-alike": (pauses_alike, ("pauses-differ",)),
    "repeats-refused-connect": (repeats_refused_connect, ("refusal-final",)),
    "fights-for-session": (fights_for_session, ("takeover-final",)),
    "is-silent": (is_silent, ("heart-beats-sent",)),
    "waits-for-silent-servers": (waits_for_silent_servers, ("heart-beats-missed",)),
    "escapes-twice": (escapes_twice, ("sends-exactly",)),
    "ends-bodies-at-nul": (ends_bodies_at_nul, ("sends-exactly",)),
    "ignores-receipts": (ignores_receipts, ("rejections-reported",)),
    "repeats-sends": (repeats_sends, ("outcome-unknown",)),
    "renumbers-sends": (renumbers_sends, ("sends-again",)),
    "keeps-escapes": (keeps_escapes, ("headers-unescaped",)),
    "cuts-bodies-at-nul": (cuts_bodies_at_nul, ("bodies-whole",)),
    "refuses-new-headers": (refuses_new_headers, ("unknown-headers-ignored",)),
    "reads-last-header": (reads_last_header, ("first-header-counts",)),
    "forgets-subscriptions": (forgets_subscriptions, ("resubscribes",)),
    "acknowledges-early": (acknowledges_early, ("acks-after-value",)),
    "acknowledges-nothing": (acknowledges_nothing, ("acks-all", "acks-after-value")),
    "repeats-refused-subscriptions": (repeats_refused_subscriptions, ("refused-subscription",)),
    "stores-early": (stores_early, ("position-after-value",)),
    "keeps-what-is-gone": (keeps_what_is_gone, ("since-unavailable", "map-restored")),
    "syncs-early": (syncs_early, ("map-complete",)),
    "drops-deletes": (drops_deletes, ("continues-after-kill", "map-equal")),
}

if __name__ == "__main__":
    with BROKEN[sys.argv[1]][0]():
        anyio.run(python_client.main, backend="trio")

"""Drive `maxam.client` with one promise broken: `broken.py NAME`. The kit must find each, and nothing else."""

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import trio

from maxam import client
from maxam.client import link
from maxam.client.errors import OutcomeUnknownError
from maxam.client.resume import ResumingClient, ResumingSubscription
from maxam.stomp import encoder
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


BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "forgets-subscriptions": (forgets_subscriptions, "resubscribes"),
    "stores-early": (stores_early, "position-after-value"),
    "pauses-alike": (pauses_alike, "pauses-differ"),
    "repeats-refused-connect": (repeats_refused_connect, "refusal-final"),
    "fights-for-session": (fights_for_session, "takeover-final"),
    "acknowledges-early": (acknowledges_early, "acks-after-value"),
    "is-silent": (is_silent, "heart-beats-sent"),
    "repeats-sends": (repeats_sends, "outcome-unknown"),
}

if __name__ == "__main__":
    with BROKEN[sys.argv[1]][0]():
        trio.run(python_client.main)

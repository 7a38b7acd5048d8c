"""`maxam-admin subscriptions explain`: why a subscription does not have the newest value of a topic."""

from typing import Any, Final

import click

from maxam.cli.completion import client_ids, destinations, principals, subscription_ids
from maxam.cli.options import json_option, with_credentials
from maxam.cli.repeating import watch_option
from maxam.counting import counted
from maxam.https_client import Credentials, Remote
from maxam.terminal.tables import print_fields, print_json, print_line
from maxam.terminal.units import duration

# Text of each code of the API, with facts of the answer.
TEXTS: Final = {
    "no-match": "the glob of the subscription does not match the topic",
    "no-right": "the principal may not receive the topic",
    "no-topic": "the broker has no value of the topic",
    "pending": "the SUBSCRIBE, or a right that was granted, has not taken effect yet",
    "undisclosed": "the answer depends on the value, which this certificate may not receive",
    "filtered": "the newest value does not satisfy the selector",
    "unacknowledged": "revision {sent_revision} was sent and is not acknowledged; nothing newer exists",
    "superseded": "revision {sent_revision} was sent and is not acknowledged; revision {revision} waits for that ACK",
    "detached": "the change is owed; the client has been away for {since}",
    "paused": "the change is owed; the client is connected and has not subscribed again",
    "closing": "the change is owed; the connection is about to end",
    "unchanged": "the client has a value with the same body, and subscribed with changes-only",
    "held": "the change is owed; the interval of the topic ends in {left}",
    "window-full": "the change is owed; the client must first acknowledge some of {in_flight} messages",
    "ready": "the change is sent as soon as the client reads, after {others}",
    "writing": "revision {sent_revision} was handed to the connection; it is not proven that it was written",
    "scanning": "the scan for the current values has not reached the topic",
    "older": "the change is older than the subscription, which did not ask for current values",
    "acknowledged": "not owed: the client has acknowledged everything that was routed to the subscription",
    "handed-out": "not owed: everything that is routed to it was handed out",
}
_NO_VALUE: Final = "the topic was deleted, and the client has no value of it"


@click.command("explain")
@click.argument("principal", shell_complete=principals)
@click.argument("client_id", shell_complete=client_ids)
@click.argument("subscription", metavar="ID", shell_complete=subscription_ids)
@click.argument("destination", shell_complete=destinations)
@json_option
@watch_option
@with_credentials
def subscriptions_explain(
    credentials: Credentials, principal: str, client_id: str, subscription: str, destination: str, as_json: bool
) -> None:
    """Explain why a subscription does not have the newest value of a topic.

    The first line is the cause and its meaning. The facts follow. An empty fact does not apply, or the gateway does not know it.

    \b
    maxam-admin subscriptions explain table-7 screen-1 meters X/EGM.Q.7001.EGMStatus
    """  # noqa: D301 a mark of click's: the lines stay as they are
    with Remote(credentials) as remote:
        which = {"principal": principal, "client_id": client_id, "id": subscription}
        answer = remote.get("/v1/subscriptions/explain", **which, destination=destination)
    if as_json:
        print_json(answer)
        return
    print_line(f"{answer['code']}: {because(answer)}")
    refinement = answer.pop("refinement") or {}
    print_fields([*((name, value) for name, value in answer.items() if name != "code"), *refinement.items()])


def because(answer: dict[str, Any]) -> str:
    """Return the text of an answer for people. Codes of a newer gateway have none."""
    if answer["code"] == "filtered" and answer["deleted"]:
        return _NO_VALUE
    return TEXTS.get(answer["code"], "").format(
        revision=answer["revision"],
        sent_revision=answer["sent_revision"],
        in_flight=answer["in_flight"],
        since="some time" if answer["since_s"] is None else duration(answer["since_s"]),
        left="" if answer["left_s"] is None else duration(answer["left_s"]),
        others="many topics" if answer["place"] is None else counted(answer["place"], "other topic"),
    )

"""Drive maxam's own Python client over WebSocket for third_party.py."""

import base64
import json
import sys
import threading
from typing import Any

from maxam.client import GatewayError, sync

LOCK = threading.Lock()  # messages come from threads of their own
HEADERS = ("content-type", "schema")


def tell(event: str, **rest: Any) -> None:
    """Print an event."""
    with LOCK:
        print(json.dumps({"event": event, **rest}), flush=True)  # noqa: T201  # the line protocol


def connect(command: Any) -> sync.Client | None:
    """Connect with a ticket."""
    try:
        kind = "token" if command["headers"]["login"] == "jwt" else "ticket"
        found = sync.connect(command["url"], ca=command["ca"], **{kind: command["headers"]["passcode"]})
    except GatewayError as error:
        tell("error", headers={"code": error.code})
        return None
    tell("connected", headers={"session": found.session})
    return found


def subscribe(client: sync.Client, headers: Any) -> None:
    """Subscribe, and read in a thread."""
    json_wanted = headers.get("accept-format") == "json"
    entered = client.subscribe(
        headers["destination"], eager=headers.get("eager") == "true", json=json_wanted, metadata=json_wanted
    )
    subscription = entered.__enter__()
    tell("receipt", headers={"receipt-id": headers["receipt"], "result": subscription.result})
    threading.Thread(target=read, args=(subscription,), daemon=True).start()


def read(subscription: sync.Subscription) -> None:
    """Print each message."""
    for message in subscription:
        headers = {name: value for name, value in message.headers.items() if name in HEADERS}
        headers["destination"] = message.destination
        tell("message", headers=headers, body=base64.b64encode(message.body).decode())


def send(client: sync.Client, headers: Any, body: bytes) -> None:
    """Send a value and print its RECEIPT."""
    receipt = headers.pop("receipt")
    answer = client.send(headers.pop("destination"), body, headers)
    tell("receipt", headers={"receipt-id": receipt, "disposition": answer.disposition, "reason": answer.reason or ""})


client: Any = None
for line in sys.stdin:
    command = json.loads(line)
    match command["do"]:
        case "connect":
            client = connect(command)
        case "subscribe":
            subscribe(client, command["headers"])
        case "send":
            send(client, command["headers"], base64.b64decode(command["body"]))
        case "disconnect":
            client.close()
            tell("closed")
        case unknown:
            raise ValueError(unknown)

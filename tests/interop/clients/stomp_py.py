"""Drive stomp.py for third_party.py."""

import base64
import json
import sys
import threading
from typing import Any

import stomp

LOCK = threading.Lock()  # events come from stomp.py's own thread


def tell(event: str, **rest: Any) -> None:
    """Print an event."""
    with LOCK:
        print(json.dumps({"event": event, **rest}), flush=True)  # noqa: T201  # the line protocol


class Listener(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    """Print all that stomp.py reports."""

    def on_connected(self, frame: Any) -> None:
        """CONNECTED came."""
        tell("connected", headers=frame.headers)

    def on_message(self, frame: Any) -> None:
        """A MESSAGE came."""
        tell("message", headers=frame.headers, body=base64.b64encode(frame.body).decode())

    def on_receipt(self, frame: Any) -> None:
        """A RECEIPT came."""
        tell("receipt", headers=frame.headers)

    def on_error(self, frame: Any) -> None:
        """An ERROR came."""
        tell("error", headers=frame.headers, body=str(frame.body))

    def on_disconnected(self) -> None:
        """The connection is gone."""
        tell("closed")


def connect(command: Any) -> Any:
    """Connect with a certificate; auto_decode off, or a body that is not text ends stomp.py's receiver."""
    kind = stomp.StompConnection12 if command["version"] == "1.2" else stomp.StompConnection11
    address = [("127.0.0.1", command["port"])]
    connection = kind(
        address,
        vhost="MAXVAPI",
        heartbeats=tuple(command["heart_beat"]),
        auto_decode=False,
        reconnect_attempts_max=1,
    )
    connection.set_ssl(address, ca_certs=command["ca"], cert_file=command["certificate"], key_file=command["key"])
    connection.set_listener("", Listener())
    connection.connect(wait=True, headers=command["headers"])
    return connection


connection: Any = None
for line in sys.stdin:
    command = json.loads(line)
    headers = command.get("headers", {})
    match command["do"]:
        case "connect":
            connection = connect(command)
        case "subscribe":
            connection.subscribe(headers.pop("destination"), headers.pop("id"), headers.pop("ack", "auto"), headers)
        case "unsubscribe":
            connection.unsubscribe(id=headers.pop("id"), headers=headers)
        case "send":
            connection.send(headers.pop("destination"), base64.b64decode(command["body"]), headers=headers)
        case "ack" if connection.version == "1.2":
            connection.ack(command["message"]["ack"], receipt=headers["receipt"])
        case "ack":
            message = command["message"]
            connection.ack(message["message-id"], message["subscription"], receipt=headers["receipt"])
        case "disconnect":
            connection.disconnect()
        case unknown:
            raise ValueError(unknown)

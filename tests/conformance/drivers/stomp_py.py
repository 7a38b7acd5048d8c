"""Drive stomp.py for `maxam-conformance`: a library that reconnects only if its program does, and claims little."""

import base64
import json
import sys
from typing import Any
from urllib.parse import urlsplit

import stomp

Command = dict[str, Any]


def report(saw: str, **rest: object) -> None:
    """Print a report, in one write, as stomp.py calls from its own thread."""
    sys.stdout.write(json.dumps({"saw": saw, **rest}) + "\n")
    sys.stdout.flush()


class Application(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    """Reports all that stomp.py delivers, and acknowledges it."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def on_connected(self, frame: Any) -> None:
        """CONNECTED came."""
        del frame
        report("connected")

    def on_message(self, frame: Any) -> None:
        """A MESSAGE came."""
        headers = frame.headers
        about = {"subscription": headers["subscription"], "destination": headers["destination"]}
        if frame.body:
            report("value", **about, body=base64.b64encode(frame.body).decode(), headers=headers)
        else:
            report("deleted", **about)
        self.connection.ack(headers["ack"])

    def on_receipt(self, frame: Any) -> None:
        """A RECEIPT came."""
        headers = frame.headers
        if headers.get("disposition") == "accepted":
            report("accepted", id=headers["receipt-id"])
        elif "disposition" in headers:
            temporary = headers["disposition"] == "rejected-unavailable"
            report("rejected", id=headers["receipt-id"], result=headers["result"], temporary=temporary)


def connect(command: Command) -> Any:
    """Connect with a certificate; auto_decode off, or a body that is not text ends stomp.py's receiver."""
    address = urlsplit(command["url"])
    hosts = [(address.hostname, address.port)]
    beat_ms = command["heart_beat_ms"]
    connection = stomp.StompConnection12(
        hosts, vhost=command["host"], heartbeats=(beat_ms, beat_ms), auto_decode=False, reconnect_attempts_max=1
    )
    connection.set_ssl(hosts, ca_certs=command["ca"], cert_file=command["certificate"], key_file=command["key"])
    connection.set_listener("", Application(connection))
    try:
        connection.connect(wait=True, headers={"client-id": command["client_id"]})
    except stomp.exception.StompException as error:
        report("closed", code=type(error).__name__)
    return connection


def main() -> None:
    """Obey the kit."""
    connection: Any = None
    report("ready", claims=["publisher", "subscriber"])
    for line in sys.stdin:
        command = json.loads(line)
        match command["do"]:
            case "connect":
                connection = connect(command)
            case "subscribe":
                connection.subscribe(command["destination"], command["subscription"], "client", {"eager": "true"})
            case "send":
                headers = {**command.get("headers", {}), "receipt": command["id"]}
                connection.send(command["destination"], base64.b64decode(command["body"]), headers=headers)
            case other:
                raise ValueError(other)


if __name__ == "__main__":
    main()

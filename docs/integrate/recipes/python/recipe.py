"""Publish lines `DESTINATION JSON` of standard input, and print each change of a glob, with stomp.py over mutual TLS.

Usage: python recipe.py HOST PORT CA CERTIFICATE KEY GLOB
"""

import contextlib
import queue
import random
import sys
import threading
import time
from typing import Any

import stomp

HOST, PORT, CA, CERTIFICATE, KEY, GLOB = sys.argv[1:]
# The same CONNECT would get these again, or two programs would take the session from each other for ever.
FINAL = {"session taken over by a newer connection", "unknown host", "bad client-id"}
events: queue.Queue[tuple[object, str, Any]] = queue.Queue()  # listener, kind, frame or line
unsent: list[str] = []


class Listener(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    """Hands each frame to the main thread. While a method here works, stomp.py neither reads nor sends heart-beats."""

    def on_connected(self, frame: Any) -> None:
        """CONNECTED came."""
        events.put((self, "connected", frame))

    def on_message(self, frame: Any) -> None:
        """A MESSAGE came."""
        events.put((self, "message", frame))

    def on_receipt(self, frame: Any) -> None:
        """A RECEIPT came."""
        events.put((self, "receipt", frame))

    def on_error(self, frame: Any) -> None:
        """An ERROR came; the gateway closes the connection after it."""
        events.put((self, "error", frame))

    def on_disconnected(self) -> None:
        """The connection is gone, also if heart-beats were missing."""
        events.put((self, "lost", None))


def report(*words: str) -> None:
    """Print a line at once."""
    print(*words, flush=True)


def read_lines() -> None:
    """Read standard input."""
    for line in sys.stdin:
        events.put((None, "line", line.rstrip("\n")))
    events.put((None, "end", None))


def show(frame: Any) -> None:
    """Print a change. Put the work of your program here."""
    topic = frame.headers["destination"]
    report("value" if frame.body else "deleted", topic, frame.body.decode())


def run() -> tuple[str, bool]:
    """Serve one connection; return the reason of its end, or nothing after DISCONNECT, and True if there was CONNECTED."""
    listener = Listener()
    address = [(HOST, int(PORT))]
    connection = stomp.StompConnection12(
        address, vhost="MAXVAPI", heartbeats=(10_000, 10_000), auto_decode=False, reconnect_attempts_max=1, timeout=15
    )
    connection.set_ssl(address, ca_certs=CA, cert_file=CERTIFICATE, key_file=KEY)  # checks the chain, and no name
    connection.set_listener("", listener)
    try:
        connection.connect(headers={"client-id": "recipe-python"})
    except stomp.exception.ConnectFailedException:
        return "no connection, see the log of stomp.py", False
    sent: dict[str, str] = {}  # destinations of SENDs without a RECEIPT
    connected = ending = False
    reason = "connection lost"
    while True:
        try:
            whose, kind, frame = events.get(timeout=None if connected else 15)
        except queue.Empty:
            connection.transport.disconnect_socket()
            return "no CONNECTED", False
        if whose not in (None, listener):
            continue  # of an earlier connection
        with contextlib.suppress(stomp.exception.StompException):  # lost: this is an event, too
            if kind == "connected":
                report("connected")
                connected = True
                headers = {"durable": "true", "accept-format": "json"}
                connection.subscribe(GLOB, id="all", ack="client", headers=headers)
            elif kind == "message":
                show(frame)
                connection.ack(frame.headers["ack"])  # only then comes the next value of this topic
            elif kind == "receipt":
                if topic := sent.pop(frame.headers["receipt-id"], ""):
                    report(frame.headers["disposition"], topic, frame.headers.get("result", ""))
            elif kind == "line":
                unsent.append(frame)
            elif kind == "error":
                reason = frame.headers["message"]
            elif kind == "end":
                ending = True
                connection.disconnect()
            else:
                for topic in sent.values():
                    report("unknown", topic)  # it may have been accepted
                return "" if ending else reason, connected
            while connected and unsent:
                topic, _, body = unsent.pop(0).partition(" ")
                receipt = str(random.getrandbits(64))
                sent[receipt] = topic
                connection.send(topic, body.encode(), content_type="application/json", receipt=receipt)


def main() -> int:
    """Connect again after each loss, with full jitter, until there is a final error or the input ends."""
    threading.Thread(target=read_lines, daemon=True).start()
    failures = 0
    while True:
        reason, connected = run()
        if not reason:
            return 0
        if reason in FINAL:
            report("closed", reason)
            return 1
        report("lost", reason)
        failures = 0 if connected else failures + 1
        time.sleep(random.uniform(0, min(30, 0.5 * 2**failures)))


if __name__ == "__main__":
    sys.exit(main())

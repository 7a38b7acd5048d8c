"""Publish lines `DESTINATION JSON` of standard input, and print each change of a glob, with stomp.py over mutual TLS.

Usage: python recipe.py HOST PORT CA CERTIFICATE KEY GLOB [POSITION-FILE]

With a file for the position it continues by `since` in place of a durable subscription. The file has the topics too.
"""

import contextlib
import queue
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import stomp

HOST, PORT, CA, CERTIFICATE, KEY, GLOB, *REST = sys.argv[1:]
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


def show(topic: str, body: str) -> None:
    """Print a change; without body the topic is gone. Put the work of your program here."""
    report("value" if body else "deleted", topic, body)


class Resume:
    """The state from which the program continues by `since`. A program that stores values stores the position with them."""

    def __init__(self, file: Path) -> None:
        """Read the position and the topics of the program before."""
        lines = file.read_text().splitlines() if file.exists() else [""]
        self.file = file
        self.position = lines[0]
        self.held = set(lines[1:])  # topics of which the program has a value
        self.seen: set[str] | None = None  # topics that came since SUBSCRIBE; None after the marker `complete`

    def begin(self) -> dict[str, str]:
        """Return headers for the next SUBSCRIBE."""
        self.seen = set()
        return {"markers": "true", "eager": "true"} | ({"since": self.position} if self.position else {})

    def took(self, topic: str, *, has_value: bool) -> None:
        """Record a change that the program is done with."""
        if self.seen is not None:
            self.seen.add(topic)
        (self.held.add if has_value else self.held.discard)(topic)

    def notice(self, headers: dict[str, str]) -> None:
        """Handle a MESSAGE that has no `ack`: a marker, or a notice about a topic."""
        topic, kind, position = headers["destination"], headers["kind"], headers.get("position")
        if topic != "$marker":
            if kind == "left":  # the right to receive it is gone
                self.drop(topic)
            else:
                report(kind, topic, headers["reason"])  # stale or fresh: the value stays
        elif kind == "complete":
            # Without a position that can be used, all values came: the program drops the topics that were not among them.
            if not self.position or headers.get("result") == "since-unavailable":
                for one in self.held - (self.seen or set()):
                    self.drop(one)
            self.seen = None
        if position and self.seen is None:  # all that came before is handled
            self.position = position
            new = self.file.with_name(self.file.name + ".new")
            new.write_text("\n".join([position, *sorted(self.held)]))
            new.replace(self.file)  # so that a crash leaves the old file or the new one
            report("position", position)

    def drop(self, topic: str) -> None:
        """Forget a topic."""
        self.held.discard(topic)
        show(topic, "")


RESUME = Resume(Path(REST[0])) if REST else None


def receive(connection: Any, frame: Any) -> None:
    """Handle a MESSAGE."""
    headers = frame.headers
    if "ack" not in headers:  # a marker or a notice
        if RESUME:
            RESUME.notice(headers)
        return
    show(headers["destination"], frame.body.decode())
    if RESUME:
        RESUME.took(headers["destination"], has_value=bool(frame.body))
    connection.ack(headers["ack"])  # only then comes the next value of this topic


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
                headers = {"accept-format": "json"} | (RESUME.begin() if RESUME else {"durable": "true"})
                connection.subscribe(GLOB, id="all", ack="client", headers=headers)
            elif kind == "message":
                receive(connection, frame)
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

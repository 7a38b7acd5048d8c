"""Scenarios of the headers that refine a subscription, as third-party libraries send them: each uses one header."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

import pytest

from tests.interop.third_party import Cell, Headers, Message, ThirdPartyClient, counter

LIBRARIES_REFINED: Final = ("stomp.py", "@stomp/stompjs")
MARKER: Final = "$marker"
LONG_MS: Final = "3600000"  # an interval that no test lives to see the end of


def complete(client: ThirdPartyClient) -> tuple[list[Message], Headers]:
    """Wait for the marker that ends the initial state; return the messages before it, and its headers."""
    messages: list[Message] = []
    while (message := client.message()).headers.get("kind") != "complete":
        messages.append(message)
    assert message.headers["destination"] == MARKER
    assert message.headers["message-id"] == "0"
    assert "ack" not in message.headers
    return messages, message.headers


def bodies(messages: list[Message]) -> dict[str, bytes]:
    """Return the body of each message by its destination."""
    return {message.headers["destination"]: message.body for message in messages}


def metadata(cell: Cell) -> None:
    """Each MESSAGE has time, publisher and schema of its change, its kind, and how many values were skipped."""
    with cell.client() as client, cell.peer() as peer:
        client.connect()
        client.subscribe("s", cell.topic("*"), ack="client", metadata="true")
        peer.send(cell.topic("Counter"), counter(1))
        first = client.message()
        assert int(first.headers["timestamp"]) > 0
        assert first.headers["publisher"] == "publisher"
        assert first.headers["schema"] == "interop.Counter_v1 1.0"
        assert (first.headers["kind"], first.headers["conflated"]) == ("value", "0")
        for count in (2, 3):
            peer.send(cell.topic("Counter"), counter(count))
        client.ack(first)
        newest = client.message()
        assert (newest.body, newest.headers["conflated"]) == (counter(3), "1")
        client.ack(newest)
        peer.send(cell.topic("Counter"), b"")
        delete = client.message()
        assert (delete.body, delete.headers["kind"], delete.headers["reason"]) == (b"", "delete", "deleted")
        client.disconnect()


def markers(cell: Cell) -> None:
    """A marker ends the eager snapshot. It has a position, and so has the RECEIPT of an ACK."""
    with cell.client() as client, cell.peer() as peer:
        peer.send(cell.topic("Counter"), counter(1))
        client.connect()
        client.subscribe("s", cell.topic("*"), ack="client", eager="true", markers="true")
        (message,), marker = complete(client)
        assert message.body == counter(1)
        assert marker["count"] == "1"
        assert marker["position"]
        position = client.ack(message)["position"]
        assert position != marker["position"]
        client.disconnect()


def notices(cell: Cell) -> None:
    """A value that is not updated in time is reported as `stale`, outside the window, and the next one is `fresh`."""
    with cell.client() as client, cell.peer() as peer:
        client.connect()
        client.subscribe("s", cell.topic("*"), ack="client", markers="true")
        peer.send(cell.topic("Watched"), b"1")
        first = _of_kind(client, None)
        stale = _of_kind(client, "stale")
        assert (stale.body, stale.headers["reason"], stale.headers["message-id"]) == (b"", "overdue", "0")
        assert stale.headers["destination"] == cell.topic("Watched")
        assert "ack" not in stale.headers
        client.ack(first)
        peer.send(cell.topic("Watched"), b"2")
        assert _of_kind(client, "fresh").body == b"2"
        client.disconnect()


def _of_kind(client: ThirdPartyClient, kind: str | None) -> Message:
    """Return the next message that is no marker, which must have this kind."""
    while (message := client.message()).headers["destination"] == MARKER:
        pass
    assert message.headers.get("kind") == kind
    return message


def since(cell: Cell) -> None:
    """From a stored position the library gets what has changed since, deletes included, and nothing else."""
    with cell.peer() as peer:
        for name in "ABC":
            peer.send(cell.topic(f"{name}.Counter"), counter(1))
        with cell.client() as client:
            client.connect()
            client.subscribe("s", cell.topic("*"), eager="true", markers="true")
            messages, marker = complete(client)
            assert len(messages) == 3
            client.disconnect()
        peer.send(cell.topic("A.Counter"), counter(2))
        peer.send(cell.topic("B.Counter"), b"")
        with cell.client() as client:
            client.connect()
            client.subscribe("s", cell.topic("*"), markers="true", since=marker["position"])
            messages, marker = complete(client)
            assert bodies(messages) == {cell.topic("A.Counter"): counter(2), cell.topic("B.Counter"): b""}
            assert marker["count"] == "2"
            unusable = client.subscribe("t", cell.topic("*"), since="0000000000000000.1.0")
            assert unusable["result"] == "since-unavailable"
            client.disconnect()


def min_interval(cell: Cell) -> None:
    """A topic comes once per interval, and then with its newest value. A delete comes at once."""
    with cell.client() as client, cell.peer() as peer:
        client.connect()
        client.subscribe("slow", cell.topic("A.*"), **{"min-interval": LONG_MS})
        client.subscribe("fast", cell.topic("B.*"), **{"min-interval": "10"})
        peer.send(cell.topic("A.Counter"), counter(1))
        messages: dict[str, list[bytes]] = {"slow": [client.message().body], "fast": []}
        for count in (2, 3):
            peer.send(cell.topic("A.Counter"), counter(count))
            peer.send(cell.topic("B.Counter"), counter(count))
        peer.send(cell.topic("A.Counter"), b"")
        while messages["slow"][-1:] != [b""] or messages["fast"][-1:] != [counter(3)]:
            message = client.message()
            messages[message.headers["subscription"]].append(message.body)
        assert messages["slow"] == [counter(1), b""]
        client.disconnect()


def selector(cell: Cell) -> None:
    """Only values that satisfy a condition come. A topic that no longer satisfies it comes once as `left`."""
    with cell.client() as client, cell.peer() as peer:
        client.connect()
        condition = "count > 10 AND label LIKE 'a%' AND label <> 'a:b'"
        client.subscribe("s", cell.topic("*"), metadata="true", selector=condition)
        values: list[Message] = []
        for counts in ((5, 20), (6,), (7, 30)):
            for count in counts:
                peer.send(cell.topic("Counter"), counter(count))
            values.append(client.message())
        assert [message.body for message in values] == [counter(20), b"", counter(30)]
        assert [message.headers["kind"] for message in values] == ["value", "left", "value"]
        assert values[1].headers["reason"] == "selector"
        client.disconnect()
    with cell.client() as client:
        client.connect()
        with pytest.raises(AssertionError, match="bad selector"):
            client.subscribe("s", cell.topic("*"), selector="count > 'text'")


def changes_only(cell: Cell) -> None:
    """A value with the body of the value before does not come."""
    with cell.client() as client, cell.peer() as peer:
        client.connect()
        client.subscribe("s", cell.topic("*"), **{"changes-only": "true"})
        peer.send(cell.topic("Counter"), counter(1))
        assert client.message().body == counter(1)
        for count in (1, 2):
            peer.send(cell.topic("Counter"), counter(count))
        assert client.message().body == counter(2)
        client.disconnect()
        assert client.unread() == 0


def values_as_json(cell: Cell) -> None:
    """A value comes as JSON with its schema, and one that is sent as JSON is stored in the form of its schema."""
    with cell.client() as client, cell.peer() as peer:
        peer.send(cell.topic("Counter"), counter(7))
        client.connect()
        client.subscribe("s", cell.topic("*"), eager="true", **{"accept-format": "json"})
        message = client.message()
        assert json.loads(message.body) == {"count": 7, "label": "abc"}
        assert message.headers["content-type"] == "application/json"
        assert message.headers["schema"] == "interop.Counter_v1 1.0"
        sent = client.send(
            cell.topic("Counter"), b'{"count": 8, "label": "abc"}', **{"content-type": "application/json"}
        )
        assert sent["disposition"] == "accepted"
        assert peer.value(cell.topic("Counter")).body == counter(8)
        assert json.loads(client.message().body) == {"count": 8, "label": "abc"}
        client.disconnect()


def incarnation(cell: Cell) -> None:
    """CONNECTED has the incarnation of the journal if CONNECT asks for it."""
    with cell.client() as client:
        assert re.fullmatch("[0-9a-f]{16}", client.connect(incarnation="true")["incarnation"])
        client.disconnect()


REFINED_FEATURES: Final[Mapping[str, Callable[[Cell], None]]] = {
    "`metadata`": metadata,
    "`markers`": markers,
    "notices": notices,
    "`since`": since,
    "`min-interval`": min_interval,
    "`selector`": selector,
    "`changes-only`": changes_only,
    "`incarnation`": incarnation,
    "JSON": values_as_json,
}

"""Scenarios of clients that connect over WebSocket, with a ticket in place of a certificate."""

from collections.abc import Callable, Mapping
from typing import Final

from tests.interop.refined_features import values_as_json
from tests.interop.third_party import Cell, counter, make_ticket

EVERY_BYTE: Final = bytes(range(256)) * 2 + b"\0\n\0\r\n\0\n\n"


def ticket(cell: Cell) -> None:
    """A ticket in CONNECT is enough to connect."""
    with cell.client() as client:
        assert client.connect(login="ticket", passcode=make_ticket(cell.gateway))["session"]
        client.disconnect()


def refusal(cell: Cell) -> None:
    """A ticket is used up by its CONNECT. With a used one, the user of the client sees the code `ticket-invalid`."""
    made = make_ticket(cell.gateway)
    with cell.client() as client:
        client.connect(login="ticket", passcode=made)
        client.disconnect()
    with cell.client() as client:
        assert client.refusal(login="ticket", passcode=made)["code"] == "ticket-invalid"


def publish(cell: Cell) -> None:
    """Where the ticket allows it, the client sends a value with its header, and another client receives both."""
    with cell.client() as client, cell.peer() as peer:
        client.connect()
        assert client.send(cell.topic("Counter"), counter(7), floor="upper")["disposition"] == "accepted"
        message = peer.value(cell.topic("Counter"))
        assert (message.body, message.headers["floor"]) == (counter(7), "upper")
        client.disconnect()


def receive(cell: Cell) -> None:
    """The client gets the current value at once and each later update."""
    with cell.client() as client, cell.peer() as peer:
        peer.send(cell.topic("Counter"), counter(1))
        client.connect()
        client.subscribe("s", cell.topic("*"), eager="true")
        first = client.message()
        peer.send(cell.topic("Counter"), counter(2))
        assert [first.body, client.message().body] == [counter(1), counter(2)]
        assert first.headers["destination"] == cell.topic("Counter")
        client.disconnect()


def receipts(cell: Cell) -> None:
    """The user of the client can distinguish accepted from rejected, and a rejection keeps the connection open."""
    with cell.client() as client:
        client.connect()
        invalid = client.send(cell.topic("Counter"), b"\xff")
        assert invalid["disposition"] == "rejected-invalid"
        assert "interop.Counter_v1" in invalid["reason"]
        assert client.send("X/Foreign.Counter", counter(1))["disposition"] == "rejected-unauthorised"
        assert client.send(cell.topic("Counter"), counter(1))["disposition"] == "accepted"
        client.disconnect()


def binary(cell: Cell) -> None:
    """A body of every byte value passes unchanged in both directions."""
    with cell.client() as client, cell.peer() as peer:
        client.connect()
        client.subscribe("s", cell.topic("In.Blob"))
        client.send(cell.topic("Out.Blob"), EVERY_BYTE)
        assert peer.value(cell.topic("Out.Blob")).body == EVERY_BYTE
        peer.send(cell.topic("In.Blob"), EVERY_BYTE)
        assert client.message().body == EVERY_BYTE
        client.disconnect()


OVER_WEB_SOCKET: Final[Mapping[str, Callable[[Cell], None]]] = {
    "ticket": ticket,
    "refusal": refusal,
    "publish": publish,
    "receive": receive,
    "receipts": receipts,
    "binary": binary,
    "JSON": values_as_json,
}

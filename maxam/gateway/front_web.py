"""The web listener of a gateway with fronts: the part that must be one for all of them.

A front serves the connections of this listener as it serves the others. Two things stay in the gateway:

* Tickets, so that each is used once. A front asks with the hash of the secret, and the CONNECT waits for the answer.
* Requests for values. A front hands over a socket with the decrypted bytes of their connection.
"""

import json
import pickle
import socket
import time
from typing import Any, Final, final

import trio

from maxam.cluster import wire
from maxam.gateway.front_children import Front
from maxam.gateway.log import log_bug
from maxam.gateway.tickets import Ticket, Tickets
from maxam.gateway.web import WebListener

_MESSAGE_BYTES_MAX: Final = 4096


@final
class FrontWeb:
    """Answers fronts that serve connections of the web listener.

    Attributes:
        listener: Accepts the connections.
    """

    def __init__(self, listener: WebListener, tickets: Tickets) -> None:
        self.listener: Final = listener
        self._tickets: Final = tickets

    def take_ticket(self, front: Front, asked: dict[str, Any]) -> None:
        """Use up the ticket that a front asks for, and send it the grant, or that it is refused."""
        digest = bytes.fromhex(asked["ticket"])
        ticket = self._tickets.take_hashed(digest, asked["client_id"], asked["origin"], time.time())
        answer = (asked["ask"], None if ticket is None else _packed(ticket))
        front.link.send(wire.frame(wire.ANSWER, pickle.dumps(answer)))

    def serve_values(self, front: Front, nursery: trio.Nursery) -> None:
        """Serve a connection that asks for values, in a task of its own. The front has sent its socket."""
        if front.sockets is None:
            raise wire.WireError("a front on another machine has no connections of the web listener")
        data, descriptors, _, _ = socket.recv_fds(front.sockets, _MESSAGE_BYTES_MAX, 1)
        host, port = json.loads(data)
        connected = trio.socket.from_stdlib_socket(socket.socket(fileno=descriptors[0]))
        nursery.start_soon(self._serve_values, trio.SocketStream(connected), str(host), int(port))

    async def _serve_values(self, stream: trio.SocketStream, host: str, port: int) -> None:
        async with stream:
            try:
                if self.listener.values is not None:
                    await self.listener.values(stream, b"", host, port)
            except Exception as error:  # noqa: BLE001  # a bug met by one client must not end the others
                log_bug("internal-error", error, listener="web")


def _packed(ticket: Ticket) -> tuple[object, ...]:
    """Return a ticket in parts that another process can read."""
    grant = ticket.grant
    maker = grant.maker
    assert maker is not None  # noqa: S101 - each ticket has one
    who = (maker.identity.principal, maker.identity.fingerprint)
    return grant.identity.principal, grant.rights.globs, who, maker.chain, grant.label, ticket.client_id

"""Connections of simulated clients: what each has asked for, and what it was shown since."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.gateway.revocation import Chain
from maxam.gateway.server_connection import ServerConnection
from maxam.stomp.events import SubscribeOptions
from maxam.stomp.frames import SERVER_COMMANDS, Decoder
from tests.simulation.files import Bound

# When they are true of the header `tag` of a value, None without one.
SELECTORS: dict[str, Callable[[str | None], bool]] = {
    "header('tag') = 'a'": lambda tag: tag == "a",
    "header('tag') <> 'a' OR header('tag') IS NULL": lambda tag: tag != "a",
    "header('tag') LIKE '_' AND NOT header('tag') = 'b'": lambda tag: tag is not None and tag != "b",
}


@dataclass
class Asked:
    """A frame that a client sent."""

    data: bytes
    receipt: str | None
    kind: str
    subscription: str = ""
    revision: int = 0
    body: bytes = b""
    mark: tuple[str, bytes, int] | None = None  # topic, source and number
    durable: bool = False
    subscribed: "Subscribed | None" = None  # by this SUBSCRIBE
    acked_on: "Subscribed | None" = None
    topic: str = ""
    form: str = "raw"
    allowed: bool = True  # its sender had the right when the broker read its head, and when it read it all
    allowed_at_end: bool = True  # the latter; a broker that has the whole body with the head decides once
    begun: bool = False  # the broker has read its head and not all of it
    minor: str | None = (
        None  # what judges it: that of the rule in force when the broker read it, empty without a schema
    )
    low: bool = False  # memory was then
    newest: int = 0  # revision that was shown to anybody before, in a cluster


@dataclass
class Subscribed:
    """A SUBSCRIBE that the broker has read, and what left on it since."""

    topics: tuple[str, ...]
    durable: bool
    acknowledged: bool
    eager: bool
    individual: bool  # an ACK covers one message
    since: int | None = None  # revision from which on all is owed: set when the RECEIPT has come
    last: dict[str, int] = field(default_factory=dict)  # topic -> newest revision that left
    unacked: list[int] = field(default_factory=list)
    # Un-acked when a reload granted their topics: owed again, ACKed or not.
    granted: set[int] = field(default_factory=set)
    options: SubscribeOptions | None = None
    glob: str = ""
    reported: int = -1  # the newest position
    completes: int = 0
    after: int | None = None  # the position that was used, so that all changes after it are owed, and no other
    value_s: dict[str, float] = field(default_factory=dict)  # topic -> when its last value left
    holds: dict[str, bool] = field(default_factory=dict)  # topic -> what left last was a value
    resumed: bool = False  # the client may hold values of before

    def selects(self, tag: str | None) -> bool:
        """Return True if a value with this tag satisfies the selector."""
        selector = None if self.options is None else self.options.selector
        return selector is None or SELECTORS[selector](tag)


@dataclass(eq=False)
class Link:
    """One connection: a ServerConnection, the network between, and the client's view."""

    client: str
    peer: ServerConnection
    window: int
    grant: None = None  # as of a client with a certificate
    woken: bool = True
    inbound: list[Asked] = field(default_factory=list)  # not yet at the broker, oldest first
    offset: int = 0  # of the first of them
    outbound: bytes = b""  # not yet at the client
    expected: list[Asked] = field(default_factory=list)  # frames at the broker whose RECEIPT has not left
    subscriptions: dict[str, Subscribed] = field(default_factory=dict)  # as the broker has read them
    asked: set[str] = field(default_factory=set)  # ids that the client has subscribed
    individual: set[str] = field(default_factory=set)  # those with ack mode client-individual
    to_ack: list[tuple[str, int]] = field(default_factory=list)  # read, not acknowledged
    leaving: bool = False
    connected: bool = False
    refused: bool = False  # its certificate does not count, or its will is bad
    will: Bound | None = None  # of its CONNECT
    bad_will: bool = False
    address: str = ""
    stalled: bool = False
    tap: Decoder = field(default_factory=lambda: Decoder(Limits(), SERVER_COMMANDS))
    reader: Decoder = field(default_factory=lambda: Decoder(Limits(), SERVER_COMMANDS))
    # Stands for the gateway's Transport where certificates are judged.
    chain: Chain = ()
    end: Callable[["Link"], None] = lambda _: None
    expelled: bool = False
    message_under_way: bool = False
    large_messages: int = 0
    process: Any = None  # of the gateway, in a cluster

    def expel(self, failure: ProtocolError) -> None:
        """End gracefully."""
        self.expelled = True
        if self.peer.connection is None:
            self.cut(failure.message)
        else:
            self.peer.connection.expel(failure)

    def cut(self, _: str) -> None:
        """End at once."""
        self.peer.cut()
        self.end(self)

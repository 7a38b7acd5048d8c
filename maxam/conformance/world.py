"""The broker that a library talks to: the real one, with a list for its journal.

The kit publishes through a connection of its own, so that each value takes the way of any client's.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final, final

import trio

from maxam.avro.registry import Registry, load_registry
from maxam.broker.broker import Broker
from maxam.broker.operations import Operation, Proof, TransientSubscribe
from maxam.broker.policy import Policy, Rights, load_policy
from maxam.config import Limits, ListenerSettings, PolicySettings, SchemaSettings, Settings, TlsSettings
from maxam.errors import ProtocolError
from maxam.gateway.grants import refusal
from maxam.gateway.server_connection import ServerConnection
from maxam.records import Change, Identity, Record
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2, Connect

HOST: Final = "MAXVAPI"
PRINCIPAL: Final = "library"
_KIT: Final = "0" * 64  # fingerprint of the kit's own certificate, which does not exist
_HEART_BEAT_MS: Final = 1000  # a library that can is tested with a second, so that a run is short
_REGISTRY: Final = {"registry.toml": b'[[rule]]\ndestination = "X/**"\nencoding = "none"\n'}
# The policy allows no SEND to Z, and no rule covers Y.
_POLICY: Final = """
[capabilities.library]
send = ["X/**", "Y/**"]
receive = ["X/**"]
[[principals]]
name = "library"
fingerprints = ["{library}"]
capabilities = ["library"]
[[principals]]
name = "kit"
fingerprints = ["{kit}"]
capabilities = ["library"]
"""


@final
class World:
    """A broker without disk.

    Attributes:
        broker: The present one; a restart makes another.
        tickets: Tickets that were not used yet.
    """

    def __init__(self, fingerprint: str) -> None:
        """Make it. `fingerprint` is that of the library's certificate."""
        policy = _POLICY.format(library=fingerprint, kit=_KIT)
        self._policy: Final[Policy] = load_policy(policy.encode(), "the policy of the kit", Limits())
        self._registry: Final[Registry] = load_registry(_REGISTRY)
        self._settings = Settings(
            tls=TlsSettings(Path(), Path(), Path()),
            policy=PolicySettings(Path()),
            schemas=SchemaSettings(Path()),
            listener=ListenerSettings(heart_beat_ms=_HEART_BEAT_MS),
        )
        self._fingerprint: Final = fingerprint
        self._journal: Final[list[Record]] = []
        self._numbers: Final = count(1)
        self.tickets: Final[set[bytes]] = set()
        self._incarnation = 1
        self.broker = self._new_broker()
        self._publisher = self._publishing()

    def connection(self, fingerprint: str, wake: Callable[[], None], by_ticket: bool = False) -> ServerConnection:
        """Return the broker's end of a new connection. `wake` is called when it has something to send."""
        session_id = f"{next(self._numbers):032x}"
        admit = self._admit if by_ticket else None
        return ServerConnection(
            self.broker, self._settings, fingerprint, session_id, wake, trio.current_time(), admit=admit
        )

    def move(self) -> None:
        """Serve another virtual host from now on, so that each CONNECT gets ERROR `unknown host`."""
        self._settings = replace(
            self._settings, listener=replace(self._settings.listener, virtual_hosts=("ELSEWHERE",))
        )

    def new_ticket(self) -> str:
        """Return a ticket for one CONNECT."""
        ticket = f"ticket-{next(self._numbers)}"
        self.tickets.add(ticket.encode())
        return ticket

    def put(self, destination: str, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Publish a value; an empty `body` deletes the topic."""
        _receive(self._publisher, encoder.send(VERSION_1_2, destination.encode(), body, headers))
        self.settle()

    def take_over(self, client_id: str) -> ServerConnection:
        """Connect as the library does, with the client-id of its session, and return that connection."""
        rival = self.connection(self._fingerprint, _ignore)
        _receive(rival, encoder.connect(HOST, client_id=client_id))
        return rival

    def values(self) -> dict[str, bytes]:
        """Return the value of each topic."""
        topics = self.broker.store.topics
        return {name.decode(): one.change.body for name, one in topics.items() if not one.change.deleted}

    def change_of(self, destination: str) -> Change | None:
        """Return the newest change of a topic, or None."""
        topic = self.broker.store.topics.get(destination.encode())
        return None if topic is None else topic.change

    def settle(self) -> None:
        """Commit and scan until nothing is left to do."""
        broker = self.broker
        broker.tick(trio.current_time())
        while broker.pending or broker.scanning:
            batch = broker.take_batch()
            self._journal.extend(_kept(one) for one in batch if not isinstance(one, TransientSubscribe | Proof))
            broker.apply_batch(batch)
            broker.scan()

    def restart(self, lost_changes: int = 0) -> None:
        """Replace the broker by one that has read the journal. With `lost_changes` it was restored from a backup without the newest ones."""
        if lost_changes:
            changes = [at for at, record in enumerate(self._journal) if type(record) is Change]
            del self._journal[changes[-lost_changes:][0] if changes else len(self._journal) :]
            self._incarnation += 1
        self.broker = self._new_broker()
        self._publisher = self._publishing()

    def _new_broker(self) -> Broker:
        broker = Broker(self._settings.limits, self._policy, self._registry)
        broker.incarnation = f"{self._incarnation:016x}"
        for record in self._journal:
            broker.replay(_kept(record))
        revision = max((record.revision for record in self._journal if type(record) is Change), default=0)
        broker.recovered(trio.current_time(), revision)
        return broker

    def _publishing(self) -> ServerConnection:
        publisher = self.connection(_KIT, _ignore)
        _receive(publisher, encoder.connect(HOST))
        publisher.data_to_send(trio.current_time())
        return publisher

    def _admit(self, event: Connect) -> tuple[Identity, Rights]:
        if event.login != b"ticket" or event.passcode not in self.tickets:
            raise refusal("ticket invalid", "ticket-invalid", "expected a ticket that no CONNECT has used")
        self.tickets.remove(event.passcode)
        return Identity(PRINCIPAL, self._fingerprint), self._policy.rights(PRINCIPAL)


def wall_us() -> int:
    """Return the time in microseconds since the epoch."""
    return time.time_ns() // 1000


def stopping() -> ProtocolError:
    """Return the error that a broker sends when it stops."""
    return ProtocolError("broker is stopping", "connect again in a moment")


def _ignore() -> None:
    """Nothing is sent on the connections of the kit."""


def _receive(connection: ServerConnection, frame: bytes) -> None:
    connection.receive_data(frame, trio.current_time(), wall_us())


def _kept(operation: Operation) -> Record:
    """Return the record as a journal keeps it: without what only the broker that made it knows."""
    if hasattr(operation, "target"):
        operation.target = None
    assert not isinstance(operation, TransientSubscribe | Proof)  # noqa: S101 - the journal never sees them
    return operation

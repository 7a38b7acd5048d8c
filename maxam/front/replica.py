"""The broker of a front and its place in the order: operations go out, entries and grants come in. Without I/O."""

import json
from collections.abc import Callable
from typing import Final, final

from maxam.broker.broker import Broker
from maxam.broker.operations import SessionStep
from maxam.broker.origins import Origin, OriginError, read_origins
from maxam.cluster import wire
from maxam.cluster.entry import BLOCK, PROOF, EntryError, read_entry
from maxam.cluster.operations import OperationsWriter
from maxam.errors import MaxamError, ProtocolError
from maxam.gateway.server_connection import ServerConnection
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import Position
from maxam.records import Record

_OPS_BYTES: Final = 1_048_576  # of one message, about


@final
class ReplicaError(MaxamError):
    """The stream of entries does not continue the state of the front. It must start again."""

    code = "front-diverged"


@final
class Replica:
    """The broker of one front.

    Attributes:
        broker: Serves the clients of the front.
        position: Position of the journal of which all before is applied.
        serving: All is applied that was committed when the front began.
        epoch: Number of the schemas and the policy in force here.
    """

    def __init__(
        self,
        broker: Broker,
        front: bytes,
        position: Position,
        begun: Position,
        send: Callable[[bytes], None],
        clock: Callable[[], tuple[float, int]],
    ) -> None:
        """Take a broker that has read the journal.

        Args:
            broker: Recovered from the files of the journal.
            front: Identifier of this front.
            position: Where the files ended.
            begun: Position of the gateway when it began to send entries, which was before the files were read.
            send: Hands a frame to the link.
            clock: Returns monotonic seconds, and microseconds since the epoch.
        """
        self.broker: Final = broker
        self.position = position
        self.epoch = 1
        self.serving = _same(position, begun)
        self._front: Final = front
        self._stream = begun  # of the entries
        self._fronting: Final = broker.become_front()
        self._writer: Final = OperationsWriter()
        self._decoder: Final = Decoder(position.revision, position.accepted_at_us)
        self._send: Final = send
        self._clock: Final = clock
        self._claiming: Final[dict[tuple[str, str], list[ServerConnection]]] = {}

    # To the gateway.

    def claim(self, peer: ServerConnection, principal: str, client_id: str) -> None:
        """Ask for a session for a connection."""
        self._claiming.setdefault((principal, client_id), []).append(peer)
        self._fronting.ask(SessionStep(True, principal, client_id))

    def watch_receipts(self, on_receipts: Callable[[], None]) -> None:
        """Have a function called before the RECEIPTs of an entry become due, after all of its deliveries."""
        self._fronting.on_receipts = on_receipts

    def flush(self) -> None:
        """Send what was appended."""
        while self.broker.pending:
            operations = self.broker.take_batch(_OPS_BYTES)
            terms = self._fronting.taken_batch(operations)
            self._send(wire.frame(wire.OPS, self._writer.encode(operations, terms, self.epoch)))

    # From the gateway.

    def receive(self, frame: wire.Frame) -> None:
        """Act on a frame. `flush` must follow.

        Raises:
            MaxamError: The front must start again.
        """
        if frame.type == wire.ENTRY:
            self._entry(frame.body)
        elif frame.type in {wire.GRANT, wire.EXPEL}:
            message = json.loads(frame.body)
            key = (str(message["key"][0]), str(message["key"][1]))
            if frame.type == wire.EXPEL:
                self._fronting.expel(*key)
            elif "message" in message:
                self._deny(key, ProtocolError(str(message["message"]), str(message["detail"])))
            else:
                self._grant(key)
        else:
            raise wire.WireError(f"a frame of type {frame.type} for a front")

    def _entry(self, body: bytes) -> None:
        entry = read_entry(body)
        if entry.kind not in {BLOCK, PROOF}:
            return
        if not _same(entry.before, self._stream):
            raise ReplicaError("an entry does not follow the one before it")
        self._stream = entry.after
        if not self.serving:
            if entry.after.revision > self.position.revision and not _same(entry.before, self.position):
                raise ReplicaError("the entries do not continue what the journal's files have")
            if not _same(entry.before, self.position):
                self.serving = _same(entry.after, self.position)
                return
            self.serving = True
        records: list[Record] = []
        if entry.kind == BLOCK:
            try:
                records = self._decoder.decode(*entry.records())
            except (ValueError, IndexError) as error:
                raise EntryError(f"the records of a block are wrong: {error}") from error
            self.position = entry.after
        try:
            self._fronting.apply(records, self._origin(entry.origins))
        except ValueError as error:
            raise ReplicaError(str(error)) from error

    def _origin(self, origins: bytes) -> Origin | None:
        if origins:
            for origin in read_origins(origins):
                if origin.front == self._front:
                    return origin
        return None

    def _grant(self, key: tuple[str, str]) -> None:
        peers = self._claiming.get(key, [])
        if not peers:
            raise OriginError("a grant of a session that was not claimed")
        peer = peers.pop(0)
        if not peers:
            del self._claiming[key]
        self._fronting.granted(*key)
        if not peer.granted(*self._clock()):
            self._fronting.ask(SessionStep(False, *key))

    def _deny(self, key: tuple[str, str], failure: ProtocolError) -> None:
        peers = self._claiming.get(key, [])
        if peers:
            peers.pop(0).refused(failure, self._clock()[0])
            if not peers:
                del self._claiming[key]


def _same(one: Position, other: Position) -> bool:
    """Return True if two positions are one place; a recovery from a snapshot alone does not know the check."""
    return one.revision == other.revision and (one.chain == other.chain or not one.chain or not other.chain)

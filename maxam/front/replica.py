"""The broker of a front and its place in the order: operations go out, entries and grants come in. Without I/O."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Final, final

from maxam.broker.broker import Broker
from maxam.broker.operations import Proof, SessionStep, count_within
from maxam.broker.origins import Origin, OriginError, read_origins
from maxam.cluster import wire
from maxam.cluster.entry import BLOCK, PROOF, EntryError, read_entry
from maxam.cluster.operations import OperationsWriter
from maxam.errors import MaxamError, ProtocolError
from maxam.gateway.resuming import Resumption
from maxam.gateway.server_connection import ServerConnection
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import Position
from maxam.records import Change, Record

_OPS_BYTES: Final = 1_048_576  # of one message, about
_KEPT_BYTES: Final = 256  # of an operation, beside its content
_KEPT_BYTES_MAX: Final = 67_108_864  # of operations that wait for the next leader
_CROWDED_BYTES: Final = 1_048_576  # of these: then nothing more is read from clients
_UNJUDGED: Final = 0  # number of no schemas and policy


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
        self._begun = begun
        self._stream = begun  # of the entries
        self._fronting: Final = broker.become_front()
        self._writer = OperationsWriter()
        self._decoder: Final = Decoder(position.revision, position.accepted_at_us)
        self._send = send
        self._clock: Final = clock
        self._claiming: Final[dict[tuple[str, str], list[ServerConnection]]] = {}
        self._linked = True
        self._kept = self._kept_bytes = 0  # operations that wait for the next leader, and their size

    # To the gateway.

    def claim(self, peer: ServerConnection, principal: str, client_id: str) -> None:
        """Ask for a session for a connection."""
        self._claiming.setdefault((principal, client_id), []).append(peer)
        self._fronting.ask(SessionStep(True, principal, client_id))

    def watch_receipts(self, on_receipts: Callable[[], None]) -> None:
        """Have a function called before the RECEIPTs of an entry become due, after all of its deliveries."""
        self._fronting.on_receipts = on_receipts

    def flush(self) -> None:
        """Send what was appended. Without a gateway it waits."""
        if not self._linked:
            pending = self.broker.pending
            for operation in pending[self._kept :]:
                self._kept_bytes += _KEPT_BYTES + (len(operation.content) if type(operation) is Change else 0)
            self._kept = len(pending)
            return
        while self.broker.pending:
            operations = self.broker.take_batch(_OPS_BYTES)
            terms = self._fronting.taken_batch(operations)
            self._send(wire.frame(wire.OPS, self._writer.encode(operations, terms, self.epoch)))

    # The next leader.

    @property
    def crowded(self) -> bool:
        """Whether so much waits for the next leader that nothing more is to be read from clients."""
        return self._kept_bytes > _CROWDED_BYTES

    @property
    def full(self) -> bool:
        """Whether too much waits for the next leader."""
        return self._kept_bytes > _KEPT_BYTES_MAX

    def lose(self) -> None:
        """Keep operations from now on, as the gateway is lost."""
        self._linked = False

    def state(self, term: int) -> Resumption | None:
        """Return what the leader after one of a term must know. None if this front cannot go on, as it has not served yet."""
        return Resumption(self._front, term, self.position, self._fronting.held) if self.serving else None

    def find_leader(self, begun: Position, epoch: int, send: Callable[[bytes], None]) -> None:
        """Take the entries of the next leader, which follow the last one.

        Args:
            begun: Position of the leader when it began to send entries to this front.
            epoch: Number of its schemas and policy, which are those in force here.
            send: Hands a frame to its link.
        """
        self._begun = begun
        self._fronting.resuming = True
        self.epoch = epoch
        self._send = send

    def hand_over_again(self) -> None:
        """Hand over again what no entry settles, now that all are applied that the leader had.

        Raises:
            ReplicaError: They do not reach the position of the leader.
        """
        if not _same(self._stream, self._begun):
            raise ReplicaError("the entries of the next leader do not reach its position")
        self._fronting.resuming = False
        operations, terms, revision = self._fronting.again()
        first = self.broker.applied_seq + 1
        self._writer = OperationsWriter(first, revision)
        broken = [[number, one.result, one.reason] for number, one in self._fronting.broken.items()]
        self._send(wire.frame(wire.REPORT, json.dumps({"again": [first, revision, broken]}).encode()))
        while operations:
            count = count_within(operations, _OPS_BYTES)
            # Another policy may have been in force when these were judged. The leader judges them by its own.
            self._send(wire.frame(wire.OPS, self._writer.encode(operations[:count], terms, _UNJUDGED)))
            operations = operations[count:]
        self._claim_again()
        self._linked = True
        self._kept = self._kept_bytes = 0
        self.flush()

    def _claim_again(self) -> None:
        """Ask for the sessions whose claim may have been answered by the leader that was lost."""
        waiting = Counter(
            (one.step.principal, one.step.client_id)
            for one in self.broker.pending
            if type(one) is Proof and one.step is not None and one.step.claims
        )
        for key, peers in self._claiming.items():
            for _ in range(len(peers) - waiting[key]):
                self._fronting.ask(SessionStep(True, *key))

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

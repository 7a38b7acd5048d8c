"""The fronts of a gateway, as far as the order is concerned: operations come in, entries and grants go out. Without I/O.

Theory of operation. A front sends operations (`cluster.operations`). `Intake` appends them to the log of the broker. When a batch is
committed, every front gets it as an entry, whose origins show each front what became of its operations. Claims of sessions are answered
by messages of their own. These follow the entry that has the operations before the claim.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final, final

from maxam.broker.broker import Broker
from maxam.broker.intake import FrontOrder, Intake
from maxam.broker.operations import Operation, Refusal, SessionStep
from maxam.broker.origins import Origin, encode_origins
from maxam.cluster import wire
from maxam.cluster.entry import PROOF, Entry, block_entry
from maxam.cluster.operations import OperationsReader
from maxam.errors import ProtocolError
from maxam.gateway.claims import Claims, Key
from maxam.journal.encoding import SYNC_BYTES, Block, Position
from maxam.records import Rejection

_ENDED_MAX: Final = 10_000  # fronts that were ended. The log has the end of one long before it is forgotten here


@final
class OrderedFront:
    """One front.

    Attributes:
        id: Its identifier, 8 random bytes.
        reader: Reads its messages.
        order: Its operations.
        send: Hands a frame to its link. It must not raise.
    """

    def __init__(self, front: bytes, order: FrontOrder, send: Callable[[bytes], None]) -> None:
        self.id: Final = front
        self.order: Final = order
        self.send: Final = send
        self.reader = OperationsReader()


@final
class FrontOrders:
    """Orders the operations of the fronts of one broker.

    Attributes:
        fronts: By their identifier.
        position: Position of the journal after the newest committed block.
        claims: Which front has which session.
        epoch: Number of the schemas and the policy in force.
    """

    def __init__(
        self,
        broker: Broker,
        position: Position,
        now_s: Callable[[], float],
        denial: Callable[[str], ProtocolError | None],
    ) -> None:
        """Begin without fronts.

        Args:
            broker: Keeps the order.
            position: Where its journal ends. Nothing may be under way.
            now_s: Returns monotonic seconds.
            denial: Returns why a principal may not connect now, or None. It counts the connection.
        """
        self.fronts: Final[dict[bytes, OrderedFront]] = {}
        self.position = position
        self.epoch = 1
        self.claims: Final = Claims(self, broker.limits.takeovers_per_minute_max)
        self._intake: Final[Intake] = broker.serve_fronts()
        self._counters: Final = broker.counters
        self._now_s: Final = now_s
        self._denial: Final = denial
        self._origins: list[Origin] = []  # of the batch under way
        self._ended: Final[dict[bytes, None]] = {}  # fronts that outlive a leader and were ended here, oldest first

    def begin(self, front: bytes, send: Callable[[bytes], None], *, lasting: bool = False) -> OrderedFront:
        """Take a new front, which gets every entry from now on. One that is `lasting` may go on with the next leader."""
        order = FrontOrder(front, partial(self._step, front), lasting=lasting)
        self._intake.begin(order)
        ordered = self.fronts[front] = OrderedFront(front, order, send)
        return ordered

    def begin_again(self, front: OrderedFront, first: int, revision: int, broken: list[tuple[int, str, str]]) -> None:
        """Prepare for what a front hands over again.

        Args:
            front: The front.
            first: Number of the first operation.
            revision: That of the front before its first change.
            broken: Connections of which a SEND was rejected that ends them, with result and reason.
        """
        front.reader = OperationsReader(int(first), int(revision))
        for connection, result, reason in broken:
            front.order.broken[int(connection)] = Rejection(str(result), str(reason))

    def knows(self, front: bytes) -> bool:
        """Return True if a front that outlives a leader was begun here."""
        running = self.fronts.get(front)
        return front in self._ended if running is None else running.order.lasting

    def end(self, front: OrderedFront) -> None:
        """Forget a front that has ended. Its operations that were taken take effect. Its sessions have no connection."""
        del self.fronts[front.id]
        if front.order.lasting:
            self._ended[front.id] = None
            if len(self._ended) > _ENDED_MAX:
                del self._ended[next(iter(self._ended))]
        self._intake.end(front.order)
        self.claims.end(front.id, self._now_s())

    def receive(self, front: OrderedFront, body: bytes, wall_us: int) -> None:
        """Take an OPS of a front. The caller then has what was appended committed.

        Raises:
            OperationsError: The front must be ended.
        """
        operations = front.reader.read(body)
        judge = operations.epoch != self.epoch
        self._intake.take(front.order, operations.first, operations.operations, operations.terms, judge, wall_us)

    # Of group commit.

    def taken(self, operations: list[Operation]) -> bytes:
        """Note the operations of the next block, in their order; return the origins of fronts that outlive a leader."""
        self._origins = self._intake.ledger.take(operations)
        return encode_origins([origin for origin in self._origins if self.knows(origin.front)])

    def committed(self, block: Block | None) -> None:
        """Send all fronts the block, which is durable, with what it settles. Without records there is none, or an empty one."""
        origins = encode_origins(self._origins)
        self._origins = []
        if block is not None and block.data:
            self.position = block.after
            self._send_all(block_entry(block.data, block.before, block.after, begins=False, origins=origins))
        elif origins:
            self._prove(origins)

    def refused(self, refusal: Refusal) -> None:
        """Send the fronts what was given back, as the disk is full."""
        self._origins = []
        origins = self._intake.roll_back(refusal)
        if origins:
            self._prove(encode_origins(origins))

    # Of claims.

    def hold(self, key: Key, front: bytes) -> None:
        """Note that a front has a session. Raises ProtocolError if there is no room for it."""
        self._intake.hold(*key, front)

    def let_go(self, key: Key, now_s: float) -> None:
        """Note that no front has a session any longer."""
        self._intake.let_go(*key, now_s)

    def grant(self, key: Key, front: bytes) -> None:
        """Send a front that it has the session."""
        self._send(front, wire.GRANT, {"key": key})

    def refuse(self, key: Key, front: bytes, failure: ProtocolError) -> None:
        """Send a front that its connection does not get the session."""
        self._send(front, wire.GRANT, {"key": key, "message": failure.message, "detail": failure.detail})

    def expel(self, key: Key, front: bytes) -> None:
        """Send a front that another connection claims the session."""
        self._counters.takeovers += 1
        self._send(front, wire.EXPEL, {"key": key})

    def _step(self, front: bytes, step: SessionStep) -> None:
        """Act on a claim or release, now that all is done that the front did before."""
        if front not in self.fronts:
            return  # it ended meanwhile
        key = (step.principal, step.client_id)
        if step.claims:
            denial = self._denial(step.principal)
            if denial is not None:
                self.refuse(key, front, denial)
            else:
                self.claims.claim(key, front, self._now_s())
        else:
            self.claims.release(key, front, self._now_s())

    def _prove(self, origins: bytes) -> None:
        self._send_all(Entry(PROOF, False, self.position, self.position, bytes(SYNC_BYTES), b"", origins=origins))

    def _send_all(self, entry: Entry) -> None:
        if self.fronts:
            data = wire.frame(wire.ENTRY, entry.encode())
            for front in list(self.fronts.values()):
                front.send(data)

    def _send(self, front: bytes, kind: int, message: dict[str, Any]) -> None:
        found = self.fronts.get(front)
        if found is not None:
            found.send(wire.frame(kind, json.dumps(message).encode()))

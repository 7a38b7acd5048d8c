"""A broker with fronts, without I/O: tests decide which frame arrives next, and what the disk answers."""

import contextlib
import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from maxam.avro.registry import load_registry
from maxam.broker.broker import Broker
from maxam.broker.origins import ENDED, read_origins
from maxam.cluster import wire
from maxam.cluster.entry import BLOCK, PROOF, Entry, read_entry
from maxam.cluster.log import Log, LogTrimmedError
from maxam.cluster.recent import RecentEntries
from maxam.config import Limits, Settings
from maxam.errors import ProtocolError
from maxam.front.replica import Replica
from maxam.gateway.commit import REFUSED_DELAY_S, GroupCommit
from maxam.gateway.connect_rates import ConnectRates
from maxam.gateway.front_link import FrontLinkError
from maxam.gateway.front_orders import FrontOrders, OrderedFront
from maxam.gateway.handshake import Admit
from maxam.gateway.resuming import read_resumption, resume
from maxam.gateway.server_connection import ServerConnection
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import START, SYNC_BYTES, Block, Encoder, Position
from maxam.records import Record
from maxam.stomp.frames import SERVER_COMMANDS, Frame
from tests.support.journal_records import SYNC
from tests.support.sans_io import EVERYTHING, UNCHECKED, Client, World, fingerprint_of, policy

KEPT_S = 60.0  # for which members keep entries


class ListedJournal:
    """A journal in memory. One that `proves` is that of a leader of a cluster: what has no record needs a block too."""

    block_bytes_max = 0

    def __init__(self, *, proves: bool = False) -> None:
        self.proves = proves
        self.encoder = Encoder(START, SYNC)
        self.blocks: list[Block] = []

    def encode(self, records: list[Record]) -> Block:
        """Return the block of records; an empty one for none."""
        if not records:
            return Block(b"", self.encoder.position, self.encoder.position, settling=True)
        return self.encoder.encode(records)

    def write(self, block: Block) -> None:
        """Store a block."""
        if block.data:
            self.blocks.append(block)

    def records(self) -> list[Record]:
        """Return all records that were written."""
        decoder = Decoder(0, 0)
        found: list[Record] = []
        for block in self.blocks:
            data = block.data[:-16]
            place = 0
            for _ in range(2):
                while data[place] > 127:
                    place += 1
                place += 1
            count = shift = 0
            for byte in data:
                count |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            found += decoder.decode(data[place:], count >> 1)
        return found


@dataclass
class Front:
    """One front, and the frames on their way to and from it."""

    world: World
    replica: Replica
    ordered: OrderedFront
    inbound: deque[bytes]
    outbound: deque[bytes]
    alive: bool = True
    stopped: bool = False  # it does nothing for a while
    linked: bool = True  # it has a leader
    term: int = 1  # of the leader that it has, or had
    principals: dict[str, Any] = field(default_factory=dict)  # of the policy in force there


class FrontClient(Client):
    """A client of a front; its CONNECTED comes once the session is granted. Without a front, a client of the broker itself."""

    def __init__(
        self, world: World, front: Front | None, principal: str, session_id: str, admit: Admit | None = None
    ) -> None:
        super().__init__(world, principal, session_id)
        self.front = front
        if front is None:
            return
        self.peer = ServerConnection(
            front.world.broker,
            front.world.settings,
            fingerprint_of(principal) if admit is None else "",
            session_id,
            self._wake,
            front.world.now_s,
            claim=front.replica.claim,
            admit=admit,
        )

    def begin(self, **headers: str) -> None:
        """Send CONNECT."""
        given = {"accept-version": "1.2", "host": "MAXVAPI"} | {k.replace("_", "-"): v for k, v in headers.items()}
        lines = "".join(f"{name}:{value}\n" for name, value in given.items())
        self.write(f"CONNECT\n{lines}\n\0".encode())

    def read(self) -> list[Frame]:
        """Return all frames; a CONNECTED among them sets how the later ones are decoded."""
        frames = super().read()
        if frames and frames[0].command == b"CONNECTED":
            self._decoder.expect(SERVER_COMMANDS, self.version)
        return frames


@dataclass
class FrontedWorld:
    """The broker that keeps the order, and its fronts; `count` may be 0."""

    count: int = 2
    limits: Limits = field(default_factory=Limits)
    principals: dict[str, Any] = field(default_factory=lambda: {"anna": EVERYTHING})
    proves: bool = False
    admit: Admit | None = None  # of clients that have no certificate

    def __post_init__(self) -> None:
        self.leader = World.make(limits=self.limits, **self.principals)
        self.journal = ListedJournal(proves=self.proves)
        self.rates = ConnectRates(self.limits)
        self.made = 0
        self.term = 1
        self.recent = self._recent()  # of the leader
        self.deposed: list[tuple[FrontOrders, RecentEntries, int]] = []  # former leaders that do not know it yet
        self.entries: list[bytes] = []  # the log of the cluster
        self.policies: dict[int, dict[str, Any]] = {}  # by their number
        self.fronts: list[Front] = []
        self._begin(START)
        self.fronts[:] = [self.add_front() for _ in range(self.count)]

    def _begin(self, position: Position) -> None:
        self.block: Block | None = None
        self.group = GroupCommit(self.leader.broker, self.journal)
        self.orders = FrontOrders(self.leader.broker, position, lambda: self.leader.now_s, self._denial)
        if self.count:
            self.group.fronted = self.orders

    def _denial(self, principal: str) -> ProtocolError | None:
        admitted = self.rates.admits_principal(principal, self.leader.now_s)
        return None if admitted else ProtocolError("connecting too often", "")

    def settings(self) -> Settings:
        """Return the settings of all."""
        return self.leader.settings

    def add_front(self) -> Front:
        """Begin a front, which reads the journal."""
        self.made += 1
        inbound: deque[bytes] = deque()
        outbound: deque[bytes] = deque()
        begun = self.orders.position
        name = self.made.to_bytes(8, "big")
        ordered = self.orders.begin(name, inbound.append, lasting=self.proves)
        world = self._recovered()
        replica = Replica(world.broker, name, self._end(), begun, outbound.append, lambda: (world.now_s, world.wall_us))
        replica.epoch = self.orders.epoch
        front = Front(world, replica, ordered, inbound, outbound)
        front.term, front.principals = self.term, self.principals
        return front

    def _end(self) -> Position:
        return self.journal.blocks[-1].after if self.journal.blocks else START

    def _recovered(self) -> World:
        """Return a broker that has read the journal."""
        broker = Broker(self.limits, policy(**self.principals), load_registry(UNCHECKED))
        for record in self.journal.records():
            broker.replay(record)
        broker.recovered(self.leader.now_s, self._end().revision)
        world = World(broker, self.settings())
        world.now_s, world.wall_us = self.leader.now_s, self.leader.wall_us
        return world

    def restart(self, *, written: bool) -> None:
        """End the process and all fronts; start again. A block that was being written is on the disk, or is not."""
        for front in self.fronts:
            front.alive = False
        self._restart(written)
        self.fronts[:] = [self.add_front() for _ in range(self.count)]

    def _restart(self, written: bool) -> None:
        if self.block is not None and written:
            self._write(self.block)
        self.leader = self._recovered()
        self.journal.encoder = Encoder(self._end(), SYNC)
        self._begin(self._end())

    def _write(self, block: Block) -> None:
        """Store a block, and log it."""
        self.journal.write(block)
        if block.data or block.origins:
            kind, payload = (BLOCK, block.data[:-SYNC_BYTES]) if block.data else (PROOF, b"")
            index = len(self.entries) + 2  # after the genesis
            entry = Entry(kind, False, block.before, block.after, SYNC, payload, index, self.term, block.origins)
            self.entries.append(entry.encode())
            self.recent.take(entry)

    def read(self, first: int, _bytes_max: int) -> list[bytes]:
        """Return entries of the log, as a `Log` does."""
        if first < 2:
            raise LogTrimmedError(2)
        return self.entries[first - 2 : first + 3]

    def fail_over(self, *, written: bool) -> None:
        """Lose the leader, and have another one lead that has read the log. The fronts keep their clients until `find_leader`."""
        for front in self.fronts:
            front.inbound.clear()
            front.outbound.clear()
            front.linked = False
            front.replica.lose()
        self.deposed.append((self.orders, self.recent, self.term))
        self.term += 1
        self._restart(written)
        self.recent = self._recent()
        self.recent.read_back(cast("Log", self), len(self.entries) + 2)

    def _recent(self) -> RecentEntries:
        return RecentEntries(KEPT_S, monotonic=lambda: self.leader.now_s)

    def has_ended(self, front: Front) -> bool:
        """Return True if the log has the end of a front."""
        origins = [origin for data in self.entries for origin in read_origins(read_entry(data).origins)]
        return any(origin.front == front.ordered.id and origin.done == ENDED for origin in origins)

    def find_leader(self, front: Front) -> str:
        """Have a front go on with the leader; return why it cannot, empty if it does."""
        state = front.replica.state(front.term)
        if state is None or front.principals != self.principals:
            return "it has not served yet, or other files are in force"
        told = json.loads(self._frame(state.encoded()).body)
        for orders, recent, term in self.deposed:
            if term > front.term:
                continue
            with contextlib.suppress(FrontLinkError):
                resume(orders, recent, term, read_resumption(told), front.inbound.append)
                raise AssertionError("a front goes on with a leader of a lower term")
        try:
            ordered, frames = resume(self.orders, self.recent, self.term, read_resumption(told), front.inbound.append)
        except FrontLinkError as error:
            return str(error)
        front.inbound.clear()  # both are lost with the link
        front.outbound.clear()
        front.replica.find_leader(self.orders.position, self.orders.epoch, front.outbound.append)
        front.inbound.extend(frames)
        front.ordered, front.linked, front.term = ordered, True, self.term
        return ""

    def reload(self, **principals: Any) -> None:
        """Have another policy come into force: here now, and at each front when its frame arrives, as `Fronts.swap` does."""
        self.principals = principals
        self.orders.epoch += 1
        self.policies[self.orders.epoch] = principals
        self.leader.broker.replace_policy(policy(**principals), self.leader.wall_us)
        for front in self.fronts:
            if front.linked:
                front.inbound.append(wire.frame(wire.REPORT, b"%d" % self.orders.epoch))

    def _swap(self, front: Front, epoch: int) -> None:
        """Do what the process of a front does; of two reloads the files of the later one are read."""
        front.replica.flush()
        front.replica.epoch = epoch
        front.principals = self.policies[epoch]
        front.world.broker.replace_policy(policy(**self.policies[epoch]), front.world.wall_us)

    def client(self, at: int = 0, principal: str = "anna", **headers: str) -> FrontClient:
        """Begin the connection of a client to a front."""
        self.made += 1
        front = self.fronts[at] if self.fronts else None
        world = self.leader if front is None else front.world
        client = FrontClient(world, front, principal, f"made-{self.made}", self.admit)
        client.begin(**headers)
        return client

    def connected(self, at: int = 0, principal: str = "anna", **headers: str) -> FrontClient:
        """Return a client that is connected."""
        client = self.client(at, principal, **headers)
        self.settle()
        (answer,) = client.read()
        assert answer.command == b"CONNECTED", answer
        return client

    # Steps; each returns whether there was something to do.

    def to_leader(self, front: Front) -> bool:
        """Have the next frame of a front arrive."""
        if not front.alive or front.stopped or not front.linked:
            return False
        front.replica.flush()
        if not front.outbound:
            return False
        frame = self._frame(front.outbound.popleft())
        if frame.type == wire.REPORT:
            self.orders.begin_again(front.ordered, *json.loads(frame.body)["again"])
            return True
        assert frame.type == wire.OPS
        self.orders.receive(front.ordered, frame.body, self.leader.wall_us)
        return True

    def to_front(self, front: Front) -> bool:
        """Have the next frame arrive at a front."""
        if not front.inbound or not front.alive or front.stopped:
            return False
        frame = self._frame(front.inbound.popleft())
        if frame.type == wire.REPORT and frame.body.startswith(b"{"):
            front.replica.hand_over_again()
        elif frame.type == wire.REPORT:
            self._swap(front, int(frame.body))
        else:
            front.replica.receive(frame)
        front.replica.flush()
        front.world.broker.scan()
        return True

    def begin_commit(self) -> bool:
        """Hand the next block to the disk."""
        if self.block is not None:
            return False
        before = self.leader.broker.applied_seq
        self.block = self.group.next_block(self.leader.now_s)
        return self.block is not None or self.leader.broker.applied_seq > before

    def end_commit(self, full: bool = False) -> bool:
        """Have the disk answer."""
        if self.block is None:
            return False
        block, self.block = self.block, None
        if full and not block.settling:
            self.journal.encoder.position = block.before
            self.group.refused(self.leader.now_s)
            self.pass_time(REFUSED_DELAY_S)
        else:
            self._write(block)
            self.group.written()
        self.leader.broker.scan()
        return True

    def pass_time(self, seconds: float) -> None:
        """Let time pass everywhere."""
        self.leader.now_s += seconds
        self.leader.wall_us += int(seconds * 1e6)
        for front in self.fronts:
            front.world.now_s, front.world.wall_us = self.leader.now_s, self.leader.wall_us
            front.world.broker.upkeep.tick_front(front.world.now_s)
            front.world.broker.scan()
        self.leader.broker.tick(self.leader.now_s)
        self.orders.claims.tick(self.leader.now_s)

    def kill(self, at: int) -> None:
        """End a front without warning, and begin another in its place."""
        front = self.fronts[at]
        front.alive = False
        if front.linked:
            self.orders.end(front.ordered)
        self.fronts[at] = self.add_front()

    def cut(self, at: int) -> Front:
        """Cut the link of a front on another machine, and begin another one; return the first, which has clients for a while."""
        front = self.fronts[at]
        self.orders.end(front.ordered)
        self.fronts[at] = self.add_front()
        return front

    def settle(self) -> None:
        """Go on until nothing is left to do at this moment."""
        moved = True
        while moved:
            moved = False
            for front in self.fronts:
                moved |= self.to_leader(front) | self.to_front(front)
                while front.world.broker.scanning:
                    front.world.broker.scan()
            moved |= self.begin_commit() | self.end_commit()
            while self.leader.broker.scanning:
                self.leader.broker.scan()

    def step(self, choice: random.Random, full: float = 0.0) -> None:
        """Do one thing that may happen next."""
        steps: list[Callable[[], bool]] = [self.begin_commit, lambda: self.end_commit(choice.random() < full)]
        if self.fronts:
            front = choice.choice(self.fronts)
            steps += [lambda: self.to_leader(front), lambda: self.to_front(front)]
        choice.choice(steps)()

    @staticmethod
    def _frame(data: bytes) -> wire.Frame:
        (frame,) = wire.FrameReader().feed(data)
        return frame

"""A batch of a limited size changes nothing but its size: clients get the same answers and values as with one that takes all."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.gateway.commit import GroupCommit
from maxam.journal.encoding import START, Block, Encoder, Position
from maxam.records import Change, Record, WillEndRecord
from maxam.stomp.frames import Frame
from tests.support.sans_io import World, receipts

Action = tuple[str, int, int, bool]

actions = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "if", "source", "subscribe", "unsubscribe", "ack", "commit"]),
        st.integers(0, 2),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=40,
)


class Stored:
    """A journal in memory with a limit on blocks, that proves or not."""

    def __init__(self, block_bytes_max: int = 0, proves: bool = False) -> None:
        self.block_bytes_max = block_bytes_max
        self.proves = proves
        self.encoder = Encoder(START, bytes(16))
        self.blocks: list[list[Record]] = []

    def encode(self, records: list[Record]) -> Block:
        """Keep the records of a block."""
        self.blocks.append(records)
        if not records:
            position = self.encoder.position
            return Block(b"", position, Position(position.revision, position.accepted_at_us, position.chain), True)
        return self.encoder.encode(records)


class Side:
    """One broker with three clients."""

    def __init__(self, stored: Stored) -> None:
        self.world = World.make()
        self.stored = stored
        self.group = GroupCommit(self.world.broker, stored)
        self.clients = [self.world.client(client_id=f"c{number}") for number in range(3)]
        self.seen: list[list[Frame]] = [[], [], []]

    def do(self, number: int, action: Action) -> None:
        """Do one action; the RECEIPT has the number."""
        kind, who, topic, flag = action
        client = self.clients[who]
        receipt = f"r{number}"
        if kind == "send":
            client.send(f"X/{topic}", b"v%d" % number if flag else b"", receipt)
        elif kind == "if":
            client.send(f"X/{topic}", b"v%d" % number, receipt, if_revision=str(topic))
        elif kind == "source":
            client.send(f"X/{topic}", b"v%d" % number, receipt, source="me", source_revision=str(topic))
        elif kind == "subscribe" and not self.world.broker.sessions["anna", f"c{who}"].subscriptions:
            client.subscribe(receipt=receipt, durable=flag, eager=topic > 1)
        elif kind == "unsubscribe" and self.world.broker.sessions["anna", f"c{who}"].subscriptions:
            durable = next(iter(self.world.broker.sessions["anna", f"c{who}"].subscriptions.values())).durable
            client.unsubscribe(durable=durable, receipt=receipt)
        elif kind == "ack":
            messages = [frame for frame in self.seen[who] if frame.command == b"MESSAGE"]
            if messages:
                client.ack(messages[-1], receipt)
        elif kind == "commit":
            self.commit()

    def commit(self) -> None:
        """Store all that was appended, and let the clients read."""
        while not self.group.idle:
            if self.group.next_block(self.world.now_s) is not None:
                self.group.written()
        while self.world.broker.scan():
            pass
        for client, seen in zip(self.clients, self.seen, strict=True):
            seen.extend(client.read())


def _of(seen: list[Frame]) -> tuple[Any, ...]:
    values = [(frame.headers[b"destination"], frame.body) for frame in seen if frame.command == b"MESSAGE"]
    return receipts(seen), values


@pytest.mark.slow
@given(actions, st.integers(1, 2000), st.booleans())
@settings(max_examples=200, deadline=None)
def test_clients_see_the_same_whatever_the_size_of_blocks(history: list[Action], bytes_max: int, proves: bool) -> None:
    """RECEIPTs, their results and the values are the same in the same order; so are the records."""
    whole, parted = Side(Stored()), Side(Stored(bytes_max, proves))
    for number, action in enumerate([*history, ("commit", 0, 0, False)]):
        for side in (whole, parted):
            side.do(number, action)
    for one, other in zip(whole.seen, parted.seen, strict=True):
        assert _of(one) == _of(other)
    records = [[record for block in side.stored.blocks for record in block] for side in (whole, parted)]
    assert [type(record) for record in records[0]] == [type(record) for record in records[1]]
    assert all(len(block) <= max(1, -(-bytes_max // 256)) for block in parted.stored.blocks)


def test_a_will_and_its_change_are_in_one_block() -> None:
    """No limit parts the change of a last will from the record that ends the will: a crash in between would send it twice."""
    side = Side(Stored(1))
    client = side.world.client(client_id="w", will_destination="X/gone", will_delay="0", will_body="bye")
    side.commit()
    client.lose()
    side.world.broker.last_wills.fire(side.world.now_s + 1, side.world.wall_us)
    side.commit()
    assert [type(record) for record in side.stored.blocks[-1]] == [Change, WillEndRecord]


def test_an_answer_that_compares_waits_for_a_proof() -> None:
    """Where the journal proves, `superseded` and `conflict` are answered after the next block, one proof for all of a batch."""
    side = Side(Stored(0, proves=True))
    client = side.clients[0]
    client.send("X/a", receipt="1", source="me", source_revision="5")
    side.commit()
    client.send("X/a", receipt="2", source="me", source_revision="5")
    client.send("X/a", receipt="3", if_revision="7")
    assert receipts(client.read()) == []
    assert len(side.world.broker.pending) == 1
    side.commit()
    assert [name for name, _ in receipts(side.seen[0])] == ["1", "2", "3"]
    assert side.stored.blocks[-1] == []

"""Operations of a front as bytes, for the gateway that orders them.

A front gives each operation the next number, from 1. A message has consecutive operations. Their records are one block of the journal's
format. The blocks of a front are a stream of its own. Their revisions count its changes. Each block has the check of the block
before. So the reader finds a message that is missing. The gateway that orders them gives each change its revision and time.

With base-128 numbers where no size is given:

| field | meaning |
|---|---|
| epoch | number of the schemas and the policy by which the front judged |
| first, count | number of the first operation, how many there are |
| specials | their number, then for each: operations since the special before, code (1), body |
| block | count, size and records; missing if no operation has a record |

| code | operation | body |
|---|---|---|
| 1 barrier | takes its place in the order and has no record | nothing |
| 2 claim, 3 release | of a session | principal and client-id, each after its length |
| 4 terms | of the change that is this operation | connection, `if-revision` + 1, length + 1 of the source, source, `source-revision` |

An operation that is no special of code 1 to 3 is the next record of the block. The connection in the terms of a change has a number if
a rejected SEND ends it, else 0. Without a source, a zero ends the terms.
"""

import zlib
from typing import Final, final

from maxam.broker.operations import Operation, Proof, SessionStep, Terms, TransientSubscribe
from maxam.content import read_unsigned, unsigned
from maxam.errors import MaxamError
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import CHECK_BYTES, SYNC_BYTES, Encoder, Position
from maxam.records import Change, Record

_BARRIER: Final = 1
_CLAIM: Final = 2
_RELEASE: Final = 3
_TERMS: Final = 4
_COUNT_MAX: Final = 1 << 24  # operations of one message


@final
class OperationsError(MaxamError):
    """Bytes are not operations of a front, or not those that follow."""

    code = "operations-invalid"


@final
class Operations:
    """Consecutive operations of a front.

    Attributes:
        epoch: Number of the schemas and the policy by which the front judged.
        first: Number of the first operation.
        operations: A Proof for each barrier, and for each step of a session.
        terms: Of the changes that have some, by their index in `operations`.
    """

    __slots__ = ("epoch", "first", "operations", "terms")

    def __init__(self, epoch: int, first: int, operations: list[Record | Proof], terms: dict[int, Terms]) -> None:
        self.epoch: Final = epoch
        self.first: Final = first
        self.operations: Final = operations
        self.terms: Final = terms


@final
class OperationsWriter:
    """Encodes the operations of one front, in their order."""

    __slots__ = ("_encoder", "_next")

    def __init__(self, first: int = 1, revision: int = 0) -> None:
        """Begin with an operation of this number, and with changes after a revision."""
        self._encoder: Final = Encoder(Position(revision, 0, 0), bytes(SYNC_BYTES))
        self._next = first

    def encode(self, operations: list[Operation], terms: dict[int, Terms], epoch: int) -> bytes:
        """Return the message of the next operations.

        Args:
            operations: In order. Revisions of changes count those of the front, from 1.
            terms: Of the changes that have some, by the number of the operation.
            epoch: See `Operations`.
        """
        specials: list[bytes] = []
        records: list[Record] = []
        first = self._next
        before = count = 0
        for index, operation in enumerate(operations):
            if type(operation) is TransientSubscribe:
                body = bytes((_BARRIER,))
            elif type(operation) is Proof:
                body = _encode_step(operation.step)
            else:
                records.append(operation)
                of_change = terms.get(first + index) if terms else None
                if of_change is None:
                    continue
                body = _encode_terms(of_change)
            specials += (unsigned(index - before), body)
            count += 1
            before = index
        self._next = first + len(operations)
        block = self._encoder.encode(records).data[:-SYNC_BYTES] if records else b""
        return b"".join(
            (unsigned(epoch), unsigned(first), unsigned(len(operations)), unsigned(count), *specials, block)
        )


@final
class OperationsReader:
    """Decodes the messages of one front, in their order."""

    __slots__ = ("_chain", "_decoder", "_next")

    def __init__(self, first: int = 1, revision: int = 0) -> None:
        """Begin where a writer begins."""
        self._decoder: Final = Decoder(revision, 0)
        self._chain = 0
        self._next = first

    def read(self, data: bytes) -> Operations:
        """Return the operations of the next message.

        Raises:
            OperationsError: It is not what `OperationsWriter` makes, or does not follow. The reader is of no further use.
        """
        try:
            return self._read(data)
        except (IndexError, ValueError, UnicodeDecodeError) as error:
            raise OperationsError(f"a message of operations is cut short or garbled: {error}") from None

    def _read(self, data: bytes) -> Operations:
        epoch, place = read_unsigned(data, 0)
        first, place = read_unsigned(data, place)
        count, place = read_unsigned(data, place)
        left, place = read_unsigned(data, place)
        if first != self._next or not 0 < count <= _COUNT_MAX:
            raise OperationsError(f"{count} operations from number {first}, where number {self._next} follows")
        steps: dict[int, Proof] = {}
        terms: dict[int, Terms] = {}
        index = 0
        for special in range(left):
            distance, place = read_unsigned(data, place)
            index += distance
            if index >= count or (special and not distance):
                raise ValueError("operations out of order")
            code = data[place]
            place += 1
            if code == _BARRIER:
                steps[index] = Proof()
            elif code == _TERMS:
                terms[index], place = _read_terms(data, place)
            elif code in {_CLAIM, _RELEASE}:
                principal, place = _read_text(data, place)
                client_id, place = _read_text(data, place)
                step = SessionStep(code == _CLAIM, principal.decode(), client_id.decode())
                steps[index] = Proof(None, step)
            else:
                raise ValueError(f"code {code}")
        records = self._records(data[place:])
        if len(records) + len(steps) != count:
            raise ValueError(f"{len(records)} records and {len(steps)} others are not {count} operations")
        operations: list[Record | Proof] = []
        taken = 0
        for number in range(count):
            proof = steps.get(number) if steps else None
            if proof is None:
                operations.append(records[taken])
                taken += 1
            else:
                operations.append(proof)
        for number in terms:
            if type(operations[number]) is not Change:
                raise ValueError("terms of an operation that is no change")
        self._next = first + count
        return Operations(epoch, first, operations, terms)

    def _records(self, block: bytes) -> list[Record]:
        """Return the records of a block, after checking that it follows."""
        if not block:
            return []
        count, place = read_unsigned(block, 0)
        size, place = read_unsigned(block, place)
        if count & 1 or size & 1 or size >> 1 <= CHECK_BYTES or place + (size >> 1) != len(block):
            raise ValueError("the size of the block is wrong")
        seed = int.from_bytes(block[-4:], "big")
        check = zlib.crc32(memoryview(block)[place:-CHECK_BYTES], zlib.crc32(block[:place], seed))
        if seed != self._chain or check != int.from_bytes(block[-8:-4], "big"):
            raise ValueError("the block does not follow the one before, or does not match its checksum")
        self._chain = check
        return self._decoder.decode(block[place:], count >> 1)


def _encode_step(step: SessionStep | None) -> bytes:
    if step is None:
        return bytes((_BARRIER,))
    code = _CLAIM if step.claims else _RELEASE
    return bytes((code,)) + _text(step.principal.encode()) + _text(step.client_id.encode())


def _encode_terms(terms: Terms) -> bytes:
    head = bytes((_TERMS,)) + unsigned(terms.connection) + unsigned(terms.expected + 1)
    source = terms.source
    if source is None:
        return head + b"\0"
    return head + unsigned(len(source) + 1) + source + unsigned(terms.number)


def _read_terms(data: bytes, place: int) -> tuple[Terms, int]:
    connection, place = read_unsigned(data, place)
    expected, place = read_unsigned(data, place)
    length, place = read_unsigned(data, place)
    if not length:
        return Terms(connection, expected - 1, None, 0), place
    end = place + length - 1
    if end > len(data):
        raise IndexError
    number, after = read_unsigned(data, end)
    return Terms(connection, expected - 1, data[place:end], number), after


def _text(value: bytes) -> bytes:
    return unsigned(len(value)) + value


def _read_text(data: bytes, place: int) -> tuple[bytes, int]:
    length, place = read_unsigned(data, place)
    end = place + length
    if end > len(data):
        raise IndexError
    return data[place:end], end

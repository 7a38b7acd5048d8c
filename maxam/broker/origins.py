"""Origins: which records of an entry are whose, and what became of operations without a record.

A front hands operations to the gateway that orders them, with consecutive numbers. Each entry has an *origin* for each front of which
it settles operations. So a front learns the place of its own operations in the order of all changes from the entries alone.

An origin is, with base-128 numbers where no size is given:

| size | field |
|---|---|
| 8 | identifier of the front |
| | `done`: all operations of the front up to this number are settled by this entry or an earlier one |
| | number of runs, then for each run: records since the run before, operations since the run before, length |
| | number of refusals, then for each: operation, result and reason, each text after its length |

A *run* is a sequence of records that are consecutive operations. An operation that has no record and is not refused left nothing
behind, such as a barrier. A refusal may come before the operations with lower numbers are settled.
"""

from typing import Final, final

from maxam.content import read_unsigned, unsigned
from maxam.errors import MaxamError

FRONT_BYTES: Final = 8  # of an identifier
_LONG_MAX: Final = (1 << 63) - 1
ENDED: Final = _LONG_MAX  # the `done` of a front whose sessions its gateway has freed


@final
class OriginError(MaxamError):
    """Bytes are not the origins of an entry."""

    code = "origins-invalid"


@final
class Run:
    """Records of an entry that are consecutive operations of one front.

    Attributes:
        place: Index of the first record in the entry, from 0.
        number: Number of its operation.
        count: How many records.
    """

    __slots__ = ("count", "number", "place")

    def __init__(self, place: int, number: int, count: int) -> None:
        self.place: Final = place
        self.number: Final = number
        self.count = count


@final
class RefusedOperation:
    """An operation that takes no effect.

    Attributes:
        number: Of the operation.
        result: Result code of the RECEIPT, such as `conflict`; `superseded` is the only one of an accepted SEND.
        reason: One line for the client.
    """

    __slots__ = ("number", "reason", "result")

    def __init__(self, number: int, result: str, reason: str) -> None:
        self.number: Final = number
        self.result: Final = result
        self.reason: Final = reason


@final
class Origin:
    """The part that one front has in an entry.

    Attributes:
        front: Identifier of the front.
        done: All operations up to this number are settled.
        runs: Records of the front, in their order.
        refusals: Operations that take no effect.
    """

    __slots__ = ("done", "front", "refusals", "runs")

    def __init__(self, front: bytes, done: int = 0) -> None:
        self.front: Final = front
        self.done = done
        self.runs: Final[list[Run]] = []
        self.refusals: Final[list[RefusedOperation]] = []


def encode_origins(origins: list[Origin]) -> bytes:
    """Return the bytes of the origins of an entry; none for an entry without fronts."""
    parts: list[bytes] = []
    for origin in origins:
        parts += (origin.front, unsigned(origin.done), unsigned(len(origin.runs)))
        place = number = 0
        for run in origin.runs:
            parts += (unsigned(run.place - place), unsigned(run.number - number), unsigned(run.count))
            place = run.place + run.count
            number = run.number + run.count
        parts.append(unsigned(len(origin.refusals)))
        for refusal in origin.refusals:
            parts += (unsigned(refusal.number), _text(refusal.result), _text(refusal.reason))
    return b"".join(parts)


def read_origins(data: bytes) -> list[Origin]:
    """Return the origins of an entry.

    Raises:
        OriginError: The bytes are not what `encode_origins` returns.
    """
    origins: list[Origin] = []
    place = 0
    try:
        while place < len(data):
            origin, place = _read_origin(data, place)
            origins.append(origin)
    except (IndexError, ValueError, UnicodeDecodeError):
        raise OriginError("the origins of an entry are cut short or garbled") from None
    if len({origin.front for origin in origins}) != len(origins):
        raise OriginError("two origins of one front in an entry")
    return origins


def _read_origin(data: bytes, place: int) -> tuple[Origin, int]:
    front = data[place : place + FRONT_BYTES]
    if len(front) != FRONT_BYTES:
        raise IndexError
    done, place = read_unsigned(data, place + FRONT_BYTES)
    origin = Origin(front, done)
    count, place = read_unsigned(data, place)
    record = number = 0
    for _ in range(count):
        skipped, place = read_unsigned(data, place)
        passed, place = read_unsigned(data, place)
        length, place = read_unsigned(data, place)
        run = Run(record + skipped, number + passed, length)
        if not length or not run.number:
            raise ValueError
        record = run.place + length
        number = run.number + length
        origin.runs.append(run)
    if number > done + 1 or done > _LONG_MAX:
        raise ValueError
    count, place = read_unsigned(data, place)
    for _ in range(count):
        number, place = read_unsigned(data, place)
        result, place = _read_text(data, place)
        reason, place = _read_text(data, place)
        origin.refusals.append(RefusedOperation(number, result, reason))
    return origin, place


def _text(value: str) -> bytes:
    data = value.encode()
    return unsigned(len(data)) + data


def _read_text(data: bytes, place: int) -> tuple[str, int]:
    length, place = read_unsigned(data, place)
    end = place + length
    if end > len(data):
        raise IndexError
    return data[place:end].decode(), end

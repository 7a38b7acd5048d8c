"""Differences between readings of meters: bodies are decoded to readings, and readings are compared.

Rules, in the order in which they are applied to the readings of one machine, oldest revision first. A machine is known by its
`egmElectronicId`, whatever its protocol, venue or topic; deleting the topic leaves its meters as they are.

1. *Unusable*: the body cannot be read, names another machine than its destination or none, or has impossible meters.
   It is skipped.
2. *Time*: when the reading was taken (`from.updatedTime`). When that is missing, or more than 5 minutes after the gateway
   accepted it, the latter counts, and the reading is *undated*.
3. *Late*: taken before a reading that came earlier. It is skipped. The newer one included its counts, and the next reading adds
   the rest.
4. *Reset*, announced: `resetDateTime` moved, to a time from the reading before until this one. The meters show what was counted
   since; what was counted between the reading before and the reset is lost.
5. *Baseline*: nothing to compare with. This is the first reading of a machine, of another protocol, or of another worth of a
   credit. Its meters need not continue the former ones.
6. *Roll-over*: an amount of protocol S fell, games did not, and going on over 99,999,999 it would have risen by less than half of
   that. It has.
7. *Reset*, unannounced: a meter fell. It shows what it counted since; those that did not fall went on.
8. Else: each meter counted what it rose by.

Without resets and baselines the differences of a machine add up to its last reading less its first. Late readings and
changes of venue or period do not alter the sum.
"""

import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast, final

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from fastavro.types import Schema

from venue.periods import Periods

METER_READING: Final = "egm.EGMMeterReading_v1"
METERS: Final = ("money_in_cents", "money_out_cents", "turnover_cents", "wins_cents", "games_played")
MARKS: Final = ("readings", "resets", "roll_overs", "baselines", "gaps", "moves", "late", "undated", "unusable")
"""Counts of readings: those compared with one before, and those of each kind. A gap is a difference to a reading from before the
preceding period, counted in the period of the later reading. A move is a difference to a reading in another venue."""

READING_COLUMNS: Final = pa.schema(
    [
        ("machine", pa.string()),  # null: the body cannot be read
        ("venue", pa.string()),
        ("revision", pa.int64()),
        ("time_us", pa.int64()),  # rule 2
        ("undated", pa.bool_()),
        ("reset_us", pa.int64()),  # null: never
        ("protocol", pa.string()),
        ("credit_cents", pa.int64()),  # what one count of an amount is worth
        ("counters", pa.list_(pa.int64())),  # in the order of _COUNTERS
        ("problem", pa.string()),  # null: usable
    ]
)
DELTA_COLUMNS: Final = pa.schema(
    [
        ("machine", pa.string()),
        ("venue", pa.string()),
        ("revision", pa.int64()),
        ("time_us", pa.int64()),
        ("period_start_us", pa.int64()),
        ("period_end_us", pa.int64()),
        *((name, pa.int64()) for name in (*METERS, *MARKS)),
    ]
)

FUTURE_US_MAX: Final = 300_000_000  # most that a site controller's clock may be ahead of the gateway's
WRAP: Final = 100_000_000  # an amount of protocol S shows 0 after 99,999,999
COUNTER_MAX: Final = 10**13  # cents; sums of meters up to this limit fit 64 bits
CREDIT_CENTS_MAX: Final = 10**6
VENUE_BYTES_MAX: Final = 128  # of UTF-8: its topic has room for it, however it is escaped

UNKNOWN_WRITER: Final = "the schema that judged it was not kept"  # the problem of a reading whose schema is missing

# By protocol, which meters of the reading make each of METERS. The others are not common to all protocols.
_COUNTERS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "Q": (
        ("credit.notesIn", "credit.coinsIn", "credit.ticketsIn", "credit.transfersIn"),
        ("debit.coinsOut", "debit.ticketsOut", "debit.transfersOut", "debit.cancelledCredit"),
        ("auxiliary.turnover",),
        ("auxiliary.totalWins", "auxiliary.jackpotWins"),
        ("nonMonetary.gamesPlayed",),
    ),
    "S": (
        ("credit.billsIn", "credit.otherIn"),
        ("debit.paidOut", "debit.handPaid"),
        ("auxiliary.played",),
        ("auxiliary.won",),
        ("nonMonetary.gamesPlayed",),
    ),
    "X": (
        ("credit.totalIn",),
        ("debit.totalOut",),
        ("auxiliary.turnover",),
        ("auxiliary.totalWins",),
        ("nonMonetary.gamesPlayed",),
    ),
}
_WIDTHS: Final = tuple(max(len(of[meter]) for of in _COUNTERS.values()) for meter in range(len(METERS)))
_STARTS: Final = tuple(int(start) for start in np.cumsum((0, *_WIDTHS))[:-1])
_WIDTH: Final = sum(_WIDTHS)
_PATHS: Final[Mapping[str, tuple[tuple[str, str] | None, ...]]] = {
    protocol: tuple(
        (paths[at].split(".")[0], paths[at].split(".")[1]) if at < len(paths) else None
        for paths, width in zip(meters, _WIDTHS, strict=True)
        for at in range(width)
    )
    for protocol, meters in _COUNTERS.items()
}
_GAMES: Final = _STARTS[-1]  # counts games, not money
_BRANCHES: Final = {f"egm.{letter}Meters_v1": letter for letter in _COUNTERS}

_NEVER: Final = -1
_LATEST_MS: Final = 2**52  # a hundred thousand years on: as microseconds it fits 64 bits

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def read_changes(changes: pa.RecordBatch, writer: Callable[[str, str, bytes], str | None]) -> pa.RecordBatch:
    """Decode the meter readings among changes.

    Args:
        changes: Rows of `rows.CHANGE_COLUMNS`, or of those of them that are asked for here.
        writer: Gives the text of a schema by full type name, minor and fingerprint, see `Catalogue.writer`.

    Returns:
        Rows of READING_COLUMNS, in the same order: a reading that cannot be used is one with a `problem`.
    """
    wanted = changes.filter(
        pc.and_(pc.equal(changes.column("schema"), METER_READING), pc.equal(changes.column("kind"), "value"))
    )
    names = (
        "revision",
        "accepted_at",
        "destination",
        "schema_version",
        "schema_fingerprint",
        "value_offset",
        "value_length",
    )
    columns = [
        wanted.column(name).cast(pa.int64()).to_pylist() if name == "accepted_at" else wanted.column(name).to_pylist()
        for name in (*names, "body")
    ]
    rows = [
        _read(
            revision,
            at_us,
            destination,
            writer(METER_READING, minor or "", fingerprint),
            body[offset : offset + length],
        )
        for revision, at_us, destination, minor, fingerprint, offset, length, body in zip(*columns, strict=True)
    ]
    parts = zip(*rows, strict=True) if rows else ([] for _ in READING_COLUMNS)
    return pa.RecordBatch.from_arrays(
        [pa.array(part, field.type) for part, field in zip(parts, READING_COLUMNS, strict=True)], schema=READING_COLUMNS
    )


def count(
    readings: pa.RecordBatch, baselines: pa.RecordBatch, periods: Periods
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return what was counted with each reading.

    Args:
        readings: Rows of READING_COLUMNS, in any order.
        baselines: Likewise: of each machine at most one, the reading that its next one is compared with.
        periods: How time is cut.

    Returns:
        Rows of DELTA_COLUMNS, one for each of `readings`, by machine and revision. Then the baseline of each machine, for
        the readings that follow these.
    """
    table = pa.Table.from_batches([baselines, readings], READING_COLUMNS)
    columns = _Columns(table, baselines.num_rows)
    usable = columns.ordered(~columns.unusable)
    late = _late(columns.machine[usable], columns.time_us[usable])
    counted = usable[~late]
    steps = _Steps(columns, counted, periods)

    new = ~columns.before
    last = np.append(np.diff(columns.machine[counted]) != 0, True)[: len(counted)]
    skipped = (("late", usable[late]), ("unusable", np.flatnonzero(columns.unusable)))
    parts = [_rows(table, counted, steps.numbers, new[counted])]
    for mark, rows in skipped:
        parts.append(_rows(table, rows, _nothing_but(mark, columns.time_us[rows], periods), new[rows]))
    deltas = pa.concat_tables(parts).sort_by([("machine", "ascending"), ("revision", "ascending")])
    return _one_batch(deltas), _one_batch(table.take(pa.array(counted[last])))


@final
class _Columns:
    """Columns of READING_COLUMNS as arrays. Numbers that an unusable reading lacks are 0."""

    def __init__(self, table: pa.Table, before: int) -> None:
        """Take them out of a table whose first `before` rows are baselines."""

        def numbers(name: str, absent: int) -> Integers:
            return cast("Integers", table[name].fill_null(absent).to_numpy())

        def codes(name: str) -> Integers:
            encoded = table[name].combine_chunks().dictionary_encode()
            return cast("Integers", encoded.indices.fill_null(-1).to_numpy().astype(np.int64))

        self.before: Final[Flags] = np.arange(table.num_rows) < before
        self.unusable: Final[Flags] = ~pc.is_null(table["problem"]).to_numpy()
        self.machine: Final = codes("machine")
        self.venue: Final = codes("venue")
        self.revision: Final = numbers("revision", 0)
        self.time_us: Final = numbers("time_us", 0)
        self.reset_us: Final = numbers("reset_us", _NEVER)
        self.undated: Final[Flags] = table["undated"].to_numpy().astype(bool)
        self.protocol: Final = codes("protocol")
        self.wrapping: Final[Flags] = pc.equal(table["protocol"], "S").fill_null(False).to_numpy()
        self.credit_cents: Final = numbers("credit_cents", 0)
        self.counters: Final[Integers] = np.zeros((table.num_rows, _WIDTH), np.int64)
        told = pc.list_flatten(table["counters"].filter(pc.is_null(table["problem"])))
        self.counters[~self.unusable] = told.to_numpy().reshape(-1, _WIDTH)

    def ordered(self, wanted: Flags) -> Integers:
        """Return which rows are wanted, those of a machine together and by revision."""
        rows = np.flatnonzero(wanted)
        return rows[np.lexsort((self.revision[rows], self.machine[rows]))]


def _late(machines: Integers, times: Integers) -> Flags:
    """Return which readings were taken before one that came earlier from their machine; machines ascend."""
    _, ranks = np.unique(times, return_inverse=True)
    keys = machines * len(times) + ranks  # of another machine, so of a higher one: higher, whatever the time
    return keys < np.maximum.accumulate(keys)


@final
class _Steps:
    """Readings that count, by machine and revision, each compared with the one before it.

    Attributes:
        numbers: The columns of DELTA_COLUMNS from `period_start_us` on.
    """

    def __init__(self, columns: _Columns, counted: Integers, periods: Periods) -> None:
        def same(values: Integers) -> Flags:
            return cast("Flags", values == np.roll(values, 1))

        times, resets, counters = columns.time_us[counted], columns.reset_us[counted], columns.counters[counted]
        credit_cents, venues = columns.credit_cents[counted], columns.venue[counted]
        times_before = np.roll(times, 1)
        follows = same(columns.machine[counted])
        follows[:1] = False
        announced = follows & ~same(resets) & (resets >= times_before) & (resets <= times + FUTURE_US_MAX)
        alike = follows & same(columns.protocol[counted]) & same(credit_cents) & ~announced
        compared = alike | announced

        rises = counters - np.roll(counters, 1, axis=0)
        fell = (rises < 0) & alike[:, None]
        wraps = fell & (rises + WRAP < WRAP // 2) & columns.wrapping[counted][:, None] & ~fell[:, [_GAMES]]
        wraps[:, _GAMES] = False
        since_reset = (fell & ~wraps) | announced[:, None]
        rises = np.where(since_reset, counters, rises + WRAP * wraps)
        rises[~compared] = 0

        worth = np.repeat(credit_cents[:, None], _WIDTH, axis=1)
        worth[:, _GAMES] = 1
        starts, ends = periods.columns(times)
        starts_before, _ = periods.columns(starts)
        marks = {
            "readings": compared,
            "resets": since_reset.any(axis=1),
            "roll_overs": wraps.any(axis=1),
            "baselines": ~compared,
            "gaps": compared & (times_before <= starts_before),
            "moves": compared & ~same(venues),
            "late": np.zeros(len(times), bool),
            "undated": columns.undated[counted],
            "unusable": np.zeros(len(times), bool),
        }
        meters = np.add.reduceat(rises * worth, _STARTS, axis=1)
        self.numbers: Final = [starts, ends, *meters.T, *(marks[name] for name in MARKS)]


def _nothing_but(mark: str, times: Integers, periods: Periods) -> list[Integers]:
    """Return the columns of DELTA_COLUMNS from `period_start_us` on, of readings that are skipped."""
    nothing, one = np.zeros(len(times), np.int64), np.ones(len(times), np.int64)
    return [*periods.columns(times), *(nothing for _ in METERS), *(one if name == mark else nothing for name in MARKS)]


def _rows(table: pa.Table, rows: Integers, numbers: Sequence[npt.NDArray[Any]], wanted: Flags) -> pa.Table:
    """Return those wanted among `rows` of readings as DELTA_COLUMNS, with numbers that stand in the order of `rows`."""
    told = table.select(DELTA_COLUMNS.names[:4]).take(pa.array(rows[wanted]))
    counted = [pa.array(column[wanted].astype(np.int64)) for column in numbers]
    return pa.Table.from_arrays([*told.columns, *counted], schema=DELTA_COLUMNS)


def no_readings() -> pa.RecordBatch:
    """Return no rows of READING_COLUMNS: the baselines at the very beginning."""
    return _one_batch(READING_COLUMNS.empty_table())


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    arrays = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def _read(revision: int, at_us: int, destination: str, schema: str | None, datum: bytes) -> tuple[object, ...]:
    """Return a row of READING_COLUMNS."""
    if schema is None:
        return _unusable(revision, at_us, UNKNOWN_WRITER)
    try:
        value = cast(
            "dict[str, Any]",
            fastavro.schemaless_reader(io.BytesIO(datum), _parsed(schema), None, return_record_name=True),
        )
        origin, (branch, meters), reset_ms = value["from"], value["meters"], value["resetDateTime"]
        machine, venue, taken_ms = origin["egmElectronicId"], origin["venueId"], origin["updatedTime"]
        protocol = _BRANCHES.get(branch, "")
        counters, credit_cents = _counters(protocol, meters) if protocol else ([], 0)
    except (ValueError, LookupError, EOFError, ArithmeticError, TypeError, struct.error) as error:
        return _unusable(revision, at_us, f"it cannot be read, {type(error).__name__}: {error}")

    dated = 0 < taken_ms * 1000 <= at_us + FUTURE_US_MAX
    time_us = taken_ms * 1000 if dated else at_us
    if not protocol:
        problem = f"{branch} is a protocol that this job does not know"
    elif not machine or machine != _machine_of(
        destination
    ):  # rights are given by destination: no other client can count for a machine
        problem = f"egmElectronicId {machine!r} is not that of the destination"
    elif not venue:
        problem = "no venueId"
    elif len(venue) > VENUE_BYTES_MAX // 4 and len(venue.encode()) > VENUE_BYTES_MAX:
        problem, venue = f"a venueId of more than {VENUE_BYTES_MAX} bytes", None
    else:
        problem = _impossible(protocol, counters, credit_cents)
    if problem:
        return _unusable(revision, time_us, problem, machine, venue)
    # As reported, plausible or not: a change of it is noticed once, and only then its time matters.
    reset_us = None if reset_ms is None else min(max(0, reset_ms), _LATEST_MS) * 1000
    return machine, venue, revision, time_us, not dated, reset_us, protocol, credit_cents, counters, None


def _machine_of(destination: str) -> str:
    """Return the instance that a destination is of, the token before the last; empty when it has none."""
    tokens = destination.partition("/")[2].split(".")
    return tokens[-2] if len(tokens) > 1 else ""


def _unusable(
    revision: int, time_us: int, problem: str, machine: str | None = None, venue: str | None = None
) -> tuple[object, ...]:
    return machine, venue, revision, time_us, False, None, None, None, None, problem


def _counters(protocol: str, meters: Mapping[str, Any]) -> tuple[list[int], int]:
    """Return counters in the order of _COUNTERS, 0 for those that the protocol lacks, and the worth of a credit in cents."""
    counters = [0 if path is None else meters[path[0]][path[1]] for path in _PATHS[protocol]]
    cents = int.from_bytes(meters["creditValue"], "big", signed=True) if protocol == "S" else 1  # a decimal of scale 2
    return counters, cents


def _impossible(protocol: str, counters: list[int], credit_cents: int) -> str:
    """Return why counters are impossible, or an empty text."""
    highest = WRAP - 1 if protocol == "S" else COUNTER_MAX
    if min(counters) >= 0 and max(counters) <= highest and 1 <= credit_cents <= CREDIT_CENTS_MAX:
        return ""
    for at, counter in enumerate(counters):
        limit = COUNTER_MAX if at == _GAMES else highest
        if not 0 <= counter <= limit:
            return f"a meter has {counter}, which is not within 0 and {limit}"
    if not 1 <= credit_cents <= CREDIT_CENTS_MAX:
        return f"a credit is worth {credit_cents} cents, which is not within 1 and {CREDIT_CENTS_MAX}"
    return ""


@lru_cache(maxsize=64)
def _parsed(text: str) -> Schema:
    """Return a schema without logical types: times and decimals that Python cannot hold shall not stop anything."""
    return fastavro.parse_schema(_bare(json.loads(text)))


def _bare(schema: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    if isinstance(schema, dict):
        return {key: _bare(value) for key, value in schema.items() if key != "logicalType"}
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    return schema

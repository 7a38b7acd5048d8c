"""The meters of machines: readings out of bodies, differences out of readings, without Spark."""

import datetime as dt
import itertools
import random
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.examples.meter_readings import (
    HOUR_US,
    MINUTE,
    NOON_US,
    NOTHING,
    ORIGIN,
    Q_METERS,
    S_METERS,
    TEXTS,
    X_METERS,
    Reading,
    alphabet,
    body,
    model,
    table,
)
from venue.meters import (
    COUNTER_MAX,
    DELTA_COLUMNS,
    FUTURE_US_MAX,
    MARKS,
    METER_READING,
    METERS,
    READING_COLUMNS,
    count,
    no_readings,
    read_changes,
)
from venue.periods import GAMING_DAY, HOUR, Periods

HOURS = Periods.read(HOUR, "UTC", "00:00")
DAYS = Periods.read(GAMING_DAY, "UTC", "06:00")
AT_US = NOON_US + 3 * MINUTE


def counted(*readings: Reading, periods: Periods = HOURS) -> list[dict[str, Any]]:
    """Return what each of one machine's readings, in the order of revision, counts."""
    rows: list[dict[str, Any]] = count(table([("1", list(enumerate(readings, 1)))]), no_readings(), periods)[
        0
    ].to_pylist()
    return rows


def meters(row: dict[str, Any]) -> tuple[int, ...]:
    """Return the five meters of a row."""
    return tuple(row[name] for name in METERS)


def marks(row: dict[str, Any]) -> dict[str, int]:
    """Return the marks of a row that are not 0."""
    return {name: row[name] for name in MARKS if row[name]}


FIRST = Reading(NOON_US + MINUTE, (1000, 800, 5000, 4500, 50))
LATER = Reading(NOON_US + 2 * MINUTE, (1500, 900, 6000, 5000, 60))
RISE = (500, 100, 1000, 500, 10)


def test_the_first_reading_counts_nothing() -> None:
    """Counts of a machine before its first reading are its baseline."""
    (row,) = counted(FIRST)
    assert (meters(row), marks(row)) == (NOTHING, {"baselines": 1})


def test_a_reading_counts_what_the_meters_rose_by() -> None:
    """The difference to the reading before counts in the period in which it was read."""
    _, row = counted(FIRST, LATER)
    assert (meters(row), marks(row)) == (RISE, {"readings": 1})
    assert (row["period_start_us"], row["period_end_us"]) == (NOON_US, NOON_US + HOUR_US)


def test_a_difference_belongs_to_the_period_of_the_later_reading() -> None:
    """From one hour to the next it is whole in the next; over an hour without a reading it is whole there too, and marked."""
    for hours, expected in ((1, {"readings": 1}), (2, {"readings": 1, "gaps": 1}), (30, {"readings": 1, "gaps": 1})):
        _, row = counted(FIRST, replace(LATER, time_us=LATER.time_us + hours * HOUR_US))
        assert (meters(row), marks(row)) == (RISE, expected)
        assert row["period_start_us"] == NOON_US + hours * HOUR_US
    _, row = counted(FIRST, replace(LATER, time_us=LATER.time_us + 30 * HOUR_US), periods=DAYS)
    assert marks(row) == {"readings": 1}


@pytest.mark.parametrize(
    ("earlier", "is_gap"), [(NOON_US, True), (NOON_US + 1, False), (NOON_US - 1, True), (NOON_US + HOUR_US, False)]
)
def test_a_reading_on_a_boundary_is_of_the_period_that_ends(earlier: int, is_gap: bool) -> None:
    """The preceding period holds its end, not its start."""
    _, row = counted(replace(FIRST, time_us=earlier), replace(LATER, time_us=NOON_US + 2 * HOUR_US))
    assert row["period_end_us"] == NOON_US + 2 * HOUR_US
    assert ("gaps" in marks(row)) == is_gap


def test_an_announced_reset_counts_what_the_meters_show() -> None:
    """When the time of the last reset moved, to between the two readings, the meters show what came since, even if more than before."""
    for counters in ((10, 5, 20, 15, 2), (1010, 805, 5020, 4515, 52)):
        for former in (None, NOON_US - 10 * HOUR_US):
            for at in (FIRST.time_us, FIRST.time_us + 1, LATER.time_us, LATER.time_us + FUTURE_US_MAX):
                _, row = counted(replace(FIRST, reset_us=former), replace(LATER, counters=counters, reset_us=at))
                assert (meters(row), marks(row)) == (counters, {"readings": 1, "resets": 1})


def test_a_reset_before_both_readings_changes_nothing() -> None:
    """A time of reset that is reported late, corrected, taken back, or in the future does not make the meters count again."""
    before, future = FIRST.time_us - 1, LATER.time_us + FUTURE_US_MAX + 1
    for old, new in (
        (None, before),
        (before, before - 5),
        (before, None),
        (LATER.time_us, LATER.time_us),
        (None, future),
    ):
        _, row = counted(replace(FIRST, reset_us=old), replace(LATER, reset_us=new))
        assert (meters(row), marks(row)) == (RISE, {"readings": 1})


def test_a_meter_that_fell_was_reset() -> None:
    """The meters show the counts since then. Meters that did not fall went on."""
    _, row = counted(FIRST, replace(LATER, counters=(10, 5, 20, 15, 2)))
    assert (meters(row), marks(row)) == ((10, 5, 20, 15, 2), {"readings": 1, "resets": 1})
    _, row = counted(FIRST, replace(LATER, counters=(10, 900, 6000, 5000, 60)))
    assert (meters(row), marks(row)) == ((10, 100, 1000, 500, 10), {"readings": 1, "resets": 1})


S_FIRST = replace(FIRST, protocol="S", credit_cents=5, counters=(99_999_990, 99_999_990, 5000, 4500, 50))


def test_an_amount_of_protocol_s_rolls_over() -> None:
    """An amount that wraps at 99,999,999 credits has risen, if games went on; it counts in cents, games in games."""
    _, row = counted(S_FIRST, replace(S_FIRST, time_us=LATER.time_us, counters=(10, 99_999_999, 5000, 4600, 60)))
    assert (meters(row), marks(row)) == ((20 * 5, 9 * 5, 0, 500, 10), {"readings": 1, "roll_overs": 1})


@pytest.mark.parametrize(
    ("protocol", "counters", "money_in"),
    [
        pytest.param("S", (10, 0, 0, 0, 2), 50, id="games fell too"),
        pytest.param("S", (49_999_990, 99_999_990, 5000, 4500, 50), 49_999_990 * 5, id="half the range or more"),
        pytest.param("Q", (10, 99_999_990, 5000, 4500, 60), 50, id="another protocol"),
    ],
)
def test_not_every_fall_is_a_roll_over(protocol: str, counters: tuple[int, ...], money_in: int) -> None:
    """Games that fell as well, a rise of half the range, or a protocol that does not wrap: a reset."""
    first = replace(S_FIRST, protocol=protocol)
    _, row = counted(first, replace(first, time_us=LATER.time_us, counters=counters))
    assert (row["money_in_cents"], marks(row)) == (money_in, {"readings": 1, "resets": 1})


def test_late_readings_are_passed_over() -> None:
    """A reading that is older than one before it counts nothing and changes nothing; it is marked in its own period."""
    late = Reading(NOON_US - MINUTE, (1, 1, 1, 1, 1), reset_us=NOON_US - MINUTE, venue="W")
    _, row, after = counted(FIRST, late, LATER)
    assert (meters(row), marks(row), row["venue"]) == (NOTHING, {"late": 1}, "W")
    assert row["period_start_us"] == NOON_US - HOUR_US
    assert (meters(after), marks(after)) == (RISE, {"readings": 1})


def test_the_same_reading_again_counts_nothing_more() -> None:
    """A reading repeated is a reading with a rise of 0; with the same time the later revision decides."""
    _, row = counted(FIRST, FIRST)
    assert (meters(row), marks(row)) == (NOTHING, {"readings": 1})
    _, row = counted(FIRST, replace(LATER, time_us=FIRST.time_us))
    assert (meters(row), marks(row)) == (RISE, {"readings": 1})


def test_a_machine_goes_on_in_another_venue() -> None:
    """Its meters move with it: the difference counts where it was read, and is marked."""
    _, row = counted(FIRST, replace(LATER, venue="W"))
    assert (meters(row), marks(row), row["venue"]) == (RISE, {"readings": 1, "moves": 1}, "W")


@pytest.mark.parametrize("change", [{"protocol": "X"}, {"credit_cents": 2}])
def test_other_meters_begin_anew(change: dict[str, Any]) -> None:
    """With another protocol or worth of a credit there is nothing to compare with, unless the meters were reset meanwhile."""
    _, row, after = counted(FIRST, replace(LATER, **change), replace(LATER, time_us=LATER.time_us + 1, **change))
    assert (meters(row), marks(row)) == (NOTHING, {"baselines": 1})
    assert (meters(after), marks(after)) == (NOTHING, {"readings": 1})
    _, row = counted(FIRST, replace(LATER, reset_us=FIRST.time_us, **change))
    money = 2 if "credit_cents" in change else 1
    expected = tuple(value * money for value in LATER.counters[:4]) + LATER.counters[4:]
    assert (meters(row), marks(row)) == (expected, {"readings": 1, "resets": 1})


def test_unusable_readings_are_passed_over() -> None:
    """They count nothing and change nothing, whatever time they claim."""
    _, row, after = counted(FIRST, Reading(NOON_US + 40 * HOUR_US, (), problem="no meter"), LATER)
    assert (meters(row), marks(row)) == (NOTHING, {"unusable": 1})
    assert (meters(after), marks(after)) == (RISE, {"readings": 1})


def test_nothing_counts_nothing() -> None:
    """No readings make no rows and keep the baselines."""
    deltas, baselines = count(no_readings(), no_readings(), HOURS)
    assert (deltas.num_rows, deltas.schema, baselines.num_rows) == (0, DELTA_COLUMNS, 0)
    _, first = count(table([("1", [(1, FIRST)])]), no_readings(), HOURS)
    deltas, again = count(no_readings(), first, HOURS)
    assert (deltas.num_rows, again) == (0, first)


def rows_of(deltas: pa.RecordBatch) -> dict[tuple[str, int], tuple[object, ...]]:
    """Return what was counted by machine and revision."""
    return {
        (row["machine"], row["revision"]): tuple(row[name] for name in ("venue", *DELTA_COLUMNS.names[3:]))
        for row in deltas.to_pylist()
    }


@pytest.mark.slow
@pytest.mark.parametrize("periods", [HOURS, DAYS], ids=["hours", "days"])
def test_every_short_history_counts_as_the_model_says(periods: Periods) -> None:
    """All histories of up to four readings out of twelve kinds, each a machine of its own: 22,620 of them."""
    histories = [history for length in range(1, 5) for history in itertools.product(alphabet(), repeat=length)]
    machines = [(str(n), [(n * 10 + k, one) for k, one in enumerate(history)]) for n, history in enumerate(histories)]
    deltas, _ = count(table(machines), no_readings(), periods)
    found = rows_of(deltas)
    assert len(found) == deltas.num_rows == sum(len(history) for history in histories)
    for n, history in enumerate(histories):
        expected = model(history, periods)
        assert [found[str(n), n * 10 + k] for k in range(len(history))] == expected, history


def test_it_does_not_matter_how_readings_are_dealt_out() -> None:
    """Random long histories cut anywhere, baselines carried over, machines interleaved and rows shuffled, count the same."""
    chance = random.Random(11)  # noqa: S311  # no secret
    kinds = alphabet()
    for _ in range(20):
        machines = [(str(m), [chance.choice(kinds) for _ in range(chance.randrange(1, 30))]) for m in range(8)]
        expected = {
            (machine, k * 8 + int(machine)): row
            for machine, history in machines
            for k, row in enumerate(model(history, HOURS))
        }
        everything = [
            (machine, k * 8 + int(machine), one) for machine, history in machines for k, one in enumerate(history)
        ]
        everything.sort(key=lambda entry: entry[1])
        found: dict[tuple[str, int], tuple[object, ...]] = {}
        baselines = no_readings()
        at = 0
        while at < len(everything):
            some = everything[at : at + chance.randrange(1, 40)]
            at += len(some)
            chance.shuffle(some)
            deltas, baselines = count(
                table((machine, [(revision, one)]) for machine, revision, one in some), baselines, HOURS
            )
            found |= rows_of(deltas)
        assert found == expected


def test_differences_add_up() -> None:
    """Without resets they add up to the last reading less the first, however many were late or skipped, and in whatever periods."""
    chance = random.Random(5)  # noqa: S311  # no secret
    for _ in range(50):
        readings = [FIRST]
        for _ in range(40):
            last = max(readings, key=lambda one: one.time_us)
            more = tuple(value + chance.randrange(100) for value in last.counters)
            time_us = last.time_us + chance.randrange(3 * HOUR_US)
            readings.append(Reading(time_us, more, venue=chance.choice("VW")))
            if chance.random() < 0.2:
                readings.append(chance.choice(readings))  # again, and mostly late
        rows = counted(*readings)
        last = max(readings, key=lambda one: one.time_us)
        sums = tuple(sum(row[name] for row in rows) for name in METERS)
        assert sums == tuple(b - a for a, b in zip(FIRST.counters, last.counters, strict=True))


# Out of bodies


def change(
    datum: bytes, minor: str = "1.1", destination: str = "X/EGM.Q.12345.EGMMeterReading", **other: Any
) -> dict[str, Any]:
    """Return a row of accepted changes."""
    return {
        "revision": 1,
        "accepted_at": dt.datetime.fromtimestamp(AT_US / 1e6, dt.UTC),
        "kind": "value",
        "destination": destination,
        "schema": METER_READING,
        "schema_version": minor,
        "schema_fingerprint": b"12345678",
        "value_offset": 2,
        "value_length": len(datum),
        "body": b"\xff\xff" + datum + b"\xff",
    } | other


def read(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the readings among changes."""
    columns = {name: [one[name] for one in changes] for name in change(b"")}
    columns["accepted_at"] = pa.array(columns["accepted_at"], pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_pydict(columns)
    rows: list[dict[str, Any]] = read_changes(batch, lambda _name, minor, _fingerprint: TEXTS.get(minor)).to_pylist()
    return rows


@pytest.mark.parametrize("minor", ["1.0", "1.1"])
@pytest.mark.parametrize(
    ("letter", "meters_of", "cents", "counters"),
    [
        ("Q", Q_METERS, 1, [1, 20, 300, 4000, 5, 60, 700, 8000, 9, 10, 1100, 12]),
        ("S", S_METERS, 5, [1, 20, 0, 0, 3, 40, 0, 0, 5, 6, 0, 7]),
        ("X", X_METERS, 1, [1, 0, 0, 0, 2, 0, 0, 0, 3, 4, 0, 5]),
    ],
)
def test_each_protocol_has_the_common_meters(
    minor: str, letter: str, meters_of: dict[str, Any], cents: int, counters: list[int]
) -> None:
    """Money in and out, turnover, wins and games are found in each protocol's record, in each minor."""
    reset = dt.datetime.fromtimestamp(NOON_US / 1e6 - 60, dt.UTC)
    (row,) = read(change(body(ORIGIN, letter, meters_of, reset, minor), minor))
    assert row == {
        "machine": "12345",
        "venue": "VENUE-7",
        "revision": 1,
        "time_us": NOON_US,
        "undated": False,
        "reset_us": NOON_US - MINUTE,
        "protocol": letter,
        "credit_cents": cents,
        "counters": counters,
        "problem": None,
    }


@pytest.mark.parametrize(
    ("taken_ms", "time_us"),
    [
        ((AT_US + FUTURE_US_MAX) // 1000, AT_US + FUTURE_US_MAX),
        ((AT_US + FUTURE_US_MAX) // 1000 + 1, None),
        (1, 1000),
        (0, None),
        (-5, None),
        (2**63 - 1, None),
    ],
)
def test_a_time_that_cannot_be_is_replaced(taken_ms: int, time_us: int | None) -> None:
    """A time more than five minutes after acceptance, or none, gives way to the time of acceptance."""
    datum = body(ORIGIN | {"updatedTime": taken_ms}, "Q", Q_METERS)
    (row,) = read(change(datum))
    assert (row["time_us"], row["undated"]) == ((AT_US, True) if time_us is None else (time_us, False))
    assert row["problem"] is None


def test_any_time_of_reset_is_read() -> None:
    """One that no calendar holds does not stop anything."""
    for reset in (-(2**63), -1, 0, 2**63 - 1):
        (row,) = read(change(body(ORIGIN, "Q", Q_METERS, reset)))
        assert row["problem"] is None
        assert 0 <= row["reset_us"] < 2**63


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (change(body(ORIGIN | {"egmElectronicId": "1234"}, "Q", Q_METERS)), "'1234' is not that of the destination"),
        (change(body(ORIGIN | {"egmElectronicId": ""}, "Q", Q_METERS)), "'' is not that of the destination"),
        (change(body(ORIGIN | {"egmElectronicId": "Q"}, "Q", Q_METERS)), "'Q' is not that of the destination"),
        (change(body(ORIGIN | {"egmElectronicId": "Q.12345"}, "Q", Q_METERS)), "'Q.12345' is not that of"),
        (change(body(ORIGIN | {"venueId": ""}, "Q", Q_METERS)), "no venueId"),
        (change(body(ORIGIN | {"venueId": 33 * "\N{GRINNING FACE}"}, "Q", Q_METERS)), "venueId of more than 128 bytes"),
        (
            change(body(ORIGIN, "Q", Q_METERS | {"auxiliary": {"turnover": -1, "totalWins": 0, "jackpotWins": 0}})),
            "has -1",
        ),
        (
            change(body(ORIGIN, "X", X_METERS | {"credit": {"totalIn": COUNTER_MAX + 1, "notesIn": 0}})),
            f"{COUNTER_MAX + 1}",
        ),
        (change(body(ORIGIN, "S", S_METERS | {"credit": {"billsIn": 10**8, "otherIn": 0}})), "has 100000000"),
        (change(body(ORIGIN, "S", S_METERS | {"creditValue": Decimal(0)})), "worth 0 cents"),
        (change(body(ORIGIN, "S", S_METERS | {"creditValue": Decimal(-1)})), "worth -100 cents"),
        (change(body(ORIGIN, "Q", Q_METERS), "9.9"), "the schema that judged it was not kept"),
        (change(body(ORIGIN, "Q", Q_METERS)[:30]), "cannot be read"),
    ],
)
def test_a_reading_that_cannot_be_used_says_why(changed: dict[str, Any], problem: str) -> None:
    """It is reported with the reason and without meters, and does not stop the others."""
    good = change(body(ORIGIN, "Q", Q_METERS), revision=2)
    bad, after = read(changed, good)
    assert problem in bad["problem"]
    assert (bad["counters"], bad["time_us"] in {NOON_US, AT_US}) == (None, True)
    assert (after["problem"], after["revision"]) == (None, 2)


def test_only_meter_readings_are_read() -> None:
    """Deletes and values of other types are left out."""
    datum = body(ORIGIN, "Q", Q_METERS)
    assert read(change(b"", kind="delete"), change(datum, schema="egm.EGMStatus_v1"), change(datum, schema="")) == []


def test_a_read_change_can_be_counted() -> None:
    """The rows that come out of bodies are those that differences are made of."""
    first = change(body(ORIGIN, "S", S_METERS))
    later = ORIGIN | {"updatedTime": NOON_US // 1000 + 5}
    more = S_METERS | {"credit": {"billsIn": 4, "otherIn": 21}}
    rows = read(first, change(body(later, "S", more), revision=2), change(b"", "1.1", revision=3))
    batch = pa.RecordBatch.from_pylist(rows, schema=READING_COLUMNS)
    deltas, _ = count(batch, no_readings(), HOURS)
    assert [(row["machine"], row["money_in_cents"], marks(row)) for row in deltas.to_pylist()] == [
        ("12345", 0, {"baselines": 1}),
        ("12345", 20, {"readings": 1}),
        (None, 0, {"unusable": 1}),
    ]

"""Meter readings for tests: as they write them, as bodies, and a naive model of what they count."""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from maxam.avro.folder import read_registry
from maxam.config import Limits
from venue.meters import FUTURE_US_MAX, MARKS, METER_READING, READING_COLUMNS
from venue.periods import Periods

HOUR_US = 3_600_000_000
NOON_US = 494_052 * HOUR_US  # of a day in May 2026, UTC
MINUTE = HOUR_US // 60
NOTHING = (0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Reading:
    """A usable reading of a machine as the tests write it; one counter for each meter."""

    time_us: int
    counters: tuple[int, ...]  # money in, money out, turnover, wins, games
    reset_us: int | None = None
    protocol: str = "Q"
    venue: str = "V"
    credit_cents: int = 1
    undated: bool = False
    problem: str | None = None


def table(machines: Iterable[tuple[str, Sequence[tuple[int, Reading]]]]) -> pa.RecordBatch:
    """Return the readings of machines, each with its revision, as rows of READING_COLUMNS."""
    rows = []
    for machine, readings in machines:
        for revision, one in readings:
            told = {
                "machine": machine,
                "venue": one.venue,
                "revision": revision,
                "time_us": one.time_us,
                "undated": one.undated,
                "problem": one.problem,
            }
            if one.problem is None:
                money_in, money_out, turnover, wins, games = one.counters
                told |= {
                    "reset_us": one.reset_us,
                    "protocol": one.protocol,
                    "credit_cents": one.credit_cents,
                    "counters": [money_in, 0, 0, 0, money_out, 0, 0, 0, turnover, wins, 0, games],
                }
            rows.append(told)
    return pa.RecordBatch.from_pylist(rows, schema=READING_COLUMNS)


def model(readings: Sequence[Reading], periods: Periods) -> list[tuple[object, ...]]:
    """Return what each of a machine's readings counts: the rules of venue.meters, one reading at a time."""
    told: list[tuple[object, ...]] = []
    before: Reading | None = None
    for one in readings:
        rises = list(NOTHING)
        mark = dict.fromkeys(MARKS, 0)
        period = periods.around(one.time_us)
        if one.problem is not None:
            mark["unusable"] = 1
        elif before is not None and one.time_us < before.time_us:
            mark["late"] = 1
        else:
            mark["undated"] = int(one.undated)
            moved = before is not None and one.reset_us is not None and one.reset_us != before.reset_us
            if before is None:
                mark["baselines"] = 1
            elif moved and before.time_us <= (one.reset_us or 0) <= one.time_us + FUTURE_US_MAX:
                mark["resets"] = 1
                rises = list(one.counters)
            elif (before.protocol, before.credit_cents) != (one.protocol, one.credit_cents):
                mark["baselines"] = 1
            else:
                for meter, (old, new) in enumerate(zip(before.counters, one.counters, strict=True)):
                    games_went_on = one.counters[4] >= before.counters[4]
                    around = new - old + 100_000_000
                    if new >= old:
                        rises[meter] = new - old
                    elif one.protocol == "S" and meter < 4 and games_went_on and around < 50_000_000:
                        rises[meter] = around
                        mark["roll_overs"] = 1
                    else:
                        rises[meter] = new
                        mark["resets"] = 1
            if before is not None and not mark["baselines"]:
                mark["readings"] = 1
                mark["moves"] = int(one.venue != before.venue)
                mark["gaps"] = int(before.time_us <= periods.before(period).start)
            rises = [rise * one.credit_cents for rise in rises[:4]] + rises[4:]
            before = one
        told.append((one.venue, one.time_us, period.start, period.end, *rises, *mark.values()))
    return told


def alphabet() -> list[Reading]:
    """Return readings that, put one after the other in any order, do everything a machine can do."""
    low, high, top = (10, 5, 20, 15, 2), (1500, 900, 6000, 5000, 60), (99_999_990, 99_999_995, 99_999_000, 7, 61)
    return [
        Reading(NOON_US, low),
        Reading(NOON_US + MINUTE, high),
        Reading(NOON_US + MINUTE, high, reset_us=NOON_US),
        Reading(NOON_US + HOUR_US, (1600, 900, 7000, 4000, 60), reset_us=NOON_US + MINUTE),
        Reading(NOON_US + HOUR_US, low, reset_us=NOON_US + 50 * HOUR_US, venue="W"),
        Reading(NOON_US + 5 * HOUR_US, high, venue="W", undated=True),
        Reading(NOON_US, top, protocol="S", credit_cents=5),
        Reading(NOON_US + 5 * HOUR_US, (5, 3, 99_999_999, 8, 61), protocol="S", credit_cents=5),
        Reading(NOON_US + 5 * HOUR_US, (5, 3, 99_999_999, 8, 60), protocol="S", credit_cents=5),
        Reading(NOON_US + 6 * HOUR_US, (5, 3, 99_999_999, 8, 61), protocol="S", credit_cents=10),
        Reading(NOON_US + 6 * HOUR_US, NOTHING, protocol="X", reset_us=NOON_US + 5 * HOUR_US),
        Reading(NOON_US + 7 * HOUR_US, (), problem="broken"),
    ]


SCHEMAS = Path(__file__).parents[2] / "schemas"
ORIGIN = {
    "venueId": "VENUE-7",
    "scId": "SC-1",
    "interfaceId": "IF-1",
    "egmElectronicId": "12345",
    "manufacturerId": "AGI",
    "floorPosition": "A01",
    "updatedTime": NOON_US // 1000,
}
Q_METERS = {
    "credit": {"notesIn": 1, "coinsIn": 20, "ticketsIn": 300, "transfersIn": 4000},
    "debit": {"coinsOut": 5, "ticketsOut": 60, "transfersOut": 700, "cancelledCredit": 8000},
    "auxiliary": {"turnover": 9, "totalWins": 10, "jackpotWins": 1100},
    "nonMonetary": {"gamesPlayed": 12, "gamesWon": 3, "doorOpenings": 4, "powerUps": 5},
}
S_METERS = {
    "creditValue": Decimal("0.05"),
    "credit": {"billsIn": 1, "otherIn": 20},
    "debit": {"paidOut": 3, "handPaid": 40},
    "auxiliary": {"played": 5, "won": 6},
    "nonMonetary": {"gamesPlayed": 7, "billsByValue": {"20": 1}},
}
X_METERS = {
    "credit": {"totalIn": 1, "notesIn": None},
    "debit": {"totalOut": 2, "handPaid": 1},
    "auxiliary": {"turnover": 3, "totalWins": 4},
    "nonMonetary": {"gamesPlayed": 5, "gamesSincePowerUp": None},
}


REGISTRY = read_registry(SCHEMAS, Limits())
TEXTS = {version.minor: version.schema.text.decode() for version in REGISTRY.versions(METER_READING)}
"""By minor of the meter reading."""


def body(origin: dict[str, Any], letter: str, meters: dict[str, Any], reset: Any = None, minor: str = "1.1") -> bytes:
    """Return the datum of a reading."""
    value = {"from": origin, "meters": (f"egm.{letter}Meters_v1", meters), "resetDateTime": reset, "reason": "DOOR"}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(TEXTS[minor])), value)
    return out.getvalue()


def body_of(machine: str, one: Reading) -> bytes:
    """Return a reading of a machine as a body; one with a problem names another machine."""
    money_in, money_out, turnover, wins, games = one.counters or NOTHING
    meters: dict[str, Any]
    match one.protocol:
        case "Q":
            meters = {
                "credit": {"notesIn": money_in, "coinsIn": 0, "ticketsIn": 0, "transfersIn": 0},
                "debit": {"coinsOut": money_out, "ticketsOut": 0, "transfersOut": 0, "cancelledCredit": 0},
                "auxiliary": {"turnover": turnover, "totalWins": wins, "jackpotWins": 0},
                "nonMonetary": {"gamesPlayed": games, "gamesWon": 0, "doorOpenings": 0, "powerUps": 0},
            }
        case "S":
            meters = {
                "creditValue": Decimal(one.credit_cents).scaleb(-2),
                "credit": {"billsIn": money_in, "otherIn": 0},
                "debit": {"paidOut": money_out, "handPaid": 0},
                "auxiliary": {"played": turnover, "won": wins},
                "nonMonetary": {"gamesPlayed": games, "billsByValue": {}},
            }
        case _:
            meters = {
                "credit": {"totalIn": money_in, "notesIn": None},
                "debit": {"totalOut": money_out, "handPaid": None},
                "auxiliary": {"turnover": turnover, "totalWins": wins},
                "nonMonetary": {"gamesPlayed": games, "gamesSincePowerUp": None},
            }
    origin = {
        "venueId": one.venue,
        "egmElectronicId": machine if one.problem is None else "another",
        "updatedTime": 0 if one.undated else one.time_us // 1000,
    }
    return body(ORIGIN | origin, one.protocol, meters, None if one.reset_us is None else one.reset_us // 1000)

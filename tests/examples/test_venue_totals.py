"""Live totals of venues: what is published, and what survives the process."""

import io
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest

from maxam.avro.rule import SINGLE_OBJECT
from maxam.globs import destination_problem
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.publish.bodies import BodyEncoder
from tests.examples.meter_readings import HOUR_US, MINUTE, NOON_US, REGISTRY, Reading, alphabet, table
from venue import running as venue_module
from venue.periods import GAMING_DAY, HOUR, Periods
from venue.running import STATE_FILE, VENUE_METER_TOTALS, VenueTotals, destination_of, hold_state

HOURS = Periods.read(HOUR, "UTC", "00:00")
DAYS = Periods.read(GAMING_DAY, "Australia/Brisbane", "06:00")
FIRST = Reading(NOON_US + MINUTE, (1000, 800, 5000, 4500, 50))


def later(one: Reading, by_us: int, more: int = 100) -> Reading:
    """Return a reading after this one with each meter higher by `more`."""
    return replace(one, time_us=one.time_us + by_us, counters=tuple(value + more for value in one.counters))


def venue(totals: VenueTotals, name: str = "V") -> dict[str, Any]:
    """Return the value of one venue."""
    return dict(totals.values([name]))[name]


def test_a_venue_is_the_sum_of_its_machines() -> None:
    """The current period sums up what each machine counted in it; machines that only began are not among them."""
    totals = VenueTotals(DAYS)
    second = replace(FIRST, protocol="X")
    touched = totals.take(
        table(
            [
                ("1", [(1, FIRST), (4, later(FIRST, MINUTE))]),
                ("2", [(2, second), (5, later(second, MINUTE, 10)), (6, later(second, 3 * MINUTE, 30))]),
                ("3", [(3, FIRST)]),
                ("4", [(7, replace(FIRST, venue="W"))]),
            ]
        ),
        9,
    )
    assert touched == ["V", "W"]
    day = DAYS.around(FIRST.time_us)
    assert venue(totals) == {
        "venueId": "V",
        "asOfRevision": 9,
        "updatedTime": (FIRST.time_us + 3 * MINUTE) // 1000,
        "periodKind": "GAMING_DAY",
        "timeZone": "Australia/Brisbane",
        "dayStart": 21_600_000,
        "current": {
            "periodStart": day.start // 1000,
            "periodEnd": day.end // 1000,
            "localDate": day.date.toordinal() - 719_163,
            "machines": 2,
            "readings": 3,
            "moneyIn": 130,
            "moneyOut": 130,
            "turnover": 130,
            "wins": 130,
            "gamesPlayed": 130,
            "resets": 0,
            "rollOvers": 0,
            "baselines": 3,
            "gaps": 0,
            "moves": 0,
            "lateReadings": 0,
            "undatedReadings": 0,
            "unusableReadings": 0,
        },
        "previous": None,
    }
    assert venue(totals, "W")["current"]["machines"] == 0


def test_the_period_before_goes_on_counting() -> None:
    """When one machine has reached the next hour, another one's reading still adds to the hour before."""
    totals = VenueTotals(HOURS)
    next_hour = later(FIRST, HOUR_US)
    totals.take(table([("1", [(1, FIRST), (3, next_hour)]), ("2", [(2, FIRST)])]), 3)
    assert (venue(totals)["current"]["moneyIn"], venue(totals)["previous"]["moneyIn"]) == (100, 0)
    assert totals.take(table([("2", [(4, later(FIRST, 58 * MINUTE, 7))])]), 4) == ["V"]
    assert (venue(totals)["current"]["moneyIn"], venue(totals)["previous"]["moneyIn"]) == (100, 7)
    assert (venue(totals)["dayStart"], venue(totals)["periodKind"]) == (None, "HOUR")


def test_a_period_that_is_not_just_before_is_not_the_previous() -> None:
    """After an hour without a reading there is no previous one, and what is older is forgotten."""
    totals = VenueTotals(HOURS)
    totals.take(table([("1", [(1, FIRST), (2, later(FIRST, 2 * HOUR_US))]), ("2", [(3, FIRST)])]), 3)
    assert (venue(totals)["current"]["gaps"], venue(totals)["previous"]) == (1, None)
    totals.take(table([("2", [(4, later(FIRST, MINUTE))])]), 4)
    assert (venue(totals)["current"]["moneyIn"], venue(totals)["previous"]) == (100, None)


def test_readings_that_are_passed_over_begin_no_period() -> None:
    """A venue with nothing but unusable readings has no totals; elsewhere they count as such and do not move the period."""
    broken = Reading(NOON_US + 5 * HOUR_US, (), problem="no meter")
    totals = VenueTotals(HOURS)
    totals.take(table([("1", [(1, broken)])]), 1)
    assert totals.values() == []
    totals.take(table([("1", [(2, FIRST)]), ("2", [(3, replace(broken, time_us=FIRST.time_us))])]), 3)
    assert venue(totals)["updatedTime"] == FIRST.time_us // 1000
    assert (venue(totals)["current"]["baselines"], venue(totals)["current"]["unusableReadings"]) == (1, 1)


def test_venues_that_only_fail_do_not_pile_up() -> None:
    """Of a venue with nothing but unusable readings the newest period is kept, not each one for ever."""
    totals = VenueTotals(HOURS)
    for hour in range(50):
        totals.take(table([("1", [(hour + 1, Reading(NOON_US + hour * HOUR_US, (), problem="no meter"))])]), hour + 1)
    assert totals._totals.num_rows <= 2


def test_made_up_venues_find_an_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that sends a new venue each time fills the limit, not more; venues known before go on, also after a restart."""
    monkeypatch.setattr(venue_module, "VENUES_MAX", 10)
    totals = VenueTotals(HOURS)
    totals.take(table([("1", [(1, FIRST)])]), 1)
    made_up = [(2 + place, replace(later(FIRST, place), venue=f"W{place:03}")) for place in range(50)]
    assert len(totals.take(table([("2", made_up[:30])]), 31)) == 9
    totals.save(tmp_path)
    totals = VenueTotals.load(tmp_path, HOURS)
    assert totals.take(table([("2", made_up[30:]), ("1", [(60, later(FIRST, MINUTE))])]), 60) == ["V"]
    assert (len(totals.values()), totals.left_out) == (10, 20)
    assert venue(totals)["current"]["moneyIn"] == 100


def test_what_fails_counts_nothing_by_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """When readings could not be added, the state is what it was: they count once when they come again."""
    totals = VenueTotals(HOURS)
    totals.take(table([("1", [(1, FIRST)])]), 1)
    monkeypatch.setattr(VenueTotals, "add", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        totals.take(table([("1", [(2, later(FIRST, MINUTE))])]), 2)
    monkeypatch.undo()
    assert totals.as_of == 1
    totals.take(table([("1", [(2, later(FIRST, MINUTE))])]), 2)
    assert venue(totals)["current"]["moneyIn"] == 100


def test_a_state_has_one_follower(tmp_path: Path) -> None:
    """A second process with the same state folder is refused while the first is there, and not after it."""
    folder = tmp_path / "state"
    with hold_state(folder):
        code = f"from pathlib import Path; from venue.running import hold_state\nwith hold_state(Path({str(folder)!r})): pass"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another process" in other.stderr
    with hold_state(folder):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=str(tmp_path / "file")), hold_state(tmp_path / "file"):
        pass


@pytest.mark.parametrize("periods", [HOURS, DAYS])
def test_totals_survive(periods: Periods, tmp_path: Path) -> None:
    """Random readings dealt out in any batches, saved and loaded between any two of them, give the totals of all at once."""
    chance = random.Random(3)  # noqa: S311  # no secret
    kinds = alphabet()
    readings = [(str(chance.randrange(6)), revision, chance.choice(kinds)) for revision in range(1, 200)]
    whole = VenueTotals(periods)
    whole.take(table((machine, [(revision, one)]) for machine, revision, one in readings), 200)
    totals = VenueTotals.load(tmp_path, periods)
    assert totals.as_of == 0
    at = 0
    while at < len(readings):
        some = readings[at : at + chance.randrange(1, 30)]
        at += len(some)
        totals.take(table((machine, [(revision, one)]) for machine, revision, one in some), some[-1][1])
        if chance.random() < 0.5:
            totals.save(tmp_path)
            totals = VenueTotals.load(tmp_path, periods)
        assert totals.as_of == some[-1][1]
    totals.as_of = 200
    assert totals.values() == whole.values()
    assert len(whole.values()) == 2


def test_every_batch_counts_as_if_it_had_come_alone(tmp_path: Path) -> None:
    """Readings after the state was saved are counted again, and the totals come out the same."""
    totals = VenueTotals(HOURS)
    totals.take(table([("1", [(1, FIRST)])]), 1)
    totals.save(tmp_path)
    again = VenueTotals.load(tmp_path, HOURS)
    for one in (totals, again):
        one.take(table([("1", [(2, later(FIRST, MINUTE))])]), 2)
    assert totals.values() == again.values()


def test_state_of_other_periods_is_refused(tmp_path: Path) -> None:
    """Totals saved for one way to cut time are not taken for another; a damaged file is named."""
    VenueTotals(DAYS).save(tmp_path)
    with pytest.raises(PipelineError, match=r"gaming-day .*Australia/Brisbane .*06:00.* hour in UTC"):
        VenueTotals.load(tmp_path, HOURS)
    (tmp_path / STATE_FILE).write_bytes((tmp_path / STATE_FILE).read_bytes()[:100])
    with pytest.raises(PipelineError, match="is damaged"):
        VenueTotals.load(tmp_path, DAYS)
    (tmp_path / STATE_FILE).write_bytes(b"")
    with pytest.raises(PipelineError, match="is damaged"):
        VenueTotals.load(tmp_path, DAYS)


def test_what_is_published_fits_the_schema() -> None:
    """The body refers to its schema, is accepted by the rule of its topic, and means the same to fastavro."""
    for periods in (HOURS, DAYS):
        totals = VenueTotals(periods)
        totals.take(table([("1", [(1, FIRST), (2, later(FIRST, HOUR_US))]), ("2", [(3, FIRST)])]), 12)
        (row,) = totals.rows(BodyEncoder(REGISTRY))
        assert (row.number, row.destination) == (12, destination_of("V", periods))
        rule = REGISTRY.rule_for(row.destination)
        assert rule is not None
        assert (rule.schema, rule.encoding) == (VENUE_METER_TOTALS, SINGLE_OBJECT)
        assert BodyEncoder(REGISTRY).problem(row.destination, row.body, row.headers or {}) is None
        schema = json.loads(REGISTRY.versions(VENUE_METER_TOTALS)[0].schema.text)
        value = fastavro.schemaless_reader(io.BytesIO(row.body[10:]), fastavro.parse_schema(schema), None)
        assert isinstance(value, dict)
        assert value["current"]["periodEnd"].timestamp() == periods.around(FIRST.time_us + HOUR_US).end / 1e6
        assert value["asOfRevision"] == 12


def test_a_registry_without_the_rule_is_named() -> None:
    """Totals are published as the integrator's registry defines, or not at all."""
    from maxam.avro.registry import load_registry

    totals = VenueTotals(HOURS)
    totals.take(table([("1", [(1, FIRST)])]), 1)
    empty = load_registry({"registry.toml": b'[[rule]]\ndestination = "X/*"\nencoding = "none"\n'})
    with pytest.raises(PipelineError, match="venue"):
        totals.rows(BodyEncoder(empty))


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("VENUE-7", "VENUE-7"),
        ("a.b", "a%2Eb"),
        ("50% *[x]?/\\", "50%25%20%2A%5Bx%5D%3F%2F%5C"),
        ("Öre", "Öre"),
        ("\n\u2028", "%0A%E2%80%A8"),
    ],
)
def test_any_venue_has_a_topic_of_its_own(name: str, token: str) -> None:
    """Characters that cannot stand in a token are escaped, so the topic is valid and of no other venue."""
    assert destination_of(name, DAYS) == f"X/Venue.{token}.VenueMeterTotals"
    assert destination_of(name, HOURS) == f"X/Venue.{token}.Hour.VenueMeterTotals"
    assert destination_problem(destination_of(name, DAYS).encode(), 512) is None

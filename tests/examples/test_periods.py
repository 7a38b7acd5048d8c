"""Hours and gaming days: every moment is in one, whatever the clocks of a venue do."""

import datetime as dt
import pickle
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from maxam.pipeline.errors import PipelineError
from venue.periods import GAMING_DAY, HOUR, Kind, Period, Periods

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR_US = 60 * MINUTE
DAY_US = 24 * HOUR_US

# Zones, and a day around which their clocks change. One does not change at all. Others change by an hour, by half an hour, at midnight,
# back over midnight, or by five hours and three quarters. One leaves out a whole date, and one has negative daylight saving.
CHANGES = [
    ("UTC", "2026-06-01"),
    ("Australia/Brisbane", "2026-06-01"),
    ("Australia/Sydney", "2026-10-04"),
    ("Australia/Sydney", "2026-04-05"),
    ("Australia/Adelaide", "2026-10-04"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Asia/Kathmandu", "2026-06-01"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("America/Sao_Paulo", "2018-02-18"),
    ("America/St_Johns", "2006-10-29"),
    ("America/St_Johns", "2006-04-02"),
    ("Pacific/Apia", "2011-12-30"),
    ("Europe/Dublin", "2026-03-29"),
    ("Europe/Dublin", "2026-10-25"),
    ("America/Nuuk", "2026-03-28"),
    ("Africa/Casablanca", "2026-02-15"),
]


def us(text: str) -> int:
    """Return microseconds since the epoch of an ISO time with an offset."""
    return (dt.datetime.fromisoformat(text) - EPOCH) // dt.timedelta(microseconds=1)


def local(zone: str, moment: int) -> str:
    """Return what the clock shows."""
    return (EPOCH + dt.timedelta(microseconds=moment)).astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M:%S%z")


def walk(periods: Periods, start: int, end: int) -> list[Period]:
    """Return the periods from the one that holds `start` to the one that holds `end`."""
    found = [periods.around(start)]
    while found[-1].end < end:
        found.append(periods.around(found[-1].end + 1))
    return found


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize(
    ("kind", "day_start"),
    [
        (HOUR, "00:00"),
        *(
            (GAMING_DAY, text)
            for text in ("00:00", "00:30", "01:45", "02:00", "02:30", "03:00", "06:00", "23:30", "23:59")
        ),
    ],
)
def test_periods_leave_no_gap_and_do_not_overlap(zone: str, day: str, kind: Kind, day_start: str) -> None:
    """Over five days around a change of clocks each period begins where the one before it ends, and holds just its moments."""
    periods = Periods.read(kind, zone, day_start)
    middle = us(f"{day}T12:00:00+00:00")
    found = walk(periods, middle - 3 * DAY_US, middle + 2 * DAY_US)
    for before, after in pairwise(found):
        assert before.end == after.start
        assert periods.before(after) == before
        assert kind == HOUR or before.date < after.date
    for period in found:
        assert period.start < period.end
        for moment in (period.start + 1, (period.start + period.end) // 2, period.end - 1, period.end):
            assert periods.around(moment) == period
        assert (period.end - period.start) % MINUTE == 0
        longest = HOUR_US if kind == HOUR else 25 * HOUR_US
        assert period.end - period.start <= longest


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize("day_start", ["00:00", "02:30", "06:00"])
def test_a_gaming_day_begins_when_the_clock_first_reaches_its_start(zone: str, day: str, day_start: str) -> None:
    """At its start the clock shows the day's start or, being put forward over it, more; a second before it shows less, of its date."""
    periods = Periods.read(GAMING_DAY, zone, day_start)
    middle = us(f"{day}T12:00:00+00:00")
    for period in walk(periods, middle - 3 * DAY_US, middle + 2 * DAY_US):
        mark = f"{period.date} {day_start}:00"
        shown, shown_before = (
            f"{(EPOCH + dt.timedelta(microseconds=moment)).astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}"
            for moment in (period.start, period.start - SECOND)
        )
        assert shown_before < mark <= shown
        assert shown[:10] == f"{period.date}"


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_an_hour_is_one_on_the_clock(zone: str, day: str) -> None:
    """While it lasts the clock shows one hour and is not changed; it begins with a full hour or with a change."""
    periods = Periods.read(HOUR, zone, "00:00")
    middle = us(f"{day}T12:00:00+00:00")
    for period in walk(periods, middle - 2 * DAY_US, middle + DAY_US):
        first, last = local(zone, period.start), local(zone, period.end - 1)
        assert (first[:8], first[14:]) == (last[:8], last[14:])
        assert first[8:14] == ":00:00" or local(zone, period.start - 1)[14:] != first[14:]


def lengths(kind: Kind, zone: str, day_start: str, first: str, last: str) -> list[tuple[str, float]]:
    """Return local start and length in hours of the periods that hold the moments from `first` to `last`."""
    found = walk(Periods.read(kind, zone, day_start), us(first), us(last))
    return [(local(zone, period.start), (period.end - period.start) / HOUR_US) for period in found]


@pytest.mark.parametrize(
    ("kind", "zone", "day_start", "first", "last", "expected"),
    [
        pytest.param(
            GAMING_DAY,
            "Australia/Sydney",
            "06:00",
            "2026-10-03T12:00:00+10:00",
            "2026-10-04T12:00:00+11:00",
            [("10-03 06:00:00+1000", 23), ("10-04 06:00:00+1100", 24)],
            id="a day of 23 hours",
        ),
        pytest.param(
            GAMING_DAY,
            "Australia/Sydney",
            "06:00",
            "2026-04-04T12:00:00+11:00",
            "2026-04-05T12:00:00+10:00",
            [("04-04 06:00:00+1100", 25), ("04-05 06:00:00+1000", 24)],
            id="a day of 25 hours",
        ),
        pytest.param(
            GAMING_DAY,
            "Australia/Sydney",
            "02:30",
            "2026-10-03T12:00:00+10:00",
            "2026-10-04T12:00:00+11:00",
            [("10-03 02:30:00+1000", 23.5), ("10-04 03:00:00+1100", 23.5)],
            id="a start that is left out",
        ),
        pytest.param(
            GAMING_DAY,
            "Australia/Sydney",
            "02:30",
            "2026-04-04T12:00:00+11:00",
            "2026-04-05T12:00:00+10:00",
            [("04-04 02:30:00+1100", 24), ("04-05 02:30:00+1100", 25)],
            id="a start that comes twice",
        ),
        pytest.param(
            GAMING_DAY,
            "Pacific/Apia",
            "06:00",
            "2011-12-29T12:00:00-10:00",
            "2011-12-31T12:00:00+14:00",
            [("12-29 06:00:00-1000", 24), ("12-31 06:00:00+1400", 24)],
            id="a date that never was",
        ),
        pytest.param(
            HOUR,
            "Australia/Sydney",
            "00:00",
            "2026-10-04T01:30:00+10:00",
            "2026-10-04T03:30:00+11:00",
            [("10-04 01:00:00+1000", 1), ("10-04 03:00:00+1100", 1)],
            id="an hour that does not exist",
        ),
        pytest.param(
            HOUR,
            "Australia/Sydney",
            "00:00",
            "2026-04-05T01:30:00+11:00",
            "2026-04-05T03:30:00+10:00",
            [
                ("04-05 01:00:00+1100", 1),
                ("04-05 02:00:00+1100", 1),
                ("04-05 02:00:00+1000", 1),
                ("04-05 03:00:00+1000", 1),
            ],
            id="an hour that repeats",
        ),
        pytest.param(
            HOUR,
            "Australia/Lord_Howe",
            "00:00",
            "2026-10-04T01:30:00+10:30",
            "2026-10-04T03:30:00+11:00",
            [("10-04 01:00:00+1030", 1), ("10-04 02:30:00+1100", 0.5), ("10-04 03:00:00+1100", 1)],
            id="half an hour left out",
        ),
        pytest.param(
            HOUR,
            "Australia/Lord_Howe",
            "00:00",
            "2026-04-05T01:30:00+11:00",
            "2026-04-05T02:30:00+10:30",
            [("04-05 01:00:00+1100", 1), ("04-05 01:30:00+1030", 0.5), ("04-05 02:00:00+1030", 1)],
            id="half an hour that repeats",
        ),
        pytest.param(
            HOUR,
            "Australia/Adelaide",
            "00:00",
            "2026-06-01T00:30:00+09:30",
            "2026-06-01T00:30:00+09:30",
            [("06-01 00:00:00+0930", 1)],
            id="an offset of half hours",
        ),
    ],
)
def test_periods_where_clocks_change(
    kind: Kind, zone: str, day_start: str, first: str, last: str, expected: list[tuple[str, float]]
) -> None:
    """The periods around a change of clocks are just these."""
    assert lengths(kind, zone, day_start, first, last) == expected


def test_a_moment_on_a_boundary_closes_the_period_before_it() -> None:
    """A reading at the end of the gaming day belongs to that day. A microsecond later it is the next."""
    periods = Periods.read(GAMING_DAY, "Australia/Brisbane", "06:00")
    end = us("2026-06-02T06:00:00+10:00")
    assert periods.around(end).date == dt.date(2026, 6, 1)
    assert periods.around(end + 1).date == dt.date(2026, 6, 2)


def test_a_column_is_cut_as_its_moments_are() -> None:
    """`columns` gives for each of many moments in any order what `around` gives for it; none for none."""
    chance = np.random.default_rng(7)
    around = us("2026-04-05T00:00:00+11:00")
    for kind in (HOUR, GAMING_DAY):
        periods = Periods.read(kind, "Australia/Sydney", "02:30")
        moments = around + chance.integers(-3 * DAY_US, 3 * DAY_US, 500) // MINUTE * MINUTE
        starts, ends = periods.columns(moments)
        expected = [periods.around(int(moment)) for moment in moments]
        assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(one.start, one.end) for one in expected]
        assert [len(column) for column in periods.columns(moments[:0])] == [0, 0]


def test_settings_are_values() -> None:
    """Equal settings are equal, also when they come from another process."""
    periods = Periods.read(GAMING_DAY, "Australia/Sydney", "06:00")
    assert pickle.loads(pickle.dumps(periods)) == periods  # noqa: S301 - our own
    assert periods != Periods.read(GAMING_DAY, "Australia/Sydney", "06:01")


@pytest.mark.parametrize(
    ("zone", "day_start", "problem"),
    [
        ("Australia/Atlantis", "06:00", "no time zone 'Australia/Atlantis'"),
        ("Australia", "06:00", "no time zone 'Australia'"),
        ("../etc/passwd", "06:00", "no time zone"),
        ("", "06:00", "no time zone ''"),
        ("UTC", "24:00", "'24:00' is no time of day"),
        ("UTC", "6", "'6' is no time of day"),
        ("UTC", "", "'' is no time of day"),
    ],
)
def test_wrong_settings_are_named(zone: str, day_start: str, problem: str) -> None:
    """An unknown time zone, or a time of day that is none, is an error with the expected form."""
    with pytest.raises(PipelineError, match=problem):
        Periods.read(GAMING_DAY, zone, day_start)

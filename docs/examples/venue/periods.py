"""Hours and gaming days of a venue's local time: which one a moment is in, where clocks are changed too.

A period includes its end and excludes its start. A meter reading holds the counts *until* it was taken, so a reading at the
moment when a gaming day ends belongs to that day. Every moment is in exactly one period, and periods are in order:

* A gaming day begins each local date at the same local time. If the clock is put forward over that time, it begins at that
  moment. If the time comes twice, it begins at the first. So some days have 23 or 25 hours. A date that a zone left out (Samoa,
  30 December 2011) has no gaming day.
* An hour begins when the local clock shows a full hour or is changed. A repeated hour is two hours, and a skipped one does not
  exist. A change by half an hour (Lord Howe) begins an hour too.
"""

import datetime as dt
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from maxam.pipeline import PipelineError

HOUR: Final = "hour"
GAMING_DAY: Final = "gaming-day"
Kind = Literal["hour", "gaming-day"]
Micros = npt.NDArray[np.int64]  # moments, microseconds since 1970-01-01 UTC

_SECOND: Final = dt.timedelta(seconds=1)
_HOUR: Final = dt.timedelta(hours=1)
_DAY: Final = dt.timedelta(days=1)
_TICK: Final = dt.timedelta(microseconds=1)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_KEPT: Final = 16_384  # periods: nearly two years of hours


@final
@dataclass(frozen=True, slots=True)
class Period:
    """The moments after `start`, up to `end` and including it.

    Attributes:
        start: Microseconds since 1970-01-01 UTC.
        end: Likewise.
        date: The local date on which it begins; it identifies a gaming day.
    """

    start: int
    end: int
    date: dt.date


@final
@dataclass(frozen=True, slots=True)
class Periods:
    """How time is cut. Pickles small; equal settings are equal.

    Attributes:
        kind: `hour` or `gaming-day`.
        zone: Whose local time.
        day_start: When a gaming day begins; without a meaning for hours.
    """

    kind: Kind
    zone: ZoneInfo
    day_start: dt.time = dt.time()

    @classmethod
    def read(cls, kind: Kind, timezone: str, day_start: str) -> "Periods":
        """Make one of texts as a user writes them.

        Args:
            kind: `hour` or `gaming-day`.
            timezone: A name of the IANA time zone database.
            day_start: `HH:MM`, from 00:00 to 23:59.

        Raises:
            PipelineError: There is no such time zone, or that is no time.
        """
        try:
            zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the name of a folder of zones
            raise PipelineError(
                f"there is no time zone {timezone!r}; give a name of the IANA database, such as Australia/Brisbane or UTC"
            ) from error
        try:
            start = dt.datetime.strptime(day_start, "%H:%M").time()  # noqa: DTZ007 - a time of day has no zone
        except ValueError as error:
            raise PipelineError(f"{day_start!r} is no time of day; give HH:MM, such as 06:00") from error
        return cls(kind, zone, start)

    def around(self, moment: int) -> Period:
        """Return the period that holds a moment, given in microseconds since 1970-01-01 UTC, years 1 to 9998."""
        return _around(self, moment)

    def before(self, period: Period) -> Period:
        """Return the period that ends where `period` starts."""
        return self.around(period.start)

    def columns(self, moments: Micros) -> tuple[Micros, Micros]:
        """Return start and end of the period that holds each of the moments, in their order."""
        order = np.argsort(moments, kind="stable")
        ordered = moments[order]
        starts, ends = np.empty_like(ordered), np.empty_like(ordered)
        at = 0
        while at < len(ordered):
            period = self.around(int(ordered[at]))
            last = int(np.searchsorted(ordered, period.end, side="right"))
            starts[at:last], ends[at:last] = period.start, period.end
            at = last
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return starts[back], ends[back]


@lru_cache(maxsize=_KEPT)
def _around(periods: Periods, moment: int) -> Period:
    # A period holds its end, so the instant just before is used. From there on, starts belong to the period that they begin.
    just_before = _EPOCH + dt.timedelta(microseconds=moment) - _TICK
    if periods.kind == HOUR:
        start, end = _hour(periods.zone, just_before)
        return Period(_micros(start), _micros(end), start.astimezone(periods.zone).date())
    # The day after tomorrow's has certainly not begun; tomorrow's may have, where the clock was put back over midnight.
    date = just_before.astimezone(periods.zone).date() + 2 * _DAY
    after: dt.datetime | None = None
    while True:
        start_of_date = _day_start(periods, date)
        if start_of_date is not None:
            if start_of_date <= just_before and after is not None:
                return Period(_micros(start_of_date), _micros(after), date)
            after = start_of_date
        date -= _DAY


def _day_start(periods: Periods, date: dt.date) -> dt.datetime | None:
    """Return when a date's gaming day begins, in UTC. None if the zone left out the date."""
    wall = dt.datetime.combine(date, periods.day_start, periods.zone)
    first, second = (wall.replace(fold=fold).astimezone(dt.UTC) for fold in (0, 1))
    if first <= second:  # once, or twice: PEP 495 gives the first of the two with fold=0
        return first
    if first - second >= _DAY:
        return None
    return _change(
        periods.zone, second, first
    )  # left out: PEP 495 gives the moments as if the clock had not been changed


def _hour(zone: ZoneInfo, moment: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    """Return start and end of the hour which a moment lies in, start included; all in UTC."""
    wall = moment.astimezone(zone)
    start = moment - dt.timedelta(minutes=wall.minute, seconds=wall.second, microseconds=wall.microsecond)
    end = start + _HOUR
    if _offset(zone, start) != _offset(zone, moment):
        start = _change(zone, start, moment)
    # The clock may be put back or forward just before the end. At the end itself it shows a full hour or has been changed.
    if _offset(zone, end - _TICK) != _offset(zone, moment):
        end = _change(zone, moment, end)
    return start, end


def _change(zone: ZoneInfo, before: dt.datetime, after: dt.datetime) -> dt.datetime:
    """Return the first second with the offset that the zone has at `after`, which is another than at `before`."""
    low, high = (moment.replace(microsecond=0) for moment in (before, after))
    offset = _offset(zone, after)
    while high - low > _SECOND:
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        if _offset(zone, middle) == offset:
            high = middle
        else:
            low = middle
    return high


def _offset(zone: ZoneInfo, moment: dt.datetime) -> dt.timedelta | None:
    return moment.astimezone(zone).utcoffset()


def _micros(moment: dt.datetime) -> int:
    return (moment - _EPOCH) // _TICK

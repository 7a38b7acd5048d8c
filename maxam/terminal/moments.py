"""Points in time and durations as options: one spelling for all commands."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final, final

import click

from maxam.terminal.units import duration

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d+)?(?:e-?\d{1,2})?)(ms|s|m|h|d)?")
SINCE_HELP: Final = "15m, 2h or 7d ago, or a time in ISO 8601 such as 2026-11-21T09:30:00Z."


def _length(text: str, bare_unit: str) -> timedelta | None:
    """Return a duration; None if the text is none. A number alone is of `bare_unit`; without one it is no duration."""
    found = _DURATION.fullmatch(text)
    unit = (found[2] or bare_unit) if found else ""
    try:
        return timedelta(seconds=float(found[1]) * _UNITS[unit]) if found and unit else None
    except OverflowError:
        return None


def age(at: object, now: datetime) -> object:
    """Return a time in ISO 8601 as its distance from now, such as `5 m 3 s ago` or `in 12 d 4 h`. Anything else stays as it is."""
    if not isinstance(at, str):
        return at
    try:
        distance_s = (now - datetime.fromisoformat(at)).total_seconds()
    except (ValueError, TypeError):
        return at
    if distance_s < -1:  # clocks differ a little
        return f"in {duration(-distance_s)}"
    return f"{duration(max(0.0, distance_s))} ago" if distance_s >= 10 else f"{max(0.0, distance_s):.0f} s ago"


@final
class Moment(click.ParamType[datetime]):
    """A duration ago, or a time in ISO 8601 with an offset or Z; becomes an aware datetime in UTC."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:  # noqa: ANN401  # as click has it
        """Parse a time."""
        if isinstance(value, datetime):
            return value
        ago = _length(value, "")
        try:
            moment = datetime.now(UTC) - ago if ago is not None else datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is neither an age such as 15m nor a time in ISO 8601, such as 2026-11-21T18:30:00Z",
                param,
                ctx,
            )
        if moment.tzinfo is None:
            self.fail(f"{value!r} has no time zone: add Z for UTC, or an offset such as +10:00", param, ctx)
        if not 1 < moment.year < 9999:  # so that a zone or a microsecond more never leaves what Python counts
            self.fail(f"{value!r} is out of range", param, ctx)
        return moment.astimezone(UTC)


@final
class Duration(click.ParamType[timedelta]):
    """A length of time such as 30s, 15m, 2h or 7d."""

    name = "DURATION"

    def __init__(
        self,
        minimum: timedelta = timedelta(),
        maximum: timedelta = timedelta.max,
        *,
        zero: bool = False,
        bare: str = "",
    ) -> None:
        """Set the limits.

        Args:
            minimum: The shortest one.
            maximum: The longest one.
            zero: Zero is allowed.
            bare: Unit of a number alone, which former spellings have; empty refuses it.
        """
        self._minimum: Final = minimum
        self._maximum: Final = maximum
        self._zero: Final = zero
        self._bare: Final = bare

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:  # noqa: ANN401  # as click has it
        """Parse a duration."""
        if isinstance(value, timedelta):
            return value
        length = _length(value, self._bare)
        if length is None or (not length and not self._zero):
            self.fail(f"{value!r} is not a duration above zero, such as 500ms, 90s, 15m, 1h or 2d", param, ctx)
        if not self._minimum <= length <= self._maximum:
            self.fail(f"{value!r} is not from {_text(self._minimum)} to {_text(self._maximum)}", param, ctx)
        return length


def _text(length: timedelta) -> str:
    return f"{length.total_seconds():g}s"

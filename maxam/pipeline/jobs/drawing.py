"""Charts as SVG, without scripts. While the pointer is over a mark, a browser shows the figures of it."""

import html
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple, final

WIDE: Final = 1110
HALF: Final = 540  # width of a chart that shares its row
_HEIGHT: Final = 270
_TOP: Final = 8
_FOOT: Final = 42  # below the axis: two lines of text
_EDGE: Final = 22  # beside the axis: half a label
_CHARACTER: Final = 6.6  # mean width of one, at the size of the style sheet
_NAME_CHARACTER: Final = 7.6  # of names in the legend, which have many wide letters
_LINE: Final = 18  # height of a line of the legend
_BAR: Final = 22  # of one bar and the gap after it
_TICKS: Final = 5
_ROUND: Final = (1, 2, 5, 10)
_DAY_S: Final = 86_400
_STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(hours * 3600 for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY_S for days in (1, 2, 7, 14, 28, 91, 182, 364)),
)
_UNITS: Final = ((1e12, " T"), (1e9, " G"), (1e6, " M"))


class Curve(NamedTuple):
    """One line over time.

    Attributes:
        name: Its name, as text.
        values: One for each interval; None where there is none.
        colour: Its colour.
        dotted: It is dotted.
    """

    name: str
    values: Sequence[float | None]
    colour: str
    dotted: bool = False


class Times(NamedTuple):
    """The time axis of a chart: when each interval starts, in UTC, and how long it is. The end of the last one is its end."""

    starts: Sequence[datetime]
    interval_s: int
    width: int = HALF

    @property
    def intervals(self) -> int:
        """Return the number of intervals."""
        return len(self.starts)


def readable(value: float) -> str:
    """Return a number as people read it: three digits, and all digits of a whole number below a million."""
    for least, unit in _UNITS:
        if abs(value) >= least:
            return f"{Decimal(f'{value / least:.3g}'):,f}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{Decimal(f'{value:.3g}'):,f}"


def stacked(times: Times, curves: Sequence[Curve], unit: str) -> str:
    """Draw areas on each other, in steps; the first one is the lowest."""
    sums = [0.0] * times.intervals
    plot = _Plot(times, max(map(sum, zip(*[_known(each.values) for each in curves], strict=True)), default=0.0))
    for each in curves:
        below, sums = sums, [low + value for low, value in zip(sums, _known(each.values), strict=True)]
        edge = " ".join(f"{plot.x(at)},{plot.y(y)} {plot.x(at + 1)},{plot.y(y)}" for at, y in enumerate(sums))
        back = " ".join(
            f"{plot.x(at + 1)},{plot.y(below[at])} {plot.x(at)},{plot.y(below[at])}"
            for at in reversed(range(len(below)))
        )
        plot.parts.append(f'<polygon class="mark" points="{edge} {back}" fill="{each.colour}" fill-opacity=".55"/>')
    return plot.finished(curves, unit)


def lines(times: Times, curves: Sequence[Curve], unit: str = "", *, logarithmic: bool = False) -> str:
    """Draw lines, with a dot for a value without a neighbour.

    Args:
        times: The time axis.
        curves: The lines, at least one with a value.
        unit: Stands after each figure.
        logarithmic: The axis of values is logarithmic; values below a microsecond are drawn as that.
    """
    known = [value for each in curves for value in each.values if value is not None]
    plot = _Plot(times, max(known), min(known) if logarithmic else None)
    for each in curves:
        dash = ' stroke-dasharray="2 4"' if each.dotted else ""
        for stretch in _stretches(each.values):
            points = [f"{plot.x(at + 0.5)},{plot.y(value)}" for at, value in stretch]
            if len(points) > 1:
                line = f'points="{" ".join(points)}" fill="none" stroke="{each.colour}" stroke-width="2"'
                plot.parts.append(f'<polyline class="mark" {line}{dash}/>')
            else:
                x, y = points[0].split(",")
                plot.parts.append(f'<circle class="mark" cx="{x}" cy="{y}" r="2.5" fill="{each.colour}"/>')
    return plot.finished(curves, unit)


def columns(counts: Sequence[tuple[str, float]], colour: str, unit: str) -> str:
    """Draw a column for each count, side by side."""
    scale = _Scale(max(number for _, number in counts))
    left, bottom = scale.room, _HEIGHT - _FOOT
    step = (HALF - left - _EDGE) / len(counts)
    parts = scale.lines(left, HALF - _EDGE, bottom)
    for place, (name, number) in enumerate(counts):
        x, y = left + place * step, _at(number, scale.top, bottom)
        size = f'x="{x + step * 0.12:.1f}" y="{y}" width="{step * 0.76:.1f}" height="{bottom - y:.1f}"'
        parts.append(f'<rect class="mark" {size} fill="{colour}">{_title(f"{name}: {readable(number)} {unit}")}</rect>')
        parts.append(_text(x + step / 2, bottom + 16, name, "middle", small=True))
    return _svg(HALF, bottom + 24, parts)


def bars(counts: Sequence[tuple[str, str, float]], colour: str) -> str:
    """Draw a bar for each count, below each other: label, whole name, number."""
    left = max(len(label) for label, _, _ in counts) * _CHARACTER + 8
    most = max(number for *_, number in counts) or 1
    room = HALF - left - 56  # for the number after the longest bar
    parts = []
    for place, (label, name, number) in enumerate(counts):
        y = _TOP + place * _BAR
        length = room * number / most
        size = f'x="{left:.1f}" y="{y}" width="{length:.1f}" height="{_BAR - 5}"'
        parts.append(_text(left - 6, y + 13, label, "end", small=True))
        parts.append(f'<rect class="mark" {size} fill="{colour}">{_title(f"{name}: {readable(number)}")}</rect>')
        parts.append(_text(left + length + 5, y + 13, readable(number), small=True))
    return _svg(HALF, _TOP * 2 + _BAR * len(counts), parts)


def squares(rows: Sequence[Sequence[int]], row_names: Sequence[str], column_names: Sequence[str], colour: str) -> str:
    """Draw a square for each number, the darker the higher, with the number in it."""
    left, height = 44, 30
    step = (WIDE - left - _EDGE) / len(column_names)
    most = max(map(max, rows)) or 1
    parts = [_text(left + (at + 0.5) * step, 14, name, "middle") for at, name in enumerate(column_names)]
    for place, (row_name, row) in enumerate(zip(row_names, rows, strict=True)):
        y = 22 + place * height
        parts.append(_text(left - 8, y + 19, row_name, "end"))
        for at, number in enumerate(row):
            size = f'x="{left + at * step + 1:.1f}" y="{y + 1}" width="{step - 2:.1f}" height="{height - 2}"'
            shade = f'fill="{colour}" fill-opacity="{0.05 + 0.95 * number / most:.2f}"'
            about = _title(f"{row_name} {column_names[at]}:00 - {column_names[at]}:59: {number:,}")
            parts.append(f'<rect class="mark" {size} {shade}>{about}</rect>')
            light = ' fill="#fff"' if number * 2 > most else ""
            parts.append(_text(left + (at + 0.5) * step, y + 19, readable(number), "middle", small=True, style=light))
    return _svg(WIDE, 24 + height * len(rows), parts)


@final
class _Scale:
    """An axis of values that begins at 0.

    Attributes:
        room: Width of its labels.
        top: The highest value on it.
    """

    def __init__(self, most: float) -> None:
        self._step: Final = _step(most)
        self.top: Final = self._step * max(1, math.ceil(most / self._step))
        self._ticks: Final = [self._step * at for at in range(round(self.top / self._step) + 1)]
        self.room: Final = _room(self._ticks)

    def lines(self, left: float, right: float, bottom: float) -> list[str]:
        """Draw the grid and its labels."""
        return _grid([(tick, _at(tick, self.top, bottom)) for tick in self._ticks], left, right)


@final
class _Plot:
    """A chart over time that is being drawn.

    Attributes:
        parts: Its elements so far.
    """

    def __init__(self, times: Times, most: float, least: float | None = None) -> None:
        """Draw the axes: from 0, or logarithmic if the least value is given."""
        self._times: Final = times
        self._bottom: Final = _HEIGHT - _FOOT
        if least is None:
            self._scale: _Scale | None = _Scale(most)
            self._left = self._scale.room
            self.parts = self._scale.lines(self._left, times.width - _EDGE, self._bottom)
        else:
            self._scale = None
            self._low = math.floor(math.log10(max(least, 1e-6)))
            self._high = max(self._low + 1, math.ceil(math.log10(max(most, 1e-6))))
            ticks = [10.0**power for power in range(self._low, self._high + 1)]
            self._left = _room(ticks)
            self.parts = _grid([(tick, self.y(tick)) for tick in ticks], self._left, times.width - _EDGE)
        self._draw_times()

    def x(self, place: float) -> float:
        """Return where an interval begins."""
        return round(self._left + (self._times.width - self._left - _EDGE) * place / self._times.intervals, 1)

    def y(self, value: float) -> float:
        """Return where a value stands."""
        if self._scale is not None:
            return _at(value, self._scale.top, self._bottom)
        return _at(math.log10(max(value, 1e-6)) - self._low, self._high - self._low, self._bottom)

    def finished(self, curves: Sequence[Curve], unit: str) -> str:
        """Return the chart, with the figures of each interval and a legend."""
        starts = self._times.starts
        for at, start in enumerate(starts):
            found = [(each.name, each.values[at]) for each in curves]
            texts = [f"{name}: {readable(value)}{unit}" for name, value in found if value]
            if texts:
                about = _title("\n".join([f"{start:%Y-%m-%d %H:%M:%S}", *texts]))
                size = f'x="{self.x(at)}" y="{_TOP}" width="{self.x(at + 1) - self.x(at):.1f}" height="{self._bottom - _TOP}"'
                self.parts.append(f'<rect class="at" {size}>{about}</rect>')
        x, y = self._left, _HEIGHT
        for each in curves:
            length = len(each.name) * _NAME_CHARACTER + 46
            if x + length > self._times.width and x > self._left:
                x, y = self._left, y + _LINE
            dash = ' stroke-dasharray="2 4"' if each.dotted else ""
            line = f'x1="{x:.1f}" x2="{x + 22:.1f}" y1="{y}" y2="{y}" stroke="{each.colour}" stroke-width="4"'
            self.parts += (f"<line {line}{dash}/>", _text(x + 28, y + 4, each.name))
            x += length
        return _svg(self._times.width, y + _LINE // 2, self.parts)

    def _draw_times(self) -> None:
        first, interval_s = self._times.starts[0], self._times.interval_s
        span_s = interval_s * self._times.intervals
        wanted = self._times.width // 120
        step_s = next((step for step in _STEPS_S if span_s / step <= wanted), span_s)
        form = "%d %b" if step_s >= _DAY_S else "%H:%M:%S" if step_s % 60 else "%H:%M"
        above = "%Y" if step_s >= _DAY_S else "%d %b"
        shown = ""
        begin = first.astimezone(UTC).timestamp()
        tick = math.ceil(begin / step_s) * step_s
        while tick <= begin + span_s:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=tick)
            x = self.x((tick - begin) / interval_s)
            self.parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{self._bottom}"/>')
            self.parts.append(_text(x, self._bottom + 15, f"{moment:{form}}", "middle"))
            if f"{moment:{above}}" != shown:
                shown = f"{moment:{above}}"
                self.parts.append(_text(x, self._bottom + 30, shown, "middle"))
            tick += step_s


def _known(values: Iterable[float | None]) -> list[float]:
    return [value or 0.0 for value in values]


def _stretches(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Return the places and values that follow each other without a gap."""
    found: list[list[tuple[int, float]]] = [[]]
    for at, value in enumerate(values):
        if value is not None:
            found[-1].append((at, value))
        elif found[-1]:
            found.append([])
    return [each for each in found if each]


def _step(most: float) -> float:
    """Return the distance of ticks: a round number, of which at most _TICKS reach the highest value."""
    raw = most / _TICKS or 1 / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    return next((each for each in _ROUND if each * power >= raw * 0.999), 10) * power


def _at(value: float, top: float, bottom: float) -> float:
    return round(bottom - (bottom - _TOP) * value / top, 1)


def _room(ticks: Sequence[float]) -> float:
    return max(_EDGE, max(len(readable(tick)) for tick in ticks) * _CHARACTER + 10)


def _grid(ticks: Sequence[tuple[float, float]], left: float, right: float) -> list[str]:
    found = []
    for tick, y in ticks:
        found.append(f'<line class="grid" x1="{left:.1f}" x2="{right}" y1="{y}" y2="{y}"/>')
        found.append(_text(left - 6, y + 4, readable(tick), "end"))
    return found


def _text(x: float, y: float, text: str, anchor: str = "start", *, small: bool = False, style: str = "") -> str:
    kind = ' class="small"' if small else ""
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{place}{kind}{style}>{html.escape(text)}</text>'


def _title(text: str) -> str:
    return f"<title>{html.escape(text)}</title>"


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" style="min-width:{width * 0.7:.0f}px">{"".join(parts)}</svg>'

"""The report as one page that needs nothing but itself: no network, no other file."""

import html
from collections.abc import Sequence
from datetime import UTC
from typing import Final, NamedTuple

from maxam.pipeline.jobs.drawing import HALF, WIDE, Curve, Times, bars, columns, lines, readable, squares, stacked
from maxam.pipeline.jobs.figures import Figures, Line
from maxam.terminal.escaping import shown

_COLOURS: Final = ("#0b57d0", "#188038", "#e37400", "#9334e6", "#d01884", "#00838f", "#795548", "#5f6368", "#9e9e9e")
_BAD: Final = ("#b3261e", "#e8710a", "#f9ab00", "#a50e0e", "#7b1fa2", "#5f6368")
_NAME_CHARACTERS_MAX: Final = 60
_SHORT_CHARACTERS_MAX: Final = (
    38  # beside a bar, so that bars have most of the width, and with the figures of each interval
)
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# A page of figures from other people's names runs no script and makes no request.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """<style>
:root { --ink: #1f1f1f; --faint: #5f6368; --line: #e3e3e3; --paper: #fff; --page: #f6f8fb; --bad: #b3261e; --accent: #0b57d0 }
* { box-sizing: border-box }
body { margin: 0; font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--page) }
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 48px }
h1 { font-size: 26px; margin: 0 0 2px } h2 { font-size: 17px; margin: 0 0 2px }
p { margin: 0 } .faint { color: var(--faint); font-size: 13.5px }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(145px, 1fr)); gap: 12px; margin: 20px 0 }
.tile, section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px }
.tile b { display: block; font-size: 20px; white-space: nowrap; font-weight: 600; font-variant-numeric: tabular-nums }
.tile span { color: var(--faint); font-size: 13px }
.tile.bad b { color: var(--bad) }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 540px), 1fr)); gap: 16px }
section.wide { grid-column: 1 / -1 } .chart { overflow-x: auto; margin-top: 8px }
svg { display: block; width: 100%; height: auto } text { font-size: 12px; fill: var(--ink) } text[fill] { fill: #fff }
.small { font-size: 10.5px } .grid { stroke: #ececec } .at { fill: transparent } .at:hover { fill: #0000000d } rect.mark:hover { opacity: .8 }
.problems { border-left: 5px solid var(--bad); margin-bottom: 16px } .problems li { overflow-wrap: anywhere; margin: 4px 0 }
.none { color: var(--faint); padding: 36px 0; text-align: center }
@media print { body { background: #fff } section { break-inside: avoid } }
</style>"""


def render(figures: Figures) -> str:
    """Return the page as HTML."""
    sections = '<p class="none">The archive is empty.</p>'
    if figures.first_at:
        sections = "".join(map(_section, _charts(figures)))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>maxam: {_safe(figures.folder)}</title>
{_STYLE}</head><body><main>
<h1>What the broker accepted</h1><p class="faint">{_span(figures)}</p>
<div class="tiles">{_tiles(figures)}</div>{_problems(figures)}
<div class="charts">{sections}</div>
</main></body></html>
"""


class _Chart(NamedTuple):
    """One chart of the page.

    Attributes:
        title: Its heading.
        text: One sentence below it.
        drawing: As SVG; empty when there is nothing to show.
        wide: It is as wide as the page.
    """

    title: str
    text: str
    drawing: str
    wide: bool = False


def _section(chart: _Chart) -> str:
    drawn = '<p class="none">nothing to show</p>'
    if chart.drawing:
        drawn = f'<div class="chart" role="img" aria-label="{html.escape(chart.title)}">{chart.drawing}</div>'
    kind = ' class="wide"' if chart.wide else ""
    heading = f'<h2>{html.escape(chart.title)}</h2><p class="faint">{html.escape(chart.text)}</p>'
    return f"<section{kind}>{heading}{drawn}</section>"


def _charts(figures: Figures) -> list[_Chart]:
    every = f"over {_length(figures.interval_s)}"
    topics = {"with a value": figures.live, "ever seen": figures.seen}
    rejected_by = [(f"{name}: {how}", number) for name, how, number in figures.rejected_by]
    return [
        _Chart(
            "Changes a second",
            f"Accepted values and deletes by message type, mean {every}.",
            _areas(figures, figures.rates, _COLOURS, WIDE),
            wide=True,
        ),
        _Chart("Topics", "With a value, and those that ever had one.", _lines(figures, topics)),
        _Chart(
            "How old the values are",
            "Topics by the age of their value at the end of the archive.",
            columns(figures.ages, _COLOURS[0], "topics") if any(number for _, number in figures.ages) else "",
        ),
        _Chart(
            "How stale values were when they were taken",
            "Seconds at the ACK, of each durable subscription: median, and 99 of 100 (dotted)."
            " ACKs are recorded up to 0.1 s late.",
            _delivery(figures),
            wide=True,
        ),
        _Chart("Rejected a second", f"By result code, mean {every}.", _areas(figures, figures.rejected, _BAD, HALF)),
        _Chart("Who was rejected", "SENDs by principal and disposition.", _bars(rejected_by, _BAD[0])),
        _Chart("Hottest topics", "Changes of each.", _bars(figures.hot, _COLOURS[0])),
        _Chart(
            "Longest without an update",
            "Seconds since their value came, at the end of the archive.",
            _bars(figures.silent, _COLOURS[2]),
        ),
        _Chart("Publishers", "Changes of each principal.", _bars(figures.publishers, _COLOURS[1])),
        _Chart("Growth", "Bytes of all bodies so far.", _lines(figures, {"bytes": figures.growth_bytes})),
        _Chart("The week", "Changes by weekday and hour, UTC.", _week(figures), wide=True),
    ]


def _times(figures: Figures, width: int) -> Times:
    return Times(figures.starts, figures.interval_s, width)


def _areas(figures: Figures, by_name: Line, colours: Sequence[str], width: int) -> str:
    curves = [
        Curve(_label(name, _SHORT_CHARACTERS_MAX), values, colours[place % len(colours)])
        for place, (name, values) in enumerate(by_name.items())
        if any(values)
    ]
    return stacked(_times(figures, width), curves, "/s") if curves else ""


def _lines(figures: Figures, by_name: dict[str, list[int]]) -> str:
    if not any(any(values) for values in by_name.values()):
        return ""
    curves = [
        Curve(name, values, _COLOURS[place], dotted=place > 0) for place, (name, values) in enumerate(by_name.items())
    ]
    return lines(_times(figures, HALF), curves)


def _delivery(figures: Figures) -> str:
    curves = [
        Curve(f"{_label(each.name, _SHORT_CHARACTERS_MAX)}, {name}", values, _COLOURS[place], dotted)
        for place, each in enumerate(figures.delivery)
        for name, values, dotted in (("median", each.median_s, False), ("99 %", each.p99_s, True))
    ]
    if not any(value is not None for curve in curves for value in curve.values):
        return ""
    return lines(_times(figures, WIDE), curves, " s", logarithmic=True)


def _bars(counts: Sequence[tuple[str, float]], colour: str) -> str:
    labelled = [(_label(name, _SHORT_CHARACTERS_MAX), _label(name), number) for name, number in counts]
    return bars(labelled, colour) if labelled else ""


def _week(figures: Figures) -> str:
    hours = [f"{hour:02}" for hour in range(24)]
    return "" if figures.week is None else squares(figures.week, _DAYS, hours, _COLOURS[0])


def _tiles(figures: Figures) -> str:
    lost = sum(problem.lost for problem in figures.problems)
    rejected = sum(number for *_, number in figures.rejected_by)
    tiles = [
        (f"{figures.changes:,}", "changes accepted", False),
        (f"{figures.deletes:,}", "of them deletes", False),
        (f"{figures.topics:,}", "topics with a value", False),
        (f"{readable(_rate(figures))}/s", "changes, mean", False),
        (f"{figures.body_bytes / 1e6:,.1f} MB", "of bodies", False),
        (f"{rejected:,}", "SENDs rejected", rejected > 0),
        (f"{lost:,}", "places where the archive cannot be read", lost > 0),
    ]
    return "".join(
        f'<div class="tile{" bad" if bad else ""}"><b>{value}</b><span>{text}</span></div>'
        for value, text, bad in tiles
    )


def _problems(figures: Figures) -> str:
    if not figures.problems:
        return ""
    lines = "".join(f"<li>{_safe(problem.text)}</li>" for problem in figures.problems)
    return f'<section class="problems"><h2>What is wrong with the archive</h2><ul>{lines}</ul></section>'


def _span(figures: Figures) -> str:
    made = f"Made {figures.made_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC of {_safe(figures.folder)}."
    if figures.first_at is None or figures.last_at is None:
        return made
    span = f"{figures.first_at:%Y-%m-%d %H:%M:%S} to {figures.last_at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{span}, one step of a line is {_length(figures.interval_s)}. {made}"


def _rate(figures: Figures) -> float:
    if figures.first_at is None or figures.last_at is None:
        return 0.0
    return figures.changes / max((figures.last_at - figures.first_at).total_seconds(), 1.0)


def _length(seconds: int) -> str:
    for unit_s, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds % unit_s == 0:
            return f"one {name}" if seconds == unit_s else f"{seconds // unit_s} {name}s"
    return "one second" if seconds == 1 else f"{seconds} seconds"


def _safe(text: str) -> str:
    return html.escape(shown(text))


def _label(text: str, characters_max: int = _NAME_CHARACTERS_MAX) -> str:
    """Return a client's text, the middle left out if it is long."""
    text = shown(text)
    if len(text) > characters_max:  # the end of a destination matters most
        kept = characters_max * 2 // 5
        text = f"{text[:kept]}…{text[kept + 1 - characters_max :]}"
    return text

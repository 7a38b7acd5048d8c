"""The report as one page that needs nothing but itself: no network, no other file."""

import html
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final, NamedTuple

from maxam.pipeline.jobs.figures import Figures, Line
from maxam.terminal.escaping import shown

_COLOURS: Final = ("#0b57d0", "#188038", "#e37400", "#9334e6", "#d01884", "#00838f", "#795548", "#5f6368", "#9e9e9e")
_BAD: Final = ("#b3261e", "#e8710a", "#f9ab00", "#a50e0e", "#7b1fa2", "#5f6368")
_NAME_CHARACTERS_MAX: Final = 60
_BAR_CHARACTERS_MAX: Final = 38  # of what stands beside a bar, so that the bars have most of the width
_TICKS_MAX: Final = 5  # of a chart half as wide as the page
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# A page of figures from other people's names runs only its own scripts and makes no request.
_POLICY: Final = "; ".join(
    ("default-src 'none'", "script-src 'unsafe-inline'", "style-src 'unsafe-inline'", "img-src data: blob:")
)
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
section.wide { grid-column: 1 / -1 } .chart { min-height: 300px }
.problems { border-left: 5px solid var(--bad); margin-bottom: 16px } .problems li { overflow-wrap: anywhere; margin: 4px 0 }
.none { color: var(--faint); padding: 36px 0; text-align: center }
@media print { body { background: #fff } section { break-inside: avoid } }
</style>"""
_DRAW: Final = """<script>
for (const chart of document.querySelectorAll(".chart")) {
  const figure = JSON.parse(document.getElementById(chart.id + "-data").textContent);
  Plotly.newPlot(chart, figure.data, figure.layout, {responsive: true, displayModeBar: false});
}
</script>"""


def render(figures: Figures) -> str:
    """Return the page as HTML.

    Raises:
        ImportError: plotly, part of maxam[pipeline], is not installed.
    """
    plotly_script = import_module("plotly.offline").get_plotlyjs()
    sections, data = '<p class="none">The archive is empty.</p>', ""
    if figures.first_at:
        drawn = [_section(f"chart-{place}", chart) for place, chart in enumerate(_charts(figures))]
        sections, data = ("".join(texts) for texts in zip(*drawn, strict=True))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>maxam: {_safe(figures.folder)}</title>
{_STYLE}</head><body><main>
<h1>What the broker accepted</h1><p class="faint">{_span(figures)}</p>
<div class="tiles">{_tiles(figures)}</div>{_problems(figures)}
<div class="charts">{sections}</div>
</main>{data}<script>{plotly_script}</script>{_DRAW}</body></html>
"""


_Json = dict[str, Any]


class _Chart(NamedTuple):
    """One chart of the page.

    Attributes:
        title: Its heading.
        text: One sentence below it.
        traces: Plotly's data; empty when there is nothing to show.
        layout: Plotly's layout, beside that of all charts.
        wide: It is as wide as the page.
    """

    title: str
    text: str
    traces: list[_Json]
    layout: _Json = {}  # never changed
    wide: bool = False


def _section(name: str, chart: _Chart) -> tuple[str, str]:
    """Return a chart as HTML, and its data as JSON."""
    data = ""
    drawn = '<p class="none">nothing to show</p>'
    if chart.traces:
        layout = {**_LAYOUT, **chart.layout}
        for axis in ("xaxis", "yaxis"):
            layout[axis] = {**chart.layout.get(axis, {}), **_LAYOUT[axis]}
        text = json.dumps({"data": chart.traces, "layout": layout}, default=datetime.isoformat, separators=(",", ":"))
        text = text.replace("<", "\\u003c")
        data = f'<script type="application/json" id="{name}-data">{text}</script>'
        drawn = f'<div class="chart" id="{name}" role="img" aria-label="{html.escape(chart.title)}"></div>'
    kind = ' class="wide"' if chart.wide else ""
    heading = f'<h2>{html.escape(chart.title)}</h2><p class="faint">{html.escape(chart.text)}</p>'
    return f"<section{kind}>{heading}{drawn}</section>", data


def _charts(figures: Figures) -> list[_Chart]:
    every = f"over {_length(figures.interval_s)}"
    topics = {"with a value": figures.live, "ever seen": figures.seen}
    rejected_by = [(f"{name}: {how}", number) for name, how, number in figures.rejected_by]
    return [
        _Chart(
            "Changes a second",
            f"Accepted values and deletes by message type, mean {every}.",
            _areas(figures, figures.rates, _COLOURS),
            _OVER_TIME,
            wide=True,
        ),
        _Chart("Topics", "With a value, and those that ever had one.", _lines(figures, topics), _OVER_TIME),
        _Chart(
            "How old the values are",
            "Topics by the age of their value at the end of the archive.",
            _columns(figures.ages),
        ),
        _Chart(
            "How stale values were when they were taken",
            "Age at the ACK, of each durable subscription: median, and 99 of 100 (dotted). ACKs are recorded up to 0.1 s late.",
            _delivery(figures),
            {**_OVER_TIME, "yaxis": {"type": "log", "title": {"text": "seconds"}, "dtick": 1}},
            wide=True,
        ),
        _Chart(
            "Rejected a second",
            f"By result code, mean {every}.",
            _areas(figures, figures.rejected, _BAD),
            _OVER_TIME,
        ),
        _bars("Who was rejected", "SENDs by principal and disposition.", rejected_by, _BAD[0]),
        _bars("Hottest topics", "Changes of each.", figures.hot, _COLOURS[0]),
        _bars(
            "Longest without an update",
            "Seconds since their value came, at the end of the archive.",
            figures.silent,
            _COLOURS[2],
        ),
        _bars("Publishers", "Changes of each principal.", figures.publishers, _COLOURS[1]),
        _Chart(
            "Growth",
            "Bytes of all bodies so far.",
            _lines(figures, {"bytes": figures.growth_bytes}),
            {**_OVER_TIME, "showlegend": False},
        ),
        _Chart(
            "The week",
            "Changes by weekday and hour, UTC.",
            _week(figures),
            {"yaxis": {"autorange": "reversed"}},
            wide=True,
        ),
    ]


_AXIS: Final = {"gridcolor": "#ececec", "zerolinecolor": "#d0d0d0", "automargin": True}
_LAYOUT: Final[_Json] = {
    "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1f1f1f"},
    "hoverlabel": {"namelength": -1},
    "xaxis": _AXIS,
    "yaxis": {**_AXIS, "rangemode": "tozero"},
    "legend": {"orientation": "h", "y": -0.18},
    "bargap": 0.25,
}
_OVER_TIME: Final = {"hovermode": "x unified", "showlegend": True}


def _line(figures: Figures, name: str, values: Sequence[float | None], hover: str, **style: object) -> _Json:
    line = {"type": "scatter", "x": figures.starts, "y": values, "name": name, "mode": "lines"}
    return {**line, "hovertemplate": hover, **style}


def _areas(figures: Figures, lines: Line, colours: Sequence[str]) -> list[_Json]:
    found = []
    for place, (name, values) in enumerate(lines.items()):
        style = {"width": 0.8, "color": colours[place % len(colours)], "shape": "hvh"}
        rates = [round(value, 4) for value in values]
        found.append(_line(figures, _label(name), rates, "%{y:.3~s}/s", stackgroup="all", line=style))
    return found


def _lines(figures: Figures, lines: dict[str, list[int]]) -> list[_Json]:
    if not any(any(values) for values in lines.values()):
        return []
    found = []
    for place, (name, values) in enumerate(lines.items()):
        style = {"width": 2, "color": _COLOURS[place], "dash": "dot" if place else "solid"}
        found.append(_line(figures, name, values, "%{y:,}", line=style))
    return found


def _delivery(figures: Figures) -> list[_Json]:
    found = []
    for place, each in enumerate(figures.delivery):
        for name, values, dash in (("median", each.median_s, "solid"), ("99 %", each.p99_s, "dot")):
            style = {
                "mode": "lines+markers",
                "marker": {"size": 4},
                "line": {"width": 1.6, "color": _COLOURS[place], "dash": dash},
            }
            found.append(_line(figures, f"{_label(each.name)}, {name}", values, "%{y:.3~s}s", **style))
    return found


def _columns(counts: Sequence[tuple[str, int]]) -> list[_Json]:
    if not any(number for _, number in counts):
        return []
    names, numbers = zip(*counts, strict=True)
    hover = "%{y:,} topics<extra></extra>"
    return [{"type": "bar", "x": names, "y": numbers, "marker": {"color": _COLOURS[0]}, "hovertemplate": hover}]


def _bars(title: str, text: str, counts: Sequence[tuple[str, float]], colour: str) -> _Chart:
    if not counts:
        return _Chart(title, text, [])
    places = list(range(len(counts)))  # two names may be cut to the same label
    bars = {
        "type": "bar",
        "x": [number for _, number in counts],
        "y": places,
        "customdata": [_label(name) for name, _ in counts],
        "orientation": "h",
        "marker": {"color": colour},
        "hovertemplate": "%{customdata}: %{x:,}<extra></extra>",
    }
    labels = [_label(name, _BAR_CHARACTERS_MAX) for name, _ in counts]
    names = {"tickvals": places, "ticktext": labels, "tickfont": {"size": 11}, "autorange": "reversed"}
    layout = {
        "height": max(300, 40 + 22 * len(counts)),
        "xaxis": {"tickangle": 0, "nticks": _TICKS_MAX},
        "yaxis": names,
    }
    return _Chart(title, text, [bars], layout)


def _week(figures: Figures) -> list[_Json]:
    if figures.week is None:
        return []
    return [
        {
            "type": "heatmap",
            "z": figures.week,
            "x": [f"{hour:02}" for hour in range(24)],
            "y": _DAYS,
            "colorscale": [[0, "#f1f5fd"], [1, _COLOURS[0]]],
            "xgap": 2,
            "ygap": 2,
            "hovertemplate": "%{y} %{x}:00 - %{x}:59: %{z:,}<extra></extra>",
        }
    ]


def _tiles(figures: Figures) -> str:
    lost = sum(problem.lost for problem in figures.problems)
    rejected = sum(number for *_, number in figures.rejected_by)
    tiles = [
        (f"{figures.changes:,}", "changes accepted", False),
        (f"{figures.deletes:,}", "of them deletes", False),
        (f"{figures.topics:,}", "topics with a value", False),
        (f"{_per_second(_rate(figures))}/s", "changes, mean", False),
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


def _per_second(rate: float) -> str:
    """Return a rate as people read it: three digits, and all digits before the point."""
    return f"{rate:,.3g}" if rate < 1000 else f"{rate:,.0f}"


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
    """Return a client's text for plotly, which takes some HTML in labels."""
    text = shown(text)
    if len(text) > characters_max:  # the end of a destination matters most
        kept = characters_max * 2 // 5
        text = f"{text[:kept]}…{text[kept + 1 - characters_max :]}"
    return html.escape(text, quote=False)

"""The report as one page that needs nothing but itself: no network, no other file."""

import html
from collections.abc import Sequence
from datetime import UTC
from importlib import import_module
from typing import Any, Final

from maxam.admin.escaping import shown
from maxam.pipeline.figures import Figures, Line

_COLOURS: Final = ("#0b57d0", "#188038", "#e37400", "#9334e6", "#d01884", "#00838f", "#795548", "#5f6368", "#9e9e9e")
_BAD: Final = ("#b3261e", "#e8710a", "#f9ab00", "#a50e0e", "#7b1fa2", "#5f6368")
_NAME_CHARACTERS_MAX: Final = 60
_BAR_CHARACTERS_MAX: Final = 38  # of what stands beside a bar, so that the bars have most of the width
_TICKS_MAX: Final = 5  # of a chart half as wide as the page
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# A page of figures from other people's names runs nothing but what stands in it, and asks nobody for anything.
_POLICY: Final = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_STYLE: Final = """
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
"""
_DRAW: Final = """
for (const chart of document.querySelectorAll(".chart")) {
  const figure = JSON.parse(document.getElementById(chart.id + "-data").textContent);
  Plotly.newPlot(chart, figure.data, figure.layout, {responsive: true, displayModeBar: false});
}
"""


def render(figures: Figures) -> str:
    """Return the page as HTML.

    Raises:
        ImportError: plotly, part of maxam[pipeline], is not installed.
    """
    graphs = import_module("plotly.graph_objects")
    plotly_script = import_module("plotly.offline").get_plotlyjs()
    sections = [_Section(graphs, place, *each) for place, each in enumerate(_charts(graphs, figures))]
    data = "".join(section.data for section in sections)
    body = (
        "".join(section.html for section in sections)
        if figures.first_at
        else '<p class="none">The archive is empty.</p>'
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>maxam: {_safe(figures.folder)}</title>
<style>{_STYLE}</style></head><body><main>
<h1>What the broker accepted</h1><p class="faint">{_span(figures)}</p>
<div class="tiles">{_tiles(figures)}</div>{_problems(figures)}
<div class="charts">{body}</div>
</main>{data}<script>{plotly_script}</script><script>{_DRAW}</script></body></html>
"""


Chart = tuple[
    str, str, Any, bool
]  # title, what it says, figure or None when there is nothing to show, as wide as the page


class _Section:
    """One chart as HTML, and its data as JSON."""

    def __init__(self, graphs: Any, place: int, title: str, says: str, figure: Any, wide: bool) -> None:  # noqa: ANN401  # plotly has no types
        name = f"chart-{place}"
        self.data = ""
        drawn = '<p class="none">nothing to show</p>'
        if figure is not None:
            figure.update_layout(**_layout(graphs))
            text = figure.to_json().replace("<", "\\u003c")
            self.data = f'<script type="application/json" id="{name}-data">{text}</script>'
            drawn = f'<div class="chart" id="{name}" role="img" aria-label="{html.escape(title)}"></div>'
        kind = ' class="wide"' if wide else ""
        self.html = (
            f'<section{kind}><h2>{html.escape(title)}</h2><p class="faint">{html.escape(says)}</p>{drawn}</section>'
        )


def _charts(graphs: Any, figures: Figures) -> list[Chart]:  # noqa: ANN401  # plotly has no types
    every = f"over {_length(figures.interval_s)}"
    return [
        (
            "Changes a second",
            f"Accepted values and deletes by message type, mean {every}.",
            _areas(graphs, figures, figures.rates, _COLOURS),
            True,
        ),
        (
            "Topics",
            "With a value, and those that ever had one.",
            _lines(graphs, figures, {"with a value": figures.live, "ever seen": figures.seen}),
            False,
        ),
        (
            "How old the values are",
            "Topics by the age of their value at the end of the archive.",
            _columns(graphs, figures.ages),
            False,
        ),
        (
            "How stale values were when they were taken",
            "Age at the ACK, of each durable subscription: median, and 99 of 100 (dotted). ACKs are recorded up to 0.1 s late.",
            _delivery(graphs, figures),
            True,
        ),
        ("Rejected a second", f"By result code, mean {every}.", _areas(graphs, figures, figures.rejected, _BAD), False),
        (
            "Who was rejected",
            "SENDs by principal and disposition.",
            _bars(graphs, [(f"{name}: {how}", number) for name, how, number in figures.rejected_by], _BAD[0]),
            False,
        ),
        ("Hottest topics", "Changes of each.", _bars(graphs, figures.hot, _COLOURS[0]), False),
        (
            "Longest without an update",
            "Seconds since their value came, at the end of the archive.",
            _bars(graphs, figures.silent, _COLOURS[2]),
            False,
        ),
        ("Publishers", "Changes of each principal.", _bars(graphs, figures.publishers, _COLOURS[1]), False),
        (
            "Growth",
            "Bytes of all bodies so far.",
            _lines(graphs, figures, {"bytes": figures.growth_bytes}),
            False,
        ),
        ("The week", "Changes by weekday and hour, UTC.", _week(graphs, figures), True),
    ]


def _layout(graphs: Any) -> dict[str, Any]:  # noqa: ANN401  # plotly has no types
    axis = {"gridcolor": "#ececec", "zerolinecolor": "#d0d0d0", "automargin": True}
    return {
        "template": graphs.layout.Template(),  # plotly's default is 5 KB a chart
        "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1f1f1f"},
        "hoverlabel": {"namelength": -1},
        "xaxis": axis,
        "yaxis": {**axis, "rangemode": "tozero"},
        "legend": {"orientation": "h", "y": -0.18},
        "bargap": 0.25,
    }


def _areas(graphs: Any, figures: Figures, lines: Line, colours: Sequence[str]) -> Any:  # noqa: ANN401  # plotly has no types
    if not lines:
        return None
    traces = [
        graphs.Scatter(
            x=figures.starts,
            y=[round(value, 4) for value in values],
            name=_label(name),
            stackgroup="all",
            mode="lines",
            line={"width": 0.8, "color": colours[place % len(colours)], "shape": "hvh"},
            hovertemplate="%{y:.3~s}/s",
        )
        for place, (name, values) in enumerate(lines.items())
    ]
    return graphs.Figure(traces, {"hovermode": "x unified", "showlegend": True})


def _lines(graphs: Any, figures: Figures, lines: dict[str, list[int]]) -> Any:  # noqa: ANN401  # plotly has no types
    if not any(any(values) for values in lines.values()):
        return None
    traces = [
        graphs.Scatter(
            x=figures.starts,
            y=values,
            name=name,
            mode="lines",
            line={"width": 2, "color": _COLOURS[place], "dash": "dot" if place else "solid"},
            hovertemplate="%{y:,}",
        )
        for place, (name, values) in enumerate(lines.items())
    ]
    return graphs.Figure(traces, {"hovermode": "x unified", "showlegend": len(lines) > 1})


def _delivery(graphs: Any, figures: Figures) -> Any:  # noqa: ANN401  # plotly has no types
    if not figures.delivery:
        return None
    traces = []
    for place, line in enumerate(figures.delivery):
        for name, values, dash in (("median", line.median_s, "solid"), ("99 %", line.p99_s, "dot")):
            traces.append(
                graphs.Scatter(
                    x=figures.starts,
                    y=values,
                    name=f"{_label(line.name)}, {name}",
                    mode="lines+markers",
                    connectgaps=False,
                    marker={"size": 4},
                    line={"width": 1.6, "color": _COLOURS[place], "dash": dash},
                    hovertemplate="%{y:.3~s}s",
                )
            )
    figure = graphs.Figure(traces, {"hovermode": "x unified", "showlegend": True})
    figure.update_yaxes(type="log", title="seconds", dtick=1)
    return figure


def _columns(graphs: Any, counts: Sequence[tuple[str, int]]) -> Any:  # noqa: ANN401  # plotly has no types
    if not any(number for _, number in counts):
        return None
    names, numbers = zip(*counts, strict=True)
    bars = graphs.Bar(x=names, y=numbers, marker={"color": _COLOURS[0]}, hovertemplate="%{y:,} topics<extra></extra>")
    return graphs.Figure(bars)


def _bars(graphs: Any, counts: Sequence[tuple[str, float]], colour: str) -> Any:  # noqa: ANN401  # plotly has no types
    if not counts:
        return None
    names = [_label(name) for name, _ in counts]
    labels = [_label(name, _BAR_CHARACTERS_MAX) for name, _ in counts]
    bars = graphs.Bar(
        x=[number for _, number in counts],
        y=list(range(len(counts))),  # two names may be cut to the same label
        customdata=names,
        orientation="h",
        marker={"color": colour},
        hovertemplate="%{customdata}: %{x:,}<extra></extra>",
    )
    figure = graphs.Figure(bars)
    figure.update_layout(height=max(300, 40 + 22 * len(counts)))
    figure.update_xaxes(tickangle=0, nticks=_TICKS_MAX)
    figure.update_yaxes(tickvals=list(range(len(counts))), ticktext=labels, tickfont={"size": 11}, autorange="reversed")
    return figure


def _week(graphs: Any, figures: Figures) -> Any:  # noqa: ANN401  # plotly has no types
    if figures.week is None:
        return None
    heat = graphs.Heatmap(
        z=figures.week,
        x=[f"{hour:02}" for hour in range(24)],
        y=list(_DAYS),
        colorscale=[[0, "#f1f5fd"], [1, _COLOURS[0]]],
        xgap=2,
        ygap=2,
        hovertemplate="%{y} %{x}:00 - %{x}:59: %{z:,}<extra></extra>",
    )
    figure = graphs.Figure(heat)
    figure.update_yaxes(autorange="reversed")
    return figure


def _tiles(figures: Figures) -> str:
    lost = sum(problem.lost for problem in figures.problems)
    rejected = sum(number for *_, number in figures.rejected_by)
    tiles = [
        (f"{figures.changes:,}", "changes accepted", False),
        (f"{figures.deletes:,}", "of them deletes", False),
        (f"{figures.topics:,}", "topics with a value", False),
        (f"{_rate(figures):,.3g}/s", "changes, mean", False),
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
    """Return a client's text for plotly, which takes some HTML in labels."""
    text = shown(text)
    if len(text) > characters_max:  # the end of a destination says most
        kept = characters_max * 2 // 5
        text = f"{text[:kept]}…{text[kept + 1 - characters_max :]}"
    return html.escape(text, quote=False)

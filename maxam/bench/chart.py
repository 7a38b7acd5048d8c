"""Charts as SVG or PNG: of one run its rates, staleness second by second and its distribution; of several brokers how fresh and
how fast they are, side by side.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from maxam.bench.errors import LoadError
from maxam.bench.histogram import Histogram
from maxam.bench.report import Report

KINDS: Final = (".svg", ".png")
FRESHNESS: Final = "freshness.svg"
THROUGHPUT: Final = "throughput.svg"
_SHARES: Final = (0.5, 0.9, 0.99)
OURS: Final = "maxam"
_COLOURS: Final[Mapping[str, str]] = {OURS: "#0b57d0", "rabbitmq": "#d9541e", "activemq": "#7b3fa0"}
_INK: Final = "#222222"
_FAINT: Final = "#666666"
_TICKS_MS: Final = (0.1, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
_LABEL_GAP: Final = 0.2  # decades between two labels of lines that end close together


@dataclass(frozen=True, slots=True)
class AgeLine:
    """What a consumer of one broker got: the median age of each second."""

    label: str
    ages_ms: Sequence[float | None]
    broker: str  # its colour
    dashed: bool

    @property
    def seen(self) -> list[tuple[int, float]]:
        """The seconds, from 1, in which it got something, and the ages."""
        return [(n, age_ms) for n, age_ms in enumerate(self.ages_ms, 1) if age_ms]


@dataclass(frozen=True, slots=True)
class Bars:
    """One figure of several brokers, each with label, colour and value."""

    title: str
    bars: Sequence[tuple[str, str, float]]


def check(path: Path) -> None:
    """Refuse before the run what could not be drawn after it.

    Raises:
        LoadError: The kind of file is unknown, its folder is not there, or matplotlib is not installed.
    """
    if path.suffix.lower() not in KINDS:
        raise LoadError(f"{path} is neither .svg nor .png; name one of the two")
    if not path.parent.is_dir():
        raise LoadError(f"there is no folder {path.parent} for the chart")
    _pyplot()


def draw(report: Report, path: Path) -> None:
    """Draw a run.

    Raises:
        LoadError: The file cannot be written.
    """
    pyplot = _pyplot()
    figure, (rates, staleness, distribution) = pyplot.subplots(3, 1, figsize=(8, 10), layout="constrained")
    seconds = range(1, len(report.sends_by_second) + 1)
    rates.plot(seconds, report.sends_by_second, label="SEND/s")
    for group in report.groups:
        rates.plot(seconds, group.messages_by_second, label=f"{group.name}: MESSAGE/s")
        for share in _SHARES:
            values = [_ms(histogram, share) for histogram in group.staleness_by_second]
            staleness.plot(seconds, values, label=f"{group.name}: p{share * 100:g}")
        shares = [n / 1000 for n in range(1000)]
        distribution.plot(
            [_ms(group.staleness, share) for share in shares], [100 * share for share in shares], label=group.name
        )
    rates.set(xlabel="second of the measurement", ylabel="per second", ylim=(0, None))
    staleness.set(xlabel="second of the measurement", ylabel="age of the value when taken up, ms", ylim=(0, None))
    distribution.set(xlabel="age of the value when taken up, ms", ylabel="% of values", xscale="log")
    for axes in (rates, staleness, distribution):
        axes.grid(visible=True, alpha=0.3)
        if axes.has_data():
            axes.legend(fontsize="small")
    plan = report.plan
    asked = f"{plan.per_second:,.0f}/s" if plan.per_second else "maximum rate"
    figure.suptitle(f"{plan.syntax.name}: {plan.publishers} publishers, {plan.topics:,} topics, {asked}")
    _save(figure, path)


def draw_freshness(lines: Sequence[AgeLine], path: Path) -> None:
    """Draw the age of what a slow consumer gets over time, on a logarithmic scale, a line for each broker.

    Raises:
        LoadError: The file cannot be written.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(10.5, 5.6), layout="constrained")
    drawn = sorted((line for line in lines if line.seen), key=lambda line: line.seen[-1][1])
    for line in drawn:
        axes.plot(
            *zip(*line.seen, strict=True),
            color=_COLOURS[line.broker],
            linewidth=3.2 if line.broker == OURS else 1.8,
            linestyle=(0, (4, 2)) if line.dashed else "solid",
        )
    last = max((len(line.ages_ms) for line in lines), default=1)
    for line, at in zip(drawn, apart([math.log10(line.seen[-1][1]) for line in drawn], _LABEL_GAP), strict=True):
        axes.annotate(
            f"{line.label}: {_age(line.seen[-1][1])}",
            (last, 10**at),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=_COLOURS[line.broker],
            fontweight="bold" if line.broker == OURS else "normal",
            annotation_clip=False,
        )
    ages_ms = [age_ms for line in drawn for _, age_ms in line.seen]
    lowest_ms, highest_ms = min(ages_ms, default=1.0) / 1.6, max(ages_ms, default=1.0) * 1.6
    shown = [tick for tick in _TICKS_MS if lowest_ms <= tick <= highest_ms]
    axes.set(yscale="log", ylim=(lowest_ms, highest_ms), xlim=(0, last), xlabel="seconds under load")
    axes.set_yticks(shown, [_age(tick) for tick in shown])
    axes.minorticks_off()
    axes.set_ylabel("median age of what it receives, log scale")
    axes.grid(visible=True, axis="y", alpha=0.3)
    _plain(axes)
    axes.set_title(
        "5,000 updates a second over 100 topics; the consumer takes 2 ms for each message",
        loc="left",
        fontsize=10.5,
        color=_FAINT,
        pad=12,
    )
    _heading(figure, "How old is what a slow consumer receives?")
    _save(figure, path)


def draw_throughput(panels: Sequence[Bars], path: Path) -> None:
    """Draw rates as bars, a panel for each figure.

    Raises:
        LoadError: The file cannot be written.
    """
    pyplot = _pyplot()
    height = 0.9 + sum(0.5 * len(panel.bars) + 0.6 for panel in panels)
    heights = [len(panel.bars) + 1 for panel in panels]
    figure, found = pyplot.subplots(
        len(panels), 1, figsize=(9, height), layout="constrained", squeeze=False, height_ratios=heights
    )
    for panel, axes in zip(panels, found[:, 0], strict=True):
        values = [value for _, _, value in panel.bars]
        bars = axes.barh(
            [label for label, _, _ in panel.bars],
            values,
            color=[_COLOURS[broker] for _, broker, _ in panel.bars],
            height=0.66,
        )
        axes.bar_label(bars, [_rate(value) for value in values], padding=6, color=_INK)
        axes.invert_yaxis()
        axes.set_xlim(0, max(values) * 1.12)
        axes.set_xticks([])
        axes.set_title(panel.title, loc="left", fontsize=10.5, color=_FAINT)
        _plain(axes)
        axes.spines["bottom"].set_visible(False)
    _heading(figure, "Throughput of a broker on one core")
    _save(figure, path)


def apart(positions: Sequence[float], gap: float) -> list[float]:
    """Return positions at least so far apart, in their order, and around where they were; `positions` ascend."""
    groups: list[list[float]] = []  # positions of labels that touch; each group stands around the mean of its own
    for position in positions:
        groups.append([position])
        while len(groups) > 1 and _first(groups[-1], gap) - _first(groups[-2], gap) < len(groups[-2]) * gap:
            touching = groups.pop()
            groups[-1] += touching
    return [_first(group, gap) + n * gap for group in groups for n in range(len(group))]


def _first(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) - (len(group) - 1) * gap / 2


def _age(age_ms: float) -> str:
    return f"{age_ms / 1000:.3g} s" if age_ms >= 1000 else f"{age_ms:.3g} ms"


def _rate(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.0f}/s"


def _plain(axes: Any) -> None:  # noqa: ANN401  # of matplotlib
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)
    axes.tick_params(colors=_INK)
    axes.tick_params(axis="y", length=0)


def _heading(figure: Any, text: str) -> None:  # noqa: ANN401  # of matplotlib
    figure.suptitle(text, x=0.01, ha="left", fontsize=14, fontweight="bold", color=_INK)


def _save(figure: Any, path: Path) -> None:  # noqa: ANN401  # of matplotlib
    try:
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise LoadError(f"the chart {path} cannot be written: {error.strerror}") from error
    finally:
        _pyplot().close(figure)


def _ms(histogram: Histogram, share: float) -> float:
    return histogram.quantile_ns(share) / 1e6 if histogram.count else float("nan")


def _pyplot() -> Any:  # noqa: ANN401  # matplotlib is there or not
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ImportError as error:
        raise LoadError("charts need matplotlib: install maxam with its extra, maxam[bench]") from error

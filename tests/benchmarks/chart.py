"""Charts of several brokers side by side: how fresh and how fast they are."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from maxam.bench.chart import pyplot, save

FRESHNESS: Final = "freshness.svg"
THROUGHPUT: Final = "throughput.svg"
OURS: Final = "maxam"
_COLOURS: Final[Mapping[str, str]] = {
    OURS: "#0b57d0",
    "rabbitmq": "#d9541e",
    "activemq": "#7b3fa0",
    "artemis": "#1b7f4b",
}
_INK: Final = "#222222"
_FAINT: Final = "#666666"
_TICKS_MS: Final = (0.1, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
_SPREAD_ALPHA: Final = 0.18
_LABEL_GAP: Final = 0.2  # decades between two labels of lines that end close together


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure of several runs."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """Return the spread of those that are there; None if there are none."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None


@dataclass(frozen=True, slots=True)
class AgeLine:
    """The values that a consumer of one broker got: the median age of each second."""

    label: str
    ages_ms: Sequence[Spread | None]
    broker: str  # its colour
    dashed: bool

    @property
    def seen(self) -> list[tuple[int, Spread]]:
        """The seconds, from 1, in which it got something, and the ages."""
        return [(n, age_ms) for n, age_ms in enumerate(self.ages_ms, 1) if age_ms and age_ms.lowest]


@dataclass(frozen=True, slots=True)
class Bars:
    """One figure of several brokers, each with label, name and spread."""

    title: str
    bars: Sequence[tuple[str, str, Spread]]


def draw_freshness(lines: Sequence[AgeLine], path: Path) -> None:
    """Draw the age of what a slow consumer gets over time, on a logarithmic scale, a line for each broker.

    A line is the median of the runs. The band around it reaches from the lowest to the highest run.

    Raises:
        LoadError: The file cannot be written.
    """
    drawing = pyplot()
    figure, axes = drawing.subplots(figsize=(10.5, 5.6), layout="constrained")
    drawn = sorted((line for line in lines if line.seen), key=lambda line: line.seen[-1][1].median)
    for line in drawn:
        seconds = [second for second, _ in line.seen]
        axes.fill_between(
            seconds,
            [age.lowest for _, age in line.seen],
            [age.highest for _, age in line.seen],
            color=_COLOURS[line.broker],
            alpha=_SPREAD_ALPHA,
            linewidth=0,
        )
        axes.plot(
            seconds,
            [age.median for _, age in line.seen],
            color=_COLOURS[line.broker],
            linewidth=3.2 if line.broker == OURS else 1.8,
            linestyle=(0, (4, 2)) if line.dashed else "solid",
        )
    last = max((len(line.ages_ms) for line in lines), default=1)
    for line, at in zip(drawn, apart([math.log10(line.seen[-1][1].median) for line in drawn], _LABEL_GAP), strict=True):
        axes.annotate(
            f"{line.label}: {_age(line.seen[-1][1].median)}",
            (last, 10**at),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=_COLOURS[line.broker],
            fontweight="bold" if line.broker == OURS else "normal",
            annotation_clip=False,
        )
    ages_ms = [age_ms for line in drawn for _, age_ms in line.seen]
    lowest_ms = min((age.lowest for age in ages_ms), default=1.0) / 1.6
    highest_ms = max((age.highest for age in ages_ms), default=1.0) * 1.6
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
    save(figure, path)


def draw_throughput(panels: Sequence[Bars], path: Path) -> None:
    """Draw medians of rates as bars, with the lowest and the highest run, and a panel for each figure.

    Raises:
        LoadError: The file cannot be written.
    """
    drawing = pyplot()
    height = 0.9 + sum(0.5 * len(panel.bars) + 0.6 for panel in panels)
    heights = [len(panel.bars) + 1 for panel in panels]
    figure, found = drawing.subplots(
        len(panels), 1, figsize=(9, height), layout="constrained", squeeze=False, height_ratios=heights
    )
    for panel, axes in zip(panels, found[:, 0], strict=True):
        spreads = [spread for _, _, spread in panel.bars]
        bars = axes.barh(
            [label for label, _, _ in panel.bars],
            [spread.median for spread in spreads],
            xerr=[[s.median - s.lowest for s in spreads], [s.highest - s.median for s in spreads]],
            error_kw={"ecolor": _INK, "elinewidth": 1.2, "capsize": 3},
            color=[_COLOURS[name.split("-")[0]] for _, name, _ in panel.bars],
            height=0.66,
        )
        axes.bar_label(bars, [_rate(spread.median) for spread in spreads], padding=6, color=_INK)
        axes.invert_yaxis()
        axes.set_xlim(0, max(spread.highest for spread in spreads) * 1.12)
        axes.set_xticks([])
        axes.set_title(panel.title, loc="left", fontsize=10.5, color=_FAINT)
        _plain(axes)
        axes.spines["bottom"].set_visible(False)
    _heading(figure, "Throughput of a broker on one core")
    save(figure, path)


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


def _plain(axes: Any) -> None:  # of matplotlib
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)
    axes.tick_params(colors=_INK)
    axes.tick_params(axis="y", length=0)


def _heading(figure: Any, text: str) -> None:  # of matplotlib
    figure.suptitle(text, x=0.01, ha="left", fontsize=14, fontweight="bold", color=_INK)

"""Plots of costs that grow: one figure of several panels, each with the line that is claimed beside what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal

from maxam.bench.chart import pyplot
from maxam.bench.errors import LoadError

Claim = Literal["constant", "linear"]
_HEIGHT_INCHES: Final = 3.8
_COLUMNS: Final = 2
_PANEL_INCHES: Final = 5.0
_LINE_POINTS: Final = 100  # of a drawn claim: a straight line is bent where axes are logarithmic


@dataclass(frozen=True, slots=True)
class Curve:
    """One measured line."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    claim: Claim | None = None
    colour: int = 0  # the same in each panel


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    y_label: str  # with its unit
    curves: Sequence[Curve]
    y_log: bool = False


def line(claim: Claim, xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return the line a + b x of a claim, as (a, b).

    `constant` is the first point's height. `linear` is the straight line with the least squares of relative errors, so that
    no point counts more for being high.
    """
    if claim == "constant" or len(set(xs)) == 1:
        return ys[0], 0.0
    weights = [1 / y**2 for y in ys]
    total = sum(weights)
    x_mean = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
    y_mean = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
    slope = sum(w * (x - x_mean) * (y - y_mean) for w, x, y in zip(weights, xs, ys, strict=True)) / sum(
        w * (x - x_mean) ** 2 for w, x in zip(weights, xs, strict=True)
    )
    return y_mean - slope * x_mean, slope


def farthest(curve: Curve) -> float:
    """Return by how much the measured line lies above the claimed one at most, as a share; below 0 when it is under it."""
    if curve.claim is None:
        raise ValueError("no line is claimed")
    a, b = line(curve.claim, curve.xs, curve.ys)
    return max(y / (a + b * x) - 1 for x, y in zip(curve.xs, curve.ys, strict=True))


def check(folder: Path) -> None:
    """Refuse before the runs what could not be drawn after them.

    Raises:
        LoadError: The folder is not there, or matplotlib is not installed.
    """
    if not folder.is_dir():
        raise LoadError(f"there is no folder {folder} for the plots")
    pyplot()


def draw(path: Path, title: str, x_label: str, panels: Sequence[Panel]) -> None:
    """Draw a figure; x is logarithmic, and what stands at 0 is left to the table.

    Raises:
        LoadError: The file cannot be written.
    """
    drawing = pyplot()
    # The same figures give the same file, without a date or random names. Text stays text.
    with drawing.rc_context({"svg.hashsalt": "maxam", "svg.fonttype": "none", "font.size": 10}):
        rows = -(-len(panels) // _COLUMNS)
        size = (_PANEL_INCHES * _COLUMNS, _HEIGHT_INCHES * rows)
        figure, grid = drawing.subplots(rows, _COLUMNS, figsize=size, layout="constrained", squeeze=False)
        for axes, panel in zip_longest(grid.flat, panels):
            if panel is None:
                axes.set_visible(False)
            else:
                _panel(axes, panel, x_label)
        figure.suptitle(title)
        try:
            figure.savefig(path, metadata={"Date": None})
        except OSError as error:
            raise LoadError(f"the plot {path} cannot be written: {error.strerror}") from error
        finally:
            drawing.close(figure)


def _panel(axes: Any, panel: Panel, x_label: str) -> None:  # matplotlib's
    for curve in panel.curves:
        shown = [(x, y) for x, y in zip(curve.xs, curve.ys, strict=True) if x > 0]
        xs, ys = [x for x, _ in shown], [y for _, y in shown]
        colour = f"C{curve.colour}"
        axes.plot(xs, ys, marker="o", color=colour, label=curve.label)
        if curve.claim is not None:
            a, b = line(curve.claim, xs, ys)
            along = [xs[0] * (xs[-1] / xs[0]) ** (n / (_LINE_POINTS - 1)) for n in range(_LINE_POINTS)]
            axes.plot(
                along,
                [a + b * x for x in along],
                linestyle="--",
                linewidth=1,
                color=colour,
                alpha=0.6,
                label=curve.claim,
            )
    axes.set_xscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(panel.y_label)
    if panel.y_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.15 * max((y for curve in panel.curves for y in curve.ys), default=1.0))
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small")

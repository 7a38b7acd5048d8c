"""A chart of one run as SVG or PNG: its rates, staleness second by second, and the distribution of staleness."""

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from maxam.bench.errors import LoadError
from maxam.bench.histogram import Histogram
from maxam.bench.report import Report

KINDS: Final = (".svg", ".png")
_SHARES: Final = (0.5, 0.9, 0.99)


def check(path: Path) -> None:
    """Refuse before the run what could not be drawn after it.

    Raises:
        LoadError: The kind of file is unknown, its folder is not there, or matplotlib is not installed.
    """
    if path.suffix.lower() not in KINDS:
        raise LoadError(f"{path} is neither .svg nor .png; name one of the two")
    if not path.parent.is_dir():
        raise LoadError(f"there is no folder {path.parent} for the chart")
    pyplot()


def draw(report: Report, path: Path) -> None:
    """Draw a run.

    Raises:
        LoadError: The file cannot be written.
    """
    drawing = pyplot()
    figure, (rates, staleness, distribution) = drawing.subplots(3, 1, figsize=(8, 10), layout="constrained")
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
    save(figure, path)


def save(figure: Any, path: Path) -> None:  # noqa: ANN401  # of matplotlib
    """Write a figure and close it.

    Raises:
        LoadError: The file cannot be written.
    """
    try:
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise LoadError(f"the chart {path} cannot be written: {error.strerror}") from error
    finally:
        pyplot().close(figure)


def _ms(histogram: Histogram, share: float) -> float:
    return histogram.quantile_ns(share) / 1e6 if histogram.count else float("nan")


def pyplot() -> Any:  # noqa: ANN401  # matplotlib is there or not
    """Return matplotlib's pyplot, which draws to files.

    Raises:
        LoadError: matplotlib is not installed.
    """
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ImportError as error:
        raise LoadError("charts need matplotlib: install maxam with its extra, maxam[bench]") from error

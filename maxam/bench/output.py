"""Output for people: progress while a run goes on, tables of figures afterwards."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from maxam.bench.report import QUANTILES, GroupReport, Report, quantiles_ms
from maxam.bench.run import Progress as RunProgress
from maxam.bench.run import Show

Figures = Mapping[str, float | None]
_FILE_CHARACTERS: Final = 120
_RATES_OVER_S: Final = 0.9  # load processes report their counts every quarter of a second


@contextmanager
def progress(console: Console, title: str) -> Iterator[Show | None]:
    """Show how far a run is, if anybody watches."""
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description:12}"), BarColumn(), TextColumn("{task.fields[rates]}"))
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(title, total=1.0, rates="")
        before = RunProgress("", 0.0, 1.0, 0, 0)
        rates = ""

        def show(now: RunProgress) -> None:
            nonlocal before, rates
            span_s = now.elapsed_s - before.elapsed_s
            if span_s >= _RATES_OVER_S:
                sent, messages = (now.sent - before.sent) / span_s, (now.messages - before.messages) / span_s
                rates = f"{sent:,.0f} SEND/s  {messages:,.0f} MESSAGE/s"
                before = now
            bars.update(task, completed=min(1.0, now.elapsed_s / now.span_s), rates=f"{now.phase:10}  {rates}")

        yield show


def console(to_stderr: bool) -> Console:
    """Return where tables go; a file gets lines that are not broken for a screen."""
    found = Console(stderr=to_stderr)
    return found if found.is_terminal else Console(stderr=to_stderr, width=_FILE_CHARACTERS)


def print_reports(console: Console, title: str, reports: Sequence[Report], further: Sequence[Figures] = ()) -> None:
    """Print the figures of one run, or the median of several with the lowest and the highest."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    runs = len(reports)
    table.add_column(f"median of {runs} runs (lowest to highest)" if runs > 1 else "", justify="right")
    rows: list[dict[str, float | None]] = []
    for number, report in enumerate(reports):
        percentiles = _spread_figures(report) if runs > 1 else {}
        rows.append({**figures(report), **percentiles, **(further[number] if further else {})})
    for name in dict.fromkeys(name for row in rows for name in row):
        table.add_row(name, spread([row.get(name) for row in rows]))
    console.print(table)
    print_times(console, reports)
    print_remarks(console, reports)


def print_times(console: Console, reports: Sequence[Report]) -> None:
    """Print percentiles, of several runs their medians."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("ms")
    for name in QUANTILES:
        table.add_column(name.replace("_", "."), justify="right")
    rows: dict[str, list[dict[str, float] | None]] = {}
    for report in reports:
        rows.setdefault("SEND to RECEIPT", []).append(quantiles_ms(report.receipt))
        rows.setdefault("intended to written", []).append(quantiles_ms(report.lag))
        for group in report.groups:
            rows.setdefault(f"{group.name}: latency", []).append(quantiles_ms(group.latency))
            rows.setdefault(f"{group.name}: staleness", []).append(quantiles_ms(group.staleness))
            rows.setdefault(f"{group.name}: staleness with drain", []).append(quantiles_ms(group.staleness_with_drain))
    for title, found in rows.items():
        seen = [row for row in found if row is not None]
        if seen:
            table.add_row(title, *[rounded(statistics.median([row[name] for row in seen])) for name in QUANTILES])
    if table.row_count:
        console.print(table)


def print_remarks(console: Console, reports: Sequence[Report]) -> None:
    """Print warnings and problems, each once."""
    for style, word, texts in (
        ("yellow", "warning", [text for report in reports for text in report.warnings]),
        ("red", "problem", [text for report in reports for text in report.problems]),
    ):
        for text in dict.fromkeys(texts):
            console.print(f"{word}: {text}", style=style, markup=False, highlight=False, soft_wrap=True)


def figures(report: Report) -> dict[str, float | None]:
    """Return what is not a percentile."""
    result: dict[str, float | None] = {"SEND/s": report.sends_per_s}
    for group in report.groups:
        result |= _group_figures(group)
    for name in dict.fromkeys(name for name, _ in report.uses):
        result[f"load, {name}: % of a core"] = 100 * max(use.busy for found, use in report.uses if found == name)
    return result


def _group_figures(group: GroupReport) -> dict[str, float | None]:
    return {
        f"{group.name}: MESSAGE/s": group.messages_per_s,
        f"{group.name}: values never seen, %": 100 * group.conflated,
        f"{group.name}: on the last value, of {group.connections}": group.connections - group.unsettled,
        f"{group.name}: last value after the last SEND, ms": group.settled_after_send_ms,
    }


def _spread_figures(report: Report) -> dict[str, float | None]:
    """Return the percentiles whose spread is worth a line."""
    found = [("SEND to RECEIPT", report.receipt)]
    for group in report.groups:
        found += [(f"{group.name}: latency", group.latency), (f"{group.name}: staleness", group.staleness)]
    return {
        f"{name}, {quantile} ms": None if (times := quantiles_ms(histogram)) is None else times[quantile]
        for name, histogram in found
        for quantile in ("p50", "p99")
    }


def spread(values: Sequence[float | None]) -> str:
    """Return the median of the values, with the lowest and the highest if there are several."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return "-"
    median = rounded(statistics.median(known))
    return median if len(known) == 1 else f"{median} ({rounded(known[0])} to {rounded(known[-1])})"


def rounded(value: float) -> str:
    """Return a figure as it is shown."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.2f}"

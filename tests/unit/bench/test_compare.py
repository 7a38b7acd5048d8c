"""The tables and refusals of the benchmark `compare`; no broker is started."""

import io
import math
import os
from itertools import pairwise

import pytest
from click.testing import CliRunner
from rich.console import Console

from maxam.bench.errors import LoadError
from tests.benchmarks import chart, compare
from tests.benchmarks.main import main
from tests.benchmarks.suite import Outcome, shared_out


def _results() -> compare.Results:
    results = compare.Results()
    for ours, theirs in ((300.0, 10.0), (100.0, None), (200.0, 30.0)):
        results.note("maxam", Outcome({compare.ONE_TO_ONE: ours}))
        results.note("rabbitmq", Outcome({compare.ONE_TO_ONE: theirs}))
    results.ages_ms["maxam"] = [[12.0, 14.0], [10.0, None], [13.0, 12.0]]
    return results


def _printed(results: compare.Results) -> list[list[str]]:
    console = Console(width=120, record=True, file=io.StringIO())
    compare.print_results(console, list(compare.CONTENDERS), results)
    return [line.split() for line in console.export_text().splitlines() if line.strip()]


def test_a_figure_is_a_median_with_its_extremes_and_our_ratio() -> None:
    """A run without the figure does not count; the ratio is our median over that of the peer, who stands below us."""
    lines = _printed(_results())
    ours = next(n for n, line in enumerate(lines) if line[-4:-3] == ["maxam"])
    assert lines[ours] == ["one", "to", "one,", "SEND/s", "maxam", "200", "100", "300"]
    assert lines[ours + 1] == ["rabbitmq", "20", "10", "30", "10"]


def test_a_figure_that_no_run_has_is_a_dash() -> None:
    """A peer that never held every last value has no time for it, and no ratio."""
    results = _results()
    results.note("activemq", Outcome({compare.ONE_TO_ONE: None}))
    assert ["activemq", "-", "-", "-"] in _printed(results)


def test_findings_are_told_with_whose_they_are() -> None:
    """Each once, however many runs had it."""
    results = _results()
    results.problems += [("rabbitmq", "it fell behind")] * 2
    assert [line for line in _printed(results) if "behind" in line] == [
        ["finding,", "rabbitmq:", "it", "fell", "behind"]
    ]


def test_the_chart_has_the_median_of_each_second() -> None:
    """Over the runs that received something in it."""
    assert _results().age_medians_ms() == {"maxam": [12.0, 13.0]}


@pytest.mark.parametrize("runs", [1, 2, 5, 7])
def test_every_broker_has_its_turn_in_each_run(runs: int) -> None:
    """All are in each run, and the first of one is the second of the run before."""
    names = ["a", "b", "c", "d", "e"]
    orders = [compare.turn(names, number) for number in range(runs)]
    assert all(sorted(order) == names for order in orders)
    assert all(later[0] == order[1] for order, later in pairwise(orders))


@pytest.mark.parametrize(
    "positions", [[], [1.0], [1.0, 1.0], [0.0, 0.1, 0.15, 3.0], [0.0, 0.2, 0.2, 0.2, 0.35], [0, 9]]
)
def test_labels_stand_apart(positions: list[float]) -> None:
    """In their order and at least so far from each other; those that have room stay where they are, and so does the middle."""
    gap = 0.2
    placed = chart.apart(positions, gap)
    assert all(after - before >= gap - 1e-9 for before, after in pairwise(placed))
    assert math.isclose(sum(placed), sum(positions), abs_tol=1e-9)
    if all(after - before >= gap for before, after in pairwise(positions)):
        assert placed == pytest.approx(positions)


def test_a_peer_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is measured: what to run, and how to do without it."""
    missing = compare.Contender("Missing", compare.CONTENDERS["maxam"].start, lambda: False)
    monkeypatch.setattr(compare, "CONTENDERS", {**compare.CONTENDERS, "rabbitmq": missing})
    with pytest.raises(LoadError, match=r"rabbitmq.* deploy/install-bench-peers .*--brokers maxam"):
        compare.Comparison(["maxam", "rabbitmq"], 1.0, 1, 0.0, as_json=False)


def test_a_broker_shares_no_core_with_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one core there is nothing to compare."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    with pytest.raises(LoadError, match="core"):
        compare.Comparison(["maxam"], 1.0, 1, 0.0, as_json=False)


def test_a_broker_has_the_core_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load has the others; one that we may not use is refused, and the text names those that we may, and the option."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1, 2, 3})
    assert shared_out(2) == (frozenset({2}), frozenset({1, 3}))
    with pytest.raises(LoadError, match=r"core 0 .*\[1, 2, 3\].*--broker-core"):
        shared_out(0)


def test_unknown_brokers_are_refused() -> None:
    """The text names those that there are."""
    result = CliRunner().invoke(main, ["compare", "--brokers", "mosquitto"])
    assert result.exit_code == 2
    assert "activemq-last-value" in result.output

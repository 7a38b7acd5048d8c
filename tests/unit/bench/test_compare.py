"""The tables and refusals of the benchmark `compare`; no broker is started."""

import io
import math
import os
import platform
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from maxam.bench.errors import LoadError
from tests.benchmarks import chart, compare, machine
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
    """Over the runs that received something in it, with the lowest and the highest of them."""
    assert _results().age_medians_ms() == {"maxam": [chart.Spread(12.0, 10.0, 13.0), chart.Spread(13.0, 12.0, 14.0)]}


def test_the_spread_of_nothing_is_none() -> None:
    """A figure that no run has is not drawn."""
    assert chart.Spread.of([None, None]) is None


@pytest.mark.slow
def test_both_charts_are_drawn(tmp_path: Path) -> None:
    """With runs that differ, with a second without values, and with contenders that share a colour."""
    pytest.importorskip("matplotlib")
    results = _results()
    for number, name in enumerate(compare.contenders()):
        for rate in (3.0, 1.0, 2.0):
            results.note(name, Outcome({compare.ONE_TO_TWENTY: rate}))
        results.ages_ms[name] = [[3.0**number, None], [3.3**number, None]]
    compare.draw(results, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {chart.FRESHNESS, chart.THROUGHPUT}


def test_a_yardstick_has_no_ratio() -> None:
    """It shows what the machine did before each measurement, and compares no brokers."""
    results = compare.Results()
    for name in ("maxam", "rabbitmq"):
        results.note(name, Outcome({"latency, yardstick: fdatasync, us": 180.0}))
    assert _printed(results)[-1] == ["rabbitmq", "180", "180", "180"]


def test_the_machine_is_printed_with_the_figures() -> None:
    """Interpreter, its build flags and the disk, as they are measured where the test runs."""
    found = machine.machine()
    assert platform.python_version() in str(found["interpreter"])
    assert found["fdatasync_p50_us"] <= found["fdatasync_p99_us"]  # type: ignore[operator]
    console = Console(width=120, record=True, file=io.StringIO())
    compare.print_results(console, [], compare.Results(found))
    assert str(found["interpreter"]) in console.export_text()


@pytest.mark.slow
def test_each_yardstick_takes_some_time() -> None:
    """A piece of work that takes none compares no machines."""
    taken = [*machine.yardsticks(None).values(), machine.handshake_us(None)]
    assert all(value is not None and value > 0 for value in taken)


def test_artemis_without_its_folder_is_not_installed(tmp_path: Path) -> None:
    """The text has the option that gives it; a folder with its program is taken."""
    with pytest.raises(LoadError, match="--artemis"):
        compare.Comparison(["artemis"], 1.0, 1, 0.0, as_json=False, found=compare.contenders(tmp_path))
    program = tmp_path / "bin/artemis"
    program.parent.mkdir()
    program.touch(0o700)
    assert compare.contenders(tmp_path)["artemis-fsync"].installed()


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


def test_a_peer_that_is_not_installed_is_told() -> None:
    """Before anything is measured: what to run, and how to do without it."""
    missing = compare.Contender("Missing", compare.CONTENDERS["maxam"].start, lambda: False)
    found = {**compare.CONTENDERS, "rabbitmq": missing}
    with pytest.raises(LoadError, match=r"rabbitmq.* deploy/install-bench-peers .*--brokers maxam"):
        compare.Comparison(["maxam", "rabbitmq"], 1.0, 1, 0.0, as_json=False, found=found)


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

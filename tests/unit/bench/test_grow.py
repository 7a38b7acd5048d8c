"""The names, lines and tables of the benchmark `grow`; nothing is connected."""

import io
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from maxam.bench.output import Figures
from maxam.bench.syntax import MAXAM
from maxam.config import Limits
from maxam.globs import compile_glob
from tests.benchmarks import grow
from tests.benchmarks.plots import Claim, Curve, farthest, line

TOPIC = MAXAM.topic(123)


@pytest.mark.parametrize("topics", [10, 1000, 10_000, 1_000_000])
def test_scattered_names_are_the_same_ones_in_another_order(topics: int) -> None:
    """Each of N topics has one number, and neighbours are apart by more than a hundredth of them."""
    names = grow.Scattered(MAXAM.name, "{n}", MAXAM.glob, MAXAM.wildcards, topics=topics)
    sample = range(min(topics, 10_000))
    found = [int(names.topic(number)) for number in sample]
    assert len(set(found)) == len(found)
    assert all(0 <= number < topics for number in found)
    if topics > 100:
        assert all(abs(after - before) > topics // 100 for before, after in pairwise(found))


@pytest.mark.parametrize(
    ("name", "matches"), [(grow.names_apart, False), (grow.names_alike, False), (grow.names_all, True)]
)
def test_globs_of_one_kind_differ_and_match_all_or_nothing(name: grow.Name, matches: bool) -> None:
    """Ten thousand globs of a kind are ten thousand texts; each matches all of the load's topics, or none."""
    texts = [name(number) for number in range(10_000)]
    assert len(set(texts)) == len(texts)
    for text in texts[::97]:
        assert compile_glob(text, Limits()).matches(TOPIC) is matches


def test_globs_without_a_segment_of_their_own_share_all_literals_with_the_topics() -> None:
    """No index by literal segments distinguishes them from a glob that matches."""
    assert set(compile_glob(grow.names_alike(1), Limits()).literals) <= set(TOPIC.replace("/", ".").split("."))
    assert not set(compile_glob(grow.names_apart(1), Limits()).literals) <= set(TOPIC.replace("/", ".").split("."))


@pytest.mark.parametrize(
    ("claim", "ys", "expected"),
    [("constant", [2.0, 3.0, 1.0], 0.5), ("linear", [3.0, 21.0, 201.0], 0.0), ("linear", [1.0, 10.0, 10_000.0], 1.0)],
)
def test_the_distance_from_the_claimed_line(claim: Claim, ys: list[float], expected: float) -> None:
    """A point on the line has no distance. From a constant it is the share above the first point."""
    measured = Curve("", [1.0, 10.0, 100.0], ys, claim)
    if expected == 1.0:
        assert farthest(measured) > 0.5
    else:
        assert farthest(measured) == pytest.approx(expected, abs=1e-9)


def test_a_straight_line_is_found() -> None:
    """The fit of points on a line is that line."""
    assert line("linear", [1.0, 10.0, 100.0], [3.0, 21.0, 201.0]) == pytest.approx((1.0, 2.0))


AXIS = grow.Axis(
    "Title",
    "things",
    (grow.Series("one", (0, 10, 1000), lambda _grower, _x: {}, {grow.SEND_US: "constant"}),),
    {grow.SEND_US: False, grow.P50: True},
)
FOUND: dict[tuple[str, int], list[Figures]] = {
    ("one", 0): [{grow.SEND_US: 2.0}],
    ("one", 10): [{grow.SEND_US: 2.0, grow.P50: 1.0}, {grow.SEND_US: 4.0, grow.P50: None}],
    ("one", 1000): [{grow.SEND_US: 1.5, grow.P50: 0.5}],
}


def test_a_table_holds_medians_and_the_distance_from_the_claim() -> None:
    """A figure that a point lacks is a dash; several runs give their median."""
    out = io.StringIO()
    grow.print_axis(Console(file=out, width=120), AXIS, FOUND)
    shown = [" ".join(row.split()) for row in out.getvalue().splitlines()]
    for row in ("things 0 10 1,000", "processor us/SEND 2 3 1.50", "latency p50 ms - 1 0.500"):
        assert row in shown
    assert "processor us/SEND: claimed constant, +50% above it at most" in shown


@pytest.mark.slow
def test_the_same_figures_draw_the_same_plot(tmp_path: Path) -> None:
    """A plot holds its labels as text, and nothing of the day on which it was drawn."""
    pytest.importorskip("matplotlib")
    grow.draw_axis(tmp_path / "a.svg", AXIS, FOUND)
    grow.draw_axis(tmp_path / "b.svg", AXIS, FOUND)
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn == (tmp_path / "b.svg").read_text()
    for text in ("Title", "things", "processor us/SEND", "constant", "one"):
        assert f">{text}<" in drawn


def test_every_axis_can_be_asked_for() -> None:
    """The names of the command are those of the axes, whose claims are about figures that are drawn or printed."""
    assert tuple(grow.axes()) == grow.NAMES

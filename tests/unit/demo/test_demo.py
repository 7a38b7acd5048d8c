"""The demo's machines, bodies and figures, without a gateway."""

import io
import random
from pathlib import Path

import pytest
from rich.console import Console

from maxam.avro.registry import Registry
from maxam.demo.bodies import Bodies, read_registry
from maxam.demo.floor import Floor
from maxam.demo.machines import Machine
from maxam.demo.screen import Screen
from maxam.failover.measures import Published, Received
from maxam.records import Validation

NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def registry() -> Registry:
    """Load the shipped schemas."""
    return read_registry(Path(__file__).parents[3] / "schemas")


def test_everything_a_machine_tells_fits_the_shipped_schemas(registry: Registry) -> None:
    """Values that machines of all three protocols publish over many moments of play are accepted by the rules, in all three encodings."""
    bodies = Bodies(registry)
    encodings = set()
    deletions = 0
    for number in range(12):
        machine = Machine(number, random.Random(number))  # noqa: S311 - a game
        told = machine.switch_on(NOW_MS)
        for step in range(600):
            moment = machine.play(NOW_MS + step)
            if step % 20 == 0 or len(moment) > 2:  # a sample of the ordinary, and all that is not
                told += moment
        for each in told:
            body = bodies.encode(each.destination, each.value)
            rule = registry.rule_for(each.destination)
            assert rule is not None
            judged = rule.validate(each.destination.encode(), (), body)
            assert isinstance(judged, Validation), judged
            assert judged.tombstone == (each.value is None)
            deletions += each.value is None
            encodings.add(judged.encoding)
            if each.value is not None:
                assert bodies.decode(each.destination, body)["from"]["egmElectronicId"] == machine.gmid
    assert encodings == {"datum", "single-object", "envelope"}
    assert deletions > 0


def test_the_floor_shows_money_alike_whatever_the_protocol(registry: Registry) -> None:
    """The rows made of the values of each protocol show the same order of amounts, in cents."""
    bodies = Bodies(registry)
    floor = Floor(bodies)
    for number in range(3):
        for told in Machine(number, random.Random(1)).switch_on(NOW_MS):  # noqa: S311 - a game
            floor.take(told.destination, bodies.encode(told.destination, told.value))
    rows = floor.rows()
    assert [row.gmid for row in rows] == ["10000", "10001", "10002"]
    for row in rows:
        assert row.money_in == pytest.approx(rows[0].money_in, abs=5)  # protocol S counts in credits of 5 cents
        assert row.turnover == pytest.approx(rows[0].turnover, abs=5)
        assert (row.credit, row.status, row.updates) == (0, "idle", 4)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 24), (120, 40), (160, 45)])
def test_what_the_screen_shows_is_whole(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, width: int, height: int
) -> None:
    """On a terminal of any usual size nothing is cut, and the news and the slow subscriber's figures are on it."""
    bodies = Bodies(registry)
    monkeypatch.setattr("maxam.demo.screen.time.time", lambda: NOW_MS / 1000 + 99)
    floor = Floor(bodies)
    for number in range(90):
        for told in Machine(number, random.Random(number)).switch_on(NOW_MS):  # noqa: S311 - a game
            floor.take(told.destination, bodies.encode(told.destination, told.value))
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    published = Published("run")
    screen = Screen(console, "title", floor, published, Received(published, ""), Received(published, ""), 0.05)
    screen.add_news("some news")
    shown = io.StringIO()
    Console(file=shown, width=width, color_system=None).print(screen._everything())
    lines = shown.getvalue().splitlines()
    assert len(lines) <= height
    text = "\n".join(lines)
    assert "…" not in text
    for wanted in ("some news", "queue would have it 0 s behind", "Upd/s", "of 90 machines"):
        assert wanted in text

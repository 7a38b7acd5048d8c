"""The example docs/examples/floor in Chromium, Firefox and WebKit: a page with tickets against the real gateway."""

from collections.abc import Iterator

import pytest

from tests.web.browsers import BROWSERS, Tab, until
from tests.web.floor import open_floor

MACHINES = 20
LIVE = "document.querySelector('#connection').className === 'live'"
SHOWN = "Number(document.querySelector('#shown').textContent)"


@pytest.fixture(scope="module")
def floor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run one floor for all browsers."""
    with open_floor(tmp_path_factory.mktemp("floor"), MACHINES) as address:
        yield address


@pytest.fixture(scope="module", params=BROWSERS)
def tab(request: pytest.FixtureRequest) -> Iterator[Tab]:
    """Run each browser."""
    with BROWSERS[request.param]() as tab:
        yield tab


def type_filter(tab: Tab, text: str) -> None:
    """Write into the filter box as a person does it."""
    change = "new Event('input', { bubbles: true })"
    tab.run(f"((box) => {{ box.value = {text!r}; box.dispatchEvent({change}); }})(document.querySelector('#filter'))")


def test_a_page_with_a_ticket_shows_every_machine_and_its_changes(tab: Tab, floor: str) -> None:
    """All machines are there, their values come as JSON, and updates arrive without a reload."""
    tab.open(floor)
    until(tab, LIVE)
    until(tab, SHOWN, lambda shown: shown == MACHINES)
    until(tab, "Number(document.querySelector('#rate').textContent)", lambda rate: rate > 0)
    states = tab.run("[...document.querySelectorAll('.machine')].map((one) => one.className.trim())")
    assert len(states) == MACHINES
    assert not any("away" in state for state in states)


def test_the_filter_is_a_selector(tab: Tab, floor: str) -> None:
    """A filter leaves the machines that match, one that is refused is shown with its fault, and the floor stays as it was."""
    tab.open(floor)
    until(tab, SHOWN, lambda shown: shown == MACHINES)
    type_filter(tab, "communications.online AND NOT communications.online")
    until(tab, SHOWN, lambda shown: shown == 0)
    assert len(tab.run("[...document.querySelectorAll('.machine.away')].map(() => 0)")) == MACHINES
    type_filter(tab, "")
    until(tab, SHOWN, lambda shown: shown == MACHINES)
    type_filter(tab, "gamePlay.nothing > 1")
    until(tab, "!document.querySelector('#problem').hidden")
    until(tab, LIVE)
    assert tab.run(SHOWN) == MACHINES


def test_the_slider_bounds_the_rate(tab: Tab, floor: str) -> None:
    """With an interval the page subscribes again, and is complete again."""
    tab.open(floor)
    until(tab, SHOWN, lambda shown: shown == MACHINES)
    tab.run("((one) => { one.value = 6; one.dispatchEvent(new Event('input')); })(document.querySelector('#interval'))")
    assert tab.run("document.querySelector('#interval-text').textContent") == "5 s"
    until(tab, LIVE)
    until(tab, SHOWN, lambda shown: shown == MACHINES)

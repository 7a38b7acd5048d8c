"""The example docs/examples/floor in Chromium, Firefox and WebKit: a page with tickets against the real gateway."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.web.browsers import BROWSERS, Tab, until
from tests.web.floor import open_floor

MACHINES = 20
READINGS_PER_S = 2  # of each machine
LIVE = "document.querySelector('#connection').className === 'live'"
SHOWN = "Number(document.querySelector('#shown').textContent)"


@pytest.fixture(scope="module")
def floor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run one floor for all browsers."""
    with open_floor(tmp_path_factory.mktemp("floor"), MACHINES, READINGS_PER_S) as address:
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


WATCH = """(() => {
  const seen = new WeakSet();
  const send = WebSocket.prototype.send;
  const text = (data) => new TextDecoder().decode(data);
  window.subscribed = {};
  window.messages = {};
  WebSocket.prototype.send = function (data) {
    const id = /^SUBSCRIBE\\n[^]*?^id:(.*)$/m.exec(text(data))?.[1];
    if (id) window.subscribed[id] = { frame: text(data), at: performance.now() };
    if (!seen.has(this)) this.addEventListener("message", ({ data }) => {
      for (const [frame] of text(data).matchAll(/MESSAGE\\n[^]*?\\n\\n/g)) {
        const { subscription, destination, conflated } = Object.fromEntries(frame.split("\\n").map((line) => line.split(":")));
        if (destination !== "$marker") (window.messages[subscription] ??= []).push({ destination, conflated: Number(conflated ?? 0) });
      }
    });
    seen.add(this);
    return send.call(this, data);
  };
})()"""
INTERVAL_S = 2


def test_the_slider_bounds_the_rate(tab: Tab, floor: str) -> None:
    """With an interval of 2 s each machine sends one value in this time, with the number of changes that were skipped."""
    tab.open(floor)
    until(tab, SHOWN, lambda shown: shown == MACHINES)
    tab.run(WATCH)
    tab.run("((one) => { one.value = 5; one.dispatchEvent(new Event('input')); })(document.querySelector('#interval'))")
    assert tab.run("document.querySelector('#interval-text').textContent") == "2 s"
    subscribed = "Object.keys(window.subscribed)"
    (name,) = until(tab, subscribed)
    assert f"min-interval:{INTERVAL_S * 1000}\n" in tab.run(f"window.subscribed.{name}.frame")
    until(tab, LIVE)
    skipped = f"window.messages.{name}.reduce((sum, {{ conflated }}) => sum + conflated, 0)"
    until(tab, f"{skipped} > 0 && performance.now() - window.subscribed.{name}.at > {INTERVAL_S * 4000}")
    topics = f"window.messages.{name}.map(({{ destination }}) => destination)"
    found, ms = tab.run(f"[{topics}, performance.now() - window.subscribed.{name}.at]")
    assert len(set(found)) == MACHINES
    assert max(Counter(found).values()) <= ms / 1000 / INTERVAL_S + 1  # the first one comes at once
    assert tab.run(SHOWN) == MACHINES

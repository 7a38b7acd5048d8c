"""The React hooks of @maxam/client under StrictMode, in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.browsers import Tab, chromium, until
from tests.web.node import require_package, run_node


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    """Open the page of the test."""
    require_package()
    run_node("build.mjs", "--tests", "--out", str(tmp_path))
    (tmp_path / "index.html").write_text('<body><script src="react.page.js"></script>', encoding="utf-8")
    with chromium() as tab:
        tab.open(f"file://{tmp_path}/index.html")
        yield tab


def test_a_double_mount_of_two_components_is_one_subscription(tab: Tab) -> None:
    """Components with equal arguments share a subscription, render together, and end it when the last one is gone."""
    tab.run("page.publish(1)")
    for name in ("one", "two"):
        until(tab, f"page.text('{name}')", lambda text: text == "connected live X/1=1")
    assert tab.run("page.count('SUBSCRIBE')") == 1
    before = tab.run("page.renders()")
    tab.run("page.publish(500)")
    until(tab, "page.text('two')", lambda text: text == "connected live X/1=500")
    assert tab.run("page.renders()") - before < 50
    tab.run("page.show(false)")
    tab.run("page.show(true)")  # before the subscription ends
    until(tab, "page.text('one')", lambda text: text == "connected live X/1=500")
    assert tab.run("[page.count('SUBSCRIBE'), page.count('UNSUBSCRIBE')]") == [1, 0]
    tab.run("page.show(false)")
    until(tab, "page.count('UNSUBSCRIBE')", lambda count: count == 1)
    tab.run("page.show(true)")
    until(tab, "page.text('one')", lambda text: text == "connected live X/1=500")
    assert tab.run("page.count('SUBSCRIBE')") == 2

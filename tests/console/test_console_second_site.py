"""The view of the second site, in a real browser, against a real gateway and a real observer of it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.console.operator_browser import operator
from tests.support.gateway_process import GatewayProcess
from tests.support.observed_site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A gateway and an observer of it, with a topic."""
    site = Site(tmp_path)
    site.source.keep_port("admin")
    site.observer.keep_port("admin")
    site.source.start()
    site.observer.start()
    site.send({"X/A.1": b"1"})
    site.caught_up()
    yield site
    site.stop()


def origin(gateway: GatewayProcess) -> str:
    """Return where the console of a gateway is."""
    return f"https://localhost:{gateway.admin_port}"


def test_both_consoles_show_the_second_site(browser: Browser, site: Site) -> None:
    """The source shows who follows, and its lag; the observer its source, and the time of what it shows, in every view."""
    with operator(browser, origin(site.source), site.certificates) as tab:
        page = tab.open("cluster")
        row = page.get_by_role("row").filter(has_text="site-b")
        expect(row).to_contain_text(re.compile(r"follows0\.0 s0 B0\d"))
        expect(page.locator(".summary")).to_have_text("1 gateway follows this one")
        expect(page.locator(".card")).to_have_count(1)
        expect(page.locator(".card")).to_contain_text("it serves clients")
        expect(page.locator(".gateway")).not_to_contain_text("observer")
        site.observer.stop()
        expect(page.locator("main")).to_contain_text("No gateway follows this one.")
        site.observer.start()
        expect(row).to_be_visible()
    with operator(browser, origin(site.observer), site.certificates) as tab:
        page = tab.open("topics")
        expect(page.locator(".gateway")).to_have_text(re.compile(r"observer as of \d\d:\d\d:\d\d$"))
        page.keyboard.type("gf")
        cards = page.locator(".card")
        expect(cards.first).to_contain_text("observer: it serves no clients")
        expect(cards.first).to_contain_text("State as of")
        expect(cards.last).to_contain_text("Linked for")
        expect(cards.last).to_contain_text(str(site.ports[0]))
        site.source.kill()
        expect(cards.last.locator(".badge")).to_have_text("no link")
        expect(cards.last).to_contain_text("Problem")

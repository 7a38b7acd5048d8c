"""The grid of topics in a real browser, against a real gateway with 100,000 topics under load."""

import re
import time
from itertools import pairwise

from playwright.sync_api import expect

from maxam.links import CENTRE, HEADERS, UP, Link, LinkRoute
from tests.console.conftest import OpenTab
from tests.console.floor import Floor, body, topic
from tests.console.operator_browser import ROWS, WAIT_MS

TOPICS = 100_000
SECONDS = re.compile(r"\d.* s$")
LINK_HEADERS = [(name.decode(), value.decode()) for name, value in HEADERS]
# Notes when the age of the row that is shown falls. On a busy machine, a test cannot check it within these seconds.
GROWS_YOUNGER = """() => {
    const cell = document.querySelector(".space .line:not([hidden]) .age");
    window.younger = new Promise((resolve, reject) => {
        let before = parseFloat(cell.textContent);
        new MutationObserver(() => {
            const now = parseFloat(cell.textContent);
            if (now < before) resolve([before, now]);
            before = now;
        }).observe(cell, {childList: true, characterData: true, subtree: true});
        setTimeout(() => reject(new Error("it grew no younger")), PATIENCE_MS);
    });
}""".replace("PATIENCE_MS", str(WAIT_MS))


def test_rows_are_those_on_the_screen_and_no_others(tab: OpenTab) -> None:
    """The grid shows the first of 100,000 topics with their values and their number, and holds a screen of rows."""
    with tab() as operator:
        page = operator.open("topics?glob=X/Floor.*")
        expect(page.locator(f"{ROWS} .name").first).to_have_text(topic(0))
        expect(page.locator(f"{ROWS} .value").first).to_contain_text("label:")
        expect(page.locator(".count")).to_contain_text(f"of {TOPICS:,}")
        assert page.locator(".space .line").count() < 60
        page.locator(".scroller").focus()
        page.keyboard.press("End")  # of those that are known
        page.keyboard.press("PageDown")
        expect(page.locator(f"{ROWS}.selected .value")).to_contain_text("seeded")
        assert page.locator(".space .line").count() < 60


def test_a_filter_is_a_part_of_a_name_a_beginning_or_a_glob(tab: OpenTab) -> None:
    """The typed text finds topics that hold it, begin with it, or match it. The address keeps it."""
    with tab() as operator:
        page = operator.open("topics")
        names = page.locator(f"{ROWS} .name")
        for typed, count, first in (
            ("9999.C", 10, topic(9999)),
            ("X/Floor.00012", 10, topic(120)),
            ("X/*.?00077.Counter", 1, topic(77)),
        ):
            page.get_by_label("Filter topics by destination").fill(typed)
            expect(page.locator(".count")).to_have_text(re.compile(rf"of {count}$"))
            expect(names.first).to_have_text(first)
            expect(names).to_have_count(count)
        assert "glob=X%2F*" in page.url
        page.get_by_label("Filter topics by destination").fill("[")
        expect(page.locator(".refusal")).to_contain_text("The set '[' is not closed")
        operator.allowed.append("status of 400")


def test_a_condition_filters_by_values(tab: OpenTab, floor: Floor) -> None:
    """A selector finds topics by their fields within the glob, the address keeps it, and a row opens its topic."""
    for name, number in (("low", 1), ("high", 900)):
        floor.send("machines", f"X/Where.{name}.Counter", body(number, name))
    with tab() as operator:
        page = operator.open("topics?glob=X/Where.*")
        expect(page.locator(f"{ROWS} .name")).to_have_count(2)
        condition = page.get_by_label("Filter topics by their values")
        condition.fill("count > 500 AND label <> 'low'")
        row = page.get_by_role("row").filter(has_text="X/Where.high.Counter")
        expect(row).to_contain_text("count: 900")
        expect(page.get_by_role("row").filter(has_text="X/Where.low.Counter")).to_have_count(0)
        expect(page.locator(".grid")).to_be_hidden()
        assert "where=count" in page.url
        row.get_by_role("button").click()
        expect(page.locator(".panel h2")).to_have_text("X/Where.high.Counter")
        page.keyboard.press("Escape")
        condition.fill("count > 5000")
        expect(page.get_by_text("No topic satisfies the condition.")).to_be_visible()
        condition.fill("")
        expect(page.locator(f"{ROWS} .name")).to_have_count(2)


def test_a_fault_of_a_condition_is_shown_at_its_character(tab: OpenTab, floor: Floor) -> None:
    """The refused condition stands below its box with the character marked, as text; a personal field needs the box."""
    with tab() as operator:
        operator.allowed.extend(["status of 400", "status of 403"])
        page = operator.open("topics?glob=X/Floor.*")
        condition = page.get_by_label("Filter topics by their values")
        condition.fill("count > 5 AND <b>")
        expect(page.locator(".refusal")).to_contain_text("The condition cannot be used.")
        expect(page.locator(".fault-place")).to_have_text("count > 5 AND <b>")
        expect(page.locator(".fault-place mark")).to_have_text("<")
        condition.fill("count > 'x'")
        expect(page.locator(".fault-place mark")).to_have_count(1)
        floor.send("machines", "X/Fault.one.Patron", body(7, "Alice"))  # of the same form
        page.get_by_label("Filter topics by destination").fill("X/Fault.*")
        condition.fill("name = 'Alice'")
        expect(page.locator(".refusal")).to_contain_text("Tick “Personal data” above.")
        page.get_by_label("Personal data").check()
        expect(page.get_by_role("row").filter(has_text="X/Fault.one.Patron")).to_contain_text("Alice")


def test_changes_are_seen_without_asking_and_ages_count(tab: OpenTab, floor: Floor) -> None:
    """A value that changes changes on the screen, flashes, and is younger; one that rests grows older by itself."""
    with tab() as operator:
        page = operator.open("topics?glob=X/Live.*")
        expect(page.get_by_text("No topic with a value matches.")).to_be_visible()
        floor.send("machines", "X/Live.one.Counter", body(1, "before"))
        expect(page.locator(f"{ROWS} .value")).to_contain_text("before")
        age = page.locator(f"{ROWS} .age")
        expect(age).to_have_text(re.compile(r"^(?![01]\.)\d.* s$"))
        page.evaluate(GROWS_YOUNGER)
        floor.send("machines", "X/Live.one.Counter", body(2, "after"))
        expect(page.locator(f"{ROWS} .value")).to_contain_text("after")
        expect(page.locator(f"{ROWS}[data-flash]")).to_have_count(1)
        older, younger = page.evaluate("window.younger")
        assert younger < older >= 2


def test_a_topic_whose_link_is_down_is_unknown(tab: OpenTab, floor: Floor) -> None:
    """While the link of a venue is paused, the grid shows no age of its topics, and another topic keeps its own."""
    for name in ("Adrift.one", "Adrift.two", "Ashore.one"):
        floor.send("machines", f"X/{name}.Counter", body(1, "bridged"))
    with tab() as operator:
        page = operator.open("topics?glob=X/A*")
        ages = page.locator(f"{ROWS} .age")
        expect(ages).to_have_count(3)
        expect(ages.first).to_have_text(SECONDS)
        floor.send("machines", "B/V7.Link", link_of("PAUSED").encoded(), LINK_HEADERS)
        expect(ages.nth(0)).to_have_text("unknown")
        expect(ages.nth(1)).to_have_text("unknown")
        expect(ages.nth(0)).to_have_attribute("title", re.compile("^unknown since .* link is down"))
        expect(ages.nth(2)).to_have_text(SECONDS)
        floor.send("machines", "X/Adrift.one.Counter", body(2, "late"))
        expect(page.locator(f"{ROWS} .value").first).to_contain_text("late")
        expect(ages.nth(0)).to_have_text("unknown")
        floor.send("machines", "B/V7.Link", link_of(UP).encoded(), LINK_HEADERS)
        expect(ages.nth(0)).to_have_text(SECONDS)
        expect(page.get_by_text("unknown")).to_have_count(0)


def link_of(state: str) -> Link:
    """Return the state of a bridge that publishes the topics X/Adrift.*."""
    now_ms = int(time.time() * 1000)
    routes = (LinkRoute(UP, "Y/Adrift.**", "X"),)
    return Link("V7", "centre", CENTRE, state, "works", now_ms, now_ms, "", 600, "a", "b", routes)


def test_a_busy_topic_shows_its_newest_value_and_not_each(tab: OpenTab) -> None:
    """Under load a row changes at most some times a second, and what it shows is never older than the tick."""
    with tab() as operator:
        page = operator.open(f"topics?glob={topic(0)}")
        expect(page.locator(f"{ROWS} .value")).to_contain_text("busy")
        seen = page.evaluate(
            """() => new Promise((resolve) => {
                const cell = document.querySelector(".space .line:not([hidden]) .revision");
                const seen = [];
                const watcher = new MutationObserver(() => {
                    seen.push([Number(cell.textContent.replaceAll(",", "")), performance.now()]);
                    if (seen.length === 4) { watcher.disconnect(); resolve(seen); }
                });
                watcher.observe(cell, {childList: true, characterData: true, subtree: true});
            })"""
        )
        revisions = [revision for revision, _ in seen]
        assert revisions == sorted(set(revisions))
        # 10 updates/s of this topic among 1,000/s: shown one by one, its revisions would be a hundred apart. On a busy machine there may be
        # fewer, of which each has its tick of a second.
        pairs = pairwise(seen)
        assert all(later[0] - earlier[0] > 200 or later[1] - earlier[1] > 300 for earlier, later in pairs), seen

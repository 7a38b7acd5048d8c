"""Listings of the console that are searched and held: rejects, connections, audit log. In a real browser, against a real gateway."""

import re

from playwright.sync_api import expect

from tests.console.conftest import OpenTab
from tests.console.floor import Floor, body
from tests.console.operator_browser import ROWS, go, wait_for_answer
from tests.support.raw_client import RawClient

TOPICS = 200


def test_a_body_that_may_be_personal_shows_only_when_asked_for(tab: OpenTab, floor: Floor) -> None:
    """Of a rejected SEND whose schema has personal fields the fault shows at once, the body once the box is ticked."""
    floor.send("machines", "X/Club.two.Patron", b"\x02\x0aBob", accepted=False)
    with tab() as operator:
        page = operator.open("rejects?glob=X/Club.*")
        page.get_by_role("row").filter(has_text="schema-mismatch").get_by_role("button").click()
        expect(page.locator(".panel .fault")).to_contain_text("name")
        expect(page.locator(".panel")).to_contain_text("“Personal data” above shows it")
        expect(page.get_by_role("button", name="Send it again …")).to_be_visible()
        page.get_by_label("Personal data").check()
        expect(page.locator(".panel .hexdump").last).to_contain_text("Bob")


def test_a_reject_is_sent_again(tab: OpenTab, floor: Floor) -> None:
    """The question gives the reason of a second refusal. A SEND that would replace a newer value needs a confirmation, and the panel shows the sender."""
    floor.send("machines", "X/Again.bad.Counter", b"\x02\x08ab", accepted=False)
    floor.send("machines", "X/Again.late.Counter", body(2, "newer"))
    floor.send("machines", "X/Again.late.Counter", body(1, "late"), [("if-revision", "1")], accepted=False)
    with tab() as operator:
        operator.allowed.append("status of 422")
        page = operator.open("rejects?glob=X/Again.*")
        page.get_by_role("row").filter(has_text="schema-mismatch").get_by_role("button").click()
        page.get_by_role("button", name="Send it again …").click()
        question = page.get_by_role("dialog")
        question.get_by_role("button", name="Send again").click()
        expect(question.locator(".said")).to_contain_text("label: expected string")
        question.get_by_role("button", name="Cancel").click()
        page.get_by_role("row").filter(has_text="conflict").get_by_role("button").click()
        page.get_by_role("button", name="Send it again …").click()
        question.get_by_role("textbox").fill("replace")
        question.get_by_role("button", name="Replace the newer value").click()
        expect(page.locator("#toasts")).to_contain_text("it was accepted")
        expect(page.locator(".panel")).to_contain_text("operator at")
        with RawClient(floor.gateway, "machines") as client:
            assert client.value("X/Again.late.Counter").body == body(1, "late")


def test_a_reject_tells_its_fault(tab: OpenTab, floor: Floor) -> None:
    """A rejected SEND shows with its reason, the field and the bytes around the fault."""
    floor.send("machines", "X/Wrong.one.Counter", b"\x02\x08ab", accepted=False)
    with tab() as operator:
        page = operator.open("rejects?glob=X/Wrong.*")
        page.get_by_role("row").filter(has_text="schema-mismatch").get_by_role("button").click()
        expect(page.locator(".panel .fault")).to_contain_text("label")
        expect(page.locator(".panel mark")).to_be_visible()
        expect(page.get_by_role("button", name="Send it again …")).to_be_visible()


def test_rejects_are_counted_and_filtered(tab: OpenTab, floor: Floor) -> None:
    """Numbers by principal and result stand above the rows, each a filter by both. Filters of result, principal and time are kept in the address."""
    for _ in range(3):
        floor.send("machines", "X/Sums.a.Counter", b"\x02\x08ab", accepted=False)
    for _ in range(2):
        floor.send("table", "X/Sums.b.None", b"v", accepted=False)
    with tab() as operator:
        page = operator.open("rejects?glob=X/Sums.*")
        rows, sums = page.locator("tbody tr"), page.locator(".sum")
        wait_for_answer(page, destination="X/Sums.*")
        expect(rows).to_have_count(5)
        expect(sums).to_have_text(["3 schema-mismatch machines", "2 no-rule table"])
        sums.nth(1).click()
        wait_for_answer(page, principal="table", result="no-rule")
        expect(rows).to_have_count(2)
        expect(sums.nth(1)).to_have_attribute("aria-pressed", "true")
        assert "result=no-rule" in page.url
        page.reload()
        wait_for_answer(page, principal="table", result="no-rule")
        expect(rows).to_have_count(2)
        expect(page.get_by_label("Filter by principal")).to_have_value("table")
        expect(sums.nth(1)).to_have_attribute("aria-pressed", "true")
        sums.nth(1).click()
        expect(rows).to_have_count(5)
        page.get_by_label("Filter by result").select_option("schema-mismatch")
        wait_for_answer(page, result="schema-mismatch")
        expect(rows).to_have_count(3)
        page.get_by_label("Filter by time").select_option("Last hour")
        expect(page).to_have_url(re.compile("since=60"))
        expect(rows).to_have_count(3)
        page.get_by_label("Filter by principal").fill("table")
        wait_for_answer(page, principal="table", result="schema-mismatch")
        expect(page.get_by_text("No rejected SEND is kept.")).to_be_visible()


def test_rows_stay_under_the_pointer(tab: OpenTab, floor: Floor) -> None:
    """While the pointer is on the rows no newer row moves them, and the page shows how many wait. They come when it leaves."""
    floor.send("machines", "X/Held.one.Counter", b"\x02\x08ab", accepted=False)
    with tab() as operator:
        page = operator.open("rejects?glob=X/Held.*")
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(1)
        rows.first.hover()
        floor.send("machines", "X/Held.two.Counter", b"\x02\x08ab", accepted=False)
        expect(page.get_by_text("1 further row will show when the pointer leaves the table.")).to_be_visible()
        expect(rows).to_have_count(1)
        rows.first.get_by_role("button").click()
        expect(page.locator(".panel .facts").first).to_contain_text("X/Held.one.Counter")
        page.get_by_label("Filter by destination").hover()
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("X/Held.two.Counter")
        expect(rows.nth(1)).to_have_class("opened")
        expect(page.get_by_text("further row")).to_be_hidden()


def test_connections_are_searched(tab: OpenTab, floor: Floor) -> None:
    """A text finds connections by principal, client-id or address. Columns that have no room are listed above the table."""
    with RawClient(floor.gateway, "table", client_id="needle-7"), tab() as operator:
        page = operator.open("connections")
        rows = page.locator("tbody tr")
        expect(rows.filter(has_text="needle-7")).to_have_count(1)
        assert rows.count() > 1
        page.get_by_label("Filter connections").fill("NEEDLE")
        wait_for_answer(page, find="NEEDLE")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("table")
        expect(page.get_by_role("columnheader", name="MESSAGEs")).to_be_hidden()
        no_room = page.locator(".no-room").filter(has_text="MESSAGEs")
        expect(no_room).to_be_visible()
        page.set_viewport_size({"width": 1920, "height": 900})
        expect(page.get_by_role("columnheader", name="MESSAGEs")).to_be_visible()
        expect(no_room).to_be_hidden()
        page.get_by_label("Filter connections").fill("no such client")
        expect(page.get_by_text("No connection matches.")).to_be_visible()


def test_columns_without_room_are_listed(tab: OpenTab, floor: Floor) -> None:
    """A line has the columns without room: in a table, beside open details however wide the window is, and in the grid of topics."""
    floor.send("machines", "X/Room.one.Counter", b"\x02\x08ab", accepted=False)
    floor.send("machines", "X/Room.one.Counter", body(7, "a"))
    with tab() as operator:
        page = operator.open("rejects?glob=X/Room.*")
        no_room = page.locator(".no-room:visible")
        expect(no_room).to_contain_text("Size, Again")
        page.locator("tbody tr").get_by_role("button").click()
        expect(page.locator(".panel .facts").first).to_be_visible()
        page.set_viewport_size({"width": 1920, "height": 900})
        expect(no_room).to_contain_text("Size, Again")
        page.keyboard.press("Escape")
        expect(no_room).to_have_count(0)
        go(page, "topics?glob=X/Room.*")
        expect(page.locator(ROWS)).to_have_count(1)
        expect(no_room).to_have_count(0)
        page.set_viewport_size({"width": 1280, "height": 900})
        expect(no_room).to_contain_text("Schema, Revision")


def test_the_audit_log_is_searched_and_followed(tab: OpenTab, floor: Floor) -> None:
    """The newest lines come first, each new one by itself. A text finds lines by any value, and a row opens all facts."""
    with tab() as operator:
        with RawClient(floor.gateway, "table", client_id="audited-1"):
            page = operator.open("audit?find=audited-")
            rows = page.locator("tbody tr")
            wait_for_answer(page, find="audited-")
            expect(rows).to_have_count(1)
            expect(rows).to_contain_text("connected")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("disconnected")
        with RawClient(floor.gateway, "table", client_id="audited-2"):
            pass
        page.get_by_label("Filter the audit log").fill("AUDITED-2")
        wait_for_answer(page, find="AUDITED-2")
        expect(rows).to_have_count(2)
        rows.first.get_by_role("button").click()
        expect(page.locator(".panel .facts")).to_contain_text("disconnected")
        expect(page.locator(".panel .facts")).to_contain_text("previous")
        page.get_by_label("Filter by time").select_option("Last 24 hours")
        expect(page).to_have_url(re.compile("since=1440"))
        expect(rows).to_have_count(2)
        page.get_by_label("Filter the audit log").fill("no such line")
        expect(page.get_by_text("No line of the audit log matches.")).to_be_visible()


def test_empty_fields_stand_last_in_a_line(tab: OpenTab, floor: Floor) -> None:
    """Of values that are alike, the line begins with fields that have a content."""
    floor.send("machines", "X/Empty.one.Counter", body(7, ""))
    with tab() as operator:
        page = operator.open("topics?glob=X/Empty.*")
        expect(page.locator(f"{ROWS} .value")).to_have_text("count: 7 · label:")

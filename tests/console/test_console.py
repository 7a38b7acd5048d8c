"""The console except the grid of topics, in a real browser, against a real gateway under load."""

import os
import re
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Browser, Page, Route, expect

from maxam.gateway.connect_problems import OFTEN
from tests.console.conftest import OpenTab
from tests.console.floor import (
    HOSTILE_CLIENT_ID,
    HOSTILE_HEADER,
    HOSTILE_PRINCIPAL,
    HOSTILE_TEXT,
    HOSTILE_TOPIC,
    Floor,
    body,
    open_floor,
)
from tests.console.operator_browser import ROWS, go, operator, require, wait_for_answer
from tests.support.raw_client import RawClient

TOPICS = 1000
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"


def test_everything_can_be_done_by_keyboard(tab: OpenTab, floor: Floor) -> None:
    """Skip link, views, filter, rows, details, questions: all by keys, with the focus where it can be seen."""
    floor.send("machines", "X/Keys.a.Counter", body(1, "a"))
    floor.send("machines", "X/Keys.b.Counter", body(2, "b"))
    with tab() as operator:
        page = operator.open()
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.type("gt")
        expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("X/Keys.")
        expect(page.locator(f"{ROWS} .name")).to_have_count(2)
        page.keyboard.press("ArrowDown")
        expect(page.locator(".scroller")).to_be_focused()
        expect(page.locator(".line.selected .name")).to_have_text("X/Keys.a.Counter")
        page.keyboard.press("ArrowDown")
        expect(page.locator(".line.selected .name")).to_have_text("X/Keys.b.Counter")
        active = page.locator(".scroller").get_attribute("aria-activedescendant")
        assert page.locator(".line.selected").get_attribute("id") == active
        page.keyboard.press("Enter")
        expect(page.locator(".panel h2")).to_have_text("X/Keys.b.Counter")
        expect(page.locator(".panel .json")).to_contain_text('"label": "b"')
        page.keyboard.press("Escape")
        expect(page.locator(".panel")).to_be_hidden()
        expect(page.locator(".scroller")).to_be_focused()
        page.keyboard.type("p")
        expect(page.locator(".pill")).to_contain_text("Paused")
        page.keyboard.type("p")
        expect(page.locator(".pill")).to_have_text("Live")


def test_what_clients_sent_is_text(tab: OpenTab, floor: Floor) -> None:
    """Markup and invisible characters in destinations, values, headers, principals, client-ids and reasons are shown, never obeyed."""
    floor.send("hostile", HOSTILE_TOPIC, body(1, HOSTILE_TEXT), [("note", HOSTILE_HEADER.replace(":", "\\c"))])
    floor.send("hostile", HOSTILE_TOPIC.replace("alert", "prompt"), b"\xff<img/src=x>", accepted=False)
    with RawClient(floor.gateway, "hostile", client_id=HOSTILE_CLIENT_ID), tab() as operator:
        page = operator.open("topics?glob=**<**")
        row = page.locator(ROWS)
        expect(row.locator(".name")).to_have_text(HOSTILE_TOPIC)
        expect(row.locator(".value")).to_contain_text("<script>alert(3)</script>\\u202egnp\\u200b\\x1b[31m")
        expect(row.locator(".publisher")).to_have_text(HOSTILE_PRINCIPAL)
        row.click()
        expect(page.locator(".panel .headers")).to_contain_text(HOSTILE_HEADER)
        expect(page.locator(".panel .facts")).to_contain_text(HOSTILE_PRINCIPAL)
        go(page, "sessions")
        page.get_by_role("searchbox").fill("onload")
        wait_for_answer(page, find="onload")
        page.get_by_text(HOSTILE_CLIENT_ID).first.click()
        expect(page.locator(".panel h2")).to_contain_text(HOSTILE_CLIENT_ID)
        go(page, "rejects")
        page.locator("tbody").get_by_text("prompt").first.click()
        expect(page.locator(".panel .facts").first).to_contain_text("<img_src=x_onerror=prompt(1)>")
        assert page.locator("main :is(script, b b, iframe, img)").count() == 0


def test_personal_fields_show_only_when_asked_for(tab: OpenTab, floor: Floor) -> None:
    """Fields that a schema marks personal are hidden in grid, details and history until the box is ticked. The audit log records it."""
    floor.send("machines", "X/Club.one.Patron", body(7, "Alice Example"))  # of the same form
    with tab() as operator:
        page = operator.open("topics?glob=X/Club.*")
        expect(page.locator(f"{ROWS} .value")).to_contain_text("visits: 7")
        page.locator(ROWS).click()
        expect(page.locator(".panel .json")).to_contain_text('"visits": 7')
        page.get_by_role("button", name="Read its changes").click()
        page.locator(".panel .change summary").click()
        expect(page.locator(".panel .change .json")).to_contain_text('"visits": 7')
        assert "Alice" not in page.locator("body").inner_text()
        page.get_by_label("Personal data").check()
        expect(page.locator(f"{ROWS} .value")).to_contain_text("Alice Example")
        expect(page.locator(".panel .json")).to_contain_text("Alice Example")
        page.get_by_role("button", name="Read its changes").click()
        page.locator(".panel .change summary").click()
        expect(page.locator(".panel .change .json")).to_contain_text("Alice Example")


def test_a_slow_subscriber_is_found_in_two_clicks(tab: OpenTab, floor: Floor) -> None:
    """From the start page one click lists who is behind, worst first and by name; a second opens the session."""
    with floor.falling_behind(), tab() as operator:
        page = operator.open()
        expect(page.locator(".behind")).to_contain_text("cashier-desk-3")  # no click at all
        page.get_by_role("link", name="Slow subscribers").first.click()
        row = page.get_by_role("row").filter(has_text="cashier-desk-3")
        expect(row).to_contain_text("table")
        expect(row.locator(".meter .said")).to_have_text(re.compile(r"\d.* s"))
        row.get_by_role("button").click()
        expect(page.locator(".panel h2")).to_contain_text("table / cashier-desk-3")
        expect(page.locator(".panel .subscription")).to_contain_text("X/Floor.*.Counter")


def test_a_missing_value_is_explained(tab: OpenTab, floor: Floor) -> None:
    """A session is asked why a subscription lacks a topic, and the answer follows what happens; the selector is shown."""
    condition = "count > 5"
    with RawClient(floor.gateway, "table", client_id="why-board") as client, tab() as operator:
        client.write("SUBSCRIBE", {"id": "w", "destination": "X/Why.*.Counter", "selector": condition, "receipt": "1"})
        client.read()
        page = operator.open("sessions?principal=table&client_id=why-board")
        expect(page.locator(".panel .subscription")).to_contain_text(condition)
        page.get_by_label("Destination of a topic").fill("X/Why.a.Counter")
        page.get_by_role("button", name="Explain").click()
        facts = page.locator(".panel section .facts")
        expect(page.locator(".panel")).to_contain_text("The broker has no value of the topic.")
        expect(facts).to_contain_text("no-topic")
        floor.send("machines", "X/Why.a.Counter", body(1, "low"))
        expect(facts).to_contain_text("filtered")
        floor.send("machines", "X/Why.a.Counter", body(9, "high"))
        expect(facts).to_contain_text("handed-out")
        page.get_by_label("Destination of a topic").fill("X/Why.<b>")
        page.keyboard.press("Enter")
        expect(facts).to_contain_text("no-match")


def test_the_head_is_no_better_than_what_is_below(tab: OpenTab, floor: Floor) -> None:
    """The head shows health only while no subscription is behind. Otherwise it links to those that are, in another colour."""
    with tab() as operator:
        page = operator.open()
        expect(page.locator(".hero .word")).to_have_text("All is well")
        expect(page.locator(".hero")).to_have_attribute("data-state", "ok")
        with floor.falling_behind():
            expect(page.locator(".hero .word")).to_have_text("The gateway is healthy. There are warnings below.")
            expect(page.locator(".hero")).to_have_attribute("data-state", "warn")
            expect(page.locator(".tile").first).to_have_attribute("data-state", "warn")
            page.locator(".hero").get_by_role("link", name="1 subscription behind").click()
            expect(page.get_by_role("heading", name="Slow subscribers", level=1)).to_be_visible()
            expect(page.locator(".summary")).to_have_text("1 of 1 subscription behind by more than 0.5 s")


def test_who_lacks_something_for_a_moment_is_not_behind(tab: OpenTab) -> None:
    """A subscription that lacks a value for a moment is listed on request, without a cause. The address keeps it."""
    row = {"principal": "table", "client_id": "desk", "id": "1", "glob": "X/Floor.*", "cause": "unread", "owed": 3}
    row |= {"unacked": 0, "conflated": 0, "staleness_s": 0.004, "behind": False}
    answer = {"behind": 0, "looked_at": 1, "behind_after_s": 5.0, "as_of": "2026-11-22T00:00:00Z"}
    asked = re.compile(r"/v1/subscriptions/slow\?")
    with tab() as operator:
        operator.page.route(
            asked,
            lambda route: route.fulfill(
                json=answer | {"subscriptions": [row] if "min_s=0" in route.request.url else []}
            ),
        )
        page = operator.open("slow")
        expect(page.get_by_text("No subscription is behind.")).to_be_visible()
        page.get_by_label("All that lack anything now").check()
        found = page.get_by_role("row").filter(has_text="desk")
        expect(found.locator(".meter .said")).to_have_text("under 0.1 s")
        expect(found).not_to_contain_text("slow to")
        expect(page).to_have_url(re.compile(r"#/slow\?all=yes$"))
        page.reload()
        expect(found).to_be_visible()
        page.unroute_all()


def test_the_journal_is_told_in_words(tab: OpenTab) -> None:
    """Names that people read, with units and times, and none of the API's."""
    with tab() as operator:
        page = operator.open("journal")
        expect(page.get_by_role("heading", level=2)).to_have_text(
            [
                "Where it stands",
                "Its disk",
                "Segments",
                "Snapshots, from which a start begins",
                "Rejected SENDs",
                "Backups",
            ]
        )
        facts = page.locator("main")
        for text in (
            r"Newest change on the disk\s+revision [\d,]+",
            r"Free\s+[\d.,]+ [KMGT]iB of [\d.,]+ [KMGT]iB",
            r"half of them within\s+[\d.]+ ms",
            r"Old ones are kept\s+90 days, 50 GiB at most",
        ):
            expect(facts).to_contain_text(re.compile(text), use_inner_text=True)
        assert not re.search(r"p\d\d|_s\b|_at\b|[a-z]_bytes", facts.inner_text())


def test_a_delete_must_be_typed_and_says_that_it_is_ours(tab: OpenTab, floor: Floor) -> None:
    """Deleting asks for the name, sends the header that no foreign page can, and the row goes."""
    name = "X/Doomed.one.Counter"
    floor.send("machines", name, body(1, "doomed"))
    with tab() as operator:
        page = operator.open(f"topics?glob={name}")
        wait_for_answer(page, glob=name + "**")
        page.locator(ROWS).click()
        page.get_by_role("button", name="Delete …").click()
        question = page.get_by_role("dialog")
        expect(question.get_by_role("button", name="Delete")).to_be_disabled()
        question.get_by_role("textbox").fill(name)
        with page.expect_request(lambda request: request.method == "DELETE") as sent:
            page.keyboard.press("Enter")
        assert sent.value.headers["maxam-admin"] == "1"
        expect(page.locator("#toasts")).to_contain_text("is deleted")
        expect(page.get_by_text("No topic with a value matches.")).to_be_visible()
        operator.allowed.append("status of 404")  # the panel asked once more, and shows that it is gone


def test_a_session_is_disconnected_and_ended_only_when_it_is_meant(tab: OpenTab, floor: Floor) -> None:
    """Both ask first; disconnecting leaves the session, ending it wants its name typed, and the list knows at once."""
    with RawClient(floor.gateway, "machines", client_id="doomed-7") as client, tab() as operator:
        client.write("SUBSCRIBE", {"id": "1", "destination": "X/None.*", "ack": "client", "durable": "true"})
        client.send("X/Mark.one.Counter", body(1, "subscribed"))
        page = operator.open("sessions?find=DOOMED")
        page.get_by_role("button", name="Open the session doomed-7").click()
        page.get_by_role("button", name="Disconnect …").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        expect(page.locator(".panel .facts").first).to_contain_text("connected")
        page.get_by_role("button", name="Disconnect …").click()
        page.get_by_role("dialog").get_by_role("button", name="Disconnect").click()
        expect(page.locator("#toasts")).to_contain_text("doomed-7 was disconnected")
        assert client.read().headers["message"] == "closed by an operator"
        expect(page.locator("tbody tr")).to_contain_text("away, durable")
        page.get_by_role("button", name="End the session …").click()
        question = page.get_by_role("dialog")
        question.get_by_role("textbox").fill("doomed")
        expect(question.get_by_role("button", name="End it")).to_be_disabled()
        question.get_by_role("textbox").fill("doomed-7")
        question.get_by_role("button", name="End it").click()
        expect(page.locator("#toasts")).to_contain_text("the session doomed-7 has ended")
        expect(page.locator(".list")).to_contain_text("No session matches.")
        expect(page.locator(".panel")).to_contain_text("This session is gone.")
        operator.allowed.append("status of 404")  # it was asked for once more


def test_a_backup_is_made(tab: OpenTab) -> None:
    """It is begun after a question, and the list shows when it is done."""
    with tab() as operator:
        page = operator.open("journal")
        page.get_by_role("button", name="Make a backup …").click()
        page.get_by_role("dialog").get_by_role("button", name="Make it").click()
        expect(page.locator("#toasts")).to_contain_text("the backup has begun")
        expect(page.locator(".backups")).to_contain_text("done")


def test_fields_become_columns(tab: OpenTab, floor: Floor) -> None:
    """A field that is chosen has a column, which the address keeps; without any the value is whole again."""
    floor.send("machines", "X/Columns.one.Counter", body(3, "in a column"))
    with tab() as operator:
        page = operator.open("topics?glob=X/Columns.")
        heads = page.locator(".line.head .fields span")
        expect(page.locator(f"{ROWS} .value")).to_contain_text("count: 3")
        page.locator(".chooser summary").click()
        page.locator(".chooser").get_by_label("label").check()
        page.locator(".chooser").get_by_label("count").check()
        expect(heads).to_have_text(["label", "count"])
        expect(page.locator(f"{ROWS} .fields span")).to_have_text(["in a column", "3"])
        assert "fields=label%2Ccount" in page.url
        page.reload()
        expect(heads).to_have_text(["label", "count"])
        page.locator(".chooser summary").click()
        page.get_by_role("button", name="Whole value").click()
        expect(page.locator(f"{ROWS} .value")).to_contain_text("count: 3")
        assert "fields" not in page.url


def test_a_schema_shows_what_a_minor_added(tab: OpenTab) -> None:
    """The difference of two schema versions is shown field by field."""
    with tab() as operator:
        page = operator.open("schemas")
        page.get_by_role("button", name="floor.Counter_v1").click()
        expect(page.locator(".panel .diff li.added")).to_contain_text("note")
        expect(page.locator(".panel .diff ins")).to_have_text("null | string = null")
        page.get_by_label("Older minor").select_option("1.1")
        expect(page.locator(".panel .fields-list code")).to_have_text(["count", "label", "note"])


def test_without_the_right_it_says_so(browser: Browser, floor: Floor) -> None:
    """A certificate without admin rights gets a page with its owner, the missing right and the remedy."""
    for name, known in (("reader", "principal 'reader'"), ("stranger", "the policy does not know this certificate")):
        with operator(browser, floor.origin, floor.gateway.certificates, name=name) as tab:
            tab.allowed.extend(["status of 403", "status of 404"])  # the page, and the icon that a browser requests
            answer = tab.page.goto(f"{floor.origin}/console/")
            assert answer is not None
            assert answer.status == 403
            expect(tab.page.get_by_role("heading", level=1)).to_have_text(
                "Your certificate has no right to this gateway"
            )
            for text in (known, "the admin right read", 'a capability with admin = ["read"]'):
                expect(tab.page.locator("main")).to_contain_text(text)
            expect(tab.page.locator("body")).to_have_css("max-width", "672px")  # its style is one that it may have


def test_an_observer_is_offered_no_change(browser: Browser, floor: Floor) -> None:
    """With the right read alone, a session, a topic and the backups show no button that changes something."""
    floor.send("machines", "X/Seen.Blob", b"v")
    with (
        RawClient(floor.gateway, "table", client_id="observed"),
        operator(browser, floor.origin, floor.gateway.certificates, name="observer") as tab,
    ):
        page = tab.open("sessions?find=observed")
        wait_for_answer(page, find="observed")
        page.get_by_role("row").filter(has_text="observed").get_by_role("button").click()
        expect(page.locator(".panel .facts")).to_contain_text("connected")
        expect(page.locator("html.read-only")).to_have_count(1)
        expect(page.locator(".change-button:visible")).to_have_count(0)
        assert page.locator(".change-button").count() == 2
        go(page, "topics?glob=X/Seen.*")
        wait_for_answer(page, glob="X/Seen.*")
        page.locator(ROWS).click()
        expect(page.locator(".change-button")).to_have_count(1)
        expect(page.locator(".change-button:visible")).to_have_count(0)


def test_a_lost_right_is_told_in_words(tab: OpenTab) -> None:
    """A refusal of the gateway while the page is open is shown with its remedy."""
    with tab() as operator:
        for status, code, what, advice in (
            (403, "forbidden", "Your certificate may not see or do this.", "The right is given by the policy"),
            (421, "unknown-host", "does not answer to the name in the address bar", "added to `hosts` under [admin]"),
        ):
            operator.allowed.append(f"status of {status}")
            answer = {"error": code, "detail": f"The gateway's words for {status}"}
            operator.page.route("**/v1/**", _refusing(status, answer))
            page = operator.open("sessions")
            for words in (what, answer["detail"], advice):
                expect(page.locator(".refusal")).to_contain_text(words)
            page.unroute_all()


def _refusing(status: int, answer: dict[str, str]) -> Callable[[Route], None]:
    return lambda route: route.fulfill(status=status, json=answer)


def test_a_restart_shows_as_stale_and_heals(browser: Browser, tmp_path: Path) -> None:
    """While the gateway is away the page shows its age and marks itself stale. It continues by itself when the gateway is back."""
    with open_floor(tmp_path, keeps_port=True) as floor:
        floor.send("machines", "X/Kept.one.Counter", body(1, "kept"))
        with operator(browser, floor.origin, floor.gateway.certificates) as tab:
            tab.allowed.append("Failed to load resource")
            page = tab.open("topics")
            expect(page.locator(f"{ROWS} .value")).to_contain_text("kept")
            floor.gateway.stop()
            expect(page.locator(".banner").first).to_contain_text("The gateway does not answer. What you see is")
            expect(page.locator(".pill")).to_contain_text("No connection, as of")
            expect(page.locator("html.stale .grid")).to_have_css("opacity", "0.62")
            frozen = page.locator(f"{ROWS} .age").inner_text()
            expect(page.locator(".banner").first).to_contain_text(re.compile(r"is [1-9]\d* s old|is [1-9]\.0 s old"))
            assert page.locator(f"{ROWS} .age").inner_text() == frozen  # not reckoned on, as if it were live
            floor.gateway.start()
            page.get_by_role("button", name="Try now").click()
            expect(page.locator(".pill")).to_have_text("Live")
            expect(page.locator(".banner").first).to_be_hidden()
            floor.send("machines", "X/Kept.one.Counter", body(2, "after"))
            expect(page.locator(f"{ROWS} .value")).to_contain_text("after")


def test_connections_show_their_front_and_a_silent_front_is_reported(browser: Browser, tmp_path: Path) -> None:
    """Each connection of a client shows its front. While a front does not answer, the page shows that the listing is incomplete."""
    with (
        open_floor(tmp_path, "[fronts]\ncount = 1") as floor,
        RawClient(floor.gateway, "machines", client_id="at-a-front"),
        operator(browser, floor.origin, floor.gateway.certificates) as tab,
    ):
        page = tab.open("connections?find=at-a-front")
        wait_for_answer(page, find="at-a-front")
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.get_by_role("row").filter(has_text="at-a-front")).to_contain_text("front 0")
        expect(page.get_by_role("main")).not_to_contain_text("incomplete")
        found = re.search(r"front-started front=0 pid=(\d+)", floor.gateway.log())
        assert found is not None
        os.kill(int(found[1]), signal.SIGSTOP)
        try:
            expect(page.get_by_role("main")).to_contain_text("incomplete")
        finally:
            os.kill(int(found[1]), signal.SIGCONT)
        expect(page.get_by_role("main")).not_to_contain_text("incomplete")


def test_a_hidden_or_paused_page_asks_nothing(tab: OpenTab) -> None:
    """Pausing or hiding the page ends its stream and its questions; going on begins them again."""
    with tab() as operator:
        page = operator.open("overview")
        expect(page.locator(".hero .word")).to_be_visible()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for stop, go_on in (("p", "p"), (_HIDE, _SHOW)):
            _do(page, stop)
            expect(page.locator(".pill")).to_contain_text("Paused")
            asked.clear()
            page.keyboard.type("gt")
            expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()
            page.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
            assert not [url for url in asked if "/v1/" in url]
            _do(page, go_on)
            expect(page.locator(f"{ROWS} .value").first).to_contain_text("label:")
            page.keyboard.type("go")


_VISIBILITY = """
Object.defineProperty(document, "hidden", {configurable: true, get: () => %s});
document.dispatchEvent(new Event("visibilitychange"));
"""
_HIDE, _SHOW = _VISIBILITY % "true", _VISIBILITY % "false"


def _do(page: Page, what: str) -> None:
    """Press a key, or run a script."""
    if len(what) == 1:
        page.keyboard.press(what)
    else:
        page.evaluate(what)


def test_who_cannot_connect_has_a_view_and_tables_are_sorted(tab: OpenTab, floor: Floor) -> None:
    """Clients that share a client-id are in a view of their own, with a remedy. A table is sorted by the column that is pressed."""
    for _ in range(OFTEN):
        with (
            RawClient(floor.gateway, "table", client_id="shared"),
            RawClient(floor.gateway, "table", client_id="shared"),
        ):
            pass
    clients = [RawClient(floor.gateway, "table", client_id=f"sorted-{name}") for name in "bca"]
    with ExitStack() as open_, tab() as operator:
        for one in clients:
            open_.enter_context(one)
        page = operator.open("problems")
        row = page.get_by_role("row").filter(has_text="shares a client-id")
        expect(row).to_contain_text("Give each client a client-id of its own.")
        expect(row).to_contain_text("shared")
        go(page, "sessions?find=sorted-")
        wait_for_answer(page, find="sorted-")
        names = page.locator("tbody td:nth-child(2)")
        expect(names).to_have_text(["sorted-a", "sorted-b", "sorted-c"])
        title = page.get_by_role("button", name="Client-id")
        title.click()
        title.click()
        expect(names).to_have_text(["sorted-c", "sorted-b", "sorted-a"])
        expect(page.locator("th[aria-sort=descending]")).to_have_text("Client-id")
        title.click()
        expect(page.locator("th[aria-sort]")).to_have_count(0)


def test_another_version_offers_to_load_the_page_anew(tab: OpenTab) -> None:
    """When the gateway has another version than the page came from, the page shows that."""
    with tab() as operator:
        page = operator.open("about")
        expect(page.locator("main")).to_contain_text("maxam/")
        page.route("**/v1/about", lambda route: route.fulfill(json={**route.fetch().json(), "server": "maxam/9.9"}))
        page.keyboard.press("p")
        page.keyboard.press("p")
        expect(page.locator(".banner.hint")).to_contain_text("The gateway is another version now (maxam/9.9)")
        expect(page.get_by_role("button", name="Load the page again")).to_be_visible()


VIEWS = (
    "overview",
    "topics",
    "slow",
    "overdue",
    "bridges",
    "cluster",
    "sessions",
    "rejects",
    "schemas",
    "connections",
    "problems",
    "principals",
    "audit",
    "journal",
    "about",
)
WIDER = "document.documentElement.scrollWidth > innerWidth"
# A value beside its name that has less room than four digits, and a name of a view that leaves its place.
SQUEEZED = """[...document.querySelectorAll('.facts dd')].some((dd) => dd.clientWidth < 40)
    || [...document.querySelectorAll('nav a')].some((a) => a.scrollWidth > a.clientWidth)"""


def test_views_are_accessible_and_fit_a_narrow_window(tab: OpenTab) -> None:
    """axe-core finds nothing wrong in any view, nor in its colours in the dark; at 360 pixels nothing is wider than the window."""
    require(str(AXE) if AXE.exists() else None, "axe-core")
    problems: list[str] = []
    with tab() as operator:
        operator.allowed.append("status of 409")  # backups are off
        page = operator.open()
        page.evaluate(
            AXE.read_text(encoding="utf-8")
        )  # through the debugger: the page's policy allows no further script
        for view in VIEWS:
            go(page, view)
            page.locator("main .loading").first.wait_for(state="detached")
            problems += _violations(page, view)
            if page.evaluate(SQUEEZED):
                problems.append(f"{view}: something has no room")
            page.set_viewport_size({"width": 360, "height": 740})
            # Without motion: what began to fade in the light ends fading in the light.
            page.emulate_media(color_scheme="dark", reduced_motion="reduce")
            problems += _violations(page, f"{view}, dark and narrow", ["color-contrast", "scrollable-region-focusable"])
            if page.evaluate(WIDER):
                problems.append(f"{view}: wider than the window")
            page.set_viewport_size({"width": 1280, "height": 800})
            page.emulate_media(color_scheme="light", reduced_motion="no-preference")
    assert not problems, "\n".join(problems)


def _violations(page: Page, where: str, rules: list[str] | None = None) -> list[str]:
    options = {"resultTypes": ["violations"]} | ({} if rules is None else {"runOnly": rules})
    found = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{where}: {one['id']}: {one['help']}: {[node['html'][:150] for node in one['nodes'][:3]]}"
        for one in found["violations"]
    ]

"""A real Chromium in front of the console, as an operator has it, that notes everything which must not happen."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
# Debian's package, as root, without a screen. No part of it may connect to another machine.
FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
WAIT_MS: Final = 120_000  # for something to be seen, on a busy machine
ROWS: Final = ".space .line:not([hidden])"  # of the grid
# Runs before the page: a violation of the policy for content is an event.
_WATCH: Final = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective + " " + event.blockedURI));
"""


def require(program: str | None, what: str) -> str:
    """Return the path of a program; skip the test where it is missing, fail where CI=true."""
    if program is not None:
        return program
    text = f"{what} is not installed (make test-deps)"
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text)


expect.set_options(timeout=WAIT_MS)


@contextmanager
def open_browser(*flags: str) -> Iterator[Browser]:
    """Start a Chromium with a folder of its own for the length of a block, with further flags."""
    path = require(next(filter(None, map(shutil.which, BROWSERS)), None), "chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


class OperatorPage:
    """A tab with the console.

    Attributes:
        page: The tab.
        allowed: Texts of console errors that the test itself brings about.
    """

    def __init__(self, page: Page, origin: str) -> None:
        """Watch a tab."""
        self.page: Final = page
        self.allowed: Final[list[str]] = []
        self._origin: Final = origin
        self._wrong: Final[list[str]] = []
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(_WATCH)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._wrong.append(f"error: {error}"))
        page.on("dialog", self._on_dialog)
        page.on("request", self._on_request)

    def open(self, view: str = "") -> Page:
        """Load the page again, at a view such as `topics?glob=a`."""
        self.page.goto("about:blank")
        self.page.goto(f"{self._origin}/console/#/{view}")
        self.page.locator("main h1").wait_for()
        return self.page

    def assert_clean(self) -> None:
        """Assert that nothing happened that never may: errors, dialogs, requests elsewhere, violations of the policy for content."""
        wrong = [text for text in self._wrong if not any(allowed in text for allowed in self.allowed)]
        wrong += [f"violation: {text}" for text in self.page.evaluate("window.violations ?? []")]
        assert not wrong, wrong

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._wrong.append(f"console: {message.text}")

    def _on_dialog(self, dialog: Any) -> None:
        self._wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self._origin + "/", "about:")):
            self._wrong.append(f"request: {request.url}")


def go(page: Page, view: str) -> None:
    """Go to another view of the page that is open, and wait until it is there: an address such as `sessions?find=a`."""
    page.goto(page.url.split("#")[0] + f"#/{view}")
    page.locator(f"main.view-{view.partition('?')[0]}").wait_for()


def wait_for_answer(page: Page, **query: str) -> None:
    """Wait until the rows of the listing are the answer to a query that has these parameters.

    Needed between a filter that is filled and a click on a row. Until the gateway answers, the rows are those of the query before.
    """
    shown = page.locator("[data-shows]:visible").first
    for pair in query.items():
        asked = re.escape(urlencode([pair], safe="*"))
        expect(shown).to_have_attribute("data-shows", re.compile(f"(^|&){asked}(&|$)"))


@contextmanager
def operator(
    browser: Browser,
    origin: str,
    certificates: Path,
    name: str = "operator",
    width: int = 1280,
    height: int = 800,
    colours: Literal["light", "dark"] = "light",
    scale: float = 1,
) -> Iterator[OperatorPage]:
    """Open a tab with the certificate of `name` for the length of a block, and assert at its end that it stayed clean."""
    context: BrowserContext = browser.new_context(
        ignore_https_errors=True,
        viewport={"width": width, "height": height},
        color_scheme=colours,
        device_scale_factor=scale,
        client_certificates=[
            {
                "origin": origin,
                "certPath": str(certificates / f"{name}.pem"),
                "keyPath": str(certificates / f"{name}.key"),
            }
        ],
    )
    try:
        page = OperatorPage(context.new_page(), origin)
        yield page
        page.assert_clean()
    finally:
        context.close()

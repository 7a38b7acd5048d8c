"""Measure how soon a page shows its values on a slow line: `python -m tests.web.load --machines 50`."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

import click
from playwright.sync_api import Browser

from tests.console.operator_browser import WAIT_MS, open_browser
from tests.web.floor import open_floor
from tests.web.line import Line, slow_line

LIMIT_S: Final = 1.0
SHOWN: Final = "/shown"  # the page asks for it once it shows all values, so that the line knows
_WATCH: Final = """
  const watch = () => {
    const shown = document.querySelector("#shown");
    if (shown && Number(shown.textContent) === MACHINES && !window.shownAt) {
      window.shownAt = performance.now();
      fetch("/shown");
    }
  };
  new MutationObserver(watch).observe(document, { subtree: true, childList: true, characterData: true });
"""


@contextmanager
def browser_behind(address: str, line: Line) -> Iterator[Browser]:
    """Run a Chromium that reaches an address over a line."""
    host, port = urlsplit(address).hostname, urlsplit(address).port
    with (
        slow_line(line) as slow,
        open_browser(f"--host-resolver-rules=MAP {host}:{port} 127.0.0.1:{slow}") as browser,
    ):
        yield browser


def load(browser: Browser, address: str, machines: int, line: Line) -> tuple[float, int]:
    """Load the page with an empty cache. Return the seconds and the round trips until it shows all values."""
    line.reset()
    context = browser.new_context()
    try:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(_WATCH.replace("MACHINES", str(machines)))
        with page.expect_response(lambda response: response.url.endswith(SHOWN)):
            page.goto(address)
        shown_s = page.evaluate("() => window.shownAt") / 1000
    finally:
        context.close()
    return shown_s, dict(line.asked)[SHOWN] - 1


@click.command(help=__doc__)
@click.option("--machines", default=50, show_default=True, help="Topics of the page.")
@click.option("--round-trip-ms", default=150, show_default=True, help="Round trip of the line.")
@click.option("--kbit", default=1600, show_default=True, help="Rate of the line in each direction, kbit/s.")
@click.option("--loads", default=10, show_default=True, help="Loads of the page, each with an empty cache.")
def main(machines: int, round_trip_ms: int, kbit: int, loads: int) -> None:
    """Load the venue floor again and again; exit with 1 if the median is above a second."""
    with TemporaryDirectory() as name, open_floor(Path(name), machines) as address:
        line = Line(urlsplit(address).port or 80, round_trip_ms / 1000, kbit * 125)
        with browser_behind(address, line) as browser:
            found = [load(browser, address, machines, line) for _ in range(loads)]
    times_s = [shown_s for shown_s, _ in found]
    median_s, trips = statistics.median(times_s), statistics.median([trips for _, trips in found])
    click.echo(
        f"{machines} values after {median_s:.2f} s ({min(times_s):.2f} to {max(times_s):.2f}, {loads} loads), "
        f"{trips:.0f} round trips of {round_trip_ms} ms"
    )
    raise SystemExit(median_s > LIMIT_S)


if __name__ == "__main__":
    main()

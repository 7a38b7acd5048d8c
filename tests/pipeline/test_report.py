"""The report of a journal, opened in a real browser."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from maxam.bench.archive import write_archive
from maxam.pipeline.main import main
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRAWN_MS = 3000  # of the page's own time, which passes as fast as it has nothing to do
CHARTS = 11
# Stands before everything else in the page, and leaves what it has seen in an attribute that --dump-dom shows.
WITNESS = """<script>{
  const errors = [];
  addEventListener("error", event => errors.push(String(event.message || event.target.outerHTML)), true);
  addEventListener("unhandledrejection", event => errors.push(String(event.reason)));
  addEventListener("securitypolicyviolation", event => errors.push(`refused: ${event.blockedURI}`));
  for (const level of ["error", "warn"]) console[level] = (...words) => errors.push(words.map(String).join(" "));
  setTimeout(() => {
    const charts = [...document.querySelectorAll(".chart")];
    document.documentElement.dataset.seen = JSON.stringify({
      charts: charts.length,
      drawn: charts.filter(chart => chart.querySelector("svg")?.getBoundingClientRect().height > 40).length,
      marked: charts.filter(chart => [...chart.querySelectorAll(".mark")].some(mark => mark.getBBox().width + mark.getBBox().height > 2)).length,
      requests: performance.getEntriesByType("resource").map(entry => entry.name),
      errors,
    });
  }, DRAWN_MS);
}</script>""".replace("DRAWN_MS", str(DRAWN_MS))


@pytest.fixture
def browser() -> str:
    """Find a headless browser; without one, skip loudly, but fail where CI runs."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no browser: install chromium")
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    return found


def look(browser: str, page: str, folder: Path) -> dict[str, Any]:
    """Open a page as a file, and return what a witness in it saw."""
    file = folder / "page.html"
    file.write_text(page.replace("<head>", "<head>" + WITNESS, 1), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}/profile"]
    options.append("--disable-dev-shm-usage")  # which is small in many containers, and shared by all programs
    done = subprocess.run(
        [browser, *options, f"--virtual-time-budget={DRAWN_MS * 2}", "--dump-dom", file.as_uri()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    seen = re.search(r'<html[^>]* data-seen="([^"]*)"', done.stdout)
    assert seen is not None, done.stderr
    found = json.loads(html.unescape(seen[1]))
    assert isinstance(found, dict)
    return found


def test_a_browser_draws_every_chart_and_asks_nobody_for_anything(
    spark: SparkSession, browser: str, tmp_path: Path
) -> None:
    """The report of a journal with rejected SENDs draws all its charts, without an error and without any request."""
    assert spark is not None
    write_archive(tmp_path / "journal", 20_000, topics=100, days=3, rejected_every=100)
    page = tmp_path / "report.html"
    done = CliRunner().invoke(main, ["report", "--journal", str(tmp_path / "journal"), "--out", str(page)])
    assert (done.exit_code, done.output) == (0, f"written: {page}\n")
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < 1_000_000
    assert "20,000" in text  # changes
    assert "200" in text  # SENDs rejected
    assert look(browser, text, tmp_path) == {
        "charts": CHARTS,
        "drawn": CHARTS,
        "marked": CHARTS,
        "requests": [],
        "errors": [],
    }


def test_a_journal_without_a_change_is_a_page_that_says_so(spark: SparkSession, browser: str, tmp_path: Path) -> None:
    """An empty journal has a report without charts and without errors."""
    assert spark is not None
    (tmp_path / "journal" / "segments").mkdir(parents=True)
    page = tmp_path / "report.html"
    done = CliRunner().invoke(main, ["report", "--journal", str(tmp_path / "journal"), "--out", str(page)])
    assert done.exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "The archive is empty." in text
    assert look(browser, text, tmp_path) == {"charts": 0, "drawn": 0, "marked": 0, "requests": [], "errors": []}


def test_the_witness_sees_errors_and_requests(browser: str, tmp_path: Path) -> None:
    """The witness sees what the tests above exclude: an error, a word on the console, a request, and one that is refused."""
    policy = '<meta http-equiv="Content-Security-Policy" content="connect-src \'none\'">'
    script = "<script>console.error('told'); fetch('http://127.0.0.1:9/refused').catch(() => 0); unknown()</script>"
    page = f'<html><head>{policy}</head><body><img src="http://127.0.0.1:9/asked">{script}</body></html>'
    seen = look(browser, page, tmp_path)
    assert seen["requests"] == ["http://127.0.0.1:9/asked"]
    for trace in ("told", "unknown is not defined", "http://127.0.0.1:9/asked", "refused: http://127.0.0.1:9/refused"):
        assert trace in " ".join(seen["errors"])

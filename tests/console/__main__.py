"""`python -m tests.console measure | pictures FOLDER`: how fast the console is, and what it looks like."""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

import click
from playwright.sync_api import Page, expect

from tests.console.floor import open_floor
from tests.console.operator_browser import ROWS, open_browser, operator
from tests.console.pictures import take_pictures

TOPICS: Final = 100_000
UPDATES_PER_S: Final = 5000
ROUNDS: Final = 10
FILTERS: Final = ("X/Floor.0500", "00777", "X/Floor.*9.Counter", "X/Floor.000000.Counter")
_ROW: Final = "document.querySelector('.space .line:not([hidden]):not(.unknown) .value')?.textContent"
# From the key to the frame after the one that shows rows of the new filter, with values.
_TIME_FILTER: Final = """async (typed) => {
  const input = document.querySelector("input.filter");
  const wanted = new RegExp(typed.replaceAll(".", "\\\\.").replaceAll("*", ".*"));
  const old = document.querySelector(".space .line:not([hidden])");
  input.value = typed;
  const begin = performance.now();
  input.dispatchEvent(new Event("input"));
  for (;;) {
    await new Promise(requestAnimationFrame);
    const names = [...document.querySelectorAll(".space .line:not([hidden])")];
    if (names.length && names.every((one) => wanted.test(one.querySelector(".name").textContent))
        && names.some((one) => one.querySelector(".value").textContent)) return performance.now() - begin;
    if (performance.now() - begin > 20000) return NaN;
  }
}"""
_TIME_FIRST: Final = f"""async () => {{
  for (;;) {{
    if ({_ROW}) return performance.now();
    await new Promise(requestAnimationFrame);
  }}
}}"""


@click.group()
def main() -> None:
    """Measurements that take longer than a test may."""


@main.command()
@click.option("--seconds", default=20, show_default=True, help="How long memory and frames are watched.")
def measure(seconds: int) -> None:
    """Time the first rows and filters with 100,000 topics and 5,000 updates/s, and watch memory."""
    with tempfile.TemporaryDirectory() as name, open_browser() as browser, open_floor(Path(name)) as floor:
        floor.seed(TOPICS)
        with (
            floor.updates(UPDATES_PER_S),
            operator(browser, floor.origin, floor.gateway.certificates) as tab,
        ):
            page = tab.page
            first = []
            for _ in range(ROUNDS):
                page.goto("about:blank")
                page.goto(f"{floor.origin}/console/#/topics", wait_until="commit")
                first.append(page.evaluate(_TIME_FIRST) / 1000)
            _tell("first rows with values, from the address on, s", first)
            for typed in FILTERS:
                times = []
                for _ in range(ROUNDS):
                    page.locator("input.filter").first.fill("X/Last.Blob")  # another one first
                    expect(page.locator(f"{ROWS} .name")).to_have_text(["X/Last.Blob"])
                    expect(page.locator(f"{ROWS} .value")).to_contain_text("not decoded")
                    times.append(page.evaluate(_TIME_FILTER, typed))
                _tell(f"filter {typed}, from the key to the rows, ms", times)
            _watch(page, seconds)


def _watch(page: Page, seconds: int) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    page.locator("input.filter").first.fill("X/Floor.")

    def figures() -> dict[str, float]:
        session.send("HeapProfiler.collectGarbage")
        return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}

    page.wait_for_timeout(3000)
    before = figures()
    page.wait_for_timeout(seconds * 1000)
    after = figures()
    busy = {
        name: after[name] - before[name]
        for name in ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
    }
    click.echo(
        f"heap {before['JSHeapUsedSize'] / 2**20:.2f} MiB, {seconds} s later {after['JSHeapUsedSize'] / 2**20:.2f}"
    )
    click.echo(f"nodes {before['Nodes']:.0f}, later {after['Nodes']:.0f}")
    click.echo(", ".join(f"{name} {value / seconds:.1%}" for name, value in busy.items()))


def _tell(what: str, values: list[float]) -> None:
    click.echo(f"{what}: median {statistics.median(values):.3g}, largest {max(values):.3g}")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
def pictures(folder: Path) -> None:
    """Write the pictures of docs/operate/console.md, of a floor that the demo plays."""
    folder.mkdir(parents=True, exist_ok=True)
    take_pictures(folder)


if __name__ == "__main__":
    sys.exit(main())

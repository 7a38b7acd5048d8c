"""`python -m tests.web FOLDER`: the pictures of the README, taken of the venue floor while its machines play."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from playwright.sync_api import ViewportSize, expect

from tests.console.operator_browser import WAIT_MS, open_browser
from tests.web.floor import open_floor

MACHINES: Final = 300
PLAY_MS: Final = 15_000  # so that the floor is busy
COLOURS: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")


def main(folder: Path) -> None:
    """Take one picture of each colour scheme."""
    with TemporaryDirectory() as name, open_floor(Path(name), MACHINES, 0.3) as address, open_browser() as browser:
        for colours in COLOURS:
            view: ViewportSize = {"width": 1280, "height": 716}
            page = browser.new_context(viewport=view, color_scheme=colours, reduced_motion="reduce").new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(address)
            page.locator("#connection.live").wait_for()
            expect(page.locator("#shown")).to_have_text(str(MACHINES))
            page.wait_for_timeout(PLAY_MS)
            page.locator(".machine.playing").first.click()
            page.screenshot(path=folder / f"floor-{colours}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

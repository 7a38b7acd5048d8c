"""The console's sources, checked without a browser."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import maxam.api
from maxam.broker.delivery_state import CODES
from maxam.gateway.staleness import Cause
from tests.console.operator_browser import require

HERE = Path(__file__).parent
FOLDER = Path(maxam.api.__file__).parent / "console"
TSC = HERE / "node_modules" / ".bin" / "tsc"
# Functions that would make markup or code of a text. The browser refuses most of it, too: the policy for content allows no trusted types.
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc|\beval\(|new Function"
    r"|setAttribute\([\"']on|javascript:|[\"']style[\"']\s*[:,]"
)


def test_scripts_agree_with_their_types(tmp_path: Path) -> None:
    """TypeScript, as strict as it can be, finds nothing wrong in the types that the comments of the scripts declare."""
    node = require(shutil.which("node"), "Node.js")
    require(str(TSC) if TSC.exists() else None, "typescript")
    settings = tmp_path / "tsconfig.json"
    settings.write_text(f'{{"extends": "{HERE / "tsconfig.json"}", "include": ["{FOLDER}/**/*.js"]}}', encoding="utf-8")
    done = subprocess.run([node, str(TSC), "--project", str(settings)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_each_code_has_a_text() -> None:
    """The console has a text for each cause of a missing value and of staleness, and none that does not exist."""
    for name, codes in (("explain", CODES), ("staleness", [cause for cause in get_args(Cause) if cause])):
        text = (FOLDER / "views" / f"{name}.js").read_text(encoding="utf-8")
        table = text.split("({\n", 1)[1].split("\n});", 1)[0]
        keys = re.findall(r'^  "?([a-z-]+)"?: ', table, re.MULTILINE)
        assert sorted(keys) == sorted(codes)


def test_no_script_makes_markup_of_text() -> None:
    """None of the scripts has a call that makes markup or code out of a text, and the page has no inline script or style."""
    for path in FOLDER.rglob("*.js"):
        assert not (found := SINKS.findall(path.read_text(encoding="utf-8"))), (path, found)
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\bsrc=)", page)


def test_nothing_is_fetched_from_elsewhere() -> None:
    """No file has an address of another host, except the namespaces of XML vocabularies."""
    for path in FOLDER.rglob("*.*"):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|url\(|@import|\bsrc=[\"']//", text), path

"""How many round trips a page needs until it shows its values. `make web-load` measures the time."""

import ast
from pathlib import Path
from urllib.parse import urlsplit

from tests.web.floor import ROOT, open_floor
from tests.web.line import Line
from tests.web.load import SHOWN, browser_behind, load

MACHINES = 50  # at most as many as the first flight of a subscription
ROUND_TRIP_S = 0.3  # longer than any program takes to react
CODE_LINES_MAX = 60  # of the backend, without blank lines, comments and docstrings
LOADS = 5  # one that is not held up on a busy machine is enough


def code_lines(path: Path) -> list[str]:
    """Return the lines of a module without blank lines, comments and docstrings."""
    text = path.read_text()
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    texts = [node for node in nodes if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)]
    left_out = {number for node in texts for number in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in left_out]
    return [line for line in lines if line and not line.startswith("#")]


def test_fifty_values_are_shown_after_five_round_trips(tmp_path: Path) -> None:
    """Two round trips bring the page, two its socket, and one all values: CONNECT, SUBSCRIBE and the ticket wait for nothing.

    The backend that does this is 60 lines of code or less.
    """
    assert len(code_lines(ROOT / "docs" / "examples" / "floor" / "backend.py")) <= CODE_LINES_MAX
    with open_floor(tmp_path, MACHINES, 0.01) as address:
        line = Line(urlsplit(address).port or 80, ROUND_TRIP_S)
        with browser_behind(address, line) as browser:
            trips = 0
            for _ in range(LOADS):
                _, trips = load(browser, address, MACHINES, line)
                assert sorted(path for path, _ in line.asked) == ["/", SHOWN, "/stomp", "/ticket"]
                assert line.connections == 2
                if trips == 5:
                    break
            assert trips == 5

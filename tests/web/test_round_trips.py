"""How many round trips a page needs until it shows its values. `make web-load` measures the time."""

from pathlib import Path
from urllib.parse import urlsplit

from tests.web.floor import open_floor
from tests.web.line import Line
from tests.web.load import SHOWN, browser_behind, load

MACHINES = 50  # at most as many as the first flight of a subscription
ROUND_TRIP_S = 0.3  # longer than any program takes to react
LOADS = 5  # one that is not held up on a busy machine is enough


def test_fifty_values_are_shown_after_five_round_trips(tmp_path: Path) -> None:
    """Two round trips bring the page, two its socket, and one all values: CONNECT, SUBSCRIBE and the ticket wait for nothing."""
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

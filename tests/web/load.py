"""Measure how soon a page shows its values on a slow line: `python -m tests.web.load --machines 50`."""

import queue
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

import click

from tests.console.operator_browser import WAIT_MS, open_browser
from tests.web.floor import open_floor

LIMIT_S: Final = 1.0
_PIECE_BYTES: Final = 16_384
_WATCH: Final = """
  const watch = () => {
    const shown = document.querySelector("#shown");
    if (shown && Number(shown.textContent) === MACHINES && !window.shownAt) window.shownAt = performance.now();
  };
  new MutationObserver(watch).observe(document, { subtree: true, childList: true, characterData: true });
"""


def _carry(source: socket.socket, target: socket.socket, delay_s: float, bytes_per_s: float) -> None:
    """Forward bytes after a delay, at a rate that is limited."""
    pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def write() -> None:
        free_s = 0.0
        with suppress(OSError):
            while True:
                due_s, data = pieces.get()
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                free_s = max(free_s, due_s) + len(data) / bytes_per_s
                time.sleep(max(0.0, free_s - time.monotonic()))
                target.sendall(data)

    threading.Thread(target=write, daemon=True).start()
    data = b"-"
    while data:
        try:
            data = source.recv(_PIECE_BYTES)
        except OSError:
            data = b""
        pieces.put((time.monotonic() + delay_s, data))


@contextmanager
def slow_line(port: int, round_trip_s: float, bytes_per_s: float) -> Iterator[int]:
    """Forward a port with a delay and a rate in each direction; yield the port to connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    near, _ = listening.accept()
                    far = socket.create_connection(("127.0.0.1", port))
                    for one, other in ((near, far), (far, near)):
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        options = (one, other, round_trip_s / 2, bytes_per_s)
                        threading.Thread(target=_carry, args=options, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@click.command(help=__doc__)
@click.option("--machines", default=50, show_default=True, help="Topics of the page.")
@click.option("--round-trip-ms", default=150, show_default=True, help="Round trip of the line.")
@click.option("--kbit", default=1600, show_default=True, help="Rate of the line in each direction, kbit/s.")
@click.option("--loads", default=10, show_default=True, help="Loads of the page, each with an empty cache.")
def main(machines: int, round_trip_ms: int, kbit: int, loads: int) -> None:
    """Load the venue floor again and again; exit with 1 if the median is above a second."""
    found = []
    with TemporaryDirectory() as name, open_floor(Path(name), machines) as address:
        port = urlsplit(address).port or 80
        line = slow_line(port, round_trip_ms / 1000, kbit * 125)
        with line as slow, open_browser(f"--host-resolver-rules=MAP 127.0.0.1:{port} 127.0.0.1:{slow}") as browser:
            for _ in range(loads):
                context = browser.new_context()
                page = context.new_page()
                page.set_default_timeout(WAIT_MS)
                page.add_init_script(_WATCH.replace("MACHINES", str(machines)))
                page.goto(address)
                while not (shown_ms := page.evaluate("() => window.shownAt || 0")):
                    page.wait_for_timeout(50)
                found.append(shown_ms / 1000)
                context.close()
    median_s = statistics.median(found)
    click.echo(f"{machines} values after {median_s:.2f} s ({min(found):.2f} to {max(found):.2f}, {loads} loads)")
    raise SystemExit(median_s > LIMIT_S)


if __name__ == "__main__":
    main()

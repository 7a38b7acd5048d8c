"""Tell systemd what state the service is in, and that it is alive."""

import contextlib
import os
import socket
from collections.abc import Callable, Mapping

import trio


def notify(state: str) -> None:
    """Send `state`, such as `READY=1`, to the service manager that started us, if one did."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        address = "\0" + path[1:] if path.startswith("@") else path
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(address)
            sender.send(state.encode())


def watchdog_interval_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Return how often the service manager must hear of us, in seconds: half of what it waits for; None: it does not ask."""
    asked = environment.get("WATCHDOG_USEC", "")
    if not asked.isascii() or not asked.isdigit() or int(asked) == 0:
        return None
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):  # it asks the process that started us
        return None
    return int(asked) / 2e6


async def keep_watchdog(alive: Callable[[], bool]) -> None:
    """Tell a service manager that asks for it, again and again, that the event loop turns and `alive` holds; until cancelled.

    Whoever is not heard of is killed and started again. So `alive` is about what a new start would mend: not about a disk that is slow.
    """
    interval_s = watchdog_interval_s(os.environ, os.getpid())
    if interval_s is None:
        return
    while True:
        if alive():
            notify("WATCHDOG=1")
        await trio.sleep(interval_s)

"""Report to systemd the state of the service, and that it is alive."""

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final, final

import trio

_REPORT_INTERVAL_S: Final = 5.0  # between two reports of a start's progress
_EXTEND_S: Final = 300  # a start without progress for this long is stuck, and systemd ends it


def notify(state: str) -> None:
    """Send `state`, such as `READY=1`, to the service manager that started us, if one did."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        address = "\0" + path[1:] if path.startswith("@") else path
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(address)
            sender.send(state.encode())


@final
class StartProgress:
    """Keeps the service manager from ending a start that takes long but goes on. `report` is inexpensive to call often."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Report at once with the first call; `clock` returns monotonic seconds."""
        self._clock: Final = clock
        self._next_s = clock()

    def report(self, status: str) -> None:
        """Extend the start's time-out by _EXTEND_S from now, if the last report is old enough; `status` shows in `systemctl status`."""
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + _REPORT_INTERVAL_S
            notify(f"EXTEND_TIMEOUT_USEC={_EXTEND_S * 1_000_000}\nSTATUS={status}")


def watchdog_interval_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Return the interval of keep-alive messages to the service manager, in seconds: half of its limit. None if it wants none."""
    asked = environment.get("WATCHDOG_USEC", "")
    if not asked.isascii() or not asked.isdigit() or int(asked) == 0:
        return None
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):  # it asks the process that started us
        return None
    return int(asked) / 2e6


async def keep_watchdog(alive: Callable[[], bool]) -> None:
    """Report to the service manager, if it asks for it, that the event loop runs and `alive` holds. Until cancelled.

    A service that stops reporting is killed and started again. So `alive` is about faults that a new start would repair: not about a
    disk that is slow.
    """
    interval_s = watchdog_interval_s(os.environ, os.getpid())
    if interval_s is None:
        return
    while True:
        if alive():
            notify("WATCHDOG=1")
        await trio.sleep(interval_s)

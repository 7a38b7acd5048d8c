"""The time of the next backup, as systemd has it for the timer of `[admin] backup_timer`."""

import os
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, final

import trio

_KNOWN_FOR_S: Final = 60.0
_TIMEOUT_S: Final = 5.0


@final
class BackupTimer:
    """Asks systemd when a timer elapses next, at most once a minute."""

    def __init__(self, timer: str) -> None:
        """Make one; an empty name asks nothing."""
        self._timer: Final = timer
        self._next_at_us: int | None = None
        self._asked_at_s = -_KNOWN_FOR_S

    async def next_at_us(self) -> int | None:
        """Return when the timer elapses next, microseconds since the epoch. None if it is off, or systemd does not answer."""
        now_s = trio.current_time()
        if self._timer and now_s - self._asked_at_s >= _KNOWN_FOR_S:
            self._asked_at_s = now_s
            self._next_at_us = await _asked(self._timer)
        return self._next_at_us


async def _asked(timer: str) -> int | None:
    with trio.move_on_after(_TIMEOUT_S), suppress(OSError, ValueError):
        done = await trio.run_process(
            ["systemctl", "show", "--property=NextElapseUSecRealtime", "--value", "--", timer],
            capture_stdout=True,
            stderr=subprocess.DEVNULL,
            check=False,
            env=os.environ | {"TZ": "UTC", "LC_ALL": "C"},
        )
        at = datetime.strptime(done.stdout.decode().strip(), "%a %Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
        return int(at.timestamp()) * 1_000_000
    return None

"""Notice that files have changed and come to rest.

Theory of operation. What decides is a *mark*: what the system says of every file that matters, and where its path leads. The library
that watches folders is only the alarm that says "look now"; besides, the files are looked at every `poll_interval_s`, so that an
alarm that is lost, or never comes as on network file systems, costs time and nothing else. A mark that stays the same for `quiet_s`
after it has changed is worth a reload; a file that is gone for a moment while an editor renames its successor changes the mark twice.
"""

import contextlib
import logging
import math
import os
from collections.abc import Awaitable, Callable
from typing import Final, final

import trio
from watchfiles import Change, awatch

from maxam.config import ReloadSettings, Settings
from maxam.gateway.bell import Bell
from maxam.gateway.files import Mark, Places
from maxam.gateway.log import log_event
from maxam.gateway.sources import mark_sources

_STEP_MS: Final = 100  # how often the library looks for news of the kernel; to stop it takes as long
_ANSWER_MS: Final = 500  # after which it says that nothing has happened, and so, once, that it listens
_REARM_S: Final = 5.0  # when the library could not watch


@final
class Rest:
    """Decides when a mark that has changed has stayed the same for long enough. No I/O, no clock of its own."""

    __slots__ = ("_quiet_s", "_seen", "_since_s", "_taken")

    def __init__(self, quiet_s: float) -> None:
        """Begin with nothing seen, so that the first mark is a change too: it may be newer than what the start has read."""
        self._quiet_s: Final = quiet_s
        self._taken: Mark = ()
        self._seen: Mark = ()
        self._since_s = -math.inf

    def look(self, mark: Mark, now_s: float) -> bool:
        """Take note of the present mark; return whether what it stands for should be loaded now, which counts as done then."""
        if mark != self._seen:
            self._seen = mark
            self._since_s = now_s
        if self._seen == self._taken or now_s - self._since_s < self._quiet_s:
            return False
        self._taken = self._seen
        return True

    @property
    def due_s(self) -> float:
        """When to look again, whatever happens; infinity: when something happens."""
        return math.inf if self._seen == self._taken else self._since_s + self._quiet_s


@final
class FileWatch:
    """Calls for a reload whenever files that matter have changed and come to rest."""

    def __init__(self, settings: Settings, changed: Callable[[], Awaitable[None]]) -> None:
        """Make it; `run` watches.

        Args:
            settings: Name the files.
            changed: Awaited when they are to be loaded.
        """
        self._settings: Final = settings
        self._reload: Final[ReloadSettings] = settings.reload
        self._changed: Final = changed
        self._bell: Final = Bell()
        self._places = Places(frozenset(), frozenset())
        self._armed = trio.CancelScope()

    async def run(self) -> None:
        """Watch until cancelled."""
        rest = Rest(self._reload.quiet_s)
        self._bell.ring()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            while True:
                poll_s = trio.current_time() + self._reload.poll_interval_s
                await self._bell.wait(min(poll_s, rest.due_s))
                mark, places = await trio.to_thread.run_sync(mark_sources, self._settings)
                if places != self._places:
                    self._places = places
                    self._armed.cancel()
                if rest.look(mark, trio.current_time()):
                    await self._changed()

    async def _listen(self) -> None:
        """Ring the bell whenever something happens where it matters, wherever that is at the time."""
        told = False
        while True:
            places = self._places
            paths = await trio.to_thread.run_sync(_folders, places)
            with trio.CancelScope() as self._armed:
                if places is not self._places:
                    continue
                try:
                    await self._ring_for(paths, places)
                except* (OSError, RuntimeError) as errors:  # no more watches are to be had, or a folder is gone
                    if not told:
                        told = True
                        log_event(
                            logging.WARNING,
                            "watch-failed",
                            error=errors.exceptions[0],
                            action=f"changed files are noticed within {self._reload.poll_interval_s:g} s only",
                        )
                await trio.sleep(_REARM_S)

    async def _ring_for(self, paths: list[str], places: Places) -> None:
        def matters(_change: Change, path: str) -> bool:
            return path in places.names or path in places.folders or os.path.dirname(path) in places.folders  # noqa: PTH120  # plain texts do

        # A cancellation does not reach its thread before that ends by itself, after seconds: this does.
        stop = trio.Event()  # asked by its thread, set by us
        changes = awatch(
            *paths,
            watch_filter=matters,
            debounce=_STEP_MS,
            step=_STEP_MS,
            stop_event=stop,
            rust_timeout=_ANSWER_MS,
            yield_on_timeout=True,
            recursive=False,
            force_polling=False,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_set_at_end, stop)
            async with contextlib.aclosing(changes):
                armed = False
                async for found in changes:
                    if found or not armed:  # what happened before it listened, it does not tell
                        armed = True
                        self._bell.ring()
            nursery.cancel_scope.cancel()


async def _set_at_end(stop: trio.Event) -> None:
    try:
        await trio.sleep_forever()
    finally:
        stop.set()


def _folders(places: Places) -> list[str]:
    """Return the folders to listen to: the library takes only what is there."""
    folders = {*places.folders, *(os.path.dirname(name) for name in places.names)}  # noqa: PTH120  # plain texts do
    return [folder for folder in sorted(folders) if os.path.isdir(folder)]  # noqa: PTH112  # Path's raises where access is denied

"""Notice that files have changed and come to rest.

Theory of operation. What decides is a *mark*: what the system says of every file that matters, and where its path leads. The library
that watches folders is only the alarm that says "look now"; besides, the files are looked at every `poll_interval_s`, so that an
alarm that is lost, or never comes as on network file systems, costs time and nothing else. A mark that stays the same for `quiet_s`
after it has changed is worth a reload; a file that is gone for a moment while an editor renames its successor changes the mark twice. The
reload must find the same mark when it has read: a file that is written in place just then was read empty or half, and nothing is loaded.
Files that never come to rest, or never for as long as it takes to read them, are loaded as they are, at long intervals. What was refused is tried again, less and less often, as the
cause may lie outside the files: a full disk, a topic that would have no rule, a certificate that is not valid yet.
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
_UNREST_MAX: Final = 30  # times `quiet_s`: files that change for longer are not waited for
_UNREST_S_MIN: Final = 1.0  # but for as long as this they are, however short `quiet_s` is
RETRY_S_MIN: Final = 5.0  # after a refusal; each one after it doubles the wait
RETRY_S_MAX: Final = 300.0  # to read and check 1,000 schemas takes a second of a thread


@final
class Rest:
    """Decides when a mark that has changed has stayed the same for long enough, or what was refused is due again. No I/O, no clock of its own."""

    __slots__ = (
        "_at_rest",
        "_before",
        "_moved_s",
        "_quiet_s",
        "_retry_s",
        "_retry_wait_s",
        "_seen",
        "_since_s",
        "_taken",
        "_unrest_s",
    )

    def __init__(self, quiet_s: float) -> None:
        """Begin with nothing seen, so that the first mark is a change too: it may be newer than what the start has read."""
        self._quiet_s: Final = quiet_s
        self._unrest_s: Final = max(_UNREST_MAX * quiet_s, _UNREST_S_MIN)
        self._taken: Mark = ()
        self._before: Mark = ()  # what was taken before that
        self._seen: Mark = ()
        self._since_s = -math.inf  # the mark is what it is
        self._at_rest = True  # what was taken last
        self._moved_s = math.inf  # since when it has been another than what was taken
        self._retry_s = math.inf
        self._retry_wait_s = RETRY_S_MIN

    def look(self, mark: Mark, now_s: float) -> bool:
        """Take note of the present mark; return whether what it stands for should be loaded now: say then what became of it."""
        if mark != self._seen:
            self._seen = mark
            self._since_s = now_s
        if self._seen == self._taken:
            self._moved_s = math.inf
        else:
            self._moved_s = min(self._moved_s, now_s)
        if now_s < self.due_s:
            return False
        if self._seen != self._taken:
            self._retry_wait_s = RETRY_S_MIN
        self._before, self._taken = self._taken, self._seen
        self._retry_s = math.inf
        self._at_rest = self.rested(now_s)
        return True

    def rested(self, now_s: float) -> bool:
        """Say whether the mark is what it has been for long enough; if not, it is loaded because it never comes to rest."""
        return self._since_s + self._quiet_s <= now_s < self._moved_s + self._unrest_s

    def loaded(self, good: bool, now_s: float) -> None:
        """Say what became of what was to be loaded; unless all of it is in force it is due again after a while."""
        if not self._at_rest:
            self._taken = ()  # what was read may be another state than the mark tells, which may come back
        self._moved_s = math.inf
        self._retry_s = math.inf if good else now_s + self._retry_wait_s
        self._retry_wait_s = RETRY_S_MIN if good else min(2 * self._retry_wait_s, RETRY_S_MAX)

    def put_off(self, now_s: float) -> None:
        """Say that nothing was loaded, as the files changed while they were read: they have been moving since they did before that."""
        self._taken = self._before
        self._retry_s = now_s + self._retry_wait_s  # should they be again what they were

    @property
    def due_s(self) -> float:
        """When to look again, whatever happens; infinity: when something happens."""
        if self._seen == self._taken:
            return self._retry_s
        return min(self._since_s + self._quiet_s, self._moved_s + self._unrest_s)


@final
class FileWatch:
    """Calls for a reload whenever files that matter have changed and come to rest."""

    def __init__(self, settings: Settings, changed: Callable[[Mark | None], Awaitable[bool | None]]) -> None:
        """Make it; `run` watches.

        Args:
            settings: Name the files.
            changed: Awaited when they are to be loaded; says whether all of them are in force. Given the mark of files at rest: what is
                read counts only if they have it still, else it says None. Given None: they never come to rest.
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
                now_s = trio.current_time()
                if rest.look(mark, now_s):
                    good = await self._changed(mark if rest.rested(now_s) else None)
                    if good is None:
                        rest.put_off(trio.current_time())
                    else:
                        rest.loaded(good, trio.current_time())

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

"""Notice that files have changed and come to rest.

Theory of operation. A *stamp* decides: the system's facts about every file that matters, and where its path leads. The library that
watches folders is only the alarm. The files are also checked every `poll_interval_s`. So an alarm that is lost, or never comes as on
network file systems, costs time and nothing else. A stamp that stays the same for `debounce_s` after it has changed is worth a reload. A file
that is gone for a moment while an editor renames its successor changes the stamp twice. The reload must find the same stamp after
reading. If it differs, a file that is being written in place was read empty or half, and nothing is loaded. Files that never come to
rest long enough to be read are loaded as they are, at long intervals. Refused files are tried again, less and less often. The cause
may lie outside the files: a full disk, a topic that would have no rule, a certificate that is not valid yet.
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
from maxam.files import FileStamp, Places
from maxam.gateway.auto_reset_event import AutoResetEvent
from maxam.gateway.loaded_config import stamp_files
from maxam.gateway.log import log_event

_STEP_MS: Final = 100  # how often the library asks the kernel for news; to stop it takes as long
_ANSWER_MS: Final = 500  # after which it reports that nothing has happened, and so, once, that it listens
_REARM_S: Final = 5.0  # when the library could not watch
_UNREST_MAX: Final = 30  # times `debounce_s`: files that change for longer are not waited for
_UNREST_S_MIN: Final = 1.0  # except for this long, however short `debounce_s` is
RETRY_S_MIN: Final = 5.0  # after a refusal; each one after it doubles the wait
RETRY_S_MAX: Final = 300.0  # to read and check 1,000 schemas takes a second of a thread


@final
class Debouncer:
    """Decides when a stamp that has changed has stayed the same for long enough, or what was refused is due again. No I/O, no clock of its own."""

    __slots__ = (
        "_at_rest",
        "_before",
        "_debounce_s",
        "_moved_s",
        "_retry_s",
        "_retry_wait_s",
        "_seen",
        "_since_s",
        "_taken",
        "_unrest_s",
    )

    def __init__(self, debounce_s: float) -> None:
        """Begin with nothing seen, so that the first stamp is a change too: it may be newer than what the start has read."""
        self._debounce_s: Final = debounce_s
        self._unrest_s: Final = max(_UNREST_MAX * debounce_s, _UNREST_S_MIN)
        self._taken: FileStamp = ()
        self._before: FileStamp = ()  # what was taken before that
        self._seen: FileStamp = ()
        self._since_s = -math.inf  # the stamp is what it is
        self._at_rest = True  # what was taken last
        self._moved_s = math.inf  # since when it has been another than what was taken
        self._retry_s = math.inf
        self._retry_wait_s = RETRY_S_MIN

    def observe(self, stamp: FileStamp, now_s: float) -> bool:
        """Record the present stamp. Return True if its files should be loaded now. Report the result with `loaded` then."""
        if stamp != self._seen:
            self._seen = stamp
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
        """Return True if the stamp has stayed the same for long enough. If not, it is loaded because it never comes to rest."""
        return self._since_s + self._debounce_s <= now_s < self._moved_s + self._unrest_s

    def loaded(self, good: bool, now_s: float) -> None:
        """Record the result of loading. Unless all of it is in force, it is due again after a while."""
        if not self._at_rest:
            self._taken = ()  # the files read may have another state than the stamp, which may come back
        self._moved_s = math.inf
        self._retry_s = math.inf if good else now_s + self._retry_wait_s
        self._retry_wait_s = RETRY_S_MIN if good else min(2 * self._retry_wait_s, RETRY_S_MAX)

    def put_off(self, now_s: float) -> None:
        """Record that nothing was loaded, as the files changed while they were read. They have been moving since before that."""
        self._taken = self._before
        self._retry_s = now_s + self._retry_wait_s  # should they be again what they were

    @property
    def due_s(self) -> float:
        """When to check again, whatever happens. Infinity waits for an event."""
        if self._seen == self._taken:
            return self._retry_s
        return min(self._since_s + self._debounce_s, self._moved_s + self._unrest_s)


@final
class FileWatch:
    """Calls for a reload whenever files that matter have changed and come to rest."""

    def __init__(self, settings: Settings, changed: Callable[[FileStamp | None], Awaitable[bool | None]]) -> None:
        """Make it; `run` watches.

        Args:
            settings: Paths of the files.
            changed: Awaited when they are to be loaded. Returns whether all of them are in force. It gets the stamp of files at rest:
                if they have another stamp after reading, it returns None. It gets None if they never come to rest.
        """
        self._settings: Final = settings
        self._reload: Final[ReloadSettings] = settings.reload
        self._changed: Final = changed
        self._wakeup: Final = AutoResetEvent()
        self._places = Places(frozenset(), frozenset())
        self._armed = trio.CancelScope()

    async def run(self) -> None:
        """Watch until cancelled."""
        debouncer = Debouncer(self._reload.debounce_s)
        self._wakeup.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            while True:
                poll_s = trio.current_time() + self._reload.poll_interval_s
                await self._wakeup.wait(min(poll_s, debouncer.due_s))
                stamp, places = await trio.to_thread.run_sync(stamp_files, self._settings)
                if places != self._places:
                    self._places = places
                    self._armed.cancel()
                now_s = trio.current_time()
                if debouncer.observe(stamp, now_s):
                    good = await self._changed(stamp if debouncer.rested(now_s) else None)
                    if good is None:
                        debouncer.put_off(trio.current_time())
                    else:
                        debouncer.loaded(good, trio.current_time())

    async def _listen(self) -> None:
        """Set the flag whenever a relevant place changes, wherever that is at the time."""
        logged = False
        while True:
            places = self._places
            paths = await trio.to_thread.run_sync(_folders, places)
            with trio.CancelScope() as self._armed:
                if places is not self._places:
                    continue
                try:
                    await self._notify_on_change(paths, places)
                except* (OSError, RuntimeError) as errors:  # no watches are left, or a folder is gone
                    if not logged:
                        logged = True
                        log_event(
                            logging.WARNING,
                            "watch-failed",
                            error=errors.exceptions[0],
                            action=f"changed files are noticed within {self._reload.poll_interval_s:g} s only",
                        )
                await trio.sleep(_REARM_S)

    async def _notify_on_change(self, paths: list[str], places: Places) -> None:
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
                    if found or not armed:  # events before it listened are not reported
                        armed = True
                        self._wakeup.set()
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

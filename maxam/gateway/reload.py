"""Put changed files of operators and integrators into force, each item by itself, without a restart.

Theory of operation. SIGHUP, the admin API and the watch request a reload. One task does it, so that no two overlap and no requester
that stops waiting leaves half of one. Everything is read and checked in a thread, then swapped in one step of the event loop. Code
that runs before the step sees all the old items, and later code all the new ones. An item that cannot be used leaves the old one in
force. It is reported once and stays visible in health and metrics until it is repaired. The answer comes when the old items are out
of force for good: see `AccessMonitor.settle`.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal, Protocol, final

import trio

from maxam.broker.broker import Broker
from maxam.config import Settings
from maxam.errors import DiskFullError
from maxam.files import FileStamp
from maxam.gateway.auto_reset_event import AutoResetEvent
from maxam.gateway.loaded_config import ITEMS, SCHEMAS, LoadedConfig, files_of, reread_config, stamp_files
from maxam.gateway.log import log_event
from maxam.gateway.orphans import COUNTED_MAX, OrphanSearch

UNCHANGED: Final = "unchanged"
RELOADED: Final = "reloaded"
REFUSED: Final = "refused"
WATCH: Final = "watch"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one item.

    Attributes:
        item: One of ITEMS.
        outcome: UNCHANGED, RELOADED or REFUSED.
        detail: Why it was refused, with file and place, or another remark. Often empty.
        files: Files that it comes from.
    """

    item: str
    outcome: Literal["unchanged", "reloaded", "refused"]
    detail: str
    files: tuple[str, ...]


@final
@dataclass(slots=True)
class ItemState:
    """The state of one item after the reloads since the start.

    Attributes:
        reloaded: Number of times it was put into force.
        refused: Number of times it was refused.
        loaded_at_s: Time at which the item in force was loaded, seconds since the epoch.
        failure: Why the files on disk are not in force. Empty while they are.
    """

    loaded_at_s: float
    reloaded: int = 0
    refused: int = 0
    failure: str = ""


@dataclass(slots=True, eq=False)
class _Request:
    """A requested reload. It has no outcomes if the files changed while they were read."""

    trigger: str
    allow_orphans: bool
    at_rest: FileStamp | None = None
    done: trio.Event = field(default_factory=trio.Event)
    outcomes: list[Outcome] = field(default_factory=list)


class Reloaded(Protocol):
    """Other processes that put the same files into force."""

    async def prepare(self, after: LoadedConfig) -> None:
        """Have them read items that are about to come into force."""

    def swap(self, schemas: bool) -> None:
        """Have them put these into force, without the schemas if those are refused."""

    async def settle(self) -> None:
        """Wait until the old items are out of force there."""


@final
class Reloader:
    """Reads everything again when asked, and swaps the valid items.

    Attributes:
        loaded: The items in force. Replaced as a whole.
        items: State of each item.
        fronts: The processes that have the clients; None if the gateway has them itself.
        on_outcome: Called with each item that is put into force or refused, its outcome, the reason, and the origin of the request.
    """

    def __init__(
        self,
        settings: Settings,
        loaded: LoadedConfig,
        broker: Broker,
        keep_schemas: Callable[[Iterable[tuple[str, bytes]]], None],
        settle: Callable[[LoadedConfig], Awaitable[None]],
        wall_us: Callable[[], int],
    ) -> None:
        """Make it; `run` does the work.

        Args:
            settings: Paths of the files.
            loaded: The items in force.
            broker: Gets policy and registry.
            keep_schemas: Stores the texts of schemas before any record refers to them. Called in a thread, and may raise DiskFullError
                and OSError.
            settle: Awaited after each swap with the items in force before it. Returns when those are out of force for good.
            wall_us: Returns the gateway's time in microseconds since the epoch.
        """
        self.loaded = loaded
        self.items: Final = {item: ItemState(wall_us() / 1e6) for item in ITEMS}
        self.on_outcome: Callable[[str, str, str, str], None] | None = None
        self._settings: Final = settings
        self._broker: Final = broker
        self._keep_schemas: Final = keep_schemas
        self._settle: Final = settle
        self._wall_us: Final = wall_us
        self.fronts: Reloaded | None = None
        self._requests: list[_Request] = []
        self._wakeup: Final = AutoResetEvent()

    async def reload(self, trigger: str, allow_orphans: bool = False) -> list[Outcome]:
        """Have everything read again. Return the result of each item, once that is in force.

        Cancelled, it happens nevertheless.

        Args:
            trigger: Origin of the request, for the log.
            allow_orphans: The new schemas may take the rule from topics with values.
        """
        request = self.ask(trigger, allow_orphans)
        await request.done.wait()
        return request.outcomes

    def ask(self, trigger: str, allow_orphans: bool = False) -> _Request:
        """Have everything read again, without waiting."""
        return self._put(_Request(trigger, allow_orphans or self._settings.schemas.allow_orphans))

    def _put(self, request: _Request) -> _Request:
        self._requests.append(request)
        self._wakeup.set()
        return request

    def files(self, item: str) -> list[str]:
        """Return the files of an item, or its folder."""
        return [_printable(str(path)) for path in files_of(item, self._settings)]

    async def watched(self, at_rest: FileStamp | None = None) -> bool | None:
        """Reload because files have changed, or refused ones may be valid by now. Return whether all are in force.

        If the files have another stamp than `at_rest` after reading, nothing is reloaded and the result is None.
        """
        request = self._put(_Request(WATCH, self._settings.schemas.allow_orphans, at_rest))
        await request.done.wait()
        return all(one.outcome != REFUSED for one in request.outcomes) if request.outcomes else None

    async def run(self) -> None:
        """Carry out requests until cancelled. A request while a reload is under way gets the next one."""
        while True:
            await self._wakeup.wait()
            while self._requests:
                requests = self._requests
                self._requests = []
                for allow_orphans in (False, True):
                    alike = [request for request in requests if request.allow_orphans is allow_orphans]
                    if alike:
                        triggers = sorted({request.trigger for request in alike})
                        # Any other request means the files as they are.
                        at_rest = alike[-1].at_rest if triggers == [WATCH] else None
                        outcomes: list[Outcome] = []
                        try:
                            outcomes = await self._reload(triggers, allow_orphans, at_rest)
                        except Exception as error:
                            problem = (
                                f"the reload failed ({type(error).__name__}: {error}). See the log, then reload again"
                            )
                            outcomes = [self._outcome(item, False, problem, "") for item in ITEMS]
                            self._report(outcomes, triggers)
                            raise
                        finally:
                            for request in alike:
                                request.outcomes = outcomes
                                request.done.set()

    async def _reload(self, triggers: list[str], allow_orphans: bool, at_rest: FileStamp | None) -> list[Outcome]:
        before = self.loaded
        read, errors = await trio.to_thread.run_sync(partial(reread_config, self._settings, before))
        if at_rest is not None and (await trio.to_thread.run_sync(stamp_files, self._settings))[0] != at_rest:
            return []  # perhaps half of a file was read; the watch comes again
        after = before if read is None else read
        refused = {item: str(error) for item, error in errors.items()}
        notes: dict[str, str] = {}
        if after.registry is not before.registry:
            search = OrphanSearch(self._broker, after.registry)
            with search:
                problem = await self._prepare_schemas(after, search)
                if self.fronts is not None:
                    await self.fronts.prepare(after)
                if not problem:
                    search.finish()  # and no checkpoint until the swap
                    orphans = _orphans_text(search)
                    if orphans and not allow_orphans:
                        problem = (
                            f"[schemas] folder {self._settings.schemas.folder}: {orphans} would no longer have a rule;"
                            " keep a rule for them, delete them, or allow it: [schemas] allow_orphans = true, or once:"
                            " maxam-admin gateway reload --allow-orphans"
                        )
                    elif orphans:
                        notes[SCHEMAS] = f"{orphans} have no rule now; they stay readable"
                if problem:
                    refused[SCHEMAS] = problem
                    digests = {**after.digests, SCHEMAS: before.digests[SCHEMAS]}
                    contents = after.contents and {**after.contents, SCHEMAS: before.contents[SCHEMAS]}
                    after = replace(after, registry=before.registry, digests=digests, contents=contents)
                self._swap(before, after, not problem)
        else:
            if self.fronts is not None and after.digests != before.digests:
                await self.fronts.prepare(after)
            self._swap(before, after, schemas=True)
        changed = {item for item in ITEMS if after.digests[item] != before.digests[item]}
        if changed:
            await self._settle(before)
            if self.fronts is not None:
                await self.fronts.settle()
        outcomes = [self._outcome(item, item in changed, refused.get(item, ""), notes.get(item, "")) for item in ITEMS]
        self._report(outcomes, triggers)
        return outcomes

    async def _prepare_schemas(self, after: LoadedConfig, search: OrphanSearch) -> str:
        """Do what must be done before other schemas come into force; return why they cannot."""
        try:
            await trio.to_thread.run_sync(self._keep_schemas, after.registry.texts())
        except DiskFullError as error:
            return f"[schemas] folder {self._settings.schemas.folder}: the journal has no room for the schemas: {error}; make room, then reload again"
        except OSError as error:
            return f"[schemas] folder {self._settings.schemas.folder}: the journal cannot store the schemas: {error}; see its disk, then reload again"
        await search.run()
        return ""

    def _swap(self, before: LoadedConfig, after: LoadedConfig, schemas: bool) -> None:
        if self.fronts is not None and after.digests != before.digests:
            self.fronts.swap(schemas)
        self.loaded = after
        if after.policy is not before.policy:
            self._broker.replace_policy(after.policy, self._wall_us())
        if after.registry is not before.registry:
            self._broker.replace_registry(after.registry)

    def _outcome(self, item: str, changed: bool, failure: str, note: str) -> Outcome:
        files = tuple(self.files(item))
        if failure:
            return Outcome(item, REFUSED, _printable(failure), files)
        return Outcome(item, RELOADED if changed else UNCHANGED, _printable(note), files)

    def _report(self, outcomes: list[Outcome], triggers: list[str]) -> None:
        """Log news. A file that is still invalid is no news to the watch, but it is to any other requester."""
        asked = triggers != [WATCH]
        trigger = ",".join(triggers)
        for one in outcomes:
            state = self.items[one.item]
            news = asked or one.detail != state.failure
            if self.on_outcome is not None and (one.outcome == RELOADED or (one.outcome == REFUSED and news)):
                self.on_outcome(one.item, one.outcome, one.detail, trigger)
            if one.outcome == REFUSED:
                state.failure = one.detail
                if news:
                    state.refused += 1
                    log_event(
                        logging.ERROR,
                        "reload-refused",
                        item=one.item,
                        error=one.detail,
                        trigger=trigger,
                        action="the old one stays in force",
                    )
                continue
            if one.outcome == RELOADED:
                state.reloaded += 1
                state.loaded_at_s = self._wall_us() / 1e6
                log_event(logging.INFO, "reloaded", item=one.item, trigger=trigger, note=one.detail or None)
            elif state.failure:
                log_event(logging.INFO, "reload-repaired", item=one.item, trigger=trigger)
            state.failure = ""


def _orphans_text(search: OrphanSearch) -> str:
    if not search.count:
        return ""
    many = f"at least {COUNTED_MAX}" if search.count == COUNTED_MAX else str(search.count)
    return f"{many} topic{'s' if search.count > 1 else ''} with a value (such as {', '.join(search.examples)})"


def _printable(text: str) -> str:
    """Return text without the half characters by which Python stands in for names that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()

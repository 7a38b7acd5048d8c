"""Put what operators and integrators have changed into force, each item by itself, without a restart.

Theory of operation. Whoever wants a reload (SIGHUP, the admin API, the watch) asks; one task does it, so that no two overlap and nobody
who stops waiting leaves half of one behind. Everything is read and checked in a thread, then swapped in one step of the event loop:
whatever runs before it sees all the old, whatever runs after it all the new. An item that cannot be used leaves the old one in force, is
told once and stays visible in health and metrics until it is mended. The answer comes when the old is out of force for good: see
`Entitlement.settle`.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, final

import trio

from maxam.broker.broker import Broker
from maxam.config import Settings
from maxam.errors import DiskFullError
from maxam.gateway.bell import Bell
from maxam.gateway.files import Mark
from maxam.gateway.log import log_event
from maxam.gateway.orphans import COUNTED_MAX, OrphanSearch
from maxam.gateway.sources import ITEMS, SCHEMAS, Sources, files_of, mark_sources, reread_sources

UNCHANGED: Final = "unchanged"
RELOADED: Final = "reloaded"
REFUSED: Final = "refused"
WATCH: Final = "watch"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one item.

    Attributes:
        item: One of ITEMS.
        outcome: UNCHANGED, RELOADED or REFUSED.
        detail: Why it was refused, with file and place; or what else should be known; often empty.
        files: Where it comes from.
    """

    item: str
    outcome: Literal["unchanged", "reloaded", "refused"]
    detail: str
    files: tuple[str, ...]


@final
class ItemState:
    """What reloads have made of one item since the start.

    Attributes:
        reloaded: How often it was put into force.
        refused: How often it was refused.
        loaded_at_s: When what is in force was loaded, seconds since the epoch.
        failure: Why what is on disk now is not in force; empty while it is.
    """

    __slots__ = ("failure", "loaded_at_s", "refused", "reloaded")

    def __init__(self) -> None:
        self.reloaded = 0
        self.refused = 0
        self.loaded_at_s = time.time()
        self.failure = ""


@final
class _Request:
    """Somebody's wish for a reload, and where the outcomes will be: none if the files were not at rest as they should be."""

    __slots__ = ("allow_orphans", "at_rest", "done", "outcomes", "trigger")

    def __init__(self, trigger: str, allow_orphans: bool, at_rest: Mark | None = None) -> None:
        self.trigger: Final = trigger
        self.allow_orphans: Final = allow_orphans
        self.at_rest: Final = at_rest
        self.done: Final = trio.Event()
        self.outcomes: list[Outcome] = []


@final
class Reloader:
    """Reads everything anew when asked, and swaps what is good.

    Attributes:
        sources: What is in force; replaced as a whole.
        items: What became of each item.
        on_outcome: Told of each item that is put into force or refused, its outcome, why, and who asked.
    """

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        broker: Broker,
        keep_schemas: Callable[[Iterable[tuple[str, bytes]]], None],
        settle: Callable[[Sources], Awaitable[None]],
    ) -> None:
        """Make it; `run` does the work.

        Args:
            settings: Name the files.
            sources: What is in force.
            broker: Gets policy and registry.
            keep_schemas: Stores the texts of schemas before any record names them; called in a thread; may raise DiskFullError.
            settle: Awaited after each swap with what was in force before it; returns when that is out of force for good.
        """
        self.sources = sources
        self.items: Final = {item: ItemState() for item in ITEMS}
        self.on_outcome: Callable[[str, str, str, str], None] | None = None
        self._settings: Final = settings
        self._broker: Final = broker
        self._keep_schemas: Final = keep_schemas
        self._settle: Final = settle
        self._requests: list[_Request] = []
        self._bell: Final = Bell()

    async def reload(self, trigger: str, allow_orphans: bool = False) -> list[Outcome]:
        """Have everything read anew; return what became of each item, once that is in force.

        Cancelled, it happens nevertheless.

        Args:
            trigger: Who asks, for the log.
            allow_orphans: The new schemas may take the rule from topics with values.
        """
        request = self.ask(trigger, allow_orphans)
        await request.done.wait()
        return request.outcomes

    def ask(self, trigger: str, allow_orphans: bool = False) -> _Request:
        """Have everything read anew, without waiting."""
        return self._put(_Request(trigger, allow_orphans or self._settings.schemas.allow_orphans))

    def _put(self, request: _Request) -> _Request:
        self._requests.append(request)
        self._bell.ring()
        return request

    def files(self, item: str) -> list[str]:
        """Return the files of an item, or its folder."""
        return [_printable(str(path)) for path in files_of(item, self._settings)]

    async def watched(self, at_rest: Mark | None = None) -> bool | None:
        """Reload because files have changed, or what was refused may be good by now; return whether all are in force.

        Nothing is reloaded, and None returned, if the files are not what `at_rest` says, when they have been read.
        """
        request = self._put(_Request(WATCH, self._settings.schemas.allow_orphans, at_rest))
        await request.done.wait()
        return all(one.outcome != REFUSED for one in request.outcomes) if request.outcomes else None

    async def run(self) -> None:
        """Do what was asked for until cancelled; whoever asks while a reload is under way gets the next one."""
        while True:
            await self._bell.wait()
            while self._requests:
                requests = self._requests
                self._requests = []
                for allow_orphans in (False, True):
                    alike = [request for request in requests if request.allow_orphans is allow_orphans]
                    if alike:
                        triggers = sorted({request.trigger for request in alike})
                        # Whoever else asks means the files as they are.
                        at_rest = alike[-1].at_rest if triggers == [WATCH] else None
                        outcomes = await self._reload(triggers, allow_orphans, at_rest)
                        for request in alike:
                            request.outcomes = outcomes
                            request.done.set()

    async def _reload(self, triggers: list[str], allow_orphans: bool, at_rest: Mark | None) -> list[Outcome]:
        before = self.sources
        read, errors = await trio.to_thread.run_sync(partial(reread_sources, self._settings, before))
        if at_rest is not None and (await trio.to_thread.run_sync(mark_sources, self._settings))[0] != at_rest:
            return []  # perhaps half of a file was read; the watch comes again
        after = before if read is None else read
        refused = {item: str(error) for item, error in errors.items()}
        notes: dict[str, str] = {}
        if after.registry is not before.registry:
            search = OrphanSearch(self._broker, after.registry)
            with search:
                problem = await self._prepare_schemas(after, search)
                if not problem:
                    search.finish()  # and no checkpoint until the swap
                    said = _said(search)
                    if said and not allow_orphans:
                        problem = (
                            f"[schemas] folder {self._settings.schemas.folder}: {said} would have no rule any more;"
                            " keep a rule for them, delete them, or allow it: [schemas] allow_orphans = true, or once:"
                            " maxam-admin reload --allow-orphans"
                        )
                    elif said:
                        notes[SCHEMAS] = f"{said} have no rule any more; they stay readable"
                if problem:
                    refused[SCHEMAS] = problem
                    digests = {**after.digests, SCHEMAS: before.digests[SCHEMAS]}
                    after = replace(after, registry=before.registry, digests=digests)
                self._swap(before, after)
        else:
            self._swap(before, after)
        changed = {item for item in ITEMS if after.digests[item] != before.digests[item]}
        if changed:
            await self._settle(before)
        outcomes = [self._outcome(item, item in changed, refused.get(item, ""), notes.get(item, "")) for item in ITEMS]
        self._tell(outcomes, triggers)
        return outcomes

    async def _prepare_schemas(self, after: Sources, search: OrphanSearch) -> str:
        """Do what must be done before other schemas come into force; return why they cannot."""
        try:
            await trio.to_thread.run_sync(self._keep_schemas, after.registry.texts())
        except DiskFullError as error:
            return f"[schemas] folder {self._settings.schemas.folder}: the journal has no room for the schemas: {error}; make room, then reload again"
        await search.run()
        return ""

    def _swap(self, before: Sources, after: Sources) -> None:
        self.sources = after
        if after.policy is not before.policy:
            self._broker.replace_policy(after.policy, time.time_ns() // 1000)
        if after.registry is not before.registry:
            self._broker.replace_registry(after.registry)

    def _outcome(self, item: str, changed: bool, failure: str, note: str) -> Outcome:
        files = tuple(self.files(item))
        if failure:
            return Outcome(item, REFUSED, _printable(failure), files)
        return Outcome(item, RELOADED if changed else UNCHANGED, _printable(note), files)

    def _tell(self, outcomes: list[Outcome], triggers: list[str]) -> None:
        """Log what is new: a file that is still bad is no news to the watch, but to whoever asks."""
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
                state.loaded_at_s = time.time()
                log_event(logging.INFO, "reloaded", item=one.item, trigger=trigger, note=one.detail or None)
            elif state.failure:
                log_event(logging.INFO, "reload-mended", item=one.item, trigger=trigger)
            state.failure = ""


def _said(search: OrphanSearch) -> str:
    if not search.count:
        return ""
    many = f"at least {COUNTED_MAX}" if search.count == COUNTED_MAX else str(search.count)
    return f"{many} topic{'s' if search.count > 1 else ''} with a value (such as {', '.join(search.examples)})"


def _printable(text: str) -> str:
    """Return text without the half characters by which Python stands in for names that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()

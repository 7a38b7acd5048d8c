"""Live views: streams of what changes in a window of topics, each as fast as its reader, none faster than it asked for.

Theory of operation. The idea is the broker's own: a stream holds no values and no queue, only which revision of each topic in its
window it sent last. On each tick it compares, reads the values that are new in that moment, and writes them as one event; the next
tick comes when the event has left. A slow tab so skips what came in between. What does not fit into the bytes of a second waits, the
longest-waiting first. Whether the caller may still see what it sees is asked on each tick, and again when an event is complete.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Final, final

import trio

from maxam.admin.live_rows import Row, RowCache, make_row, members, to_json
from maxam.admin.live_window import Count, Window
from maxam.gateway.revocation import Chain
from maxam.globs import Glob
from maxam.records import Change, Identity

if TYPE_CHECKING:
    from maxam.admin.view import View

STREAMS_MAX: Final = 32  # half of the listener's connections
STREAMS_OF_PRINCIPAL_MAX: Final = 16  # ten tabs, and those that are just being closed
BYTES_PER_S_MAX: Final = 65_536  # of one stream, what carries it included
EVENT_OVERHEAD_BYTES: Final = 256  # of TLS records, chunks and the event's own frame
NAMES_BYTES_MAX: Final = 32_768  # of a window's destinations as JSON; with longer ones it has fewer rows
BEAT_S: Final = 1.0  # at most between two looks at rights, and at topics that come and go
LOOK_S: Final = 0.25  # a scan tells what it has found, however far it is
PROGRESS_S: Final = 1.0  # and at least so often how far it is
PING_S: Final = 10.0  # what is silent for longer is taken for dead by those in between
TURNS_PER_SLICE: Final = 500  # below 1 ms
COUNT_PAUSE_S: Final = 0.01  # between two slices of counting, for all streams together: it has time
DECODED_BYTES_PER_SLICE: Final = 4096
ROWS_PER_SLICE: Final = 50
EVERY_TOPIC: Final = "**"
SLICE_NAMES: Final = 2000  # looked at before the event loop has its turn, in less than 1 ms
ANY_NUMBER: Final = 2**31


@final
class Live:
    """What all live streams of a gateway share."""

    def __init__(self) -> None:
        self.rows: Final = RowCache()
        self.scanning: Final = trio.Lock()  # one slice of one window in each pass of the event loop, however many look
        self.counting: Final = trio.Lock()
        self._counts: Final[dict[str, Count]] = {}
        self._of_principal: Final[Counter[str]] = Counter()

    @property
    def streams(self) -> int:
        """How many there are."""
        return self._of_principal.total()

    def objection(self, principal: str) -> str | None:
        """Say why there may not be one stream more, or None."""
        theirs = self._of_principal[principal]
        if theirs >= STREAMS_OF_PRINCIPAL_MAX:
            return f"{theirs} live views of this principal are open already, which is the most; close one"
        return None

    @property
    def full(self) -> bool:
        """Whether nobody may have one more."""
        return self.streams >= STREAMS_MAX

    @contextmanager
    def place(self, view: "View", principal: str) -> Iterator[None]:
        """Count a stream in while it lasts."""
        if not self.streams:
            view.tell_turns(True)
        self._of_principal[principal] += 1
        try:
            yield
        finally:
            self._of_principal[principal] -= 1
            if not self._of_principal[principal]:
                del self._of_principal[principal]
            if not self.streams:
                view.tell_turns(False)
                self.rows.clear()

    @contextmanager
    def count(self, view: "View", glob: Glob) -> Iterator[Count | None]:
        """Lend the count of a glob, which all streams with this glob share; None: it is that of all topics."""
        if glob.text == EVERY_TOPIC:
            yield None
            return
        count = self._counts.setdefault(glob.text, Count(glob, view.turned))
        count.users += 1
        try:
            yield count
        finally:
            count.users -= 1
            if not count.users:
                del self._counts[glob.text]


@final
class _Budget:
    """How many bytes may be written: never more than BYTES_PER_S_MAX within any one second."""

    def __init__(self) -> None:
        self._written: Final[deque[tuple[float, int]]] = deque()
        self._sum = 0

    def left(self, now_s: float) -> int:
        while self._written and self._written[0][0] <= now_s - 1.0:
            self._sum -= self._written.popleft()[1]
        return BYTES_PER_S_MAX - self._sum

    def spend(self, now_s: float, count: int) -> None:
        self._written.append((now_s, count))
        self._sum += count


@final
class _Sent:
    """What a reader has of a topic."""

    __slots__ = ("lasting", "revision", "tick")

    def __init__(self, revision: int, lasting: bytes, tick: int) -> None:
        self.revision = revision
        self.lasting = lasting
        self.tick = tick


@final
class Stream:
    """One live view of one reader."""

    def __init__(
        self,
        view: "View",
        caller: Identity,
        chain: Chain,
        glob: Glob,
        after: bytes | None,
        rows_max: int,
        every_s: float,
        with_pii: bool,
    ) -> None:
        """Make it; `run` does the work.

        Args:
            view: What is looked at.
            caller: Whose rights count, on each tick anew.
            chain: The caller's certificates.
            glob: Which topics.
            after: The destination that the window begins behind, None: with the first.
            rows_max: Topics in the window.
            every_s: At most so often values are sent.
            with_pii: Show fields that schemas mark as personal.
        """
        self._view: Final = view
        self._caller: Final = caller
        self._chain: Final = chain
        self._every_s: Final = every_s
        self._with_pii: Final = with_pii
        self._glob: Final = glob
        self._after: Final = after
        self._rows_max: Final = rows_max
        self._window: Window
        self._budget: Final = _Budget()
        self._sent: dict[bytes, _Sent] = {}
        self._tick = 0
        self._policy: object = None
        self._shown: list[bytes] | None = None  # as the reader knows it
        self._told: tuple[object, ...] = ()  # of the window beside its names
        # Bytes are, for a window that has changed: values that always change must not keep it from the reader.
        self._saving = False

    async def run(self, write: Callable[[bytes], Awaitable[None]], taken: Callable[[], Awaitable[None]]) -> None:
        """Write events until the caller may not read any more.

        Args:
            write: Writes bytes of the stream.
            taken: Returns when what was written has left, as good as.
        """
        self._window = Window(self._glob, self._after, self._rows_max, self._view.turned)
        with self._view.live.count(self._view, self._glob) as count:
            async with trio.open_nursery() as nursery:
                if count is not None:
                    nursery.start_soon(self._counted, count)
                await write(b"retry: 2000\n\n")
                await self._tell(write, taken, count)
                nursery.cancel_scope.cancel()

    async def _tell(
        self,
        write: Callable[[bytes], Awaitable[None]],
        taken: Callable[[], Awaitable[None]],
        count: Count | None,
    ) -> None:
        view = self._view
        counted: tuple[object, ...] = ()
        values_at_s = progress_at_s = 0.0
        last_s = trio.current_time()
        while True:
            await taken()
            problem = self._objection()
            if problem is not None:
                await write(_event("ended", members({"error": problem[0], "detail": problem[1]})))
                return
            await self._look()
            now_s = trio.current_time()
            events: list[bytes] = []
            event = await self._window_event(now_s, now_s >= progress_at_s)
            if event is not None:
                progress_at_s = now_s + PROGRESS_S
            elif not self._saving and (now_s >= values_at_s or view.policy is not self._policy):
                event = await self._changes_event(now_s)
            if event is not None:
                events.append(event)
            if now_s >= values_at_s:
                values_at_s = now_s + self._every_s
            figures = self._count_of(count)
            if figures is not None and figures != counted:
                counted = figures
                names = ("count", "count_complete", "topics")
                events.append(_event("count", members(dict(zip(names, figures, strict=True)))))
            if not events and now_s - last_s >= PING_S:
                events.append(_event("ping", members({"as_of": _now()})))
            if events:
                last_s = now_s
                data = b"".join(events)
                self._budget.spend(now_s, len(data) + EVENT_OVERHEAD_BYTES)
                await write(data)
            if not self._window.missing or self._budget.left(now_s) < EVENT_OVERHEAD_BYTES:
                await trio.sleep_until(min(values_at_s, now_s + BEAT_S))

    def _objection(self) -> tuple[str, str] | None:
        """Say why the caller may not read any more: code and text."""
        view, caller = self._view, self._caller
        objection = view.objection(self._chain)
        if objection is not None:
            return "certificate-refused", objection
        if view.principal_of(caller.fingerprint) != caller.principal:
            return "forbidden", "this certificate stands for another principal now, or for none"
        if "read" not in view.admin_rights(caller.principal):
            return "forbidden", "this needs the admin right read"
        return None

    async def _look(self) -> None:
        """Bring the window up to date, but for no longer than LOOK_S."""
        view, window = self._view, self._window
        until_s = trio.current_time() + LOOK_S
        while self._behind(window) or window.missing:
            async with view.live.scanning:
                if not self._behind(window) and window.missing:
                    window.found(*view.find_slice(window.glob, window.literal, window.cursor, window.missing))
            if trio.current_time() >= until_s:
                return

    async def _counted(self, count: Count) -> None:
        """Count on, in turn with all others who count, for as long as the stream lasts."""
        view, counting = self._view, self._view.live.counting
        while True:
            if count.complete and not self._behind(count):
                await trio.sleep(BEAT_S)
                continue
            async with counting:
                if not self._behind(count) and not count.complete:
                    count.found(*view.find_slice(count.glob, count.literal, count.cursor, ANY_NUMBER))
                await trio.sleep(COUNT_PAUSE_S)

    def _behind(self, one: Window | Count) -> bool:
        """Take in some turns; say whether there are more."""
        turns = self._view.turns(one.position, TURNS_PER_SLICE)
        if turns is None:
            one.restart(self._view.turned)
            return False
        if turns:
            one.turned(turns)
            one.position += len(turns)
        return len(turns) == TURNS_PER_SLICE

    def _count_of(self, count: Count | None) -> tuple[object, ...] | None:
        topics = self._view.topics_live
        if count is None:
            return topics, True, topics
        return None if self._behind(count) else (count.count, count.complete, topics)

    # Events.

    async def _window_event(self, now_s: float, progress: bool) -> bytes | None:
        """Tell of the window, if it has changed, or if it is time to say how far the scan has come."""
        window = self._window
        names = window.names[: window.rows_max]
        shown: list[bytes] = []
        texts: list[bytes] = []
        left = NAMES_BYTES_MAX
        for name in names:
            text = to_json(name.decode())
            left -= len(text) + 1
            if left < 0 and shown:
                break
            shown.append(name)
            texts.append(text)
        more = len(window.names) > len(shown)
        told = (more, not window.missing)
        changed = shown != self._shown or told != self._told
        self._saving = False
        if not (changed or (progress and window.missing)):
            return None
        listing = b",".join(texts)
        if self._budget.left(now_s) < len(listing) + 2 * EVENT_OVERHEAD_BYTES:
            self._saving = changed
            return None  # in the next second
        self._shown, self._told = shown, told
        known = set(shown)
        self._sent = {name: sent for name, sent in self._sent.items() if name in known}
        topics = self._view.topics_live
        fields: dict[str, object] = {
            "next": shown[-1].decode() if more else None,
            "more": more,
            "complete": told[1],
            "looked_at": min(window.looked_at * SLICE_NAMES, topics),
            "topics": topics,
            "as_of": _now(),
        }
        head = b'"destinations":[' + listing + b"]," + members(fields)
        rows = await self._rows(now_s, len(head))
        return _event("rows", head + b',"rows":[' + b",".join(rows) + b"]")

    async def _changes_event(self, now_s: float) -> bytes | None:
        """Tell of the topics in the window that have changed."""
        head = members({"as_of": _now()})
        rows = await self._rows(now_s, len(head))
        return _event("changes", head + b',"rows":[' + b",".join(rows) + b"]") if rows else None

    async def _rows(self, now_s: float, spent: int) -> list[bytes]:
        """Make the rows of what the reader does not have, the longest-waiting first, as many as fit beside `spent` bytes."""
        view, shown = self._view, self._shown or []
        while True:
            policy = view.policy
            if policy is not self._policy:  # a right may have come or gone: all is to be shown anew
                self._policy = policy
                for sent in self._sent.values():
                    sent.revision = -1
            left = self._budget.left(now_s) - spent - 2 * EVENT_OVERHEAD_BYTES
            made = await self._made(shown, left)
            if view.policy is policy:
                break
        self._tick += 1
        rows: list[bytes] = []
        for name, row, text in made:
            self._sent[name] = _Sent(row.revision, row.lasting, self._tick)
            rows.append(text)
        return rows

    async def _made(self, shown: list[bytes], left: int) -> list[tuple[bytes, Row, bytes]]:
        view, sent = self._view, self._sent
        waiting: list[tuple[int, int, bytes]] = []
        for at, name in enumerate(shown):
            change = view.topic(name)
            had = sent.get(name)
            if change is not None and (had is None or had.revision != change.revision):
                waiting.append((-1 if had is None else had.tick, at, name))
        waiting.sort()
        made: list[tuple[bytes, Row, bytes]] = []
        decoded_bytes = 0
        for number, (_, _, name) in enumerate(waiting, 1):
            change = view.topic(name)  # as it is now
            if change is None:
                continue
            before = view.live.rows.made
            row, text = self._row(change, sent.get(name))
            left -= len(text) + 1
            if left < 0:
                break
            made.append((name, row, text))
            if view.live.rows.made != before:
                decoded_bytes += change.body_bytes + 256
            if decoded_bytes >= DECODED_BYTES_PER_SLICE or number % ROWS_PER_SLICE == 0:
                decoded_bytes = 0
                await trio.lowlevel.checkpoint()
        return made

    def _row(self, change: Change, had: _Sent | None) -> tuple[Row, bytes]:
        view = self._view
        if view.may_receive(self._caller.principal, change.destination):
            row = view.live.rows.row(view, change, self._with_pii)
        else:
            row = make_row(change, {"value_state": "withheld"})
        age_s = max(0.0, time() - change.accepted_at_us / 1e6)
        text = b'{%s,"age_s":%.3f,"updates":%d' % (row.passing, age_s, view.updates(change.destination))
        if had is None or had.lasting != row.lasting:
            text += b"," + row.lasting
        return row, text + b"}"


def _event(name: str, json_members: bytes) -> bytes:
    """Return one event: its data is one line of JSON, in which line ends are escaped."""
    return b"event: %s\ndata: {%s}\n\n" % (name.encode(), json_members)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

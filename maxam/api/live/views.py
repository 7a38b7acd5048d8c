"""Live views: streams of the changes in a window of topics, each as fast as its reader and no faster than requested.

Theory of operation. The idea is that of the broker. A stream holds no values and no queue, only the revision of each topic in its
window that it sent last. On each tick it compares them with the topics, reads the newest values, and writes them as one event. The
next tick comes when the event has left, so a slow tab skips the values in between. Values that do not fit into the bytes of a second
wait, the longest-waiting first. The caller's rights are checked on each tick, and again when an event is complete.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from time import time
from typing import Final, final

import trio

from maxam.api.live.rows import Row, make_row, members, to_json
from maxam.api.live.shared import SLICE_NAMES
from maxam.api.live.window import Count, Window
from maxam.api.view import View
from maxam.gateway.revocation import Chain
from maxam.globs import Glob
from maxam.records import Change, Identity

BYTES_PER_S_MAX: Final = 65_536  # of one stream, its framing and TLS included
EVENT_OVERHEAD_BYTES: Final = 256  # of TLS records, chunks and the event's own frame
NAMES_BYTES_MAX: Final = 32_768  # of a window's destinations as JSON; with longer ones it has fewer rows
BEAT_S: Final = 1.0  # at most between two checks of rights, and of topics that come and go
SCAN_S: Final = 0.25  # after which a scan reports what it has found so far
PROGRESS_S: Final = 1.0  # between two reports of its progress
PING_S: Final = 10.0  # proxies close a connection that is silent for longer
EVENTS_PER_SLICE: Final = 500  # below 1 ms
COUNT_PAUSE_S: Final = 0.01  # between two batches of counting, for all streams together: it is not urgent
DECODED_BYTES_PER_SLICE: Final = 4096
ROWS_PER_SLICE: Final = 50
ANY_NUMBER: Final = 2**31


@final
class _Budget:
    """The bytes that may be written: at most BYTES_PER_S_MAX within any one second."""

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
    """The state of a topic that a reader has."""

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
        view: View,
        caller: Identity,
        chain: Chain,
        glob: Glob,
        after: bytes | None,
        rows_max: int,
        every_s: float,
        with_pii: bool,
    ) -> None:
        """Prepare a stream, which `run` serves.

        Args:
            view: The gateway.
            caller: The reader, whose rights are checked on each tick.
            chain: Certificates of the reader.
            glob: Pattern of the topics.
            after: The destination after which the window begins. None begins with the first.
            rows_max: Topics in the window.
            every_s: Shortest interval between two events with values.
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
        self._shown: list[bytes] | None = None  # destinations that the reader knows
        self._reported: tuple[object, ...] = ()  # fields of the window beside its names
        self._unknown: dict[str, str] = {}  # topics that the reader knows as unknown, and since when
        self._unknown_at_s = 0.0  # when they are checked next
        # Whether bytes are saved for a window that has changed: values that always change must not delay it.
        self._saving = False

    async def run(self, write: Callable[[bytes], Awaitable[None]], taken: Callable[[], Awaitable[None]]) -> None:
        """Write events until the caller may no longer read.

        Args:
            write: Writes bytes of the stream.
            taken: Returns when nearly all written bytes have left.
        """
        self._window = Window(self._glob, self._after, self._rows_max, self._view.events_end)
        with self._view.live.count(self._glob, self._view.events_end) as count:
            async with trio.open_nursery() as nursery:
                if count is not None:
                    nursery.start_soon(self._keep_count, count)
                await write(b"retry: 2000\n\n")
                await self._write_events(write, taken, count)
                nursery.cancel_scope.cancel()

    async def _write_events(
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
            problem = self._denial()
            if problem is not None:
                await write(_event("ended", members({"code": problem[0], "error": problem[0], "detail": problem[1]})))
                return
            await self._update_window()
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
            if now_s >= self._unknown_at_s:
                self._unknown_at_s = now_s + BEAT_S
                events += self._unknown_events(now_s, sum([len(one) for one in events]))
            if not events and now_s - last_s >= PING_S:
                events.append(_event("ping", members({"as_of": _now()})))
            if events:
                last_s = now_s
                data = b"".join(events)
                self._budget.spend(now_s, len(data) + EVENT_OVERHEAD_BYTES)
                await write(data)
            if not self._window.missing or self._budget.left(now_s) < EVENT_OVERHEAD_BYTES:
                await trio.sleep_until(min(values_at_s, now_s + BEAT_S))

    def _denial(self) -> tuple[str, str] | None:
        """Return the code and the text of why the caller may no longer read. None if it may."""
        view, caller = self._view, self._caller
        denial = view.denial(self._chain)
        if denial is not None:
            return "certificate-refused", denial
        if view.principal_of(caller.fingerprint) != caller.principal:
            return "forbidden", "this certificate stands for another principal now, or for none"
        if "read" not in view.admin_rights(caller.principal):
            return "forbidden", "this needs the admin right read"
        return None

    async def _update_window(self) -> None:
        """Bring the window up to date, within SCAN_S."""
        view, window = self._view, self._window
        until_s = trio.current_time() + SCAN_S
        while self._apply_events(window) or window.missing:
            async with view.live.scanning:
                if not self._apply_events(window) and window.missing:
                    window.found(*view.find_slice(window.glob, window.literal, window.cursor, window.missing))
            if trio.current_time() >= until_s:
                return

    async def _keep_count(self, count: Count) -> None:
        """Keep the count up to date while the stream lasts, in turn with the other counts."""
        view, counting = self._view, self._view.live.counting
        while True:
            if count.complete and not self._apply_events(count):
                await trio.sleep(BEAT_S)
                continue
            async with counting:
                if not self._apply_events(count) and not count.complete:
                    count.found(*view.find_slice(count.glob, count.literal, count.cursor, ANY_NUMBER))
                await trio.sleep(COUNT_PAUSE_S)

    def _apply_events(self, one: Window | Count) -> bool:
        """Apply some events. Return True if there are more."""
        events = self._view.events_since(one.position, EVENTS_PER_SLICE)
        if events is None:
            one.restart(self._view.events_end)
            return False
        if events:
            one.apply(events)
            one.position += len(events)
        return len(events) == EVENTS_PER_SLICE

    def _count_of(self, count: Count | None) -> tuple[object, ...] | None:
        topics = self._view.topics_live
        if count is None:
            return topics, True, topics
        return None if self._apply_events(count) else (count.count, count.complete, topics)

    # Events.

    async def _window_event(self, now_s: float, progress: bool) -> bytes | None:
        """Return the event of the window if it has changed, or if `progress` of the scan is due."""
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
        reported = (more, not window.missing)
        changed = shown != self._shown or reported != self._reported
        self._saving = False
        if not (changed or (progress and window.missing)):
            return None
        listing = b",".join(texts)
        if self._budget.left(now_s) < len(listing) + 2 * EVENT_OVERHEAD_BYTES:
            self._saving = changed
            return None  # in the next second
        self._shown, self._reported = shown, reported
        known = set(shown)
        self._sent = {name: sent for name, sent in self._sent.items() if name in known}
        topics = self._view.topics_live
        fields: dict[str, object] = {
            "next": shown[-1].decode() if more else None,
            "more": more,
            "complete": reported[1],
            "looked_at": min(window.looked_at * SLICE_NAMES, topics),
            "topics": topics,
            "as_of": _now(),
        }
        head = b'"destinations":[' + listing + b"]," + members(fields)
        rows = await self._rows(now_s, len(head))
        return _event("rows", head + b',"rows":[' + b",".join(rows) + b"]")

    async def _changes_event(self, now_s: float) -> bytes | None:
        """Return the event of the topics in the window that have changed."""
        head = members({"as_of": _now()})
        rows = await self._rows(now_s, len(head))
        return _event("changes", head + b',"rows":[' + b",".join(rows) + b"]") if rows else None

    def _unknown_events(self, now_s: float, spent: int) -> list[bytes]:
        """Return the event of the topics that are unknown if they are not those that the reader knows, and it fits beside `spent` bytes."""
        since = self._view.unknown_since(self._shown or ())
        if since == self._unknown:
            return []
        event = _event("unknown", members({"since": since}))
        if self._budget.left(now_s) < spent + len(event) + 2 * EVENT_OVERHEAD_BYTES:
            return []  # in the next second
        self._unknown = since
        return [event]

    async def _rows(self, now_s: float, spent: int) -> list[bytes]:
        """Make the rows that the reader lacks, the longest-waiting first, as many as fit beside `spent` bytes."""
        view, shown = self._view, self._shown or []
        while True:
            policy = view.policy
            if policy is not self._policy:  # a right may have come or gone: everything is shown again
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
            change = view.topic(name)  # the newest one
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
            row = view.live.rows.row(view.registry, view.schema_text, change, self._with_pii)
        else:
            row = make_row(change, {"value_state": "withheld"})
        age_s = max(0.0, time() - change.accepted_at_us / 1e6)
        text = b'{%s,"age_s":%.3f,"updates":%d' % (row.passing, age_s, view.updates(change.destination))
        if had is None or had.lasting != row.lasting:
            text += b"," + row.lasting
        return row, text + b"}"


def _event(name: str, json_members: bytes) -> bytes:
    """Return one event. Its data is one line of JSON, in which line ends are escaped."""
    return b"event: %s\ndata: {%s}\n\n" % (name.encode(), json_members)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""Follow the journal of another gateway over a link: connect, check, journal, and hand records to the event loop.

The interface for a gateway that is an observer:

1. Before the journal is opened, `copying.place_copy(folder, disk)` puts a journal that was copied into its place.
2. `Journal.open` without an incarnation of its own, and `recover(following=True)`.
3. `Keeper(journal, journal.position, die)`, `keeper.start()`, then `Follower(...)` and `await follower.run(apply)`.
4. `apply` gets lists of `Step` in order, on the event loop. Each step is one block: its records and the position after them. While it
   is awaited, no further list is handed over. Blocks may be applied before the keeper has synced them.
5. `run` ends with CopiedError if the source no longer has what follows this journal. The copy is there then: end the process, and
   start it again.
6. To stop, cancel `run`, then `keeper.close()`, then `journal.close(seal=False)`.

`Follower.status` has all that operators are shown. A link that is lost, or an entry that is damaged, is reported there, and the next
address is tried after a pause. So is a source that refuses: `forked` and `ahead` need a decision of a person.
"""

import random
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import trio

from maxam import __version__
from maxam.cluster import wire
from maxam.cluster.copying import take_copy
from maxam.cluster.entry import BLOCK, INCARNATION, SCHEMAS, SEAL, Entry, EntryError, read_entry
from maxam.cluster.feed import FeedRefusedError, names_digest, schema_names
from maxam.cluster.keeper import Keeper
from maxam.cluster.link import Link, connect
from maxam.cluster.steps import Step, Steps
from maxam.errors import JournalError, MaxamError
from maxam.journal.disk import Disk
from maxam.journal.encoding import Position
from maxam.journal.identity import with_chain

_HOLD_S: Final = 0.02  # between two checks whether the disk or the event loop has caught up
_PAUSE_S_MIN: Final = 0.5  # before all addresses are tried again; doubled each time
_PAUSE_S_MAX: Final = 15.0


@final
class CopiedError(MaxamError):
    """The journal of the source was copied, because the source no longer has what follows the own one. The process must start again."""

    code = "journal-copied"


@dataclass(frozen=True, slots=True)
class FollowStatus:
    """The source, as far as it is known.

    Attributes:
        state: `connecting`, `following`, `copying` or `refused`.
        address: `host:port` that is tried or followed.
        problem: Why there is no link; empty if there is one.
        refused: Code of the last REFUSED, such as `forked`; empty if there is a link or none was refused.
        source: Name of the gateway that is followed; empty before the first link.
        software: Its version.
        role: Its role.
        incarnation: Of its journal.
        linked_at_s: When the link began, on the clock of `time.monotonic`; None without one.
        copied_bytes: Of the journal that is being copied.
        copy_bytes: Size of that journal.
    """

    state: str = "connecting"
    address: str = ""
    problem: str = ""
    refused: str = ""
    source: str = ""
    software: str = ""
    role: str = ""
    incarnation: str = ""
    linked_at_s: float | None = None
    copied_bytes: int = 0
    copy_bytes: int = 0


@final
class Follower:
    """Follows one journal, from whichever of several gateways serves it.

    Attributes:
        status: The newest state of the link.
        steps: The entries that were received and checked, on their way to the journal and the broker.
        entries: Number of entries received.
        bytes: Received on all links.
        restarts: Links that ended, or could not be made.
        heard_at_us: When the last sign of life came, microseconds since the epoch; 0 before the first.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        context: Callable[[], ssl.SSLContext],
        keeper: Keeper,
        folder: str,
        disk: Disk,
        position: Position,
        incarnation: str,
        judge: Callable[[ssl.SSLSocket], Callable[[], str]] = lambda _: lambda: "",
    ) -> None:
        """Prepare to follow.

        Args:
            addresses: Host and port of links, in the order in which they are tried.
            context: Returns the TLS context of a client, with this gateway's certificate. Called for each link.
            keeper: Stores the entries.
            folder: Of the own journal, without a slash at its end.
            disk: Where it is.
            position: Where it ends.
            incarnation: Of the own journal; empty for none.
            judge: Called for each link. Returns a function that returns why the source's certificate is not valid now; empty if it is.
        """
        self.status = FollowStatus()
        self.steps: Final = Steps(keeper, with_chain(folder, position))
        self.entries = 0
        self.bytes = 0
        self.restarts = 0
        self._addresses: Final = list(addresses)
        self._context: Final = context
        self._folder: Final = folder
        self._disk: Final = disk
        self._incarnation = incarnation
        self._judge: Final = judge
        self._stopping: Final = threading.Event()
        self._unreached: Final[deque[tuple[Position, float]]] = (
            deque()
        )  # heads of the source, and when they were heard of
        self._fresh_at_s: float | None = None  # the last sign of life with a new time of the serving gateway
        self._beat: wire.Beat | None = None
        self.heard_at_us = 0

    async def run(self, apply: Callable[[list[Step]], Awaitable[None]]) -> None:
        """Follow until cancelled, and call `apply` with blocks in order.

        Raises:
            CopiedError: The process must start again.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.steps.run, apply)
                copied = await trio.to_thread.run_sync(self._run, abandon_on_cancel=True)
                nursery.cancel_scope.cancel()
        finally:
            self._stopping.set()
        if copied is not None:
            raise copied

    def lag_s(self) -> float:
        """Return for how many seconds the source has had something that is not applied here; 0 if all that it reported is applied.

        Without a sign of life, it is the time since the last one. None is read without a link, or while the own disk is full. Those
        of an observer count if it heard from its own source meanwhile. It is exact to half a second.
        """
        now_s = time.monotonic()
        unreached = self._unreached
        applied = self.steps.applied
        while unreached and unreached[0][0].revision <= applied.revision:
            unreached.popleft()
        since_s = unreached[0][1] if unreached else None
        fresh_at_s = self._fresh_at_s
        silent = fresh_at_s is not None and now_s - fresh_at_s > wire.SILENCE_S
        if since_s is None and (silent or self.status.linked_at_s is None):
            since_s = fresh_at_s
        return 0.0 if since_s is None else now_s - since_s

    @property
    def head(self) -> wire.Beat | None:
        """The newest sign of life of the source: its position, and its time."""
        return self._beat

    # the thread

    def _run(self) -> CopiedError | None:
        """Follow until the end of this; return what `run` must raise."""
        pause_s = _PAUSE_S_MIN
        while not self._stopping.is_set():
            for host, port in self._addresses:
                had = self.entries
                address = f"{host}:{port}"
                self.status = replace(self.status, address=address)
                try:
                    self._follow(host, port)
                except CopiedError as error:
                    return error
                except FeedRefusedError as error:
                    self._lost(str(error), error.reason)
                except (MaxamError, OSError) as error:
                    self._lost(str(error), "")
                if self._stopping.is_set():
                    return None
                if self.entries > had:  # the line works at times
                    pause_s = _PAUSE_S_MIN
            self._stopping.wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # so that observers do not come together
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        return None

    def _lost(self, problem: str, refused: str) -> None:
        self.restarts += 1
        state = "refused" if refused else "connecting"
        self.status = replace(self.status, state=state, problem=problem, refused=refused, linked_at_s=None)

    def _follow(self, host: str, port: int) -> None:
        """Follow one source until its link ends, which raises."""
        link = self._connect(host, port, wire.FEED)
        try:
            try:
                self._welcome(link)
            except FeedRefusedError as error:
                if error.reason != wire.GONE:
                    raise
                link.close()
                self._copy(host, port)
            self.steps.begin()
            while True:
                frame = link.receive(wire.BEAT_S)
                self._hear(link)
                if frame is None:
                    continue
                if frame.type == wire.REFUSED:
                    raise refusal(frame.body)
                if frame.type != wire.ENTRY:
                    raise wire.WireError(f"a frame of type {frame.type} on a feed")
                self._take(read_entry(frame.body))
                while self.steps.full:
                    link.pause(_HOLD_S)
        finally:
            self.bytes += link.received_bytes
            link.close()

    def _connect(self, host: str, port: int, wish: int) -> Link:
        link = connect(host, port, self._context(), lambda: self.steps.position, self._must_end)
        digest = names_digest(schema_names(f"{self._folder}/schemas"))
        hello = wire.Hello(wish, socket.gethostname(), __version__, self._incarnation, self.steps.position, digest)
        try:
            judged = self._judge(link.tls)
            link.denied = lambda: self._must_end() or judged()
            link.send(wire.encode_hello(hello))
        except BaseException:
            link.close()
            raise
        return link

    def _must_end(self) -> str:
        return "this gateway stops" if self._stopping.is_set() else ""

    def _welcome(self, link: Link) -> None:
        """Read the answer to HELLO."""
        welcome = read_answer(link)
        self.status = replace(
            self.status,
            state="following",
            problem="",
            refused="",
            source=welcome.name,
            software=welcome.software,
            role=welcome.role,
            incarnation=welcome.incarnation,
            linked_at_s=time.monotonic(),
        )

    def _hear(self, link: Link) -> None:
        """Record a new sign of life."""
        beat = link.beat
        if beat is not None and beat is not self._beat:
            former, self._beat = self._beat, beat
            now_s = time.monotonic()
            if former is None or self.status.role != "following" or beat.at_us != former.at_us:
                self._fresh_at_s = now_s
            self.heard_at_us = time.time_ns() // 1000
            if beat.position.revision > self.steps.applied.revision:
                self._unreached.append((beat.position, now_s))
                if len(self._unreached) > 1000:  # the oldest one shows the lag
                    self._unreached.pop()

    def _take(self, entry: Entry) -> None:
        """Check an entry against the position, and hand it on."""
        self.entries += 1
        if entry.index or entry.kind not in {BLOCK, SEAL, SCHEMAS, INCARNATION}:
            raise EntryError(f"an entry of kind {entry.kind} with index {entry.index} on a feed")
        self.steps.take(entry)
        if entry.kind == INCARNATION:
            self._incarnation = entry.payload.decode()

    def _copy(self, host: str, port: int) -> None:
        """Copy the journal of a source, which raises CopiedError at the end."""
        link = self._connect(host, port, wire.COPY)
        self.status = replace(self.status, state="copying", copied_bytes=0, copy_bytes=0)

        def report(copied: int, size: int) -> None:
            self.status = replace(self.status, copied_bytes=copied, copy_bytes=size)

        try:
            welcome = read_answer(link)
            revision = take_copy(link, self._folder, self._disk, welcome.incarnation, report)
        except OSError as error:
            raise JournalError(f"{self._folder}.copying cannot be written: {error}") from error
        finally:
            self.bytes += link.received_bytes
            link.close()
        raise CopiedError(
            f"the journal of {host}:{port} was copied up to revision {revision}. This gateway must start again"
        )


def read_answer(link: Link) -> wire.Welcome:
    """Return the WELCOME that a gateway answers to HELLO.

    Raises:
        FeedRefusedError: It refused.
        LinkLostError: The link has ended.
        WireError: It answered something else.
    """
    frame = link.expect()
    if frame.type == wire.REFUSED:
        raise refusal(frame.body)
    if frame.type != wire.WELCOME:
        raise wire.WireError(f"a frame of type {frame.type} instead of WELCOME")
    return wire.read_welcome(frame.body)


def refusal(body: bytes) -> FeedRefusedError:
    """Return the error of a REFUSED. Raises WireError if it is none."""
    refused = wire.read_refused(body)
    return FeedRefusedError(refused.code, refused.text)

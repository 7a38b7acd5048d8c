"""The log of a cluster in etcd.

| content | key after `/maxam/<cluster>/` |
|---|---|
| head | `head` |
| entry | `e/<index, 16 hex digits>` |
| announcement of a member | `m/<name>` |

An append is one transaction. It compares the revision at which etcd last wrote the head. It writes entry and head. The nodes of etcd
agree on it as one command. So both are written or neither is, at one revision.

An error leaves the outcome open, except where a node refuses a request because it is too large. This holds for "database space
exceeded" too: etcd executes the transaction that reaches the quota, and answers with this error. So the log reads the head first.
`LogFullError` is raised only if no earlier try with the same `before` can still take effect.

A reader gets pages, then a watch from the revision of the last page on. The index of entries has no gap. So a watch that drops or
repeats an event is noticed, and so is one that is silent while the head changes. Then the reader begins again with a page.

An entry that does not match its checksum is read again from the other nodes.
"""

import threading
import time
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple, final

from maxam.cluster.entry import MAGIC
from maxam.cluster.etcd_messages import (
    COMPACT,
    DELETE_RANGE,
    PUT,
    RANGE,
    TXN,
    Event,
    KeyValue,
    compaction_request,
    delete_range_request,
    header_revision,
    holds,
    put_op,
    put_request,
    range_answer,
    range_op,
    range_request,
    txn_answer,
    txn_request,
    watch_request,
    written_at,
)
from maxam.cluster.etcd_nodes import Nodes, RefusedError
from maxam.cluster.log import (
    Head,
    LogDamagedError,
    LogError,
    LogFullError,
    LogLostError,
    LogSize,
    LogTrimmedError,
    SupersededError,
    read_head,
)
from maxam.errors import ConfigurationError

MIB: Final = 1_048_576
OLDEST: Final = (3, 6)  # release of etcd: older ones keep too many entries in memory

_WRITE_S: Final = 1.0  # deadline of a write, and as much for each MiB
_TRIES: Final = 2  # in this time: a proposal that goes to a leader of etcd which has died gets no answer
_HEAD_S: Final = 1.0  # longest wait for one node, for the head
_PAGE_S: Final = 2.0  # for a page of entries
_TRIM_S: Final = 2.0
_QUIET_S: Final = 1.0
_PAGE_BYTES: Final = 4 * MIB
_PAGE_ENTRIES_MAX: Final = 1000
_TYPICAL_BYTES: Final = 262_144  # of an entry, until some were read
_COMPACT_AFTER_S: Final = 10.0  # a watch that is later than this begins again with a page
_FRAME_BYTES: Final = 92  # of the smallest entry


class _Page(NamedTuple):
    """Part of the log.

    Attributes:
        entries: Contiguous entries.
        head: The head at that time; None if there is none.
        revision: Revision of etcd's store that was read.
    """

    entries: list[bytes]
    head: Head | None
    revision: int


@final
class EtcdLog:
    """Implements `maxam.cluster.log.Log` on etcd. Several threads may call at once.

    `append` and `beat` raise SupersededError also if an earlier try of the same call took effect, and another member has written the
    head since. Then the entry of that try is in the log.
    """

    def __init__(self, name: str, endpoints: Sequence[str], ca: Path, certificate: Path, key: Path) -> None:
        """Open the log of the cluster of this name on the nodes, which take the other arguments and raise what `Nodes` raises."""
        prefix = f"/maxam/{name}/".encode()
        self._head_key: Final = prefix + b"head"
        self._entries: Final = prefix + b"e/"
        self._entries_end: Final = prefix + b"e0"  # "0" follows "/"
        self._watch_end: Final = prefix + b"i"  # after the entries and the head, before the announcements
        self._members: Final = prefix + b"m/"
        self._members_end: Final = prefix + b"m0"
        self._probe: Final = prefix + b"probe"
        self._nodes: Final = Nodes(endpoints, ca, certificate, key)
        self._lock: Final = threading.Lock()
        self._open: Final[set[int]] = set()  # versions of heads with which a lost call compared
        self._trims: Final[list[tuple[float, int]]] = []  # time and revision of each trim that is not compacted yet
        self._typical_bytes = _TYPICAL_BYTES

    @property
    def failures(self) -> int:
        """Return the number of tries to which a node gave no answer."""
        return self._nodes.failures

    def head(self) -> Head | None:
        """Return the head, as `Log` has it."""
        request = range_request(self._head_key)
        answer = self._nodes.call(RANGE, request, range_answer, _HEAD_S, _HEAD_S * len(self._nodes))
        return _head_of(answer.values)

    def append(self, entry: bytes, head: Head, before: Head | None) -> Head:
        """Append an entry, as `Log` has it."""
        return self._replace(head, before, [put_op(put_request(self._entry_key(head.index), entry))])

    def beat(self, head: Head, before: Head) -> Head:
        """Replace the head alone, as `Log` has it."""
        return self._replace(head, before, [])

    def read(self, first: int, bytes_max: int) -> list[bytes]:
        """Return entries from an index on, as `Log` has it."""
        entries: list[bytes] = []
        size = 0
        while True:
            try:
                page = self._page(first + len(entries), bytes_max - size)
            except LogError:
                if entries:
                    return entries  # the next call meets the error
                raise
            for entry in page.entries:
                size += len(entry)
                if entries and size > bytes_max:
                    return entries
                entries.append(entry)
            if size >= bytes_max or page.head is None or first + len(entries) > page.head.index:
                return entries

    def follow(self, first: int) -> Iterator[bytes | Head | None]:
        """Yield entries from an index on and heads as they change, as `Log` has it."""
        newest = 0  # version of the head that was yielded last
        while True:
            page = self._page(first, _PAGE_BYTES)
            for entry in page.entries:
                first += 1
                yield entry
            if page.head is not None:
                if first <= page.head.index:
                    continue
                if page.head.version > newest:
                    newest = page.head.version
                    yield page.head
            with closing(self._watch(first, newest, page.revision + 1)) as steps:
                for step in steps:
                    if isinstance(step, bytes):
                        first += 1
                    elif step is not None:
                        newest = step.version
                    yield step

    def trim(self, last: int) -> None:
        """Forget the entries up to an index, as `Log` has it.

        etcd keeps their history until it is compacted. This is done up to the revision of a trim that is ten seconds old, so that
        watches which are late go on.
        """
        request = delete_range_request(self._entry_key(0), self._entry_key(last + 1))
        revision = self._call(DELETE_RANGE, request)
        now = time.monotonic()
        oldest = 0
        with self._lock:
            self._trims.append((now, revision))
            while self._trims and self._trims[0][0] <= now - _COMPACT_AFTER_S:
                oldest = self._trims.pop(0)[1]
        if oldest:
            self._call(COMPACT, compaction_request(oldest))

    def announce(self, name: str, text: bytes) -> None:
        """Publish what others see of a member, as `Log` has it."""
        self._call(PUT, put_request(self._members + name.encode(), text))

    def announced(self) -> dict[str, bytes]:
        """Return what each member announced last, as `Log` has it."""
        request = range_request(self._members, self._members_end)
        answer = self._nodes.call(RANGE, request, range_answer, _HEAD_S, _HEAD_S * len(self._nodes))
        return {kv.key.removeprefix(self._members).decode(errors="replace"): kv.value for kv in answer.values}

    def forget(self, name: str) -> None:
        """Remove what a member announced, as `Log` has it."""
        self._call(DELETE_RANGE, delete_range_request(self._members + name.encode()))

    def size(self) -> LogSize:
        """Return what etcd holds, and which nodes answer, as `Log` has it."""
        states = self._nodes.status()
        answers = [state for _, state in states if state is not None]
        if not answers:
            raise LogLostError(f"no node of etcd answers: {', '.join(address for address, _ in states)}")
        return LogSize(
            max(state.size for state in answers),
            max(state.in_use for state in answers),
            min(state.quota for state in answers),
            tuple((address, "" if state is None else state.version) for address, state in states),
            full=any(state.full for state in answers),
        )

    def check(self) -> None:
        """Check the releases of the nodes that answer. Raises ConfigurationError, or LogLostError if no node answers."""
        check_releases(self.size())

    def prove(self, request_bytes: int) -> LogSize:
        """Check that etcd can hold the log of a cluster: release, and largest request.

        A request of this size is written to each node that answers, and removed.

        Args:
            request_bytes: Size of the largest entry.

        Raises:
            ConfigurationError: A node has an old release, or refuses a request of this size.
            LogFullError: etcd is over its quota.
            LogLostError: No node answers.
        """
        size = self.size()
        check_releases(size)
        deadline_s = _WRITE_S + request_bytes / MIB
        answers = list(self._nodes.each(PUT, put_request(self._probe, bytes(request_bytes)), deadline_s))
        self._call(DELETE_RANGE, delete_range_request(self._probe))
        problems = [(address, answer) for address, answer in answers if isinstance(answer, str)]
        for address, problem in problems:
            refused = RefusedError(problem, address, alone=True)
            if refused.too_large:
                raise ConfigurationError(
                    f"etcd at {address} refuses requests of {request_bytes} bytes. Start it with"
                    " --max-request-bytes 8388608, or lower frame_body_bytes_max of [limits]"
                )
            if refused.no_space:
                raise LogFullError(f"etcd at {address} is over its quota: {problem}")
        if len(problems) == len(answers):
            raise LogLostError(f"no node of etcd answers: {problems[0][1]}")
        return size

    def close(self) -> None:
        """End all connections, as `Log` has it."""
        self._nodes.close()

    def _entry_key(self, index: int) -> bytes:
        return self._entries + b"%016x" % index

    def _call(self, method: str, request: bytes) -> int:
        """Return the revision of the store after a request that may be repeated, and that etcd may refuse."""
        try:
            return self._nodes.call(method, request, header_revision, _TRIM_S, _TRIM_S)
        except RefusedError as refused:
            if method == COMPACT:
                return 0  # another member was faster
            if refused.no_space:
                raise LogFullError(str(refused)) from refused
            raise LogLostError(str(refused)) from refused

    def _replace(self, head: Head, before: Head | None, puts: list[bytes]) -> Head:
        version = 0 if before is None else before.version
        value = head.encode()
        compare = [written_at(self._head_key, version)]
        if before is not None:  # an etcd that was restored from a backup may give its revisions again
            compare.append(holds(self._head_key, before.encode()))
        request = txn_request(
            compare,
            [*puts, put_op(put_request(self._head_key, value))],
            [range_op(range_request(self._head_key))],
        )
        deadline_s = _WRITE_S + len(request) / MIB
        try:
            answer = self._nodes.call(TXN, request, txn_answer, deadline_s / _TRIES, deadline_s)
        except LogLostError:
            with self._lock:
                self._open.add(version)
            raise
        except RefusedError as refused:
            return self._refused(refused, head, before)
        with self._lock:
            self._open.discard(version)  # the head has another version from now on
        if answer.succeeded:
            return read_head(value, answer.revision)
        return _ours(head, _head_of(answer.ranges[0].values))

    def _refused(self, refused: RefusedError, head: Head, before: Head | None) -> Head:
        """Return the head after a write that a node refused, if it took effect all the same."""
        version = 0 if before is None else before.version
        with self._lock:
            known = refused.alone and version not in self._open
            if not known:
                self._open.add(version)
        found = self.head()
        if not _same(before, found):
            return _ours(head, found)
        if not known:
            raise LogLostError(f"{refused}. An earlier try may still take effect") from refused
        if refused.too_large:
            raise LogFullError(f"{refused}. Start etcd with --max-request-bytes 8388608") from refused
        raise LogFullError(f"{refused}. Compact and defragment etcd, then disarm its alarm") from refused

    def _page(self, first: int, bytes_max: int) -> _Page:
        """Return entries from an index on, and the head."""
        limit = min(max(bytes_max // self._typical_bytes, 1), _PAGE_ENTRIES_MAX)
        for _ in range(len(self._nodes) + 1):
            request = txn_request(
                [],
                [
                    range_op(range_request(self._head_key)),
                    range_op(range_request(self._entry_key(first), self._entries_end, limit=limit)),
                ],
                [],
            )
            answer = self._nodes.call(TXN, request, txn_answer, _PAGE_S, _PAGE_S * len(self._nodes))
            head = _head_of(answer.ranges[0].values)
            newest = 0 if head is None else head.index
            entries = self._contiguous(first, newest, answer.ranges[1].values)
            if entries or first > newest:
                return _Page(entries, head, answer.revision)
            oldest = self._oldest(newest)
            if oldest > first:
                raise LogTrimmedError(oldest)
            self._nodes.turn()  # the entry is missing or damaged at this node
        raise LogDamagedError(f"entry {first} of the log is damaged or missing at all nodes of etcd")

    def _contiguous(self, first: int, newest: int, values: list[KeyValue]) -> list[bytes]:
        """Return the entries of a page up to the first one that is missing or damaged."""
        entries: list[bytes] = []
        for index, kv in enumerate(values, first):
            if index > newest or kv.key != self._entry_key(index) or not _is_whole(kv.value, index):
                break
            entries.append(kv.value)
        if entries:
            self._typical_bytes = max(sum(map(len, entries)) // len(entries), _FRAME_BYTES)
        return entries

    def _oldest(self, newest: int) -> int:
        """Return the index of the oldest entry that is held; the one after the newest if none is."""
        request = range_request(self._entries, self._entries_end, limit=1, keys_only=True)
        answer = self._nodes.call(RANGE, request, range_answer, _PAGE_S, _PAGE_S * len(self._nodes))
        if not answer.values:
            return newest + 1
        try:
            return int(answer.values[0].key.removeprefix(self._entries), 16)
        except ValueError as error:
            raise LogDamagedError(f"etcd has the key {answer.values[0].key!r} among the entries") from error

    def _watch(self, first: int, newest: int, revision: int) -> Generator[bytes | Head | None]:
        """Yield what changes from a revision on; end when the watch ends, or misses something.

        Args:
            first: Index of the next entry.
            newest: Version of the head that was yielded last.
            revision: Revision of etcd's store that the watch begins with.
        """
        with self._nodes.watch(watch_request(self._entries, self._watch_end, revision)) as watch:
            quiet_at = time.monotonic() + _QUIET_S
            while not self._nodes.closed:
                try:
                    answer = watch.take(quiet_at - time.monotonic())
                except LogLostError:
                    return
                if answer is None:
                    yield None
                    found = self.head()
                    if found is not None and found.version != newest:
                        return
                    quiet_at = time.monotonic() + _QUIET_S
                    continue
                for event in answer.events:
                    if not event.deleted and event.kv.key == self._head_key:
                        head = _head_of([event.kv])
                        if head is None or head.version <= newest:
                            continue
                        if head.index >= first:
                            return  # its entry was dropped
                        newest = head.version
                        yield head
                    elif not event.deleted:
                        step = self._entry_of(event, first)
                        if step is None:
                            continue
                        if not step:
                            return
                        first += 1
                        yield step
                    quiet_at = time.monotonic() + _QUIET_S

    def _entry_of(self, event: Event, first: int) -> bytes | None:
        """Return the entry of an event, None if it is repeated, and no bytes if it is damaged or an entry before it was dropped."""
        if event.kv.key == self._entry_key(first):
            if _is_whole(event.kv.value, first):
                return event.kv.value
            self._nodes.turn()
            return b""
        return None if event.kv.key < self._entry_key(first) else b""


def check_releases(size: LogSize) -> None:
    """Raise ConfigurationError if a node of etcd has a release that is too old for the log of a cluster."""
    for address, version in size.nodes:
        numbers = version.split("-", maxsplit=1)[0].split(".")[:2]
        if version and (not all(map(str.isdecimal, numbers)) or tuple(map(int, numbers)) < OLDEST):
            raise ConfigurationError(f"etcd at {address} is release {version}: install 3.6 or newer")


def _head_of(values: list[KeyValue]) -> Head | None:
    return read_head(values[0].value, values[0].mod_revision) if values else None


def _same(one: Head | None, other: Head | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.version == other.version and one.wrote(other)


def _ours(head: Head, found: Head | None) -> Head:
    """Return the head that was found, if it was written as this one; else raise SupersededError."""
    if found is None or not head.wrote(found):
        raise SupersededError(found)
    return found


def _is_whole(data: bytes, index: int) -> bool:
    """Return True if these bytes are the entry of an index, and match their checksum."""
    return (
        len(data) >= _FRAME_BYTES
        and data[:4] == MAGIC
        and int.from_bytes(data[8:16], "big") == index
        and int.from_bytes(data[-4:], "big") == zlib.crc32(memoryview(data)[:-4])
    )

"""The conformance suite of `Log`: what each implementation must do, alone and with lost answers."""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple

import pytest

from maxam.cluster.log import Head, Log, LogLostError, LogTrimmedError, SupersededError
from tests.cluster.log_site import (
    EMPTY_BYTES,
    LogSite,
    all_entries,
    append,
    beating,
    entries_until,
    entry,
    filled,
    following,
    head_of,
    insist,
    payload_of,
    reader,
)

WRITERS = 8
ROUNDS = 25


class Write(NamedTuple):
    """A try to append that had an answer: its time, its payload, and the index if it succeeded, else 0."""

    began: float
    ended: float
    payload: bytes
    place: int


class Read(NamedTuple):
    """A read of the head: its time and the index."""

    began: float
    ended: float
    place: int


@pytest.fixture
def log(site: LogSite) -> Iterator[Log]:
    """Return a client of a log that does not exist yet."""
    made = site.log()
    yield made
    made.close()


def test_no_log(log: Log) -> None:
    """Before the first entry there is neither head nor entry nor member."""
    assert log.head() is None
    assert log.read(1, 100) == []
    assert log.announced() == {}
    with reader(log) as found:
        assert next(found) is None


def test_first_entry(log: Log) -> None:
    """A log is begun once."""
    head = append(log, None, b"genesis")
    other = following(None)
    with pytest.raises(SupersededError) as caught:
        log.append(entry(1), other, None)
    assert caught.value.head is not None
    assert caught.value.head.wrote(head)
    assert [payload_of(one) for one in all_entries(log)] == [b"genesis"]


def test_the_bytes_of_the_head_are_compared(log: Log) -> None:
    """Another head with the same version of the engine is another head, as after a restore of the engine from a backup."""
    head = append(log, None)
    other = following(None)
    other = Head(other.cluster, 1, 1, "a", other.position, 1, 0, other.nonce, head.version)
    with pytest.raises(SupersededError):
        log.beat(beating(other), other)
    with pytest.raises(SupersededError):
        log.append(entry(2), following(other), other)
    found = log.head()
    assert found is not None
    assert found.wrote(head)


@pytest.mark.parametrize("kinds", [*product(["append", "beat"], repeat=3)], ids="-".join)
def test_compare_and_swap(site: LogSite, log: Log, kinds: tuple[str, ...]) -> None:
    """Each write replaces the head that it compares with, and no other one. A refused one leaves no trace."""
    other = site.log()
    older, head = None, append(log, None)
    for kind in kinds:
        stale = older
        older, made = head, (following(head) if kind == "append" else beating(head))
        head = log.append(entry(made.index), made, older) if kind == "append" else log.beat(made, older)
        assert head.version > older.version
        for one in (log, other):
            found = one.head()
            assert found is not None
            assert (found.version, found.encode()) == (head.version, made.encode())
            refused = following(head, leader="b", term=2)
            for wrong in (stale, older):
                with pytest.raises(SupersededError):
                    one.append(entry(refused.index), refused, wrong)
                if wrong is not None:
                    with pytest.raises(SupersededError):
                        one.beat(beating(wrong), wrong)
            assert len(all_entries(one)) == head.index
    other.close()


def test_the_same_call_again(site: LogSite, log: Log) -> None:
    """Repeating a call that took effect returns the same head, until another head is written."""
    other = site.log()
    before = append(log, None)
    head = following(before)
    made = log.append(entry(2, b"x"), head, before)
    for one in (log, other, log):
        assert one.append(entry(2, b"x"), head, before).version == made.version
    assert len(all_entries(log)) == 2
    beat = beating(made)
    beaten = other.beat(beat, made)
    assert other.beat(beat, made).version == beaten.version
    with pytest.raises(SupersededError) as caught:
        log.append(entry(2, b"x"), head, before)
    assert caught.value.head is not None
    assert caught.value.head.wrote(beat)
    assert payload_of(all_entries(log)[1]) == b"x"
    other.close()


def test_writers_at_once(site: LogSite) -> None:
    """Each index goes to one of eight writers. Their history and that of a reader of the head are linearizable."""
    writes: list[Write] = []
    reads: list[Read] = []
    done = threading.Event()

    def write(name: str) -> None:
        own = site.log()
        head = head_of(own)
        for number in range(ROUNDS):
            payload = f"{name}{number}".encode()
            made = following(head, leader=name)
            began = time.monotonic()
            try:
                head = insist(own, entry(made.index, payload), made, head)
                writes.append(Write(began, time.monotonic(), payload, head.index))
            except SupersededError as error:
                writes.append(Write(began, time.monotonic(), payload, 0))
                head = error.head
        own.close()

    def read() -> None:
        own = site.log()
        while not done.is_set():
            began = time.monotonic()
            head = head_of(own)
            reads.append(Read(began, time.monotonic(), 0 if head is None else head.index))
        own.close()

    threads = [threading.Thread(target=write, args=(f"w{number}-",)) for number in range(WRITERS)]
    observer = threading.Thread(target=read)
    for thread in [*threads, observer]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    observer.join()
    own = site.log()
    found = [payload_of(one) for one in all_entries(own)]
    own.close()
    assert len(writes) == WRITERS * ROUNDS
    written = {one.place: one for one in writes if one.place}
    assert [written[index].payload for index in sorted(written)] == found
    assert sorted(written) == [*range(1, len(found) + 1)]
    assert not {one.payload for one in writes if not one.place} & set(found)
    check_times(list(written.values()), reads)


def check_times(writes: list[Write], reads: list[Read]) -> None:
    """Assert that the order of indexes does not contradict real time."""
    for one, other in product(writes, repeat=2):
        if one.ended < other.began:
            assert one.place < other.place
    for read, later in pairwise(reads):
        assert read.place <= later.place
    for read in reads:
        assert read.place >= max((one.place for one in writes if one.ended < read.began), default=0)
        assert read.place < min((one.place for one in writes if one.began > read.ended), default=1 << 62)


def test_lost_answers(site: LogSite) -> None:
    """A call whose answer was lost is made again until it succeeds, and takes effect once."""
    lossy = site.lossy_log()
    head = None
    payloads = [bytes([number]) * size for number, size in enumerate([0, 10, 1000, 20_000, 70_000] * 3)]
    for payload in payloads:
        site.lose_answer(EMPTY_BYTES + len(payload))
        head = append(lossy, head, payload)
    assert head is not None
    for _ in range(5):
        site.lose_answer(0)
        made = beating(head)
        while True:
            try:
                head = lossy.beat(made, head)
                break
            except LogLostError:
                continue
    other = site.log()
    assert [payload_of(one) for one in all_entries(other)] == payloads
    found = head_of(other)
    assert found is not None
    assert (found.index, found.beat) == (len(payloads), 5)
    lossy.close()
    other.close()


def test_lost_answer_and_another_leader(site: LogSite, log: Log) -> None:
    """A call whose answer was lost fails once another member has written the head. Its entry is there once or not at all."""
    lossy = site.lossy_log()
    head = append(log, None)
    for number in range(5):
        site.lose_answer(EMPTY_BYTES + 5000)
        made = following(head, leader="lost")
        payload = bytes([number]) * 5000
        try:
            mine = lossy.append(entry(made.index, payload), made, head)
        except LogLostError:
            mine = None
        found = head_of(log)
        assert found is not None
        after = append(log, found, b"other")
        if mine is not None:
            assert after.index == mine.index + 1
        with pytest.raises(SupersededError) as caught:
            insist(lossy, entry(made.index, payload), made, head)
        assert caught.value.head is not None
        assert caught.value.head.wrote(after)
        assert [payload_of(one) for one in all_entries(log)].count(payload) == (found.index == made.index)
        head = after
    lossy.close()


def test_large_entries(site: LogSite, log: Log) -> None:
    """Entries of 4.1 MiB are read and followed."""
    payloads = [bytes([number]) * 4_299_161 for number in range(3)]
    with reader(site.log()) as found:
        head = filled(log, payloads)
        assert [payload_of(one) for one in entries_until(found, head.index)] == payloads
    assert [payload_of(one) for one in log.read(1, 100)] == payloads[:1]
    assert [payload_of(one) for one in log.read(1, 9_000_000)] == payloads[:2]
    assert [payload_of(one) for one in log.read(1, 100_000_000)] == payloads


def test_pages(log: Log) -> None:
    """A page begins at the index that was requested, has one entry at least, and is no larger than requested otherwise."""
    filled(log, [bytes(size) for size in (0, 100, 2000, 0, 300, 50_000, 0, 0, 10, 300_000, 0, 0)])
    whole = log.read(1, 10_000_000)
    assert len(whole) == 12
    for first, room in product(range(1, 14), (0, 92, 93, 200, 2500, 60_000, 400_000)):
        page = log.read(first, room)
        assert page == whole[first - 1 : first - 1 + len(page)]
        assert bool(page) == (first <= 12)
        assert len(page) <= 1 or sum(map(len, page)) <= room
        after = whole[first - 1 + len(page) :]
        assert not after or sum(map(len, page)) + len(after[0]) > room


def test_trim(log: Log) -> None:
    """Trimmed entries are refused with the index of the oldest one that is held; the others stay."""
    head = filled(log, [bytes([number]) for number in range(10)])
    for last in (0, 3, 3, 2, 7):
        log.trim(last)
        oldest = max(last, 3 if last == 2 else last) + 1
        for first in range(1, 13):
            if first < oldest:
                with pytest.raises(LogTrimmedError) as caught:
                    log.read(first, 1000)
                assert caught.value.first == oldest
                with pytest.raises(LogTrimmedError):
                    next(iter(log.follow(first)))
            else:
                assert [one[15] for one in log.read(first, 10_000)] == [*range(first, 11)]
    head = append(log, head, b"x")
    log.trim(head.index)
    with pytest.raises(LogTrimmedError) as caught:
        log.read(head.index, 1000)
    assert caught.value.first == head.index + 1
    assert log.read(head.index + 1, 1000) == []
    found = log.head()
    assert found is not None
    assert found.wrote(head)
    head = append(log, head, b"y")
    assert [payload_of(one) for one in log.read(head.index, 1000)] == [b"y"]


@pytest.mark.parametrize("first", [1, 3, 5, 6, 8])
def test_follow(site: LogSite, log: Log, first: int) -> None:
    """A follower gets each entry once, in order, and each head after its entry, from any index on."""
    head = filled(log, [bytes([number]) for number in range(5)])
    with reader(site.log(), first) as found:
        if first <= 5:
            entries = entries_until(found, 5, first)
            assert [payload_of(one)[0] for one in entries] == [*range(first - 1, 5)]
        for number in range(5, 10):
            head = append(log, head, bytes([number]))
        if first > 5:
            head = append(log, head, b"last")
        entries = entries_until(found, head.index, max(first, 6))
        assert len(entries) == head.index + 1 - max(first, 6)


def test_beats_are_followed(site: LogSite, log: Log) -> None:
    """A follower sees the newest head, and none of another index; silence yields None."""
    head = filled(log, [b"a", b"b"])
    with reader(site.log()) as found:
        entries_until(found, 2)
        for _ in range(3):
            head = log.beat(beating(head), head)
        for step in found:
            assert not isinstance(step, bytes)
            if step is not None and step.wrote(head):
                break
        assert next(found) is None


def test_trim_under_followers(site: LogSite, log: Log) -> None:
    """A follower that is up to date does not notice that the log is trimmed."""
    head = append(log, None)
    with reader(site.log()) as found:
        assert len(entries_until(found, 1)) == 1
        for _ in range(10):
            for _ in range(5):
                head = append(log, head, bytes(1000))
            assert len(entries_until(found, head.index, head.index - 4)) == 5
            log.trim(head.index)


def test_announcements(site: LogSite, log: Log) -> None:
    """The last announcement of each member is seen by all."""
    other = site.log()
    texts = {"a": b"1", "gateway-b": b"2" * 5000, "c": b""}
    for name, text in texts.items():
        log.announce(name, b"old")
        log.announce(name, text)
    assert log.announced() == other.announced() == texts
    assert log.head() is None
    append(log, None)
    assert log.announced() == texts
    for name in ("a", "nobody"):
        other.forget(name)
    del texts["a"]
    assert log.announced() == texts
    other.close()


def test_size(log: Log) -> None:
    """The size has the nodes and their versions."""
    filled(log, [bytes(100_000)] * 3)
    size = log.size()
    assert size.bytes >= size.in_use > 0
    assert size.nodes
    assert all(version for _, version in size.nodes)


def test_close(site: LogSite, log: Log) -> None:
    """Closing ends a follower and all calls."""
    other = site.log()
    append(log, None)
    ended = threading.Event()

    def follow() -> None:
        with pytest.raises(LogLostError):
            for _ in other.follow(1):
                pass
        ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    other.close()
    thread.join()
    assert ended.is_set()
    with pytest.raises(LogLostError):
        other.head()
    with pytest.raises(LogLostError):
        other.size()

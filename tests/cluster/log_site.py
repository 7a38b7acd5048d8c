"""The interface between the conformance suite and an implementation of `Log`, and how the suite writes to a log."""

import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from os import urandom
from typing import Final, Protocol

from maxam.cluster.entry import MAGIC, PROOF
from maxam.cluster.log import Head, Log, LogLostError
from maxam.journal.encoding import START

CLUSTER: Final = bytes(range(16))
EMPTY_BYTES: Final = 92  # of an entry without payload


class LogSite(Protocol):
    """One log that does not exist yet, and faults of its engine."""

    def log(self) -> Log:
        """Return a further client of the log."""

    def lossy_log(self) -> Log:
        """Return a client that `lose_answer` acts on."""

    def lose_answer(self, entry_bytes: int) -> None:
        """Have the next request of the lossy client reach the engine, and lose its answer; or have it cut on its way.

        Args:
            entry_bytes: Size of the entry that it will append.
        """


def entry(index: int, payload: bytes = b"") -> bytes:
    """Return the bytes of an entry. A log checks the frame alone, so any payload does."""
    data = b"".join(
        (
            MAGIC,
            bytes((PROOF, 0, 0, 1)),
            index.to_bytes(8, "big"),
            bytes(68),
            len(payload).to_bytes(4, "big"),
            payload,
        )
    )
    return data + zlib.crc32(data).to_bytes(4, "big")


def payload_of(data: bytes) -> bytes:
    """Return the payload of an entry."""
    return data[88:-4]


def following(before: Head | None, leader: str = "a", term: int = 1) -> Head:
    """Return the head of the entry after a head."""
    index = 1 if before is None else before.index + 1
    return Head(CLUSTER, term, index, leader, START, 1, 0, urandom(8))


def beating(before: Head) -> Head:
    """Return a head that replaces another one without an entry."""
    return Head(CLUSTER, before.term, before.index, before.leader, START, 1, before.beat + 1, urandom(8))


def insist(log: Log, data: bytes, head: Head, before: Head | None) -> Head:
    """Append, and make the same call again while its outcome is unknown."""
    while True:
        try:
            return log.append(data, head, before)
        except LogLostError:
            continue


def append(log: Log, before: Head | None, payload: bytes = b"") -> Head:
    """Append an entry with this payload after a head, however often it takes."""
    head = following(before)
    return insist(log, entry(head.index, payload), head, before)


def filled(log: Log, payloads: list[bytes]) -> Head:
    """Append an entry for each payload to a new log; return the last head."""
    head = None
    for payload in payloads:
        head = append(log, head, payload)
    assert head is not None
    return head


def head_of(log: Log) -> Head | None:
    """Return the head, however often it takes."""
    while True:
        try:
            return log.head()
        except LogLostError:
            continue


def all_entries(log: Log, first: int = 1) -> list[bytes]:
    """Return all entries from an index on."""
    found: list[bytes] = []
    while True:
        try:
            entries = log.read(first + len(found), 1_048_576)
        except LogLostError:
            continue
        if not entries:
            return found
        found += entries


def steps(log: Log, first: int) -> Iterator[bytes | Head | None]:
    """Follow a log; begin again where the engine gave no answer."""
    while True:
        try:
            for step in log.follow(first):
                if isinstance(step, bytes):
                    first += 1
                yield step
        except LogLostError:
            yield None


@contextmanager
def reader(log: Log, first: int = 1) -> Iterator[Iterator[bytes | Head | None]]:
    """Follow a log; leaving ends it."""
    with closing(steps(log, first)) as found:  # type: ignore[type-var]  # a generator
        yield found


def entries_until(found: Iterator[bytes | Head | None], last: int, first: int = 1) -> list[bytes]:
    """Read steps up to the head of an index, and return the entries; assert their order."""
    entries: list[bytes] = []
    for step in found:
        if isinstance(step, bytes):
            assert int.from_bytes(step[8:16], "big") == first + len(entries)
            entries.append(step)
        elif isinstance(step, Head):
            assert step.index <= first + len(entries) - 1
            if step.index >= last:
                return entries
    raise AssertionError("the log ended")

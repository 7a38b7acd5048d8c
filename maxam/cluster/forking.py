"""Find the tail of a forked journal: the changes after the place where its history and that of its source part.

A promotion gives a journal a new incarnation. The journal of the lost site holds the block at which that incarnation begins, and may
hold changes after it. Those exist nowhere else. They are listed for a person, topic by topic, and nothing merges them.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from maxam.errors import JournalDamagedError, JournalError
from maxam.journal.decoding import Decoder
from maxam.journal.disk import OsDisk
from maxam.journal.identity import find_block
from maxam.journal.listing import list_segments
from maxam.journal.whole import newest_incarnation, open_scanner
from maxam.records import Change, Record

FORKED: Final = ".forked"  # ends the names of folders that were set aside


@dataclass(slots=True)
class LostTopic:
    """A topic with changes that the source has not.

    Attributes:
        destination: Its name.
        changes: How many.
        revision: Of the newest one, in the forked journal.
        accepted_at_us: When that one was accepted.
        deleted: It is a delete.
        body_bytes: Size of its body.
    """

    destination: str
    changes: int
    revision: int
    accepted_at_us: int
    deleted: bool
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a journal that its source has not.

    Attributes:
        incarnation: Of the journal.
        after: Revision after which it begins.
        last: Last revision of the journal.
        topics: Those that changed, in order of their names.
        others: Records that are no changes: of sessions and subscriptions.
    """

    incarnation: str
    after: int
    last: int
    topics: list[LostTopic]
    others: int


def tail_of(folder: str, revision: int, chain: int) -> Tail:
    """Return the tail of a journal after the place at which the incarnation of its source begins.

    Args:
        folder: Of the journal. No gateway may be running.
        revision: Of the last change before that place.
        chain: Check of the block that ends there; 0 if it is not known.

    Raises:
        JournalError: The journal is in use, or does not hold that place, or is damaged.
        OSError: It cannot be read.
    """
    disk = OsDisk()
    lock = _lock(folder)
    try:
        _require_place(folder, revision, chain)
        topics: dict[bytes, LostTopic] = {}
        others, last = 0, revision
        for record in _records_after(folder, revision):
            if type(record) is not Change:
                others += 1
                continue
            last = record.revision
            known = topics.get(record.destination)
            topics[record.destination] = LostTopic(
                record.destination.decode(),
                1 if known is None else known.changes + 1,
                record.revision,
                record.accepted_at_us,
                record.deleted,
                record.body_bytes,
            )
        return Tail(newest_incarnation(folder, disk), revision, last, [topics[name] for name in sorted(topics)], others)
    finally:
        disk.close(lock)


def set_aside(folder: str) -> str:
    """Rename a journal's folder, so that the next start copies; return its new name. Raises JournalError or OSError."""
    disk = OsDisk()
    lock = _lock(folder)
    try:
        parent, _, name = folder.rpartition("/")
        pattern = re.compile(re.escape(name + FORKED) + r"-([0-9]+)")
        numbers = [int(found[1]) for one in disk.names(parent or "/") if (found := pattern.fullmatch(one))]
        aside = f"{folder}{FORKED}-{max(numbers, default=0) + 1}"
        disk.rename(folder, aside)
        disk.fsync_folder(parent or "/")
        return aside
    finally:
        disk.close(lock)


def _lock(folder: str) -> int:
    if not os.path.isdir(f"{folder}/segments"):  # noqa: PTH112  # a string is at hand
        raise JournalError(f"{folder} is not the folder of a journal: it has no folder `segments`")
    try:
        return OsDisk().lock(f"{folder}/lock")
    except BlockingIOError as error:
        raise JournalError(f"the journal folder {folder} is in use by another process; stop its gateway") from error


def _require_place(folder: str, revision: int, chain: int) -> None:
    """Raise JournalError if a journal does not hold the block of a check that ends with a revision."""
    if revision == 0 or chain == 0:
        return
    for segment in list_segments(folder, "changes"):
        if (
            segment.first <= revision + 1
            and (segment.open or revision <= segment.last)
            and find_block(folder, "changes", segment, chain) is not None
        ):
            return
    raise JournalError(
        f"{folder} does not hold revision {revision} as its source has it: it ends before, or has another history. Only a copy of"
        " the whole journal can follow that source"
    )


def _records_after(folder: str, revision: int) -> Iterator[Record]:
    """Iterate over the records after the last change with a revision up to `revision`."""
    for segment in list_segments(folder, "changes"):
        if not segment.open and segment.last <= revision:
            continue
        scanner = open_scanner(segment.path, OsDisk())
        decoder = Decoder(scanner.start.revision, scanner.start.accepted_at_us)
        while True:
            try:
                records = scanner.records(decoder)
            except JournalDamagedError as error:
                if segment.open and scanner.torn():
                    return
                raise JournalError(f"{error}; `maxam-admin journal verify` shows all damage") from error
            if records is None or scanner.ended:
                break
            if decoder.revision > revision:
                yield from (one for one in records if type(one) is not Change or one.revision > revision)

"""Compare the journals of several members: their sealed segments, and the last block before a fork."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from maxam.errors import JournalDamagedError
from maxam.journal.decoding import Decoder
from maxam.journal.disk import OsDisk
from maxam.journal.identity import end_chain
from maxam.journal.listing import list_segments, open_segment, size_of
from maxam.journal.names import Segment
from maxam.journal.whole import open_scanner

_PIECE_BYTES: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed segment of a journal.

    Attributes:
        first: Revision of its first change.
        last: Of its last one.
        bytes: Size.
        chain: Check of its last block; 0 if the file has no whole end.
        sha256: Of the file, in hexadecimal; None if it was not asked for.
    """

    first: int
    last: int
    bytes: int
    chain: int
    sha256: str | None


def sealed_after(folder: str, revision: int, limit: int, *, full: bool) -> list[Sealed]:
    """Return the sealed segments that begin after a revision, in order.

    Args:
        folder: Of the journal. Its gateway may run.
        revision: After which they begin.
        limit: Largest number of them.
        full: Read each one whole, for its SHA-256.

    Raises:
        JournalError: There is no journal.
        OSError: It cannot be read.
    """
    found = [one for one in list_segments(folder, "changes") if not one.open and one.first > revision]
    rows = []
    for segment in found[:limit]:
        digest = _digest(folder, segment) if full else None
        size = size_of(segment)
        if size and digest != "":
            rows.append(Sealed(segment.first, segment.last, size, end_chain(folder, "changes", segment.last), digest))
    return rows


def _digest(folder: str, segment: Segment) -> str:
    """Return the SHA-256 of a segment; empty if it was removed since it was listed."""
    try:
        _, file = open_segment(folder, "changes", segment)
    except FileNotFoundError:
        return ""
    try:
        digest = sha256()
        for at in range(0, file.size, _PIECE_BYTES):
            digest.update(file.read(at, _PIECE_BYTES))
        return digest.hexdigest()
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class Difference:
    """A sealed segment that is not the same in all journals that have it.

    Attributes:
        first: Revision of its first change.
        last: Of its last one.
        members: The segment of each member that has it, by name.
    """

    first: int
    last: int
    members: dict[str, Sealed]


def differences(journals: Mapping[str, Iterable[Sealed]]) -> tuple[int, list[Difference]]:
    """Compare journals by their sealed segments.

    Segments that only one journal has are not compared: archives reach back to different times, and members seal one after the other.

    Args:
        journals: For each member, its sealed segments.

    Returns:
        The number of segments that two or more journals have, and those that differ.
    """
    holders: dict[int, dict[str, Sealed]] = {}
    for name, segments in journals.items():
        for one in segments:
            holders.setdefault(one.first, {})[name] = one
    shared = {first: found for first, found in sorted(holders.items()) if len(found) > 1}
    differing = [
        Difference(first, max(one.last for one in found.values()), found)
        for first, found in shared.items()
        if len(set(found.values())) > 1
    ]
    return len(shared), differing


def last_common(folder: str, held: Callable[[int, int], bool | None]) -> tuple[int, int] | None:
    """Return revision and check of the last block of a journal that another one holds too. None if that is its last block.

    Both journals are the same up to there, and differ after it. So a binary search finds the place.

    Args:
        folder: Of the journal. No gateway may be running.
        held: Returns whether the other journal holds the block of a check that ends with a revision. None if it no longer reaches
            back so far, which counts as held.

    Raises:
        JournalError: There is no journal.
        OSError: It cannot be read.
    """
    segments = list_segments(folder, "changes")
    ends = [(one.last, end_chain(folder, "changes", one.last)) for one in segments if not one.open]
    known = _first_false(len(ends), lambda number: held(*ends[number]) is not False)
    before = ends[known - 1] if known else (0, 0)
    for segment in segments[known:]:
        blocks = list(_blocks(segment))
        common = _first_false(len(blocks), lambda number: held(*blocks[number]) is not False)  # noqa: B023  # called here
        if common:
            before = blocks[common - 1]
        if common < len(blocks):
            return before
    return None


def _first_false(count: int, test: Callable[[int], bool]) -> int:
    """Return the first number below `count` for which a test fails; it fails for all after it. `count` if it never fails."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if test(middle):
            low = middle + 1
        else:
            high = middle
    return low


def _blocks(segment: Segment) -> Iterator[tuple[int, int]]:
    """Iterate over the blocks of a segment: last revision, and check."""
    if not os.path.getsize(segment.path):  # noqa: PTH202  # a string is at hand
        return
    scanner = open_scanner(segment.path, OsDisk())
    decoder = Decoder(scanner.start.revision, scanner.start.accepted_at_us)
    while True:
        try:
            records = scanner.records(decoder)
        except JournalDamagedError:
            if segment.open and scanner.torn():
                return
            raise
        if records is None or scanner.ended:
            return
        yield decoder.revision, scanner.chain

"""Read files of a journal that should be whole, and raise JournalDamagedError where one is not."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from maxam.errors import JournalDamagedError
from maxam.journal.decoding import Decoder, decode_rejected
from maxam.journal.disk import Disk
from maxam.journal.names import list_segments, list_snapshots
from maxam.journal.scan import Scanner
from maxam.records import Record, RejectedSend

OTHER_NAME: Final = "its header and its name differ"


def open_scanner(path: str, disk: Disk) -> Scanner:
    """Return a scanner of a file of the journal.

    Raises:
        JournalDamagedError: Its header is not whole.
    """
    return Scanner(path, disk.size(path), lambda offset, length: disk.read(path, offset, length))


def incarnation_of(path: str, disk: Disk) -> str:
    """Return the incarnation that the header of a segment or snapshot has; empty for none, and if the header cannot be believed."""
    try:
        return open_scanner(path, disk).incarnation
    except JournalDamagedError:
        return ""


def newest_incarnation(folder: str, disk: Disk) -> str:
    """Return the incarnation of a journal, as its newest segment, or else snapshot, that has one shows; empty for none."""
    sealed, opened = list_segments(f"{folder}/segments", disk)
    paths = [segment.path for segment in [*sealed, *opened]]
    if not paths and "snapshots" in disk.names(folder):
        paths = [path for _, path in list_snapshots(f"{folder}/snapshots", disk)]
    for path in reversed(paths):
        with suppress(FileNotFoundError):  # sealed under another name, or removed, since it was listed
            if incarnation := incarnation_of(path, disk):
                return incarnation
    return ""


def read_blocks(scanner: Scanner, decoder: Decoder) -> Iterator[list[Record]]:
    """Yield the records of each block, none of which may speak of a revision that is not there.

    Raises:
        JournalDamagedError: A block is not what was written, or does not follow.
    """
    while True:
        offset = scanner.offset
        records = scanner.records(decoder)
        if records is None:
            return
        if decoder.gapless and decoder.mentioned > decoder.revision:
            problem = f"a session knows revision {decoder.mentioned}, which is above the last change {decoder.revision}"
            scanner.offset = offset
            raise JournalDamagedError(scanner.path, offset, problem)
        yield records


def read_rejected(scanner: Scanner, revision: int) -> Iterator[list[RejectedSend]]:
    """Yield the rejected SENDs of each block.

    Args:
        scanner: Before the first block.
        revision: Of the rejected SEND before.

    Raises:
        JournalDamagedError: A block is not what was written, or does not follow.
    """
    offset = scanner.offset
    while (block := scanner.next_block()) is not None and not scanner.ended:
        try:
            sends = decode_rejected(*block, revision)
        except (ValueError, IndexError) as error:
            scanner.offset = offset
            problem = f"the block is whole, but its records are wrong: {error}"
            raise JournalDamagedError(scanner.path, offset, problem) from error
        revision += len(sends)
        offset = scanner.offset
        yield sends


def require_end(scanner: Scanner) -> None:
    """Raise JournalDamagedError unless the mark of a finished file was read."""
    if not scanner.ended:
        raise JournalDamagedError(scanner.path, scanner.size, "it is cut short: the mark of a finished file is missing")


def require_snapshot(scanner: Scanner, revision: int) -> None:
    """Raise JournalDamagedError unless the file is a snapshot of this revision."""
    if not scanner.snapshot or scanner.start.revision != revision:
        raise JournalDamagedError(scanner.path, 0, OTHER_NAME)


def whole_snapshot(path: str, revision: int, disk: Disk) -> JournalDamagedError | None:
    """Read a snapshot block by block; return what is wrong with it."""
    try:
        scanner = open_scanner(path, disk)
        require_snapshot(scanner, revision)
        while scanner.next_block() is not None:
            pass
        require_end(scanner)
    except JournalDamagedError as error:
        return error
    return None

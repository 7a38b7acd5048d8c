"""Read every file of a journal's folder, and report which of them are as they were written. Nothing is changed."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256

from maxam.errors import JournalDamagedError
from maxam.journal.decoding import Decoder
from maxam.journal.disk import Disk
from maxam.journal.index import index_path, load
from maxam.journal.losses import FOLDER, Losses, read_losses
from maxam.journal.names import (
    RESERVE,
    Segment,
    is_torn_tail,
    list_segments,
    list_snapshots,
    parse_segment_name,
    parse_snapshot_name,
    sealed_segments,
)
from maxam.journal.scan import HEADER_BYTES, Scanner
from maxam.journal.whole import OTHER_NAME, open_scanner, read_blocks, read_rejected, require_end, require_snapshot
from maxam.records import Change


@dataclass(frozen=True, slots=True)
class FileReport:
    """The findings of `verify` in one file.

    Attributes:
        path: The file.
        length: Its bytes.
        records: Whole ones, the end mark not counted.
        first: Revision of the first change, 0 without one.
        last: Of the last change.
        problem: None when all is well.
        offset: Byte at which the problem begins.
        torn: The problem is an uncommitted write, which the next start will cut off (or which is just under way).
        note: Something odd that is no damage.
        incarnation: The one that the file's header has; empty for none.
    """

    path: str
    length: int
    records: int = 0
    first: int = 0
    last: int = 0
    problem: str | None = None
    offset: int = 0
    torn: bool = False
    note: str = ""
    incarnation: str = ""


def verify(folder: str | os.PathLike[str], disk: Disk) -> Iterator[FileReport]:
    """Read every file of a journal's folder and report on each; changes nothing and takes no lock.

    Args:
        folder: The journal's.
        disk: Where it is.
    """
    root = os.fspath(folder)
    losses = read_losses(root, disk)
    for path in losses.unreadable:
        yield FileReport(
            path,
            disk.size(path),
            problem="the report of a repair cannot be believed. Its losses are reported as missing",
        )
    covered = 0
    folders = disk.names(root)  # a copy in a store without folders, such as S3, lacks the empty ones
    if "snapshots" in folders:
        for revision, path in list_snapshots(f"{root}/snapshots", disk):
            covered = revision
            yield examine_file(path, disk, Decoder(0, 0), None, revision)
        for name in sorted(disk.names(f"{root}/snapshots")):
            if parse_snapshot_name(name) is None and name != "lock":  # of the process that builds them
                yield _foreign(f"{root}/snapshots/{name}", disk)
    yield from _verify_segments(root, disk, covered, losses)
    yield from _verify_rejected(root, disk, losses)
    for name in sorted(disk.names(f"{root}/schemas")) if "schemas" in folders else ():
        path = f"{root}/schemas/{name}"
        if name.endswith(".avsc"):
            length = disk.size(path)
            right = sha256(disk.read(path, 0, length)).hexdigest() + ".avsc" == name
            yield FileReport(path, length, problem=None if right else "the text does not match the SHA-256 in its name")
        else:
            yield _foreign(path, disk)
    yield from _verify_indexes(root, disk)


def _verify_segments(root: str, disk: Disk, covered: int, losses: Losses) -> Iterator[FileReport]:
    folder = f"{root}/segments"
    sealed, opened = list_segments(folder, disk)
    decoder = Decoder(0, 0)
    chain = 0  # where the segment before ends, 0 when that is not known
    for segment in [*sealed, *opened]:
        missing = None
        note = ""
        first, last = decoder.revision + 1, segment.first - 1
        if first != segment.first:
            # what snapshots stand for may have been dropped from the archive's beginning; within it nothing may be missing
            if losses.cover("segments", first, last):
                note = f"revisions {first} to {last} before it were lost: see {FOLDER}/"
            elif decoder.revision or last > covered:
                missing = (
                    f"revisions {first} to {last} are missing before it"
                    if first <= last
                    else f"it begins within the segment before it, which ends with revision {decoder.revision}"
                )
            decoder = Decoder(last, 0)
            chain = 0
        before, chain = chain, 0
        try:
            report, start, chain = _examine(segment.path, disk, decoder, segment, 0)
        except FileNotFoundError:  # removed for its age, or sealed under another name, since it was listed
            decoder = Decoder(max(segment.last, last), 0)
            continue
        # a start asks that of what no snapshot stands for; before it repairs may have left out what sessions did
        if before and start not in {0, before} and last > covered:
            missing = missing or "it does not follow the segment before it: one of the two is of another journal"
        if report.problem is not None:
            decoder = Decoder(max(segment.last, last), 0)
        elif missing is not None:
            report = replace(report, problem=missing)
        yield replace(report, note=note)
    for name in sorted(disk.names(folder)):
        if parse_segment_name(folder, name) is None:
            yield _foreign(f"{folder}/{name}", disk)


def _verify_indexes(root: str, disk: Disk) -> Iterator[FileReport]:
    if "index" not in disk.names(root):
        return
    segments = {index_path(root, segment): segment for segment in sealed_segments(root, disk)}
    for name in sorted(disk.names(f"{root}/index")):
        path = f"{root}/index/{name}"
        segment = segments.get(path)
        try:
            length = disk.size(path)
        except FileNotFoundError:  # a gateway that runs builds another one, and has renamed it meanwhile
            continue
        if segment is None:
            yield _foreign(path, disk)
            continue
        index = load(root, segment, disk)
        if index is None:
            yield FileReport(path, length, problem="it is damaged or of another segment; readers do without")
        else:
            yield FileReport(path, length, index.records, index.first, index.last)


def _foreign(path: str, disk: Disk) -> FileReport:
    note = "no file of this journal: ignored"
    if is_torn_tail(path):
        note = "cut off by a start, kept for inspection"
    elif path.rpartition("/")[2].startswith(RESERVE):
        note = "keeps room for the next snapshot"
    return FileReport(path, disk.size(path), note=note)


def examine_file(path: str, disk: Disk, decoder: Decoder, segment: Segment | None, revision: int) -> FileReport:
    """Read a whole file: a segment, or else a snapshot of a revision."""
    return _examine(path, disk, decoder, segment, revision)[0]


def _examine(
    path: str, disk: Disk, decoder: Decoder, segment: Segment | None, revision: int, rejected: bool = False
) -> tuple[FileReport, int, int]:
    """Return a report, and the chain that the file begins and ends with; 0 for none that can be believed.

    The file is a segment, one of rejected SENDs if `rejected` is True, or else a snapshot of a revision.
    """
    length = disk.size(path)
    count = first = 0
    opened = segment is not None and not segment.last
    scanner: Scanner | None = None
    try:
        scanner = open_scanner(path, disk)
        if opened:
            scanner.leave_out_zeros()
        if segment is None:
            decoder.gapless = False
            require_snapshot(scanner, revision)
        elif scanner.snapshot or scanner.start.revision != segment.first - 1:
            raise JournalDamagedError(path, 0, OTHER_NAME)  # noqa: TRY301 - reported like the findings of others
        if rejected:
            for sends in read_rejected(scanner, decoder.revision):
                count += len(sends)
                decoder.revision += len(sends)
                first = first or sends[0].revision
        else:
            for records in read_blocks(scanner, decoder):
                count += len(records)
                first = first or next((record.revision for record in records if isinstance(record, Change)), 0)
        if not opened:
            require_end(scanner)
        last = segment.last if segment is not None else revision
        if not opened and (decoder.revision > last or (segment is not None and decoder.revision < last)):
            raise JournalDamagedError(path, length, f"it ends with revision {decoder.revision}")  # noqa: TRY301
    except JournalDamagedError as error:
        torn = opened and (scanner.torn() if scanner is not None else length <= HEADER_BYTES)
        problem = str(error).removeprefix(f"{path}: byte {error.offset}: ")
        report = FileReport(path, length, count, first, decoder.revision if first else 0, problem, error.offset, torn)
        return report, 0 if scanner is None else scanner.start.chain, 0
    report = FileReport(path, length, count, first, decoder.revision if first else 0, incarnation=scanner.incarnation)
    return report, scanner.start.chain, scanner.chain


def _verify_rejected(root: str, disk: Disk, losses: Losses) -> Iterator[FileReport]:
    """Report on each file of the journal of rejected SENDs. One that is removed for its age meanwhile is skipped."""
    if "rejected" not in disk.names(root):
        return
    sealed, opened = list_segments(f"{root}/rejected", disk)
    head = 0
    for segment in [*sealed, *opened]:
        try:
            report = _examine(segment.path, disk, Decoder(segment.first - 1, 0), segment, 0, rejected=True)[0]
        except FileNotFoundError:
            continue
        first, last = head + 1, segment.first - 1
        if report.problem is None and head and first != segment.first and not losses.cover("rejected", first, last):
            report = replace(report, problem=f"revisions {first} to {last} are missing before it")
        head = segment.last
        yield report

"""The route of the journal's state: what is in its folder, where it stands, how its disk does."""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import Answer, RouteSpec
from maxam.admin.description import COUNT, FLAG, NUMBER, SECONDS, TEXT, TIME, described, nullable, record
from maxam.admin.values import iso_time
from maxam.admin.view import View
from maxam.errors import JournalError
from maxam.journal import index
from maxam.journal.archive import ended_at
from maxam.journal.disk import OsDisk
from maxam.journal.files import SealedSegment, parse_snapshot_name
from maxam.journal.listing import Records, Segment, list_segments, size_of, start_of
from maxam.records import Identity

KEPT_S: Final = 1.0  # that what was read in the folder is told again
_SEGMENTS: Final = record(
    "Segments",
    count=COUNT,
    bytes=COUNT,
    first=nullable(COUNT),
    last=nullable(COUNT),
    oldest_at=nullable(TIME),
    newest_at=nullable(TIME),
)
_OPEN: Final = record("OpenSegment", bytes=COUNT, first=COUNT, last=COUNT, since=nullable(TIME))
_SNAPSHOTS: Final = record(
    "Snapshots", count=COUNT, bytes=COUNT, revision=nullable(COUNT), written_at=nullable(TIME), age_s=nullable(SECONDS)
)


@dataclass(frozen=True, slots=True)
class _Sealed:
    """The sealed segments of a folder; times in microseconds since the epoch, None when unknown or there is none."""

    segments: tuple[Segment, ...]
    bytes: int
    oldest_at_us: int | None
    newest_at_us: int | None


@dataclass(frozen=True, slots=True)
class _Inventory:
    """What is in a journal's folder."""

    sealed: _Sealed
    open: Segment | None
    open_bytes: int
    open_since_us: int | None
    snapshots: tuple[tuple[int, int, float], ...]  # revision, bytes, written (seconds since the epoch), in order
    indexes: int
    schemas: int
    rejected: _Sealed
    rejected_open_bytes: int
    disk_bytes: int
    disk_free_bytes: int
    problem: str


@described(
    "The journal: its files, where it stands, and its disk",
    record(
        "Journal",
        folder=TEXT,
        durability=TEXT,
        head=COUNT,
        committed=COUNT,
        waiting=COUNT,
        segments=_SEGMENTS,
        open=nullable(_OPEN),
        snapshots=_SNAPSHOTS,
        indexes=COUNT,
        schemas=COUNT,
        archive=record("Archive", days_max=NUMBER, bytes_max=COUNT),
        rejected=record(
            "RejectedJournal", count=COUNT, bytes=COUNT, oldest_at=nullable(TIME), days_max=NUMBER, bytes_max=COUNT
        ),
        disk=record(
            "Disk",
            bytes=nullable(COUNT),
            free_bytes=nullable(COUNT),
            free_bytes_min=COUNT,
            full=FLAG,
            low=FLAG,
            slow=FLAG,
        ),
        commits=record(
            "Commits",
            count=COUNT,
            over_s=SECONDS,
            p50_s=nullable(SECONDS),
            p99_s=nullable(SECONDS),
            last_s=nullable(SECONDS),
        ),
        problem=nullable(TEXT),
    ),
    text="""`segments` are the sealed ones. `oldest_at` and `newest_at` are times of records. `commits` tells what writing and syncing a block took in the
last minutes (`over_s`), percentiles to within a tenth of a decade. `disk.full`: SENDs are refused; `slow`: they wait. `problem`: why the folder could not be read
whole.""",
)
async def _journal(view: View, _request: Request, _caller: Identity) -> Response:
    settings, watermarks = view.journal_settings, view.watermarks
    found = await _inventory(settings.folder)
    head, committed, waiting = view.positions()
    commits = view.commits()
    sealed, rejected = found.sealed, found.rejected
    opened = None
    if found.open is not None:
        opened = {
            "bytes": found.open_bytes,
            "first": found.open.first,
            "last": max(committed, found.open.first),
            "since": _time(found.open_since_us),
        }
    revision, _, written_s = found.snapshots[-1] if found.snapshots else (None, 0, None)
    return Answer(
        {
            "folder": os.fspath(settings.folder),
            "durability": settings.durability,
            "head": head,
            "committed": committed,
            "waiting": waiting,
            "segments": {
                "count": len(sealed.segments),
                "bytes": sealed.bytes,
                "first": sealed.segments[0].first if sealed.segments else None,
                "last": sealed.segments[-1].last if sealed.segments else None,
                "oldest_at": _time(sealed.oldest_at_us),
                "newest_at": _time(sealed.newest_at_us),
            },
            "open": opened,
            "snapshots": {
                "count": len(found.snapshots),
                "bytes": sum(size for _, size, _ in found.snapshots),
                "revision": revision,
                "written_at": None if written_s is None else iso_time(int(written_s * 1e6)),
                "age_s": None if written_s is None else max(0.0, round(time.time() - written_s, 3)),
            },
            "indexes": found.indexes,
            "schemas": found.schemas,
            "archive": {"days_max": settings.archive_days_max, "bytes_max": settings.archive_bytes_max},
            "rejected": {
                "count": len(rejected.segments) + bool(found.rejected_open_bytes),
                "bytes": rejected.bytes + found.rejected_open_bytes,
                "oldest_at": _time(rejected.oldest_at_us),
                "days_max": settings.rejected_days_max,
                "bytes_max": settings.rejected_bytes_max,
            },
            "disk": {
                "bytes": found.disk_bytes or None,
                "free_bytes": found.disk_free_bytes if found.disk_bytes else None,
                "free_bytes_min": settings.free_bytes_min,
                "full": view.disk_full,
                "low": watermarks.free_low,
                "slow": watermarks.slow,
            },
            "commits": {
                "count": commits.count,
                "over_s": round(commits.since_s, 3),
                "p50_s": commits.p50_s,
                "p99_s": commits.p99_s,
                "last_s": commits.last_s,
            },
            "problem": found.problem or None,
        }
    )


_known: Final = trio.lowlevel.RunVar[dict[Path, tuple[float, _Inventory]]]("journals' inventories")
_reading: Final = trio.lowlevel.RunVar[trio.CapacityLimiter]("the reading of inventories")


async def _inventory(folder: Path) -> _Inventory:
    """Return what is in the folder, as of a second ago at most; it is read once, however many ask.

    Cancelled, the thread that reads keeps its place: a disk that does not answer takes one thread, not one for each who asks.
    """
    try:
        limiter, known = _reading.get(), _known.get()
    except LookupError:
        limiter, known = trio.CapacityLimiter(1), {}
        _reading.set(limiter)
        _known.set(known)

    def look() -> _Inventory:
        at_s, found = known.get(folder, (-math.inf, None))
        if found is None or time.monotonic() - at_s >= KEPT_S:
            found = read_inventory(folder)
            known[folder] = time.monotonic(), found
        return found

    return await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=limiter)


def read_inventory(folder: Path) -> _Inventory:
    """Look through a journal's folder. Blocks; what is not there, or goes meanwhile, is left out, and told as far as it matters."""
    problems: list[str] = []

    def listed(records: Records) -> list[Segment]:
        try:
            return list_segments(folder, records)
        except (JournalError, OSError) as error:
            problems.append(str(error))
            return []

    segments, rejected = listed("changes"), listed("rejected")
    opened = segments[-1] if segments and segments[-1].open else None
    start = None if opened is None else start_of(opened)
    snapshots = []
    for entry in _entries(folder / "snapshots"):
        revision = parse_snapshot_name(entry.name)
        if revision is not None:
            try:
                told = entry.stat()
            except FileNotFoundError:  # a newer one took its place
                continue
            snapshots.append((revision, told.st_size, told.st_mtime))
    try:
        disk = os.statvfs(folder)
        disk_bytes, free_bytes = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    except OSError as error:
        problems.append(f"{folder}: {error.strerror}")
        disk_bytes = free_bytes = 0
    return _Inventory(
        _sealed(segments),
        opened,
        0 if opened is None else size_of(opened),
        None if start is None else start.accepted_at_us or None,
        tuple(sorted(snapshots)),
        _count(folder / "index", ".index"),
        _count(folder / "schemas", ".avsc"),
        _sealed(rejected),
        sum(size_of(one) for one in rejected if one.open),
        disk_bytes,
        free_bytes,
        "; ".join(problems),
    )


def _sealed(segments: list[Segment]) -> _Sealed:
    sealed = tuple(one for one in segments if not one.open)
    if not sealed:
        return _Sealed((), 0, None, None)
    return _Sealed(sealed, sum(map(size_of, sealed)), _begun_at_us(sealed[0]), ended_at(sealed[-1]))


def _begun_at_us(segment: Segment) -> int | None:
    """Return the time of a segment's first record: its index tells; else that of the record before, from its header."""
    folder = os.fspath(Path(segment.path).parents[1])
    told = index.load(folder, SealedSegment(segment.first, segment.last, segment.path), OsDisk())
    if told is not None:
        return told.first_at_us
    start = start_of(segment)
    return None if start is None else start.accepted_at_us or None


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # none has been made yet
        return []


def _count(folder: Path, suffix: str) -> int:
    return sum(entry.name.endswith(suffix) for entry in _entries(folder))


def _time(at_us: int | None) -> str | None:
    return None if at_us is None else iso_time(at_us)


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/v1/journal", "read", _journal),)

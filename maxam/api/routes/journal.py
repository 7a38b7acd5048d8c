"""The route of the journal's state: its files, its position and its disk."""

import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio
from starlette.responses import Response

from maxam.api.answers import Answer
from maxam.api.description import COUNT, FLAG, NUMBER, SECONDS, TEXT, TIME, described, nullable, record, row_of
from maxam.api.routing import Call, Description, RouteSpec, at_a_time
from maxam.avro.json.decoding import iso_time
from maxam.errors import JournalError
from maxam.journal import index
from maxam.journal.archive import ended_at
from maxam.journal.disk import OsDisk
from maxam.journal.listing import Records, list_segments, size_of, start_of
from maxam.journal.names import Segment, parse_snapshot_name
from maxam.journal.whole import newest_incarnation

KEPT_S: Final = 1.0  # for which a result is served again
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


_COMMITS: Final = record(
    "Commits", count=COUNT, over_s=SECONDS, p50_s=nullable(SECONDS), p99_s=nullable(SECONDS), last_s=nullable(SECONDS)
)
_Inventory = dict[str, Any]  # the fields of the answer that come from the files


@Description(
    "The journal: its files, where it stands, and its disk",
    record(
        "Journal",
        folder=TEXT,
        incarnation=nullable(
            described(TEXT, "identifies the journal; a restore, and a repair that lost revisions, replace it")
        ),
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
        commits=_COMMITS,
        problem=nullable(TEXT),
    ),
    text="""`segments` are the sealed ones. `oldest_at` and `newest_at` are times of records. `commits` has the time for writing and syncing a
block in the last minutes (`over_s`), with percentiles to within a tenth of a decade. With `disk.full` SENDs are refused, with `slow` they wait.
`problem` is the reason why a part of the folder could not be read.""",
)
async def _journal(call: Call) -> Response:
    gateway, broker = call.gateway, call.gateway.broker
    settings, watermarks = gateway.settings.journal, gateway.watermarks
    found = await _inventory(settings.folder)
    opened = found["open"]
    commits = gateway.committer.times.recent(time.perf_counter())
    return Answer(
        {
            **found,
            "folder": os.fspath(settings.folder),
            "durability": settings.durability,
            "head": broker.head_revision,
            "committed": broker.committed_revision,
            "waiting": broker.appended_seq - broker.applied_seq,
            "open": None if opened is None else opened | {"last": max(broker.committed_revision, opened["first"])},
            "archive": {"days_max": settings.retention_days_max, "bytes_max": settings.retention_bytes_max},
            "rejected": found["rejected"]
            | {"days_max": settings.rejected_days_max, "bytes_max": settings.rejected_bytes_max},
            "disk": found["disk"]
            | {
                "free_bytes_min": settings.free_bytes_min,
                "full": gateway.disk_full,
                "low": watermarks.free_low,
                "slow": watermarks.slow,
            },
            "commits": row_of(_COMMITS, commits, over_s=round(commits.since_s, 3)),
        }
    )


_known: Final = trio.lowlevel.RunVar[dict[Path, tuple[float, _Inventory]]]("journals' inventories")


async def _inventory(folder: Path) -> _Inventory:
    """Return the contents of the folder, at most KEPT_S old. Concurrent requests share one read.

    If it is cancelled, the thread that reads keeps its place. So a disk that does not answer takes one thread, not one a request.
    """
    try:
        known = _known.get()
    except LookupError:
        known = {}
        _known.set(known)

    def look() -> _Inventory:
        at_s, found = known.get(folder, (-math.inf, None))
        if found is None or time.monotonic() - at_s >= KEPT_S:
            found = read_inventory(folder)
            known[folder] = time.monotonic(), found
        return found

    return await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=at_a_time("inventory", 1))


def read_inventory(folder: Path) -> _Inventory:
    """Read a journal's folder. Blocks. Files that are missing or vanish meanwhile are left out. `problem` reports what matters."""
    problems: list[str] = []

    def listed(records: Records) -> list[Segment]:
        try:
            return list_segments(folder, records)
        except (JournalError, OSError) as error:
            problems.append(str(error))
            return []

    segments, rejected = listed("changes"), listed("rejected")
    disk: dict[str, int | None] = {"bytes": None, "free_bytes": None}
    try:
        status = os.statvfs(folder)
        disk = {"bytes": status.f_blocks * status.f_frsize, "free_bytes": status.f_bavail * status.f_frsize}
    except OSError as error:
        problems.append(f"{folder}: {error.strerror}")
    return {
        "segments": _sealed([one for one in segments if not one.open]),
        "open": _opened(segments[-1]) if segments and segments[-1].open else None,
        "snapshots": _snapshots(folder),
        "indexes": _count(folder / "index", ".index"),
        "schemas": _count(folder / "schemas", ".avsc"),
        "rejected": {
            "count": sum(not one.open or size_of(one) > 0 for one in rejected),
            "bytes": sum(map(size_of, rejected)),
            "oldest_at": _time(_begun_at_us(rejected[0])) if rejected and not rejected[0].open else None,
        },
        "disk": disk,
        "incarnation": _incarnation(folder),
        "problem": "; ".join(problems) or None,
    }


def _sealed(segments: list[Segment]) -> dict[str, object]:
    return {
        "count": len(segments),
        "bytes": sum(map(size_of, segments)),
        "first": segments[0].first if segments else None,
        "last": segments[-1].last if segments else None,
        "oldest_at": _time(_begun_at_us(segments[0])) if segments else None,
        "newest_at": _time(ended_at(segments[-1])) if segments else None,
    }


def _opened(segment: Segment) -> dict[str, object]:
    start = start_of(segment)
    since_us = None if start is None else start.accepted_at_us or None
    return {"bytes": size_of(segment), "first": segment.first, "since": _time(since_us)}


def _snapshots(folder: Path) -> dict[str, object]:
    found: list[tuple[int, int, float]] = []  # revision, bytes, seconds since the epoch
    for entry in _entries(folder / "snapshots"):
        revision = parse_snapshot_name(entry.name)
        if revision is not None:
            with suppress(FileNotFoundError):  # a newer one took its place
                status = entry.stat()
                found.append((revision, status.st_size, status.st_mtime))
    newest, _, written_s = max(found, default=(None, 0, None))
    return {
        "count": len(found),
        "bytes": sum(size for _, size, _ in found),
        "revision": newest,
        "written_at": None if written_s is None else iso_time(int(written_s * 1e6)),
        "age_s": None if written_s is None else max(0.0, round(time.time() - written_s, 3)),
    }


def _incarnation(folder: Path) -> str | None:
    try:
        return newest_incarnation(os.fspath(folder), OsDisk()) or None
    except OSError:  # reported by the other reads of the folder
        return None


def _begun_at_us(segment: Segment) -> int | None:
    """Return the time of a segment's first record from its index. Without one, that of the record before, from its header."""
    folder = os.fspath(Path(segment.path).parents[1])
    known = index.load(folder, Segment(segment.first, segment.last, segment.path), OsDisk())
    if known is not None:
        return known.first_at_us
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

"""Build snapshots, and remove what they make needless, in a process of its own: `python -m maxam.gateway.snapshot FOLDER
[SECONDS [DAYS BYTES]]`, these of `source_retention_s`, `archive_days_max` and `archive_bytes_max`.

A snapshot is made of the one before it and the segments sealed since, never of the running broker, so that neither the event
loop nor the committer ever waits for it.
"""

import gc
import logging
import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final

import trio

from maxam.avro.registry import load_registry
from maxam.broker.broker import Broker
from maxam.broker.policy import Policy, Rights
from maxam.compiled import child_environment
from maxam.config import JournalSettings, Limits
from maxam.errors import DiskFullError, JournalDamagedError, MaxamError
from maxam.gateway.log import log_event
from maxam.globs import compile_glob
from maxam.journal import retention
from maxam.journal.disk import Disk, OsDisk
from maxam.journal.files import Journal, list_snapshots, sealed_segments, write_snapshot
from maxam.journal.index import JournalIndexer, build, drop_strays, unindexed
from maxam.metrics import Counters
from maxam.records import Record, SubscriptionRecord

_LOOK_S: Final = 20.0  # how often the gateway looks for sealed segments
_EXPIRE_LOOK_S: Final = 600.0  # how often it looks for segments that are too old or too many
_NICENESS: Final = 19
_NOTHING: Final = "nothing new"
_EXPIRED: Final = "expired "  # begins a line of what was removed
_INDEXED_MAX: Final = (
    16  # old segments without an index in one run, some seconds each: the next snapshot must not wait for thousands
)


def segments_since_snapshot(folder: str, disk: Disk) -> int:
    """Return how many sealed segments the newest snapshot does not stand for."""
    snapshots = list_snapshots(f"{folder}/snapshots", disk)
    newest = snapshots[-1][0] if snapshots else 0
    return sum(1 for segment in sealed_segments(folder, disk) if segment.last > newest)


def build_snapshot(folder: str, disk: Disk, limits: Limits) -> str | None:
    """Write a snapshot of everything that is sealed; return its path, None when nothing is new.

    The segments that it reads get their indexes; then older ones do that have none.

    Raises:
        JournalError: The journal is damaged, or there is no room.
        OSError: The disk fails.
    """
    if not segments_since_snapshot(folder, disk):
        return None
    indexer = JournalIndexer(folder, disk)
    broker = summed_up(_indexed(Journal.read_sealed(folder, disk, indexer.begin), indexer), limits)
    indexer.end()
    path = write_snapshot(
        folder, disk, broker.revision, broker.snapshot(), secrets.token_bytes(16), broker.accepted_at_us
    )
    if indexer.problem is None:
        _index_archive(folder, disk)
    else:
        sys.stderr.write(f"no index of a segment: {indexer.problem}\n")
    return path


def summed_up(records: Iterable[Record], limits: Limits) -> Broker:
    """Apply records to a broker of which a snapshot can be made.

    Everybody may receive everything there: a snapshot that owes too much loses nothing, as rights are asked again when a value is
    written to a client.
    """
    everything = Rights((), (compile_glob("**", limits),), frozenset(), None, limits)
    rights: dict[str, Rights] = {}
    broker = Broker(limits, Policy({}, rights, limits), load_registry({"registry.toml": b""}))
    for record in records:
        if type(record) is SubscriptionRecord and record.principal not in rights:
            rights[record.principal] = everything
            broker.policy = Policy({}, rights, limits)
        broker.apply(record)
    return broker


def _indexed(records: Iterable[Record], indexer: JournalIndexer) -> Iterator[Record]:
    for record in records:
        indexer.add(record)
        yield record


def _index_archive(folder: str, disk: Disk) -> None:
    """Make the indexes that are missing, and remove those of segments that are gone. Nothing depends on either."""
    try:
        drop_strays(folder, disk)
        for segment in unindexed(folder, disk)[:_INDEXED_MAX]:
            try:
                build(folder, segment, disk)
            except JournalDamagedError as error:  # for whoever reads it: it is not needed here
                sys.stderr.write(f"no index: {error}\n")
    except (DiskFullError, OSError) as error:
        sys.stderr.write(f"no index of a segment: {error}\n")


async def keep_snapshots(settings: JournalSettings, limits: Limits, counters: Counters) -> None:
    """Start a build whenever enough segments were sealed since the last one; one at a time, until cancelled.

    A build that is under way then is ended: its temporary file is worth nothing and is removed by the next.
    """
    rules = retention.Rules(settings.archive_days_max, settings.archive_bytes_max)
    folder = os.fspath(settings.folder)
    expire_look_s = 0.0
    while True:
        await trio.sleep(_LOOK_S)
        began_s = trio.current_time()
        try:
            sealed = await trio.to_thread.run_sync(segments_since_snapshot, folder, OsDisk())
            if sealed < settings.snapshot_segments:
                if began_s < expire_look_s:
                    continue
                expire_look_s = began_s + _EXPIRE_LOOK_S
                now_us = time.time_ns() // 1000
                if not await trio.to_thread.run_sync(retention.due, folder, OsDisk(), rules, now_us):
                    continue
            done = await trio.run_process(
                [
                    sys.executable,
                    "-m",
                    "maxam.gateway.snapshot",
                    folder,
                    str(limits.source_retention_s),
                    str(rules.days_max),
                    str(rules.bytes_max),
                ],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=child_environment(),
            )
        except OSError as error:  # no process to be had, or the folder cannot be listed: the broker does without
            counters.snapshots_failed += 1
            log_event(logging.ERROR, "snapshot-failed", error=error, action="recovery stays slower; see error")
            await trio.sleep(10 * _LOOK_S)
            continue
        seconds = f"{trio.current_time() - began_s:.3f}"
        _log_done(done.stdout.decode().splitlines(), seconds)
        if done.returncode == 0:
            counters.snapshots_built += 1
            if done.stderr:
                log_event(
                    logging.WARNING,
                    "snapshot-incomplete",
                    error=_last_line(done.stderr),
                    action="readers do without an index; what should have been removed stays",
                )
        else:
            counters.snapshots_failed += 1
            problem = _last_line(done.stderr)
            log_event(
                logging.ERROR,
                "snapshot-failed",
                error=problem,
                seconds=seconds,
                action="recovery stays slower; see error",
            )
            await trio.sleep(10 * _LOOK_S)


def _log_done(lines: list[str], seconds: str) -> None:
    """Log what the process has said."""
    for line in lines:
        if line.startswith(_EXPIRED):
            _, segments, freed, first, last = line.split()
            log_event(logging.INFO, "archive-expired", segments=segments, bytes=freed, first=first, last=last)
        elif line != _NOTHING:
            log_event(logging.INFO, "snapshot-built", path=line, seconds=seconds)


def _last_line(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip().rpartition("\n")[2]


def main() -> int:
    """Run the process; the path of the snapshot goes to standard output, and `expired SEGMENTS BYTES FIRST LAST`."""
    os.nice(_NICENESS)
    gc.disable()  # nothing of the state is garbage before the end
    folder = sys.argv[1]
    try:
        # A gateway that was killed leaves its build running, and the next gateway may start another: two would write one file.
        OsDisk().lock(f"{folder}/snapshots/lock")
        limits = Limits(source_retention_s=float(sys.argv[2])) if len(sys.argv) > 2 else Limits()
        rules = retention.Rules(float(sys.argv[3]), int(sys.argv[4])) if len(sys.argv) > 4 else retention.Rules(0, 0)
        build_and_expire(folder, OsDisk(), limits, rules)
    except BlockingIOError:
        sys.stderr.write(f"{folder}: another process is building a snapshot\n")
        return 1
    except (MaxamError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def build_and_expire(folder: str, disk: Disk, limits: Limits, rules: retention.Rules) -> None:
    """Build a snapshot, then remove what the rules want removed; before it, when that is what makes the room that it needs.

    Says on standard output what it did.

    Raises:
        JournalError: The journal is damaged, or there is no room.
        OSError: The disk fails.
    """
    try:
        path = build_snapshot(folder, disk, limits)
    except DiskFullError:
        if not _expire(folder, disk, rules):
            raise
        path = build_snapshot(folder, disk, limits)
    sys.stdout.write(f"{path or _NOTHING}\n")
    _expire(folder, disk, rules)


def _expire(folder: str, disk: Disk, rules: retention.Rules) -> bool:
    """Return whether something was removed."""
    try:
        gone = retention.expire(folder, disk, rules, time.time_ns() // 1000)
    except JournalDamagedError as error:  # which the next start tells too
        sys.stderr.write(f"nothing was removed from the archive: {error}\n")
        return False
    if gone is not None:
        sys.stdout.write(f"{_EXPIRED}{gone.segments} {gone.bytes} {gone.first} {gone.last}\n")
    return gone is not None


if __name__ == "__main__":
    sys.exit(main())

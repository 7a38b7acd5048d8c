"""Repair a journal: remove damaged parts, report exactly what is lost, and leave a folder that a gateway starts from.

Theory of operation. Every file is read block by block. Blocks prove themselves and, by their chain, their place. Whole blocks are
kept byte for byte, under new names if they were in a file with damage. The bytes between them are lost. Readers of the archive
see gaps where revisions are missing, as they must. A start may not see one. So when revisions above the newest whole snapshot
are lost, a snapshot of the remaining state is written right after the last gap. Later revisions are above all that were ever given.

A topic whose newest value is lost shows an older value than the accepted one: the newest that is not lost. The plan lists these
topics as far as they are known: from the damaged bytes, and from acknowledgements of revisions that are gone.

Nothing is changed in place. `apply` first links every file that will go into `damaged/<when>/`, with the report. Then it writes the
snapshot and the new segments, and takes the old ones away last. If it is stopped at any step, either a start refuses the
folder as before, or the folder is right. A start takes no segment that does not begin exactly where the segment before it ends. Another repair goes on
from there.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, final

from maxam.errors import JournalError
from maxam.journal.disk import Disk, write_file
from maxam.journal.encoding import end_block, header
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.index import build
from maxam.journal.losses import FOLDER, REPORT, encode_report
from maxam.journal.names import RENEW
from maxam.journal.repair_plan import NewSegment
from maxam.journal.repair_planner import SEGMENTS, Planner
from maxam.journal.snapshots import put_snapshot
from maxam.journal.verify import verify
from maxam.journal.whole import incarnation_of, newest_incarnation
from maxam.records import Record

Summarise = Callable[[Iterator[Record]], Iterable[Record]]  # records of a broker to those of a snapshot

_COPY_BYTES: Final = 1 << 22


@final
class Repair:
    """A journal without another writer, and the plan of its repair. To be closed, unless it was applied.

    Attributes:
        plan: Steps that `apply` would take.
    """

    def __init__(self, root: str, disk: Disk, locks: list[int], planner: "Planner") -> None:
        """Hold a locked folder; use `open`."""
        self._root: Final = root
        self._disk: Final = disk
        self._locks: Final = locks  # the journal's, then that of the process that builds snapshots
        self._planner: Final = planner
        self.plan: Final = planner.plan()

    @classmethod
    def open(cls, root: str, disk: Disk) -> "Repair":
        """Lock a journal and find out what is wrong; changes nothing.

        Raises:
            JournalError: It is in use, or no journal, or another version wrote it.
            OSError: It cannot be read.
        """
        names = disk.names(root)
        if SEGMENTS not in names or "snapshots" not in names:
            raise JournalError(f"{root} is not the folder of a journal: it has no folders segments and snapshots")
        locks: list[int] = []
        try:
            locks.append(disk.lock(f"{root}/lock"))
            locks.append(disk.lock(f"{root}/snapshots/lock"))
            return cls(root, disk, locks, Planner(root, disk))
        except BlockingIOError as error:
            _close(disk, locks)
            raise JournalError(
                f"{root} is in use: stop the gateway (or wait for the process that builds its snapshot) first"
            ) from error
        except BaseException:
            _close(disk, locks)
            raise

    def close(self) -> None:
        """Unlock the folder."""
        _close(self._disk, self._locks)

    def apply(self, summarise: Summarise, when: str, sync_marker: bytes) -> str:
        """Carry out the plan, and prove that a gateway can start from the result. The folder is unlocked, also when this raises.

        Args:
            summarise: Makes a snapshot's records of all that were applied before it.
            when: Name of the folder for the files that are taken away.
            sync_marker: 16 random bytes.

        Returns:
            The folder with the originals and the report.

        Raises:
            DiskFullError: There is no room; nothing was taken away that is not in that folder.
            JournalError: The result is not what it should be. The originals are in that folder.
        """
        plan, disk, root = self.plan, self._disk, self._root
        aside = f"{root}/{FOLDER}/{when}"
        try:
            self._set_aside(aside)
            kept = {new.path for new in plan.written}
            if plan.snapshot:
                records, end = self._planner.snapshot_input()
                incarnation = newest_incarnation(root, disk)
                kept.add(put_snapshot(root, disk, end, summarise(records), sync_marker, incarnation))
            for new in plan.written:
                write_file(disk, new.path, _parts(new, disk, sync_marker))
            for folder in {new.path.rpartition("/")[0] for new in plan.written}:
                disk.fsync_folder(folder)
            self._unlink([path for path in plan.removed if path not in kept])
            for segment in plan.reindexed:
                build(root, segment, disk)
            self._prove(aside, sync_marker)
        finally:
            self.close()
        return aside

    def _set_aside(self, aside: str) -> None:
        """Link every file that will be removed or replaced into the folder `aside`, and write the report."""
        disk, root = self._disk, self._root
        made = {f"{root}/{FOLDER}": None, aside: None}
        for path in self.plan.removed:
            parts = path.removeprefix(root + "/").split("/")
            made |= {"/".join((aside, *parts[:depth])): None for depth in range(1, len(parts))}
        for folder in made:
            disk.make_folder(folder)
        for path in self.plan.removed:
            disk.link(path, aside + path.removeprefix(root))
        write_file(disk, f"{aside}/{REPORT}", [encode_report(self.plan.report())])
        if self.plan.gaps:  # readers and subscribers may know revisions that are gone
            write_file(disk, f"{root}/{RENEW}", [b""])
        for folder in [*reversed(made), root]:
            disk.fsync_folder(folder)

    def _unlink(self, paths: list[str]) -> None:
        for path in paths:
            self._disk.unlink(path)
        for folder in {path.rpartition("/")[0] for path in paths}:
            self._disk.fsync_folder(folder)

    def _prove(self, aside: str, sync_marker: bytes) -> None:
        """Read everything as `verify` does, then start as a gateway does."""
        remedy = f"the originals are in {aside}; keep that folder and ask for help"
        for report in verify(self._root, self._disk):
            if report.problem is not None and not report.torn:
                raise JournalError(f"{report.path}: byte {report.offset}: still damaged: {report.problem}. {remedy}")
        journal = Journal(self._root, self._disk, JournalSettings(reserve_bytes=0), sync_marker, self._locks.pop(0))
        try:
            for _ in journal.recover():
                pass
            if journal.head < self.plan.head:
                raise JournalError(f"{self._root}: revisions would go back to {journal.head}; {remedy}")
        finally:
            journal.close()


def _parts(new: NewSegment, disk: Disk, sync_marker: bytes) -> Iterator[bytes]:
    """Yield the bytes of a new segment."""
    run = new.run
    if run is None:
        yield header(new.before, sync_marker, snapshot=False)
        return
    yield header(run.before, run.sync_marker, snapshot=False, incarnation=incarnation_of(run.path, disk))
    for offset in range(run.offset, run.end, _COPY_BYTES):
        yield disk.read(run.path, offset, min(_COPY_BYTES, run.end - offset))
    if new.sealed:
        yield end_block(run.after, run.sync_marker)


def _close(disk: Disk, locks: list[int]) -> None:
    while locks:
        disk.close(locks.pop())

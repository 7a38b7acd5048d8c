"""Take out of a journal what cannot be believed, say exactly what that is, and leave a folder that a gateway starts from.

Theory of operation. Every file is read block by block. Blocks prove themselves and, by their chain, where they belong: those that are whole are
kept byte for byte, under new names where they were in a file with damage. What lies between them is lost. Readers of the archive see gaps
where revisions are missing, as they must; a start may not, so when revisions above the newest whole snapshot are lost, a snapshot of what is left
is written right behind the last gap, and revisions go on above everything that was ever given.

A topic whose newest value is lost shows its newest value that is not: older than what was accepted. The plan lists these topics as far as anything
tells them: what can be made out in the damaged bytes, and acknowledgements of revisions that are gone.

Nothing is changed in place. `apply` first links every file that will go into `damaged/<when>/`, with the report; then writes the snapshot and the
new segments, and takes the old ones away last. Stopped at any step, the folder is refused by a start as it was before, or is right: a start takes
no segment that does not begin right behind what it has read. Another repair goes on from there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import chain as chained
from typing import Any, Final, final

from maxam.errors import JournalDamagedError, JournalError
from maxam.journal.decoding import Decoder, decode_rejected, first_record
from maxam.journal.disk import Disk
from maxam.journal.encoding import Position, end_block, header
from maxam.journal.files import (
    Journal,
    JournalSettings,
    SealedSegment,
    list_segments,
    list_snapshots,
    open_scanner,
    parse_segment_name,
    parse_snapshot_name,
    put_snapshot,
    sealed_segments,
    write_file,
)
from maxam.journal.glimpse import LostChange, LostSession, glimpse
from maxam.journal.index import build, index_path, load
from maxam.journal.listing import fault_text
from maxam.journal.losses import FOLDER, REPORT, Losses, encode_report, read_losses
from maxam.journal.scan import HEADER_BYTES, OTHER_VERSION, Scanner, headless, scan_from
from maxam.journal.verify import examine_file, is_torn_tail, verify
from maxam.records import AcknowledgementRecord, Change, OwedRecord, Record

Summarise = Callable[[Iterator[Record]], Iterable[Record]]  # records of a broker to those of a snapshot

_SEGMENTS: Final = "segments"
_REJECTED: Final = "rejected"
_CHANGE_BYTES_MIN: Final = 23  # of any change: so many revisions at most were in bytes that nothing is known of
_REVISION_MAX: Final = 1 << 62  # a name with a higher one is nobody's
_COPY_BYTES: Final = 1 << 22
_GLIMPSE_BYTES_MAX: Final = 1 << 24  # of one stretch of damage: it is looked at byte by byte


@dataclass(frozen=True, slots=True)
class Drop:
    """Bytes that are left out.

    Attributes:
        path: The file.
        offset: Where they begin.
        length: How many; 0 when something is missing between two blocks, or all of a file.
        fault: What is wrong with them.
        first: First revision that was in them, 0 for none.
        last: The last one.
        exact: Nothing but these revisions can have been in them; else `last` is an upper bound.
        needed: A start needs them: topics and sessions are affected.
    """

    path: str
    offset: int
    length: int
    fault: str
    first: int
    last: int
    exact: bool
    needed: bool


@dataclass(frozen=True, slots=True)
class TopicLoss:
    """A topic that will show an older value than the one that was accepted last.

    Attributes:
        destination: Its name.
        lost: The newest revision of it that is known to be lost.
        deleted: That was a delete; None when only its revision is known.
        shown: The revision whose value, or delete, takes its place; 0 when the topic will be unknown.
        shown_at_us: When that was accepted; microseconds since the epoch.
        shown_deleted: That is a delete: the topic will have no value.
        certain: A whole record tells the name; else damaged bytes do, which can be wrong in just that.
    """

    destination: str
    lost: int
    deleted: bool | None
    shown: int
    shown_at_us: int
    shown_deleted: bool
    certain: bool


@dataclass(frozen=True, slots=True)
class SessionLoss:
    """What a durable session did that is lost, as far as anything tells."""

    principal: str
    client_id: str
    subscription: str
    kind: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Revisions that no file tells any more, in one of the folders `segments` and `rejected`."""

    folder: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Run:
    """Whole blocks of one file that follow each other.

    Attributes:
        path: The file.
        offset: Of the first block.
        end: Behind the last one; the mark of a finished file is not part of it.
        sync_marker: Of the file.
        before: Where the first block belongs.
        after: Where the last one ends.
        records: In them.
        whole: The file is these blocks, what belongs before and behind them, and nothing else.
        sealed: The file is finished.
    """

    path: str
    offset: int
    end: int
    sync_marker: bytes
    before: Position
    after: Position
    records: int
    whole: bool
    sealed: bool


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment that will be written: blocks of an old one behind a header of their own, or none."""

    path: str
    run: Run | None
    before: Position
    sealed: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What a repair would do.

    Attributes:
        folder: The journal's.
        drops: What cannot be kept.
        gaps: What no file tells, beyond what earlier repairs have lost.
        topics: Those that are known to be affected, in order of their names.
        sessions: What is known to be lost of durable ones.
        unknown: Lost revisions, at most, of which nothing tells the topic.
        candidates: Topics that these can be of, and those that only damaged bytes name: their newest known change is older.
        notes: What else will be done, or left alone.
        removed: Files that will be moved to `damaged/`.
        written: Segments that will be written.
        snapshot: Revision of the snapshot that will be written, 0 for none.
        head: Revisions given from now on are above it.
        reindexed: Segments whose index will be made again.
    """

    folder: str
    drops: tuple[Drop, ...]
    gaps: tuple[Gap, ...]
    topics: tuple[TopicLoss, ...]
    sessions: tuple[SessionLoss, ...]
    unknown: int
    candidates: int
    notes: tuple[str, ...]
    removed: tuple[str, ...]
    written: tuple[NewSegment, ...]
    snapshot: int
    head: int
    reindexed: tuple[SealedSegment, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.removed or self.written or self.gaps or self.snapshot)

    def report(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "folder": self.folder,
            "dropped": [asdict(drop) for drop in self.drops],
            "lost": [asdict(gap) for gap in self.gaps],
            "topics": [asdict(topic) for topic in self.topics],
            "sessions": [asdict(session) for session in self.sessions],
            "unknown_revisions_max": self.unknown,
            "candidate_topics": self.candidates,
            "notes": list(self.notes),
            "removed": list(self.removed),
            "written": [one.path for one in self.written],
            "snapshot": self.snapshot,
            "head": self.head,
        }


@final
class Repair:
    """A journal that nobody else writes meanwhile, and what is to be done about it. To be closed, unless it was applied.

    Attributes:
        plan: What would be done.
    """

    def __init__(self, root: str, disk: Disk, locks: list[int], planner: "_Planner") -> None:
        """Hold a locked folder; use `open`."""
        self._root: Final = root
        self._disk: Final = disk
        self._locks: Final = locks  # the journal's, then that of whoever builds snapshots
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
        if _SEGMENTS not in names or "snapshots" not in names:
            raise JournalError(f"{root} is not the folder of a journal: it has no folders segments and snapshots")
        locks: list[int] = []
        try:
            locks.append(disk.lock(f"{root}/lock"))
            locks.append(disk.lock(f"{root}/snapshots/lock"))
            return cls(root, disk, locks, _Planner(root, disk))
        except BlockingIOError as error:
            _close(disk, locks)
            raise JournalError(
                f"{root} is in use: stop the gateway (or wait for the process that builds its snapshot) first"
            ) from error
        except BaseException:
            _close(disk, locks)
            raise

    def close(self) -> None:
        """Let go of the folder."""
        _close(self._disk, self._locks)

    def apply(self, summarise: Summarise, when: str, sync_marker: bytes) -> str:
        """Do what the plan says, and prove that a gateway can start from the result. Lets go of the folder, also when it raises.

        Args:
            summarise: Makes a snapshot's records of all that were applied before it.
            when: Names the folder for what is taken away.
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
                kept.add(put_snapshot(root, disk, end, summarise(records), sync_marker))
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
        """Give every file that will go, or be replaced, a second name, and write the report."""
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
                raise JournalError(f"{report.path}: byte {report.offset}: still damaged: {report.problem}; {remedy}")
        journal = Journal(self._root, self._disk, JournalSettings(reserve_bytes=0), sync_marker, self._locks.pop(0))
        try:
            for _ in journal.recover():
                pass
            if journal.head < self.plan.head:
                raise JournalError(f"{self._root}: revisions would go back to {journal.head}; {remedy}")
        finally:
            journal.close()


@dataclass(frozen=True, slots=True)
class _Survey:
    """One segment, read through.

    Attributes:
        segment: The file.
        runs: What of it is whole.
        faults: Offset, length and text of what is not; the revisions that must have been there, as far as the file tells.
        torn: The last fault can be what a crash left.
        mentioned: Highest revision that a dropped record of a session speaks of.
        start_at_us: Time that the header tells of the record before it.
    """

    segment: SealedSegment
    runs: tuple[Run, ...]
    faults: tuple[Drop, ...]
    torn: bool
    mentioned: int
    start_at_us: int


@final
class _Surveyor:
    """Reads one segment, going on behind damage."""

    def __init__(self, segment: SealedSegment, disk: Disk, rejected: bool) -> None:
        self._segment: Final = segment
        self._path: Final = segment.path
        self._size: Final = disk.size(segment.path)
        self._disk: Final = disk
        self._rejected: Final = rejected
        self._runs: Final[list[Run]] = []
        self._faults: Final[list[Drop]] = []
        self._decoder = Decoder(segment.first - 1, 0)
        self._begun: Run | None = None
        self._mentioned = 0

    def survey(self) -> _Survey:
        scanner, start_at_us = self._begin()
        torn = False
        if scanner is not None:
            torn = self._walk(scanner)
        elif not self._segment.last:
            torn = self._size <= HEADER_BYTES
        return _Survey(self._segment, tuple(self._runs), tuple(self._faults), torn, self._mentioned, start_at_us)

    def _read(self, offset: int, length: int) -> bytes:
        return self._disk.read(self._path, offset, length)

    def _begin(self) -> tuple[Scanner | None, int]:
        try:
            scanner = Scanner(self._path, self._size, self._read)
        except JournalDamagedError as error:
            fault = fault_text(error)
            if fault == OTHER_VERSION:
                raise JournalError(f"{self._path}: {OTHER_VERSION}: repair it with that version") from error
            found = headless(self._path, self._size, self._read, self._segment.first - 1)
            self._drop(0, found[0].offset if found else self._size, fault)
            return (found[0] if found else None), 0
        if scanner.snapshot:
            self._drop(0, self._size, "a snapshot under the name of a segment")
            return None, 0
        self._decoder = Decoder(scanner.start.revision, scanner.start.accepted_at_us)
        return scanner, scanner.start.accepted_at_us

    def _walk(self, scanner: Scanner) -> bool:
        """Gather runs and faults; return whether what is wrong at the end can be a torn write."""
        while True:
            offset, seed = scanner.offset, scanner.chain
            try:
                block = scanner.next_block()
            except JournalDamagedError as error:
                scanner.ended = False
                self._close()
                more = scanner.skip_damage()
                self._drop(offset, (scanner.offset if more else self._size) - offset, fault_text(error))
                if more:
                    continue
                if not self._runs and not self._segment.last:
                    self._runs.append(self._empty(scanner, whole=False))
                return True
            if block is None:
                break
            if scanner.ended:
                continue
            problem = self._take(scanner, offset, seed, *block)
            if problem:
                self._close()
                self._drop(offset, scanner.offset - offset, problem)
        if self._segment.last and not scanner.ended:
            self._drop(self._size, 0, "the mark of a finished file is missing at its end")
        self._close()
        if not self._runs and not self._faults:  # an open segment that holds nothing yet
            whole = scanner.start.revision == self._segment.first - 1 and not self._segment.last
            self._runs.append(self._empty(scanner, whole))
        elif len(self._runs) == 1 and not self._faults:
            run = self._runs[0]
            named = (run.before.revision + 1, run.after.revision if self._segment.last else 0)
            right = named == (self._segment.first, self._segment.last) and scanner.start.revision == run.before.revision
            self._runs[0] = replace(run, whole=right)
        return False

    def _empty(self, scanner: Scanner, whole: bool) -> Run:
        start = scanner.start
        return Run(self._path, HEADER_BYTES, HEADER_BYTES, scanner.sync_marker, start, start, 0, whole, sealed=False)

    def _take(self, scanner: Scanner, offset: int, seed: int, data: bytes, count: int) -> str:
        """Add a whole block to the run that it belongs to; return what is wrong with its records."""
        begun = self._begun
        if begun is None:
            first, _, _ = first_record(data)
            self._decoder = (
                Decoder(first - 1, 0) if self._faults or first != self._decoder.revision + 1 else self._decoder
            )
        before_us = (
            self._decoder.accepted_at_us if begun is not None or not self._runs else self._runs[-1].after.accepted_at_us
        )
        decoder = self._decoder
        before = Position(decoder.revision, before_us, seed)
        records = 0
        try:
            if self._rejected:
                sends = decode_rejected(data, count, decoder.revision)
                decoder.revision += len(sends)
                decoder.accepted_at_us = max(decoder.accepted_at_us, sends[-1].rejected_at_us)
                records = len(sends)
            else:
                records = len(decoder.decode(data, count))
        except (ValueError, IndexError) as error:
            return f"the block is whole, but its records are wrong: {error}"
        if decoder.mentioned > decoder.revision:
            self._mentioned = max(self._mentioned, decoder.mentioned)
            return f"a session knows revision {decoder.mentioned}, which is above the last change {decoder.revision}"
        after = Position(decoder.revision, decoder.accepted_at_us, scanner.chain)
        if begun is None:
            sealed = self._segment.last > 0
            begun = Run(self._path, offset, 0, scanner.sync_marker, before, after, 0, whole=False, sealed=sealed)
        self._begun = replace(begun, end=scanner.offset, after=after, records=begun.records + records)
        return ""

    def _close(self) -> None:
        if self._begun is not None:
            self._runs.append(self._begun)
            self._begun = None

    def _drop(self, offset: int, length: int, fault: str) -> None:
        self._faults.append(Drop(self._path, offset, length, fault, 0, 0, exact=True, needed=False))


def _survey(segment: SealedSegment, disk: Disk, rejected: bool) -> _Survey:
    return _Surveyor(segment, disk, rejected).survey()


@final
class _Planner:
    """Finds out what is wrong with a journal and what to do about it."""

    def __init__(self, root: str, disk: Disk) -> None:
        self._root: Final = root
        self._disk: Final = disk
        self._losses: Final[Losses] = read_losses(root, disk)
        self._removed: Final[dict[str, None]] = {}
        self._written: Final[list[NewSegment]] = []
        self._drops: Final[list[Drop]] = []
        self._gaps: Final[list[Gap]] = []
        self._notes: Final[list[str]] = []
        self._base = 0  # of the newest whole snapshot
        self._base_path = ""
        self._folded: list[Run] = []  # what the new snapshot adds to it
        self._folded_to = 0

    def plan(self) -> Plan:
        root = self._root
        reached_by_snapshot = self._look_at_snapshots()
        self._base, self._base_path = _newest_snapshot(root, self._disk)
        base = self._base
        surveys, runs = self._line_up(_SEGMENTS)
        head = self._head(surveys, runs, reached_by_snapshot)
        gaps = _gaps(runs, base, head)
        self._gaps.extend(
            Gap(_SEGMENTS, first, last)
            for first, last in gaps
            if last > base or not self._losses.cover(_SEGMENTS, first, last)
        )
        reached = max([base, *(run.after.revision for run in runs)])
        live = [run for run in runs if self._needed(run)]
        snapshot = self._fold(live, head if head > reached else 0)
        # a snapshot above the last segment's end is taken for a sign that segments are missing, unless the next one is begun
        begins = head > reached or (bool(runs) and base > runs[-1].after.revision)
        if begins:
            at_us = max([0, *(run.after.accepted_at_us for run in runs), *(one.start_at_us for one in surveys)])
            begun = Position(head, at_us, 0)
            self._written.append(NewSegment(_open_path(root, head), None, begun, sealed=False))
        self._rewrite(_SEGMENTS, surveys, runs, not begins)
        self._tell_drops(_SEGMENTS, surveys, runs)
        ranges = [(max(first, base + 1), last) for first, last in gaps if last > base]
        topics, sessions, unknown, candidates = self._effects(ranges, live)
        self._mend_rejected()
        self._look_at_schemas()
        reindexed = self._look_at_indexes()
        self._look_for_strays()
        if snapshot:
            self._notes.append(f"a snapshot of revision {snapshot} will be written: a start needs nothing before it")
        if any(drop.needed for drop in self._drops):
            self._notes.append(
                "what durable sessions did in what is dropped is lost too, named or not: messages that they had acknowledged may "
                "come again, and a subscription that was made there is unknown"
            )
        return Plan(
            root,
            tuple(self._drops),
            tuple(self._gaps),
            topics,
            sessions,
            unknown,
            candidates,
            tuple(self._notes),
            tuple(self._removed),
            tuple(self._written),
            snapshot,
            head,
            reindexed,
        )

    def snapshot_input(self) -> tuple[Iterator[Record], Position]:
        """Return the records that the new snapshot stands for, and where it stands. To be read before any segment is replaced."""
        at_us = max([0, *(run.after.accepted_at_us for run in self._folded)], default=0)
        if self._base_path:
            at_us = max(at_us, open_scanner(self._base_path, self._disk).start.accepted_at_us)
        records = chained(
            _snapshot_records(self._base_path, self._disk), *(_read(run, self._disk) for run in self._folded)
        )
        return records, Position(self._folded_to, at_us, 0)

    def _needed(self, run: Run) -> bool:
        """Tell whether a start reads a run: its file is not one that the newest whole snapshot stands for."""
        segment = _segment_of(run.path)
        return segment.first > self._base or run.after.revision > self._base

    def _fold(self, live: list[Run], cut_off: int) -> int:
        """Put down what the new snapshot has to stand for; return its revision, 0 when none is needed.

        Args:
            live: The runs that a start reads.
            cut_off: The last revision that was given, when runs behind the last one are lost; else 0.
        """
        reached, chain = self._base, 0
        for number, run in enumerate(live):
            if run.before.revision > reached or (chain and run.before.chain not in {0, chain}):
                self._folded, self._folded_to = live[:number], run.before.revision
            if self._folded_to == run.after.revision and _trails(run) and (run.sealed or number < len(live) - 1):
                self._folded = live[: number + 1]
            reached, chain = run.after.revision, run.after.chain
        if cut_off:
            self._folded, self._folded_to = live, cut_off
        return self._folded_to

    # what there is

    def _look_at_snapshots(self) -> int:
        """Put down damaged snapshots; return the highest revision that any stands for."""
        reached = 0
        for revision, path in list_snapshots(f"{self._root}/snapshots", self._disk):
            if revision < _REVISION_MAX:
                reached = max(reached, revision)
            report = examine_file(path, self._disk, Decoder(0, 0), None, revision)
            if report.problem is not None:
                self._removed[path] = None
                length = report.length - report.offset
                self._drops.append(Drop(path, report.offset, length, report.problem, 0, 0, exact=True, needed=False))
                self._notes.append(f"{path}: a damaged snapshot goes; an older one and the segments make up for it")
        return reached

    def _line_up(self, folder: str) -> tuple[list[_Survey], list[Run]]:
        """Read all segments of a folder; return what of them is whole, in order and without overlap."""
        sealed, opened = list_segments(f"{self._root}/{folder}", self._disk)
        surveys = [_survey(one, self._disk, folder == _REJECTED) for one in [*sealed, *opened]]
        queue = sorted(
            (run for survey in surveys for run in survey.runs),
            key=lambda run: (run.before.revision, not _trails(run), not run.whole, not run.sealed, -run.after.revision),
        )
        kept: list[Run] = []
        for run in queue:
            if not kept or run.before.revision >= kept[-1].after.revision:
                kept.append(run)
                continue
            rest = _trim(run, kept[-1].after, self._disk)
            if rest is not None:
                kept.append(rest)
        return surveys, kept

    def _head(self, surveys: list[_Survey], runs: list[Run], reached_by_snapshot: int) -> int:
        """Return the highest revision that anything tells of, or that can have been in what is lost."""
        head = max([reached_by_snapshot, *(run.after.revision for run in runs)])
        for survey in surveys:
            segment = survey.segment
            told = (survey.mentioned, segment.first - 1, segment.last)
            head = max([head, *(one for one in told if one < _REVISION_MAX)])
            if not segment.last and survey.faults and not (survey.torn and survey is surveys[-1]):
                fault = survey.faults[-1]
                if fault.offset + fault.length >= self._disk.size(fault.path):
                    behind = max([segment.first - 1, *(run.after.revision for run in survey.runs)])
                    head = max(head, behind + fault.length // _CHANGE_BYTES_MIN + 1)
        if "index" in self._disk.names(self._root):
            for name in self._disk.names(f"{self._root}/index"):
                last = name.removesuffix(".index").rpartition("-")[2]
                if last.isascii() and last.isdecimal() and int(last) < _REVISION_MAX:
                    head = max(head, int(last))
        return head

    # what to do

    def _rewrite(self, folder: str, surveys: list[_Survey], runs: list[Run], last_stays_open: bool) -> None:
        """Put down which files go and which take their place."""
        paths = {one.segment.path: one for one in surveys}
        stay = set()
        for number, run in enumerate(runs):
            is_last = number == len(runs) - 1
            stays_open = not run.sealed and is_last and last_stays_open
            if run.whole and (run.sealed or stays_open) and run.path not in stay:
                stay.add(run.path)
                continue
            changes = run.after.revision - run.before.revision
            if not changes and not stays_open:
                if run.records:
                    self._notes.append(
                        f"{run.path}: {run.records} records of sessions at byte {run.offset} are in the snapshot only"
                    )
                continue
            path = _open_path(self._root, run.before.revision, folder)
            if not stays_open:
                path = f"{self._root}/{folder}/{run.before.revision + 1:020}-{run.after.revision:020}.avro"
            elif self._torn_only(run, paths[run.path]):
                stay.add(run.path)
                continue
            self._written.append(NewSegment(path, run, run.before, not stays_open))
        for path in sorted(paths.keys() - stay):
            self._removed[path] = None

    def _torn_only(self, run: Run, survey: _Survey) -> bool:
        """Tell whether an open segment needs nothing but what every start does: cut off its end."""
        named = run.before.revision + 1 == survey.segment.first
        if named and survey.torn and len(survey.faults) == 1 and len(survey.runs) <= 1:
            self._notes.append(
                f"{run.path}: an unfinished write at byte {survey.faults[0].offset} is cut off, as every start does; "
                "it was never acknowledged, and is kept beside the file"
            )
            return True
        return False

    def _tell_drops(self, folder: str, surveys: list[_Survey], runs: list[Run]) -> None:
        """Put down what is left out, with the revisions that it must have held."""
        base = self._base if folder == _SEGMENTS else _REVISION_MAX
        used = {(run.path, run.offset) for run in runs} | {(run.path, run.end) for run in runs}
        for survey in surveys:
            segment = survey.segment
            for fault in survey.faults:
                end = fault.offset + fault.length
                before = max([segment.first - 1, *(r.after.revision for r in survey.runs if r.end <= fault.offset)])
                behind = [r.before.revision for r in survey.runs if r.offset >= end]
                at_end = not behind
                if at_end and survey.torn and survey is surveys[-1] and not segment.last:
                    continue
                last = min(behind) if behind else segment.last or before + fault.length // _CHANGE_BYTES_MIN + 1
                first = before + 1
                others = [run for run in runs if run.path != segment.path]
                if first <= last and any(run.before.revision < first and last <= run.after.revision for run in others):
                    continue  # another file holds it
                exact = bool(behind) or bool(segment.last)
                self._drops.append(
                    replace(
                        fault,
                        first=first if first <= last else 0,
                        last=last if first <= last else 0,
                        exact=exact,
                        needed=(segment.first > base or last > base) and (fault.length > 0 or first <= last),
                    )
                )
            for run in survey.runs:
                if run.records and (run.path, run.offset) not in used and (run.path, run.end) not in used:
                    covered = any(
                        one.before.revision <= run.before.revision and run.after.revision <= one.after.revision
                        for one in runs
                    )
                    fault_text = "other segments hold the same revisions"
                    first, last = (0, 0) if covered else (run.before.revision + 1, run.after.revision)
                    self._drops.append(
                        Drop(run.path, run.offset, run.end - run.offset, fault_text, first, last, True, last > base)
                    )
        for gap in self._gaps:
            told = [one for one in self._drops if one.first and one.first <= gap.first and gap.last <= one.last]
            if gap.folder == folder and not told:
                text = "nothing that is there holds these revisions"
                self._drops.append(
                    Drop(f"{self._root}/{folder}", 0, 0, text, gap.first, gap.last, True, gap.last > base)
                )

    def _mend_rejected(self) -> None:
        """Do the same for the journal of rejected SENDs, which nothing else depends on."""
        if _REJECTED not in self._disk.names(self._root):
            return
        surveys, runs = self._line_up(_REJECTED)
        torn = [one for one in surveys[-1:] if one.torn and not one.segment.last and len(one.faults) == 1]
        if all(not one.faults for one in surveys if one not in torn) and all(run.whole for run in runs if not torn):
            gaps = _gaps(runs, max([0, *(run.before.revision for run in runs[:1])]), 0)
        else:
            head = max([0, *(run.after.revision for run in runs)])
            head = max([head, *(one.segment.last for one in surveys if one.segment.last < _REVISION_MAX)])
            gaps = _gaps(runs, max([0, *(run.before.revision for run in runs[:1])]), head)
            begins = not runs or head > runs[-1].after.revision
            if begins:
                at_us = max([0, *(run.after.accepted_at_us for run in runs)])
                begun = Position(head, at_us, 0)
                self._written.append(NewSegment(_open_path(self._root, head, _REJECTED), None, begun, sealed=False))
            self._rewrite(_REJECTED, surveys, runs, not begins)
        self._gaps.extend(
            Gap(_REJECTED, first, last) for first, last in gaps if not self._losses.cover(_REJECTED, first, last)
        )
        self._tell_drops(_REJECTED, surveys, runs)

    def _look_at_schemas(self) -> None:
        folder = f"{self._root}/schemas"
        for name in sorted(self._disk.names(folder)) if "schemas" in self._disk.names(self._root) else ():
            path = f"{folder}/{name}"
            if not name.endswith(".avsc"):
                continue
            size = self._disk.size(path)
            if sha256(self._disk.read(path, 0, size)).hexdigest() + ".avsc" != name:
                self._removed[path] = None
                fault = "the text does not match the SHA-256 in its name"
                self._drops.append(Drop(path, 0, size, fault, 0, 0, exact=True, needed=False))
                self._notes.append(f"{path}: the next start writes it again if the gateway's registry still holds it")

    def _look_at_indexes(self) -> tuple[SealedSegment, ...]:
        """Put down indexes that are damaged or of segments that change; return the segments that get theirs again."""
        if "index" not in self._disk.names(self._root):
            return ()
        names = set(self._disk.names(f"{self._root}/index"))
        gone = set(self._removed) - {one.path for one in self._written}
        again: list[SealedSegment] = []
        for segment in sealed_segments(self._root, self._disk):
            path = index_path(self._root, segment)
            if path.rpartition("/")[2] not in names:
                continue
            if segment.path in self._removed or load(self._root, segment, self._disk) is None:
                self._removed[path] = None
                if segment.path not in gone:
                    again.append(segment)
        for one in self._written:
            found = parse_segment_name(f"{self._root}/{_SEGMENTS}", one.path.rpartition("/")[2])
            if found is not None and found.last and one.path == found.path and found not in again:
                again.append(found)
        return tuple(again)

    def _look_for_strays(self) -> None:
        """Put down files that belong to no journal."""
        indexes = {index_path(self._root, segment) for segment in sealed_segments(self._root, self._disk)}
        for folder in (_SEGMENTS, _REJECTED, "snapshots", "schemas", "index"):
            if folder not in self._disk.names(self._root):
                continue
            for name in sorted(self._disk.names(f"{self._root}/{folder}")):
                path = f"{self._root}/{folder}/{name}"
                if path in self._removed or _is_ours(folder, name, path in indexes):
                    continue
                try:
                    self._disk.read(path, 0, 1)
                except OSError:
                    self._notes.append(f"{path}: no file of a journal; left where it is")
                    continue
                self._removed[path] = None
                self._notes.append(f"{path}: no file of this journal; it goes to {FOLDER}/")
        for path in self._losses.unreadable:
            self._removed[path] = None
            self._notes.append(
                f"{path}: the report of an earlier repair cannot be believed; what it lost is told again"
            )

    # what it means

    def _effects(
        self, ranges: list[tuple[int, int]], runs: list[Run]
    ) -> tuple[tuple[TopicLoss, ...], tuple[SessionLoss, ...], int, int]:
        """Return which topics and sessions lose what, how many lost revisions nothing tells the topic of, and of how many topics they can be."""
        lost: dict[int, LostChange] = {}
        sessions: dict[SessionLoss, None] = {}
        damaged = [drop for drop in self._drops if drop.needed and drop.length]
        for drop in damaged:
            since_us = max([0, *(run.after.accepted_at_us for run in runs if run.after.revision < max(drop.first, 1))])
            data = self._disk.read(drop.path, drop.offset, min(drop.length, _GLIMPSE_BYTES_MAX))
            before = max([0, *(run.after.revision for run in runs if run.path == drop.path and run.end <= drop.offset)])
            first = drop.first or before + 1
            for one in glimpse(data, first, max(drop.last, first - 1), since_us, 0):
                if isinstance(one, LostChange):
                    lost[one.revision] = one
                else:
                    sessions[_session_loss(one)] = None
        if not ranges:
            return (), tuple(sessions), 0, 0
        newest: dict[bytes, tuple[int, int, bool]] = {}
        mentioned: dict[bytes, int] = {}
        for record in chained(
            _snapshot_records(self._base_path, self._disk), *(_read(run, self._disk) for run in runs)
        ):
            if isinstance(record, Change):
                newest[record.destination] = (record.revision, record.accepted_at_us, record.deleted)
            elif isinstance(record, AcknowledgementRecord | OwedRecord):
                for destination, revision in record.positions:
                    if any(first <= revision <= last for first, last in ranges):
                        mentioned[destination] = max(mentioned.get(destination, 0), revision)
        told: dict[bytes, tuple[int, bool | None]] = {destination: (n, None) for destination, n in mentioned.items()}
        for change in lost.values():
            if change.revision >= told.get(change.destination, (0, None))[0]:
                told[change.destination] = (change.revision, change.deleted)
        known = {revision for revision in lost if any(first <= revision <= last for first, last in ranges)}
        known |= set(mentioned.values())
        unknown = sum(last - first + 1 for first, last in ranges) - len(known)
        highest = max((last for _, last in ranges), default=0)
        topics = []
        for destination in sorted(told):
            revision, deleted = told[destination]
            shown, shown_at_us, shown_deleted = newest.get(destination, (0, 0, False))
            if shown < revision:
                name = destination.decode(errors="replace")
                topics.append(TopicLoss(name, revision, deleted, shown, shown_at_us, shown_deleted, deleted is None))
        candidates = sum(revision < highest for revision, _, _ in newest.values()) if unknown or lost else 0
        return tuple(topics), tuple(sessions), unknown, candidates


def _is_ours(folder: str, name: str, indexed: bool) -> bool:
    match folder:
        case "segments" | "rejected":
            return parse_segment_name(folder, name) is not None or is_torn_tail(name)
        case "snapshots":
            return parse_snapshot_name(name) is not None or name == "lock"
        case "schemas":
            return name.endswith(".avsc")
        case _:
            return indexed


def _session_loss(one: LostSession) -> SessionLoss:
    return SessionLoss(one.principal, one.client_id, one.subscription.decode(errors="replace"), one.kind)


def _segment_of(path: str) -> SealedSegment:
    folder, _, name = path.rpartition("/")
    segment = parse_segment_name(folder, name)
    assert segment is not None  # noqa: S101 - it was listed
    return segment


def _gaps(runs: list[Run], base: int, head: int) -> list[tuple[int, int]]:
    """Return the ranges of revisions that no run holds, up to the highest that was given; what was before all runs, above a snapshot only."""
    gaps: list[tuple[int, int]] = []
    reached = 0
    for run in runs:
        first = reached + 1 if reached else base + 1
        if first <= run.before.revision:
            gaps.append((first, run.before.revision))
        reached = max(reached, run.after.revision)
    first = reached + 1 if reached else base + 1
    if first <= head:
        gaps.append((first, head))
    return gaps


def _trails(run: Run) -> bool:
    """Tell whether a run holds records of sessions only, behind the last change of its file: no segment can begin with them."""
    first = _segment_of(run.path).first
    return run.records > 0 and first <= run.before.revision == run.after.revision


def _newest_snapshot(root: str, disk: Disk) -> tuple[int, str]:
    """Return the newest whole snapshot, or 0 and "" when there is none."""
    for revision, path in reversed(list_snapshots(f"{root}/snapshots", disk)):
        if examine_file(path, disk, Decoder(0, 0), None, revision).problem is None:
            return revision, path
    return 0, ""


def _snapshot_records(path: str, disk: Disk) -> Iterator[Record]:
    if path:
        scanner = open_scanner(path, disk)
        decoder = Decoder(0, 0)
        decoder.gapless = False
        while (records := scanner.records(decoder)) is not None:
            yield from records


def _scanner_of(run: Run, disk: Disk) -> Scanner:
    """Return a scanner of the blocks of a run and nothing behind them."""
    read = lambda at, length: disk.read(run.path, at, min(length, max(0, run.end - at)))  # noqa: E731 - as everywhere
    return scan_from(run.path, run.end, read, run.before, run.sync_marker, run.offset)


def _read(run: Run, disk: Disk) -> Iterator[Record]:
    if run.offset == run.end:
        return
    scanner = _scanner_of(run, disk)
    decoder = Decoder(run.before.revision, 0)
    while (records := scanner.records(decoder)) is not None:
        yield from records


def _trim(run: Run, reached: Position, disk: Disk) -> Run | None:
    """Return what of a run follows a place, as its chain proves; None when nothing does."""
    if run.after.revision <= reached.revision:
        return None
    scanner = _scanner_of(run, disk)
    decoder = Decoder(run.before.revision, 0)
    skipped = 0
    while decoder.revision < reached.revision:
        records = scanner.records(decoder)
        if records is None:
            return None
        skipped += len(records)
    if decoder.revision != reached.revision:
        return None
    while scanner.chain != reached.chain:  # records of sessions may follow the last change
        records = scanner.records(decoder)
        if records is None or decoder.revision != reached.revision:
            return None
        skipped += len(records)
    before = Position(reached.revision, max(reached.accepted_at_us, decoder.accepted_at_us), scanner.chain)
    return replace(run, offset=scanner.offset, before=before, records=run.records - skipped, whole=False)


def _parts(new: NewSegment, disk: Disk, sync_marker: bytes) -> Iterator[bytes]:
    """Yield the bytes of a new segment."""
    run = new.run
    if run is None:
        yield header(new.before, sync_marker, snapshot=False)
        return
    yield header(run.before, run.sync_marker, snapshot=False)
    for offset in range(run.offset, run.end, _COPY_BYTES):
        yield disk.read(run.path, offset, min(_COPY_BYTES, run.end - offset))
    if new.sealed:
        yield end_block(run.after, run.sync_marker)


def _open_path(root: str, revision: int, folder: str = _SEGMENTS) -> str:
    return f"{root}/{folder}/{revision + 1:020}.open.avro"


def _close(disk: Disk, locks: list[int]) -> None:
    while locks:
        disk.close(locks.pop())

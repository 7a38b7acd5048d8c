"""Find out what is wrong with a journal, and plan its repair."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import chain as chained
from typing import Final, final

from maxam.errors import JournalError
from maxam.journal.decoding import Decoder
from maxam.journal.disk import Disk
from maxam.journal.encoding import Position
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
    segment_path,
)
from maxam.journal.repair_effects import find_effects
from maxam.journal.repair_plan import Drop, Gap, NewSegment, Plan, Run
from maxam.journal.scan import OTHER_VERSION, written_bytes
from maxam.journal.survey import (
    Survey,
    gaps_between,
    read_run,
    segment_of,
    snapshot_records,
    survey_segment,
    trails,
    trim,
)
from maxam.journal.verify import examine_file
from maxam.journal.whole import open_scanner
from maxam.records import Record

SEGMENTS: Final = "segments"
_REJECTED: Final = "rejected"
_CHANGE_BYTES_MIN: Final = 23  # of any change: the bytes of an unknown stretch held at most one revision per this many
_REVISION_MAX: Final = 1 << 62  # a file name with a higher one is no segment's


@final
class Planner:
    """Finds out what is wrong with a journal and what to do about it."""

    def __init__(self, root: str, disk: Disk) -> None:
        """Plan for a folder; nothing is read yet but the reports of earlier repairs."""
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
        """Read the journal, and return the plan."""
        root = self._root
        reached_by_snapshot = self._check_snapshots()
        self._base, self._base_path = _newest_snapshot(root, self._disk)
        base = self._base
        surveys, runs = self._line_up(SEGMENTS)
        head = self._head(surveys, runs, reached_by_snapshot)
        gaps = gaps_between(runs, base, head)
        self._gaps.extend(
            Gap(SEGMENTS, first, last)
            for first, last in gaps
            if last > base or not self._losses.cover(SEGMENTS, first, last)
        )
        reached = max([base, *(run.after.revision for run in runs)])
        live = [run for run in runs if self._needed(run)]
        snapshot = self._fold(live, head if head > reached else 0)
        # a snapshot above the last segment's end is taken for a sign that segments are missing, unless the next one is begun
        begins = head > reached or (bool(runs) and base > runs[-1].after.revision)
        if begins:
            at_us = max([0, *(run.after.accepted_at_us for run in runs), *(one.start_at_us for one in surveys)])
            begun = Position(head, at_us, 0)
            self._written.append(NewSegment(segment_path(f"{root}/{SEGMENTS}", head + 1), None, begun, sealed=False))
        self._rewrite(SEGMENTS, surveys, runs, not begins)
        self._add_drops(SEGMENTS, surveys, runs)
        ranges = [(max(first, base + 1), last) for first, last in gaps if last > base]
        known = find_effects(self._disk, self._base_path, self._drops, ranges, live)
        self._plan_rejected()
        self._check_schemas()
        reindexed = self._check_indexes()
        self._find_strays()
        if snapshot:
            self._notes.append(f"a snapshot of revision {snapshot} will be written: a start needs nothing before it")
        if any(drop.needed for drop in self._drops):
            self._notes.append(
                "what durable sessions did in what is dropped is lost too, named or not. Messages that they had acknowledged may "
                "come again, and a subscription that was made there is unknown"
            )
        return Plan(
            root,
            tuple(self._drops),
            tuple(self._gaps),
            known.topics,
            known.sessions,
            known.unknown,
            known.candidates,
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
            snapshot_records(self._base_path, self._disk), *(read_run(run, self._disk) for run in self._folded)
        )
        return records, Position(self._folded_to, at_us, 0)

    def _needed(self, run: Run) -> bool:
        """Return True if a start reads a run: the newest whole snapshot does not stand for its file."""
        segment = segment_of(run.path)
        return segment.first > self._base or run.after.revision > self._base

    def _fold(self, live: list[Run], cut_off: int) -> int:
        """Record what the new snapshot has to stand for. Return its revision, 0 when none is needed.

        Args:
            live: The runs that a start reads.
            cut_off: The last revision that was given, if runs after the last one are lost. Else 0.
        """
        reached, chain = self._base, 0
        for number, run in enumerate(live):
            if run.before.revision > reached or (chain and run.before.chain not in {0, chain}):
                self._folded, self._folded_to = live[:number], run.before.revision
            if self._folded_to == run.after.revision and trails(run) and (run.sealed or number < len(live) - 1):
                self._folded = live[: number + 1]
            reached, chain = run.after.revision, run.after.chain
        if cut_off:
            self._folded, self._folded_to = live, cut_off
        return self._folded_to

    # what there is

    def _check_snapshots(self) -> int:
        """Plan the removal of damaged snapshots. Return the highest revision of any snapshot."""
        reached = 0
        for revision, path in list_snapshots(f"{self._root}/snapshots", self._disk):
            if revision < _REVISION_MAX:
                reached = max(reached, revision)
            report = examine_file(path, self._disk, Decoder(0, 0), None, revision)
            if report.problem == OTHER_VERSION:
                raise JournalError(f"{path}: {OTHER_VERSION}: repair it with that version")
            if report.problem is not None:
                self._removed[path] = None
                length = report.length - report.offset
                self._drops.append(Drop(path, report.offset, length, report.problem, 0, 0, exact=True, needed=False))
                self._notes.append(f"{path}: a damaged snapshot goes; an older one and the segments make up for it")
        return reached

    def _line_up(self, folder: str) -> tuple[list[Survey], list[Run]]:
        """Read all segments of a folder; return what of them is whole, in order and without overlap."""
        sealed, opened = list_segments(f"{self._root}/{folder}", self._disk)
        surveys = [survey_segment(one, self._disk, folder == _REJECTED) for one in [*sealed, *opened]]
        queue = sorted(
            (run for survey in surveys for run in survey.runs),
            key=lambda run: (run.before.revision, not trails(run), not run.whole, not run.sealed, -run.after.revision),
        )
        kept: list[Run] = []
        for run in queue:
            if not kept or run.before.revision >= kept[-1].after.revision:
                kept.append(run)
                continue
            rest = trim(run, kept[-1].after, self._disk)
            if rest is not None:
                kept.append(rest)
        return surveys, kept

    def _head(self, surveys: list[Survey], runs: list[Run], reached_by_snapshot: int) -> int:
        """Return the highest revision that any file mentions, or that can have been in the lost bytes."""
        head = max([reached_by_snapshot, *(run.after.revision for run in runs)])
        for survey in surveys:
            segment = survey.segment
            known = (survey.mentioned, segment.first - 1, segment.last)
            head = max([head, *(one for one in known if one < _REVISION_MAX)])
            if not segment.last and survey.faults and not (survey.torn and survey is surveys[-1]):
                fault = survey.faults[-1]
                size = self._disk.size(fault.path)
                if fault.offset + fault.length >= written_bytes(size, partial(self._disk.read, fault.path)):
                    behind = max([segment.first - 1, *(run.after.revision for run in survey.runs)])
                    head = max(head, behind + fault.length // _CHANGE_BYTES_MIN + 1)
        if "index" in self._disk.names(self._root):
            for name in self._disk.names(f"{self._root}/index"):
                last = name.removesuffix(".index").rpartition("-")[2]
                if last.isascii() and last.isdecimal() and int(last) < _REVISION_MAX:
                    head = max(head, int(last))
        return head

    # what to do

    def _rewrite(self, folder: str, surveys: list[Survey], runs: list[Run], last_stays_open: bool) -> None:
        """Plan which segments are removed and which are written in their place."""
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
            path = segment_path(f"{self._root}/{folder}", run.before.revision + 1)
            if not stays_open:
                path = f"{self._root}/{folder}/{run.before.revision + 1:020}-{run.after.revision:020}.avro"
            elif self._torn_only(run, paths[run.path]):
                stay.add(run.path)
                continue
            self._written.append(NewSegment(path, run, run.before, not stays_open))
        for path in sorted(paths.keys() - stay):
            self._removed[path] = None

    def _torn_only(self, run: Run, survey: Survey) -> bool:
        """Return True if an open segment needs nothing but the step of every start: to cut off its end."""
        named = run.before.revision + 1 == survey.segment.first
        if named and survey.torn and len(survey.faults) == 1 and len(survey.runs) <= 1:
            self._notes.append(
                f"{run.path}: an unfinished write at byte {survey.faults[0].offset} is cut off, as every start does; "
                "it was never acknowledged, and is kept beside the file"
            )
            return True
        return False

    def _add_drops(self, folder: str, surveys: list[Survey], runs: list[Run]) -> None:
        """Record the bytes that are left out, with the revisions that they must have held."""
        base = self._base if folder == SEGMENTS else _REVISION_MAX
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
            listed = [one for one in self._drops if one.first and one.first <= gap.first and gap.last <= one.last]
            if gap.folder == folder and not listed:
                text = "nothing that is there holds these revisions"
                self._drops.append(
                    Drop(f"{self._root}/{folder}", 0, 0, text, gap.first, gap.last, True, gap.last > base)
                )

    def _plan_rejected(self) -> None:
        """Plan the repair of the journal of rejected SENDs. Nothing else depends on it."""
        if _REJECTED not in self._disk.names(self._root):
            return
        surveys, runs = self._line_up(_REJECTED)
        torn = [one for one in surveys[-1:] if one.torn and not one.segment.last and len(one.faults) == 1]
        if all(not one.faults for one in surveys if one not in torn) and all(run.whole for run in runs if not torn):
            gaps = gaps_between(runs, max([0, *(run.before.revision for run in runs[:1])]), 0)
        else:
            head = max([0, *(run.after.revision for run in runs)])
            head = max([head, *(one.segment.last for one in surveys if one.segment.last < _REVISION_MAX)])
            gaps = gaps_between(runs, max([0, *(run.before.revision for run in runs[:1])]), head)
            begins = not runs or head > runs[-1].after.revision
            if begins:
                at_us = max([0, *(run.after.accepted_at_us for run in runs)])
                begun = Position(head, at_us, 0)
                self._written.append(
                    NewSegment(segment_path(f"{self._root}/{_REJECTED}", head + 1), None, begun, sealed=False)
                )
            self._rewrite(_REJECTED, surveys, runs, not begins)
        self._gaps.extend(
            Gap(_REJECTED, first, last) for first, last in gaps if not self._losses.cover(_REJECTED, first, last)
        )
        self._add_drops(_REJECTED, surveys, runs)

    def _check_schemas(self) -> None:
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

    def _check_indexes(self) -> tuple[Segment, ...]:
        """Plan the removal of indexes that are damaged or of changed segments. Return the segments to index again."""
        if "index" not in self._disk.names(self._root):
            return ()
        names = set(self._disk.names(f"{self._root}/index"))
        gone = set(self._removed) - {one.path for one in self._written}
        again: list[Segment] = []
        for segment in sealed_segments(self._root, self._disk):
            path = index_path(self._root, segment)
            if path.rpartition("/")[2] not in names:
                continue
            if segment.path in self._removed or load(self._root, segment, self._disk) is None:
                self._removed[path] = None
                if segment.path not in gone:
                    again.append(segment)
        for one in self._written:
            found = parse_segment_name(f"{self._root}/{SEGMENTS}", one.path.rpartition("/")[2])
            if found is not None and found.last and one.path == found.path and found not in again:
                again.append(found)
        return tuple(again)

    def _find_strays(self) -> None:
        """Plan the removal of files that belong to no journal."""
        indexes = {index_path(self._root, segment) for segment in sealed_segments(self._root, self._disk)}
        for folder in (SEGMENTS, _REJECTED, "snapshots", "schemas", "index"):
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
                f"{path}: the report of an earlier repair cannot be believed. Its losses are reported again"
            )


def _is_ours(folder: str, name: str, indexed: bool) -> bool:
    match folder:
        case "segments" | "rejected":
            return parse_segment_name(folder, name) is not None or is_torn_tail(name)
        case "snapshots":
            return parse_snapshot_name(name) is not None or name == "lock" or name.startswith(RESERVE)
        case "schemas":
            return name.endswith(".avsc")
        case _:
            return indexed


def _newest_snapshot(root: str, disk: Disk) -> tuple[int, str]:
    """Return the newest whole snapshot, or 0 and "" when there is none."""
    for revision, path in reversed(list_snapshots(f"{root}/snapshots", disk)):
        if examine_file(path, disk, Decoder(0, 0), None, revision).problem is None:
            return revision, path
    return 0, ""

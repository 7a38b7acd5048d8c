"""Following a journal: cursors lead over every change once, whatever is written, rolled and sealed between them."""

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.errors import JournalError
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.listing import list_segments
from maxam.journal.reading import SegmentReader
from maxam.journal.snapshots import write_snapshot
from maxam.journal.tail import Cursor, RevisionsLostError, advance, newest, oldest, stretches
from maxam.records import AcknowledgementRecord, Change
from tests.support.journal_records import NOW_US, SYNC, change

SMALL = JournalSettings(segment_bytes_max=3000, durable=False, reserve_bytes=0)


def opened(folder: Path) -> Journal:
    """Open a journal and recover it."""
    journal = Journal.open(folder, OsDisk(), SMALL, SYNC)
    for _ in journal.recover():
        pass
    return journal


def write(journal: Journal, changes: int) -> None:
    """Write a block of N changes, or one without a change."""
    head = journal.head
    if changes:
        journal.write(journal.encode([change(n) for n in range(head + 1, head + 1 + changes)]))
    else:
        at_us = max(NOW_US, journal.accepted_at_us)
        journal.write(journal.encode([AcknowledgementRecord(at_us, "alice", "pump", b"s1", ())]))


def between(folder: Path, start: Cursor, end: Cursor) -> list[int]:
    """Return the revisions of what is between two cursors."""
    found: list[int] = []
    for part in stretches(folder, "changes", start, end):
        with SegmentReader(folder, "changes", part.segment, part.place, part.end) as reader:
            found += [record.revision for block in reader for record in block if isinstance(record, Change)]
            assert reader.problems == []
    return [revision for revision in found if start.revision < revision <= end.revision]


steps = st.one_of(
    st.integers(0, 6).map(lambda changes: ("write", changes)),
    st.sampled_from([("read", 0), ("read", 1), ("read", 700), ("read", 5000), ("reopen", 0)]),
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.lists(steps, max_size=40))
def test_any_schedule_gives_every_change_once(schedule: list[tuple[str, int]]) -> None:
    """However writes, seals and reads of any size follow each other, each change is read once and in order, and in the end all are.

    Changes between two cursors are the same when they are read again later.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal = opened(folder)
        cursors = [oldest(folder, "changes")]
        reads: list[list[int]] = []
        for what, number in [*schedule, ("read", 0)]:
            if what == "write":
                write(journal, number)
            elif what == "reopen":
                journal.close()
                journal = opened(folder)
            else:
                reached = advance(folder, "changes", cursors[-1], number or None)
                if reached.revision > cursors[-1].revision:
                    reads.append(between(folder, cursors[-1], reached))
                    assert reads[-1]
                    cursors.append(reached)
        assert [n for part in reads for n in part] == list(range(1, journal.head + 1))
        journal.close()
        assert [between(folder, *pair) for pair in pairwise(cursors)] == reads


def test_a_target_is_not_passed(tmp_path: Path) -> None:
    """Changes written after a target was taken are not read, whether they are in the same segment or after it."""
    journal = opened(tmp_path)
    for count in (1, 2, 3):
        write(journal, count)
    target = newest(tmp_path, "changes")
    assert target.revision == 6
    for _ in range(6):
        write(journal, 4)
    assert len(list_segments(tmp_path, "changes")) > 1
    cursor = Cursor(0)
    while (reached := advance(tmp_path, "changes", cursor, 1, target)).revision > cursor.revision:
        cursor = reached
    assert cursor.revision == target.revision
    journal.close()


def test_what_is_gone_is_named(tmp_path: Path) -> None:
    """Behind retention, or before a hole, advancing fails with the lost revisions; skipping it goes on behind."""
    journal = opened(tmp_path)
    for _ in range(12):
        write(journal, 4)
    first, second, third, *_ = list_segments(tmp_path, "changes")
    Path(second.path).unlink()
    with pytest.raises(RevisionsLostError, match=f"revisions {second.first} to {second.last} are lost"):
        advance(tmp_path, "changes", Cursor(1))
    Path(first.path).unlink()
    with pytest.raises(RevisionsLostError, match=f"retention: revisions 3 to {second.last} are lost"):
        advance(tmp_path, "changes", Cursor(2))
    with pytest.raises(RevisionsLostError, match=f"revisions 3 to {second.last} are lost"):
        stretches(tmp_path, "changes", Cursor(2), Cursor(third.last))
    assert advance(tmp_path, "changes", Cursor(2), 1, skip=True).revision >= third.first
    assert oldest(tmp_path, "changes") == Cursor(second.last)
    journal.close()


def test_a_cursor_of_another_journal_is_refused(tmp_path: Path) -> None:
    """A journal that is shorter than what was read, or holds something else there, is not the one that was read."""
    journal = opened(tmp_path / "a")
    write(journal, 3)
    write(journal, 3)
    cursor = newest(tmp_path / "a", "changes")
    other = opened(tmp_path / "b")
    other.write(other.encode([change(n, body=b"other") for n in range(1, 20)]))
    with pytest.raises(JournalError, match="no block"):
        advance(tmp_path / "b", "changes", cursor)
    short = opened(tmp_path / "c")
    write(short, 2)
    for wrong in (cursor, Cursor(6)):
        with pytest.raises(JournalError, match=r"no block|cut back"):
            advance(tmp_path / "c", "changes", wrong)
    short.close()
    with pytest.raises(JournalError, match="another journal"):
        advance(tmp_path / "c", "changes", Cursor(6))
    for one in (journal, other):
        one.close()


def test_damage_in_the_open_segment_is_no_torn_tail(tmp_path: Path) -> None:
    """With whole blocks after it an invalid block is damage: advancing fails with the revisions, or skips it."""
    journal = opened(tmp_path)
    for _ in range(3):
        write(journal, 2)
    (segment,) = list_segments(tmp_path, "changes")
    cursor = advance(tmp_path, "changes", Cursor(0), 1)
    assert cursor.revision == 2
    path = Path(segment.path)
    data = bytearray(path.read_bytes())
    data[cursor.offset + 40] ^= 1
    path.write_bytes(data)
    with pytest.raises(RevisionsLostError, match="lost: revisions 3 to 4"):
        advance(tmp_path, "changes", cursor)
    assert advance(tmp_path, "changes", cursor, skip=True).revision == 6
    path.write_bytes(data[: cursor.offset + 50])
    assert advance(tmp_path, "changes", cursor) == cursor
    journal.close()
    shutil.rmtree(tmp_path)


def test_segments_that_overlap_are_not_read_twice(tmp_path: Path) -> None:
    """A segment that begins within the one before it stops a reader, or is skipped; no change comes twice."""
    journal = opened(tmp_path)
    for _ in range(9):
        write(journal, 4)
    journal.close()
    segments = list_segments(tmp_path, "changes")
    other = Journal.open(tmp_path / "other", OsDisk(), JournalSettings(durable=False, reserve_bytes=0), SYNC)
    list(other.recover())
    for first, last in ((1, 2), (3, segments[1].last)):
        other.write(other.encode([change(n) for n in range(first, last + 1)]))
        other.close()
        other = Journal.open(tmp_path / "other", OsDisk(), JournalSettings(durable=False, reserve_bytes=0), SYNC)
        list(other.recover())
    stray = Path(list_segments(tmp_path / "other", "changes")[1].path)
    shutil.copy(stray, tmp_path / "segments" / stray.name)
    with pytest.raises(RevisionsLostError, match="segment before"):
        advance(tmp_path, "changes", Cursor(0))
    reached = advance(tmp_path, "changes", Cursor(0), skip=True)
    assert reached == Cursor(segments[-1].last)
    parts = stretches(tmp_path, "changes", Cursor(0), reached, skip=True)
    assert [part.segment for part in parts] == segments


def test_a_journal_whose_segments_were_all_removed_goes_on(tmp_path: Path) -> None:
    """A reader that begins where only a snapshot is left stands after what it stands for, and reads what comes."""
    journal = opened(tmp_path)
    for _ in range(9):
        write(journal, 4)
    head = journal.head
    journal.close()
    write_snapshot(tmp_path, OsDisk(), head, [change(n) for n in range(1, head + 1)], SYNC, journal.accepted_at_us)
    for segment in list_segments(tmp_path, "changes"):
        Path(segment.path).unlink()
    assert oldest(tmp_path, "changes") == newest(tmp_path, "changes") == Cursor(head)
    assert advance(tmp_path, "changes", Cursor(head)) == Cursor(head)
    with pytest.raises(RevisionsLostError, match=f"retention: revisions 3 to {head} are lost"):
        advance(tmp_path, "changes", Cursor(2))
    start = oldest(tmp_path, "changes")
    journal = opened(tmp_path)
    write(journal, 2)
    reached = advance(tmp_path, "changes", start)
    assert between(tmp_path, start, reached) == [head + 1, head + 2]
    journal.close()

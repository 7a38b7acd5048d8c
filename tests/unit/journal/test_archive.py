"""Reading a journal's folder beside its writer: all whole blocks are read, and all damage is reported."""

import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from maxam.errors import JournalError
from maxam.journal.archive import Archive, examine
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import SYNC_BYTES
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.listing import Problem, find_segment, list_segments
from maxam.journal.names import Segment
from maxam.journal.proving import check_segment, walk
from maxam.journal.reading import SegmentReader
from maxam.journal.scan import Scanner
from maxam.journal.snapshots import write_snapshot
from maxam.records import AcknowledgementRecord, Change, Record
from tests.support.journal_records import NOW_US, SYNC, change, one_of_each, plain_all

ONE_SEGMENT = JournalSettings(durable=False, reserve_bytes=0)
SMALL = JournalSettings(segment_bytes_max=4000, durable=False, reserve_bytes=0)


def write(folder: Path, blocks: Iterable[list[Record]], settings: JournalSettings = ONE_SEGMENT) -> Journal:
    """Write blocks to a new journal, which is left open."""
    journal = Journal.open(folder, OsDisk(), settings, SYNC)
    assert list(journal.recover()) == []
    for block in blocks:
        journal.write(journal.encode(block))
    return journal


def ack(at_us: int) -> AcknowledgementRecord:
    """Make a record of a session."""
    return AcknowledgementRecord(at_us, "alice", "pump", b"s1", ())


def files(folder: Path) -> list[Path]:
    """Return the segments, in order."""
    return sorted((folder / "segments").iterdir())


def read(folder: Path, segment: Segment) -> tuple[list[Record], list[Problem]]:
    """Read all that can be read of a segment."""
    with SegmentReader(folder, "changes", segment) as reader:
        records = [record for block in reader for record in block]
        return records, reader.problems  # type: ignore[return-value]  # no rejected ones are here


def revisions(records: Iterable[Record]) -> list[int]:
    """Return the revisions of the changes among records."""
    return [record.revision for record in records if isinstance(record, Change)]


def lost(problems: Iterable[Problem]) -> set[int]:
    """Return all revisions that are reported as lost."""
    return {n for one in problems if one.lost and one.first for n in range(one.first, one.last + 1)}


@dataclass(frozen=True)
class Sample:
    """A segment with blocks of all sorts, sealed and while it is open.

    Attributes:
        data: Bytes of the file.
        blocks: Beginning, end and records of each block.
        last: As in the name of the file.
    """

    data: bytes = field(repr=False)
    blocks: list[tuple[int, int, list[Record]]] = field(repr=False)
    last: int

    @property
    def name(self) -> str:
        """Return what the file is called."""
        return f"{1:020}-{self.last:020}.avro" if self.last else f"{1:020}.open.avro"


def samples() -> tuple[Sample, Sample]:
    """Make both from the same blocks."""
    first = one_of_each()
    revision = revisions(first)[-1]
    at_us = NOW_US + 2_000_000
    blocks: list[list[Record]] = [first]
    for number, size in enumerate((1, 3, 0, 2, 0, 0, 4, 1)):
        at_us += 10
        block: list[Record] = [
            change(revision + n, body=b"v" * 7 * n, at_us=at_us, deleted=n == 3) for n in range(1, size + 1)
        ]
        revision += size
        blocks.append([*block, ack(at_us)] if number % 2 or not size else block)
    with tempfile.TemporaryDirectory() as folder:
        journal = write(Path(folder), blocks)
        (path,) = files(Path(folder))
        opened = path.read_bytes()
        journal.close()
        (path,) = files(Path(folder))
        sealed = path.read_bytes()
    places: list[tuple[int, int, list[Record]]] = []
    scanner = Scanner("", len(opened), lambda offset, length: opened[offset : offset + length])
    for block in blocks:
        begin = scanner.offset
        assert scanner.next_block() is not None
        places.append((begin, scanner.offset, block))
    return Sample(sealed, places, revision), Sample(opened, places, 0)


SEALED, OPEN = samples()
BLOCK_HEAD_BYTES = 4  # of these samples at most: the count of the records, and their length


def read_bytes(sample: Sample, data: bytes) -> tuple[list[Record], list[Problem], Archive]:
    """Read a file with these bytes as the sample's segment."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "segments").mkdir()
        (folder / "segments" / sample.name).write_bytes(data)
        (segment,) = list_segments(folder, "changes")
        return *read(folder, segment), examine(folder)


@pytest.mark.parametrize("sample", [SEALED, OPEN], ids=["sealed", "open"])
def test_a_whole_segment_is_read_whole(sample: Sample) -> None:
    """All records come in order, without a problem. Examining finds the segment healthy or open, with its revisions and its end."""
    records, problems, archive = read_bytes(sample, sample.data)
    assert plain_all(records) == plain_all([record for _, _, block in sample.blocks for record in block])
    assert problems == []
    assert archive.problems == ()
    found = archive.sealed[0] if sample.last else archive.open
    assert found is not None
    assert (archive.first, archive.last, len(archive.sealed)) == (1, SEALED.last, int(bool(sample.last)))
    assert (found.records, found.bytes) == (len(records), OPEN.blocks[-1][1])


def check_damaged(sample: Sample, data: bytes, harmed: list[list[Record]], told: bool = True) -> None:
    """Check that all blocks except the harmed ones are read, that damage is reported, and that the lost revisions are exact."""
    records, problems, archive = read_bytes(sample, data)
    whole = [record for _, _, block in sample.blocks if block not in harmed for record in block]
    assert plain_all(records) == plain_all(whole)
    assert bool(problems) == told
    assert problems == list(archive.problems)
    assert not archive.sealed or not told
    missing = set(revisions([record for block in harmed for record in block]))
    if not told:  # an open segment that ends where a block does shows no loss
        assert sample is OPEN
    elif any(one.kind == "torn" for one in problems):
        assert sample is OPEN
        assert not lost(problems) & set(revisions(records))
        assert missing >= lost(problems)
    else:
        assert lost(problems) == missing
    assert all(0 <= one.offset <= len(sample.data) for one in problems)


@pytest.mark.slow
@pytest.mark.parametrize("sample", [SEALED, OPEN], ids=["sealed", "open"])
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_is_told_and_costs_one_block(sample: Sample, data: st.DataObject) -> None:
    """After any flipped bit, the records of all other blocks are read, in order, and the lost revisions are reported."""
    bit = data.draw(st.integers(0, len(sample.data) * 8 - 1))
    flipped = bytearray(sample.data)
    flipped[bit // 8] ^= 1 << bit % 8
    check_damaged(sample, bytes(flipped), [block for begin, end, block in sample.blocks if begin <= bit // 8 < end])


@pytest.mark.parametrize("sample", [SEALED, OPEN], ids=["sealed", "open"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_truncation_leaves_what_is_before_it(sample: Sample, data: st.DataObject) -> None:
    """All whole blocks of a cut file are read. A sealed one is reported as cut, an open one as torn unless a block ends there."""
    end = data.draw(st.integers(0, len(sample.data) - 1))
    whole = end in {sample.blocks[0][0], *(stop for _, stop, _ in sample.blocks)}
    harmed = [block for _, stop, block in sample.blocks if stop > end]
    check_damaged(sample, sample.data[:end], harmed, told=sample is SEALED or not whole)


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(SEALED.blocks[0][0], len(SEALED.data) - 1), min_size=1, max_size=6))
@example({SEALED.blocks[2][0], SEALED.blocks[3][1] - 16})  # a head, and the marker of the block behind
def test_damage_in_several_places_costs_the_blocks_that_it_is_in(places: set[int]) -> None:
    """Any number of damaged bytes is reported. All other blocks are read if head or marker of each shows where the next begins."""
    assume(
        not any(
            places & set(range(begin, begin + BLOCK_HEAD_BYTES)) and places & set(range(end - SYNC_BYTES, end))
            for begin, end, _ in SEALED.blocks
        )
    )
    flipped = bytearray(SEALED.data)
    for place in places:
        flipped[place] ^= 0xFF
    check_damaged(
        SEALED,
        bytes(flipped),
        [block for begin, end, block in SEALED.blocks if any(begin <= place < end for place in places)],
    )


def test_a_block_that_was_taken_out_is_missed() -> None:
    """The chain shows that a whole block is missing, and which revisions it had."""
    begin, end, block = SEALED.blocks[2]
    records, problems, _ = read_bytes(SEALED, SEALED.data[:begin] + SEALED.data[end:])
    assert set(revisions(records)) == set(range(1, SEALED.last + 1)) - set(revisions(block))
    assert [(one.kind, one.offset, one.first, one.last) for one in problems] == [
        ("damaged", begin, *[revisions(block)[at] for at in (0, -1)])
    ]


def test_a_block_that_stands_there_twice_is_read_once() -> None:
    """A whole block of lower revisions than those before it is reported and skipped."""
    begin, end, _ = SEALED.blocks[2]
    records, problems, _ = read_bytes(SEALED, SEALED.data[:end] + SEALED.data[begin:])
    assert revisions(records) == list(range(1, SEALED.last + 1))
    assert [(one.kind, one.offset) for one in problems] == [("damaged", end)]


def test_bytes_behind_the_end_are_told_but_nothing_is_lost() -> None:
    """A sealed segment with bytes after its end mark is not healthy, and all of it is read."""
    records, problems, archive = read_bytes(SEALED, SEALED.data + b"more")
    assert revisions(records) == list(range(1, SEALED.last + 1))
    assert [(one.kind, one.lost) for one in problems] == [("damaged", False)]
    assert archive.sealed == ()


def test_a_segment_of_another_version_is_unreadable(tmp_path: Path) -> None:
    """A whole header with another schema is reported as such. Its revisions are lost."""
    write(tmp_path, [[change(1)]]).close()
    (path,) = files(tmp_path)
    data = path.read_bytes().replace(b'"name":"reason"', b'"name":"season"')
    import zlib

    place = data.index(b"\x16maxam.check\x10") + 13
    check = zlib.crc32(data[place + 8 : place + 8 + 17], zlib.crc32(data[:place]))
    path.write_bytes(data[:place] + b"%08x" % check + data[place + 8 :])
    archive = examine(tmp_path)
    assert [(one.kind, one.first, one.last, one.lost) for one in archive.problems] == [("unreadable", 1, 1, True)]
    assert "another version" in str(archive.problems[0])


def many(folder: Path, blocks: int = 20) -> Journal:
    """Write a journal of several segments, three changes a block."""
    return write(folder, [[change(n) for n in range(at, at + 3)] for at in range(1, 3 * blocks, 3)], SMALL)


def test_the_parts_of_an_archive(tmp_path: Path) -> None:
    """Sealed segments follow each other to the open one; times and revisions in between choose segments."""
    many(tmp_path)
    archive = examine(tmp_path)
    assert archive.problems == ()
    assert archive.open is not None
    parts = [*archive.sealed, archive.open]
    assert len(parts) > 3
    assert [one.first for one in parts] == [1, *[one.last + 1 for one in parts[:-1]]]
    assert (archive.first, archive.last) == (1, 60)
    assert [one.last_at_us for one in parts] == [NOW_US + 1000 * one.last for one in parts]
    some = parts[2]
    at_us = NOW_US + 1000 * some.first
    by_time = examine(tmp_path, since_us=at_us, until_us=at_us + 1)
    by_revision = examine(tmp_path, from_revision=some.first, to_revision=some.first)
    assert by_time.sealed == by_revision.sealed == (some,)
    assert by_revision.first == by_revision.last == some.first
    assert examine(tmp_path, may_hold=lambda one: one.first == some.first).sealed == (some,)
    assert examine(tmp_path, since_us=NOW_US + 10**12).sealed == ()
    assert examine(tmp_path, until_us=NOW_US).problems == ()


def test_a_missing_segment_is_told(tmp_path: Path) -> None:
    """A segment that is absent between others is missing. Its revisions are reported, and the other segments are read."""
    many(tmp_path)
    gone = examine(tmp_path).sealed[1]
    Path(gone.path).unlink()
    archive = examine(tmp_path)
    (problem,) = archive.problems
    assert (problem.kind, problem.first, problem.last, problem.lost) == ("missing", gone.first, gone.last, True)
    assert str(problem).startswith(
        f"{tmp_path}/segments: missing: a segment is missing before revision {gone.last + 1};"
    )
    assert examine(tmp_path, from_revision=gone.last + 1).problems == ()


def test_what_retention_removed_is_lost_only_to_who_asks_for_it(tmp_path: Path) -> None:
    """An archive that begins later is reported. Revisions that were requested by number are lost."""
    many(tmp_path)
    gone = examine(tmp_path).sealed[0]
    Path(gone.path).unlink()
    (note,) = examine(tmp_path).problems
    assert (note.kind, note.first, note.last, note.lost) == ("expired", 1, gone.last, False)
    (problem,) = examine(tmp_path, from_revision=2).problems
    assert (problem.kind, problem.first, problem.last, problem.lost) == ("expired", 2, gone.last, True)
    assert str(problem).startswith(f"{tmp_path}/segments: expired: the archive begins with revision {gone.last + 1}:")
    assert examine(tmp_path, from_revision=gone.last + 1).problems == ()
    (problem,) = examine(tmp_path, to_revision=gone.last).problems
    assert (problem.first, problem.last, problem.lost) == (1, gone.last, True)
    (note,) = examine(tmp_path, to_revision=gone.last + 1).problems
    assert not note.lost


def test_a_time_that_reaches_into_what_retention_removed_is_a_loss(tmp_path: Path) -> None:
    """A span from before the last removed record, or up to the first kept one, has lost something; any other one has not."""
    many(tmp_path)
    gone, kept, *_ = examine(tmp_path).sealed
    with SegmentReader(tmp_path, "changes", kept.segment) as reader:
        first = next(iter(reader))[0]
    assert isinstance(first, Change)
    first_at_us = first.accepted_at_us
    assert gone.last_at_us < first_at_us
    for since_us in (None, 0, gone.last_at_us):
        for until_us in (None, gone.last_at_us, first_at_us, first_at_us + 1):
            assert examine(tmp_path, since_us=since_us, until_us=until_us).problems == ()
    Path(gone.path).unlink()

    def lost(since_us: int | None, until_us: int | None) -> bool:
        found = examine(tmp_path, since_us=since_us, until_us=until_us, may_hold=lambda _: False)
        (problem,) = found.problems
        assert (problem.kind, problem.first, problem.last) == ("expired", 1, gone.last)
        return problem.lost

    assert lost(gone.last_at_us, None)
    assert lost(0, kept.last_at_us)
    assert not lost(gone.last_at_us + 1, None)
    assert not lost(first_at_us, kept.last_at_us)
    assert lost(None, gone.last_at_us)
    assert lost(None, first_at_us)
    assert not lost(None, first_at_us + 1)


def test_damage_that_costs_no_change_is_no_loss_of_changes(tmp_path: Path) -> None:
    """A sealed file without its end mark is reported as damaged. All its changes are present, and nothing is lost."""
    many(tmp_path)
    *_, last = examine(tmp_path).sealed
    with Path(last.path).open("r+b") as file:
        file.truncate(Path(last.path).stat().st_size - 3)
    archive = examine(tmp_path)
    (problem,) = archive.problems
    assert (problem.kind, problem.first, problem.last, problem.lost) == ("damaged", 0, 0, False)
    assert "no change" in problem.text
    assert archive.lost == ()
    assert [one.last for one in archive.damaged] == [last.last]
    assert [one.lost for one in examine(tmp_path, "sessions").problems] == [True]  # what they did may have been there


def test_a_segment_of_another_life_is_told(tmp_path: Path) -> None:
    """A segment that bears the right name but does not follow the one before it in the chain is damage."""
    many(tmp_path / "a")
    write(tmp_path / "b", [[change(n, body=b"else") for n in range(at, at + 3)] for at in range(1, 60, 3)], SMALL)
    second = examine(tmp_path / "a").sealed[1]
    other = write(tmp_path / "c", [[change(n, body=b"other") for n in range(1, second.first)]])
    other.close()
    journal = Journal.open(tmp_path / "c", OsDisk(), ONE_SEGMENT, SYNC)
    list(journal.recover())
    journal.write(journal.encode([change(n) for n in range(second.first, second.last + 1)]))
    journal.close()
    shutil.copy(files(tmp_path / "c")[1], second.path)
    archive = examine(tmp_path / "a")
    assert [(one.kind, one.path, one.lost) for one in archive.problems] == [
        ("damaged", second.path, True),
        ("damaged", archive.sealed[2].path, True),
    ]


def test_names_that_contradict(tmp_path: Path) -> None:
    """A file with the name of others is damage. One that begins within the one before is left out, and reported."""
    many(tmp_path)
    first, second, *_ = examine(tmp_path).sealed
    shutil.copy(first.path, second.path)
    (problem,) = examine(tmp_path).problems
    assert (problem.kind, problem.path, problem.first, problem.last) == (
        "damaged",
        second.path,
        second.first,
        second.last,
    )
    Path(second.path).rename(tmp_path / "segments" / f"{second.first - 1:020}-{second.last:020}.avro")
    (problem,) = examine(tmp_path).problems
    assert (problem.first, problem.last, problem.lost) == (second.first, second.last, True)


def test_a_file_that_the_system_does_not_hand_out_is_unreadable(tmp_path: Path) -> None:
    """An error of the system is reported with the revisions in the name."""
    many(tmp_path)
    one = examine(tmp_path).sealed[1]
    Path(one.path).unlink()
    Path(one.path).mkdir()
    (problem,) = examine(tmp_path).problems
    assert (problem.kind, problem.path, problem.first, problem.last) == ("unreadable", one.path, one.first, one.last)
    opened = list_segments(tmp_path, "changes")[-1]
    Path(opened.path).unlink()
    Path(opened.path).mkdir()
    problem = examine(tmp_path).problems[-1]
    assert (problem.kind, problem.first, problem.lost) == ("unreadable", opened.first, True)
    assert f"from revision {opened.first} on" in problem.text


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    """A folder without a journal is an error. A journal without rejected SENDs has none."""
    with pytest.raises(JournalError):
        examine(tmp_path)
    write(tmp_path / "journal", [[change(1)]]).close()
    assert examine(tmp_path / "journal", "rejected").problems == ()


def test_a_segment_that_was_sealed_meanwhile_is_found(tmp_path: Path) -> None:
    """A listing from before the seal is good for reading after it: each segment is there once, and one that is being read stays."""
    journal = write(tmp_path, [[change(1)], [change(2)]])
    (segment,) = list_segments(tmp_path, "changes")
    assert segment.open
    checked = check_segment(tmp_path, "changes", segment)
    with SegmentReader(tmp_path, "changes", segment, end=checked.bytes) as before:
        journal.write(journal.encode([change(3)]))
        journal.close()
        assert [revisions(block) for block in before] == [[1], [2]]  # type: ignore[arg-type]
    with SegmentReader(tmp_path, "changes", segment, end=checked.bytes) as after:
        assert [revisions(block) for block in after] == [[1], [2]]  # type: ignore[arg-type]
        assert after.problems == []
    assert revisions(read(tmp_path, segment)[0]) == [1, 2, 3]
    found = find_segment(tmp_path, "changes", segment)
    assert found is not None
    assert (found.first, found.last) == (1, 3)
    os.link(found.path, segment.path)
    assert list_segments(tmp_path, "changes") == [found]


def test_an_open_segment_that_was_cut_since_is_told(tmp_path: Path) -> None:
    """Bytes that were found whole and are gone, as after a power cut, are damage and not an end."""
    journal = write(tmp_path, [[change(1)], [change(2)]])
    (segment,) = list_segments(tmp_path, "changes")
    checked = check_segment(tmp_path, "changes", segment)
    os.truncate(segment.path, checked.bytes - 10)
    with SegmentReader(tmp_path, "changes", segment, end=checked.bytes) as reader:
        assert [revisions(block) for block in reader] == [[1]]  # type: ignore[arg-type]
        assert [one.lost for one in reader.problems] == [True]
    del journal


def test_a_block_that_is_written_while_it_is_read_is_not_there_yet(tmp_path: Path) -> None:
    """A file is read as it was when it was opened, though more was written since. The block at its end is left for the next time."""
    for begin, end, block in OPEN.blocks:
        (tmp_path / "segments").mkdir(exist_ok=True)
        (tmp_path / "segments" / OPEN.name).write_bytes(OPEN.data)
        (segment,) = list_segments(tmp_path, "changes")
        place, stuck = walk(tmp_path, "changes", segment, None, len(OPEN.data), end - 5)
        assert place is not None
        assert (place.offset, stuck) == (begin, True)
        assert place.revision + 1 == next(iter(revisions(block)), place.revision + 1)


def test_an_open_segment_that_others_follow_is_told(tmp_path: Path) -> None:
    """The segment was never finished. Its records are read, and the revisions that are missing after it are reported."""
    journal = many(tmp_path)
    second = examine(tmp_path).sealed[1]
    data = Path(second.path).read_bytes()
    Path(second.path).unlink()
    path = tmp_path / "segments" / f"{second.first:020}.open.avro"
    path.write_bytes(data[: second.bytes])
    archive = examine(tmp_path)
    (problem,) = archive.problems
    assert (problem.kind, problem.path, problem.first) == ("damaged", str(path), 0)
    assert [one.first for one in archive.damaged] == [second.first]
    assert archive.open is not None
    assert archive.last == journal.head
    path.write_bytes(data[: second.bytes - 10])
    (problem,) = examine(tmp_path).problems
    assert problem.first <= problem.last == second.last
    assert problem.lost


def test_files_of_others_are_passed_over(tmp_path: Path) -> None:
    """Only names that the gateway gives are those of segments."""
    many(tmp_path)
    segments = list_segments(tmp_path, "changes")
    data = Path(segments[0].path).read_bytes()
    for name in ("1-9.avro", "2024-2025.avro", "5.open.avro", f"{1:020}-{9:020}.avro.crc", ".avro", "-.avro", "x.txt"):
        (tmp_path / "segments" / name).write_bytes(data)
    assert list_segments(tmp_path, "changes") == segments
    assert examine(tmp_path).problems == ()


def test_the_end_of_an_archive_is_missed(tmp_path: Path) -> None:
    """A snapshot shows how far the archive has been. Missing segments after it are reported."""
    many(tmp_path).close()
    *_, before, last = examine(tmp_path).sealed
    disk = OsDisk()
    write_snapshot(tmp_path, disk, last.last, [], SYNC, last.last_at_us)
    assert examine(tmp_path).problems == ()
    Path(last.path).unlink()
    (problem,) = examine(tmp_path).problems
    assert (problem.kind, problem.first, problem.last, problem.lost) == ("missing", last.first, last.last, True)
    assert examine(tmp_path, to_revision=before.last).problems == ()
    assert examine(tmp_path, "rejected").problems == ()
    for one in list_segments(tmp_path, "changes"):
        Path(one.path).unlink()
    (problem,) = examine(tmp_path).problems  # as retention may leave it
    assert (problem.kind, problem.first, problem.last, problem.lost) == ("expired", 1, last.last, False)


def clock_problems(folder: Path, blocks: list[list[Record]]) -> list[tuple[int, int]]:
    """Write a journal, and return the revisions of the reported problems of its clock, by proving and by reading."""
    write(folder, blocks).close()
    (segment,) = list_segments(folder, "changes")
    problems = examine(folder).problems
    assert tuple(read(folder, segment)[1]) == problems
    assert all(one.kind == "clock" and not one.lost for one in problems)
    return [(one.first, one.last) for one in problems]


def test_a_clock_that_stands_still_is_told(tmp_path: Path) -> None:
    """One time over three blocks with changes cannot come from a clock that runs; two can, and acknowledgements prove nothing."""
    stood: list[list[Record]] = [[change(n, at_us=NOW_US + max(n, min(7, n + 4)))] for n in range(1, 12)]
    assert clock_problems(tmp_path / "stood", stood) == [(3, 6)]
    two: list[list[Record]] = [[change(n, at_us=NOW_US + n // 2)] for n in range(1, 12)]
    assert clock_problems(tmp_path / "two", two) == []
    no_change: list[list[Record]] = [[ack(NOW_US)] for _ in range(9)]
    quiet: list[list[Record]] = [[change(1, at_us=NOW_US)], *no_change, [change(2, at_us=NOW_US + 9)]]
    assert clock_problems(tmp_path / "quiet", quiet) == []
    to_the_end: list[list[Record]] = [[change(n, at_us=NOW_US)] for n in range(1, 5)]
    assert clock_problems(tmp_path / "end", to_the_end) == [(1, 4)]


def test_a_clock_that_steps_back_between_files_is_told(tmp_path: Path) -> None:
    """A segment whose first time is before the last time of the segment before is reported, and read."""
    write(tmp_path / "late", [[change(1, at_us=NOW_US + 9)]]).close()
    write(tmp_path / "early", [[change(1, at_us=NOW_US + 1)]]).close()
    early = Journal.open(tmp_path / "early", OsDisk(), ONE_SEGMENT, SYNC)
    list(early.recover())
    early.write(early.encode([change(2, at_us=NOW_US + 2)]))
    early.close()
    shutil.copy(files(tmp_path / "early")[1], tmp_path / "late" / "segments")
    archive = examine(tmp_path / "late")
    assert [(one.kind, one.first, one.lost) for one in archive.problems] == [
        ("damaged", 0, True),  # the chain shows it too
        ("clock", 2, False),
    ]
    assert [one.first for one in archive.sealed] == [1, 2]

"""Room that is allocated ahead: every reader sees the same records as without the zeros."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from maxam.journal import tail
from maxam.journal.backup import back_up
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.listing import list_segments, size_of
from maxam.journal.proving import check_segment
from maxam.journal.reading import SegmentReader
from maxam.journal.survey import survey_segment
from maxam.journal.verify import verify
from maxam.records import Record, RejectedSend
from tests.support.journal_records import SYNC, change, plain_all

_AHEAD: Final = JournalSettings(reserve_bytes=0, ahead_bytes=8192)
_ZERO: Final = SYNC[:-2] + b"\0\0"  # a marker that an older release may have chosen


def _written(folder: Path, settings: JournalSettings, marker: bytes = SYNC, batches: int = 3) -> Path:
    """Write a journal and leave it as a killed process does; return its open segment."""
    journal = Journal.open(folder, OsDisk(), settings, marker)
    list(journal.recover())
    for n in range(batches):
        journal.write(journal.encode([change(2 * n + 1), change(2 * n + 2, body=bytes(n))]))
    journal.close(seal=False)
    (path,) = (folder / "segments").glob("*.open.avro")
    return path


@pytest.fixture(params=[1, 3])
def batches(request: pytest.FixtureRequest) -> int:
    """Return how many blocks are in the segment."""
    found = request.param
    assert isinstance(found, int)
    return found


@pytest.fixture
def pair(tmp_path: Path, batches: int) -> tuple[Path, Path]:
    """Return folders of equal journals, the second one with room that is allocated ahead."""
    for name, settings in (("a", replace(_AHEAD, ahead_bytes=0)), ("b", _AHEAD)):
        _written(tmp_path / name, settings, batches=batches)
    plain, ahead = (next((tmp_path / name / "segments").glob("*.open.avro")).read_bytes() for name in "ab")
    assert ahead.rstrip(b"\0") == plain
    assert len(ahead) % 4096 == 0
    assert len(ahead) >= len(plain) + 4096
    return tmp_path / "a", tmp_path / "b"


def _records(folder: Path) -> list[object]:
    journal = Journal.open(folder, OsDisk(), _AHEAD, SYNC)
    found: list[Record] = list(journal.recover())
    assert journal.torn_tails == []
    journal.close()
    return plain_all(found)


def test_a_start_finds_the_same(pair: tuple[Path, Path]) -> None:
    """And it seals the same file."""
    plain, ahead = pair
    assert _records(plain) == _records(ahead)
    sealed = [{path.name: path.read_bytes() for path in (one / "segments").iterdir()} for one in pair]
    assert sealed[0] == sealed[1]


def test_readers_beside_the_writer_find_the_same(pair: tuple[Path, Path]) -> None:
    """Blocks, problems, places, sizes and findings."""

    def read(folder: Path) -> list[object]:
        found: list[object] = []
        for segment in list_segments(folder, "changes"):
            with SegmentReader(folder, "changes", segment) as reader:
                found += [
                    [plain_all([one for one in block if not isinstance(one, RejectedSend)]) for block in reader],
                    reader.problems,
                    reader.place,
                ]
            checked = check_segment(folder, "changes", segment)
            found += [checked.last, checked.problems, size_of(segment)]
            survey = survey_segment(segment, OsDisk(), rejected=False)
            found += [[(run.offset, run.end, run.records) for run in survey.runs], survey.faults, survey.torn]
        end = tail.advance(folder, "changes", tail.oldest(folder, "changes"))
        found += [end, tail.newest(folder, "changes")]
        found += [(report.records, report.problem, report.torn) for report in verify(folder, OsDisk())]
        return found

    assert read(pair[0]) == read(pair[1])


def test_backups_are_equal(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The open segment is copied without zeros."""
    plain, ahead = (back_up(str(one), f"{tmp_path}/{one.name}-backup", "2026-11-23", OsDisk()) for one in pair)
    assert (plain.files, plain.bytes, plain.head) == (ahead.files, ahead.bytes, ahead.head)


def test_a_torn_write_before_the_zeros_is_kept_aside(tmp_path: Path) -> None:
    """Only what was written of it, at each length."""
    path = _written(tmp_path / "j", _AHEAD)
    whole = path.read_bytes()
    written = len(whole.rstrip(b"\0"))
    blocks = [at + len(SYNC) for at in range(written) if whole.startswith(SYNC, at)]
    for cut in range(blocks[-2] + 1, written, 7):
        path.write_bytes(whole[:cut].ljust(len(whole), b"\0"))
        journal = Journal.open(tmp_path / "j", OsDisk(), _AHEAD, SYNC)
        list(journal.recover())
        (torn,) = journal.torn_tails
        assert (torn.offset, torn.revision) == (blocks[-2], 4)
        assert Path(torn.kept).read_bytes() == whole[blocks[-2] : cut].rstrip(b"\0")
        assert path.stat().st_size == blocks[-2]
        journal.close(seal=False)


def test_a_marker_that_ends_in_zeros_gets_no_room_ahead(tmp_path: Path) -> None:
    """And a file of an older release with one loses nothing, though its size is that of one with such room."""

    def write(name: str, length: int) -> Path:
        journal = Journal.open(tmp_path / name, OsDisk(), _AHEAD, _ZERO)
        list(journal.recover())
        journal.write(journal.encode([change(1, body=bytes(length))]))
        journal.close(seal=False)
        return tmp_path / name / "segments" / f"{1:020}.open.avro"

    length = 1500
    length += 4096 - write("a", length).stat().st_size
    path = write("b", length)
    assert path.stat().st_size == 4096
    assert path.read_bytes().endswith(_ZERO)
    assert len(_records(tmp_path / "b")) == 1


def test_zeros_in_the_midst_are_damage(tmp_path: Path) -> None:
    """A whole block after zeros was committed, and so was what is missing before it."""
    path = _written(tmp_path / "j", _AHEAD)
    whole = path.read_bytes()
    blocks = [at + len(SYNC) for at in range(len(whole)) if whole.startswith(SYNC, at)]
    path.write_bytes(whole[: blocks[0]] + bytes(blocks[1] - blocks[0]) + whole[blocks[1] :])
    assert any(report.problem is not None and not report.torn for report in verify(tmp_path / "j", OsDisk()))

"""The newest change of each topic is what decoding every record and keeping the last one gives."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from maxam.bench.archive import write_archive
from maxam.errors import JournalDamagedError
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import KIND_VALUE
from maxam.journal.newest import NewestChanges, decode_records
from maxam.journal.scan import Scanner
from maxam.records import Change
from tests.support.journal_records import plain

RECORDS = 1000
FOREVER_US = 1 << 62
DAY_US = 86_400_000_000


def blocks(segment: Path) -> Iterator[tuple[bytes, int]]:
    """Yield the blocks of a sealed segment, the end mark apart."""
    with segment.open("rb") as file:
        scanner = Scanner(str(segment), segment.stat().st_size, lambda at, length: os.pread(file.fileno(), length, at))
        while (block := scanner.next_block()) is not None and not scanner.ended:
            yield block


@pytest.fixture(scope="module", name="segments")
def _segments(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write a journal of values, deletes and session records over some days, in several segments."""
    folder = tmp_path_factory.mktemp("newest")
    write_archive(folder, RECORDS, topics=40, days=3.0, segment_bytes_max=70_000)
    found = sorted((folder / "segments").iterdir())
    assert len(found) > 2
    return found


@pytest.fixture(scope="module", name="changes")
def _changes(segments: list[Path]) -> list[Change]:
    decoder = Decoder(0, 0)
    records = [record for segment in segments for block in blocks(segment) for record in decoder.decode(*block)]
    changes = [record for record in records if isinstance(record, Change)]
    assert len(records) > len(changes) == RECORDS
    assert any(change.deleted for change in changes)
    return changes


def walked(segments: list[Path], found: NewestChanges) -> list[Change]:
    """Return what a scan of these segments finds."""
    for segment in segments:
        for block in blocks(segment):
            found.add(*block)
    return decode_records(found.take()[3])


def everything(_: bytes) -> bool:
    """Want each topic."""
    return True


@pytest.mark.slow
def test_the_newest_of_each_topic_whatever_counts(segments: list[Path], changes: list[Change]) -> None:
    """Times, revisions, destinations and periods choose exactly their changes, deletes too, with all fields."""
    middle_us = changes[RECORDS // 2].accepted_at_us
    some = {change.destination for change in changes if b"EGMStatus" in change.destination}
    for since_us, until_us, first, last, period_us, wanted in (
        (0, FOREVER_US, 1, FOREVER_US, 0, None),
        (0, middle_us, 1, FOREVER_US, 0, everything),
        (0, middle_us + 1, 1, FOREVER_US, 0, everything),
        (middle_us, FOREVER_US, 1, FOREVER_US, 0, everything),
        (0, FOREVER_US, 500, 2000, 0, everything),
        (0, FOREVER_US, 1, FOREVER_US, DAY_US, everything),
        (0, FOREVER_US, 1, FOREVER_US, 0, some.__contains__),
        (0, 1, 1, FOREVER_US, 0, everything),
    ):
        expected: dict[tuple[bytes, int], Change] = {}
        for change in changes:
            if (
                since_us <= change.accepted_at_us < until_us
                and first <= change.revision <= last
                and (wanted is None or wanted(change.destination))
            ):
                period = change.accepted_at_us // period_us if period_us else 0
                expected[change.destination, period] = change
        found = walked(segments, NewestChanges(since_us, until_us, first, last, period_us, wanted))
        newest = sorted(expected.values(), key=lambda change: change.revision)
        assert [plain(change) for change in found] == [plain(change) for change in newest]


@pytest.mark.slow
def test_what_is_found_names_itself_and_is_forgotten_then(segments: list[Path], changes: list[Change]) -> None:
    """Each row has destination, period and revision of its record. Rows that are taken are not kept, and kept bytes are counted."""
    newest = NewestChanges(0, FOREVER_US, 1, FOREVER_US, DAY_US, everything)
    for block in blocks(segments[0]):
        newest.add(*block)
    length = newest.length
    rows = list(zip(*newest.take(), strict=True))
    assert length >= sum(len(destination) + len(record) for destination, _, _, record in rows)
    by_revision = {change.revision: change for change in changes}
    for destination, period, revision, record in rows:
        change = by_revision[revision]
        assert (change.destination, change.accepted_at_us // DAY_US) == (destination, period)
        assert [plain(one) for one in decode_records([record])] == [plain(change)]
    assert newest.take() == ([], [], [], [])
    assert newest.length == 0


@pytest.mark.slow
def test_what_the_journal_does_not_write_is_no_change(segments: list[Path]) -> None:
    """A gap between revisions, a record that is cut, garbage after it, or another kind in its place is an error."""
    data, count = next(blocks(segments[0]))
    kind = data.index(bytes((KIND_VALUE,)), 8)
    for broken, number, behind in (
        (data, count, 7),
        (data[:-20], count, 0),
        (data + b"\0", count, 0),
        (data[:kind] + b"\x06" + data[kind + 1 :], count, 0),
    ):
        newest = NewestChanges(0, FOREVER_US, 1, FOREVER_US, 0, everything)
        newest.revision = behind
        with pytest.raises((ValueError, IndexError)) as caught:
            newest.add(broken, number)
        assert not isinstance(caught.value, JournalDamagedError)

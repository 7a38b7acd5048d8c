"""The journal of rejected SENDs has a number for each over all crashes, a limit, and the form of any Avro reader."""

import errno
import io
import random
from contextlib import suppress
from functools import partial
from typing import Any

import fastavro
import pytest

from maxam.journal.decoding import decode_rejected
from maxam.journal.encoding import START, Position, encode_rejected
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import list_segments
from maxam.journal.rejects import RejectedJournal, RejectedSettings
from maxam.journal.scan import HEADER_BYTES, Scanner
from maxam.journal.verify import FileReport, verify
from maxam.records import UNJUDGED, RejectedSend, Rejection
from tests.simulation.disk import PowerCut, SimulatedDisk
from tests.support.journal_records import BOB, MISMATCH, NOW_US, SYNC, plain, rejected

ROOT = "/journal"
FOLDER = f"{ROOT}/rejected"
SMALL = RejectedSettings(segment_bytes_max=4000, bytes_max=2**30)
DAY_US = 86_400_000_000


def several(disk: SimulatedDisk, batches: list[int], settings: RejectedSettings = SMALL) -> RejectedJournal:
    """Open the journal and append batches of these sizes."""
    journal = RejectedJournal.open(ROOT, disk, settings, SYNC)
    for size in batches:
        journal.append([rejected(journal.head + n) for n in range(1, size + 1)])
    return journal


def stored(disk: SimulatedDisk) -> list[RejectedSend]:
    """Read everything that is there, as its names order it; each file must be whole and follow the one before."""
    sealed, opened = list_segments(FOLDER, disk)
    found: list[RejectedSend] = []
    for segment in [*sealed, *opened]:
        scanner = Scanner(segment.path, disk.size(segment.path), partial(disk.read, segment.path))
        revision = scanner.start.revision
        assert revision == segment.first - 1
        if found:
            assert revision == found[-1].revision
        while (block := scanner.next_block()) is not None and not scanner.ended:
            found += decode_rejected(*block, revision)
            revision = found[-1].revision
        assert scanner.ended == bool(segment.last)
        assert segment.last in {0, revision}
    return found


def rejected_reports(disk: SimulatedDisk) -> list[FileReport]:
    """Return the findings of `verify` for the folder."""
    return [report for report in verify(ROOT, disk) if report.path.startswith(FOLDER)]


def avro_rows(data: bytes) -> list[dict[str, Any]]:
    """Read a container file with a reader that knows nothing of maxam."""
    return [row for row in fastavro.reader(io.BytesIO(data)) if isinstance(row, dict)]


@pytest.fixture
def disk() -> SimulatedDisk:
    """A disk with a journal's folder."""
    disk = SimulatedDisk()
    Journal.open(ROOT, disk, JournalSettings(reserve_bytes=0), SYNC)
    return disk


def test_any_avro_reader_reads_it(disk: SimulatedDisk) -> None:
    """Fastavro finds every field of rejected SENDs in an open and in a sealed segment; the numbers are the folder's own."""
    journal = several(disk, [])
    unauthorised = RejectedSend(
        2,
        NOW_US + 5000,
        b"X/secret",
        False,
        BOB,
        UNJUDGED,
        ((b"content-length", b"7"), (b"body-sha256", b"ab" * 32)),
        b"",
        "rejected-unauthorised",
        Rejection("unauthorised", "no right"),
    )
    journal.append([rejected(1), unauthorised, rejected(3, b"", NOW_US + 5000)])
    opened = disk.contents()[f"{FOLDER}/{1:020}.open.avro"]
    journal.close()
    sealed = disk.contents()[f"{FOLDER}/{1:020}-{3:020}.avro"]
    rows = avro_rows(opened)
    *same, end = avro_rows(sealed)
    assert end["kind"] == "end"
    assert same == rows
    assert [(row["revision"], row["kind"], row["result"]) for row in rows] == [
        (1, "value", "schema-mismatch"),
        (2, "value", "unauthorised"),
        (3, "delete", "schema-mismatch"),
    ]
    one, two, _ = rows
    assert one["destination"] == "X/EGM.Q.1.EGMStätus"
    assert (one["publisher"], one["fingerprint"]) == ("alice", "a1" * 32)
    assert (one["encoding"], one["schema"], one["schema_version"]) == ("datum", "egm.EGMStatus_v1", "")
    assert one["headers"] == [{"name": "schema-version", "value": "1.0"}]
    assert one["body"] == b"no such body"
    assert (one["disposition"], one["reason"]) == ("rejected-invalid", MISMATCH.reason)
    assert two["disposition"] == "rejected-unauthorised"
    assert two["body"] == b""
    assert two["headers"][1] == {"name": "body-sha256", "value": "ab" * 32}


def test_what_is_appended_comes_back(disk: SimulatedDisk) -> None:
    """Over several segments and starts, every record comes back, numbered without a gap; a segment grows over its size by one block at most."""
    for _ in range(3):
        several(disk, [1, 7, 3, 12, 2]).close()
    assert [plain(send) for send in stored(disk)] == [plain(rejected(n)) for n in range(1, 76)]
    sealed, opened = list_segments(FOLDER, disk)
    assert len(sealed) > 3
    assert not opened
    assert all(len(disk.contents()[segment.path]) < 7000 for segment in sealed)
    assert all(report.problem is None for report in rejected_reports(disk))
    assert sum(report.records for report in rejected_reports(disk)) == 75


def test_a_killed_process_loses_nothing(disk: SimulatedDisk) -> None:
    """The next start finds all appended records, and continues in the same segment with the next number."""
    several(disk, [2, 3])
    disk = disk.killed()
    journal = several(disk, [4])
    assert journal.head == 9
    assert not journal.cut
    assert [send.revision for send in stored(disk)] == list(range(1, 10))


def test_a_power_cut_leaves_a_prefix_and_the_counter_goes_on(disk: SimulatedDisk) -> None:
    """After any power cut, the next start keeps whole blocks, cuts the rest off and gives its numbers again. `tidy` limits the loss."""
    for seed in range(60):
        choose = random.Random(seed).randrange  # noqa: S311 - a seed that repeats
        disk = SimulatedDisk()
        Journal.open(ROOT, disk, JournalSettings(reserve_bytes=0), SYNC)
        journal = several(disk, [3, 20])
        journal.tidy(NOW_US)
        for _ in range(3):
            journal.append([rejected(journal.head + 1), rejected(journal.head + 2)])
        disk = disk.restarted(choose)
        journal = several(disk, [])
        assert 23 <= journal.head <= 29
        assert journal.head % 2
        journal.append([rejected(journal.head + 1)])
        journal.close()
        assert [send.revision for send in stored(disk)] == list(range(1, journal.head + 1))
        assert all(report.problem is None for report in rejected_reports(disk))


@pytest.mark.slow
def test_whatever_fails_the_next_start_goes_on(disk: SimulatedDisk) -> None:
    """For a power cut, EIO and a full disk at any call: what is there afterwards is whole, in order, and goes on."""
    several(disk, [5]).close()
    calls = disk.calls

    def live(disk: SimulatedDisk) -> None:
        journal = several(disk, [3, 20, 9])
        journal.tidy(NOW_US + DAY_US)
        journal.append([rejected(journal.head + 1)])
        journal.close()

    live(disk)
    for fault in (0, errno.EIO, errno.ENOSPC):
        for at in range(calls + 1, disk.calls + 1):
            broken = SimulatedDisk()
            Journal.open(ROOT, broken, JournalSettings(reserve_bytes=0), SYNC)
            several(broken, [5]).close()
            broken.faults[at] = fault
            with suppress(PowerCut, OSError):  # a failed close does not matter
                live(broken)
            choose = random.Random(at).randrange  # noqa: S311 - a seed that repeats
            after = broken.restarted(choose) if fault == 0 else broken.killed()
            live(after)
            revisions = [send.revision for send in stored(after)]
            assert revisions == list(range(1, len(revisions) + 1))
            assert len(revisions) >= 5 + 33
            assert all(report.problem is None for report in rejected_reports(after)), (fault, at)


def test_an_open_segment_without_a_header_is_replaced(disk: SimulatedDisk) -> None:
    """A header that was not written to its end is removed. A damaged one is set aside, and so is a second open segment."""
    several(disk, [5]).close()
    path = f"{FOLDER}/{6:020}.open.avro"
    disk.put(path, b"Obj\1")
    journal = several(disk, [1])
    assert journal.cut == [(path, 0, 4)]
    journal.abandon()
    data = disk.contents()[path]
    disk.put(path, data[:9] + b"?" + data[10:])
    journal = several(disk, [1])
    assert journal.cut == [(path, 0, len(data))]
    assert f"{path}.damaged" in disk.contents()
    journal.abandon()
    disk.put(f"{FOLDER}/{3:020}.open.avro", data)
    journal = several(disk, [1])
    assert journal.cut == [(f"{FOLDER}/{3:020}.open.avro", 0, len(data))]
    assert journal.head == 7


def test_a_killed_seal_is_completed(disk: SimulatedDisk) -> None:
    """A segment with its end mark and still its old name gets its final one, and the counter continues after it."""
    several(disk, [5]).close()
    sealed, opened = f"{FOLDER}/{1:020}-{5:020}.avro", f"{FOLDER}/{1:020}.open.avro"
    disk.rename(sealed, opened)
    journal = several(disk, [])
    assert journal.head == 5
    assert sealed in disk.contents()
    assert opened not in disk.contents()


def test_damage_within_the_open_segment_costs_what_is_behind_it(disk: SimulatedDisk) -> None:
    """Nothing after an invalid block is believed. It is moved aside, and its numbers are given again."""
    several(disk, [2, 2, 2])
    path = f"{FOLDER}/{1:020}.open.avro"
    data = bytearray(disk.contents()[path])
    second = data.find(SYNC, HEADER_BYTES) + len(SYNC)
    data[second + 30] ^= 1
    disk.put(path, bytes(data))
    assert [report.torn for report in rejected_reports(disk)] == [False]
    journal = several(disk, [1])
    assert journal.cut == [(path, second, len(data) - second)]
    assert disk.contents()[f"{path}.torn-{second}"] == bytes(data[second:])
    assert [send.revision for send in stored(disk)] == [1, 2, 3]


def test_a_whole_block_that_does_not_follow_is_cut_off(disk: SimulatedDisk) -> None:
    """The next record then follows the block before it."""
    journal = several(disk, [3])
    (opened,) = list_segments(FOLDER, disk)[1]
    data = disk.contents()[opened.path]
    chain = int.from_bytes(data[-24:-20], "big")
    disk.put(opened.path, data + encode_rejected([rejected(8)], Position(7, NOW_US, chain), SYNC).data)
    journal = several(disk, [2])
    assert journal.cut
    assert [send.revision for send in stored(disk)] == [1, 2, 3, 4, 5]


def test_the_oldest_go_when_there_are_too_many(disk: SimulatedDisk) -> None:
    """The folder stays below its bytes by the removal of the oldest files, and what is left has no gap."""
    settings = RejectedSettings(segment_bytes_max=4000, bytes_max=20_000)
    journal = several(disk, [3] * 100, settings)
    used = sum(len(data) for path, data in disk.contents().items() if path.startswith(FOLDER))
    assert 12_000 < used <= 20_000
    revisions = [send.revision for send in stored(disk)]
    assert revisions == list(range(revisions[0], 301))
    assert revisions[0] > 100
    disk.put(f"{FOLDER}/{1:020}.open.avro.torn-9", b"old")
    journal.append([rejected(301, b"x" * 3000)])
    journal.append([rejected(302, b"x" * 3000)])
    assert f"{FOLDER}/{1:020}.open.avro.torn-9" not in disk.contents()
    assert all(report.problem is None for report in rejected_reports(disk))


def test_old_segments_go_by_their_last_record(disk: SimulatedDisk) -> None:
    """A segment goes when its last record is too old, with or without a next one. Younger ones stay."""
    settings = RejectedSettings(days_max=10)
    journal = RejectedJournal.open(ROOT, disk, settings, SYNC)
    for day in (0, 8, 16):
        journal.append([rejected(journal.head + 1, at_us=NOW_US + day * DAY_US)])
        journal.tidy(NOW_US + day * DAY_US)
    assert [segment.first for segment in list_segments(FOLDER, disk)[0]] == [2]  # the first went on day 16
    journal.tidy(NOW_US + 19 * DAY_US)
    assert [segment.first for segment in list_segments(FOLDER, disk)[0]] == [3]  # the second went, the third was sealed
    journal.tidy(NOW_US + 27 * DAY_US)
    assert stored(disk) == []
    journal.append([rejected(4, at_us=NOW_US + 27 * DAY_US)])
    assert journal.head == 4


def test_the_counter_goes_on_when_everything_was_removed(disk: SimulatedDisk) -> None:
    """Numbers are not given twice, though nothing is left of those that had them, whatever the process dies of meanwhile."""
    settings = RejectedSettings(days_max=10)
    several(disk, [5], settings).close()
    for _ in range(2):
        journal = several(disk, [], settings)
        journal.tidy(NOW_US + 20 * DAY_US)
        assert stored(disk) == []
        assert several(disk.killed(), [], settings).head == 5
        disk = disk.killed()
    journal = several(disk, [], settings)
    assert journal.accepted_at_us == NOW_US + 5000
    journal.append([rejected(6)])
    journal.close()
    assert [send.revision for send in stored(disk)] == [6]
    assert all(report.problem is None for report in rejected_reports(disk))


def test_the_counter_outlives_a_power_cut_while_everything_is_removed(disk: SimulatedDisk) -> None:
    """At whatever call the power goes, and whatever of the calls before it is on the disk."""
    settings = RejectedSettings(days_max=10)
    for at in range(1, 20):
        disk = SimulatedDisk()
        Journal.open(ROOT, disk, JournalSettings(reserve_bytes=0), SYNC)
        several(disk, [5], settings).close()
        disk.faults[disk.calls + at] = 0
        with suppress(PowerCut):
            several(disk, [], settings).tidy(NOW_US + 20 * DAY_US)
        for seed in range(20):
            left = disk.restarted(random.Random(seed).randrange)  # noqa: S311 - a seed that repeats
            assert several(left, [], settings).head == 5


def test_an_idle_segment_is_sealed_at_its_age(disk: SimulatedDisk) -> None:
    """`tidy` seals what is old enough; it does not seal a segment without records."""
    journal = several(disk, [2])
    journal.tidy(NOW_US + 1000 + 3_599_000_000)
    assert len(list_segments(FOLDER, disk)[0]) == 0
    journal.tidy(NOW_US + 1000 + 3_600_000_000)
    assert [segment.last for segment in list_segments(FOLDER, disk)[0]] == [2]
    journal.tidy(NOW_US + DAY_US)
    assert journal.head == 2


def test_time_never_runs_backwards_over_starts(disk: SimulatedDisk) -> None:
    """The time of the last record is known after a start, from the end mark alone, and from an open segment."""
    several(disk, [5]).close()
    assert several(disk, []).accepted_at_us == NOW_US + 5000
    several(disk, [2])
    assert several(disk.killed(), []).accepted_at_us == NOW_US + 7000
    with pytest.raises(ValueError, match="after"):
        encode_rejected([rejected(1), rejected(2, at_us=NOW_US)], START, SYNC)


def test_verify_names_what_is_wrong(disk: SimulatedDisk) -> None:
    """A missing segment, a damaged one and an unfinished write are distinguished; a flipped bit is never missed."""
    several(disk, [9, 9, 9, 9])
    sealed, (opened,) = list_segments(FOLDER, disk)
    assert len(sealed) == 3
    data = disk.contents()[opened.path]
    disk.put(opened.path, data[:-5])
    middle = disk.contents()[sealed[1].path]
    disk.unlink(sealed[1].path)
    one, three, last = rejected_reports(disk)
    assert one.problem is None
    assert three.problem == "revisions 10 to 18 are missing before it"
    assert last.torn
    for place in range(0, len(middle), 7):
        disk.put(sealed[1].path, middle[:place] + bytes((middle[place] ^ 4,)) + middle[place + 1 :])
        assert rejected_reports(disk)[1].problem is not None


def test_a_rejected_record_is_checked_when_it_is_read() -> None:
    """A block of other records, another number or bytes after the last record is a ValueError."""
    data = encode_rejected([rejected(1)], START, SYNC).data
    scanner_data = data[3 : -len(SYNC)]  # count and a size of two bytes
    assert [plain(send) for send in decode_rejected(scanner_data, 1, 0)] == [plain(rejected(1))]
    for wrong, count, revision in ((scanner_data, 1, 1), (scanner_data + b"\0", 1, 0), (scanner_data, 2, 0)):
        with pytest.raises((ValueError, IndexError)):
            decode_rejected(wrong, count, revision)

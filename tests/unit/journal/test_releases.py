"""A journal that any released version wrote opens, and every tool reads it. The fixtures hold journals of those versions."""

import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maxam.broker.broker import Broker
from maxam.broker.summary import summed_up
from maxam.config import Limits
from maxam.content import pack, text
from maxam.errors import JournalDamagedError, JournalError
from maxam.gateway.snapshot import build_snapshot
from maxam.journal.archive import examine
from maxam.journal.backup import back_up, restore
from maxam.journal.disk import OsDisk
from maxam.journal.dump import as_row, read_records
from maxam.journal.encoding import FIRST_SCHEMA, SCHEMA, SEQUENCES_SCHEMA, START, Encoder, Position, header
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.listing import Problem
from maxam.journal.names import list_segments, list_snapshots
from maxam.journal.repair import Repair
from maxam.journal.replay import Replay
from maxam.journal.scan import OTHER_VERSION, Scanner
from maxam.journal.splice import Rows, Splicer
from maxam.journal.verify import verify
from maxam.journal.whole import open_scanner
from maxam.records import Change, SequencesRecord, WillRecord
from tests.faults import corruption
from tests.support.journal_records import ALICE, NOW_US, SYNC, change

FIXTURES = Path(__file__).parents[1] / "fixtures"
DISK = OsDisk()
FIRST, SECOND = "1" * 16, "2" * 16
SEQUENCES = {
    b"X/note.1": {b"loader": 1},
    b"X/two": {b"loader": 1, b"repair": 9},
    b"X/many": {b"b": 11, b"c": 12, b"d": 13, b"e": 14},
    b"X/gone": {b"first one": 4},
    b"X/owed": {b"loader": 5},
    b"X/again": {b"loader": 2},
    b"X/late": {b"loader": 7},
}
BODIES = {b"X/two": b"four", b"X/many": b"m4", b"X/again": b"back", b"X/note.2": b"\x06bye", b"X/late": b"late"}


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that makes the journal of a release in a folder."""

    def make(release: str) -> str:
        # Debian 12's Python lacks the filters of tarfile.
        subprocess.run(["tar", "-xzf", FIXTURES / f"journal_{release}.tar.gz", "-C", tmp_path], check=True)
        return str(tmp_path)

    return make


def with_schema(head: bytes, schema: bytes) -> bytes:
    """Return the header of a file as a release with another schema writes it."""
    head = head.replace(text(SCHEMA), text(schema))
    at = head.index(b"maxam.check") + 12
    check = zlib.crc32(head[at + 8 :], zlib.crc32(head[:at]))
    return head[:at] + b"%08x" % check + head[at + 8 :]


def started(root: str, incarnation: str = FIRST) -> Broker:
    """Start as a gateway does, and stop again; return the broker."""
    journal = Journal.open(root, DISK, JournalSettings(reserve_bytes=0), SYNC, incarnation)
    broker: Broker = summed_up(journal.recover(), Limits())
    assert journal.torn_tails == []
    assert journal.damaged_snapshots == []
    journal.close()
    return broker


def state(broker: Broker) -> tuple[Any, ...]:
    """Return the topics, what they keep of their sources, and what the subscription owes."""
    now_us = broker.accepted_at_us
    sources = {source for numbers in SEQUENCES.values() for source in numbers} | {b"a"}
    kept = {
        topic: {s: n for s in sorted(sources) if (n := broker.sequences.number(topic, s, now_us)) >= 0}
        for topic in SEQUENCES
    }
    values = {topic.destination: topic.change.body for topic in corruption.live(broker)}
    subscription = broker.sessions["anna", "pump"].subscriptions[b"s1"]
    headers = {topic.destination: topic.change.headers for topic in corruption.live(broker)}
    return kept, values, headers, sorted(topic.destination for topic in subscription.owed), set(broker.sessions)


def test_the_journal_of_9d2f756_opens_as_it_was(unpack: Callable[[str], str], tmp_path: Path) -> None:
    """It holds values, deletes, rejected SENDs and a durable subscription, in sealed segments, an open one and a snapshot."""
    root = unpack("9d2f756")
    assert [one for one in verify(root, DISK) if one.problem is not None] == []
    for incarnation in (FIRST, SECOND):
        broker = started(root, incarnation)
        assert broker.committed_revision == 30
        assert {topic.destination: topic.change.body for topic in corruption.live(broker)} == {
            b"X/demo.0": b"\xe0\x04",
            b"X/demo.1": b"\xe2\x04",
            b"X/demo.2": b"\xe4\x04",
            b"X/raw.1": b"\x00\x01raw",
        }
        assert broker.sessions["alice", "pump"].subscriptions[b"s"].glob.text == "X/**"
    back_up(root, f"{tmp_path}/backups", "1", DISK)
    assert restore(f"{tmp_path}/backups/1", f"{tmp_path}/restored", DISK).head == 30


def test_the_journal_of_0_2_0_opens_as_it_was(unpack: Callable[[str], str]) -> None:
    """A start from its snapshot, from all its segments, and from a snapshot of today give the same broker."""
    root = unpack("a52722b")
    found = state(started(root))
    kept, values, headers, owed, sessions = found
    assert kept == SEQUENCES
    assert values == BODIES
    assert headers[b"X/two"] == ((b"source", b"repair"), (b"source-revision", b"9"))
    assert headers[b"X/again"] == ()
    assert owed == sorted([b"X/two", b"X/owed", b"X/again", b"X/note.1", b"X/note.2", b"X/late"])
    assert sessions == {("anna", "pump")}
    path = build_snapshot(root, DISK, Limits())
    assert path is not None
    assert Path(path).read_bytes().count(SCHEMA) == 1
    assert b"kept-source" not in Path(path).read_bytes()
    assert state(started(root)) == found
    assert [one for one in verify(root, DISK) if one.problem is not None] == []
    for _, snapshot in list_snapshots(f"{root}/snapshots", DISK):
        Path(snapshot).unlink()
    assert state(started(root)) == found


def test_every_reader_takes_the_journal_of_0_2_0(unpack: Callable[[str], str], tmp_path: Path) -> None:
    """verify, dump, backup, the pipeline's proof and its rows: no header has the sources of other changes."""
    root = unpack("a52722b")
    assert [one for one in verify(root, DISK) if one.problem is not None] == []
    records = [one for one in read_records(root) if not isinstance(one, Problem)]
    rows = [as_row(*one) for one in records]
    assert [row["revision"] for row in rows if row["kind"] in {"value", "delete"}] == list(range(1, 25))
    assert len([one for one in read_records(root, rejected=True) if not isinstance(one, Problem)]) == 2
    archive = examine(root)
    assert (archive.first, archive.last, archive.problems) == (1, 24, ())
    assert len(archive.sealed) == 2
    names = {name for _, one in records if isinstance(one, Change) for name, _ in one.headers}
    assert names == {b"source", b"source-revision", b"color"}
    spliced = Rows(typed=False)
    for segment in list_segments(f"{root}/segments", DISK)[0]:
        scanner = open_scanner(segment.path, DISK)
        splicer = Splicer(segment.first - 1, 0, 2**62, lambda *_: spliced, lambda _: spliced)
        while (block := scanner.next_block()) is not None and not scanner.ended:
            splicer.splice(*block)
    assert spliced.count() == 22
    back_up(root, f"{tmp_path}/backups", "1", DISK)
    restored = f"{tmp_path}/restored"
    assert restore(f"{tmp_path}/backups/1", restored, DISK).head == 24
    assert state(started(restored)) == state(started(root))


def test_a_repair_takes_sources_from_a_snapshot_of_0_2_0(unpack: Callable[[str], str]) -> None:
    """The snapshot that it writes after a lost segment has those of the one before."""
    root = unpack("a52722b")
    lost = Path(list_segments(f"{root}/segments", DISK)[0][-1].path)
    data = bytearray(lost.read_bytes())
    data[-200] ^= 1
    lost.write_bytes(data)
    repair = Repair.open(root, DISK)
    assert repair.plan.gaps
    repair.apply(lambda records: summed_up(records, Limits()).snapshot(), "20261122T155540.588326Z", SYNC)
    broker = started(root)
    now_us = broker.accepted_at_us
    assert broker.sequences.number(b"X/many", b"c", now_us) == 12
    assert broker.sequences.number(b"X/owed", b"loader", now_us) == 5


def test_a_snapshot_of_a_later_version_is_left_alone(unpack: Callable[[str], str]) -> None:
    """A start goes on from the snapshot before it; without that one it is refused, and a repair is in any case."""
    root = unpack("a52722b")
    later = Path(f"{root}/snapshots/{22:020}.avro")
    head = header(Position(22, 5, 0), SYNC, snapshot=True)
    later.write_bytes(with_schema(head, SCHEMA.replace(b'"will_end"]', b'"will_end","later"]')))
    journal = Journal.open(root, DISK, JournalSettings(reserve_bytes=0), SYNC, FIRST)
    assert sum(isinstance(one, Change) for one in journal.recover()) == 5 + 3 + 2
    assert [OTHER_VERSION in str(error) and "repair" not in str(error) for error in journal.damaged_snapshots] == [True]
    journal.close()
    with pytest.raises(JournalError, match=OTHER_VERSION):
        Repair.open(root, DISK)
    Path(f"{root}/snapshots/{19:020}.avro").unlink()
    Path(list_segments(f"{root}/segments", DISK)[0][0].path).unlink()
    journal = Journal.open(root, DISK, JournalSettings(reserve_bytes=0), SYNC, FIRST)
    with pytest.raises(JournalDamagedError, match=OTHER_VERSION):
        list(journal.recover())
    journal.close()


def test_a_segment_has_no_record_of_sources() -> None:
    """It is refused in a segment, and so is the schema of a snapshot before wills. A snapshot with it is read."""
    record = SequencesRecord(1, 5, b"X/a", ((b"p", 7),))
    with pytest.raises(ValueError, match="sequences"):
        Encoder(START, SYNC).encode([record])
    for schema in (SEQUENCES_SCHEMA, SCHEMA):
        head = with_schema(header(START, SYNC, snapshot=True), schema)
        whole = head + Encoder(START, SYNC, gapless=False).encode([record]).data
        assert Scanner("x", len(whole), lambda offset, length: whole[offset : offset + length]).snapshot  # noqa: B023
    changed = with_schema(header(START, SYNC, snapshot=False), SEQUENCES_SCHEMA)
    with pytest.raises(JournalDamagedError):
        Scanner("x", len(changed), lambda offset, length: changed[offset : offset + length])


def test_the_journal_with_wills_opens_as_it_was(unpack: Callable[[str], str], tmp_path: Path) -> None:
    """It holds wills that were set, replaced, cancelled and fired, in a segment, a snapshot and an open segment."""
    root = unpack("wills")

    def wills(folder: str) -> dict[str, tuple[bytes, int]]:
        found = started(folder).last_wills.wills.snapshot()
        return {one.client_id: (one.body, one.delay_s) for one in found}

    expected = {"replaced": (b"new", 5), "late": (b"late", 3600)}
    assert wills(root) == expected
    for _, snapshot in list_snapshots(f"{root}/snapshots", DISK):
        Path(snapshot).unlink()
    assert wills(root) == expected
    assert [one for one in verify(root, DISK) if one.problem is not None] == []
    rows = [as_row(*one) for one in read_records(root) if not isinstance(one, Problem)]
    kinds = [row["kind"] for row in rows]
    assert (kinds.count("will"), kinds.count("will_end"), kinds.count("value")) == (6, 3, 5)
    assert {row["destination"] for row in rows if row["kind"] == "will"} == {
        f"X/pump.{name}" for name in ("fired", "left", "kept", "replaced", "late")
    }
    back_up(root, f"{tmp_path}/backups", "1", DISK)
    restored = f"{tmp_path}/restored"
    restore(f"{tmp_path}/backups/1", restored, DISK)
    assert wills(restored) == expected


@pytest.mark.parametrize("changes", [0, 1])
def test_an_open_segment_of_a_release_before_wills_gets_no_record_of_one(tmp_path: Path, changes: int) -> None:
    """It is sealed before the first block, or, without a change, written again with the schema of today."""
    journal = Journal.open(str(tmp_path), DISK, JournalSettings(reserve_bytes=0), SYNC, FIRST)
    assert list(journal.recover()) == []
    blocks = [journal.encode([change(number)]) for number in range(1, 1 + changes)]
    for block in blocks:
        journal.write(block)
    (segment,) = list_segments(f"{tmp_path}/segments", DISK)[1]
    written = Path(segment.path).read_bytes()
    Path(segment.path).write_bytes(
        with_schema(header(START, SYNC, snapshot=False, incarnation=FIRST), FIRST_SCHEMA)
        + b"".join([block.data for block in blocks])
    )
    assert len(Path(segment.path).read_bytes()) < len(written)
    DISK.close(journal._lock)  # killed
    journal = Journal.open(str(tmp_path), DISK, JournalSettings(reserve_bytes=0), SYNC, FIRST)
    assert len(list(journal.recover())) == changes
    journal.write(journal.encode([WillRecord(NOW_US + 9000, "pump", ALICE, b"X/a", *pack((), b"bye"), 5)]))
    sealed, opened = list_segments(f"{tmp_path}/segments", DISK)
    assert (len(sealed), len(opened)) == (changes, 1)
    assert not open_scanner(opened[0].path, DISK).outdated
    assert all(open_scanner(one.path, DISK).outdated for one in sealed)
    journal.close()
    records = [one for one in read_records(str(tmp_path)) if not isinstance(one, Problem)]
    assert [as_row(*one)["kind"] for one in records] == ["value"] * changes + ["will"]
    assert isinstance(summed_up(Replay(str(tmp_path), DISK).records(), Limits()), Broker)

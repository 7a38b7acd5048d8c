"""Records are read as they were written: for any records, any truncation and any flipped bit."""

import functools
import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.content import pack
from maxam.errors import JournalDamagedError
from maxam.journal.decoding import Decoder, decode_rejected
from maxam.journal.encoding import START, Encoder, encode_rejected, header
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import sealed_segments
from maxam.journal.rejects import RejectedJournal, RejectedSettings
from maxam.journal.scan import Scanner
from maxam.journal.snapshots import write_snapshot
from maxam.journal.verify import verify
from maxam.records import (
    AcknowledgementRecord,
    Change,
    Identity,
    OwedRecord,
    Record,
    RejectedSend,
    Rejection,
    SessionEndRecord,
    SubscriptionRecord,
    UnsubscriptionRecord,
    Validation,
    WillEndRecord,
    WillRecord,
)
from tests.simulation.disk import SimulatedDisk
from tests.support.journal_records import NOW_US, SYNC, change, one_of_each, plain, plain_all

ROOT = "/journal"
ROOMY = JournalSettings(reserve_bytes=0)

names = st.text(max_size=80)
wire = names.map(str.encode)
identities = st.builds(Identity, names, st.one_of(names, st.sampled_from(["a" * 64, "b" * 64])))
validations = st.builds(
    Validation,
    st.sampled_from(["datum", "single-object", "envelope", "none"]),
    names,
    names,
    st.binary(max_size=32),
    st.sampled_from([0, 0, 2, 10, 63, 64, 5000]),
    st.just(-1),
)
validations_within = st.builds(
    Validation, st.just("envelope"), names, names, st.binary(max_size=32), st.just(1), st.just(3)
)
positions = st.lists(st.tuples(wire, st.integers(0, 2**40))).map(tuple)
changes = st.one_of(
    st.tuples(
        wire,
        st.just(False),
        identities,
        st.one_of(validations, validations_within),
        st.lists(st.tuples(wire, wire), max_size=3).map(tuple),
        st.one_of(st.binary(min_size=5, max_size=200), st.binary(min_size=5, max_size=5).map(lambda body: body * 2000)),
    ),
    st.tuples(
        wire,
        st.just(True),
        identities,
        validations.filter(lambda j: j.encoding == "none"),
        st.lists(st.tuples(wire, wire), max_size=3).map(tuple),
        st.just(b""),
    ),
)
sessions = st.one_of(
    st.builds(
        SubscriptionRecord, st.just(0), names, names, wire, wire, st.booleans(), st.none() | st.integers(0, 2**40)
    ),
    st.builds(UnsubscriptionRecord, st.just(0), names, names, wire),
    st.builds(AcknowledgementRecord, st.just(0), names, names, wire, positions),
    st.builds(OwedRecord, st.just(0), names, names, wire, positions),
    st.builds(SessionEndRecord, st.just(0), names, names),
    st.builds(WillEndRecord, st.just(0), names, names),
    st.builds(
        lambda publisher, client_id, destination, headers, body, delay_s: WillRecord(
            0, client_id, publisher, destination, *pack(headers, body), delay_s
        ),
        identities,
        names,
        wire,
        st.lists(st.tuples(wire, wire), max_size=3).map(tuple),
        st.binary(max_size=200),
        st.integers(0, 3600),
    ),
)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 10**7), changes | sessions), min_size=1, max_size=12),
    st.integers(0, 2**40),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_any_records_come_back(
    items: list[tuple[int, tuple[bytes, bool, Identity, Validation, tuple[tuple[bytes, bytes], ...], bytes] | Record]],
    revision: int,
    data: st.DataObject,
) -> None:
    """Any records in any batches, at any revision, decode to equal ones."""
    encoder = Encoder(START, SYNC)
    encoder.position = start = type(START)(revision, NOW_US, 5)
    blob = header(start, SYNC, snapshot=False)
    records: list[Record] = []
    batch: list[Record] = []
    at = NOW_US
    for later, item in items:
        at += later
        if isinstance(item, tuple):
            revision += 1
            destination, deleted, identity, validation, headers, body = item
            content, body_at = pack(headers, body)
            batch.append(Change(revision, at, destination, deleted, identity, validation, content, body_at))
        else:
            slots = [
                getattr(item, name) for name in inspect.signature(type(item)).parameters if name != "accepted_at_us"
            ]
            batch.append(type(item)(at, *slots))
        if data.draw(st.booleans()):
            blob += encoder.encode(batch).data
            records += batch
            batch = []
    scanner = Scanner("segment", len(blob), lambda offset, length: blob[offset : offset + length])
    decoder = Decoder(scanner.start.revision, scanner.start.accepted_at_us)
    found: list[Record] = []
    while (block := scanner.records(decoder)) is not None:
        found += block
    wanted = plain_all(records)
    assert plain_all(found) == wanted


@functools.cache
def written() -> tuple[dict[str, bytes], list[object]]:
    """Return the files of a journal with an archived segment, a snapshot, a sealed and an open segment; and its records."""
    disk = SimulatedDisk()
    first: list[Record] = [record for record in one_of_each() if isinstance(record, Change)]
    later: list[list[Record]] = [
        [change(n, at_us=NOW_US + 2_000_000 + n) for n in (at, at + 1)] for at in (8, 10, 12, 14, 16)
    ]
    lives: list[list[list[Record]]] = [[first], later[:2], later[2:]]
    for life, batches in enumerate(lives):
        journal = Journal.open(ROOT, disk, ROOMY, SYNC)
        list(journal.recover())
        journal.keep_schemas([("44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", b"{}")])
        for batch in batches:
            journal.write(journal.encode(batch))
        if life < 2:
            journal.close()
        if life == 0:
            write_snapshot(ROOT, disk, sealed_segments(ROOT, disk)[-1].last, first, SYNC)
    records = first + [record for batch in later for record in batch]
    files = {path: data for path, data in disk.contents().items() if path.endswith((".avro", ".avsc"))}
    return files, plain_all(records)


def damaged(path: str, data: bytes) -> tuple[SimulatedDisk, list[object] | None, Journal | None]:
    """Return the disk with one file replaced, and what a start makes of it: None when it refuses."""
    files, _ = written()
    disk = SimulatedDisk()
    for folder in ("", "/segments", "/snapshots", "/schemas"):
        disk.make_folder(ROOT + folder)
    for name, contents in files.items():
        disk.put(name, data if name == path else contents)
    noticed = any(report.problem is not None for report in verify(ROOT, disk))
    assert noticed or path.endswith(".open.avro"), "an unfinished file can have been shorter"
    try:
        journal = Journal.open(ROOT, disk, ROOMY, SYNC)
        return disk, plain_all(list(journal.recover())), journal
    except JournalDamagedError as refused:
        error = refused
    assert error.path == path
    assert f"`maxam-admin journal repair {ROOT}`" in str(error)
    return disk, None, None


def check_damage(path: str, data: bytes, truncated: bool) -> None:
    """See that a changed file is refused, made up for, or, in the open segment, cut back to whole batches."""
    _, records = written()
    _, found, journal = damaged(path, data)
    if found is None or journal is None:
        assert "/schemas/" not in path, "no start needs the schemas"
        assert not (truncated and path.endswith(".open.avro")), "a shorter open segment is what a crash leaves"
    elif path.endswith(".open.avro"):
        assert found in [records[: len(records) - 2 * lost] for lost in range(4)]
        assert truncated or (found != records and journal.torn_tails)
    else:
        assert found == records, "it was not needed, or another file made up for it"
        assert journal.damaged_snapshots or "/snapshots/" not in path


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["open.avro", "segments/00000000000000000008-00000000000000000011.avro"])
def test_any_truncation_is_a_prefix_or_refused(suffix: str) -> None:
    """Cut after any byte, the open segment gives its whole batches and a sealed one is refused."""
    (path,) = [name for name in written()[0] if name.endswith(suffix)]
    data = written()[0][path]
    for length in [*range(0, 1700, 50), *range(1700, len(data))]:
        check_damage(path, data[:length], truncated=True)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=400, deadline=None)
def test_any_flipped_bit_is_seen(data: st.DataObject) -> None:
    """With one bit flipped anywhere, nothing but what was written is read, and `verify` reports it."""
    path = data.draw(st.sampled_from(sorted(written()[0])))
    blob = bytearray(written()[0][path])
    bit = data.draw(st.integers(0, 8 * len(blob) - 1))
    blob[bit // 8] ^= 1 << bit % 8
    assert any(report.problem is not None for report in verify(ROOT, damaged(path, bytes(blob))[0])) or path.endswith(
        "open.avro"
    )
    check_damage(path, bytes(blob), truncated=False)


@pytest.mark.slow
def test_a_flipped_bit_costs_no_committed_block_but_the_last() -> None:
    """In the open segment any flipped bit before the last block is refused; in the last block it looks like a torn write."""
    (path,) = [name for name in written()[0] if name.endswith("open.avro")]
    data = written()[0][path]
    one = Scanner(path, len(data), lambda offset, length: data[offset : offset + length])
    offsets = [one.offset]
    while one.next_block() is not None:
        offsets.append(one.offset)
    records = written()[1]
    for place in range(0, len(data), 3):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        _, found, journal = damaged(path, bytes(flipped))
        if place < offsets[-2]:
            assert found is None
        else:
            assert found == records[:-2]
            assert journal is not None
            assert journal.torn_tails[0].offset == offsets[-2]


rejections = st.tuples(
    wire,
    st.booleans(),
    identities,
    st.builds(Validation, names, names, st.just(""), st.just(b""), st.just(0), st.just(0)),
    st.lists(st.tuples(wire, wire), max_size=3).map(tuple),
    st.binary(max_size=200),
    st.sampled_from(["rejected-invalid", "rejected-unauthorised"]),
    st.builds(Rejection, names, names),
)


def rejected_sends(
    items: list[tuple[bytes, bool, Identity, Validation, tuple[tuple[bytes, bytes], ...], bytes, str, Rejection]],
    revision: int,
) -> list[RejectedSend]:
    """Number rejected SENDs from after a revision on."""
    return [RejectedSend(n, NOW_US + n, *item) for n, item in enumerate(items, revision + 1)]


@pytest.mark.slow
@given(st.lists(rejections, min_size=1, max_size=8), st.integers(0, 2**40))
@settings(max_examples=100, deadline=None)
def test_any_rejected_sends_come_back(
    items: list[tuple[bytes, bool, Identity, Validation, tuple[tuple[bytes, bytes], ...], bytes, str, Rejection]],
    revision: int,
) -> None:
    """Any rejected SENDs, at any number, decode to equal ones, and a cut block to an error."""
    start = type(START)(revision, NOW_US, 5)
    sends = rejected_sends(items, revision)
    blob = header(start, SYNC, snapshot=False) + encode_rejected(sends, start, SYNC).data
    scanner = Scanner("segment", len(blob), lambda offset, length: blob[offset : offset + length])
    block = scanner.next_block()
    assert block is not None
    assert [plain(send) for send in decode_rejected(*block, revision)] == [plain(send) for send in sends]
    for length in range(len(block[0])):
        with pytest.raises((ValueError, IndexError)):
            decode_rejected(block[0][:length], block[1], revision)


@pytest.mark.slow
@given(st.lists(rejections, min_size=1, max_size=6), st.data())
@settings(max_examples=150, deadline=None)
def test_any_cut_or_flipped_bit_leaves_a_prefix_of_the_rejected_sends(
    items: list[tuple[bytes, bool, Identity, Validation, tuple[tuple[bytes, bytes], ...], bytes, str, Rejection]],
    data: st.DataObject,
) -> None:
    """After any damage of the open segment, a start keeps whole blocks up to it, continues the numbers, and reads back what it wrote."""
    disk = SimulatedDisk()
    disk.make_folder(ROOT)
    journal = RejectedJournal.open(ROOT, disk, RejectedSettings(), SYNC)
    sends = rejected_sends(items, 0)
    for send in sends:
        journal.append([send])
    path = f"{ROOT}/rejected/{1:020}.open.avro"
    blob = bytearray(disk.contents()[path])
    if data.draw(st.booleans()):
        del blob[data.draw(st.integers(0, len(blob) - 1)) :]
        harmed = len(blob)
    else:
        bit = data.draw(st.integers(0, 8 * len(blob) - 1))
        blob[bit // 8] ^= 1 << bit % 8
        harmed = bit // 8
    disk.put(path, bytes(blob))
    journal = RejectedJournal.open(ROOT, disk, RejectedSettings(), SYNC)
    kept = journal.head
    assert kept < len(sends)
    assert all(offset <= harmed for _, offset, _ in journal.cut)
    journal.append(rejected_sends(items[:1], kept))
    journal.close()
    final = disk.contents()[f"{ROOT}/rejected/{1:020}-{kept + 1:020}.avro"]
    scanner = Scanner("segment", len(final), lambda offset, length: final[offset : offset + length])
    found: list[RejectedSend] = []
    while (block := scanner.next_block()) is not None and not scanner.ended:
        found += decode_rejected(*block, len(found))
    assert [plain(send) for send in found] == [
        plain(send) for send in [*sends[:kept], *rejected_sends(items[:1], kept)]
    ]

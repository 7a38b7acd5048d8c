"""The newest entries of a log, and the fronts that it has ended."""

import pytest

from maxam.broker.origins import ENDED, Origin, encode_origins
from maxam.cluster.entry import PROOF, Entry, read_entry
from maxam.cluster.log import LogDamagedError
from maxam.cluster.recent import RecentEntries
from maxam.journal.encoding import SYNC_BYTES, Block
from tests.support.journal_records import SYNC
from tests.unit.cluster.test_logged import Site, begun

ONE, OTHER = b"front--1", b"front--2"


def origins(**done: int) -> bytes:
    """Return origins with these numbers."""
    return encode_origins([Origin({"one": ONE, "other": OTHER}[name], number) for name, number in done.items()])


def proof(site: Site, **done: int) -> Block:
    """Return a block without records."""
    block = site.logged.encode([])
    block.origins = origins(**done)
    return block


def test_a_log_keeps_origins_and_each_member_knows_them() -> None:
    """Origins are in the entry of their block. Without a record they are in a proof. The journal is the same without them."""
    log = begun()
    leader, follower = Site(log, "a"), Site(log, "b")
    for site in (leader, follower):
        site.logged.recent = RecentEntries(60)
    leader.lead()
    block = leader.block()
    block.origins = origins(one=3)
    leader.logged.write(block)
    leader.logged.write(proof(leader, other=ENDED))
    leader.logged.write(leader.block())
    leader.logged.write(leader.logged.encode([]))
    assert [read_entry(log.entries[index]).origins for index in sorted(log.entries)[-3:]] == [
        origins(one=3),
        origins(other=ENDED),
        b"",
    ]
    follower.follow()
    restarted = RecentEntries(60)
    restarted.read_back(log, leader.place.index + 1)
    for recent in (leader.logged.recent, follower.logged.recent, restarted):
        assert recent is not None
        assert (recent.ended(ONE), recent.ended(OTHER)) == (False, True)
        found = recent.between(block.before, leader.place.position)
        assert found is not None
        assert [entry.origins for entry in found] == [origins(one=3), origins(other=ENDED), b""]
        assert recent.between(leader.place.position, leader.place.position) == []
        found = recent.between(block.before, block.after)
        assert found is not None
        assert [entry.kind for entry in found] == [1, PROOF]
    assert leader.files() == follower.files()


def test_old_entries_and_origins_are_forgotten() -> None:
    """Entries go with their age and by their size, and the end of a front with its age alone."""
    log = begun()
    leader = Site(log, "a").lead()
    start = leader.place.position
    now_s = 0.0
    recent = leader.logged.recent = RecentEntries(60, 10, 2000, lambda: now_s)
    leader.logged.write(proof(leader, one=ENDED))
    for _ in range(5):
        leader.logged.write(leader.block(bytes(300)))
    assert recent.between(start, leader.place.position) is None
    assert recent.ended(ONE)
    now_s = 59.0
    before = leader.place.position
    leader.logged.write(proof(leader, one=2, other=ENDED))
    now_s = 61.0
    leader.logged.write(leader.block())
    assert (recent.ended(ONE), recent.ended(OTHER)) == (False, True)
    found = recent.between(before, leader.place.position)
    assert found is not None
    assert len(found) == 2
    now_s = 120.0
    leader.logged.write(leader.block())
    assert not recent.ended(OTHER)
    leader.files()


def test_a_log_that_was_trimmed_is_read_from_its_oldest_entry() -> None:
    """Forgotten entries leave no gap among the entries that are kept. An entry that is none is reported."""
    log = begun()
    leader = Site(log, "a").lead()
    start = leader.place.position
    for number in range(3):
        leader.logged.write(proof(leader, one=number + 1 if number < 2 else ENDED))
        leader.logged.write(leader.block())
    recent = RecentEntries(60)
    recent.take(Entry(PROOF, False, start, start, SYNC[:SYNC_BYTES], b"", origins=origins(other=1)))
    log.trim(4)
    middle = read_entry(log.entries[5]).before
    recent.read_back(log, leader.place.index + 1)
    assert (recent.ended(ONE), recent.ended(OTHER)) == (True, False)
    assert recent.between(start, leader.place.position) is None
    assert recent.between(middle, leader.place.position)
    log.entries[6] = b"none"
    with pytest.raises(LogDamagedError):
        recent.read_back(log, leader.place.index + 1)
    leader.files()


def test_an_entry_that_is_too_large_is_not_kept() -> None:
    """The log has it, and a front that lacks it begins again."""
    leader = Site(begun(), "a").lead()
    recent = leader.logged.recent = RecentEntries(60, bytes_max=1000)
    start = leader.place.position
    leader.logged.write(leader.block(bytes(2000)))
    assert recent.between(start, leader.place.position) is None
    before = leader.place.position
    leader.logged.write(leader.block())
    assert recent.between(before, leader.place.position)
    leader.files()

"""A topic's history out of a journal's files: every change once, newest first, for any page. Missing parts are reported."""

import random
from pathlib import Path

import pytest

from maxam.journal import index
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.history import Bounds, Page, read_page
from maxam.journal.names import sealed_segments
from maxam.records import Change
from tests.support.journal_records import SYNC, change

TOPICS = [b"X/A.1", b"X/A.12", b"X/B", b"X/rare"]
ENDLESS = 1 << 60


def written(folder: Path, count: int = 400, seed: int = 5) -> list[Change]:
    """Write a journal of many small segments, some blocks of one change and some of many; return all changes."""
    chosen = random.Random(seed)  # noqa: S311 - repeatable, not secret
    journal = Journal.open(
        folder, OsDisk(), JournalSettings(segment_bytes_max=6000, durable=False, reserve_bytes=0), SYNC
    )
    list(journal.recover())
    changes: list[Change] = []
    while len(changes) < count:
        block: list[Change] = []
        for _ in range(chosen.choice([1, 1, 5, 40])):
            topic = TOPICS[3] if len(changes) + len(block) in {7, 311} else chosen.choice(TOPICS[:3])
            body = b"" if chosen.random() < 0.1 else chosen.randbytes(chosen.choice([0, 10, 300]))
            made = change(len(changes) + len(block) + 1, topic, body, at_us=1_700_000_000_000_000 + len(changes))
            block.append(made)
        journal.write(journal.encode([*block]))
        changes += block
    journal.close()
    return changes


def page(
    folder: Path,
    topic: bytes,
    before: int | None = None,
    limit: int = 1000,
    body_bytes: int = ENDLESS,
    read_bytes: int = ENDLESS,
) -> Page:
    """Read one page."""
    return read_page(folder, topic, before, Bounds(limit, body_bytes, read_bytes, lambda: False))


def revisions(found: Page) -> list[int]:
    """Return what is on a page."""
    return [one.revision for one in found.changes]


def wanted(changes: list[Change], topic: bytes) -> list[int]:
    """Return what a topic's history is, newest first."""
    return [one.revision for one in reversed(changes) if one.destination == topic]


@pytest.mark.parametrize("indexed", [False, True])
def test_pages_of_any_size_give_each_change_once(tmp_path: Path, indexed: bool) -> None:
    """However changes, bodies and bytes read are bounded, following `before` gives the whole history in order, indexed or not."""
    changes = written(tmp_path)
    assert len(sealed_segments(tmp_path, OsDisk())) > 5
    if indexed:
        for segment in index.unindexed(str(tmp_path), OsDisk()):
            index.build(str(tmp_path), segment, OsDisk())
    for topic in [*TOPICS, b"X/none"]:
        for limit, body_bytes, read_bytes in (
            (1000, ENDLESS, ENDLESS),
            (7, ENDLESS, ENDLESS),
            (1000, 500, ENDLESS),
            (50, 0, 1),
            (3, 700, 9000),
        ):
            found: list[int] = []
            before: int | None = None
            for _ in range(1000):
                one = page(tmp_path, topic, before, limit, body_bytes, read_bytes)
                assert not one.problems
                assert len(one.changes) <= limit
                assert sum(len(each.body) for each in one.changes[1:]) <= max(body_bytes, 0)
                found += revisions(one)
                if one.before is None:
                    break
                assert before is None or one.before < before
                before = one.before
            assert found == wanted(changes, topic)
    for shown in page(tmp_path, TOPICS[0]).changes:
        known = changes[shown.revision - 1]
        assert (shown.body, shown.deleted, shown.headers, shown.accepted_at_us, shown.publisher.principal) == (
            known.body,
            known.deleted,
            known.headers,
            known.accepted_at_us,
            known.publisher.principal,
        )


def test_the_time_of_a_page_ends_it_between_segments(tmp_path: Path) -> None:
    """A page whose time is over right away still reads one segment, so that paging comes to its end."""
    changes = written(tmp_path)
    found: list[int] = []
    before: int | None = None
    pages = 0
    while before is not None or not pages:
        one = read_page(tmp_path, TOPICS[0], before, Bounds(1000, ENDLESS, ENDLESS, lambda: True))
        found += revisions(one)
        before = one.before
        pages += 1
    assert found == wanted(changes, TOPICS[0])
    assert pages > 5


def test_damage_is_told_and_costs_only_what_is_damaged(tmp_path: Path) -> None:
    """With any one byte of a segment changed, a part of the history is read, and the rest is reported as lost."""
    changes = written(tmp_path, 120)
    whole = {one.revision for one in changes if one.destination == TOPICS[0]}
    segment = sealed_segments(tmp_path, OsDisk())[1]
    path = Path(segment.path)
    data = path.read_bytes()
    chosen = random.Random(9)  # noqa: S311 - repeatable, not secret
    for _ in range(60):
        broken = bytearray(data)
        broken[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        path.write_bytes(broken)
        found = page(tmp_path, TOPICS[0])
        assert found.problems
        lost = {number for one in found.problems if one.lost for number in range(one.first, one.last + 1)}
        assert set(revisions(found)) <= whole
        assert whole - set(revisions(found)) <= lost
        above = page(tmp_path, TOPICS[0], None, len([one for one in whole if one > segment.last]))
        assert not above.problems  # of a range that has none


def test_missing_and_expired_segments_are_told(tmp_path: Path) -> None:
    """A segment that is gone from the midst is lost; a beginning that retention removed is reported once the page reaches it."""
    changes = written(tmp_path, 200)
    segments = sealed_segments(tmp_path, OsDisk())
    Path(segments[0].path).unlink()
    Path(segments[2].path).unlink()
    gone = {number for one in (segments[0], segments[2]) for number in range(one.first, one.last + 1)}
    found = page(tmp_path, TOPICS[0])
    assert revisions(found) == [number for number in wanted(changes, TOPICS[0]) if number not in gone]
    assert [(one.kind, one.lost) for one in found.problems] == [("expired", False), ("missing", True)]
    newest = page(tmp_path, TOPICS[0], limit=2)
    assert not newest.problems
    last = page(tmp_path, TOPICS[0], before=segments[1].first)
    assert (last.changes, last.before) == ([], None)
    assert [(one.kind, one.lost) for one in last.problems] == [("expired", True)]


def test_a_write_under_way_is_left_out_silently(tmp_path: Path) -> None:
    """Half a block at the end of the open segment was never acknowledged, and is no problem."""
    changes = written(tmp_path, 60)
    journal = Journal.open(tmp_path, OsDisk(), JournalSettings(durable=False, reserve_bytes=0), SYNC)
    list(journal.recover())
    for _ in range(3):
        made = change(len(changes) + 1, TOPICS[2], b"body" * 50, at_us=1_800_000_000_000_000)
        journal.write(journal.encode([made]))
        changes.append(made)
    [opened] = (tmp_path / "segments").glob("*.open.avro")
    data = opened.read_bytes()
    for cut in range(1, 260, 20):
        opened.write_bytes(data[:-cut])
        found = page(tmp_path, TOPICS[2])
        assert revisions(found) == wanted(changes[:-1], TOPICS[2])
        assert not found.problems
    opened.write_bytes(data)
    journal.close()
    assert revisions(page(tmp_path, TOPICS[2])) == wanted(changes, TOPICS[2])

"""A reader goes on only with the journal that it has read before, and knows it by incarnation and by the block it read last."""

from pathlib import Path

import pytest

from maxam.journal.backup import back_up, restore
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.identity import (
    NewIncarnationError,
    OtherJournalError,
    end_chain,
    find_block,
    incarnation,
    require_same,
)
from maxam.journal.listing import list_segments
from maxam.journal.tail import newest
from tests.support.journal_records import SYNC, change

SETTINGS = JournalSettings(durable=False, reserve_bytes=0)


def grow(folder: Path, count: int, number: str, *, sealed: bool) -> None:
    """Write changes in a block each, as one life of a gateway."""
    journal = Journal.open(folder, OsDisk(), SETTINGS, SYNC, number * 16)
    list(journal.recover())
    for _ in range(count):
        text = folder.name.encode()
        journal.write(journal.encode([change(journal.head + 1, b"X/a", text, at_us=journal.accepted_at_us + 1)]))
    if sealed:
        journal.close()
    else:
        OsDisk().close(journal._lock)


def mark(folder: Path) -> tuple[int, int]:
    """Return revision and check of the last block, as readers keep them."""
    cursor = newest(folder, "changes")
    return cursor.revision, cursor.chain if cursor.segment else end_chain(folder, "changes", cursor.revision)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_another_journal_is_refused_whichever_is_longer(tmp_path: Path, sealed: bool, known: bool) -> None:
    """The one ends before what was read, the other does not hold the block; with and without incarnations."""
    short, long = tmp_path / "short", tmp_path / "long"
    grow(short, 5, "1" if known else "", sealed=sealed)
    grow(long, 9, "2" if known else "", sealed=sealed)
    for mine, other in ((short, long), (long, short)):
        revision, chain = mark(mine)
        assert chain
        told = incarnation(mine)
        assert require_same(mine, "changes", told, revision, chain) == told
        with pytest.raises(OtherJournalError):
            require_same(other, "changes", told, revision, chain, restored=True)
    grow(short, 3, "3", sealed=not sealed)
    revision, chain = mark(short)
    assert require_same(short, "changes", incarnation(short), revision, chain)


def test_a_restored_journal_is_gone_on_with_when_asked_for_and_only_if_it_holds_what_was_read(tmp_path: Path) -> None:
    """Up to the moment of the backup its history is the same; a reader that is further is refused in any case."""
    folder, copy = tmp_path / "journal", tmp_path / "restored"
    grow(folder, 5, "1", sealed=False)
    early = mark(folder)
    back_up(str(folder), str(tmp_path / "backups"), "1", OsDisk())
    grow(folder, 2, "2", sealed=False)
    late = mark(folder)
    restore(f"{tmp_path}/backups/1", str(copy), OsDisk())
    grow(copy, 4, "3", sealed=True)
    assert (incarnation(folder), incarnation(copy)) == ("1" * 16, "3" * 16)
    with pytest.raises(NewIncarnationError):
        require_same(copy, "changes", "1" * 16, *early)
    assert require_same(copy, "changes", "1" * 16, *early, restored=True) == "3" * 16
    with pytest.raises(OtherJournalError) as refused:
        require_same(copy, "changes", "1" * 16, *late, restored=True)
    assert type(refused.value) is OtherJournalError


def test_a_block_is_found_though_it_moved(tmp_path: Path) -> None:
    """At the reported place, or anywhere in the segment."""
    grow(tmp_path, 5, "1", sealed=False)
    cursor = newest(tmp_path, "changes")
    [segment] = list_segments(tmp_path, "changes")
    for hint in (cursor.offset, 0, cursor.offset - 7):
        assert find_block(tmp_path, "changes", segment, cursor.chain, hint) == cursor.offset
    assert find_block(tmp_path, "changes", segment, cursor.chain ^ 1, cursor.offset) is None

"""The decisions of a person: to go on with the journal of an observer, and to give up a forked one."""

import secrets
from pathlib import Path

import pytest

from maxam.cluster.forking import set_aside, tail_of
from maxam.cluster.promotion import Followed, look, promote, read_promotion, write_followed
from maxam.errors import JournalError
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.identity import incarnation, incarnation_start
from tests.support.journal_records import NOW_US, change

OLD, NEW = "00000000000000aa", "00000000000000bb"


def opened(folder: Path, name: str = "", *, following: bool = False, bytes_max: int = 67_108_864) -> Journal:
    """Open and recover a journal."""
    settings = JournalSettings(segment_bytes_max=bytes_max, durable=False, reserve_bytes=0)
    journal = Journal.open(folder, OsDisk(), settings, secrets.token_bytes(16), name)
    assert list(journal.recover(following)) is not None
    return journal


def write(journal: Journal, *destinations: bytes) -> None:
    """Write a block for each change."""
    for destination in destinations:
        journal.write(journal.encode([change(journal.head + 1, destination)]))


def pair(tmp_path: Path, *, bytes_max: int = 67_108_864) -> tuple[Path, Path]:
    """Return the folders of a source with five changes, and of an observer that has three of them."""
    source, observer = tmp_path / "a", tmp_path / "b"
    one = opened(source, OLD, bytes_max=bytes_max)
    two = opened(observer, following=True)
    two.adopt(OLD)
    begun: set[str] = set()
    for number in range(3):
        block = one.encode([change(number + 1, b"X/%d" % number)])
        one.write(block)
        segment = one._files.opened
        assert segment is not None
        two.put(block, segment.sync_marker, segment.path not in begun)
        begun.add(segment.path)
    write(one, b"X/1", b"X/only")
    one.close()
    two.close(seal=False)
    return source, observer


@pytest.mark.parametrize("bytes_max", [2500, 67_108_864])
def test_the_tail_of_the_former_source_is_listed(tmp_path: Path, bytes_max: int) -> None:
    """After a promotion, the changes that only the former source has are those after the place where the incarnation begins."""
    source, observer = pair(tmp_path, bytes_max=bytes_max)
    write_followed(str(observer), Followed("a", "a:8646", 5, NOW_US, NOW_US))
    found = look(str(observer), "drill", NOW_US + 1)
    assert (found.revision, found.missing, found.because) == (3, 2, "drill")
    promote(str(observer), found)
    assert read_promotion(str(observer), OsDisk()) == found

    promoted = opened(observer, NEW)
    write(promoted, b"X/new")
    promoted.close()
    assert incarnation(observer) == NEW
    start = incarnation_start(observer, NEW)
    assert start is not None
    assert start.revision == 3

    tail = tail_of(str(source), start.revision, start.chain)
    assert [(one.destination, one.changes, one.revision) for one in tail.topics] == [("X/1", 1, 4), ("X/only", 1, 5)]
    assert (tail.incarnation, tail.after, tail.last, tail.others) == (OLD, 3, 5, 0)


def test_a_journal_of_another_history_is_refused(tmp_path: Path) -> None:
    """A tail is listed only for a journal that holds the block at which the incarnation begins."""
    source, _ = pair(tmp_path)
    with pytest.raises(JournalError):
        tail_of(str(source), 3, 12345)
    with pytest.raises(JournalError):
        tail_of(str(tmp_path / "none"), 3, 12345)


def test_a_journal_is_promoted_once_and_only_while_its_gateway_is_stopped(tmp_path: Path) -> None:
    """A journal in use and one that was promoted are refused."""
    _, observer = pair(tmp_path)
    running = opened(observer, following=True)
    for attempt in (
        lambda: look(str(observer), "", NOW_US),
        lambda: tail_of(str(observer), 0, 0),
        lambda: set_aside(str(observer)),
    ):
        with pytest.raises(JournalError):
            attempt()
    running.close(seal=False)
    promote(str(observer), look(str(observer), "once", NOW_US))
    with pytest.raises(JournalError):
        look(str(observer), "twice", NOW_US)


def test_a_folder_is_set_aside_under_a_name_of_its_own(tmp_path: Path) -> None:
    """No folder that was set aside before is replaced."""
    source, observer = pair(tmp_path)
    assert set_aside(str(source)) == f"{source}.forked-1"
    observer.rename(source)
    assert set_aside(str(source)) == f"{source}.forked-2"
    assert not source.exists()

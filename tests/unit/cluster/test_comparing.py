"""Journals of members are compared: sealed segments, and the last block before a fork."""

import hashlib
import shutil
from itertools import product
from pathlib import Path

import pytest

from maxam.cluster.comparing import Difference, Sealed, differences, last_common, sealed_after
from maxam.cluster.forking import tail_of
from maxam.cluster.membership import Membership, is_member, leave, read_membership, write_membership
from maxam.errors import JournalError
from maxam.journal.disk import OsDisk
from maxam.journal.identity import holds_block, incarnation
from tests.unit.cluster.test_promotion import NEW, OLD, opened, write

SMALL, LARGE = 2500, 67_108_864


@pytest.mark.parametrize("bytes_max", [SMALL, LARGE])
def test_the_last_common_block_is_where_the_histories_part(tmp_path: Path, bytes_max: int) -> None:
    """For each number of common changes, and of further ones at either side."""
    for common, own, others in product(range(5), range(3), range(3)):
        one, other = tmp_path / f"{common}{own}{others}" / "one", tmp_path / f"{common}{own}{others}" / "other"
        journal = opened(one, OLD, bytes_max=bytes_max)
        write(journal, *(b"X/%d" % number for number in range(common)))
        journal.close(seal=False)
        shutil.copytree(one, other)
        for folder, count, name in ((one, own, b"X/own"), (other, others, b"X/other")):
            journal = opened(folder, OLD, bytes_max=bytes_max)
            write(journal, *[name] * count)
            journal.close(seal=False)

        def held(revision: int, chain: int, other: Path = other) -> bool | None:
            return holds_block(other, "changes", revision, chain)

        found = last_common(str(one), held)
        if not own:
            assert found is None
            continue
        assert found is not None
        assert found[0] == common
        tail = tail_of(str(one), *found)
        assert [(topic.destination, topic.changes) for topic in tail.topics] == [("X/own", own)]


def test_sealed_segments_are_listed_in_pages(tmp_path: Path) -> None:
    """With their sizes and last blocks, and with their SHA-256 if that is asked for."""
    journal = opened(tmp_path / "a", OLD, bytes_max=SMALL)
    write(journal, *(b"X/%d" % number for number in range(9)))
    journal.close()
    folder = str(tmp_path / "a")
    whole = sealed_after(folder, 0, 100, full=False)
    assert len(whole) > 2
    assert [one.first for one in whole] == [1, *(one.last + 1 for one in whole[:-1])]
    assert all(holds_block(folder, "changes", one.last, one.chain) for one in whole)
    paged: list[Sealed] = []
    while page := sealed_after(folder, paged[-1].first if paged else 0, 2, full=False):
        paged += page
    assert paged == whole
    files = sorted((tmp_path / "a" / "segments").iterdir())
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert [one.sha256 for one in sealed_after(folder, 0, 100, full=True)] == digests


def test_segments_that_two_journals_have_are_compared() -> None:
    """By all that is known of them."""
    first, second = Sealed(1, 5, 100, 7, None), Sealed(6, 9, 100, 8, None)
    assert differences({"a": [first, second], "b": [first, second], "c": [second]}) == (2, [])
    assert differences({"a": [first], "b": [second]}) == (0, [])
    for other in (Sealed(6, 8, 100, 8, None), Sealed(6, 9, 101, 8, None), Sealed(6, 9, 100, 9, None)):
        found = differences({"a": [first, second], "b": [first, other], "c": [first]})
        assert found == (2, [Difference(6, 9, {"a": second, "b": other})])


def test_a_member_that_left_goes_on_by_itself(tmp_path: Path) -> None:
    """With a new incarnation. A journal in use, and one of no cluster, are refused."""
    folder = tmp_path / "a"
    journal = opened(folder, OLD)
    write(journal, b"X/1")
    journal.close()
    with pytest.raises(JournalError):
        leave(str(folder))
    write_membership(str(folder), Membership(bytes(16), 3), OsDisk())
    running = opened(folder, following=True)
    with pytest.raises(JournalError):
        leave(str(folder))
    running.close()
    assert is_member(str(folder), OsDisk())
    leave(str(folder))
    assert read_membership(str(folder), OsDisk()) is None
    alone = opened(folder, NEW)
    write(alone, b"X/2")
    alone.close()
    assert incarnation(folder) == NEW

"""Decisions about a journal wait in its folder for the next start."""

from pathlib import Path

from maxam.journal.decisions import forget_decisions, note_decision, read_decisions


def test_decisions_are_kept_in_their_order_until_they_are_forgotten(tmp_path: Path) -> None:
    """Several commands may run before a start. A folder that was set aside is made again for them."""
    folder = tmp_path / "journal"
    assert read_decisions(str(folder)) == []
    note_decision(str(folder), "set-aside", 1, aside="journal.forked-1")
    note_decision(str(folder), "founded", 2, revision=7)
    found = read_decisions(str(folder))
    assert [one.pop("decided_at_us") for one in found] == [1, 2]
    assert found == [{"decision": "set-aside", "aside": "journal.forked-1"}, {"decision": "founded", "revision": 7}]
    assert (folder.stat().st_uid, folder.stat().st_gid) == (tmp_path.stat().st_uid, tmp_path.stat().st_gid)
    forget_decisions(str(folder))
    assert read_decisions(str(folder)) == []

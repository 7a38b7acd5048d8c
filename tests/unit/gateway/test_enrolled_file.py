"""The file of enrolled clients comes to each member, and a member that lacks it overwrites none."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from maxam.cluster.entry import FILE_BYTES_MAX, read_entry
from maxam.errors import ConfigurationError, DiskFullError, JournalError
from maxam.gateway import enrolled_file
from maxam.gateway.enrolled_file import MISSING, PRESENT, STALE, EnrolledFile
from tests.unit.cluster.test_logged import Site, begun

TEXT = b'[[principals]]\nname = "meters"\n'


class Members:
    """Two members of a cluster: `a` leads, `b` follows."""

    def __init__(self, folder: Path) -> None:
        self.log = begun()
        self.sites = {name: Site(self.log, name) for name in "ab"}
        self.paths = {name: folder / f"{name}.toml" for name in "ab"}
        self.files = {name: self._file(name) for name in "ab"}
        self.sites["a"].lead()

    def _file(self, name: str) -> EnrolledFile:
        def members() -> Any:
            return {name: SimpleNamespace(enrolled=one.state) for name, one in self.files.items()}

        site = self.sites[name]
        file = EnrolledFile(self.paths[name], site.logged, members)
        site.keeper.store_file = file.store
        return file

    def follow(self) -> None:
        """Have `b` take what is in the log, and store it."""
        self.sites["b"].follow()
        self.sites["b"].keeper.close()


def test_all_members_store_what_the_leader_writes(tmp_path: Path) -> None:
    """When `write` returns, the leader has stored the file. A follower has it as soon as it has the entry."""
    members = Members(tmp_path)
    assert [one.state for one in members.files.values()] == [MISSING, MISSING]
    members.files["a"].write(TEXT)
    assert members.paths["a"].read_bytes() == TEXT
    members.follow()
    assert members.paths["b"].read_bytes() == TEXT
    assert not members.files["b"].degraded()


def test_a_member_that_copied_gets_the_file_again(tmp_path: Path) -> None:
    """It sets its own one aside. The leader logs it once more, and only while somebody lacks it."""
    members = Members(tmp_path)
    members.files["a"].write(TEXT)
    members.paths["b"].write_bytes(b"old")
    members.files["b"].set_aside()
    members.files["b"].set_aside()
    assert Path(f"{members.paths['b']}{STALE}").read_bytes() == b"old"
    assert members.files["b"].stale
    [why] = members.files["b"].degraded()
    assert why.startswith("enrolled-file:")
    assert members.files["a"].lacked
    members.files["a"].complete()
    assert [members.files["a"].lacked] == [False], "not each second"
    members.follow()
    assert members.paths["b"].read_bytes() == TEXT
    assert members.files["b"].state == PRESENT
    members.files["a"]._again_s = 0.0
    assert not members.files["a"].lacked


def test_a_leader_without_the_file_overwrites_none(tmp_path: Path) -> None:
    """While another member has one, it logs neither its own lack nor a new file."""
    members = Members(tmp_path)
    members.paths["b"].write_bytes(TEXT)
    before = len(members.log.entries)
    assert not members.files["a"].lacked
    members.files["a"].complete()
    with pytest.raises(ConfigurationError):
        members.files["a"].write(b"new")
    assert len(members.log.entries) == before


def test_what_cannot_be_replicated_is_refused(tmp_path: Path) -> None:
    """Contents above the limit, and those of a member that does not lead."""
    members = Members(tmp_path)
    with pytest.raises(ConfigurationError):
        members.files["a"].write(bytes(FILE_BYTES_MAX + 1))
    with pytest.raises(JournalError):
        members.files["b"].write(TEXT)
    members.sites["b"].lead()
    with pytest.raises(JournalError):
        members.files["a"].write(TEXT)
    assert not members.paths["a"].exists()
    assert {read_entry(one).kind for one in members.log.entries.values()} == {8, 2}


def test_a_disk_without_room_is_tried_again_and_a_fault_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room is an error for the keeper. Another fault stays visible until the file can be stored."""
    members = Members(tmp_path)
    file, errors = members.files["b"], [OSError(28, "no room"), PermissionError(13, "not allowed")]
    stored: list[bytes] = []

    def replace(_path: Path, contents: bytes, _mode: int) -> None:
        if errors:
            raise errors.pop(0)
        stored.append(contents)

    monkeypatch.setattr(enrolled_file, "replace_durably", replace)
    with pytest.raises(DiskFullError):
        file.store("policy-enrolled.toml", TEXT)
    file.store("policy-enrolled.toml", TEXT)
    assert file.problem
    assert file.degraded()
    file.store("policy-enrolled.toml", TEXT)
    assert not file.problem
    assert stored == [TEXT]


def test_a_member_that_reads_no_such_file_stores_none(tmp_path: Path) -> None:
    """Nothing is written, and nothing is missing."""
    site = Site(begun(), "a")
    file = EnrolledFile(None, site.logged, dict)
    file.store("policy-enrolled.toml", TEXT)
    file.set_aside()
    file.complete()
    assert file.state == ""
    assert not file.stale
    assert list(tmp_path.iterdir()) == []

"""Files that somebody else left in our folders."""

from pathlib import Path

import pytest

from maxam.config import Limits
from maxam.errors import ConfigurationError
from maxam.gateway.snapshot import segments_since_snapshot
from maxam.gateway.sources import read_registry
from maxam.journal.disk import OsDisk


def test_a_loop_of_links_in_the_schema_folder_is_named(tmp_path: Path) -> None:
    """A schema file that is a link to itself is a ConfigurationError that names it, at start and on reload."""
    (tmp_path / "registry.toml").write_text("")
    loop = tmp_path / "loop.avsc"
    loop.symlink_to(loop)
    with pytest.raises(ConfigurationError, match=r"loop\.avsc"):
        read_registry(tmp_path, Limits())


def test_a_strange_file_among_the_snapshots_is_none_of_them(tmp_path: Path) -> None:
    """A file that an operator put beside the snapshots does not count as one."""
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "segments").mkdir()
    (tmp_path / "snapshots" / "00000000000000000007.backup.avro").write_bytes(b"")
    assert segments_since_snapshot(str(tmp_path), OsDisk()) == 0

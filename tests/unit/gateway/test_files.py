"""Files that somebody else left in our folders."""

from pathlib import Path

import pytest

from maxam.avro.folder import read_registry
from maxam.config import Limits
from maxam.errors import ConfigurationError
from maxam.gateway.loaded_config import read_settings
from maxam.gateway.snapshot import segments_since_snapshot
from maxam.journal.disk import OsDisk


def test_a_loop_of_links_in_the_schema_folder_is_named(tmp_path: Path) -> None:
    """A schema file that is a link to itself is a ConfigurationError that shows it, at start and on reload."""
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


def test_an_old_key_is_logged_once_with_its_new_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A configuration with an old key works, and the log has the key, its line and the new name."""
    file = tmp_path / "maxam.toml"
    keys = 'certificate = "a"\nkey = "b"\nclient_ca = "c"\n'
    file.write_text(f'[tls]\n{keys}[policy]\nfile = "p"\n[schemas]\nfolder = "s"\n[reload]\nquiet_s = 2\n')
    with caplog.at_level("WARNING", "maxam"):
        assert read_settings(file).reload.debounce_s == 2
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.startswith(f"setting-deprecated file={file}:10 ")
    assert "quiet_s" in line
    assert "debounce_s" in line

"""Files are replaced as a whole, or not at all."""

import os
from pathlib import Path

import pytest

from maxam.durable_files import replace_durably, replacing


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """The new content has the mode that was asked for, and nothing else is left in the folder."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    replace_durably(path, b"new", 0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_an_exception_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """The unfinished file is removed."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.write("no bytes")  # type: ignore[call-overload]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_does_not_matter(tmp_path: Path) -> None:
    """Process ids come again."""
    path = tmp_path / "file"
    (tmp_path / f".file.{os.getpid()}.new").write_bytes(b"half")
    replace_durably(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]

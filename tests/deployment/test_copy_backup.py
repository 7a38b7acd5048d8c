"""The two commands of docs/operate/operations.md that copy a backup to another place are run as they stand.

Only the names of folders are replaced, and ssh: what it is to run elsewhere runs on this machine.
"""

import os
import subprocess
from pathlib import Path

import pytest

from maxam.bench.archive import write_archive
from maxam.journal.backup import MANIFEST, back_up, verify_backup
from maxam.journal.disk import OsDisk
from tests.alerts.prometheus import need
from tests.deployment.test_operations_guide import GUIDE
from tests.docs.guides import blocks
from tests.support.patience import PATIENCE_S

SSH = """#!/bin/sh
set -eu
while getopts i:o:l: option; do :; done
shift $((OPTIND - 1))
case $1 in other.example.org | backup@other.example.org) shift ;; *) exit 255 ;; esac
exec sh -c "$*"
"""
RCLONE = "[store]\ntype = alias\nremote = {}\n"


class Site:
    """A gateway's backups, and another place for them.

    Attributes:
        other: The folder of the copies.
    """

    def __init__(self, folder: Path, package: str, replaced: dict[str, str], other: Path) -> None:
        """Install the command of the guide that needs a package."""
        text = GUIDE.read_text(encoding="utf-8")
        marks = f"# /usr/local/lib/maxam/copy-backup, with the package{'s' if package == 'rsync' else ''} {package}"
        (block,) = (one for one in blocks(text) if one.kind == "sh" and one.lines[1].startswith(marks))
        script = "\n".join(block.lines) + "\n"
        for before, after in replaced.items():
            assert before in script
            script = script.replace(before, after)
        self._command = folder / "copy-backup"
        self._command.write_text(script)
        self._command.chmod(0o755)
        (folder / "bin").mkdir()
        (folder / "bin/ssh").write_text(SSH)
        (folder / "bin/ssh").chmod(0o755)
        self._path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self._folder = folder
        self.other = other
        write_archive(folder / "journal", 3000, topics=20, days=1)

    def back_up(self, name: str) -> Path:
        """Make a backup."""
        return Path(back_up(str(self._folder / "journal"), str(self._folder / "backups"), name, OsDisk()).folder)

    def copy(self, backup: Path) -> int:
        """Call the command as the gateway does; give its exit code."""
        return subprocess.run(
            [self._command, backup],
            env={**os.environ, "PATH": self._path},
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=PATIENCE_S,
        ).returncode

    def check(self, backup: Path) -> None:
        """Assert that the copy of a backup is whole and equal."""
        copy = self.other / backup.name
        assert [one.problem for one in verify_backup(str(copy), OsDisk()) if one.problem is not None] == []
        for file in backup.rglob("*"):
            assert file.is_dir() or file.read_bytes() == (copy / file.relative_to(backup)).read_bytes()

    def damage(self, backup: Path) -> Path:
        """Change a byte of a segment of a copy, whose length and time stay."""
        segment = max((self.other / backup.name / "segments").iterdir(), key=lambda one: one.stat().st_size)
        at = segment.stat()
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 1
        segment.chmod(0o600)
        segment.write_bytes(data)
        os.utime(segment, ns=(at.st_atime_ns, at.st_mtime_ns))
        return segment


def test_rsync_copies_what_is_missing_and_checks_it(tmp_path: Path) -> None:
    """The copies are whole and share files as the backups do; a copy that differs is noticed."""
    need("rsync")
    need("jq")
    other = tmp_path / "other"
    other.mkdir()
    site = Site(tmp_path, "rsync", {"/srv/maxam": str(other)}, other)
    first = site.back_up("20261101T000000Z")
    assert site.copy(first) == 0
    site.check(first)
    second, third = site.back_up("20261102T000000Z"), site.back_up("20261103T000000Z")
    (tmp_path / "backups/20261104T000000Z.unfinished").mkdir()
    assert site.copy(third) == 0  # that of the second had failed
    site.check(second)
    site.check(third)
    assert sorted(one.name for one in other.iterdir() if one.is_dir()) == [first.name, second.name, third.name]
    shared = next(one for one in (second / "segments").iterdir() if one.stat().st_nlink > 1)
    copies = [other / one.name / "segments" / shared.name for one in (second, third)]
    assert copies[0].samefile(copies[1])
    site.damage(third)
    assert site.copy(third) != 0


def test_rclone_copies_and_checks(tmp_path: Path) -> None:
    """The copy is whole, a damaged one is replaced, and a place that cannot be written to is a failure."""
    need("rclone")
    store = tmp_path / "store"
    configuration = tmp_path / "rclone.conf"
    configuration.write_text(RCLONE.format(store))
    site = Site(tmp_path, "rclone", {"/etc/maxam/tls/rclone.conf": str(configuration)}, store / "maxam-backups")
    backup = site.back_up("20261101T000000Z")
    assert site.copy(backup) == 0
    site.check(backup)
    assert (site.other / backup.name / MANIFEST).exists()
    site.damage(backup)
    assert site.copy(backup) == 0
    site.check(backup)
    configuration.write_text(RCLONE.format("/proc/nowhere"))
    assert site.copy(backup) != 0


pytestmark = pytest.mark.interop

"""The Debian package, in a clean root of Debian: installed, upgraded, removed and purged."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.deployment.conftest import ROOT, renamed

pytestmark = pytest.mark.interop

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maxam"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root of Debian with python3 and nothing else."""
    archives = sorted(CACHE.glob("debian-*.tar"))
    if not archives or os.geteuid() != 0 or shutil.which("dpkg-deb") is None:
        assert not os.environ.get("CI"), "no root of Debian, or no root to enter it: make test-deps"
        pytest.skip("there is no root of Debian, or we are not root: make test-deps")
    folder = tmp_path / "root"
    folder.mkdir()
    subprocess.run(["tar", "-xf", archives[-1], "-C", folder, "--exclude=./dev/*"], check=True)
    (folder / "dev/null").touch()
    return folder


def package(bundle: Path, folder: Path, day: int) -> Path:
    """Make the package of a bundle that was committed on this day, by `make deb` in a folder whose bundle is made already."""
    (folder / "dist").mkdir(parents=True)
    (folder / "deploy").symlink_to(ROOT / "deploy")
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copy(bundle, folder / "dist/maxam-0-bundle.tar.gz")
    made = subprocess.run(
        ["make", "--silent", "--old-file=bundle", "deb"],
        cwd=folder,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(1_790_000_000 + 86_400 * day)},
        capture_output=True,
        text=True,
        check=True,
    )
    return folder / made.stdout.strip()


def inside(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the root."""
    return subprocess.run(
        ["chroot", root, *command],
        env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def install(root: Path, deb: Path) -> subprocess.CompletedProcess[str]:
    """Install a package."""
    shutil.copy(deb, root / "tmp")
    return inside(root, "dpkg", "--install", f"/tmp/{deb.name}")  # noqa: S108 - in the root of the package


def test_install_upgrade_remove_purge(root: Path, bundle: Path, tmp_path: Path) -> None:
    """The programs run, configuration survives an upgrade, which shows what it changes, and removal leaves configuration and data alone."""
    first = package(bundle, tmp_path / "first", 0)
    assert package(bundle, tmp_path / "again", 0).read_bytes() == first.read_bytes()
    done = install(root, first)
    assert done.returncode == 0, done.stdout
    assert inside(root, "maxam-gateway", "--version").returncode == 0
    assert inside(root, "maxam-admin", "--help").returncode == 0
    release = (root / "opt/maxam/current").readlink().name
    (root / "etc/maxam/policy.toml").write_text("mine")

    subprocess.run(["tar", "-xzf", bundle, "-C", tmp_path], check=True)
    (unpacked,) = tmp_path.glob("maxam-*-bundle")
    renamed(unpacked, "9.9.9-upgrade")
    with tarfile.open(tmp_path / "next.tar.gz", "w:gz") as archive:
        archive.add(unpacked, unpacked.name)
    later = package(tmp_path / "next.tar.gz", tmp_path / "later", 1)
    done = install(root, later)
    assert done.returncode == 0, done.stdout
    plan = done.stdout.index(f"9.9.9-upgrade (interpreted) replaces {release} (interpreted)")
    assert plan < done.stdout.index("maxam 9.9.9-upgrade is installed")
    assert "diff:" not in done.stdout  # the root has no /dev/fd
    assert (root / "opt/maxam/current").readlink().name == "9.9.9-upgrade"
    assert (root / "etc/maxam/policy.toml").read_text() == "mine"

    assert inside(root, "dpkg", "--remove", "maxam").returncode == 0
    assert not (root / "opt/maxam").exists()
    assert not (root / "usr/local/bin/maxam-gateway").is_symlink()
    assert not list((root / "usr/local/lib/systemd/system").glob("maxam*"))
    assert inside(root, "dpkg", "--purge", "maxam").returncode == 0
    assert (root / "etc/maxam/policy.toml").read_text() == "mine"
    assert not (root / "usr/lib/maxam").exists()

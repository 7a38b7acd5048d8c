"""Make a bundle that installs maxam on a machine without network: `make_bundle.py WHEEL FOLDER` prints its path.

It holds the wheel, the wheels of what it needs to run, pip, `deploy/install`, units, samples, schemas and documents. It fits the Python version and the
kind of machine that it is made on. Downloads are compared with the hashes of `requirements.lock`.
"""

import ensurepip
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SHARED: Final = ("deploy/systemd", "deploy/etc", "deploy/prometheus", "deploy/grafana", "docs", "schemas")
ROLES: Final = "admin,cluster,gateway"  # extras of pyproject.toml
PAGES: Final = ("README.md", "CHANGELOG.md", "LICENSE")  # beside the folders, as in a clone: documents link to them


def make_bundle(wheel: Path, folder: Path) -> Path:
    """Make the bundle of a wheel of maxam; return its path.

    Raises:
        SystemExit: pip cannot get what is needed, or another version than locked would be.
    """
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    version = wheel.name.split("-")[1]
    release = f"{version}-{_sha256(wheel)[:8]}"
    name = f"maxam-{release}-bundle"
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch) / name
        wheels = top / "wheels"
        wheels.mkdir(parents=True)
        shutil.copy(wheel, wheels)
        fetched = Path(scratch) / "fetched"
        _pip(
            "download",
            "--require-hashes",
            "--only-binary=:all:",
            "--dest",
            str(fetched),
            "-r",
            f"{ROOT}/requirements.lock",
        )
        # Of what is locked, pip's own resolver reports what the gateway, in a cluster too, and maxam-admin import: build tools stay behind.
        report = Path(scratch) / "report.json"
        _pip(
            "install",
            "--dry-run",
            "--ignore-installed",
            "--no-index",
            "--find-links",
            str(fetched),
            "--report",
            str(report),
            f"{wheel}[{ROLES}]",
        )
        lines = []
        for item in json.loads(report.read_bytes())["install"]:
            file = Path(item["download_info"]["url"].rpartition("/")[2])
            if not (wheels / file).exists():
                shutil.copy(fetched / file, wheels)
            what = item["metadata"]
            lines.append(f"{what['name']}=={what['version']} --hash=sha256:{_sha256(wheels / file)}\n")
        (top / "requirements.lock").write_text("".join(sorted(lines)), encoding="utf-8")
        shutil.copy(_pip_wheel(), top)
        (top / "release").write_text(f"{release}\n", encoding="utf-8")
        (top / "python").write_text(f"{_python()}\n", encoding="utf-8")
        shutil.copy(ROOT / "deploy/install", top)
        for path in SHARED:
            shutil.copytree(
                ROOT / path, top / "share" / Path(path).name, ignore=shutil.ignore_patterns("__pycache__", ".*")
            )
        for page in PAGES:
            shutil.copy(ROOT / page, top / "share")
        files = sorted(path for path in top.rglob("*") if path.is_file())
        sums = "".join(f"{_sha256(path)}  {path.relative_to(top)}\n" for path in files)
        (top / "SHA256SUMS").write_text(sums, encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        bundle = folder / f"{name}.tar.gz"
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as archive:
            archive.add(top, name, filter=lambda member: pack(member, epoch))
        bundle.write_bytes(gzip.compress(plain.getvalue(), mtime=epoch))
    return bundle


def _python() -> str:
    """Return the Python that the bundle is for, in the form in which `deploy/install` asks a Python."""
    return f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]} {platform.machine()}"


def _pip(*arguments: str) -> None:
    done = subprocess.run(  # noqa: S603 - our own pip
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", *arguments], check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"pip {arguments[0]} failed: no bundle is made")


def _pip_wheel() -> Path:
    """Return the wheel of pip that this Python would put into a virtual environment: the other machine may have none."""
    folders = (sysconfig.get_config_var("WHEEL_PKG_DIR"), Path(ensurepip.__file__).parent / "_bundled")
    for folder in folders:
        for found in sorted(Path(folder).glob("pip-*.whl")) if folder else ():
            return found
    raise SystemExit("this Python has no wheel of pip (on Debian: apt-get install python3-venv)")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pack(info: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    """Return a member of an archive with root as its owner, one of two modes, and this time."""
    info.mtime = epoch
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
    return info


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.stdout.write(f"{make_bundle(Path(sys.argv[1]), Path(sys.argv[2]))}\n")

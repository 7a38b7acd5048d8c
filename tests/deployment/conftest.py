"""A bundle, made once for all tests here as `make bundle` makes it, except the core, which is interpreted: compiling takes too long.

And `systemd-analyze`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed bundle. pip fetches what it has not in its cache: where that cannot be, tests are skipped, and fail in CI."""
    folder = tmp_path_factory.mktemp("bundle")
    environment = os.environ | {"MAXAM_CORE": "interpreted"}
    environment.pop("PYTHONPATH", None)
    built = subprocess.run(
        [sys.executable, "deploy/build_backend.py", str(folder)], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )  # fmt: skip
    wheel = built.stdout.split()[-1]
    made = subprocess.run(
        [sys.executable, "deploy/make_bundle.py", wheel, str(folder)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    if made.returncode != 0 and not os.environ.get("CI"):
        pytest.skip(f"no bundle can be made here: {made.stderr[-300:]}")
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.strip())


@pytest.fixture(scope="session")
def analyze() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `systemd-analyze`."""
    command = shutil.which("systemd-analyze")
    if command is None:
        assert not os.environ.get("CI"), "systemd-analyze is missing: make test-deps"
        pytest.skip("systemd-analyze is missing: make test-deps")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([command, *arguments], capture_output=True, text=True, check=False)

    return run


def renamed(bundle: Path, release: str) -> None:
    """Make another release of an unpacked bundle."""
    (bundle / "release").unlink()
    (bundle / "release").write_text(f"{release}\n")
    lines = [line for line in (bundle / "SHA256SUMS").read_text().splitlines() if not line.endswith("  release")]
    lines.append(f"{hashlib.sha256((bundle / 'release').read_bytes()).hexdigest()}  release")
    (bundle / "SHA256SUMS").unlink()
    (bundle / "SHA256SUMS").write_text("\n".join(lines) + "\n")

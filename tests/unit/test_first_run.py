"""The steps of `make run` and `make demo`, from a fresh clone to the compiled core."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"
SOURCES = (
    "requirements.lock",
    "pyproject.toml",
    "deploy/build_backend.py",
    "maxam/module.py",
    "certs-dev/make-certs",
    "certs-dev/policy-dev.template.toml",
)


def commands(clone: Path, target: str) -> str:
    """Return the commands that make would run."""
    own = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAXAM_CORE")
    environment = {name: text for name, text in os.environ.items() if name not in own}
    done = subprocess.run(
        ["make", "-n", target], cwd=clone, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with a Makefile and files as old as those of a clone."""
    shutil.copy(MAKEFILE, tmp_path)
    for name in SOURCES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (0, 0))
    return tmp_path


def make_stamps(clone: Path, *names: str) -> None:
    """Have something done already."""
    for name in names:
        path = clone / ".venv" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_the_first_run_does_not_wait_for_the_compiler(clone: Path) -> None:
    """It installs the interpreted core and compiles in the background. Benchmarks wait for the compiled one."""
    first = commands(clone, "run")
    assert "wheel-interpreted" in first
    assert "compile-later" in first
    assert "wheel-auto" not in first
    assert "wheel-auto" in commands(clone, "bench")


def test_the_next_run_installs_what_was_compiled(clone: Path) -> None:
    """Until the wheel is there nothing is installed. `demo` never replaces what a gateway runs; `run` does so once."""
    make_stamps(clone, "runtime.stamp", "wheel-interpreted/stamp", "maxam-interpreted.stamp")
    assert "pip" not in commands(clone, "run") + commands(clone, "demo")
    assert "compile-later" in commands(clone, "run")
    make_stamps(clone, "wheel-auto/stamp")
    assert "pip" not in commands(clone, "demo")
    second = commands(clone, "run")
    assert ".venv/wheel-auto/maxam-" in second
    assert "build_backend" not in second
    assert "compile-later" not in second
    make_stamps(clone, "maxam-auto.stamp")
    for target in ("run", "demo", "bench"):
        assert not {"pip", "build_backend", "compile-later"} & set(commands(clone, target).replace("/", " ").split())

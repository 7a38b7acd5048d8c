"""`maxam-pipeline` before Spark starts: help, and arguments that it refuses."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from maxam.pipeline.main import _VERBS, main


def test_help_needs_no_spark() -> None:
    """--help imports neither Spark nor Arrow."""
    script = "import sys; from maxam.pipeline.main import main; main(['--help'], standalone_mode=False)\n"
    script += "assert not {'pyspark', 'pyarrow', 'pandas', 'py4j'} & set(sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert all(f"  {verb} " in output for verb in _VERBS)


@pytest.mark.parametrize("verb", list(_VERBS))
def test_every_verb_has_help(verb: str) -> None:
    """Each command of the list is there, begins its help with the word that the list does, and helps without Spark running."""
    result = CliRunner().invoke(main, [verb, "--help"], terminal_width=200)
    assert result.exit_code == 0, result.output
    assert result.output.partition("\n\n")[2].split()[0] == _VERBS[verb][1].split()[0]


def test_a_command_that_became_an_example_is_referred_to() -> None:
    """A command of earlier releases is a usage error that shows a folder which is there, whatever its options."""
    result = CliRunner().invoke(main, ["totals", "--journal", "x"])
    assert result.exit_code == 2
    (folder,) = re.findall(r"`python (\S+)`", result.output)
    assert (Path(__file__).parents[3] / folder / "__main__.py").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["latest"], 2, "'--journal'"),
        (["latest", "--journal", "{j}", "--at", "2026-01-01T00:00:00"], 2, "has no time zone"),
        (["latest", "--journal", "{j}", "--master", "local", "--remote", "sc://x"], 2, "exclude each other"),
        (["latest", "--journal", "{j}", "--format", "parquet"], 2, "--out PATH"),
        (["latest", "--journal", "{j}", "--out", "x.txt"], 2, "name one with --format"),
        (["latest", "--journal", "{j}", "--conf", "x"], 2, "is not KEY=VALUE"),
        (["latest", "--journal", "{j}", "--glob", "X/[a"], 2, "']' is missing"),
        (["latest", "--journal", "{j}/nowhere"], 3, "nowhere: no such folder"),
        (["latest", "--journal", "{j}"], 1, "is not the folder of a journal: it has no folder `segments`"),
        (
            ["export", "--journal", "{j}", "--since", "2026-01-02T00:00:00Z", "--until", "2026-01-01T00:00:00Z"],
            2,
            "not after",
        ),
        (["export", "--journal", "{j}", "--rejected", "--values"], 2, "--rejected goes with neither"),
        (["changes", "--journal", "{j}", "--window", "1h", "--gaps"], 2, "excludes"),
        (["freshness", "--journal", "{j}"], 2, "needs --schemas"),
        (["freshness", "--journal", "{j}", "--schemas", "{j}"], 3, "registry.toml"),
        (["check-schema", "{j}/x.avsc", "--journal", "{j}"], 3, "x.avsc cannot be read: No such file"),
    ],
)
def test_what_is_refused(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    """Options that do not go together exit with 2, unusable files with 1, missing ones with 3; the text shows what is wrong."""
    result = CliRunner().invoke(main, [argument.replace("{j}", str(tmp_path)) for argument in arguments])
    assert (result.exit_code, says in " ".join(result.output.split())) == (code, True), result.output


def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    """It has the file, the cause of the system and what to do; exit code 3."""
    (tmp_path / "journal/segments").mkdir(parents=True)
    (tmp_path / "file").touch()
    out = tmp_path / "file/table"
    result = CliRunner().invoke(main, ["history", "--journal", str(tmp_path / "journal"), "--out", str(out)])
    assert result.exit_code == 3
    (line,) = result.output.splitlines()
    assert line.startswith(f"Error [job-failed]: {out}")
    assert os.strerror(errno.ENOTDIR) in line

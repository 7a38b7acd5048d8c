"""What `maxam-pipeline` says before Spark starts."""

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
    """Each verb of the list is there, begins its help with the word that the list does, and helps without Spark running."""
    result = CliRunner().invoke(main, [verb, "--help"], terminal_width=200)
    assert result.exit_code == 0, result.output
    assert result.output.partition("\n\n")[2].split()[0] == _VERBS[verb][1].split()[0]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["latest"], 2, "Missing option '--journal'"),
        (["latest", "--journal", "{j}", "--at", "2026-01-01T00:00:00"], 2, "does not say in which zone"),
        (["latest", "--journal", "{j}", "--master", "local", "--remote", "sc://x"], 2, "exclude each other"),
        (["latest", "--journal", "{j}", "--format", "parquet"], 2, "--out PATH"),
        (["latest", "--journal", "{j}", "--out", "x.txt"], 2, "say which with --format"),
        (["latest", "--journal", "{j}", "--conf", "x"], 2, "is not KEY=VALUE"),
        (["latest", "--journal", "{j}", "--glob", "X/[a"], 2, "']' is missing"),
        (["latest", "--journal", "{j}/nowhere"], 1, "nowhere: no such folder"),
        (["latest", "--journal", "{j}"], 1, "is not the folder of a journal: it has no folder `segments`"),
        (
            ["export", "--journal", "{j}", "--since", "2026-01-02T00:00:00Z", "--until", "2026-01-01T00:00:00Z"],
            2,
            "not after",
        ),
        (["export", "--journal", "{j}", "--rejected", "--values"], 2, "--rejected goes with neither"),
        (["changes", "--journal", "{j}", "--window", "1h", "--gaps"], 2, "not both"),
        (["freshness", "--journal", "{j}"], 2, "needs --schemas"),
        (["freshness", "--journal", "{j}", "--schemas", "{j}"], 1, "registry.toml"),
        (["check-schema", "{j}/x.avsc", "--journal", "{j}"], 1, "x.avsc cannot be read: No such file"),
    ],
)
def test_what_is_refused(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    """Options that do not go together exit with 2, files that cannot be used with 1; the text names what is wrong."""
    result = CliRunner().invoke(main, [argument.replace("{j}", str(tmp_path)) for argument in arguments])
    assert (result.exit_code, says in " ".join(result.output.split())) == (code, True), result.output

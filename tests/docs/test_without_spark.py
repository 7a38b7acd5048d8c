"""docs/analyse/without-spark.md is true: its commands and snippets are run as they stand, in its order, and print what it shows."""

import contextlib
import io
import shlex
import traceback
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from maxam.bench.main import main as bench_main
from maxam.pipeline.main import main as pipeline_main
from tests.docs.guides import Block, faults

REPOSITORY = Path(__file__).parents[2]
GUIDE = REPOSITORY / "docs" / "analyse" / "without-spark.md"
PROGRAMS = {"maxam-bench": bench_main, "maxam-pipeline": pipeline_main}


class Paster:
    """Runs the page's commands and snippets in the current folder."""

    def __init__(self) -> None:
        """Begin with no variables."""
        self.exit_code = 0
        self._namespace: dict[str, Any] = {"__name__": "guide"}

    def run(self, text: str) -> str:
        """Run a command; give what it printed, on either stream."""
        program, *arguments = shlex.split(text)
        result = CliRunner().invoke(PROGRAMS[program], arguments, prog_name=program)
        self.exit_code = result.exit_code
        return result.output

    def execute(self, block: Block) -> str:
        """Run a snippet; give what it printed, and how it failed."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                exec(compile("\n".join(block.lines), str(GUIDE), "exec"), self._namespace)  # noqa: S102  # the page's own
            except Exception:  # noqa: BLE001  # whatever it is, the page is not true, and goes on
                out.write(traceback.format_exc())
        return out.getvalue()


@pytest.mark.slow
def test_the_page_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command and snippet runs without Java, and prints what the page shows."""
    for name in ("docs", "schemas"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / "var").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    found = faults(Paster(), GUIDE.read_text(encoding="utf-8"))
    assert not found, "\n\n".join(found)

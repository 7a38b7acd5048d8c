"""Somebody who pastes the commands and snippets of docs/analyse/pipeline.md, as a process of its own: where it is started is their clone.

    python -m tests.pipeline.guide_process PORT

prints as JSON where the guide is not true. `maxam-pipeline` and `maxam-bench` run inside, with one session for all, except what goes on
until it is stopped.
"""

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from maxam.bench.main import main as bench_main
from maxam.pipeline.main import main as pipeline_main
from maxam.pipeline.spark.session import open_session
from tests.docs.guides import Block, faults, shell
from venue.command import main as venue_main

REPOSITORY = Path(__file__).parents[2]
GUIDE = REPOSITORY / "docs" / "analyse" / "pipeline.md"
PORT = "61614"  # of the guide's gateway; that of a test has another one
SMALL = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}
TERMINAL = {"TTY_COMPATIBLE": "1", "TERM": "dumb", "COLUMNS": "160", "LINES": "50"}  # a wide one, without colours


class Reader:
    """Runs the guide's commands and snippets, in a clone where `make run` runs."""

    def __init__(self, port: str) -> None:
        """Begin where this process is.

        Args:
            port: Of the gateway.
        """
        self._port = port
        self.exit_code = 0
        self._namespace: dict[str, Any] = {"__name__": "guide"}
        self._ours: dict[str, Callable[[str], str]] = {
            "make": self._make,
            "pip": self._pip,
            ".venv/bin/pip": self._pip,
            "export": self._export,
            "maxam-bench": lambda text: self._in_process(bench_main, text),
            "maxam-pipeline": lambda text: self._in_process(pipeline_main, text),
            "python": lambda text: self._in_process(venue_main, text),
        }

    def run(self, text: str) -> str:
        """Run a command; give what it printed, on either stream."""
        text = text.replace(PORT, self._port)
        self.exit_code = 0
        return self._ours.get(text.split()[0], self._shell)(text)

    def execute(self, block: Block) -> str:
        """Run a snippet; give what it printed, and how it failed."""
        source = "\n" * block.line + "\n".join(block.lines).replace(PORT, self._port)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                exec(compile(source, str(GUIDE), "exec"), self._namespace)  # noqa: S102  # the guide's own
            except Exception:  # noqa: BLE001  # whatever it is, the guide is not true, and goes on
                out.write(traceback.format_exc())
        return out.getvalue()

    def _make(self, text: str) -> str:
        target = text.split()[1]
        if not re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE):
            return f"there is no target {target}"
        if target == "demo":
            play = [sys.executable, "-m", "maxam.demo", "--gateway", f"127.0.0.1:{self._port}", "--machines", "20"]
            subprocess.run([*play, "--rate", "10", "--seconds", "3"], check=True, stdout=subprocess.DEVNULL)
        return ""  # the gateway runs already, and the others are no matter of seconds

    def _pip(self, text: str) -> str:
        """Check whether the files and extras that are to be installed exist."""
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = [name for name in re.findall(r"\[(\w+)\]", text) if name not in project["optional-dependencies"]]
        files = [name for name in re.findall(r"-r (\S+)", text) if not (REPOSITORY / name).is_file()]
        return f"there is no {extras or files}" if extras or files else ""

    def _export(self, text: str) -> str:
        for setting in shlex.split(text)[1:]:
            name, _, value = setting.partition("=")
            os.environ[name] = value
        return ""

    def _in_process(self, main: Any, text: str) -> str:
        command, pipe, rest = text.partition(" | ")
        words = shlex.split(command)
        if "--follow" in words:
            return self._until_it_says(words, ("published", "up to revision"))
        assert words[0] != "python" or words[1] == "docs/examples/venue"
        result = CliRunner().invoke(main, words[2:] if words[0] == "python" else words[1:])
        self.exit_code = result.exit_code
        if result.exc_info is not None and not isinstance(result.exception, SystemExit | None):
            return "".join(traceback.format_exception(result.exception))
        if pipe:
            return result.stderr + self._shell(rest, result.stdout)
        return result.output

    def _shell(self, text: str, given: str = "") -> str:
        self.exit_code, output = shell(text, given)
        return output

    def _until_it_says(self, words: list[str], signs: tuple[str, ...]) -> str:
        """Run a command that goes on until it is stopped, and stop it as Ctrl-C does after its first output."""
        settings = [word for name, value in SMALL.items() for word in ("--conf", f"{name}={value}")]
        start = [] if words[0] == "python" else ["-c", "from maxam.pipeline.main import main; main()"]
        said = ""
        with subprocess.Popen([sys.executable, *start, *words[1:], *settings], stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            stopped = False
            for line in process.stderr:
                said += line.decode()
                if not stopped and any(sign in said for sign in signs):
                    process.send_signal(signal.SIGINT)
                    stopped = True
        self.exit_code = process.returncode
        return said


def main() -> None:
    """Follow the guide with the gateway at the port that is the argument."""
    os.environ.update(TERMINAL)
    spark = open_session("local[2]", conf=SMALL)
    tell = (lambda text: print(text, file=sys.stderr, flush=True)) if "--tell" in sys.argv else (lambda _: None)  # noqa: T201  # asked for
    found = faults(Reader(sys.argv[1]), GUIDE.read_text(encoding="utf-8"), tell)
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

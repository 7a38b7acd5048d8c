"""Somebody who pastes the commands and snippets of docs/pipeline.md, as a process of its own: where it is started is their clone.

    python -m tests.pipeline.guide_process PORT

prints as JSON where the guide is not true. `maxam-pipeline` and `maxam-bench` run inside, with one session for all, but for what goes on
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from maxam.bench.main import main as bench_main
from maxam.pipeline.main import main as pipeline_main
from maxam.pipeline.session import open_session

REPOSITORY = Path(__file__).parents[2]
GUIDE = REPOSITORY / "docs" / "pipeline.md"
PORT = "61614"  # of the guide's gateway; that of a test has another one
COMMAND_TIMEOUT_S = 120
SMALL = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}
TERMINAL = {"TTY_COMPATIBLE": "1", "TERM": "dumb", "COLUMNS": "160", "LINES": "50"}  # a wide one, without colours
_FENCE = re.compile(r"^```(\S*)(.*)$")
_NUMBER = re.compile(r"\d+(?:[.:,-]\d+)*")


@dataclass
class Block:
    """A fenced block of the guide.

    Attributes:
        kind: First word behind the fence.
        live: The second one is `live`: numbers in it may differ.
        line: Of the fence.
        lines: Between the fences.
    """

    kind: str
    live: bool
    line: int
    lines: list[str] = field(default_factory=list)


def blocks(text: str) -> list[Block]:
    """Cut a document into its fenced blocks."""
    found: list[Block] = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and not inside:
            found.append(Block(fence[1], "live" in fence[2].split(), number))
            inside = True
        elif fence:
            inside = False
        elif inside:
            found[-1].lines.append(line)
    return found


def commands(block: Block) -> Iterator[tuple[int, str, list[str]]]:
    """Give the commands of a block: line, text with its continuation lines, and the lines that it prints."""
    place = 0
    while place < len(block.lines):
        line = block.line + 1 + place
        text = block.lines[place]
        if not text.startswith("$ "):
            raise ValueError(f"line {line} is no command: {text}")
        text = text.removeprefix("$ ")
        place += 1
        while text.endswith("\\"):
            text = text.removesuffix("\\") + block.lines[place].strip()
            place += 1
        printed: list[str] = []
        while place < len(block.lines) and not block.lines[place].startswith("$ "):
            printed.append(block.lines[place])
            place += 1
        yield line, text, printed


def first_missing(shown: list[str], printed: str, live: bool) -> str | None:
    """Return the first line that is shown and was not printed behind those before it.

    Args:
        shown: Lines of the guide. `...` stands for anything in a line, and by itself for any lines; runs of blanks are one.
        printed: What there was.
        live: Numbers are all alike.
    """
    lines = iter([_plain(line, live) for line in printed.splitlines()])
    for line in shown:
        wanted = _plain(line, live)
        if wanted in ("", "..."):
            continue
        pattern = re.escape(wanted).replace(r"\ \.\.\.\ ", r"\ (?:.*\ )?").replace(r"\.\.\.", ".*")
        if not any(re.fullmatch(pattern, found) for found in lines):
            return line
    return None


def _plain(line: str, live: bool) -> str:
    line = " ".join(line.split())
    return _NUMBER.sub("0", line) if live else line


class Reader:
    """Runs the guide's commands and snippets, in a clone where `make run` runs."""

    def __init__(self, port: str) -> None:
        """Begin where this process is.

        Args:
            port: Of the gateway.
        """
        self._port = port
        self._exit = 0
        self._namespace: dict[str, Any] = {"__name__": "guide"}
        self._ours: dict[str, Callable[[str], str]] = {
            "make": self._make,
            "pip": self._pip,
            ".venv/bin/pip": self._pip,
            "export": self._export,
            "maxam-bench": lambda text: self._in_process(bench_main, text),
            "maxam-pipeline": lambda text: self._in_process(pipeline_main, text),
        }

    def run(self, text: str) -> str:
        """Run a command; give what it printed, on either stream."""
        text = text.replace(PORT, self._port)
        if text == "echo $?":
            return f"{self._exit}\n"
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
        """Look whether the files and extras that are to be installed exist."""
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
        result = CliRunner().invoke(main, words[1:])
        self._exit = result.exit_code
        if result.exc_info is not None and not isinstance(result.exception, SystemExit | None):
            return "".join(traceback.format_exception(result.exception))
        if pipe:
            return result.stderr + self._shell(rest, result.stdout)
        return result.output

    def _shell(self, text: str, given: str | None = None) -> str:
        done = subprocess.run(
            ["bash", "-c", text],
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        self._exit = done.returncode
        return done.stdout

    def _until_it_says(self, words: list[str], signs: tuple[str, ...]) -> str:
        """Run a command that goes on until it is stopped, and stop it as Ctrl-C does when it has said something."""
        settings = [word for name, value in SMALL.items() for word in ("--conf", f"{name}={value}")]
        start = "from maxam.pipeline.main import main; main()"
        said = ""
        with subprocess.Popen([sys.executable, "-c", start, *words[1:], *settings], stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            stopped = False
            for line in process.stderr:
                said += line.decode()
                if not stopped and any(sign in said for sign in signs):
                    process.send_signal(signal.SIGINT)
                    stopped = True
        self._exit = process.returncode
        return said


def faults(reader: Reader, text: str, tell: Callable[[str], object] = lambda _: None) -> list[str]:
    """Follow a guide from top to bottom, and say where it is not true.

    Args:
        reader: Who does so.
        text: The guide.
        tell: Is given each step and all that it printed.
    """
    found: list[str] = []
    guide = blocks(text)
    for block, following in zip(guide, [*guide[1:], None], strict=True):
        steps: list[tuple[int, str, list[str], str, bool]] = []
        if block.kind == "console":
            for line, command, shown in commands(block):
                tell(f"{line}: $ {command}")
                steps.append((line, command, shown, reader.run(command), block.live))
                tell(steps[-1][3])
        elif block.kind == "python":
            tell(f"{block.line}: python")
            printed = reader.execute(block)
            tell(printed)
            if "Traceback (most recent call last)" in printed:
                found.append(f"line {block.line}: the snippet fails:\n{printed}")
            elif following is not None and following.kind == "text":
                steps.append((block.line, block.lines[0], following.lines, printed, following.live))
        for line, command, shown, printed, live in steps:
            missing = first_missing(shown, printed, live)
            if missing is not None:
                found.append(
                    f"line {line}: {command}\nnever prints {missing!r} where the guide has it, but:\n{printed}"
                )
    return found


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

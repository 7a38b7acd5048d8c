"""docs/operate/second-site.md is true: its commands, pasted into one shell in an empty folder, print what it shows."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.guides import Block, faults
from tests.support.gateway_process import kept_ports
from tests.support.patience import PATIENCE_S

GUIDE = Path(__file__).parents[2] / "docs/operate/second-site.md"
PORTS = ("61614", "61615", "8643", "8653", "8646", "8656")
PROGRAM = """#!/bin/sh
PYTHONPATH={root} exec {python} -P -c 'from maxam.programs import {name}; {name}()' "$@"
"""
END = "end-of-command"

pytestmark = pytest.mark.interop


class Operator:
    """Pastes commands into one bash, as a person does: variables, functions and jobs stay.

    Attributes:
        exit_code: Of the last command.
    """

    def __init__(self, folder: Path, programs: Path, jobs: str) -> None:
        """Open a shell.

        Args:
            folder: Where it stands.
            programs: Comes first on its path.
            jobs: Variables of the shell with the processes that it starts.
        """
        self._jobs: Final = jobs
        self.exit_code = 0
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._input, self._output = self._shell.stdin, self._shell.stdout

    def run(self, text: str) -> str:
        """Run a command; return its output on either stream."""
        watchdog = threading.Timer(PATIENCE_S, self._shell.kill)  # ends a wait for something that never comes
        watchdog.start()
        self._input.write(f"{{\n{text}\n}} < /dev/null\necho {END} $?\n")
        self._input.flush()
        printed = ""
        for line in self._output:
            before, found, code = line.rpartition(END)
            printed += before if found else line
            if found:
                self.exit_code = int(code)
                break
        else:
            self.exit_code = -1
        watchdog.cancel()
        return printed

    def execute(self, block: Block) -> str:
        """Fail: the guide has no snippets."""
        raise AssertionError(block)

    def leave(self) -> None:
        """End the shell and what it started."""
        self._input.write(f"kill -KILL {self._jobs}\n")
        self._input.close()
        self._shell.wait(PATIENCE_S)
        self._output.close()


def programs_in(folder: Path) -> Path:
    """Make the empty folder `site`, and one with our programs; return that."""
    (folder / "site").mkdir()
    programs = folder / "bin"
    programs.mkdir()
    for name in ("admin", "gateway"):
        program = programs / f"maxam-{name}"
        program.write_text(PROGRAM.format(root=Path(__file__).parents[2], python=sys.executable, name=name))
        program.chmod(0o755)
    return programs


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """Stand in an empty folder, with our programs on the path."""
    programs = programs_in(tmp_path)
    operator = Operator(tmp_path / "site", programs, "$A $B $W")
    yield operator
    operator.leave()


def test_the_guide_is_true(operator: Operator) -> None:
    """From empty folders to the return to the old roles, on free ports."""
    guide = re.sub(r"^ {3}", "", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)  # blocks of numbered steps
    for port, ours in zip(PORTS, kept_ports(len(PORTS)), strict=True):
        guide = guide.replace(port, str(ours))
    assert faults(operator, guide, print) == []

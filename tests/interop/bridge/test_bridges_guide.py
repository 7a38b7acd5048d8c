"""docs/operate/bridges.md is true: its commands print what it shows, beside a bridge between two real gateways."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.guides import Block, faults
from tests.interop.bridge.estate import estate, until
from tests.support.gateway_process import admin_environment

GUIDE = Path(__file__).parents[3] / "docs/operate/bridges.md"
ROUTE = '[[route]]\nglob = "X/EGM.**"\nstore = "V7"'
ADMIN = f"""#!/bin/sh
exec {sys.executable} -c 'from maxam.programs import admin; admin()' "$@"
"""

pytestmark = [pytest.mark.interop]


class Operator:
    """Runs the guide's commands in the folder of the bridge's configuration.

    Attributes:
        exit_code: Of the last command.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.exit_code = 0
        self._folder = folder
        self._environment = environment

    def run(self, text: str) -> str:
        """Run a command; return its output on either stream."""
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.exit_code = done.returncode
        return done.stdout

    def execute(self, block: Block) -> str:
        """Fail: the guide has no snippets."""
        raise AssertionError(block)


def test_the_guide_is_true(tmp_path: Path, certificates: Path) -> None:
    """Pasted from top to bottom, with the name of the venue that the test has."""
    with estate(tmp_path, certificates, ROUTE) as world:
        world.send(world.venue, {"X/EGM.1": b"1"})
        world.bridge.start()
        until(lambda: (found := world.link(world.centre)) is not None and found.state == "UP")
        programs = tmp_path / "bin"
        programs.mkdir()
        (programs / "maxam-admin").write_text(ADMIN)
        (programs / "maxam-admin").chmod(0o755)
        given = {key: value or "" for key, value in admin_environment(world.centre.admin_port, certificates).items()}
        environment = {**os.environ, **given, "PATH": f"{programs}:{os.environ['PATH']}"}
        operator = Operator(tmp_path, environment)
        until(lambda: '"up": true' in operator.run("maxam-admin bridges show V7 --json"))
        guide = GUIDE.read_text(encoding="utf-8").replace("V0071", "V7")
        assert faults(operator, guide) == []

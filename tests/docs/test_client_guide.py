"""docs/integrate/client.md, "The live map" and "Scripts and notebooks", is true: the programs run as they stand."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.guides import blocks
from tests.docs.test_readme import REPOSITORY, clone
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S

PAGE = REPOSITORY / "docs/integrate/client.md"
FIRST = "Status(game_play=GamePlay(state='IDLE', game_id=None))"  # what a machine of the demo publishes when it is switched on

DEMO = (sys.executable, "-m", "maxam.demo", "--machines", "1")

pytestmark = pytest.mark.interop


@contextmanager
def running(*command: str, cwd: Path) -> Iterator[None]:
    """Run a program over this tree for the length of a block."""
    with subprocess.Popen(command, cwd=cwd, env={"PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("class Status:", ["0 machines", f"X/EGM.Q.10000.EGMStatus {FIRST}"]),
        ("plans = client.values", ["accepted", "{'X/Venue.7.FloorPlan': 'hall'}"]),
    ],
)
def test_a_program_of_the_page_runs(line: str, wanted: list[str], tmp_path: Path, certificates: Path) -> None:
    """It prints its first lines, that of a machine of the demo too, and then waits for changes."""
    programs = ["\n".join(block.lines) for block in blocks(PAGE.read_text(encoding="utf-8")) if block.kind == "python"]
    [text] = [program for program in programs if line in program]
    (tmp_path / "gateway").mkdir()
    policy = clone(tmp_path, certificates)
    with GatewayProcess(tmp_path / "gateway", certificates, policy, REPOSITORY / "schemas") as gateway:
        (tmp_path / "program.py").write_text(text.replace("61614", str(gateway.port)), encoding="utf-8")
        with subprocess.Popen(
            [sys.executable, "-u", "program.py"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            watchdog = threading.Timer(PATIENCE_S, process.kill)  # ends the wait for a line that never comes
            watchdog.start()
            assert process.stdout is not None
            printed = [process.stdout.readline().strip()]
            with running(*DEMO, "--server", f"127.0.0.1:{gateway.port}", cwd=tmp_path):
                printed += [process.stdout.readline().strip() for _ in wanted[1:]]
            waits = process.poll() is None
            process.kill()
            watchdog.cancel()
    assert (printed, waits) == (wanted, True)

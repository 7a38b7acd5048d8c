"""docs/integrate/client.md, "The live map" and "Scripts and notebooks", is true: the programs run as they stand."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.docs.guides import blocks
from tests.docs.test_readme import REPOSITORY, clone
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S

PAGE = REPOSITORY / "docs/integrate/client.md"

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("class GamePlay:", ["0 machines"]),
        ("plans = client.values", ["accepted", "{'X/Venue.7.FloorPlan': 'hall'}"]),
    ],
)
def test_a_program_of_the_page_runs(line: str, wanted: list[str], tmp_path: Path, certificates: Path) -> None:
    """It prints its first lines, and then waits for changes."""
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
            printed = [process.stdout.readline().strip() for _ in wanted]
            waits = process.poll() is None
            process.kill()
            watchdog.cancel()
    assert (printed, waits) == (wanted, True)

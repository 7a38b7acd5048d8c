"""docs/analyse/first-hour.ipynb runs as it stands, from the journal of a running gateway and the demo to its charts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from maxam.compiled import child_environment
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S

NOTEBOOK = Path(__file__).parents[2] / "docs/analyse/first-hour.ipynb"
EXECUTE = "from nbclient.cli import main; main()"
CHARTS = 2


def test_the_notebook_has_no_outputs() -> None:
    """Outputs are of one machine: the committed notebook has none."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert codes
    assert [(cell["outputs"], cell["execution_count"]) for cell in codes] == [([], None)] * len(codes)


@pytest.mark.slow
def test_the_notebook_runs_and_draws_its_charts(tmp_path: Path, clone: Path, certificates: Path) -> None:
    """No cell fails while the gateway runs, and both charts are drawn."""
    (clone / "docs/analyse").mkdir()
    notebook = shutil.copy(NOTEBOOK, clone / "docs/analyse")
    tools = tmp_path / "bin"
    tools.mkdir()
    program = tools / "maxam-pipeline"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m maxam.pipeline.main "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    environment = {
        **child_environment(),
        "PATH": os.pathsep.join([str(tools), os.environ["PATH"]]),
        "HOME": str(tmp_path),
        "MPLCONFIGDIR": str(tmp_path / "matplotlib"),
    }

    def run(*command: str) -> None:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    policy = (clone / "policy-dev.toml").read_text(encoding="utf-8")
    with GatewayProcess(clone / "gateway", certificates, policy, clone / "schemas") as gateway:
        demo = ("--gateway", f"127.0.0.1:{gateway.port}", "--machines", "20", "--rate", "10", "--seconds", "3")
        run("-m", "maxam.demo", *demo)
        run("-c", EXECUTE, str(notebook), "--output", str(tmp_path / "done.ipynb"))
    cells = json.loads((tmp_path / "done.ipynb").read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", ()) for output in outputs) == CHARTS
    assert [output for output in outputs if output.get("name") == "stderr"] == []

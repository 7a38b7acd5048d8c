"""`make demo-estate`, for a short time."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
LINE = re.compile(r"V0072 (up|cut for \d+ s), (\d+) published, (\d+) outdated, (current|\d+ unknown)")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demo in a folder until it ends."""
    command = [sys.executable, "-m", "maxam.demo.estate", "--folder", str(folder), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10 * PATIENCE_S, check=False)


@pytest.mark.slow
def test_the_centre_knows_what_it_does_not_know(tmp_path: Path) -> None:
    """During the cut topics are outdated and then unknown. In the end the centre has the newest value of each."""
    done = run(tmp_path / "estate", "--machines", "3", "--quiet-s", "2", "--cut-s", "6", "--seconds", "16")
    assert done.returncode == 0, done.stdout + done.stderr
    seen = LINE.findall(done.stdout)
    assert any(line.startswith("cut") and known.endswith("unknown") for line, _, _, known in seen), done.stdout
    assert any(int(outdated) for _, _, outdated, _ in seen), done.stdout


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """Only a folder that the demo has made is removed."""
    (tmp_path / "precious.txt").write_text("mine")
    done = run(tmp_path, "--seconds", "1")
    assert done.returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]

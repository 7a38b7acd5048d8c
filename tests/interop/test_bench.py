"""The benchmark runs; what it measures is no test's business."""

import json
import subprocess
import sys


def test_one_to_one_is_measured() -> None:
    """`maxam-bench --only one-to-one --json` prints an object with positive rates, and every SEND was accepted."""
    command = [sys.executable, "-m", "maxam.bench", "--only", "one-to-one", "--runs", "1", "--seconds", "0.5", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["measurement"] == "one-to-one"
    assert result["SEND/s"] > 0
    assert 0 < result["delivered of possible"] <= 1

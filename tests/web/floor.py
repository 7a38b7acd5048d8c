"""The venue floor of docs/examples/floor as `make demo-web` starts it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.patience import PATIENCE_S
from tests.web.node import require_package, run_node

ROOT: Final = Path(__file__).parents[2]


@contextmanager
def open_floor(folder: Path, machines: int, rate: float = 0.5) -> Iterator[str]:
    """Build the page and run the floor for the length of a block; yield its address."""
    require_package()
    run_node("build.mjs", "--example", "--out", str(folder / "page"))
    options = ["--page", str(folder / "page"), "--folder", str(folder / "floor"), "--port", "0"]
    options += ["--machines", str(machines), "--rate", str(rate), "--schemas", str(ROOT / "schemas")]
    command = [sys.executable, str(ROOT / "docs" / "examples" / "floor" / "demo.py"), *options]
    tree = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=tree)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found, "the floor did not start"
        yield found[0]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)

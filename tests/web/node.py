"""Node.js and the npm package @maxam/client, as `make test-deps` installs them."""

import filecmp
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.console.operator_browser import require
from tests.support.patience import PATIENCE_S

PACKAGE: Final = Path(__file__).parents[2] / "maxam" / "client" / "typescript"


def require_package() -> None:
    """Skip the test where Node.js or the packages of the lock file are missing; fail where CI=true."""
    require(shutil.which("node"), "Node.js")
    installed = PACKAGE / "node_modules" / ".installed-lock"
    present = installed.is_file() and filecmp.cmp(installed, PACKAGE / "package-lock.json", shallow=False)
    require(str(installed) if present else None, f"the packages of {PACKAGE.name}")


def run_node(program: str, *arguments: str, cwd: Path = PACKAGE) -> str:
    """Run a program to its end and return its output. It fails the test by any exit code but 0."""
    command = [program] if program.startswith("node_modules") else ["node", program]
    done = subprocess.run(
        [*command, *arguments], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

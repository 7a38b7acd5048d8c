"""README.md and first-client.md are true: their client programs run as they stand, in a clone where `make run` runs."""

import json
import re
import string
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.docs.guides import blocks
from tests.interop.third_party import LIBRARIES, PROGRAMS
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
PLAN = ("accepted", "received X/Venue.7.FloorPlan hall")  # the RECEIPT, and the MESSAGE
GAME = ("accepted", "X/EGM.Q.12345.EGMMeteredGamePlay", "Gold:95")  # the RECEIPT, and the decoded value
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")

pytestmark = pytest.mark.interop


def clone(folder: Path, certificates: Path) -> str:
    """Lay out what a clone has after `make run`, and after `npm install`; return the policy."""
    (folder / "schemas").symlink_to(REPOSITORY / "schemas")
    (folder / "certs-dev").symlink_to(certificates)
    (folder / "node_modules").symlink_to(PROGRAMS / "node_modules")
    fingerprints = json.loads((certificates / "fingerprints.json").read_text(encoding="utf-8"))
    template = (REPOSITORY / "certs-dev" / "policy-dev.template.toml").read_text(encoding="utf-8")
    return string.Template(template).substitute(fingerprints)


@pytest.mark.parametrize(
    ("page", "kind", "library", "command", "wanted"),
    [
        ("README.md", "python", "", [sys.executable, "-u", "client.py"], PLAN),
        ("docs/integrate/first-client.md", "python", "stomp.py", [sys.executable, "-u", "client.py"], GAME),
        ("docs/integrate/first-client.md", "javascript", "@stomp/stompjs", ["node", "client.mjs"], GAME),
    ],
)
def test_the_client_program_sends_and_receives(
    page: str,
    kind: str,
    library: str,
    command: list[str],
    wanted: tuple[str, ...],
    tmp_path: Path,
    certificates: Path,
) -> None:
    """The program prints the receipt of its value and the value itself. The one with stomp.py ends when Enter is pressed."""
    if library:
        LIBRARIES[library].require()
    [program] = [block for block in blocks((REPOSITORY / page).read_text(encoding="utf-8")) if block.kind == kind]
    (tmp_path / "gateway").mkdir()
    policy = clone(tmp_path, certificates)
    with GatewayProcess(tmp_path / "gateway", certificates, policy, REPOSITORY / "schemas") as gateway:
        text = "\n".join(program.lines).replace("61614", str(gateway.port))
        (tmp_path / command[-1]).write_text(text, encoding="utf-8")
        with subprocess.Popen(
            command,
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            watchdog = threading.Timer(PATIENCE_S, process.kill)  # ends the wait for a line that never comes
            watchdog.start()
            assert process.stdin is not None
            assert process.stdout is not None
            printed = ""
            while not all(text in printed for text in wanted) and (line := process.stdout.readline()):
                printed += line
            if kind == "python":
                with suppress(BrokenPipeError):  # that of the README ends by itself
                    process.stdin.write("\n")
                    process.stdin.close()
                printed += process.stdout.read()
            else:
                process.terminate()
            code = process.wait()
            watchdog.cancel()
    assert all(text in printed for text in wanted), printed
    assert kind != "python" or code == 0, printed


def test_the_figures_of_the_comparison_are_measured() -> None:
    """Each number of the README's comparison stands in performance.md."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^## Compared.*?(?=^## )", readme, re.MULTILINE | re.DOTALL)
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    measured = set(NUMBER.findall((REPOSITORY / "docs/develop/performance.md").read_text(encoding="utf-8")))
    assert set(NUMBER.findall("\n".join(rows))) <= measured

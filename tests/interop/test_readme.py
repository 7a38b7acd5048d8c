"""README.md is true: its client programs run as they stand, in a clone where `make run` runs."""

import json
import string
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.gateway_process import GatewayProcess
from tests.guides import blocks
from tests.interop.third_party import LIBRARIES, PROGRAMS
from tests.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
WANTED = ("accepted", "X/EGM.Q.12345.EGMMeteredGamePlay", "Gold:95")  # the RECEIPT, and of the value where and what

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
    ("kind", "library", "command"),
    [
        ("python", "stomp.py", [sys.executable, "-u", "client.py"]),
        ("javascript", "@stomp/stompjs", ["node", "client.mjs"]),
    ],
)
def test_the_client_program_sends_and_receives(
    kind: str, library: str, command: list[str], tmp_path: Path, certificates: Path
) -> None:
    """It is told that its value was accepted, gets it, and prints both; that in Python ends when Enter is pressed."""
    LIBRARIES[library].require()
    [program] = [block for block in blocks(README) if block.kind == kind]
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
            while not all(text in printed for text in WANTED) and (line := process.stdout.readline()):
                printed += line
            if kind == "python":
                process.stdin.write("\n")
                process.stdin.close()
                printed += process.stdout.read()
            else:
                process.terminate()
            code = process.wait()
            watchdog.cancel()
    assert all(text in printed for text in WANTED), printed
    assert kind != "python" or code == 0, printed

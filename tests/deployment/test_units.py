"""The units are ones that systemd understands, let the gateway do no more than it needs, and agree with the gateway."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from maxam.cluster.member import RESTART
from maxam.config import Limits
from tests.deployment.service_manager import settings_of

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = DEPLOY / "systemd"
SERVICES = ("maxam-gateway.service", "maxam-gateway-backup.service", "maxam-crl.service", "maxam-bridge.service")
EXPOSURE_MAX = 13  # tenths, of 100 at most; docs/operate/deployment.md lists what is left

TOO_OLD = 77
# PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN: stays with a process for good, and goes over to those that it starts
DENIED = f"""
import ctypes, sys
from pathlib import Path
from tests.support.gateway_process import GatewayProcess
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
    sys.exit({TOO_OLD})
with GatewayProcess(Path(sys.argv[1]), Path(sys.argv[2]), "", {{"registry.toml": ""}}) as gateway:
    assert gateway.port
"""


def test_units_are_understood(analyze: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """`systemd-analyze verify` reports nothing about any of them, where the commands that they start are."""
    folder = tmp_path / "usr/local/lib/systemd/system"
    folder.mkdir(parents=True)
    for unit in UNITS.iterdir():
        text = unit.read_text(encoding="utf-8")
        for command in ("maxam-gateway", "maxam-admin", "maxam-bridge"):
            text = text.replace(f"=/opt/maxam/current/bin/{command}", "=/bin/true")
        assert unit.suffix in (".timer", ".path") or "=/bin/true" in text
        (folder / unit.name).write_text(text, encoding="utf-8")
    done = analyze("verify", *map(str, sorted(folder.iterdir())))
    ours = [line for line in done.stderr.splitlines() if "maxam" in line]
    assert ours == []


@pytest.mark.parametrize("service", SERVICES)
def test_services_may_do_little(analyze: Callable[..., subprocess.CompletedProcess[str]], service: str) -> None:
    """`systemd-analyze security` finds an exposure of 1.3 at most, of 10."""
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", str(UNITS / service))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_has_files_for_all_connections() -> None:
    """As many connections as the gateway allows by default are files, beside its own, and those in their handshake."""
    limits = Limits()
    (files,) = settings_of(UNITS / "maxam-gateway.service")["LimitNOFILE"]
    assert int(files) > limits.connections_max + limits.connections_unauthenticated_max + 1000


def test_the_unit_starts_a_former_leader_again() -> None:
    """A member that leads no longer ends with a status after which systemd starts it. A configuration that is wrong is not tried again."""
    unit = settings_of(UNITS / "maxam-gateway.service")
    assert str(RESTART) in unit["RestartForceExitStatus"][0].split()
    assert str(RESTART) not in unit["RestartPreventExitStatus"][0].split()
    (starts,) = unit["StartLimitBurst"]
    assert int(starts) >= 20, "handovers of an upgrade that goes back and forth"


def test_the_unit_waits_for_a_graceful_stop() -> None:
    """A gateway that is still stopping as it promises to is not killed by systemd."""
    (seconds,) = settings_of(UNITS / "maxam-gateway.service")["TimeoutStopSec"]
    assert int(seconds.removesuffix("s")) >= 2 * Limits().stop_timeout_s


def test_the_gateway_needs_no_memory_that_is_written_and_run(certificates: Path, tmp_path: Path) -> None:
    """As MemoryDenyWriteExecute has it: what may be written may never be run. The kernel holds the gateway and its processes to it."""
    done = subprocess.run(
        [sys.executable, "-c", DENIED, str(tmp_path), str(certificates)], cwd=DEPLOY.parent, capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode == TOO_OLD:
        pytest.skip("this kernel is older than 6.3: it has no such flag")
    assert done.returncode == 0, done.stderr

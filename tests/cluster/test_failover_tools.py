"""The demo of a cluster, and `maxam-bench run --kill-leader`: what each kill of a leader does to clients."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster_site import ClusterSite, issue_cluster_certificates
from tests.support.etcd_cluster import EtcdCluster, require_etcd
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program in the tree until it ends."""
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=10 * PATIENCE_S, check=False
    )


@pytest.mark.slow
def test_the_demo_kills_its_leader_and_loses_nothing(tmp_path: Path) -> None:
    """Each kill makes another member the leader. Clients wait for a RECEIPT, and no accepted value is lost."""
    require_etcd()
    folder = tmp_path / "cluster"
    options = ["--machines", "20", "--rate", "100", "--kills", "2", "--quiet-s", "0.5", "--json"]
    done = run(["-m", "maxam.demo.cluster", "--folder", str(folder), *options])
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert [kill["lost"] for kill in found["kills"]] == [0, 0]
    assert found["lost"] == found["older"] == found["lacking"] == found["rejected"] == 0
    for kill in found["kills"]:
        assert kill["leader"] != kill["next_leader"]
        assert 0 < kill["no_receipt_s"] <= kill["publisher_s"]
        assert kill["reconnected"] >= 5  # four publishers and a subscriber
    assert found["percentiles"]["no_receipt_s"]["max"] == max(kill["no_receipt_s"] for kill in found["kills"])


@pytest.mark.slow
def test_a_leader_is_killed_by_a_command_of_the_user(tmp_path: Path) -> None:
    """The command gets the address that serves. The report has the effects on clients. A command that fails ends the run."""
    certificates = tmp_path / "certificates"
    issue_cluster_certificates(certificates)
    (tmp_path / "etcd").mkdir()
    with EtcdCluster(tmp_path / "etcd") as etcd, ClusterSite(tmp_path / "site", certificates, etcd, 2) as site:
        site.found("a")
        for member in site.members.values():
            member.start()
        site.wait_for_ready("a", 1)
        for name, member in site.members.items():
            (tmp_path / f"{site.ports[name]}.pid").write_text(str(member.pid))
        servers = ",".join(f"127.0.0.1:{port}" for port in site.ports.values())
        load = ["--server", servers, "--certificates", str(certificates), "--topics", "8", "--rate", "80"]
        command = [
            "-m",
            "maxam.bench",
            "run",
            *load,
            "--publishers",
            "2",
            "--duration",
            "1s",
            "--json",
            "--kill-leader",
        ]
        refused = run([*command, "echo no right to do that; exit 3"])
        assert refused.returncode != 0
        assert "no right to do that" in refused.stderr
        done = run([*command, f"kill -KILL $(cat {tmp_path}/$MAXAM_LEADER_PORT.pid)"])
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    (kill,) = found["kills"]
    assert kill["leader"] == f"127.0.0.1:{site.ports['a']}"
    assert kill["next_leader"] == f"127.0.0.1:{site.ports['b']}"
    assert found["lost"] == found["older_after_newer"] == 0
    assert 0 < kill["no_receipt_s"] / 2 < kill["stale_s"]


def test_options_without_a_meaning_are_refused() -> None:
    """An option that the measurement of failover would ignore ends the command."""
    done = run(["-m", "maxam.bench", "run", "--kill-leader", "true", "--slow-subscribers", "2", "--certificates", "."])
    assert done.returncode == 2
    assert "--slow-subscribers" in done.stderr

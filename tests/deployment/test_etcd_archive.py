"""The archive of etcd: equal bytes, a unit that systemd understands, and a node that gateways accept."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from maxam.cluster.etcd import EtcdLog
from maxam.cluster.log import LogLostError, LogSize
from maxam.demo.etcd_nodes import FLAGS, QUOTA_BYTES, issue_etcd_certificates
from tests.deployment.test_units import EXPOSURE_MAX
from tests.support.gateway_process import kept_ports
from tests.support.patience import PATIENCE_S

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "etcd/maxam-etcd.service"


def make(folder: Path) -> Path:
    """Make the archive in a folder."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1000000000"}
    done = subprocess.run(
        [DEPLOY / "make-etcd-archive", folder], env=environment, capture_output=True, text=True, check=False
    )
    if "Go is not installed" in done.stderr and not os.environ.get("CI"):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive."""
    return make(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def root(archive: Path, tmp_path: Path) -> Path:
    """A root below which it is installed."""
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path], check=True)
    (top,) = tmp_path.iterdir()
    subprocess.run([top / "install", "--root", tmp_path / "root"], check=True, stdout=subprocess.DEVNULL)
    return tmp_path / "root"


def test_it_is_made_reproducibly(archive: Path, tmp_path: Path) -> None:
    """Two archives have equal bytes, and each program in them comes with licences."""
    assert hashlib.sha256(make(tmp_path).read_bytes()).digest() == hashlib.sha256(archive.read_bytes()).digest()
    names = subprocess.run(["tar", "-tzf", archive], capture_output=True, text=True, check=True).stdout
    assert re.search(r"/licences/go\.etcd\.io_etcd_server_v3@v[0-9.]+_LICENSE$", names, re.MULTILINE)


def test_the_unit_is_understood(analyze: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """`systemd-analyze` reports nothing about it, and rates its exposure as low as that of the gateway."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("=/opt/maxam-etcd/current/bin/etcd", "=/bin/true"))
    done = analyze("verify", str(unit))
    assert [line for line in done.stderr.splitlines() if "maxam" in line] == []
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", str(unit))
    assert done.returncode == 0, done.stdout


def test_a_node_of_the_unit_is_one_that_gateways_accept(root: Path, tmp_path: Path) -> None:
    """The unit has the flags of the nodes that all other tests use. A node that it starts takes entries of the largest size."""
    command = shlex.split(command_of(UNIT))
    # Beside these, nodes of the unit compare their data at the start. That takes 14 s if all start together.
    for flag in FLAGS:
        name, _, value = flag.partition("=")
        assert any(one.startswith(f"{name}=") and value in one for one in command), flag
    tls = root / "etc/maxam-etcd/tls"
    issued = tmp_path / "issued"
    issued.mkdir()
    issue_etcd_certificates(issued)
    for source, name in (("ca", "ca"), ("server", "etcd"), ("client", "peer")):
        for suffix in ("pem", "key"):
            shutil.copy(issued / f"{source}.{suffix}", tls / f"{name}.{suffix}")
    client, peer = kept_ports(2)
    variables = (root / "etc/maxam-etcd/etcd.env").read_text()
    variables = variables.replace("10.0.0.1:2379", f"127.0.0.1:{client}").replace("10.0.0.1:2380", f"127.0.0.1:{peer}")
    variables = re.sub(",etcd-b=.*", "", variables)
    environment = dict(line.split("=", 1) for line in variables.splitlines() if line and line[0] != "#")
    places = [one.replace("=/", f"={root}/", 1) if one[0] == "-" else f"{root}{one}" for one in command]
    (root / "var/lib/maxam-etcd").mkdir(parents=True)
    with (tmp_path / "log").open("wb") as log:
        node = subprocess.Popen(places, env=environment, stderr=log)
    try:
        assert proved(f"https://127.0.0.1:{client}", tls, tmp_path / "log").quota == QUOTA_BYTES
    finally:
        node.kill()
        node.wait(PATIENCE_S)


def proved(address: str, tls: Path, said: Path) -> LogSize:
    """Return what a gateway finds when it proves a node, as soon as the node answers."""
    log = EtcdLog("venue", [address], tls / "ca.pem", tls / "peer.pem", tls / "peer.key")
    ends = time.monotonic() + PATIENCE_S
    try:
        while True:
            try:
                return log.prove(4_194_304)
            except LogLostError:
                assert time.monotonic() < ends, said.read_text()
    finally:
        log.close()


def command_of(unit: Path) -> str:
    """Return the command of a unit, whose lines go on after a backslash."""
    joined = unit.read_text().replace("\\\n", " ")
    (command,) = [line for line in joined.splitlines() if line.startswith("ExecStart=")]
    return command.removeprefix("ExecStart=")


def test_uninstalling_leaves_what_is_the_operators(root: Path, tmp_path: Path) -> None:
    """Settings stay over a second installation and the end of it; the program goes."""
    settings = root / "etc/maxam-etcd/etcd.env"
    settings.write_text("ETCD_NAME=mine\n")
    (top,) = [one for one in tmp_path.iterdir() if one.name.startswith("maxam-etcd-")]
    for arguments in ((), ("--uninstall",)):
        subprocess.run([top / "install", *arguments, "--root", root], check=True, stdout=subprocess.DEVNULL)
    assert settings.read_text() == "ETCD_NAME=mine\n"
    assert not (root / "opt/maxam-etcd").exists()
    assert not (root / "usr/local/bin/maxam-etcdctl").is_symlink()

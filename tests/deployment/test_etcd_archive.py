"""The archive of etcd: equal bytes, a unit that systemd understands, a node that gateways accept, and commands that the guide has."""

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
from maxam.cluster.etcd_messages import PUT, put_request
from maxam.cluster.log import LogLostError, LogSize
from maxam.demo.etcd_nodes import FLAGS, QUOTA_BYTES, issue_etcd_certificates
from tests.deployment.test_units import EXPOSURE_MAX
from tests.docs.guides import blocks
from tests.support.etcd_cluster import EtcdCluster, EtcdNode
from tests.support.gateway_process import kept_ports
from tests.support.patience import PATIENCE_S

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "etcd/maxam-etcd.service"
GUIDE = DEPLOY.parent / "docs/operate/cluster.md"
ROOMY_BYTES = 33_554_432  # a quota that is soon reached
NODE, PEER = "etcd-c", "https://10.0.0.3:2380"  # that the guide replaces


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


class Operator:
    """Somebody who pastes the blocks of a section, with the names and addresses of their own nodes."""

    def __init__(self, root: Path, etcd: EtcdCluster, heading: str) -> None:
        """Read the section, and the first block of the page, which lists the nodes."""
        text = GUIDE.read_text(encoding="utf-8")
        text = re.sub(r"^ {3}", "", text, flags=re.MULTILINE)  # blocks of numbered steps
        given = [
            "\n".join(one.lines)
            for one in blocks(text)
            if one.kind == "sh" and "/etc/maxam-etcd/tls" in "".join(one.lines)
        ]
        ours = ["\n".join(one.lines) for one in blocks(text.split(f"\n## {heading}\n")[1].split("\n## ")[0])]
        self.blocks = [one for one in ours if one != given[0]]
        self._begin = given[0]
        for of_guide, own in (
            ("/etc/maxam-etcd/tls", str(etcd.certificates)),
            ("https://10.0.0.1:2379,https://10.0.0.2:2379,https://10.0.0.3:2379", ",".join(etcd.endpoints)),
            ("peer.", "client."),
        ):
            assert of_guide in self._begin
            self._begin = self._begin.replace(of_guide, own)
        self._programs = root / "usr/local/bin"

    def paste(self, text: str) -> str:
        """Run commands; return what they print."""
        script = f"set -euo pipefail\n{self._begin}\nPATH={self._programs}:$PATH\n{text}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout


def id_of(listed: str, address: str) -> str:
    """Return the ID in the line of a table that has an address."""
    (line,) = [one for one in listed.splitlines() if address in one]
    found = re.search(r"\b[0-9a-f]{12,16}\b", line)
    assert found is not None, listed
    return found[0]


def test_a_full_etcd_gets_room_and_another_leader(root: Path, tmp_path: Path) -> None:
    """The alarm is gone, nodes take writes again, and the lead moves."""
    (tmp_path / "etcd").mkdir()
    with EtcdCluster(tmp_path / "etcd", quota_bytes=ROOMY_BYTES) as etcd:
        operator = Operator(root, etcd, "etcd without room, or with a slow disk")
        keys, remove, room, move = operator.blocks
        etcd.fill_up()
        assert operator.paste("maxam-etcdctl alarm list").count("NOSPACE") > 0
        assert re.search(r"^ *\d+ /other$", operator.paste(keys), re.MULTILINE)
        operator.paste(remove)
        operator.paste(room)
        assert operator.paste("maxam-etcdctl alarm list") == ""
        etcd.nodes[0].call(PUT, put_request(b"/other/again", b"room"))
        leader = etcd.leader()
        other = next(node for node in etcd.nodes if node is not leader)
        status, move = move.split("\n")
        operator.paste(move.replace("ID", id_of(operator.paste(status), other.address)))
        assert etcd.leader() is other


def test_a_node_is_replaced(root: Path, tmp_path: Path) -> None:
    """An empty node takes the place of one that is lost, under its address, and has what was written."""
    (tmp_path / "etcd").mkdir()
    with EtcdCluster(tmp_path / "etcd") as etcd:
        operator = Operator(root, etcd, "Replace a node of etcd")
        replace, health = operator.blocks
        listing, remove, add = replace.split("\n")
        etcd.nodes[0].call(PUT, put_request(b"/kept", b"1"))
        lost = etcd.nodes[2]
        lost.kill()
        etcd.leader()
        listed = operator.paste(listing)
        operator.paste(remove.replace("ID", id_of(listed, lost.address)))
        peer = next(one for one in lost._command if one.startswith("--initial-advertise-peer-urls=")).partition("=")[2]
        ends = time.monotonic() + PATIENCE_S
        printed = ""
        while not printed:  # etcd adds no node before the others have known each other for some seconds
            try:
                printed = operator.paste(add.replace(NODE, lost.name).replace(PEER, peer))
            except AssertionError as error:
                if "unhealthy" not in str(error) or time.monotonic() > ends:
                    raise
                time.sleep(0.5)
        assert 'ETCD_INITIAL_CLUSTER_STATE="existing"' in printed
        shutil.rmtree(lost.folder / "data")
        command = [*lost._command, "--initial-cluster-state=existing"]
        etcd.nodes[2] = node = EtcdNode(lost.name, lost.address, lost.folder, command, etcd.certificates)
        lost.close()
        node.start()
        etcd.wait()
        assert operator.paste(f"{health} 2>&1").count("is healthy") == 3
        own = f"ETCDCTL_ENDPOINTS={node.address} maxam-etcdctl get /kept --consistency s"
        assert operator.paste(own).split() == ["/kept", "1"]

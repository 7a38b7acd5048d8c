"""Enrolment in a cluster of processes: rights of enrolled clients survive the member that gave them."""

import datetime as dt
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from maxam.client import ClientError, connect
from maxam.gateway.enrolled_file import STALE
from maxam.pki.authority import AuthorityFolder
from tests.support.cluster_site import ClusterSite, issue_cluster_certificates
from tests.support.etcd_cluster import EtcdCluster
from tests.support.gateway_process import kept_ports

pytestmark = pytest.mark.slow

PASSPHRASE = "correct horse battery staple"  # noqa: S105  # of nothing but this test


def enrolling(site: ClusterSite, folder: Path, certificates: Path) -> dict[str, int]:
    """Have all members serve enrolment by one authority; return the port of each."""
    AuthorityFolder.create(folder / "ca", "clients", PASSPHRASE, dt.datetime.now(dt.UTC), 100)
    (folder / "passphrase").write_text(PASSPHRASE)
    (folder / "passphrase").chmod(0o600)
    both = (certificates / "ca.pem").read_bytes() + (folder / "ca" / "ca.pem").read_bytes()
    (folder / "clients.pem").write_bytes(both)
    ports = dict(zip(site.members, kept_ports(len(site.members)), strict=True))
    for name, member in site.members.items():
        policy = member.folder / "policy.toml"
        policy.write_text(policy.read_text().replace('"metrics"]', '"metrics", "enrol"]'))
        file = member.folder / "maxam.toml"
        text = file.read_text().replace("policy.file =", 'policy.enrolled = "enrolled.toml"\npolicy.file =', 1)
        text = text.replace(f'client_ca = "{certificates}/ca.pem"', f'client_ca = "{folder}/clients.pem"', 1)
        text += f"""
            [enrolment]
            folder = "{folder}/ca"
            passphrase_file = "{folder}/passphrase"
            server_ca = "{certificates}/ca.pem"
            host = "127.0.0.1"
            port = {ports[name]}
            """
        file.write_text(text)
    return ports


def is_served(port: int, client: Path, certificates: Path) -> bool:
    """Return True if an enrolled client may send."""

    async def send() -> bool:
        cert, key, ca = client / "client.pem", client / "client.key", certificates / "ca.pem"
        try:
            async with connect("127.0.0.1", port, client_id="e", certificate=cert, key=key, ca=ca) as connection:
                return (await connection.send("X/Enrolled", b"1")).accepted
        except ClientError:
            return False

    return trio.run(send)


def test_enrolled_clients_have_their_rights_at_the_next_leader(tmp_path: Path) -> None:
    """The leader enrols, followers refuse, and all members have the file: also one that was away, and one that is new."""
    certificates = tmp_path / "certs"
    issue_cluster_certificates(certificates)
    (tmp_path / "etcd").mkdir()
    settings: dict[str, Any] = {"copies_min": 1, "cut_off_s": 0.0, "log_keep_s": 1.0, "lease_s": 1.0}
    with (
        EtcdCluster(tmp_path / "etcd") as etcd,
        ClusterSite(tmp_path / "site", certificates, etcd, 3, **settings) as site,
    ):
        ports = enrolling(site, tmp_path, certificates)
        files = {name: member.folder / "enrolled.toml" for name, member in site.members.items()}
        site.found("a")
        for name in "ab":
            site.members[name].start()
            site.wait_for(name, "serving" if name == "a" else "following")
        token = json.loads(site.admin("a", "enrolment", "token", "create", "meters", "--capability", "all", "--json"))
        client = tmp_path / "client"

        def enrol(name: str, *arguments: str) -> int:
            at = ["--at", f"localhost:{ports[name]}", *arguments]
            environment = {"MAXAM_ENROLMENT_TOKEN": token["token"]}
            return site.run("maxam.cli.main", "main", "enrol", str(client), *at, **environment).returncode

        assert enrol("b", "--ca-sha256", token["ca_sha256"]) != 0
        assert not files["b"].exists()
        assert enrol("a", "--ca-sha256", token["ca_sha256"]) == 0
        assert b"meters" in files["a"].read_bytes()

        def are_equal(*names: str) -> bool:
            found = [files[name].read_bytes() if files[name].exists() else b"" for name in names]
            return found[0] != b"" and found.count(found[0]) == len(found)

        site.until(partial(are_equal, "a", "b"), "the file at b")
        files["c"].write_text("")  # of an earlier member on this machine
        while not site.trimmed:
            assert is_served(site.ports["a"], client, certificates)
        site.members["c"].start()
        site.wait_for("c", "copying")
        site.until(partial(are_equal, "a", "b", "c"), "the file at c")
        assert Path(f"{files['c']}{STALE}").exists()

        site.members["b"].stop()
        site.members["a"].kill()
        site.wait_for("c", "serving")
        assert is_served(site.ports["c"], client, certificates)
        assert enrol("c", "--renew") == 0
        assert is_served(site.ports["c"], client, certificates)
        site.members["a"].start()
        site.until(partial(are_equal, "a", "c"), "the renewal at a")

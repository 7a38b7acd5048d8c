"""kill -9 between the steps of an enrolment: the same key gets the same certificate, another key none, and rights are as promised."""

import base64
import datetime as dt
import json
import signal
import ssl
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs7

from maxam.cli.main import main
from maxam.pki.authority import INDEX_FILE, AuthorityFolder
from maxam.pki.certificates import fingerprint, issue_development_certificates
from maxam.pki.est_client import new_key, new_request
from tests.support.gateway_process import end, launch, port_of
from tests.support.patience import PATIENCE_S

PASSPHRASE = "correct horse battery staple"  # noqa: S105  # of nothing but this test
# The gateway, which kills itself when it is about to replace the n-th file after the making of a token.
GATEWAY = """
import os, signal, sys
from maxam import durable_files
from maxam.pki import authority
from maxam.enrolment import enrolment, tokens
steps = int(sys.argv.pop())
original = durable_files.replace_durably
def replace_durably(path, content, mode):
    global steps
    if "MII" in str(content) or "fingerprints = [" in str(content):
        steps -= 1
        if steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    original(path, content, mode)
authority.replace_durably = enrolment.replace_durably = tokens.replace_durably = replace_durably
from maxam.main import gateway
gateway()
"""


class Gateway:
    """A gateway that dies at a certain step, or not at all for 0."""

    def __init__(self, folder: Path, dies_at: int) -> None:
        self._log = folder / "log"
        command = ["-c", GATEWAY, "--config", str(folder / "maxam.toml"), str(dies_at)]
        self._process, addresses = launch(command, self._log)
        self.ports = [port_of(address) for address in addresses.values()]

    def end(self) -> int:
        """Stop it unless it is gone; return its exit code."""
        return end(self._process, signal.SIGTERM, self._log)


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_crash_at_any_step_gives_one_certificate(tmp_path: Path, step: int) -> None:
    """After a kill at each step the client asks again, and there is one certificate, one principal and one line in the index.

    The steps are before the token is marked as used, before the index, before the policy file, and before the token is marked as done.
    """
    certificates, ca = tmp_path / "certs", tmp_path / "ca"
    fingerprints = issue_development_certificates(certificates, dt.datetime.now(dt.UTC), ["operator"])
    authority = AuthorityFolder.create(ca, "clients", PASSPHRASE, dt.datetime.now(dt.UTC), 100)
    (tmp_path / "passphrase").write_text(PASSPHRASE)
    (tmp_path / "passphrase").chmod(0o600)
    (tmp_path / "clients.pem").write_bytes((certificates / "ca.pem").read_bytes() + (ca / "ca.pem").read_bytes())
    (tmp_path / "policy.toml").write_text(
        f"""
        capabilities.Operations.admin = ["enrol"]
        [[principals]]
        name = "operator"
        fingerprints = ["{fingerprints["operator"]}"]
        capabilities = ["Operations"]
        """
    )
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "registry.toml").write_text("")
    (tmp_path / "maxam.toml").write_text(
        """
        listener.port = 0
        admin.port = 0
        schemas.folder = "schemas"
        journal.folder = "journal"
        [tls]
        certificate = "certs/server.pem"
        key = "certs/server.key"
        client_ca = "clients.pem"
        [policy]
        file = "policy.toml"
        enrolled = "enrolled.toml"
        [enrolment]
        folder = "ca"
        passphrase_file = "passphrase"
        server_ca = "certs/ca.pem"
        port = 0
        """
    )
    request = new_request(new_key("p256"))
    gateway = Gateway(tmp_path, step)
    try:
        options = ["--gateway", f"localhost:{gateway.ports[1]}", "--ca", str(certificates / "ca.pem")]
        options += ["--certificate", str(certificates / "operator.pem"), "--key", str(certificates / "operator.key")]
        made = CliRunner().invoke(main, [*options, "enrolment", "token", "create", "meters", "--json"])
        token = json.loads(made.output)["token"]
        with pytest.raises((OSError, HTTPException)):
            _enrol(gateway, certificates, token, request)
    finally:
        assert gateway.end() == -9
    gateway = Gateway(tmp_path, 0)
    try:
        if step > 1:
            assert _enrol(gateway, certificates, token, new_request(new_key("p256")))[0] == 403
        status, first = _enrol(gateway, certificates, token, request)
        assert status == 200
        assert _enrol(gateway, certificates, token, request) == (200, first)
        [certificate] = pkcs7.load_der_pkcs7_certificates(base64.b64decode(first))
        [entry] = authority.entries()
        assert entry.fingerprint == fingerprint(certificate)
        assert (tmp_path / "enrolled.toml").read_text().count(entry.fingerprint) == 1
        assert (ca / INDEX_FILE).read_text().count("\n") == 1
    finally:
        assert gateway.end() == 0


def _enrol(
    gateway: Gateway, certificates: Path, token: str, request: x509.CertificateSigningRequest
) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    connection = HTTPSConnection("localhost", gateway.ports[2], context=context, timeout=PATIENCE_S)
    credentials = base64.b64encode(f":{token}".encode()).decode()
    body = base64.b64encode(request.public_bytes(serialization.Encoding.DER))
    try:
        connection.request("POST", "/.well-known/est/simpleenroll", body, {"authorization": f"Basic {credentials}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()

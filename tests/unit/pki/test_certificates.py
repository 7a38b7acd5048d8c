"""The development certificates: what is written, and what TLS makes of it."""

import datetime as dt
import json
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from maxam.pki.certificates import CLIENTS, Authority, Issued, fingerprint, issue_development_certificates

NOW = dt.datetime.now(dt.UTC)  # OpenSSL knows no other time than the machine's
DAY = dt.timedelta(days=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Issue one folder for all tests that do not change it."""
    folder = tmp_path_factory.mktemp("certificates") / "certs-dev"
    issue_development_certificates(folder, NOW)
    return folder


def handshake(folder: Path, client: Path, crl: Path | None = None) -> bytes:
    """Shake hands in memory as gateway and client do, and give the client's certificate as the server sees it."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(folder / "server.pem", folder / "server.key")
    server_context.load_verify_locations(folder / "ca.pem")
    server_context.load_verify_locations(crl or folder / "crl.pem")
    server_context.verify_mode = ssl.CERT_REQUIRED
    server_context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF | ssl.VERIFY_X509_STRICT
    client_context = ssl.create_default_context(cafile=folder / "ca.pem")
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    client_context.load_cert_chain(client.with_suffix(".pem"), client.with_suffix(".key"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    peer = client_context.wrap_bio(to_client, to_server, server_hostname="localhost")
    pending = [peer, server]
    while pending:
        side = pending.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pending.append(side)
    certificate = server.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def write_client(folder: Path, issued: Issued) -> Path:
    """Write a further client's files and give their common path without suffix."""
    issued.write(folder, "client")
    return folder / "client"


def test_the_folder_holds_exactly_the_promised_files(folder: Path) -> None:
    """The folder holds the authority, its CRL, the server, the four clients and their fingerprints, nothing else."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["ca.pem", "ca.key", "crl.pem", "server.pem", "server.key", "fingerprints.json"]
        + [f"{name}.{kind}" for name in ("publisher", "subscriber", "operator", "pipeline") for kind in ("pem", "key")]
    )


def test_keys_are_for_their_owner_only(folder: Path) -> None:
    """Every private key has mode 0600 and is on P-256."""
    for path in folder.glob("*.key"):
        assert path.stat().st_mode & 0o777 == 0o600
    for path in folder.glob("*.pem"):
        if path.stem != "crl":
            key = x509.load_pem_x509_certificate(path.read_bytes()).public_key()
            assert isinstance(key, ec.EllipticCurvePublicKey)
            assert key.curve.name == "secp256r1"


def test_fingerprints_are_what_the_server_will_see(folder: Path) -> None:
    """`fingerprints.json` gives for each client the SHA-256 of the DER that the server receives in a strict handshake."""
    fingerprints = json.loads((folder / "fingerprints.json").read_text())
    assert set(fingerprints) == set(CLIENTS)
    for name in CLIENTS:
        assert fingerprint(x509.load_der_x509_certificate(handshake(folder, folder / name))) == fingerprints[name]


def test_the_server_is_known_by_its_names(folder: Path) -> None:
    """The server's certificate is for localhost, 127.0.0.1 and ::1."""
    certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]


def test_a_second_run_replaces_everything(tmp_path: Path) -> None:
    """Issuing into the same folder again leaves a folder that works, with other fingerprints."""
    first = issue_development_certificates(tmp_path, NOW)
    second = issue_development_certificates(tmp_path, NOW)
    assert set(first.values()).isdisjoint(second.values())
    assert handshake(tmp_path, tmp_path / "operator")


@pytest.mark.parametrize(
    ("valid_from", "valid_until", "problem"),
    [
        (NOW - 2 * DAY, NOW - DAY, "certificate has expired"),
        (NOW + DAY, NOW + 2 * DAY, "certificate is not yet valid"),
    ],
)
def test_time_bounds_hold(
    folder: Path, tmp_path: Path, valid_from: dt.datetime, valid_until: dt.datetime, problem: str
) -> None:
    """A client certificate outside its time is refused with the reason."""
    authority = Authority.read(folder)
    client = write_client(tmp_path, authority.issue("publisher", valid_from, valid_until))
    with pytest.raises(ssl.SSLCertVerificationError, match=problem):
        handshake(folder, client)


def test_another_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    """A client certificate of an authority of the same name but another key is refused."""
    other = Authority.create("maxam development CA", NOW)
    client = write_client(tmp_path, other.issue("publisher", NOW - DAY, NOW + DAY))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder, client)


def test_a_server_certificate_is_no_client_certificate(folder: Path) -> None:
    """The server's own certificate does not let anybody in as a client."""
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate purpose"):
        handshake(folder, folder / "server")


def test_a_revoked_certificate_is_refused(folder: Path, tmp_path: Path) -> None:
    """A client on the revocation list is refused, one beside it is not."""
    authority = Authority.read(folder)
    revoked = authority.issue("revoked", NOW - DAY, NOW + DAY)
    crl = tmp_path / "crl.pem"
    crl.write_bytes(authority.revocation_list_pem([revoked.certificate], NOW))
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        handshake(folder, write_client(tmp_path, revoked), crl=crl)
    assert handshake(folder, folder / "publisher", crl=crl)


@pytest.mark.slow
def test_an_edited_development_policy_is_kept(tmp_path: Path) -> None:
    """New certificates renew the fingerprints in an edited policy, and report it; the template makes any other."""
    folder, policy = tmp_path / "certs-dev", tmp_path / "policy-dev.toml"
    folder.mkdir()
    sources = Path(__file__).parents[3]
    for name in ("make-certs", "policy-dev.template.toml"):
        shutil.copy(sources / "certs-dev" / name, folder)

    def make() -> str:
        command = [sys.executable, str(folder / "make-certs")]
        environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stderr

    def names_what_is_there() -> bool:
        fingerprints = json.loads((folder / "fingerprints.json").read_bytes())
        return all(one in policy.read_text() for one in fingerprints.values())

    assert make() == ""
    first = policy.read_text()
    assert make() == ""
    assert names_what_is_there()
    assert policy.read_text() != first
    policy.write_text(policy.read_text() + "# mine\n")
    assert "was kept" in make()
    assert names_what_is_there()
    assert policy.read_text().endswith("# mine\n")
    (folder / "fingerprints.json").unlink()
    assert "of certificates that are gone" in make()
    policy.unlink()
    assert make() == ""
    assert names_what_is_there()

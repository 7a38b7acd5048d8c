"""A CA directory: certificates, CRLs, its files, and requests that it refuses."""

import datetime as dt
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from maxam.cli.main import main
from maxam.durable_files import replace_durably
from maxam.errors import ConfigurationError
from maxam.pki.authority import (
    INDEX_FILE,
    KEY_FILE,
    LIST_FILE,
    AuthorityFolder,
    RequestError,
    key_digest,
    read_passphrase,
    read_request,
)

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)
PASSPHRASE = "correct horse battery staple"  # noqa: S105  # of nothing but this test
SUBJECT = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "operator")])
DER = serialization.Encoding.DER


@pytest.fixture
def authority(tmp_path: Path) -> AuthorityFolder:
    """A new authority."""
    return AuthorityFolder.create(tmp_path / "ca", "test", PASSPHRASE, NOW, 3650)


def cli(*arguments: str | Path) -> str:
    """Run maxam-admin certs; return what it printed."""
    done = CliRunner(env={"MAXAM_CA_PASSPHRASE": PASSPHRASE}).invoke(main, ["certs", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def request(key: object, *extensions: x509.ExtensionType, algorithm: hashes.HashAlgorithm | None = None) -> bytes:
    """A request of a key, DER."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(SUBJECT)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key, algorithm).public_bytes(DER)  # type: ignore[arg-type]  # keys that are refused, too


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()),
        (ec.generate_private_key(ec.SECP384R1()), hashes.SHA384()),
        (rsa.generate_private_key(65537, 2048), hashes.SHA256()),
        (ed25519.Ed25519PrivateKey.generate(), None),
    ],
)
def test_of_a_request_only_the_key_counts(
    authority: AuthorityFolder, key: ec.EllipticCurvePrivateKey, algorithm: hashes.HashAlgorithm | None
) -> None:
    """For a request with any subject, CA flag, usage and hosts, the certificate is a client's with our name and nothing else."""
    asked = request(
        key,
        x509.BasicConstraints(ca=True, path_length=3),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName([x509.DNSName("gateway.venue")]),
        algorithm=algorithm,
    )
    certificate = authority.sign("meters", read_request(asked), NOW, 30)
    assert certificate.subject.rfc4514_string() == "CN=meters"
    assert key_digest(certificate.public_key()) == key_digest(key.public_key())
    extensions = certificate.extensions
    assert extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(
        ca=False, path_length=None
    )
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    with pytest.raises(x509.ExtensionNotFound):
        extensions.get_extension_for_class(x509.SubjectAlternativeName)
    certificate.verify_directly_issued_by(authority.certificate)
    assert certificate.serial_number.bit_length() > 96  # 159 random bits


@pytest.mark.slow
def test_weak_requests_are_refused() -> None:
    """Weak or unknown keys, old hashes, signatures of another key and garbage are refused with the reason."""
    good = request(ec.generate_private_key(ec.SECP256R1()), algorithm=hashes.SHA256())
    for data, said in [
        (request(rsa.generate_private_key(65537, 1024), algorithm=hashes.SHA256()), "RSA of 1024 bits"),  # noqa: S505
        (request(ec.generate_private_key(ec.SECP521R1()), algorithm=hashes.SHA256()), "secp521r1"),
        (request(ec.generate_private_key(ec.SECP256K1()), algorithm=hashes.SHA256()), "secp256k1"),
        (request(dsa.generate_private_key(2048), algorithm=hashes.SHA256()), "of another kind"),
        (request(ed448.Ed448PrivateKey.generate()), "of another kind"),
        (good[:-1] + bytes([good[-1] ^ 1]), "signature"),
        (good[:40] + b"X" + good[41:], "not a certificate|signature"),
        (good + b"\0", "not a certificate signing request"),
        (b"", "not a certificate signing request"),
        (b"\0" * 20_000, "20000 bytes"),
    ]:
        with pytest.raises(RequestError, match=said):
            read_request(data)


def test_each_flipped_bit_of_a_request_is_noticed_or_harmless() -> None:
    """No request with one bit flipped yields another key than the one that signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    good = request(key, algorithm=hashes.SHA256())
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        try:
            found = read_request(bytes(bad))
        except RequestError:
            continue
        assert key_digest(found) == key_digest(key.public_key())


def test_the_key_is_encrypted_and_only_its_passphrase_opens_it(authority: AuthorityFolder) -> None:
    """The key's file has mode 0600 and is worthless without the passphrase; short passphrases are refused."""
    path = authority.folder / KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"ENCRYPTED" in path.read_bytes()
    with pytest.raises(ConfigurationError, match="passphrase"):
        AuthorityFolder(authority.folder).unlock("wrong")
    with pytest.raises(ConfigurationError, match="expected 12 or more"):
        AuthorityFolder.create(authority.folder.parent / "other", "x", "short", NOW, 1)
    with pytest.raises(ConfigurationError, match="already"):
        AuthorityFolder.create(authority.folder, "x", PASSPHRASE, NOW, 1)


def test_a_passphrase_file_is_for_few(tmp_path: Path) -> None:
    """A file that everyone may read, or an empty one, is refused; a line end is not part of a passphrase."""
    path = tmp_path / "passphrase"
    replace_durably(path, b"secret words\n", 0o600)
    assert read_passphrase(path) == "secret words"
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_passphrase(path)
    replace_durably(path, b"\n", 0o600)
    with pytest.raises(ConfigurationError, match="is empty"):
        read_passphrase(path)


def test_a_day_in_the_life_of_an_authority(tmp_path: Path) -> None:
    """Made, issued, signed, renewed and revoked by the command; OpenSSL agrees with each step, and renewals fall with what they renew."""
    ca, crl = tmp_path / "ca", tmp_path / "ca" / LIST_FILE

    def verified(certificate: Path, purpose: str) -> bool:
        command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-crl_check", "-CRLfile", str(crl)]
        command += ["-CAfile", str(ca / "ca.pem"), str(certificate)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    cli("ca", ca, "--name", "Venue 12")
    cli("issue", ca, "gateway", "--server-name", "gateway.venue", "--server-name", "10.0.0.1", "--to", tmp_path)
    assert verified(tmp_path / "gateway.pem", "sslserver")
    assert not verified(tmp_path / "gateway.pem", "sslclient")
    assert (tmp_path / "gateway.key").stat().st_mode & 0o777 == 0o600
    cli("issue", ca, "member", "--server-name", "a.venue", "--link", "--to", tmp_path)
    cli("renew", ca, tmp_path / "member.pem", "--to", tmp_path / "member-2.pem")
    for member in ("member.pem", "member-2.pem"):
        assert verified(tmp_path / member, "sslserver")
        assert verified(tmp_path / member, "sslclient")
    csr, first, second = tmp_path / "meters.csr", tmp_path / "meters.pem", tmp_path / "meters-2.pem"
    csr.write_bytes(request(ed25519.Ed25519PrivateKey.generate()))
    cli("sign", ca, "meters", csr, "--to", first)
    cli("renew", ca, first, "--to", second)
    assert verified(first, "sslclient")
    assert not verified(first, "sslserver")
    assert verified(second, "sslclient")
    before = x509.load_pem_x509_crl(crl.read_bytes())
    assert "revoked meters" in cli("revoke", ca, first, "--reason", "stolen")
    assert not verified(first, "sslclient")
    assert not verified(second, "sslclient")
    assert verified(tmp_path / "gateway.pem", "sslserver")
    after = x509.load_pem_x509_crl(crl.read_bytes())
    numbers = [one.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number for one in (before, after)]
    assert numbers[0] < numbers[1]
    assert "is not due" in cli("crl", ca, "--if-due")
    assert cli("list", ca, "--json").count('"state": "revoked"') == 2
    for arguments, said in [
        (("issue", ca, "gateway", "--to", tmp_path), "exists"),
        (("revoke", ca, "00000000"), "no certificate of this authority"),
        (("renew", ca, first, "--to", second), "was revoked"),
    ]:
        done = CliRunner(env={"MAXAM_CA_PASSPHRASE": PASSPHRASE}).invoke(main, ["certs", *map(str, arguments)])
        assert done.exit_code == 1
        assert said in done.output


def test_a_list_is_due_when_two_thirds_of_its_time_are_over(authority: AuthorityFolder) -> None:
    """A new list is due early enough, and its number grows even where the last one was lost."""
    assert not authority.list_due(NOW + 19 * DAY)
    assert authority.list_due(NOW + 21 * DAY)
    (authority.folder / LIST_FILE).unlink()
    assert authority.list_due(NOW)
    authority.write_list(NOW + DAY)
    crl = x509.load_pem_x509_crl((authority.folder / LIST_FILE).read_bytes())
    assert crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number > NOW.timestamp()


def test_a_damaged_index_is_told(authority: AuthorityFolder) -> None:
    """A line that is not as it was written is named, and nothing is issued over it."""
    (authority.folder / INDEX_FILE).write_text('{"serial": 1}\n')
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    with pytest.raises(ConfigurationError, match=r"index\.jsonl: line 1"):
        authority.add(authority.sign("a", key, NOW, 1), "a", NOW, "test")


@pytest.mark.parametrize("damage", ["a server's name", "the index"])
def test_who_could_not_be_issued_a_certificate_is_left_no_key(tmp_path: Path, damage: str) -> None:
    """A failure leaves no file behind, so that the same command works once its cause is gone."""
    ca = tmp_path / "ca"
    cli("ca", ca, "--name", "Venue 12")
    name = "gateway.venue"
    if damage == "the index":
        (ca / INDEX_FILE).write_text("nonsense")
    else:
        name = "gäteway"
    arguments = ["certs", "issue", str(ca), "gateway", "--to", str(tmp_path / "to")]
    runner = CliRunner(env={"MAXAM_CA_PASSPHRASE": PASSPHRASE})
    assert runner.invoke(main, [*arguments, "--server-name", name]).exit_code == 1
    assert not list((tmp_path / "to").glob("*"))
    (ca / INDEX_FILE).write_text("")
    assert runner.invoke(main, [*arguments, "--server-name", "gateway.venue"]).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["gateway.key", "gateway.pem"]


def test_revocation_keeps_the_rhythm_of_the_list(authority: AuthorityFolder) -> None:
    """The last `certs crl --days` applies to the CRLs that follow, until the next one."""
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    authority.add(authority.sign("a", key, NOW, 100), "a", NOW, "test")
    for days in (90, 7):
        authority.write_list(NOW, days)
        authority.revoke(authority.entries()[0], "lost", NOW + DAY)
        authority.write_list(NOW + 2 * DAY)
        crl = x509.load_pem_x509_crl((authority.folder / LIST_FILE).read_bytes())
        assert crl.next_update_utc == NOW.replace(microsecond=0) + (2 + days) * DAY


def test_a_certificate_replaces_no_other_file(tmp_path: Path) -> None:
    """Only an older certificate of the same name, unless forced, and never a file of the authority; one that was not written is got again."""
    ca, csr, to = tmp_path / "ca", tmp_path / "a.csr", tmp_path / "a.pem"
    cli("ca", ca, "--name", "Venue 12")
    csr.write_bytes(request(ed25519.Ed25519PrivateKey.generate()))
    files = {path: path.read_bytes() for path in ca.iterdir()}
    runner = CliRunner(env={"MAXAM_CA_PASSPHRASE": PASSPHRASE})
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for target in (*files, notes):
        for force in ([], ["--force"])[: 2 if target in files else 1]:
            done = runner.invoke(main, ["certs", "sign", str(ca), "a", str(csr), "--to", str(target), *force])
            assert done.exit_code == 1, target
    assert {path: path.read_bytes() for path in ca.iterdir()} == files  # and nothing is in the index
    cli("sign", ca, "a", csr, "--to", to)
    first = to.read_bytes()
    cli("renew", ca, to, "--to", to)
    assert to.read_bytes() != first
    assert runner.invoke(main, ["certs", "sign", str(ca), "b", str(csr), "--to", str(to)]).exit_code == 1
    cli("sign", ca, "b", csr, "--to", to, "--force")
    done = runner.invoke(main, ["certs", "sign", str(ca), "c", str(csr), "--to", str(tmp_path / "none" / "c.pem")])
    assert done.exit_code == 3
    cli("get", ca, AuthorityFolder(ca).entries()[-1].serial, "--to", tmp_path / "c.pem")
    written = x509.load_pem_x509_certificate((tmp_path / "c.pem").read_bytes())
    assert f"{written.serial_number:x}" in done.output


def test_of_two_that_make_an_authority_at_once_one_does(tmp_path: Path) -> None:
    """The other one is refused: key and certificate belong together."""
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(AuthorityFolder.create, tmp_path / "ca", str(n), PASSPHRASE, NOW, 10) for n in range(4)]
    assert sorted(one.exception() is None for one in made) == [False, False, False, True]
    AuthorityFolder(tmp_path / "ca").unlock(PASSPHRASE)

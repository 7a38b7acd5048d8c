"""Revocation lists: which are believed, which may follow which, and whom they refuse."""

import contextlib
import datetime as dt
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from maxam.errors import ConfigurationError
from maxam.gateway.revocation import (
    Chain,
    Revocations,
    facts_of,
    load_revocations,
    read_certificate,
    refuse_older,
)

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


@dataclass
class Signer:
    """An authority of a test."""

    certificate: x509.Certificate
    key: Key

    @property
    def digest(self) -> hashes.HashAlgorithm | None:
        """Hash of its signatures, None for Ed25519."""
        return None if isinstance(self.key, ed25519.Ed25519PrivateKey) else hashes.SHA256()

    def crl(
        self,
        serials: Sequence[int] = (),
        number: int | None = 1,
        made: dt.datetime = NOW,
        good_for: dt.timedelta = DAY,
        extension: x509.ExtensionType | None = None,
    ) -> bytes:
        """Sign a list."""
        name = self.certificate.subject
        builder = (
            x509.CertificateRevocationListBuilder().issuer_name(name).last_update(made).next_update(made + good_for)
        )
        if number is not None:
            builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        if extension is not None:
            builder = builder.add_extension(extension, critical=True)
        for serial in serials:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(made)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self.key, self.digest).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]

    def issue(self, name: str, key: Key | None = None, *, authority: bool = False, says_key: bool = True) -> "Signer":
        """Certify somebody."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        return Signer(_certificate(name, key, self.certificate.subject, self, authority, says_key), key)


def authority(name: str, key: Key | None = None, *, signs_lists: bool = True) -> Signer:
    """Make a self-signed one."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    own = Signer.__new__(Signer)
    own.key = key
    own.certificate = _certificate(name, key, _name(name), own, True, True, signs_lists)
    return own


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    name: str,
    key: Key,
    issuer: x509.Name,
    signer: Signer,
    is_authority: bool,
    says_key: bool,
    signs_lists: bool = True,
) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
    )
    if is_authority:
        usage = x509.KeyUsage(False, False, False, False, False, True, signs_lists, False, False)
        builder = builder.add_extension(usage, critical=True)
    if says_key:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
        builder = builder.add_extension(identifier, critical=False)
    return builder.sign(signer.key, signer.digest)  # type: ignore[arg-type]


def chain(*signers: Signer) -> Chain:
    """The chain that OpenSSL would have verified."""
    return tuple(facts_of(signer.certificate) for signer in signers)


def load(pem: bytes, *authorities: Signer) -> Revocations:
    """Load a file of lists under these authorities."""
    return load_revocations(pem, "crl.pem", [signer.certificate for signer in authorities])


def problem(revocations: Revocations, *certificates: Signer, at: dt.datetime = NOW, refuse: bool = False) -> str | None:
    """Return the ERROR with which a chain is refused: message, colon, detail."""
    found = revocations.problem(chain(*certificates), at.timestamp(), refuse)
    return None if found is None else f"{found.message}: {found.detail}"


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
        rsa.generate_private_key(65537, 2048),
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=["P-256", "P-384", "RSA", "Ed25519"],
)
def test_who_is_on_the_list_is_refused_and_nobody_else(key: Key) -> None:
    """A CRL of a CA with any kind of key refuses its certificates, and has number, CA and date."""
    root = authority("root", key)
    good, bad = root.issue("good"), root.issue("bad")
    lists = load(root.crl([bad.certificate.serial_number]), root)
    assert problem(lists, good, root) is None
    said = problem(lists, bad, root)
    assert said is not None
    assert f"{bad.certificate.serial_number:x} of root" in said
    assert "2026-11-21" in said


def test_each_authority_has_its_own_list() -> None:
    """Several lists in one file: a number counts only under the authority whose list it is on, intermediate ones included."""
    root, other = authority("root"), authority("other")
    middle = root.issue("middle", authority=True)
    client, theirs = middle.issue("client"), other.issue("theirs")
    serial = client.certificate.serial_number
    lists = load(root.crl([serial]) + b"text between\n" + other.crl([serial]), root, other, middle)
    assert problem(lists, client, middle, root) is None
    lists = load(root.crl() + middle.crl([serial]), root, middle)
    assert problem(lists, client, middle, root) is not None
    assert problem(lists, theirs, other) is None


def test_an_authority_that_is_revoked_takes_its_clients_along() -> None:
    """When a root revokes an intermediate CA, all certificates of that CA are refused."""
    root = authority("root")
    middle = root.issue("middle", authority=True)
    lists = load(root.crl([middle.certificate.serial_number]), root)
    said = problem(lists, middle.issue("client"), middle, root)
    assert said is not None
    assert said.startswith("certificate revoked: an authority above the certificate")


def test_lists_of_two_keys_of_one_name_are_told_apart() -> None:
    """A CA that has changed its key has a CRL for each key. A certificate without the id of its signing key is compared with all."""
    old, new = authority("root"), authority("root")
    client, silent = new.issue("client"), new.issue("silent", says_key=False)
    key_of = x509.AuthorityKeyIdentifier.from_issuer_public_key
    serials = [client.certificate.serial_number, silent.certificate.serial_number]
    lists = load(old.crl(serials) + new.crl(), old, new)
    assert {one.key_identifier for one in lists.lists} <= {
        key_of(one.key.public_key()).key_identifier for one in (old, new)
    } | {None}
    assert problem(lists, silent, new) is not None
    lists = load(old.crl() + new.crl(serials), old, new)
    assert problem(lists, client, new) is not None


def test_an_authority_may_name_its_key_in_several_ways() -> None:
    """Certificate and CRL may have different ids of the key of their CA: the key itself decides."""
    root = authority("root")
    client = root.issue("client")
    named = x509.AuthorityKeyIdentifier(b"otherwise", None, None)
    lists = load(root.crl([client.certificate.serial_number], extension=named), root)
    assert lists.lists[0].key_identifier == b"otherwise"
    assert problem(lists, client, root) is not None


def test_an_expired_list_counts_on_unless_told_otherwise() -> None:
    """After nextUpdate a CRL still refuses its certificates. `refuse` refuses all certificates of that CA, and of no other."""
    root, other = authority("root"), authority("other")
    good, bad, theirs = root.issue("good"), root.issue("bad"), other.issue("theirs")
    lists = load(root.crl([bad.certificate.serial_number]), root, other)
    late = NOW + 2 * DAY
    assert lists.expired(NOW.timestamp()) == []
    assert [one.name for one in lists.expired(late.timestamp())] == ["root"]
    assert problem(lists, good, root, at=late) is None
    assert (problem(lists, bad, root, at=late) or "").startswith("certificate revoked: ")
    assert (problem(lists, good, root, at=late, refuse=True) or "").startswith("revocation list expired: ")
    assert problem(lists, theirs, other, at=late, refuse=True) is None


def test_lists_that_prove_nothing_are_not_loaded() -> None:
    """Another's signature, an unknown issuer, an authority that may not sign lists, two of one, parts of a list: each is named."""
    root, impostor, stranger = authority("root"), authority("root"), authority("stranger")
    mute = authority("mute", signs_lists=False)
    partial = x509.IssuingDistributionPoint(None, None, False, False, None, True, False)
    of_authorities = x509.IssuingDistributionPoint(None, None, False, True, None, False, False)
    of_clients = x509.IssuingDistributionPoint(None, None, True, False, None, False, False)
    good = root.crl()
    for pem, told in (
        (b"", "the file has no CRL"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "list 1: not a revocation list"),
        (impostor.crl(), "list 1: is not signed by root"),
        (good + stranger.crl(), "list 2: its issuer stranger is not in client_ca"),
        (mute.crl(), "list 1: is not signed by mute"),
        (good + good, "list 2: a second list of root"),
        (root.crl(extension=partial), "list 1: is a partial or indirect list"),
        (root.crl(extension=of_authorities), "list 1: is a partial or indirect list"),
        (root.crl(extension=of_clients), "list 1: is a partial or indirect list"),
        (root.crl(extension=x509.DeltaCRLIndicator(1)), "list 1: is a partial or indirect list"),
        (root.crl(extension=x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3"), b"")), "extension 1.2.3"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            load(pem, root, mute)


def test_a_forged_list_is_noticed_wherever_a_bit_is_flipped() -> None:
    """A CRL with any one changed byte is refused, or has the same content: one byte is only the padding of the signature."""
    root = authority("root")
    der = bytearray(ssl.PEM_cert_to_DER_cert(_renamed(root.crl([7]))))
    believed = 0
    for at in range(len(der)):
        der[at] ^= 1
        pem = _renamed(ssl.DER_cert_to_PEM_cert(bytes(der)).encode(), back=True).encode()
        try:
            (one,) = load(pem, root).lists
        except ConfigurationError:
            pass
        else:
            believed += 1
            assert (one.number, one.serials, one.updated_at, one.expires_at) == (1, frozenset({7}), NOW, NOW + DAY)
        der[at] ^= 1
    assert believed <= 1


def _renamed(pem: bytes, back: bool = False) -> str:
    """The standard library wraps certificates only."""
    text = pem.decode()
    return text.replace("CERTIFICATE", "X509 CRL") if back else text.replace("X509 CRL", "CERTIFICATE")


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_a_certificate_that_cannot_be_read_is_a_value_error() -> None:
    """With any change of a certificate's bytes, it is read or raises ValueError. Nothing else may reach a connection."""
    der = bytearray(authority("root").issue("client").certificate.public_bytes(serialization.Encoding.DER))
    for at in range(len(der)):
        for bit in (1, 128):
            der[at] ^= bit
            with contextlib.suppress(ValueError):
                read_certificate(bytes(der))
            der[at] ^= bit


def test_no_list_gives_way_to_an_older_one() -> None:
    """By number where both have one, else by date; a list that is missing or not made yet is refused too."""
    root, other = authority("root"), authority("other")
    cas = [root.certificate, other.certificate]
    in_force = load(root.crl(number=5) + other.crl(number=None), root, other)

    def follow(pem: bytes, authorities: Sequence[x509.Certificate] = cas) -> None:
        refuse_older("crl.pem", load_revocations(pem, "crl.pem", cas), in_force, authorities, NOW.timestamp())

    hour = dt.timedelta(hours=1)
    follow(root.crl(number=5) + other.crl(number=None))
    follow(root.crl(number=6, made=NOW - hour) + other.crl(number=1))
    for pem, told in (
        (
            root.crl(number=4, made=NOW + dt.timedelta(minutes=1)) + other.crl(),
            r"list of root is older \(number 4.*number 5",
        ),
        (root.crl(number=5, made=NOW - hour) + other.crl(), "list of root is older"),
        (root.crl(number=5) + other.crl(number=9, made=NOW - hour), "list of other is older"),
        (root.crl(number=5), "the list of other, which is in force, is missing"),
        (root.crl(number=6, made=NOW + hour) + other.crl(), "in the future"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            follow(pem)
    follow(root.crl(number=5), [root.certificate])  # the other CA is no longer trusted

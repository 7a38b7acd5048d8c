"""Issue the certificates of a development machine or a test: one authority, a server, a few clients, an empty CRL."""

import datetime as dt
import hashlib
import ipaddress
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from maxam.durable_files import replace_durably
from maxam.errors import ConfigurationError

SERVER_NAMES: Final = ("localhost", "127.0.0.1", "::1")
CLIENTS: Final = ("publisher", "subscriber", "operator", "pipeline")
VALIDITY: Final = dt.timedelta(days=730)
AUTHORITY_VALIDITY: Final = dt.timedelta(days=3650)
AuthorityKey = ec.EllipticCurvePrivateKey
CertifiedKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
CLOCK_TOLERANCE: Final = dt.timedelta(minutes=5)  # a container's clock may be a little behind ours


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its private key.

    Attributes:
        certificate: The X.509 certificate; its key is on P-256.
        key: The private key, unencrypted.
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """Give the certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """Give the private key as unencrypted PKCS 8 PEM."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint that a policy lists: lower-case hex of the SHA-256 of its DER."""
        return fingerprint(self.certificate)

    def write(self, folder: Path, name: str) -> None:
        """Write NAME.pem, and NAME.key with mode 0600, replacing what is there."""
        replace_durably(folder / f"{name}.pem", self.certificate_pem, 0o644)
        replace_durably(folder / f"{name}.key", self.key_pem, 0o600)


@dataclass(frozen=True, slots=True)
class Authority:
    """A private certificate authority: itself an issued certificate that signs others and their revocation."""

    issued: Issued

    @classmethod
    def create(cls, name: str, now: dt.datetime) -> "Authority":
        """Make a new self-signed authority, valid from a little before `now` for ten years.

        Args:
            name: The common name.
            now: The present time, with a time zone.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        return cls(Issued(sign_authority(key, _name(name), now - CLOCK_TOLERANCE, now + AUTHORITY_VALIDITY), key))

    @classmethod
    def read(cls, folder: Path) -> "Authority":
        """Read the authority of a folder of development certificates, to issue more or to revoke one."""
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigurationError(f"{folder / 'ca.key'}: not a key on an elliptic curve: make the folder again")
        return cls(Issued(x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()), key))

    def issue(
        self,
        name: str,
        valid_from: dt.datetime,
        valid_until: dt.datetime,
        server_names: Sequence[str] = (),
        *,
        link: bool = False,
    ) -> Issued:
        """Issue a certificate: a server's when it is given server names, else a client's.

        Any span of time is accepted, so that a test gets an expired certificate, or one that is not valid yet.

        Args:
            name: The common name; for display only, a policy goes by the fingerprint.
            valid_from: First moment of validity, with a time zone.
            valid_until: Last moment of validity, with a time zone.
            server_names: DNS names and IP addresses of the server.
            link: A server's certificate is one of a client too, as both ends of a link have it.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        issued = self.issued
        certificate = sign_certificate(
            issued.certificate,
            issued.key,
            _name(name),
            key.public_key(),
            valid_from,
            valid_until,
            server_names,
            link=link,
        )
        return Issued(certificate, key)

    def revocation_list_pem(self, revoked: Iterable[x509.Certificate], now: dt.datetime) -> bytes:
        """Sign a certificate revocation list (CRL) of the given certificates, as PEM.

        It is valid for ten years, because a development machine has no operator who renews it.
        """
        revoked_at = now - CLOCK_TOLERANCE
        entries = [(certificate.serial_number, revoked_at) for certificate in revoked]
        number = int(now.timestamp())
        crl = sign_revocation_list(
            self.issued.certificate, self.issued.key, entries, revoked_at, now + AUTHORITY_VALIDITY, number
        )
        return crl.public_bytes(serialization.Encoding.PEM)


def sign_authority(
    key: AuthorityKey, subject: x509.Name, valid_from: dt.datetime, valid_until: dt.datetime
) -> x509.Certificate:
    """Sign an authority's own certificate: it may sign clients, servers and revocation lists, and no other authority."""
    public = key.public_key()
    return (
        _builder(subject, subject, public, valid_from, valid_until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )


def sign_certificate(
    authority: x509.Certificate,
    authority_key: AuthorityKey,
    subject: x509.Name,
    public_key: CertifiedKey,
    valid_from: dt.datetime,
    valid_until: dt.datetime,
    server_names: Sequence[str] = (),
    *,
    link: bool = False,
) -> x509.Certificate:
    """Certify a key: a server's when it is given server names, else a client's. The serial number is 159 random bits.

    Args:
        authority: The issuing authority.
        authority_key: Its key.
        subject: For display only. A policy goes by the fingerprint.
        public_key: Key for which its owner has proved to hold the private key.
        valid_from: First moment of validity, with a time zone.
        valid_until: Last moment of validity, with a time zone.
        server_names: DNS names and IP addresses of the server.
        link: A server's certificate is one of a client too, as both ends of a link have it.
    """
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH] if server_names else []
    purposes += [ExtendedKeyUsageOID.CLIENT_AUTH] if link or not server_names else []
    builder = (
        _builder(subject, authority.subject, public_key, valid_from, valid_until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    if server_names:
        names = x509.SubjectAlternativeName([_general_name(server_name) for server_name in server_names])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def is_for_links(certificate: x509.Certificate) -> bool:
    """Return True if a certificate is one of a server and of a client."""
    try:
        purposes = set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return False
    return purposes >= {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}


def sign_revocation_list(
    authority: x509.Certificate,
    authority_key: AuthorityKey,
    revoked: Iterable[tuple[int, dt.datetime]],
    updated_at: dt.datetime,
    next_at: dt.datetime,
    number: int,
) -> x509.CertificateRevocationList:
    """Sign a certificate revocation list (CRL).

    Args:
        authority: The issuing authority.
        authority_key: Its key.
        revoked: Serial numbers, with the time of each revocation.
        updated_at: Time of this CRL.
        next_at: Time by which the next one is made.
        number: Higher than that of the CRL before.
    """
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(updated_at)
        .next_update(next_at)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    for serial, revoked_at in revoked:
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(revoked_at).build()
        )
    return builder.sign(authority_key, hashes.SHA256())


def issue_development_certificates(folder: Path, now: dt.datetime, clients: Iterable[str] = CLIENTS) -> dict[str, str]:
    """Make a new authority and write all that a gateway and its clients need to meet on one machine.

    Writes `ca.pem`, `ca.key`, `crl.pem` (empty), `server.pem`, `server.key`, and `NAME.pem` and `NAME.key` for each client.
    `fingerprints.json` comes last, so that its presence means that the folder is complete. Keys have mode 0600. Existing files
    are replaced, and certificates of the former authority are no longer valid.

    Args:
        folder: Where to write; made when missing.
        now: The present time, with a time zone.
        clients: Names of the clients.

    Returns:
        The fingerprint of each client's certificate by name, as in `fingerprints.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fingerprints.json").unlink(missing_ok=True)
    authority = Authority.create("maxam development CA", now)
    valid = (now - CLOCK_TOLERANCE, now + VALIDITY)
    authority.issued.write(folder, "ca")
    replace_durably(folder / "crl.pem", authority.revocation_list_pem((), now), 0o644)
    authority.issue("localhost", *valid, SERVER_NAMES).write(folder, "server")
    fingerprints: dict[str, str] = {}
    for name in clients:
        client = authority.issue(name, *valid)
        client.write(folder, name)
        fingerprints[name] = client.fingerprint
    replace_durably(folder / "fingerprints.json", json.dumps(fingerprints, indent=2).encode() + b"\n", 0o644)
    return fingerprints


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the fingerprint that a policy lists: lower-case hex of the SHA-256 of a certificate's DER."""
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: CertifiedKey,
    valid_from: dt.datetime,
    valid_until: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid_from)
        .not_valid_after(valid_until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "maxam development"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _general_name(server_name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(server_name))
    except ValueError:
        return x509.DNSName(server_name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )

"""Find revoked client certificates by CRLs that the gateway checks itself, besides OpenSSL's check of the chain.

OpenSSL's own check refuses every client once a CRL has expired or is missing, and needs a new context for each CRL. This module
verifies a CRL when it is loaded: signed by a CA of `client_ca`, complete, not older than the one in force. After that, a certificate
costs one lookup of its serial number.
"""

import datetime as dt
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar, final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from maxam.errors import ConfigurationError, ProtocolError

_PEM: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
# Errors that cryptography raises for malformed bytes.
UNREADABLE: Final = (
    ValueError,
    TypeError,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    UnsupportedAlgorithm,
)
_Extension = TypeVar("_Extension", bound=x509.ExtensionType)
_AHEAD: Final = dt.timedelta(minutes=5)  # that the clock of an authority may be ahead of ours
_UNDERSTOOD: Final = (
    x509.CRLNumber,
    x509.AuthorityKeyIdentifier,
    x509.IssuingDistributionPoint,
    x509.AuthorityInformationAccess,
    x509.FreshestCRL,
    x509.IssuerAlternativeName,
)


@final
@dataclass(frozen=True, slots=True)
class Certificate:
    """The facts of a certificate that decide whether it is still valid.

    Attributes:
        subject: Its DER.
        issuer: Its DER.
        public_key: DER of the SubjectPublicKeyInfo.
        serial: Number that its issuer gave it.
        authority_key: Identifier of the issuer's key. None if it has none.
        valid_until_s: Last moment of validity, seconds since the epoch.
        issuer_name: For people.
    """

    subject: bytes
    issuer: bytes
    public_key: bytes
    serial: int
    authority_key: bytes | None
    valid_until_s: float
    issuer_name: str


# The certificates of a client, as OpenSSL verified them: its own first, the trusted CA's last.
Chain = tuple[Certificate, ...]


def read_chain(ders: Sequence[bytes]) -> Chain:
    """Read the certificates of a verified chain; raises ValueError for what OpenSSL takes and we cannot read."""
    return (*(_read_client(der) for der in ders[:1]), *(_read_authority(der) for der in ders[1:]))


def read_certificate(der: bytes) -> Certificate:
    """Read one certificate; raises ValueError when that cannot be done."""
    try:
        return facts_of(x509.load_der_x509_certificate(der))
    except UNREADABLE as error:
        raise ValueError(f"unreadable certificate: {error}") from error


def facts_of(certificate: x509.Certificate) -> Certificate:
    """Take from a certificate what must be known of it."""
    return Certificate(
        certificate.subject.public_bytes(),
        certificate.issuer.public_bytes(),
        _public_key(certificate),
        certificate.serial_number,
        _authority_key(certificate),
        certificate.not_valid_after_utc.timestamp(),
        shown_name(certificate.issuer),
    )


@lru_cache(maxsize=1024)
def _read_client(der: bytes) -> Certificate:
    return read_certificate(
        der
    )  # verified by OpenSSL each time; only reading it again is saved, a seventh of the handshake


@lru_cache(maxsize=64)
def _read_authority(der: bytes) -> Certificate:
    return read_certificate(der)  # the same few for all clients


def shown_name(name: x509.Name) -> str:
    """Return a name for people: its common name, or all of it."""
    common = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(common[0].value) if common else name.rfc4514_string()


@final
class RevocationList:
    """The CRL of one CA, whose signature was verified.

    Attributes:
        issuer: DER of the authority's name.
        public_key: DER of the SubjectPublicKeyInfo that signed it.
        key_identifier: Of the same key, as certificates of the authority have it. None when unknown.
        name: The authority's, for people.
        number: Grows with each list of an authority. None when it does not count.
        updated_at: When it was made.
        expires_at: When the authority promised the next one. None if never.
        serials: Of the certificates that are revoked.
    """

    __slots__ = (
        "expires_at",
        "issuer",
        "key_identifier",
        "name",
        "number",
        "public_key",
        "serials",
        "updated_at",
    )

    def __init__(self, crl: x509.CertificateRevocationList, authority: x509.Certificate) -> None:
        """Take over a list that was verified."""
        self.issuer: Final = crl.issuer.public_bytes()
        self.public_key: Final = _public_key(authority)
        subject_key = extension(authority, x509.SubjectKeyIdentifier)
        self.key_identifier: Final = _authority_key(crl) or (None if subject_key is None else subject_key.digest)
        self.name: Final = shown_name(crl.issuer)
        number = extension(crl, x509.CRLNumber)
        self.number: Final = None if number is None else number.crl_number
        self.updated_at: Final = crl.last_update_utc
        self.expires_at: Final = crl.next_update_utc
        self.serials: Final = frozenset([entry.serial_number for entry in crl])

    def covers(self, certificate: Certificate, issuer: Certificate) -> bool:
        """Return True if it is the CRL of the issuer of a certificate. `issuer` is the one above it in its chain."""
        if certificate.issuer != self.issuer:
            return False
        if issuer.public_key == self.public_key:
            return True  # the key is proven, and authorities make identifiers in several ways
        # An authority may have had several keys under one name. If a certificate does not identify its key, any CRL under that name
        # counts: to refuse one certificate too many is the smaller mistake.
        theirs = certificate.authority_key
        return theirs is None or self.key_identifier is None or theirs == self.key_identifier

    def precedes(self, other: "RevocationList") -> bool:
        """Return True if it is older than another list of the same authority."""
        if self.number is not None and other.number is not None and self.number != other.number:
            return self.number < other.number
        return self.updated_at < other.updated_at

    def expired(self, now_s: float) -> bool:
        """Return True if its successor is overdue."""
        return self.expires_at is not None and self.expires_at.timestamp() < now_s


@final
class Revocations:
    """All lists in force. Immutable."""

    __slots__ = ("_by_issuer", "lists")

    def __init__(self, lists: Iterable[RevocationList] = ()) -> None:
        self.lists: Final = tuple(lists)
        self._by_issuer: Final[dict[bytes, list[RevocationList]]] = {}
        for one in self.lists:
            self._by_issuer.setdefault(one.issuer, []).append(one)

    def problem(self, chain: Chain, now_s: float, refuse_expired: bool) -> ProtocolError | None:
        """Return why a client must not be served, or None.

        Args:
            chain: Its certificates; the last one is trusted as it is.
            now_s: Seconds since the epoch.
            refuse_expired: A list whose successor is overdue does not count as one.
        """
        for at, certificate in enumerate(chain[:-1] or chain, 1):
            for one in self._by_issuer.get(certificate.issuer, ()):
                if not one.covers(certificate, chain[min(at, len(chain) - 1)]):
                    continue
                if certificate.serial in one.serials:
                    whose = "the certificate" if certificate is chain[0] else "an authority above the certificate"
                    return ProtocolError(
                        "certificate revoked",
                        f"{whose}, number {certificate.serial:x} of {one.name}, is on the CRL of"
                        f" {one.updated_at:%Y-%m-%d %H:%M}Z",
                    )
                if refuse_expired and one.expired(now_s):
                    return ProtocolError(
                        "revocation list expired",
                        f"the CRL of {one.name} has expired, so no certificate of that CA is accepted"
                        ' (crl_expired = "refuse"). The operator of the broker must load the newest CRL',
                    )
        return None

    def expired(self, now_s: float) -> list[RevocationList]:
        """Return those whose successors are overdue."""
        return [one for one in self.lists if one.expired(now_s)]


def load_revocations(pem: bytes, source: str, authorities: Sequence[x509.Certificate]) -> Revocations:
    """Read a file of one or more lists and prove each.

    Args:
        pem: The file's content.
        source: Its name, for error texts.
        authorities: Certificates of `client_ca`. The signer of a list must be among them.

    Raises:
        ConfigurationError: One of them cannot be used.
    """
    blocks = _PEM.findall(pem)
    if not blocks:
        raise ConfigurationError(f"[tls] crl {source}: the file has no CRL. It must be PEM with BEGIN X509 CRL")
    lists = [_load(block, f"[tls] crl {source}: list {at}", authorities) for at, block in enumerate(blocks, 1)]
    seen: set[tuple[bytes, bytes]] = set()
    for at, one in enumerate(lists, 1):
        if (one.issuer, one.public_key) in seen:
            raise ConfigurationError(
                f"[tls] crl {source}: list {at}: a second list of {one.name}; keep only its newest"
            )
        seen.add((one.issuer, one.public_key))
    return Revocations(lists)


def refuse_older(
    source: str, found: Revocations, in_force: Revocations, authorities: Sequence[x509.Certificate], now_s: float
) -> None:
    """Make sure that lists may follow those in force: otherwise who was revoked would be let in again.

    Raises:
        ConfigurationError: One is older than the one in force or not valid yet, or an authority's is missing.
    """
    after = {(one.issuer, one.public_key): one for one in found.lists}
    for one in found.lists:
        if one.updated_at.timestamp() > now_s + _AHEAD.total_seconds():
            raise ConfigurationError(
                f"[tls] crl {source}: the list of {one.name} is of {one.updated_at:%Y-%m-%d %H:%M}Z, which is in the future;"
                " compare the clocks"
            )
    trusted = {(authority.subject.public_bytes(), _public_key(authority)) for authority in authorities}
    for old in in_force.lists:
        new = after.get((old.issuer, old.public_key))
        if new is None:
            if (old.issuer, old.public_key) in trusted:
                raise ConfigurationError(
                    f"[tls] crl {source}: the list of {old.name}, which is in force, is missing; add its newest"
                )
        elif new.precedes(old):
            raise ConfigurationError(
                f"[tls] crl {source}: the list of {old.name} is older ({_version_of(new)}) than the one in force ({_version_of(old)});"
                " fetch the newest"
            )


def _load(block: bytes, where: str, authorities: Sequence[x509.Certificate]) -> RevocationList:
    try:
        crl = x509.load_pem_x509_crl(block)
        _demand_complete(crl, where)
        named = [authority for authority in authorities if authority.subject == crl.issuer]
        if not named:
            raise ConfigurationError(
                f"{where}: its issuer {shown_name(crl.issuer)} is not in client_ca; add that authority's certificate"
                " there, or remove the list"
            )
        for authority in named:
            if _signed_by(crl, authority):
                return RevocationList(crl, authority)
        raise ConfigurationError(
            f"{where}: is not signed by {shown_name(crl.issuer)} as client_ca has it; fetch it from there again"
        )
    except UNREADABLE as error:  # late too: cryptography reads a part when it is asked for
        raise ConfigurationError(f"{where}: not a revocation list: {error}") from error


def _demand_complete(crl: x509.CertificateRevocationList, where: str) -> None:
    """Raise ConfigurationError if a list covers only a part of the revoked certificates."""
    for extension in crl.extensions:
        value = extension.value
        if isinstance(value, x509.DeltaCRLIndicator) or (
            isinstance(value, x509.IssuingDistributionPoint)
            and (
                value.indirect_crl
                or value.only_some_reasons
                or value.only_contains_user_certs
                or value.only_contains_ca_certs
                or value.only_contains_attribute_certs
            )
        ):
            raise ConfigurationError(f"{where}: is a partial or indirect list; expected a complete one of its issuer")
        if extension.critical and not isinstance(value, _UNDERSTOOD):
            raise ConfigurationError(
                f"{where}: has the critical extension {extension.oid.dotted_string}, which is not understood; use a"
                " complete list without it"
            )


def _signed_by(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    usage = extension(authority, x509.KeyUsage)
    if usage is not None and not usage.crl_sign:
        return False
    try:
        return crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # a key that cannot sign raises
    except (*UNREADABLE, InvalidSignature):
        return False


def _version_of(one: RevocationList) -> str:
    number = "" if one.number is None else f"number {one.number}, "
    return f"{number}of {one.updated_at:%Y-%m-%d %H:%M:%S}Z"


def extension(of: x509.Certificate | x509.CertificateRevocationList, kind: type[_Extension]) -> _Extension | None:
    """Return an extension of a certificate or CRL, or None. Raises one of UNREADABLE if the extensions are malformed."""
    try:
        return of.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _authority_key(of: x509.Certificate | x509.CertificateRevocationList) -> bytes | None:
    found = extension(of, x509.AuthorityKeyIdentifier)
    return None if found is None else found.key_identifier


def _public_key(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )

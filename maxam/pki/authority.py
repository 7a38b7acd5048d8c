"""A certificate authority in a folder, for sites without one: its key, and the certificates that it has issued and revoked.

Theory of operation. The folder holds plain files: `ca.pem`, `ca.key` (encrypted with a passphrase), `index.jsonl` (a line for each
certificate) and `crl.pem`. Each is replaced as a whole, synced, under one lock. So a crash leaves the old or the new file, and the
command and the gateway may use a folder at the same time. The index comes first: a CRL can always be made from it again.
"""

import base64
import datetime as dt
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar, final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from maxam.counting import counted
from maxam.durable_files import replace_durably
from maxam.errors import ConfigurationError, MaxamError
from maxam.pki.certificates import (
    CLOCK_TOLERANCE,
    AuthorityKey,
    CertifiedKey,
    fingerprint,
    sign_authority,
    sign_certificate,
    sign_revocation_list,
)

CERTIFICATE_FILE: Final = "ca.pem"
KEY_FILE: Final = "ca.key"
INDEX_FILE: Final = "index.jsonl"
LIST_FILE: Final = "crl.pem"
LOCK_FILE: Final = "lock"
PASSPHRASE_CHARACTERS_MIN: Final = 12  # a thief of the file may try some hundred thousand a second
LIST_DAYS: Final = 30  # until the next CRL is due, unless the last one has another date
REQUEST_BYTES_MAX: Final = 16_384  # a request with the largest key that is accepted has some 3 KiB
_RSA_BITS_MIN, _RSA_BITS_MAX = 2048, 8192
_COMMON_NAME_BYTES_MAX: Final = 64  # X.520's bound of characters, which cryptography counts in UTF-8
_EXPIRED_STAYS: Final = dt.timedelta(days=7)  # on revocation lists: clocks differ
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm)
_Row = TypeVar("_Row")


@final
class RequestError(MaxamError):
    """A certificate is not issued for a client's request."""

    code = "certificate-request-invalid"


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """One certificate in the index.

    Attributes:
        serial: In lower-case hex.
        fingerprint: SHA-256 of its DER, lower-case hex.
        name: Display name of its owner.
        server_names: Of a server. Empty for a client.
        key: SHA-256 of the DER of its public key.
        issued_at: Time of issue, as `2026-11-22T00:58:00Z`, like all times here.
        valid_until: Last moment of validity.
        by: Name of the person or service that had it issued.
        renews: Fingerprint of the certificate that it follows. Empty when it is the first.
        revoked_at: Time of its revocation. Empty while it is not revoked.
        reason: Reason for the revocation.
        certificate: Its DER in base64.
    """

    serial: str
    fingerprint: str
    name: str
    server_names: tuple[str, ...]
    key: str
    issued_at: str
    valid_until: str
    by: str
    renews: str
    revoked_at: str
    reason: str
    certificate: str

    def load(self) -> x509.Certificate:
        """Return the certificate itself."""
        return x509.load_der_x509_certificate(base64.b64decode(self.certificate))

    def counts(self, now: dt.datetime) -> bool:
        """Return True if it is neither revoked nor expired."""
        return not self.revoked_at and time_of(self.valid_until) > now


@final
class AuthorityFolder:
    """An authority in a folder.

    Attributes:
        folder: Where it is.
        certificate: Its own.
    """

    def __init__(self, folder: Path) -> None:
        """Open one; its key stays locked.

        Raises:
            ConfigurationError: There is none, or it cannot be read.
        """
        self.folder: Final = folder
        try:
            self.certificate: Final = x509.load_pem_x509_certificate((folder / CERTIFICATE_FILE).read_bytes())
        except OSError as error:
            raise ConfigurationError(
                f"{folder}: no CA here, as {CERTIFICATE_FILE} cannot be read ({error.strerror}). Make one with"
                f" `maxam-admin certs ca {folder}`, or correct the path"
            ) from error
        except _UNREADABLE as error:
            raise ConfigurationError(f"{folder / CERTIFICATE_FILE}: holds no PEM certificate: {error}") from error
        self._key: AuthorityKey | None = None

    @classmethod
    def create(cls, folder: Path, name: str, passphrase: str, now: dt.datetime, days: int) -> Self:
        """Make a new authority in a folder that has none; its key is on P-256.

        Raises:
            ConfigurationError: There is one, or the folder cannot be written.
        """
        if len(passphrase) < PASSPHRASE_CHARACTERS_MIN:
            raise ConfigurationError(
                f"the passphrase has {counted(len(passphrase), 'character')}, expected {PASSPHRASE_CHARACTERS_MIN} or more: a thief"
                " of the file may try passphrases at leisure"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _locked(folder):
                if (folder / CERTIFICATE_FILE).exists():
                    raise ConfigurationError(f"{folder}: holds an authority already; choose another folder")
                key = ec.generate_private_key(ec.SECP256R1())
                certificate = sign_authority(key, _name(name), now - CLOCK_TOLERANCE, now + dt.timedelta(days=days))
                encryption = serialization.BestAvailableEncryption(passphrase.encode())
                pem = serialization.Encoding.PEM
                replace_durably(
                    folder / KEY_FILE, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption), 0o600
                )
                replace_durably(folder / INDEX_FILE, b"", 0o644)
                # Last: its presence means that the folder is complete.
                replace_durably(folder / CERTIFICATE_FILE, certificate.public_bytes(pem), 0o644)
        except OSError as error:
            raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from error
        authority = cls(folder)
        authority.unlock(passphrase)
        authority.write_list(now)
        return authority

    @property
    def fingerprint(self) -> str:
        """Fingerprint that clients pin: SHA-256 of the DER of its certificate, lower-case hex."""
        return fingerprint(self.certificate)

    def unlock(self, passphrase: str) -> None:
        """Read the key; raises ConfigurationError when that cannot be done."""
        path = self.folder / KEY_FILE
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), passphrase.encode())
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        except _UNREADABLE as error:
            raise ConfigurationError(f"{path} cannot be opened: is the passphrase right? ({error})") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self.certificate.public_key():
            raise ConfigurationError(f"{path} is not the key of {self.folder / CERTIFICATE_FILE}")
        self._key = key

    def entries(self) -> list[Entry]:
        """Read the index, oldest first; raises ConfigurationError when it cannot be used."""
        path = self.folder / INDEX_FILE
        try:
            return read_json_lines(path, Entry, "restore the file from a backup")
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error

    def find(self, which: str) -> Entry:
        """Find one certificate.

        Args:
            which: Its fingerprint or serial number, or how one of them begins (8 hex digits or more); or a file that holds it.

        Raises:
            ConfigurationError: There is none, or more than one.
        """
        wanted = which.replace(":", "").lower()
        path = Path(which)
        with suppress(OSError, *_UNREADABLE):
            wanted = fingerprint(x509.load_pem_x509_certificate(path.read_bytes()))
        entries = self.entries()
        found = [
            entry
            for entry in entries
            if len(wanted) >= 8 and (entry.fingerprint.startswith(wanted) or entry.serial.startswith(wanted))
        ]
        if len(found) != 1:
            many = "no certificate" if not found else f"{len(found)} certificates"
            heirs = [one.fingerprint[:16] for one in entries if len(wanted) >= 8 and one.renews.startswith(wanted)]
            if heirs and not found:  # enrolment renews for other authorities' clients too, who know nothing of that
                raise ConfigurationError(
                    f"{self.folder}: {which!r} is not of this authority. Revoke it where it comes from, and here the certificates renewed"
                    f" from it: {', '.join(heirs)}"
                )
            raise ConfigurationError(
                f"{self.folder}: {many} of this authority known as {which!r}. Expected a fingerprint, a serial number (or the"
                " first 8 digits or more), or a PEM file. See `maxam-admin certs list`"
            )
        return found[0]

    def sign(
        self,
        name: str,
        key: CertifiedKey,
        now: dt.datetime,
        days: int,
        server_names: Sequence[str] = (),
        *,
        link: bool = False,
    ) -> x509.Certificate:
        """Certify a key, and write nothing; the authority must be unlocked.

        It is valid for no longer than the authority itself. With `link`, a server's certificate is one of a client too.
        """
        until = min(now + dt.timedelta(days=days), self.certificate.not_valid_after_utc)
        if until <= now:
            raise ConfigurationError(f"{self.folder}: the authority has expired; make a new one")
        subject = _name(name)
        try:
            return sign_certificate(
                self.certificate, self._unlocked(), subject, key, now - CLOCK_TOLERANCE, until, server_names, link=link
            )
        except ValueError as error:
            raise ConfigurationError(
                f"--server-name {' '.join(server_names)}: expected DNS names in ASCII (xn--...) or IP addresses ({error})"
            ) from error

    def add(
        self, certificate: x509.Certificate, name: str, now: dt.datetime, by: str, renews: str = ""
    ) -> x509.Certificate:
        """Write a signed certificate into the index, unless it is there; returns it. Synced when this returns.

        Raises:
            RequestError: It renews one that was revoked meanwhile: `revoke` has seen all that were renewed from that already.
        """
        entry = _entry(certificate, name, now, by, renews)
        with _locked(self.folder):
            entries = self.entries()
            for one in entries:
                if one.fingerprint == renews and one.revoked_at:
                    raise RequestError(f"{renews} was revoked on {one.revoked_at}; nothing is renewed from it")
            if all(one.fingerprint != entry.fingerprint for one in entries):
                self._write_index([*entries, entry])
        return certificate

    def revoke(self, which: Entry, reason: str, now: dt.datetime, *, only: bool = False) -> list[Entry]:
        """Revoke a certificate, and what was renewed from it, and write a new list; returns what is revoked by this.

        Args:
            which: The certificate.
            reason: For people.
            now: The present time.
            only: Leave those that were renewed from it.
        """
        with _locked(self.folder):
            entries = self.entries()
            doomed = {which.fingerprint}
            for entry in entries:  # a renewal stands after the certificate that it renews
                if entry.renews in doomed and not only:
                    doomed.add(entry.fingerprint)
            revoked = [
                replace(entry, revoked_at=text_of(now), reason=reason)
                for entry in entries
                if entry.fingerprint in doomed and not entry.revoked_at
            ]
            changed = {entry.fingerprint: entry for entry in revoked}
            self._write_index([changed.get(entry.fingerprint, entry) for entry in entries])
            self._write_list(now)
        return revoked

    def write_list(self, now: dt.datetime, days: int | None = None) -> None:
        """Sign a new revocation list with a number above that of the last one, valid for as long as that one unless `days` are given."""
        with _locked(self.folder):
            self._write_list(now, days)

    def list_due(self, now: dt.datetime) -> bool:
        """Return True if less than a third is left until the next CRL was promised."""
        crl = self._last_list()
        if crl is None or crl.next_update_utc is None:
            return True
        return (crl.next_update_utc - now) * 3 < crl.next_update_utc - crl.last_update_utc

    def _write_list(self, now: dt.datetime, days: int | None = None) -> None:
        period = self._list_period() if days is None else dt.timedelta(days=days)
        revoked = [
            (int(entry.serial, 16), time_of(entry.revoked_at))
            for entry in self.entries()
            if entry.revoked_at and time_of(entry.valid_until) + _EXPIRED_STAYS > now
        ]
        # The time keeps the number growing even where the last list was lost.
        number = max(self._last_number() + 1, int(now.timestamp()))
        crl = sign_revocation_list(self.certificate, self._unlocked(), revoked, now, now + period, number)
        replace_durably(self.folder / LIST_FILE, crl.public_bytes(serialization.Encoding.PEM), 0o644)

    def _last_list(self) -> x509.CertificateRevocationList | None:
        try:
            return x509.load_pem_x509_crl((self.folder / LIST_FILE).read_bytes())
        except (OSError, *_UNREADABLE):
            return None

    def _list_period(self) -> dt.timedelta:
        crl = self._last_list()
        if crl is None or crl.next_update_utc is None:
            return dt.timedelta(days=LIST_DAYS)
        return crl.next_update_utc - crl.last_update_utc

    def _last_number(self) -> int:
        crl = self._last_list()
        return 0 if crl is None else crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number

    def _unlocked(self) -> AuthorityKey:
        if self._key is None:
            raise AssertionError("the authority's key was not unlocked")
        return self._key

    def _write_index(self, entries: Iterable[Entry]) -> None:
        replace_durably(self.folder / INDEX_FILE, json_lines([asdict(entry) for entry in entries]), 0o644)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep every other process from changing a folder."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(f"{folder / LOCK_FILE} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_request(data: bytes) -> CertifiedKey:
    """Take the public key out of a certificate signing request (PKCS 10, DER or PEM), and nothing else.

    Raises:
        RequestError: It is no request, its signature does not prove possession of the private key, or the key is weak.
    """
    if len(data) > REQUEST_BYTES_MAX:
        raise RequestError(f"the request has {len(data)} bytes, expected {REQUEST_BYTES_MAX} at most")
    try:
        pem = b"-----BEGIN" in data[:64]
        request = x509.load_pem_x509_csr(data) if pem else x509.load_der_x509_csr(data)
        key = request.public_key()
        problem = key_problem(key)
        if problem:
            raise RequestError(
                f"the request's key is {problem}; expected P-256, P-384, RSA of 2048 bits or more, or Ed25519"
            )
        if not isinstance(request.signature_hash_algorithm, hashes.SHA256 | hashes.SHA384 | hashes.SHA512 | None):
            raise RequestError("the request is signed with an old hash; expected SHA-256, SHA-384, SHA-512 or Ed25519")
        proven = request.is_signature_valid
    except _UNREADABLE as error:
        raise RequestError(f"not a certificate signing request (PKCS 10): {error}") from error
    if not proven:
        raise RequestError("the request's signature is not by its own key, so nothing proves who has the private key")
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey):
        raise AssertionError("a key that was accepted is of another kind")  # noqa: TRY004  # a bug
    return key


def key_problem(key: object) -> str:
    """Return why a public key is not certified. Empty if it may be."""
    match key:
        case ed25519.Ed25519PublicKey():
            return ""
        case ec.EllipticCurvePublicKey():
            return "" if isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1) else f"on the curve {key.curve.name}"
        case rsa.RSAPublicKey():
            return "" if _RSA_BITS_MIN <= key.key_size <= _RSA_BITS_MAX else f"RSA of {key.key_size} bits"
        case _:
            return "of another kind"


def key_digest(key: Any) -> str:  # noqa: ANN401  # any public key of cryptography's
    """Return the identity of a public key: SHA-256 of its DER, lower-case hex."""
    return hashlib.sha256(
        key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()


def read_passphrase(path: Path) -> str:
    """Read the passphrase in a file. Raise ConfigurationError if that fails, or if all users may read the file."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(4096)
    except OSError as error:
        raise ConfigurationError(f"the passphrase file {path} cannot be read: {error.strerror}") from error
    if mode & stat.S_IRWXO:
        raise ConfigurationError(f"the passphrase file {path} is readable by all users: chmod 600 {path}")
    try:
        text = data.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the passphrase file {path} is not UTF-8: byte {error.start}") from error
    if not text:
        raise ConfigurationError(f"the passphrase file {path} is empty")
    return text


def read_json_lines(path: Path, kind: type[_Row], remedy: str) -> list[_Row]:
    """Read the rows that `json_lines` wrote of a dataclass. Lists become tuples. Raises OSError and ConfigurationError."""
    rows: list[_Row] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            values = json.loads(line)
            rows.append(kind(**{key: tuple(one) if isinstance(one, list) else one for key, one in values.items()}))
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"{path}: line {number}: not as it was written ({error}); {remedy}") from error
    return rows


def json_lines(rows: Iterable[object]) -> bytes:
    """Write objects as JSON, one a line."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def text_of(moment: dt.datetime) -> str:
    """Write a time in UTC, to the second."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time_of(text: str) -> dt.datetime:
    """Read a time that `text_of` wrote."""
    return dt.datetime.fromisoformat(text)


def _entry(certificate: x509.Certificate, name: str, now: dt.datetime, by: str, renews: str) -> Entry:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        server_names = tuple(str(one.value) for one in names)
    except x509.ExtensionNotFound:
        server_names = ()
    return Entry(
        serial=f"{certificate.serial_number:x}",
        fingerprint=fingerprint(certificate),
        name=name,
        server_names=server_names,
        key=key_digest(certificate.public_key()),
        issued_at=text_of(now),
        valid_until=text_of(certificate.not_valid_after_utc),
        by=by,
        renews=renews,
        revoked_at="",
        reason="",
        certificate=base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode(),
    )


def _name(common_name: str) -> x509.Name:
    try:
        cut = common_name.encode()[:_COMMON_NAME_BYTES_MAX].decode(errors="ignore")
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cut)])
    except ValueError as error:
        raise ConfigurationError(f"the name {common_name!r} cannot stand in a certificate: {error}") from error

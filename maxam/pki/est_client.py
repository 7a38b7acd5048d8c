"""A client's side of enrolment: its key, its request, and EST (RFC 7030) with a pinned authority.

Theory of operation. A folder holds `client.key`, `client.pem` and `ca.pem`. The key is on the disk before the gateway hears of it.
So a client that was interrupted asks again with the same key, and gets the same certificate. A renewal keeps its new key and
certificate aside until both are there. Then it puts the key in place and the certificate after it. If that is cut short, the
next call finishes it.
"""

import base64
import binascii
import http.client
import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Final, Literal, final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import pkcs7
from cryptography.x509.oid import NameOID

from maxam.durable_files import replace_durably
from maxam.errors import ConfigurationError
from maxam.https_client import HttpsConnection, RemoteError, split_address
from maxam.pki.authority import key_digest
from maxam.pki.certificates import fingerprint

KEY_FILE: Final = "client.key"
CERTIFICATE_FILE: Final = "client.pem"
AUTHORITY_FILE: Final = "ca.pem"
REQUEST_FILE: Final = "client.csr"
NEXT: Final = ".next"  # suffix of the files that a renewal is about to put in place
_EST: Final = "/.well-known/est"
_ANSWER_BYTES_MAX: Final = 1_048_576
_UNREADABLE: Final = (ValueError, TypeError)
KeyType = Literal["p256", "p384", "rsa", "ed25519"]
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def new_key(kind: KeyType) -> PrivateKey:
    """Make a private key."""
    match kind:
        case "p256":
            return ec.generate_private_key(ec.SECP256R1())
        case "p384":
            return ec.generate_private_key(ec.SECP384R1())
        case "rsa":
            return rsa.generate_private_key(65537, 3072)
        case "ed25519":
            return ed25519.Ed25519PrivateKey.generate()


def new_request(key: PrivateKey) -> x509.CertificateSigningRequest:
    """Make a request that proves that we hold a key. The authority decides on the contents of the certificate."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "maxam client")])
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, algorithm)


@final
class ClientFolder:
    """The folder of one client."""

    def __init__(self, folder: Path) -> None:
        """Open it, made when missing; a renewal that was cut short is completed. Raises ConfigurationError."""
        self.folder: Final = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._complete()
        except OSError as error:
            raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from error

    @property
    def certificate(self) -> x509.Certificate | None:
        """Our certificate; None while there is none."""
        return self._read_certificate(CERTIFICATE_FILE)

    def key(self, kind: KeyType, suffix: str = "") -> PrivateKey:
        """Read our key, or make one and keep it; `suffix` is NEXT for that of a renewal under way."""
        path = self.folder / (KEY_FILE + suffix)
        if path.exists():
            return self._read_key(path)
        key = new_key(kind)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._write(KEY_FILE + suffix, pem, 0o600)
        return key

    def write_request(self, key: PrivateKey) -> Path:
        """Write our request for signing by hand. Return its path."""
        self._write(REQUEST_FILE, new_request(key).public_bytes(serialization.Encoding.PEM), 0o644)
        return self.folder / REQUEST_FILE

    def keep(self, certificate: x509.Certificate, authorities: Sequence[x509.Certificate]) -> None:
        """Keep our first certificate, and those by which we know the gateway."""
        pem = serialization.Encoding.PEM
        self._write(AUTHORITY_FILE, b"".join([one.public_bytes(pem) for one in authorities]), 0o644)
        self._write(CERTIFICATE_FILE, certificate.public_bytes(pem), 0o644)

    def replace(self, certificate: x509.Certificate, authorities: Sequence[x509.Certificate]) -> None:
        """Put a renewed certificate and its key in place of the old ones."""
        pem = serialization.Encoding.PEM
        self._write(AUTHORITY_FILE, b"".join([one.public_bytes(pem) for one in authorities]), 0o644)
        self._write(CERTIFICATE_FILE + NEXT, certificate.public_bytes(pem), 0o644)
        self._complete()

    def _complete(self) -> None:
        """Put in place what a renewal has brought, if both parts are there; the key first."""
        certificate = self._read_certificate(CERTIFICATE_FILE + NEXT)
        if certificate is None:
            return
        digest = key_digest(certificate.public_key())
        following = self.folder / (KEY_FILE + NEXT)
        if following.exists() and key_digest(self._read_key(following).public_key()) == digest:
            following.replace(self.folder / KEY_FILE)
        if key_digest(self._read_key(self.folder / KEY_FILE).public_key()) == digest:
            (self.folder / (CERTIFICATE_FILE + NEXT)).replace(self.folder / CERTIFICATE_FILE)

    def _read_certificate(self, name: str) -> x509.Certificate | None:
        path = self.folder / name
        try:
            return x509.load_pem_x509_certificate(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        except _UNREADABLE as error:
            raise ConfigurationError(f"{path} holds no PEM certificate: {error}") from error

    def _read_key(self, path: Path) -> PrivateKey:
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        except _UNREADABLE as error:
            raise ConfigurationError(f"{path} holds no PEM key without a password: {error}") from error
        if not isinstance(key, PrivateKey):
            raise ConfigurationError(f"{path} holds a key of a kind that is not certified; move it away")
        return key

    def _write(self, name: str, content: bytes, mode: int) -> None:
        try:
            replace_durably(self.folder / name, content, mode)
        except OSError as error:
            raise ConfigurationError(f"{self.folder / name} cannot be written: {error.strerror}") from error


@final
class EstClient:
    """The enrolment listener of one gateway."""

    def __init__(self, address: str, server_name: str | None) -> None:
        """Take its address, `HOST:PORT`, and the name in its certificate (None: the host). Raises RemoteError."""
        self._address: Final = address
        self._host, self._port = split_address(address, "the address of the enrolment listener")
        self._server_name: Final = server_name or self._host

    def pinned(self, pin: str) -> x509.Certificate:
        """Fetch the authority with the SHA-256 that an operator gave us. Nothing else from the listener is trusted yet."""
        wanted = pin.replace(":", "").lower()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # nothing secret is sent, and only what has that SHA-256 is taken
        offered = self._certificates(context, "GET", "cacerts")
        for certificate in offered:
            if fingerprint(certificate) == wanted:
                return certificate
        raise RemoteError(
            f"{self._address} is not the gateway that was meant, or a proxy is in between. None of its authorities has the"
            f" SHA-256 {wanted}, but {', '.join([fingerprint(one) for one in offered]) or 'it has none'}. Nothing was sent"
        )

    def enrol(
        self, pinned: x509.Certificate, token: str, key: PrivateKey
    ) -> tuple[x509.Certificate, list[x509.Certificate]]:
        """Get our first certificate for a token; return it with those by which we know the gateway."""
        context = self._context(pinned.public_bytes(serialization.Encoding.PEM).decode())
        authorities = self._certificates(context, "GET", "cacerts")
        credentials = base64.b64encode(f":{token}".encode()).decode()
        found = self._certificates(
            context, "POST", "simpleenroll", new_request(key), {"authorization": f"Basic {credentials}"}
        )
        return self._ours(found, key), authorities

    def renew(self, folder: ClientFolder, key: PrivateKey) -> tuple[x509.Certificate, list[x509.Certificate]]:
        """Get the certificate that follows ours; likewise."""
        trusted = folder.folder / AUTHORITY_FILE
        try:
            context = self._context(trusted.read_text("ascii"))
            context.load_cert_chain(folder.folder / CERTIFICATE_FILE, folder.folder / KEY_FILE, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{folder.folder}: what was enrolled there cannot be used: {error}") from error
        authorities = self._certificates(context, "GET", "cacerts")
        found = self._certificates(context, "POST", "simplereenroll", new_request(key))
        return self._ours(found, key), authorities

    def _context(self, authorities: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=authorities)
        return context

    def _ours(self, found: Sequence[x509.Certificate], key: PrivateKey) -> x509.Certificate:
        for certificate in found:
            if key_digest(certificate.public_key()) == key_digest(key.public_key()):
                return certificate
        raise RemoteError(f"{self._address} answered without a certificate of our key: is it the enrolment listener?")

    def _certificates(
        self,
        context: ssl.SSLContext,
        method: str,
        operation: str,
        request: x509.CertificateSigningRequest | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> list[x509.Certificate]:
        body: bytes | None = None
        sent = dict(headers or {})
        if request is not None:
            body = base64.encodebytes(request.public_bytes(serialization.Encoding.DER))
            sent |= {"content-type": "application/pkcs10", "content-transfer-encoding": "base64"}
        status, data = self._ask(context, method, f"{_EST}/{operation}", body, sent)
        if status != HTTPStatus.OK:
            said = " ".join(data.decode("utf-8", "replace").split())[:400]
            raise RemoteError(f"{self._address} refuses ({status}): {said or 'without a reason'}")
        try:
            return pkcs7.load_der_pkcs7_certificates(base64.b64decode(data))
        except (*_UNREADABLE, binascii.Error) as error:
            raise RemoteError(f"{self._address} does not answer as EST does: is it the enrolment listener?") from error

    def _ask(
        self, context: ssl.SSLContext, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        try:
            with closing(HttpsConnection(self._host, self._port, context, self._server_name)) as connection:
                connection.request(method, path, body, dict(headers))
                answer = connection.getresponse()
                return answer.status, answer.read(_ANSWER_BYTES_MAX)
        except ssl.SSLCertVerificationError as error:
            raise RemoteError(
                f"the certificate of {self._address} is not trusted ({error.verify_message}); nothing was sent. Does it carry"
                " the name that you gave (--server-name)?"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise RemoteError(f"{self._address} cannot be asked: {error}. Ask again, nothing is lost") from error

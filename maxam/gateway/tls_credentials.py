"""The credentials of the listeners: the server's certificate, the CAs of the clients, and the context of a connection."""

import contextlib
import os
import ssl
from collections.abc import Iterator
from typing import Final, Literal, final

from cryptography import x509

from maxam.errors import ConfigurationError
from maxam.gateway.revocation import UNREADABLE, Certificate, Chain, extension, facts_of, shown_name
from maxam.gateway.session_cache import prove_no_resumption, switch_off_session_cache


@final
class ServerCertificate:
    """The server's certificate chain with its key, proven to belong together. Immutable.

    Attributes:
        name: Subject of the certificate, for people.
        dns_names: Names of hosts that it is for, in lower case; `*.example.org` is for one label more.
        valid_from: First moment of its validity.
        valid_until: Last moment of its validity.
    """

    __slots__ = ("_chain", "_key", "dns_names", "name", "valid_from", "valid_until")

    def __init__(self, chain: bytes, key: bytes, where: str, section: str = "tls") -> None:
        """Take PEM texts; `where` names their files, and `section` the part of the configuration that does.

        Raises:
            ConfigurationError: They are not a certificate chain and its key.
        """
        self._chain: Final = chain
        self._key: Final = key
        try:
            self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            leaf = x509.load_pem_x509_certificates(chain)[0]
        except (OSError, *UNREADABLE) as error:
            raise ConfigurationError(
                f"[{section}] {where} do not work together: {error};"
                f" expected a PEM certificate chain and its PEM key without a password"
            ) from error
        self.name: Final = shown_name(leaf.subject)
        self.dns_names: Final = _dns_names(leaf)
        self.valid_from: Final = leaf.not_valid_before_utc
        self.valid_until: Final = leaf.not_valid_after_utc

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have a context present it. Python takes files only: these are in memory, so that what is used is what was checked."""
        with _in_memory(self._chain) as chain, _in_memory(self._key) as key:
            # An encrypted key must fail here, not ask on a terminal that a service does not have.
            context.load_cert_chain(chain, key, password=lambda: b"")


def _dns_names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        names = extension(certificate, x509.SubjectAlternativeName)
    except UNREADABLE:
        return frozenset()
    return frozenset(() if names is None else [name.lower() for name in names.get_values_for_type(x509.DNSName)])


@final
class Authorities:
    """Whose client certificates are accepted: the certificates of `client_ca`. Immutable.

    Attributes:
        certificates: All of them, in the order of the file.
        validity: Name of each authority, for people, and until when it is valid, in seconds since the epoch.
    """

    __slots__ = ("_pem", "_roots", "_valid_until_s", "certificates", "validity")

    def __init__(self, pem: bytes, where: str) -> None:
        """Take a PEM text from the file `where`.

        Raises:
            ConfigurationError: It holds no authority that could be trusted.
        """
        expected = "expected PEM certificates of the authority that signs clients"
        try:
            self._pem: Final = pem.decode("ascii", "replace")
            if "BEGIN CERTIFICATE" not in self._pem:
                raise ConfigurationError(f"[tls] client_ca {where}: holds none; {expected}")
            self.certificates: Final = tuple(x509.load_pem_x509_certificates(pem))
            found = [facts_of(certificate) for certificate in self.certificates]
            self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except (OSError, *UNREADABLE) as error:
            raise ConfigurationError(f"[tls] client_ca {where}: {error}; {expected}") from error
        self._roots: Final = frozenset([(one.subject, one.public_key) for one in found if one.subject == one.issuer])
        if not self._roots:
            raise ConfigurationError(
                f"[tls] client_ca {where}: the file has no self-signed CA certificate, so no client could connect. Add one"
            )

        # An authority may have several certificates over one key: it is renewed by adding another.
        self._valid_until_s: Final[dict[tuple[bytes, bytes], float]] = {}
        names: dict[tuple[bytes, bytes], str] = {}
        for one, certificate in zip(found, self.certificates, strict=True):
            owner = (one.subject, one.public_key)
            names[owner] = shown_name(certificate.subject)
            self._valid_until_s[owner] = max(one.valid_until_s, self._valid_until_s.get(owner, 0.0))
        self.validity: Final = tuple((name, self._valid_until_s[owner]) for owner, name in names.items())

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have a context trust them."""
        context.load_verify_locations(cadata=self._pem)

    def trusts(self, chain: Chain) -> bool:
        """Return True if a chain that was verified, perhaps under authorities that were in force before, leads to one of these."""
        return any((certificate.subject, certificate.public_key) in self._roots for certificate in chain)

    def validity_of(self, chain: Chain) -> tuple[float, Certificate]:
        """Return until when a chain that leads to one of these is valid, in seconds since the epoch, and the certificate that ends it.

        An authority counts for as long as its newest certificate here: it may have been renewed since the chain was verified.
        """
        ends = [
            (self._valid_until_s.get((one.subject, one.public_key), one.valid_until_s), at)
            for at, one in enumerate(chain)
        ]
        until_s, at = min(ends)
        return until_s, chain[at]


def server_context(
    certificate: ServerCertificate, authorities: Authorities, minimum: Literal["1.2", "1.3"]
) -> ssl.SSLContext:
    """Make the context of a listener that accepts only clients with a certificate of `authorities`.

    `revocation` checks whether a certificate was revoked; the context does not.

    Args:
        certificate: The server's.
        authorities: Of the clients.
        minimum: Version of TLS.

    Raises:
        ConfigurationError: The minimum is 1.2, and the session cache cannot be switched off.
    """
    context = _context(certificate, minimum)
    context.verify_mode = ssl.CERT_REQUIRED
    authorities.load_into(context)
    if minimum == "1.2":
        switch_off_session_cache(context)
        prove_no_resumption(certificate.load_into)
    return context


def web_context(certificate: ServerCertificate, minimum: Literal["1.2", "1.3"]) -> ssl.SSLContext:
    """Make the context of a listener that asks for no client certificate: a browser would ask its user for one, or end."""
    context = _context(certificate, minimum)
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def _context(certificate: ServerCertificate, minimum: Literal["1.2", "1.3"]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if minimum == "1.3" else ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")  # of 1.2: forward secrecy, and none of the CBC suites
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0  # resumption would skip the certificate
    certificate.load_into(context)
    return context


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Give the path of a file that is nowhere on disk, for as long as the context lasts."""
    descriptor = os.memfd_create("maxam", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)  # to memory: all of it
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)

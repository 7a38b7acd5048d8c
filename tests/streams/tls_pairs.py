"""Settings and contexts of TLS for both ends of a pair."""

import ssl
from pathlib import Path

import trio

from maxam.config import TlsSettings
from maxam.gateway.tls_credentials import Authorities, ServerCertificate, server_context

Client = trio.SSLStream[trio.SocketStream]


def tls_settings(certificates: Path, crl: str | None = "crl.pem") -> TlsSettings:
    """Settings of a server with these certificates."""
    return TlsSettings(
        certificates / "server.pem",
        certificates / "server.key",
        certificates / "ca.pem",
        None if crl is None else certificates / crl,
    )


def context_of(settings: TlsSettings) -> ssl.SSLContext:
    """The context that a gateway with these settings would serve with."""
    certificate = ServerCertificate(settings.certificate.read_bytes(), settings.key.read_bytes(), "server")
    return server_context(certificate, Authorities(settings.client_ca.read_bytes(), "ca"), settings.minimum)


def client_context(certificates: Path, name: str | None) -> ssl.SSLContext:
    """A client's context with the certificate of that name, or without any."""
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    if name is not None:
        context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    return context

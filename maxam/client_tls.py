"""The TLS context of a client, for all programs."""

import ssl
from pathlib import Path
from typing import Final, final

from maxam.errors import ClientError


@final
class CertificateFileError(ClientError):
    """A certificate, key or CA file is missing or invalid.

    Attributes:
        kind: `cert`, `key` or `ca`, the option for the file. `key` also if certificate and key do not belong together.
    """

    code = "certificate-invalid"

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind: Final = kind


def client_context(
    ca: str | Path | None, certificate: str | Path | None, key: str | Path | None, *, name_checked: bool
) -> ssl.SSLContext:
    """Return the TLS context of a client.

    Args:
        ca: PEM file of the CA whose certificates it trusts. None trusts the authorities of the system.
        certificate: PEM file of its own certificate chain. None shows none.
        key: PEM file of its key, without a password. None: the certificate's file has it.
        name_checked: Check the name of the server. Venues trust by chain: their site controller's name does not resolve.

    Raises:
        CertificateFileError: A file is missing, unreadable or not PEM of its kind.
    """
    for kind, name, path in (("ca", "CA", ca), ("cert", "certificate", certificate), ("key", "key", key)):
        try:
            if path is not None:
                Path(path).open("rb").close()
        except OSError as error:
            raise CertificateFileError(f"cannot read the {name} file {path}: {error.strerror}", kind) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = name_checked
    try:
        if ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(ca)
    except (ssl.SSLError, OSError) as error:
        raise CertificateFileError(f"the CA file {ca} holds no usable PEM certificate: {error}", "ca") from error
    if certificate is not None:
        try:
            # an encrypted key must fail here, not ask on a terminal that a service does not have
            context.load_cert_chain(certificate, key, password="")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise CertificateFileError(
                f"certificate {certificate} and key {key or certificate} do not work together: {error}."
                " Expected a PEM certificate chain and its PEM key without a password",
                "key",
            ) from error
    return context

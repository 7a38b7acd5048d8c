"""Certificates as the Java brokers read them: a key store and a trust store instead of PEM files."""

from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

SERVER_STORE: Final = "server.p12"
TRUST_STORE: Final = "trust.p12"
PASSWORD: Final = "maxam-bench"  # noqa: S105  # of stores that live as long as the broker, in a folder of ours


def write_stores(certificates: Path, folder: Path) -> None:
    """Write the server's certificate and the authority of the clients into a folder, for Java."""
    authority = x509.load_pem_x509_certificate((certificates / "ca.pem").read_bytes())
    server = x509.load_pem_x509_certificate((certificates / "server.pem").read_bytes())
    key = load_pem_private_key((certificates / "server.key").read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("the development certificates have keys on P-256")
    encryption = BestAvailableEncryption(PASSWORD.encode())
    (folder / SERVER_STORE).write_bytes(
        pkcs12.serialize_key_and_certificates(b"server", key, server, [authority], encryption)
    )
    trusted = [pkcs12.PKCS12Certificate(authority, b"ca")]
    (folder / TRUST_STORE).write_bytes(pkcs12.serialize_java_truststore(trusted, encryption))

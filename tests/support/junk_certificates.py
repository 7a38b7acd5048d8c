"""Certificates that no CA of the venue signed, in any number that a test wants a client to send."""

import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from maxam.pki.certificates import sign_authority

HEAD_BYTES = 3  # of each certificate in a handshake message


def with_junk(folder: Path, name: str, junk_bytes: int) -> Path:
    """Write a client's certificate with junk after it, as `NAME-junk.pem` with its key, and return its path."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    junk = sign_authority(
        key, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "junk")]), now, now + dt.timedelta(days=1)
    )
    each = len(junk.public_bytes(serialization.Encoding.DER)) + HEAD_BYTES
    pem = (folder / f"{name}.pem").read_bytes()
    path = folder / f"{name}-junk.pem"
    path.write_bytes(pem + junk.public_bytes(serialization.Encoding.PEM) * (junk_bytes // each))
    path.with_suffix(".key").write_bytes((folder / f"{name}.key").read_bytes())
    return path

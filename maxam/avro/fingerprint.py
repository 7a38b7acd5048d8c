"""Fingerprints of schemas, over their Parsing Canonical Form."""

import hashlib
from typing import Final

CRC_BYTES: Final = 8
SHA_BYTES: Final = 32

_EMPTY: Final = 0xC15D213AA4D7A795  # polynomial and start value, given by the specification


def _table() -> list[int]:
    table = []
    for byte in range(256):
        rest = byte
        for _ in range(8):
            rest = (rest >> 1) ^ (_EMPTY if rest & 1 else 0)
        table.append(rest)
    return table


_TABLE: Final = _table()


def crc_64_avro(canonical: bytes) -> bytes:
    """Compute the 64-bit Rabin fingerprint.

    Returns:
        8 bytes, little-endian: as a single-object body carries them, and as other tools print them in hexadecimal.

    Spec: Avro 1.12 "Schema Fingerprints"
    """
    fingerprint = _EMPTY
    for byte in canonical:
        fingerprint = (fingerprint >> 8) ^ _TABLE[(fingerprint ^ byte) & 0xFF]
    return fingerprint.to_bytes(CRC_BYTES, "little")


def sha_256(canonical: bytes) -> bytes:
    """Compute the SHA-256 fingerprint, 32 bytes.

    Spec: Avro 1.12 "Schema Fingerprints"
    """
    return hashlib.sha256(canonical).digest()

"""Fingerprints against the vectors that the Avro project publishes, and against fastavro."""

import pytest
from fastavro.schema import fingerprint as fastavro_fingerprint

from maxam.avro.fingerprint import crc_64_avro, sha_256

VECTORS = [  # canonical form, CRC-64-AVRO as a signed number: share/test/data/schema-tests.txt of Apache Avro
    ('"null"', 7195948357588979594),
    ('"boolean"', -6970731678124411036),
    ('"int"', 8247732601305521295),
    ('"long"', -3434872931120570953),
    ('"float"', 5583340709985441680),
    ('"double"', -8181574048448539266),
    ('"bytes"', 5746618253357095269),
    ('"string"', -8142146995180207161),
    ("[]", -1241056759729112623),
    ('["int"]', -5232228896498058493),
    ('["int","boolean"]', 5392556393470105090),
    ('{"name":"foo","type":"record","fields":[]}', -4824392279771201922),
    ('{"name":"x.y.foo","type":"record","fields":[]}', 5916914534497305771),
    ('{"name":"a.b.foo","type":"record","fields":[]}', -4616218487480524110),
    ('{"name":"foo","type":"record","fields":[{"name":"f1","type":"boolean"}]}', 7843277075252814651),
    ('{"name":"foo","type":"enum","symbols":["A1"]}', -6342190197741309591),
    ('{"name":"x.y.z.foo","type":"enum","symbols":["A1","A2"]}', -4448647247586288245),
    ('{"name":"foo","type":"fixed","size":15}', 1756455273707447556),
    ('{"type":"array","items":"null"}', -589620603366471059),
    ('{"type":"map","values":"string"}', -8732877298790414990),
]


@pytest.mark.parametrize(("canonical", "expected"), VECTORS)
def test_crc_is_the_published_one(canonical: str, expected: int) -> None:
    """The CRC-64-AVRO of each published vector comes out, little-endian."""
    assert crc_64_avro(canonical.encode()) == expected.to_bytes(8, "little", signed=True)


@pytest.mark.parametrize("canonical", [canonical for canonical, _ in VECTORS])
def test_fingerprints_are_those_of_fastavro(canonical: str) -> None:
    """Both fingerprints in hexadecimal are what fastavro prints."""
    assert crc_64_avro(canonical.encode()).hex() == fastavro_fingerprint(canonical, "CRC-64-AVRO")
    assert sha_256(canonical.encode()).hex() == fastavro_fingerprint(canonical, "SHA-256")

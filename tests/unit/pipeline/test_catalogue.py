"""The schemas of a journal: each found again by what a record has of it."""

import json
import pickle
from hashlib import sha256
from pathlib import Path

import pytest

from maxam.avro.fingerprint import crc_64_avro, sha_256
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.errors import PipelineError

SCHEMAS = Path(__file__).parents[3] / "schemas"


def text(logical: str = "") -> bytes:
    """A type of one field."""
    kind = {"type": "long", "logicalType": logical} if logical else "long"
    document = {"type": "record", "name": "t.A_v1", "fields": [{"name": "a", "type": kind}]}
    return json.dumps(document, separators=(",", ":")).encode()


def keep(journal: Path, *texts: bytes) -> None:
    """Store texts as a journal does."""
    (journal / "schemas").mkdir(parents=True, exist_ok=True)
    for body in texts:
        (journal / "schemas" / f"{sha256(body).hexdigest()}.avsc").write_bytes(body)


def fingerprints(body: bytes) -> tuple[bytes, bytes]:
    """Both of them."""
    canonical = parse_schema(read_source("t", body)).canonical
    return crc_64_avro(canonical), sha_256(canonical)


def test_a_kept_text_is_found_by_either_fingerprint_and_by_nothing_else(tmp_path: Path) -> None:
    """Name and fingerprint find it, whatever the minor; a pickled catalogue knows the same."""
    keep(tmp_path, text())
    catalogue = pickle.loads(pickle.dumps(Catalogue.load(tmp_path, None)))  # noqa: S301 - its own bytes
    for fingerprint in fingerprints(text()):
        assert catalogue.writer("t.A_v1", "1.7", fingerprint) == text().decode()
        assert catalogue.writer("t.B_v1", "1.7", fingerprint) is None
    assert catalogue.writer("t.A_v1", "1.0", b"\0" * 8) is None
    assert catalogue.types() == {"t.A_v1": [("", text().decode())]}
    assert catalogue.unreadable == ()


def test_the_schema_folder_tells_minors_of_one_fingerprint_apart(tmp_path: Path) -> None:
    """Of two versions that differ in a logical type each gives its own text. Without agreement the journal's is taken."""
    journal, folder = tmp_path / "journal", tmp_path / "schemas"
    (folder / "t" / "A_v1").mkdir(parents=True)
    (folder / "registry.toml").write_text("")
    (folder / "t" / "A_v1" / "1.0.avsc").write_bytes(text())
    (folder / "t" / "A_v1" / "1.1.avsc").write_bytes(text("timestamp-millis"))
    keep(journal, text(), text("timestamp-millis"))
    catalogue = Catalogue.load(journal, folder)
    short, _ = fingerprints(text())
    assert catalogue.writer("t.A_v1", "1.0", short) == text().decode()
    assert catalogue.writer("t.A_v1", "1.1", short) == text("timestamp-millis").decode()
    assert catalogue.writer("t.A_v1", "1.0", b"\0" * 8) is None
    assert [version for version, _ in catalogue.types()["t.A_v1"]] == ["1.0", "1.1"]


def test_a_text_that_is_not_what_its_name_says_is_reported(tmp_path: Path) -> None:
    """It is not used, its path and fault are reported, and the other texts are there."""
    keep(tmp_path, text())
    wrong = tmp_path / "schemas" / f"{'0' * 64}.avsc"
    wrong.write_bytes(text("timestamp-millis"))
    catalogue = Catalogue.load(tmp_path, None)
    assert [path for path, _ in catalogue.unreadable] == [str(wrong)]
    assert list(catalogue.types()) == ["t.A_v1"]


def test_every_shipped_schema_is_in_the_catalogue_of_its_folder(tmp_path: Path) -> None:
    """The folder alone does: a journal whose texts are lost is still readable."""
    (tmp_path / "segments").mkdir()
    types = Catalogue.load(tmp_path, SCHEMAS).types()
    assert [version for version, _ in types["egm.EGMMeterReading_v1"]] == ["1.0", "1.1"]


def test_a_folder_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    """The text shows the folder."""
    with pytest.raises(PipelineError, match=str(tmp_path)):
        Catalogue.load(tmp_path, None)

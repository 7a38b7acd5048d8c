"""The schema texts that a journal keeps, where several share one fingerprint: in every order of their files and times."""

import itertools
import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from maxam.avro.fingerprint import crc_64_avro
from maxam.avro.fingerprint import sha_256 as sha_256_avro
from maxam.avro.json.decoding import decode_value
from maxam.avro.personal import marks_personal, with_marks_of
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.content import pack
from maxam.journal.schema_texts import SchemaTexts
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.jobs.decoding import json_values
from maxam.records import Change, Identity, Validation
from maxam.topic_history import HistoryRequest, _Schemas

NAME = "demo.P_v1"
BODY = b"\x0e\x14Joan Smith\x02\x06Bob"  # 7, a name, one friend
ORDERS = list(
    itertools.product((False, True), repeat=2)
)  # whether the marked text comes last by its file's name, and by its time


def text(pii: bool = False, logical: str = "", doc: str = "", friend: bool = False) -> bytes:
    """Return a schema of a count, a name, and friends, which are records inside."""
    inner = {"name": "name", "type": "string", **({"pii": True} if friend else {})}
    of = {"type": "record", "name": "Friend", "fields": [inner]}
    count = {"type": "long", "logicalType": logical} if logical else "long"
    player = {"name": "player", "type": "string", "doc": doc, **({"pii": True} if pii else {})}
    friends = {"name": "friends", "type": ["null", of]}
    document = {"type": "record", "name": "P_v1", "namespace": "demo", "fields": [{"name": "n", "type": count}, player]}
    return json.dumps(document | {"fields": [*document["fields"], friends]}, separators=(",", ":")).encode()


def fingerprint_of(one: bytes) -> bytes:
    """Return the short fingerprint."""
    return crc_64_avro(parse_schema(read_source("t", one)).canonical)


def digest(one: bytes) -> str:
    """Return the name of the file that a journal keeps a text in."""
    return sha256(one).hexdigest()


def keep(journal: Path, *texts: bytes) -> None:
    """Store texts as a journal does, with times in their order."""
    (journal / "schemas").mkdir(parents=True, exist_ok=True)
    for index, one in enumerate(texts):
        path = journal / "schemas" / f"{digest(one)}.avsc"
        path.write_bytes(one)
        os.utime(path, (index, index))


def pair(marked_last_by_name: bool) -> tuple[bytes, bytes]:
    """Return an unmarked and a marked text of one fingerprint, in this order of their digests."""
    for index in itertools.count():
        unmarked, marked = text(doc=f"d{index}"), text(pii=True, doc=f"d{index}")
        if (digest(unmarked) < digest(marked)) == marked_last_by_name:
            assert fingerprint_of(unmarked) == fingerprint_of(marked)
            return unmarked, marked
    raise AssertionError


def journal_of(folder: Path, order: tuple[bool, bool]) -> tuple[bytes, bytes]:
    """Make a journal's texts in an order of names and times."""
    unmarked, marked = pair(order[0])
    keep(folder, *((unmarked, marked) if order[1] else (marked, unmarked)))
    return unmarked, marked


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [8, 32])
def test_a_field_is_personal_if_any_text_of_the_fingerprint_marks_it(
    tmp_path: Path, order: tuple[bool, bool], size: int
) -> None:
    """Whichever text comes first, and whichever version is named, the registry's own included."""
    unmarked, marked = journal_of(tmp_path, order)
    canonical = parse_schema(read_source("t", marked)).canonical
    fingerprint = crc_64_avro(canonical) if size == 8 else sha_256_avro(canonical)
    for known in ((), (("1.0", unmarked),), (("1.0", unmarked), ("1.1", marked))):
        texts = SchemaTexts()
        texts.read(str(tmp_path))
        for minor, one in known:
            texts.add(NAME, minor, one)
        for minor in ("1.0", "1.1", "1.2", ""):
            found = texts.marked(NAME, minor, fingerprint)
            assert found is not None
            assert marks_personal(found)
            shown = decode_value(found, BODY, Validation("datum", NAME, minor, fingerprint, 0), without_pii=True)
            assert shown == {"n": 7, "friends": {"name": "Bob"}}


@pytest.mark.parametrize("order", ORDERS)
def test_history_masks_in_every_order(tmp_path: Path, order: tuple[bool, bool]) -> None:
    """The process that reads a topic's history uses the same marks, whichever version the registry in force still has."""
    unmarked, marked = journal_of(tmp_path, order)
    validation = Validation("datum", NAME, "1.1", fingerprint_of(marked), 0)
    change = Change(1, 0, b"X/p", False, Identity("a", "b"), validation, *pack((), BODY))
    for minors in ({}, {"1.0": unmarked.decode()}, {"1.0": unmarked.decode(), "1.1": unmarked.decode()}):
        asked = HistoryRequest(str(tmp_path), "X/p", None, 1, True, False, False, {NAME: minors})
        found = _Schemas(asked).marked(change)
        assert found is not None
        assert "player" not in str(decode_value(found, BODY, validation, without_pii=True))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("with_folder", [False, True])
def test_an_export_drops_in_every_order(tmp_path: Path, order: tuple[bool, bool], with_folder: bool) -> None:
    """With the schema folder, which has only the unmarked text, and without."""
    journal, folder = tmp_path / "journal", tmp_path / "schemas"
    unmarked, marked = journal_of(journal, order)
    if with_folder:
        (folder / "demo" / "P_v1").mkdir(parents=True)
        (folder / "registry.toml").write_text("")
        (folder / "demo" / "P_v1" / "1.0.avsc").write_bytes(unmarked)
    catalogue = Catalogue.load(journal, folder if with_folder else None)
    row = {
        "schema": NAME,
        "schema_version": "1.0",
        "schema_fingerprint": fingerprint_of(marked),
        "encoding": "datum",
        "value_offset": 0,
        "value_length": -1,
        "body": BODY,
    }
    [dropped] = json_values(pa.RecordBatch.from_pylist([row]), catalogue, without_pii=True)
    [whole] = json_values(pa.RecordBatch.from_pylist([row]), catalogue)
    assert dropped is not None
    assert whole is not None
    assert json.loads(dropped) == {"n": 7, "friends": {"name": "Bob"}}
    assert json.loads(whole)["player"] == "Joan Smith"


def test_marks_of_several_texts_add_up(tmp_path: Path) -> None:
    """Each text marks another field, one of them of a record inside: all are personal."""
    one, other = text(pii=True), text(friend=True, doc="longer")
    keep(tmp_path, one, other)
    texts = SchemaTexts()
    texts.read(str(tmp_path), NAME)
    found = texts.marked(NAME, "1.0", fingerprint_of(one))
    assert found is not None
    validation = Validation("datum", NAME, "1.0", fingerprint_of(one), 0)
    assert decode_value(found, BODY, validation, without_pii=True) == {"n": 7, "friends": {}}


def test_the_text_of_the_named_version_is_preferred_and_else_the_longest(tmp_path: Path) -> None:
    """Neither the order of files nor their times decide."""
    plain, timed = text(), text(logical="timestamp-millis")
    fingerprint = fingerprint_of(plain)
    for index, order in enumerate(((plain, timed), (timed, plain))):
        keep(tmp_path / str(index), *order)
        texts = SchemaTexts()
        texts.read(str(tmp_path / str(index)))
        assert texts.text(NAME, "1.0", fingerprint) == timed
        assert texts.types() == {NAME: [("", plain), ("", timed)]}
        texts.add(NAME, "1.0", plain)
        assert texts.text(NAME, "1.0", fingerprint) == plain
        assert texts.text(NAME, "1.1", fingerprint) == timed
        assert texts.text(NAME, "1.0", b"\0" * 8) is None
        assert texts.types() == {NAME: [("", timed), ("1.0", plain)]}


@pytest.mark.parametrize(
    "type_",
    [
        "string",
        {"type": "array", "items": {"type": "record", "name": "In", "fields": [{"name": "f", "type": "string"}]}},
        ["null", {"type": "map", "values": {"type": "record", "name": "In", "fields": [{"name": "f", "type": "int"}]}}],
        {"type": "record", "name": "In", "namespace": "other", "fields": [{"name": "f", "type": "string"}]},
    ],
)
def test_marks_are_found_at_every_depth(type_: Any) -> None:
    """Of a text in which every field is marked, every mark comes over to one in which none is, and to no other place."""

    def mark(part: Any) -> Any:
        if isinstance(part, dict):
            marked = {key: mark(value) for key, value in part.items()}
            return marked | {"pii": True} if "name" in part and "fields" not in part else marked
        return [mark(each) for each in part] if isinstance(part, list) else part

    document = {"type": "record", "name": "R", "namespace": "n", "fields": [{"name": "g", "type": type_}]}
    bare, full = json.dumps(document).encode(), json.dumps(mark(document)).encode()
    assert json.loads(with_marks_of(bare, (full,))) == json.loads(full)
    assert with_marks_of(full, (bare,)) == full

"""Compatibility, witnesses and silent changes against fastavro and the `avro` package, over drawn schemas, minors and data.

docs/integrate/schema-compatibility.md, "Where checkers disagree", lists the cases left out for either of the two, and why.
"""

import copy
import io
import json
from typing import Any

import avro.errors
import avro.io
import avro.schema
import fastavro
import pytest
from fastavro.read import SchemaResolutionError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maxam.avro.compatibility import check
from maxam.avro.resolution import LOGICAL_TYPE_MISMATCH, Resolution, _mismatch, branch_of
from maxam.avro.schema import Type
from maxam.avro.silent import silent_changes
from maxam.avro.walker import Walker
from maxam.avro.witness import witness
from tests.support.avro_schemas import bodies, minors, parsed, schemas, small_schemas

Json = Any

MANY = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def fastavro_reads(writer: Json, reader: Json, body: bytes) -> bool:
    """Return True if fastavro resolves a datum."""
    try:
        fastavro.schemaless_reader(io.BytesIO(body), _fast(writer), _fast(reader))
    except (SchemaResolutionError, UnicodeDecodeError):
        return False
    return True


def _fast(document: Json) -> Any:
    return fastavro.parse_schema(copy.deepcopy(document), named_schemas={})


def apache_reads(writer: Json, reader: Json, body: bytes) -> bool:
    """Return True if the `avro` package resolves a datum."""
    schemas_of = [avro.schema.parse(json.dumps(document)) for document in (writer, reader)]
    try:
        avro.io.DatumReader(*schemas_of).read(avro.io.BinaryDecoder(io.BytesIO(body)))
    except (avro.errors.AvroException, UnicodeDecodeError):
        return False
    return True


def beyond_apache(writer: Type, reader: Type) -> bool:
    """Return True if resolving takes what the `avro` package does not have.

    That is aliases, unqualified names, string for bytes, defaults of enums, items of another kind, and a writer's union without a
    reader's.
    """
    resolution = Resolution(writer, reader)
    types: dict[int, Type] = {id(writer): writer, id(reader): reader}
    for pair in resolution._pairs.values():
        for child in pair.children:
            types |= {id(child.writer): child.writer, id(child.reader): child.reader}
    for key, pair in resolution._pairs.items():
        w, r = types[key[0]], types[key[1]]
        if (w.name and r.name and w.name != r.name) or (w.kind == "union" and r.kind != "union"):
            return True
        if {w.kind, r.kind} == {"string", "bytes"} or (w.kind == r.kind == "enum" and set(w.symbols) - set(r.symbols)):
            return True
        for child in pair.children:
            if w.kind == r.kind == "record" and child.writer_step != child.reader_step:
                return True
            if w.kind == r.kind and w.kind in {"array", "map"} and child.writer.kind != child.reader.kind:
                return True
    return False


def beyond_fastavro(writer: Type, reader: Type) -> bool:
    """Return True if fastavro takes the first matching branch of a reader's union, and not the branch of the writer's very type."""
    pairs = Resolution(writer, reader)._pairs.values()
    steps = [(child.writer, child.reader) for pair in pairs for child in pair.children]
    unions = [(w, r) for w, r in steps if r.kind == "union" and w.kind != "union"]
    return any(next((b for b in r.branches if _mismatch(w, b) is None), None) is not branch_of(w, r) for w, r in unions)


@pytest.mark.slow
@MANY
@given(st.data())
def test_what_is_compatible_resolves(data: st.DataObject) -> None:
    """Without an incompatibility every datum resolves; with one, its witness is a datum of the writer that does not."""
    writer = data.draw(schemas())
    reader = data.draw(minors(writer))
    written, readable = parsed(writer), parsed(reader)
    found = check(readable, written)
    body = data.draw(bodies(writer))
    resolution = Resolution(written.type, readable.type)
    assert resolution.certain == (not found)
    if not _logical(found) and not beyond_fastavro(written.type, readable.type):
        assert (not resolution.failures(body)) == fastavro_reads(writer, reader, body)
    if not found:
        assert beyond_apache(written.type, readable.type) or apache_reads(writer, reader, body)
    for incompatibility in found:
        datum = witness(written, incompatibility)
        assert datum is not None
        assert Walker(written.type).accepts(datum.body, 0, len(datum.body))
        assert resolution.failures(datum.body)
        if incompatibility.kind != LOGICAL_TYPE_MISMATCH:
            assert not fastavro_reads(writer, reader, datum.body)
            assert not apache_reads(writer, reader, datum.body)


def _logical(found: list[Any]) -> bool:
    return any(incompatibility.kind == LOGICAL_TYPE_MISMATCH for incompatibility in found)


@pytest.mark.slow
@MANY
@given(schemas(logical=True))
def test_a_schema_reads_what_it_wrote(schema: Json) -> None:
    """A schema is compatible with itself, and a datum of it can only be taken for what it is."""
    assert check(parsed(schema), parsed(schema)) == []
    assert silent_changes(parsed(schema), parsed(schema)) == []


def plain(document: Json) -> Json:
    """Take logical types away, which fastavro would refuse some values of."""
    if isinstance(document, dict):
        return {key: plain(value) for key, value in document.items() if key != "logicalType"}
    return [plain(item) for item in document] if isinstance(document, list) else document


def as_read(writer: Json, reader: Json | None, body: bytes) -> str | None:
    """Give fastavro's value in comparable text; None where it does not resolve."""
    try:
        value = fastavro.schemaless_reader(
            io.BytesIO(body), _fast(writer), None if reader is None else _fast(reader), return_named_type=True
        )
    except (SchemaResolutionError, UnicodeDecodeError):
        return None
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_text(value[key])}' for key in sorted(value))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item) for item in value)}]"
    return repr(
        value.decode("latin-1") if isinstance(value, bytes) else value
    )  # fastavro gives defaults of bytes as text


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_silent_changes_are_those_that_happen(data: st.DataObject) -> None:
    """A silent change shows a body of both versions that fastavro reads as another value than it resolves to.

    Without a silent change, no drawn body is such.
    """
    old = data.draw(small_schemas())
    new = plain(data.draw(minors(old, 3)))
    older, newer = parsed(old), parsed(new)
    changes = silent_changes(older, newer)
    walkers = [Walker(older.type), Walker(newer.type)]
    for change in changes[:1]:
        assert all(walker.accepts(change.body, 0, len(change.body)) for walker in walkers)
        if not beyond_fastavro(older.type, newer.type):
            assert as_read(old, new, change.body) != as_read(new, None, change.body)
    if not changes:
        for body in [data.draw(bodies(old)) for _ in range(4)]:
            resolved = as_read(old, new, body) if not beyond_fastavro(older.type, newer.type) else None
            if resolved is not None and walkers[1].accepts(body, 0, len(body)):
                assert resolved == as_read(new, None, body)


@pytest.mark.slow
@pytest.mark.parametrize("logical", [False, True])
def test_what_is_drawn_is_accepted(logical: bool) -> None:
    """The walker accepts each drawn body of each drawn schema, and none that is cut or longer."""

    @MANY
    @given(st.data())
    def test(data: st.DataObject) -> None:
        schema = data.draw(schemas(logical=logical))
        of = parsed(schema).type
        body = data.draw(bodies(schema))
        walker = Walker(of)
        assert walker.explain(body, 0, len(body)) is None
        assert walker.accepts(body, 0, len(body))
        assert not body or not walker.accepts(body, 0, len(body) - 1)
        assert not walker.accepts(body + b"\x00", 0, len(body) + 1)
        if not logical:  # else fastavro turns the values into what logical types are in Python, and not all are
            read = io.BytesIO(body)
            fastavro.schemaless_reader(read, _fast(schema), None)
            assert read.tell() == len(body)
            decoder = avro.io.BinaryDecoder(io.BytesIO(body))
            avro.io.DatumReader(avro.schema.parse(json.dumps(schema))).read(decoder)
            assert decoder.reader.tell() == len(body)

    test()

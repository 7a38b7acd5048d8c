"""Older columns that are widened are the columns that the same values have when all minors are known from the start."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from maxam.pipeline.history.arrays import Reader, Slots
from maxam.pipeline.history.columns import ColumnType
from maxam.pipeline.history.command import update_history
from maxam.pipeline.history.parquet import DEFAULTS
from maxam.pipeline.history.widening import widened
from tests.pipeline.test_history import A0, B0, Chance, some_changes
from tests.pipeline.typed_journal import Minor, record_type, write_journal

ROWS = 40


@pytest.mark.parametrize("seed", range(25))
def test_widened_columns_are_those_of_all_minors(seed: int) -> None:
    """For types, minors and values by chance, nulls among them, also for a part of an array."""
    chance = Chance(seed)
    document = chance.record(3)
    document["name"] = "t.R_v1"
    minors = []
    for version in range(4):
        minors.append(Minor("t.R_v1", f"1.{version}", document))
        document = chance.younger(document, 1)
    texts = [(minor.version, minor.text.decode()) for minor in minors]
    bodies = [minors[0].encode(chance.value(minors[0].document)[0]) for _ in range(ROWS)]
    ends = np.cumsum([len(body) for body in bodies])
    slots = Slots(ROWS + 2, np.arange(ROWS) + 1)  # the first row and the last one are null

    def read(column: ColumnType) -> Any:
        reader = Reader(bodies)
        starts = reader.inside(np.concatenate(([0], ends[:-1])))
        return reader.column(column.minor(texts[0][1]).root, column.place(), starts, slots)[0]

    whole = ColumnType(texts)
    expected = read(whole)
    for known in range(1, len(texts)):
        older = ColumnType(texts[:known])
        array = read(older)
        found = widened(array, older.place(), whole.place())
        found.validate(full=True)
        assert found.equals(expected)
        part = widened(array.slice(7, 20), older.place(), whole.place())
        part.validate(full=True)
        assert part.equals(expected.slice(7, 20))


def test_the_default_of_a_new_field_is_in_the_metadata(tmp_path: Path) -> None:
    """Each file of a type has the defaults of its fields by path, also one that was widened; rows without a field are null."""
    inner = record_type("t.Inner", ("d", "int"), {"name": "e", "type": "string", "default": "x"})
    fields = ("a", "int"), ("s", "string"), {"name": "c", "type": "int", "default": 7}
    nested = {"name": "list", "type": {"type": "array", "items": ["null", "long", inner]}, "default": []}
    younger = Minor("t.A_v1", "1.1", record_type("t.A_v1", *fields, nested))
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 10), [A0, B0])
    update_history(None, journal, out)
    write_journal(journal, some_changes(11, 20), [A0, younger, B0])
    update_history(None, journal, out)
    files = sorted((out / "t.A_v1").rglob("*.parquet"))
    assert len(files) > 1
    for file in files:
        schema = pq.read_schema(file)
        found = json.loads(schema.metadata[DEFAULTS.encode()])
        assert found == {"value.c": 7, "value.list": [], "value.list.element.Inner.e": "x"}
        assert {row["value"]["c"] for row in pq.read_table(file).to_pylist() if row["value"]} <= {None}
    (plain, *_) = (out / "t.B_v1").rglob("*.parquet")
    assert json.loads(pq.read_schema(plain).metadata[DEFAULTS.encode()]) == {}

"""Older columns that are widened are the columns that the same values have when all minors are known from the start."""

from typing import Any

import numpy as np
import pytest

from maxam.pipeline.history.arrays import Reader, Slots
from maxam.pipeline.history.columns import ColumnType
from maxam.pipeline.history.widening import widened
from tests.pipeline.test_history import Chance
from tests.pipeline.typed_journal import Minor

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

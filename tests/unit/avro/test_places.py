"""Lines of places in schema files: for any file, the search for one takes time and memory in proportion to its size."""

import tracemalloc

import pytest

from maxam.avro.places import line_of, located
from maxam.errors import SchemaError

FILE = "X_v1/1.0.avsc"


@pytest.mark.parametrize("place", ["", "a", "[0][0]"])
@pytest.mark.parametrize("text", [b"[" * 20_000, b'{"a":' * 20_000, b'"' + b"x" * 1_000_000 + b'"', b'\\"' * 20_000])
def test_no_text_takes_much_memory(text: bytes, place: str) -> None:
    """Nesting that no reader of JSON takes, a string of a megabyte, and strings that do not end."""
    tracemalloc.start()
    try:
        located(SchemaError("bad", FILE, place), {FILE: text})
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()


def test_a_string_that_does_not_end_is_the_last_thing() -> None:
    """Places before it are found. Apparent places in it are not."""
    text = b'{"a": 1,\n"b": [2,\n3, "c\\" , "d": 4\n, "e": 5'
    assert [line_of(FILE, text, place) for place in ("a", "b[1]", "b[2]", "e", "")] == [1, 3, 3, None, None]

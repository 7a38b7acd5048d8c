"""The same value is read from YAML as from JSON."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from maxam.terminal.yaml_text import yaml_document

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_any_value_is_read_back(value: object) -> None:
    """A value of JSON is read back by a YAML library, and its text has only printable characters and line ends."""
    text = yaml_document(value)
    assert yaml.safe_load(text) == json.loads(json.dumps(value))
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"name": "X/a", "count": 2, "on": True}, '---\nname: "X/a"\ncount: 2\n"on": true'),
        ({"rows": [{"a": 1, "b": []}, [2]], "none": {}}, "---\nrows:\n  - a: 1\n    b: []\n  - - 2\nnone: {}"),
        (1e16, "---\n1.0e+16"),
        ("\x1b\u2028\U0001f600", '---\n"\\u001b\\U00002028\U0001f600"'),
    ],
)
def test_the_layout_is_of_blocks(value: object, text: str) -> None:
    """Objects and lists are blocks, and strings are quoted."""
    assert yaml_document(value) == text

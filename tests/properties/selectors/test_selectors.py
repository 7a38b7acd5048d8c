"""Selectors against SQLite, and texts of every kind against the parser."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.config import Limits
from maxam.errors import SelectorError
from maxam.selectors.parser import parse_selector
from maxam.selectors.syntax import NESTING_MAX
from tests.properties.selectors.selector_cases import main, run_schema, sqlite

TOKENS = (
    *("AND", "or", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "header"),
    *("(", ")", "[", "]", ",", ".", "=", "<>", "<", ">=", "+", "-", "*", "/"),
    *("a", "meters", '"in"', "'x'", "'%'", "'!'", "1", "0", "2.5", "1e400", "9" * 20),
)


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_selector_equals_sql(seed: int) -> None:
    """Each selector matches the values for which SQLite finds the condition true, and its negation those where it is false."""
    run_schema(seed, sqlite())


@pytest.mark.slow
def test_many_selectors_equal_sql() -> None:
    """So do the first thousands of the fixed sequence of cases."""
    main(20_000)


@given(st.lists(st.sampled_from(TOKENS), max_size=80).map(" ".join) | st.text(max_size=200))
@settings(max_examples=500, deadline=None)
def test_a_text_is_a_selector_or_gets_its_position(text: str) -> None:
    """No text makes the parser fail in another way, and no tree is higher than it may be."""
    error = None
    try:
        root = parse_selector(text, Limits())
    except SelectorError as caught:
        error = caught
    else:
        assert root.height <= NESTING_MAX
    if error is not None:
        assert 1 <= error.position <= len(text) + 1
        assert error.problem
        assert error.hint.endswith(".")

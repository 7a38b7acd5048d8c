"""One of something is not many."""

import pytest

from maxam.counting import counted


@pytest.mark.parametrize(
    ("number", "what", "form", "text"),
    [
        (0, "byte", "", "0 bytes"),
        (1, "byte", "", "1 byte"),
        (2, "byte", "", "2 bytes"),
        (1.0, "day", "g", "1 day"),
        (0.5, "day", "g", "0.5 days"),
        (2, "key", "", "2 keys"),
        (1, "capability", "", "1 capability"),
        (3, "capability", "", "3 capabilities"),
        (1234567, "topic", ",", "1,234,567 topics"),
        (2, "rejected SEND", "", "2 rejected SENDs"),
    ],
)
def test_one_is_singular_and_all_else_plural(number: float, what: str, form: str, text: str) -> None:
    """Numbers are written as they are asked for."""
    assert counted(number, what, form) == text

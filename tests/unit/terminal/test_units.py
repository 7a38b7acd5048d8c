"""Sizes and durations for people."""

import pytest

from maxam.terminal.units import milliseconds, size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (1, "1 byte"),
        (10_239, "10239 bytes"),
        (10_240, "10.0 KiB"),
        (5 * 2**20, "5.0 MiB"),
        (3 * 2**40, "3.0 TiB"),
        (2**60, "1048576.0 TiB"),
    ],
)
def test_sizes_are_short(count: int | None, text: str) -> None:
    """One digit after the point, in the largest unit."""
    assert size(count) == text


def test_milliseconds_have_three_digits() -> None:
    """More if the number is larger."""
    assert [milliseconds(seconds) for seconds in (None, 0.0012345, 1.5)] == ["unknown", "1.23 ms", "1500 ms"]

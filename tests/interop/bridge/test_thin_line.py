"""The short form of `make bridge-thin-line`."""

import pytest

from tests.interop.bridge import thin_line

pytestmark = [pytest.mark.interop]


def test_high_priorities_pass_a_line_that_loses_packets() -> None:
    """Over 1 Mbit/s with 2 % loss, twice as much load loses no newest value, and values of high priority do not wait."""
    thin_line.require()
    assert thin_line.main(["--seconds", "8"]) == 0

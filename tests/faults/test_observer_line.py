"""The short form of `make observer-line`."""

import pytest

from tests.faults import observer_line
from tests.interop.bridge import thin_line

pytestmark = [pytest.mark.interop]


def test_an_observer_behind_a_bad_line_is_promoted() -> None:
    """Through 2 % loss and three outages, its journal is the beginning of its source's, and it serves clients afterwards."""
    thin_line.require()
    assert observer_line.main(["--seconds", "4", "--outage", "2"]) == 0

"""The short form of `make observer-line`."""

import os
import sys

import pytest

from tests.faults import observer_line
from tests.interop.bridge import thin_line

pytestmark = [pytest.mark.interop]


def test_an_observer_behind_a_bad_line_is_promoted() -> None:
    """Through 2 % loss and three outages, its journal is the beginning of its source's, and it serves clients afterwards."""
    problem = thin_line.missing()
    if problem:
        if os.environ.get("CI") and problem.startswith("not installed"):
            pytest.fail(problem)
        pytest.skip(problem)
    sys.stdout.flush()
    assert observer_line.main(["--seconds", "4", "--outage", "2"]) == 0

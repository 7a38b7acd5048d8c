"""The promises of `maxam-conformance`, their page, and commands that cannot be used."""

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from maxam.conformance.main import conformance
from maxam.conformance.running import PROMISES

PAGE = Path(__file__).parents[3] / "docs/integrate/conformance.md"


@pytest.mark.parametrize(
    "command", [["nonesuch-program"], [sys.executable, "-c", "print('hello')"], [sys.executable, "-c", "pass"]]
)
def test_a_driver_that_cannot_be_used_is_a_usage_error(command: list[str]) -> None:
    """No program, no report, and no output at all: exit code 2."""
    done = CliRunner().invoke(conformance, ["run", "--timeout", "30s", "--", *command])
    assert done.exit_code == 2, done.output


def test_steps_are_numbers() -> None:
    """Anything else is a usage error."""
    done = CliRunner().invoke(conformance, ["run", "--steps", "a,b", "--", sys.executable])
    assert done.exit_code == 2


def test_the_page_lists_each_promise() -> None:
    """The table of the page has code and level of each promise, in the order of the program."""
    table = PAGE.read_text().partition("## The promises")[2].partition("## The driver")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| ([a-z]+) \|", table, re.MULTILINE)
    assert rows == [(one.code, one.level) for one in PROMISES.values()]


def test_each_promise_needs_known_ones() -> None:
    """A promise needs promises that come before it, so none waits for itself."""
    seen: set[str] = set()
    for one in PROMISES.values():
        assert set(one.needs) <= seen
        seen.add(one.code)

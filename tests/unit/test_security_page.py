"""docs/security.md promises nothing without a test."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


@cache
def named_in(path: str) -> frozenset[str]:
    """Names of the tests in a file, those in classes as `Class::name`."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + one.name for one in inside if isinstance(one, ast.FunctionDef)}
    return frozenset(found)


@pytest.mark.parametrize(("path", "name"), sorted(set(REFERENCE.findall(PAGE))))
def test_each_test_that_is_named_exists(path: str, name: str) -> None:
    """A row of the page names a test that is there."""
    assert name in named_in(path)


def test_each_row_names_a_test() -> None:
    """In a table whose last column is `test`, no row is without one."""
    without = []
    in_table = False
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            in_table = False
        elif line.endswith("| test |"):
            in_table = True
        elif in_table and not line.startswith("|---") and not REFERENCE.search(line.rsplit(" | ", 1)[1]):
            without.append(line)
    assert not without
    assert len(REFERENCE.findall(PAGE)) > 60

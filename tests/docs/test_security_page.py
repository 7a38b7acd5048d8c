"""docs/operate/security.md promises nothing without a test."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operate/security.md").read_text()
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
    """Each test in a row of the page exists."""
    assert name in named_in(path)


def test_each_promise_has_a_test() -> None:
    """In a list after `Each line has its tests:`, no promise is without one."""
    lists = [part.partition("\n## ")[0].strip() for part in PAGE.split("Each line has its tests:\n")[1:]]
    promises = [promise for one in lists for promise in re.split(r"^\* ", one, flags=re.MULTILINE)[1:]]
    assert [promise for promise in promises if not REFERENCE.search(promise)] == []
    assert len(promises) > 60

"""What docs/reliability.md names exists: a promise beside a test that is gone is none."""

import os
import re
from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
TREE = Path(os.environ.get("MAXAM_TREE", ROOT))  # what is installed is tested beside a copy without sources
PAGE = (ROOT / "docs/reliability.md").read_text()
SPANS = [span.strip() for span in re.findall(r"`([^`\n]+)`", PAGE)]
TESTS = {path.name: path for path in (ROOT / "tests").rglob("*.py")}
SOURCES = "\n".join(path.read_text() for path in TESTS.values())


@pytest.mark.parametrize("name", sorted({span for span in SPANS if re.fullmatch(r"(tests|maxam)/\S*|\w+\.py", span)}))
def test_every_file_that_is_named_exists(name: str) -> None:
    """A path is there; a bare name is a test's."""
    assert (TREE / name).exists() if "/" in name else name in TESTS


@pytest.mark.parametrize("name", sorted({span for span in SPANS if re.fullmatch(r"test_\w+", span)}))
def test_every_test_that_is_named_exists(name: str) -> None:
    """A function of that name is among the tests."""
    assert f"def {name}(" in SOURCES


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z-]+)(?= [A-Z]+=|`|\n|  )", PAGE))))
def test_every_target_that_is_named_exists(target: str) -> None:
    """The Makefile has it."""
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_all_mutants_are_listed() -> None:
    """Those that CI catches, and no others."""
    listed = re.findall(r"\*(\S[^*\n]*)\*", PAGE[PAGE.index("**Is it sharp?**") :].split("\n\n")[1])
    assert sorted(listed) == sorted(mutant.name for mutant in MUTANTS)


def test_every_section_has_an_attack() -> None:
    """Who promises something names what attacks it."""
    for section in PAGE.split("\n## ")[1:]:
        if "**Promise.**" in section:
            assert re.search(r"\*\*Attack\.\*\*|what attacks it", section), section.splitlines()[0]

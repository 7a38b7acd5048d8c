"""The files, tests and make targets that the pages about reliability mention exist."""

import os
import re
from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
TREE = Path(os.environ.get("MAXAM_TREE", ROOT))  # what is installed is tested beside a copy without sources
PROMISES = (ROOT / "docs/operate/reliability.md").read_text()
PAGE = PROMISES + (ROOT / "docs/develop/reliability-tests.md").read_text()
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


def test_every_mutant_that_is_named_exists() -> None:
    """A bug of that name is put in by CI."""
    named = set(re.findall(r'mutant "([^"]+)"', PAGE))
    assert named <= {mutant.name for mutant in MUTANTS}


def test_every_section_has_an_attack() -> None:
    """A promise has a test."""
    for section in PROMISES.split("\n## ")[1:]:
        if "**Promise.**" in section:
            assert "**Attack.**" in section, section.splitlines()[0]

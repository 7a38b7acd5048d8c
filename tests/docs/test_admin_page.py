"""docs/operate/admin.md describes the admin listener and `maxam-admin`, and is compared with the code as far as possible."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import click

from maxam.api.routes.health import CODES
from maxam.cli.main import main
from maxam.gateway.loaded_config import ITEMS

ROOT = Path(__file__).parents[2]
TREE = Path(os.environ.get("MAXAM_TREE", ROOT))  # what is installed is tested beside a copy without sources
PAGE = (ROOT / "docs/operate/admin.md").read_text(encoding="utf-8")
REASONS = {"unready_reasons", "unready", "degraded_reasons", "degraded", "crowded"}


def codes() -> Iterator[str]:
    """Give the codes that texts of health begin with, wherever they are made."""
    yield from ITEMS
    for path in (TREE / "maxam").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(f"def {name}(" in text for name in REASONS):
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef) and function.name in REASONS:
                for part in ast.walk(function):
                    if isinstance(part, ast.Constant) and (code := re.match(r"([a-z_-]+): ", str(part.value))):
                        yield code[1]


def test_every_code_of_health_has_a_row() -> None:
    """And no row has another one."""
    section = PAGE.partition("\n### Codes of health\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`.*?) \| `(?:reasons|degraded)` \|", section, re.MULTILINE)
    assert {code for row in rows for code in re.findall(r"`([\w-]+)`", row)} == set(codes())


def test_every_code_of_health_is_a_metric() -> None:
    """`maxam_degraded` has each code from the start, and no other."""
    assert len(CODES) == len(set(CODES))
    assert set(CODES) == set(codes())


def verbs(command: click.Command, *names: str) -> Iterator[tuple[str, click.Command]]:
    """Give each command that does something."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from verbs(below, *names, name)
    else:
        yield " ".join(names), command


def test_every_verb_has_json_but_those_that_are_named() -> None:
    """The page names those that have not."""
    [said] = re.findall(
        r"^\* \*\*`--json`\*\*: every command has it except (.*?)\. Listings", PAGE, re.MULTILINE | re.DOTALL
    )
    without = {name for name, verb in verbs(main) if not any("--json" in parameter.opts for parameter in verb.params)}
    assert without == set(re.findall(r"`([a-z ]+)`", said))

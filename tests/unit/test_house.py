"""The limits on the size of modules and classes, and on imports where a reader does not expect them."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.house import House, measure

ROOT = Path(__file__).parents[2]
MODULE_LINES_MAX = 600
CLASS_LINES_MAX = 450
INSIDE_MAX = 30  # imports inside functions: for packages that may be missing, and for what few need and is slow to load
# Modules that know each other by imports for type checkers. Each entry needs a reason.
KNOWN = (
    # A topic has its subscriptions, a subscription its session and its connection, and a connection its ready subscriptions.
    ("maxam.broker", {"acknowledgements", "operations", "outbox", "refined_delivery", "session", "wire_cache"}),
    # A gateway asks its role whether it serves. The role of a follower or member plays a whole gateway.
    ("maxam.gateway", {"announcing", "leaving", "member", "observer", "role", "server"}),
)


@pytest.fixture(scope="module")
def house() -> House:
    """The tree of this test."""
    return measure(ROOT)


def test_modules_and_classes_are_small(house: House) -> None:
    """No module has more than 600 lines, and no class more than 450. Move one responsibility out of a larger one."""
    assert {name: lines for name, lines in house.modules.items() if lines > MODULE_LINES_MAX} == {}
    assert {name: lines for name, lines in house.classes.items() if lines > CLASS_LINES_MAX} == {}


def test_imports_stand_at_the_top(house: House) -> None:
    """No modules import each other when the program runs, and few imports are inside functions."""
    assert house.cycles == []
    assert house.known == [sorted(f"{room}.{name}" for name in names) for room, names in KNOWN]
    assert len(house.inside) <= INSIDE_MAX, sorted(house.inside)


def test_each_pure_room_exists() -> None:
    """Each module and room that the linter keeps free of I/O is one of the tree. A renamed module would lose its protection."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["per-file-ignores"]
    (pattern,) = [one for one, ignored in rules.items() if one.startswith("!") and ignored == ["TID251"]]
    names = expand(pattern.removeprefix("!**/"))
    assert len(names) > 20
    assert [name for name in names if not list(ROOT.glob(name))] == []


def expand(pattern: str) -> list[str]:
    """Return the names that a pattern with nested braces stands for."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [name for one in found[1].split(",") for name in expand(before + one + after)]


def test_what_is_measured(tmp_path: Path) -> None:
    """A tree with each finding has it reported once."""
    folder = tmp_path / "maxam" / "room"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("from maxam.room import b\n\n\nclass Wide:\n    x = 1\n    y = 2\n")
    (folder / "c.py").write_text("if TYPE_CHECKING:\n    from maxam.room import d\n")
    (folder / "d.py").write_text("from maxam.room import c\n")
    (folder / "b.py").write_text(
        "from maxam.room.a import Wide\n\n\ndef one() -> None:\n    def two() -> None:\n        import os\n"
    )
    house = measure(tmp_path)
    assert house.rooms == {"room": 15}
    assert house.classes == {"maxam.room.a.Wide": 3}
    assert house.cycles == [["maxam.room.a", "maxam.room.b"]]
    assert house.known == [["maxam.room.a", "maxam.room.b"], ["maxam.room.c", "maxam.room.d"]]
    assert house.inside == {"maxam.room.b:6"}

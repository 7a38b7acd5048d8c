"""Print what the size of the tree is, as the tables of docs/develop/house.md have it: `python tests/house.py [ROOT]`."""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path

LARGE = 400  # lines
WORDS = 4  # of an assert on prose
_WORD = re.compile(r"[('\"]?[A-Za-z][a-z']+[,.;:)!?'\"]*")  # names of settings, headings of tables and paths are none


@dataclass
class House:
    """The size of the product's modules.

    Attributes:
        rooms: Lines of each room.
        modules: Lines of each module.
        classes: Lines of each class, by module and name.
        inside: `module:line` of each import inside a function.
        cycles: Modules that import each other when the program runs.
        known: Modules that know each other, with the imports for type checkers.
        typing: Modules with imports for type checkers only.
    """

    rooms: Counter[str] = field(default_factory=Counter)
    modules: dict[str, int] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    inside: set[str] = field(default_factory=set)
    cycles: list[list[str]] = field(default_factory=list)
    known: list[list[str]] = field(default_factory=list)
    typing: int = 0


def measure(root: Path) -> House:
    """Measure the modules of a tree below its folder `maxam`."""
    house = House()
    imports: dict[str, set[str]] = defaultdict(set)
    known: dict[str, set[str]] = defaultdict(set)
    paths = {".".join(p.relative_to(root).with_suffix("").parts): p for p in sorted((root / "maxam").rglob("*.py"))}
    for name, path in paths.items():
        text = path.read_text()
        tree = ast.parse(text)
        parts = name.split(".")
        house.modules[name] = text.count("\n")
        house.rooms[parts[1] if len(parts) > 2 else "(ground floor)"] += house.modules[name]
        house.typing += text.count("if TYPE_CHECKING:")
        for node, inside in statements(tree, inside=False):
            if isinstance(node, ast.ClassDef):
                house.classes[f"{name}.{node.name}"] = (node.end_lineno or 0) - node.lineno + 1
            if inside and isinstance(node, ast.Import | ast.ImportFrom):
                house.inside.add(f"{name}:{node.lineno}")
        imports[name] = imported(tree.body, paths)
        only_types = [
            node.body for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        ]
        known[name] = imports[name].union(*(imported(body, paths) for body in only_types))
    house.cycles = cycles(imports)
    house.known = cycles(known)
    return house


def imported(body: list[ast.stmt], modules: Container[str]) -> set[str]:
    """Return the modules of the product that the statements of a block import, without the blocks in them."""
    found = set()
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("maxam"):
            for one in node.names:
                full = f"{node.module}.{one.name}"
                found.add(full if full in modules else node.module)
    return found


def statements(node: ast.AST, *, inside: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the statements below a node, each with whether it stands in a function."""
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        for one in getattr(node, part, ()):
            yield one, inside
            yield from statements(one, inside=inside or isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


def main(root: Path) -> None:
    """Print lines per room, large modules and classes, import cycles, imports inside functions, and asserts on prose."""
    house = measure(root)
    modules, classes = [
        sorted(((lines, name) for name, lines in sizes.items() if lines > LARGE), reverse=True)
        for sizes in (house.modules, house.classes)
    ]
    for what, figure in (
        ("lines", f"{house.rooms.total()} {dict(sorted(house.rooms.items()))}"),
        (f"modules above {LARGE} lines", f"{len(modules)} {modules}"),
        (f"classes above {LARGE} lines", f"{len(classes)} {classes}"),
        ("imports inside functions", len(house.inside)),
        ("import cycles at run time", house.cycles),
        ("import cycles with imports for type checkers", house.known),
        ("imports for type checkers only", house.typing),
        ("asserts on prose", sum(asserts_on_prose(path) for path in (root / "tests").rglob("*.py"))),
    ):
        sys.stdout.write(f"{what}: {figure}\n")


def asserts_on_prose(path: Path) -> int:
    """Count the asserts, and arguments `match`, of a test module that compare with a text of four words or more."""
    found = 0
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assert):
            compared = [one for one in ast.walk(node.test) if isinstance(one, ast.Compare)]
            found += any(is_prose(part) for one in compared for part in ast.walk(one))
        elif isinstance(node, ast.Call):
            found += sum(keyword.arg == "match" and is_prose(keyword.value) for keyword in node.keywords)
    return found


def is_prose(node: ast.AST) -> bool:
    """Return True if a node is a text of four words or more."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return sum(_WORD.fullmatch(word) is not None for word in node.value.split()) >= WORDS


def cycles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module."""
    reach: dict[str, set[str]] = {}
    for name, direct in imports.items():
        seen: set[str] = set()
        todo = list(direct)
        while todo:
            one = todo.pop()
            if one not in seen:
                seen.add(one)
                todo.extend(imports.get(one, ()))
        reach[name] = seen
    found = {tuple(sorted(b for b in reach[a] if a in reach.get(b, ()))) for a in reach if a in reach[a]}
    return [list(one) for one in sorted(found)]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))

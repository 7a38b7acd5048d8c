"""Print what the size of the tree is, as the tables of docs/develop/house.md have it: `python tests/house.py [ROOT]`."""

import ast
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

LARGE = 400  # lines
WORDS = 4  # of an assert on prose
_WORD = re.compile(r"[('\"]?[A-Za-z][a-z']+[,.;:)!?'\"]*")  # names of settings, headings of tables and paths are none


def main(root: Path) -> None:
    """Print lines per room, large modules and classes, import cycles, imports inside functions, and asserts on prose."""
    rooms: Counter[str] = Counter()
    modules, classes, inside = [], [], 0
    imports: dict[str, set[str]] = defaultdict(set)
    paths = {".".join(p.relative_to(root).with_suffix("").parts): p for p in sorted((root / "maxam").rglob("*.py"))}
    for name, path in paths.items():
        text = path.read_text()
        tree = ast.parse(text)
        lines = text.count("\n")
        parts = name.split(".")
        rooms[parts[1] if len(parts) > 2 else "(ground floor)"] += lines
        if lines > LARGE:
            modules.append((lines, name))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= LARGE:
                classes.append(((node.end_lineno or 0) - node.lineno + 1, f"{name}.{node.name}"))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inside += sum(isinstance(one, ast.Import | ast.ImportFrom) for one in ast.walk(node))
        for node in tree.body:  # type checkers' imports stand in an `if`, and are none when the program runs
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("maxam"):
                for one in node.names:
                    full = f"{node.module}.{one.name}"
                    imports[name].add(full if full in paths else node.module)
    for what, figure in (
        ("lines", f"{sum(rooms.values())} {dict(sorted(rooms.items()))}"),
        (f"modules above {LARGE} lines", f"{len(modules)} {sorted(modules, reverse=True)}"),
        (f"classes above {LARGE} lines", f"{len(classes)} {sorted(classes, reverse=True)}"),
        ("imports inside functions", inside),
        ("import cycles at run time", cycles(imports)),
        ("imports for type checkers only", sum(p.read_text().count("if TYPE_CHECKING:") for p in paths.values())),
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

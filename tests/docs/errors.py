"""The codes that the sources use: of exceptions, and of answers of the admin API."""

import ast
import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import maxam
from maxam.error_codes import CODES
from maxam.errors import MaxamError
from maxam.exit_codes import ExitCode, exit_code_of
from maxam.https_client import EXIT_CODES

_ANSWERS = {"ApiError", "RefusedError"}  # calls whose arguments begin with status and code


def classes() -> list[type[MaxamError]]:
    """Return all classes of errors, imported or not before."""
    for module in pkgutil.walk_packages(maxam.__path__, "maxam."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sorted(_below(MaxamError), key=lambda one: one.__name__)


def _below(base: type[MaxamError]) -> Iterator[type[MaxamError]]:
    yield base
    for one in base.__subclasses__():
        yield from _below(one)


def statuses() -> dict[str, set[HTTPStatus]]:
    """Return the HTTP statuses that the sources give to each code."""
    found: dict[str, set[HTTPStatus]] = defaultdict(set)
    for path in Path(maxam.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id=name), args=[ast.Attribute(attr=status), ast.Constant(value=str(code)), *_]
                ) if name in _ANSWERS:
                    found[code].add(HTTPStatus[status])
    return found


def rows() -> list[str]:
    """Return the table of all codes."""
    ends: dict[str, set[ExitCode]] = defaultdict(set)
    for one in classes():
        ends[one.code].add(exit_code_of(one.__new__(one)))
    answers = statuses()
    for code, found in answers.items():
        ends[code] |= {EXIT_CODES.get(status, ExitCode.CHECK_FAILED) for status in found}
    return [
        f"| `{code}` | {entry.meaning} | {entry.action} | {_numbers(ends[code])} | {_numbers(answers[code])} |"
        for code, entry in sorted(CODES.items())
    ]


def _numbers(values: set[ExitCode] | set[HTTPStatus]) -> str:
    return ", ".join(str(one.value) for one in sorted(values))

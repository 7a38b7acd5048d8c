"""Fields of a value that a client selects, such as `gamePlay.state,faults.code`.

A path is the names of fields with dots between them. It passes through arrays, maps and unions: `faults.code` is the code of each
fault. A value that has no fields, such as the null of a union, is shown whole where a path goes on.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from maxam.avro.schema import Type

Fields: TypeAlias = tuple[tuple[str, ...], ...]  # paths
Selection: TypeAlias = (
    "Mapping[str, Selection]"  # by the names of the selected fields, the selection in each; empty for all
)

ALL: Final[Selection] = {}
_PATH: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


def read_fields(text: str) -> Fields:
    """Return the paths of a text such as `a,b.c`, sorted, each once.

    Raises:
        ValueError: A path is malformed. The text has the path.
    """
    paths = text.split(",")
    for path in paths:
        if _PATH.fullmatch(path) is None:
            raise ValueError(
                f"{path!r} is not the path of a field; expected names with dots between them, such as a,b.c"
            )
    return tuple(sorted({tuple(path.split(".")) for path in paths}))


def selection_of(fields: Fields) -> Selection:
    """Return paths as a tree. Where one path leads to a part of what another one selects whole, the whole is selected."""
    names = dict.fromkeys(path[0] for path in fields if path)
    if any(not path for path in fields):
        return ALL
    return {name: selection_of(tuple([path[1:] for path in fields if path[0] == name])) for name in names}


def fields_at(types: Iterable[Type], path: tuple[str, ...]) -> list[Type]:
    """Return the types of the fields to which a path leads; empty if it leads to none."""
    found = list(types)
    for name in path:
        found = [field.type for of in _records(found) for field in of.fields if field.name == name]
    return found


def names_at(types: Iterable[Type], path: tuple[str, ...]) -> list[str]:
    """Return the names of all fields at the end of a path."""
    return sorted({field.name for of in _records(fields_at(types, path)) for field in of.fields})


def _records(types: Iterable[Type]) -> list[Type]:
    """Return the records among types, and those inside their arrays, maps and unions."""
    found: list[Type] = []
    left = list(types)
    while left:
        of = left.pop()
        if of.kind == "record":
            found.append(of)
        else:
            left += of.branches
    return found

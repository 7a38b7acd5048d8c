"""Compare what two schemas read from the same bytes."""

import json
from typing import Final

from maxam.avro.data import Value
from maxam.avro.resolution import branch_of, fields_of, shown
from maxam.avro.schema import Field, Type

DIFFERENCES_MAX: Final = 16  # of one body
TEXTS: Final = ("string", "bytes")
_NUMBERS: Final = ("int", "long", "float", "double")


def differences(old: Value, new: Value) -> list[tuple[str, str]]:
    """Return where a value of the newer version differs from the older version's value of the same bytes.

    Only misleading differences count. A number of another width with the same value means the same. So does a symbol that
    the newer version takes for its default.

    Returns:
        Pairs of a place, as in `Incompatibility.reader_path`, and a description. At most DIFFERENCES_MAX.
    """
    found: list[tuple[str, str]] = []
    _add_differences(old, new, "", False, found)
    return [(path.removeprefix("."), text) for path, text in found]


def is_other_logical(w: Type, r: Type) -> bool:
    """Return True if two types have logical types that give the same bytes different meanings."""
    return bool(w.logical and r.logical) and (w.logical != r.logical or w.scale != r.scale)


def _add_differences(old: Value, new: Value, path: str, in_union: bool, found: list[tuple[str, str]]) -> None:
    w, r = old.type, new.type
    if len(found) == DIFFERENCES_MAX or (w.empty and r.empty):
        return
    if w.kind == "union":
        _add_differences(old.items[0], new, path, True, found)
        return
    if r.kind == "union":
        _add_differences(old, new.items[0], f"{path}<{new.items[0].type.label}>", True, found)
        return
    named_alike = not in_union or not w.name or not r.name or branch_of(w, _union_of(r)) is not None
    if not named_alike or is_other_logical(w, r):
        found.append((path, _difference(old, new)))
        return
    same = False
    if w.kind == r.kind == "record":
        _add_differences_of_records(old, new, path, found)
        return
    if w.kind == r.kind and w.kind in {"array", "map"}:
        same = len(old.items) == len(new.items) and old.keys == new.keys
        if same:
            for index, item in enumerate(old.items):
                _add_differences(item, new.items[index], path + ("[]" if w.kind == "array" else "{}"), False, found)
    elif w.kind in _NUMBERS and r.kind in _NUMBERS:
        same = repr(_number(old)) == repr(_number(new)) or _number(old) == _number(new)  # as NaN does not equal itself
    elif w.kind in TEXTS and r.kind in TEXTS:
        same = old.data == new.data
    elif w.kind == r.kind == "enum":
        symbol = w.symbols[old.number]
        taken = symbol if symbol in r.symbols else r.symbol_default
        same = taken == r.symbols[new.number]
    elif w.kind == r.kind:
        same = old.number == new.number and old.data == new.data
    if not same:
        found.append((path, _difference(old, new)))


def _add_differences_of_records(old: Value, new: Value, path: str, found: list[tuple[str, str]]) -> None:
    fields, _ = fields_of(old.type, new.type)
    written: dict[int, Value] = {}
    for index, (_f, g) in enumerate(fields):
        if g is not None:
            written[id(g)] = old.items[index]
    for g, value in new.fields():
        place = f"{path}.{g.name}"
        if id(g) in written:
            _add_differences(written[id(g)], value, place, False, found)
        elif not g.type.empty and not (g.defaulted and _is_default(g, value)):
            found.append((place, f"nothing was written, {_shown(value)} would be read"))


def _is_default(field: Field, value: Value) -> bool:
    if value.type.kind == "union":  # a default is a value of the first branch, without its name
        return value.number == 0 and bool(value.items[0].json() == field.default)
    return bool(value.json() == field.default)


def _union_of(branch: Type) -> Type:
    union = Type("union")
    union.branches.append(branch)
    return union


def _number(value: Value) -> float:
    return value.number if value.type.kind in {"int", "long"} else value.real


def _difference(old: Value, new: Value) -> str:
    return f"{_shown(old)} was written, {_shown(new)} would be read"


def _shown(value: Value) -> str:
    text = json.dumps(value.json(), ensure_ascii=False)
    return f"{shown(value.type)} {text if len(text) <= 60 else text[:57] + '...'}"

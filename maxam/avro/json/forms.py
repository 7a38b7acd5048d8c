"""The forms of JSON and of table cells: which types of Avro each can stand for, and which branch of a union needs its name."""

from datetime import date, time
from decimal import Decimal
from typing import Any, Final

from maxam.avro.schema import Type

Json = Any  # parsed JSON of any shape; numbers with a point or an exponent may be Decimal
BITS: Final = {"int": 32, "long": 64}
EXACT_MAX: Final = 2**53  # JavaScript rounds larger whole numbers, so these are text
_FORMS: Final = {
    "null": ("null",),
    "boolean": ("boolean",),
    "float": ("real", "text"),  # NaN and the infinities are text
    "double": ("real", "text"),
    "array": ("array",),
    "map": ("object",),
    "record": ("object",),
}
_RANKS: Final[dict[str, dict[str, int]]] = {  # by form: how close a kind is to it, 0 closest
    "null": {"null": 0},
    "boolean": {"boolean": 0},
    "whole": {"int": 0, "long": 0, "double": 2, "float": 3, "bytes": 4, "fixed": 4},
    "real": {"double": 0, "float": 1, "bytes": 2, "fixed": 2, "int": 3, "long": 3},
    "text": {"string": 0, "enum": 0, "int": 1, "long": 1, "double": 2, "float": 2, "bytes": 3, "fixed": 3},
    "array": {"array": 0},
    "object": {"record": 0, "fixed": 1, "map": 2},
    "bytes": {"bytes": 0, "fixed": 0},  # Python's own, out of a table
    "moment": {"int": 0, "long": 0},
}


def form_of(value: Json) -> str:
    """Return the form of a value. Of JSON `null`, `boolean`, `whole`, `real`, `text`, `array` or `object`. Tables have more."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "whole"
        case float() | Decimal():
            return "real"
        case str():
            return "text"
        case list() | tuple():
            return "array"
        case dict():
            return "object"
        case bytes() | bytearray():
            return "bytes"
        case date() | time():
            return "moment"
        case _:
            return ""


def candidates_of(union: Type) -> dict[str, list[int]]:
    """Return the places of the branches that a value of each form may stand for, the closest to the form first."""
    branches = union.branches
    ranks = {form: [(_rank(branch, form), at) for at, branch in enumerate(branches)] for form in _RANKS}
    return {
        form: [at for close, at in sorted((c, at) for c, at in found if c is not None)] for form, found in ranks.items()
    }


def named_forms(union: Type) -> list[frozenset[str]]:
    """Return the forms in which each branch of a union is named when it is shown."""
    branches = union.branches
    several = sum(branch.kind == "record" for branch in branches) > 1
    forms = [_forms(branch) for branch in branches]
    candidates = candidates_of(union)
    named = [
        frozenset(form for form in each if candidates[form][0] != at or (several and branches[at].kind == "record"))
        for at, each in enumerate(forms)
    ]
    if any(named):  # so an object with one key may be a name: no value may look like one
        labels = {branch.label for branch in branches}
        for at, branch in enumerate(branches):
            if branch.kind == "map" or any(field.name in labels for field in branch.fields):
                named[at] |= {"object"}
    return named


def _forms(of: Type) -> tuple[str, ...]:
    if of.kind in BITS:
        return ("whole", "text") if of.logical or of.kind == "long" else ("whole",)
    if of.logical == "duration":
        return ("object",)
    return _FORMS.get(of.kind, ("text",))


def _rank(of: Type, form: str) -> int | None:
    """Return how close a type is to a form, 0 closest; None if no value of that form is one of the type."""
    found = _RANKS.get(form, {}).get(of.kind)
    decimal, logical = of.logical == "decimal", of.logical != ""
    match form, of.kind:
        case "whole" | "real", "bytes" | "fixed":
            return found if decimal else None
        case "whole", "int" | "long":
            return 1 if logical else 0
        case "text", "long" if not logical:
            return 4
        case "text" | "moment", "int" | "long":
            return found if logical else None
        case "text", "bytes" | "fixed":
            return 1 if logical and of.logical != "duration" else found
        case "object", "fixed":
            return found if of.logical == "duration" else None
        case _:
            return found

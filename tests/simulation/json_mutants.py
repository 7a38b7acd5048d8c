"""Bugs put in on purpose into values as JSON; the clients of `as_json` must notice each."""

import types

from maxam.broker import json_values, refined_delivery, subscribing, wire_cache
from tests.simulation.mutants import Mutant


def _mutant(name: str, module: types.ModuleType, old: str, new: str) -> Mutant:
    return Mutant(name, module, old, new, json=True)


_KEY = "key = (change.revision, with_pii, fields)"
_LEFT_OUT = "json is None or verdict == LEAVE or change.deleted"

JSON_MUTANTS = (
    _mutant("JSON of an older revision", json_values, _KEY, "key = (0, with_pii, fields)"),
    _mutant("JSON with the fields of another client", json_values, _KEY, "key = (change.revision, with_pii, ())"),
    _mutant("JSON with all fields", json_values, "without_pii=masked, fields=fields)", "without_pii=masked, fields=())"),
    _mutant("JSON without its type", json_values, "                lines = _JSON_LINE\n", "                lines = b''\n"),
    _mutant("JSON without its value", json_values, "                body = json_text(value)\n", ""),
    _mutant("the body in place of JSON", refined_delivery, "            if value is not None:\n", "            if value is not None and not fresh and skipped:\n"),
    _mutant("a deleted topic as JSON", refined_delivery, _LEFT_OUT, "json is None or verdict == LEAVE"),
    _mutant("what leaves as JSON", refined_delivery, _LEFT_OUT, "json is None or change.deleted"),
    _mutant("bytes of another variant", wire_cache, "        if wire is not None and wire[0] == variant and not fresh:\n            return wire[1]\n        change", "        if wire is not None:\n            return wire[1]\n        change"),
    _mutant("a resumed client gets bodies", subscribing, "subscription is old, after, json)", "subscription is old, after, None if subscription is old else json)"),
)  # fmt: skip

"""Values with fields, and selectors on them beside the same conditions in Python, on what the bytes of a value decode to.

Nothing here uses the selectors of the broker, nor its reader of bodies. Null is None, and a condition that is unknown is False.
"""

import base64
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from maxam.avro.registry import Registry, load_registry

Fields = Mapping[str, Any]

_FIELDS: list[dict[str, Any]] = [
    {"name": "number", "type": "long"},
    {"name": "state", "type": "string"},
    {"name": "padding", "type": "bytes"},
]
_MORE = [*_FIELDS, {"name": "level", "type": ["null", "long"], "default": None}]
STATES = ("ON", "OFF", "IDLE")
LEVELS = (None, 0, 1, 2)
COLOURS = ("", "red", "blue")
SELECTIONS = ("", "state", "number,level", "level", "number,state,padding")

# Text, and when it is true.
SELECTORS: dict[str, Callable[[Fields], bool]] = {
    "state = 'ON'": lambda value: value["state"] == "ON",
    "level >= 1": lambda value: value["level"] is not None and value["level"] >= 1,
    "NOT (level = 1)": lambda value: value["level"] is not None and value["level"] != 1,
    "level IS NULL OR state IN ('ON', 'IDLE')": lambda value: (
        value["level"] is None or value["state"] in {"ON", "IDLE"}
    ),
    "state LIKE 'O%' AND number / 2 * 2 = number": lambda value: value["state"][0] == "O" and value["number"] % 2 == 0,
    "header('colour') = 'red'": lambda value: value["colour"] == "red",
    "header('colour') IS NULL AND state <> 'OFF'": lambda value: not value["colour"] and value["state"] != "OFF",
}


@cache
def registry(glob: str = "X/**") -> Registry:
    """Load a schema folder with two versions of one type."""
    rule = f'[[rule]]\ndestination = "{glob}"\nencoding = "datum"\nschema = "t.Reading_v1"\n'
    texts = {"registry.toml": rule.encode()}
    for version, fields in (("1.0", _FIELDS), ("1.1", _MORE)):
        schema = {"type": "record", "name": "Reading_v1", "namespace": "t", "fields": fields}
        texts[f"t/Reading_v1/{version}.avsc"] = json.dumps(schema).encode()
    return load_registry(texts)


def encode(number: int, state: str, level: int | None, padding: bytes = b"", *, old: bool = False) -> bytes:
    """Return a body; with `old` one of the version that has no level."""
    head = _long(number) + _long(len(state)) + state.encode() + _long(len(padding)) + padding
    if old:
        return head
    return head + (b"\0" if level is None else b"\2" + _long(level))


def decode(body: bytes, colour: str) -> Fields:
    """Return the fields of a body, with the header `colour` of its SEND."""
    number, at = _read(body, 0)
    size, at = _read(body, at)
    state, at = body[at : at + size].decode(), at + size
    size, at = _read(body, at)
    at += size
    level = None if body[at : at + 1] in {b"", b"\0"} else _read(body, at + 1)[0]
    return {"number": number, "state": state, "level": level, "colour": colour}


def is_json_of(text: bytes, body: bytes, names: str) -> bool:
    """Return True if a text is the JSON of these fields of a body, or of all if there are no names. A value without level has none."""
    fields, padding = decode(body, ""), _padding(body)
    expected = {"number": fields["number"], "state": fields["state"], "padding": base64.b64encode(padding).decode()}
    if encode(fields["number"], fields["state"], None, padding, old=True) != body:
        expected["level"] = fields["level"]
    wanted = names.split(",") if names else expected
    return bool(json.loads(text) == {name: one for name, one in expected.items() if name in wanted})


def satisfies(selector: str, value: Fields | None) -> bool:
    """Return True if a change is delivered to a subscription with this selector, empty for none. A deleted topic has no value."""
    return value is not None and (not selector or SELECTORS[selector](value))


def _padding(body: bytes) -> bytes:
    _, at = _read(body, 0)
    size, at = _read(body, at)
    size, at = _read(body, at + size)
    return body[at : at + size]


def _long(number: int) -> bytes:
    number <<= 1  # none of them is negative
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def _read(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number >> 1, at

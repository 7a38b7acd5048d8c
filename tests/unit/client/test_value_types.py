"""JSON as objects of the type that a program asks for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import pytest

from maxam.client import ClientError, ValueTypeError
from maxam.client.value_types import reader


class Colour(Enum):
    """By name."""

    RED = 1


@dataclass(frozen=True)
class Node:
    """It contains itself."""

    name: str
    children: "list[Node]" = field(default_factory=list)


class Place(TypedDict):
    """One field may be missing."""

    row: int
    seat: NotRequired[str]


@dataclass
class Machine:
    """A field of each kind."""

    credit_balance: Decimal
    from_: str
    place: Place | None = None
    nodes: dict[str, Node] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("wanted", "value", "expected"),
    [
        (object, {"a": [1]}, {"a": [1]}),
        (Any, None, None),
        (bool, True, True),
        (int, 7, 7),
        (int, "9007199254740993", 9007199254740993),
        (float, 1, 1.0),
        (float, "-Infinity", float("-inf")),
        (str, "x", "x"),
        (bytes, "AAE=", b"\0\1"),
        (Decimal, "12.50", Decimal("12.50")),
        (datetime, "2026-11-23T12:00:00.000Z", datetime(2026, 11, 23, 12, tzinfo=UTC)),
        (date, "2026-11-23", date(2026, 11, 23)),
        (time, "12:30:00.000001", time(12, 30, 0, 1)),
        (UUID, "12345678-1234-5678-1234-567812345678", UUID(int=0x12345678123456781234567812345678)),
        (Colour, "RED", Colour.RED),
        (Literal["a", "b"], "b", "b"),
        (int | None, None, None),
        (int | str, "x", "x"),
        (Decimal | str, {"string": "x"}, "x"),
        (list[int], [1, "2"], [1, 2]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (dict[str, Decimal], {"a": "1"}, {"a": Decimal(1)}),
        (Annotated[int, "unit"], 1, 1),
        (Place, {"row": 1, "other": 2}, {"row": 1}),
        (Node, {"name": "a", "children": [{"name": "b"}]}, Node("a", [Node("b")])),
        (
            Machine,
            {"creditBalance": "1.5", "from": "x", "place": {"row": 2, "seat": "c"}, "nodes": {"n": {"name": "a"}}},
            Machine(Decimal("1.5"), "x", {"row": 2, "seat": "c"}, {"n": Node("a")}),
        ),
        (lambda value: value["a"] + 1, {"a": 1}, 2),
    ],
)
def test_json_becomes_the_type(wanted: Any, value: object, expected: object) -> None:
    """Each annotation has its conversion; fields that the type lacks are skipped, and those missing get their defaults."""
    found = reader(wanted)(value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("wanted", "value", "path"),
    [
        (bool, 1, ""),
        (int, 1.5, ""),
        (int, True, ""),
        (str, 1, ""),
        (bytes, "?", ""),
        (Decimal, "x", ""),
        (datetime, "yesterday", ""),
        (Colour, "BLUE", ""),
        (Literal["a"], "b", ""),
        (list[int], [1, "x"], "[1]"),
        (Node, {"children": []}, ""),
        (Node, {"name": "a", "children": [{"name": "b"}, {"name": 1}]}, "children[1].name"),
        (Machine, {"creditBalance": "x", "from": "a"}, "creditBalance"),
        (lambda value: value["a"], {}, ""),
    ],
)
def test_a_value_that_does_not_fit_shows_the_place(wanted: Callable[[Any], Any], value: object, path: str) -> None:
    """The error has the path to the field."""
    with pytest.raises(ValueTypeError) as caught:
        reader(wanted)(value)
    assert caught.value.path == path


@pytest.mark.parametrize("wanted", [list[complex], "text", dict[str, list[range]]])
def test_a_type_that_json_cannot_become_is_refused_at_once(wanted: Any) -> None:
    """It is an error of the program, and not of a value."""
    with pytest.raises(ClientError):
        reader(wanted)

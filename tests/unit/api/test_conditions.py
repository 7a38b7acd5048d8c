"""`where` of the listing of topics: which topics it finds, which it must not evaluate, and how much one page may read."""

import json
from collections.abc import Iterator
from itertools import product
from urllib.parse import quote

import pytest

from maxam.api import view
from maxam.api.conditions import COMPILED_MAX, Condition, Conditions
from maxam.api.routes import topics
from maxam.api.routing import at_a_time
from maxam.avro.personal import reads_personal
from maxam.avro.registry import load_registry
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.config import Limits
from maxam.globs import compile_glob
from maxam.records import Change
from tests.unit.api.test_api import ADMIN, READER, REGISTRY, World, datum, run

LIMITS = Limits()


@pytest.fixture
def world() -> World:
    """A broker with some topics, and the API."""
    world = World()
    for store, number, text in product("AB", range(6), "xy"):
        world.send(f"X/{store}.{number}{text}", datum(text))
    world.send("X/A.Raw", b"raw")
    world.send("X/A.gone", datum("x"))
    world.send("X/A.gone", b"")
    return world


async def found(world: World, where: str, who: str = ADMIN, **query: object) -> list[str]:
    """Return the destinations of all pages."""
    names: list[str] = []
    after = ""
    while True:
        parts = {"where": where, **query} | ({"after": after} if after else {})
        path = "/v1/topics?" + "&".join(f"{name}={quote(str(value), safe='')}" for name, value in parts.items())
        page = await world.json(path, who)
        names += [row["destination"] for row in page["topics"]]
        if page["next"] is None:
            return names
        after = page["next"]


def test_the_pages_have_the_topics_that_match(world: World) -> None:
    """In order, each once, over pages of any size, by fields and headers, within the glob."""

    async def test() -> None:
        everything = [f"X/{store}.{number}{text}" for store, number, text in product("AB", range(6), "xy")]
        for limit in (1, 2, 5, 100):
            matching = [name for name in everything if name.endswith("y")]
            assert await found(world, "text = 'y'", limit=limit) == matching
            assert await found(world, "text = 'y'", limit=limit, values="true") == matching
            assert await found(world, "text > 'x'", limit=limit, glob="X/B.*") == [n for n in matching if "B" in n]
        assert await found(world, "text = 'z'") == []
        assert set(await found(world, "header('h') = '1'")) == {*everything, "X/A.Raw"}
        assert await found(world, "header('h') = '1'", glob="X/*.Raw") == ["X/A.Raw"]

    run(test)


def test_a_topic_that_the_caller_may_not_receive_is_not_found(world: World) -> None:
    """Values are withheld from such a caller, and so is whether they satisfy a condition."""

    async def test() -> None:
        assert all(name.startswith("X/A.") for name in await found(world, "text = 'x'", READER))
        assert len(await found(world, "text = 'x'", READER)) == 6
        assert await found(world, "text = 'x'", READER, glob="X/B.*") == []

    run(test)


@pytest.mark.parametrize(
    ("where", "position"),
    [("", 1), ("text =", 7), ("text = 1", 6), ("txet = 'x'", 1), ("text", 1), ("text = 'x' AND é", 16)],
)
def test_a_fault_has_its_place(world: World, where: str, position: int) -> None:
    """The error has the code of selectors and the character, and nothing was listed."""

    async def test() -> None:
        answer = await world.ask("GET", f"/v1/topics?where={quote(where, safe='')}")
        assert answer.status_code == 400
        body = answer.json()
        assert (body["code"], body["position"]) == ("invalid-selector", position)
        assert f"character {position} of the selector" in body["detail"]

    run(test)


def test_a_page_without_matches_reads_a_limited_number_of_values(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends after its batches, a batch after the bytes that it may read, and the next page continues."""
    monkeypatch.setattr(view, "SLICE_COST", 3 * 66)  # three values
    monkeypatch.setattr(topics, "WHERE_SLICES_MAX", 2)
    evaluated: list[bytes] = []
    matches = Condition.matches

    def counted(self: Condition, change: Change) -> bool:
        evaluated.append(change.destination)
        return matches(self, change)

    monkeypatch.setattr(Condition, "matches", counted)

    async def test() -> None:
        page = await world.json("/v1/topics?where=text%20%3D%20%27z%27")
        assert (page["topics"], len(evaluated)) == ([], 6)
        assert page["next"] == evaluated[-1].decode()
        evaluated.clear()
        assert await found(world, "text = 'z'") == []
        assert len(evaluated) == len(set(evaluated)) == 25

    run(test)


def test_conditions_are_compiled_once_for_a_registry(world: World) -> None:
    """The next page uses the same one. Another text, glob or registry has its own. The number kept is bounded."""
    conditions = Conditions(LIMITS)
    everything, some = compile_glob("**", LIMITS), compile_glob("X/A.*", LIMITS)

    async def test() -> None:
        limiter = at_a_time("test", 1)
        first = await conditions.compiled("text = 'x'", everything, world.broker.registry, limiter)
        assert await conditions.compiled("text = 'x'", everything, world.broker.registry, limiter) is first
        assert await conditions.compiled("text = 'x'", some, world.broker.registry, limiter) is not first
        for number in range(COMPILED_MAX - 2):
            await conditions.compiled(f"text = '{number}'", everything, world.broker.registry, limiter)
        assert await conditions.compiled("text = 'x'", everything, world.broker.registry, limiter) is first
        for number in range(COMPILED_MAX):
            await conditions.compiled(f"text = 'n{number}'", everything, world.broker.registry, limiter)
        second = await conditions.compiled("text = 'x'", everything, world.broker.registry, limiter)
        assert second is not first
        other = load_registry(REGISTRY)
        assert await conditions.compiled("text = 'x'", everything, other, limiter) is not second

    run(test)


PERSON = {
    "type": "record",
    "name": "Person",
    "fields": [{"name": "name", "type": "string", "pii": True}, {"name": "visits", "type": "long"}],
}
NESTED = {
    "type": "record",
    "name": "T",
    "fields": [
        {"name": "one", "type": ["null", PERSON]},
        {"name": "list", "type": {"type": "array", "items": "Person"}},
        {"name": "map", "type": {"type": "map", "values": ["null", "Person"]}},
        {"name": "whole", "type": "Person", "pii": True},
        {"name": "plain", "type": "string"},
    ],
}


def paths() -> Iterator[tuple[tuple[str | int | bytes, ...], bool]]:
    """Yield paths, and whether each reads a personal field."""
    for inside in (("one",), ("list", 0), ("map", b"k")):
        yield inside, False
        yield (*inside, "name"), True
        yield (*inside, "visits"), False
        yield (*inside, "none"), False
    yield ("whole",), True
    yield ("whole", "visits"), True
    yield ("plain",), False
    yield ("list", "name"), False  # of no type: a selector with it reads nothing
    yield (), False


@pytest.mark.parametrize(("path", "personal"), list(paths()), ids=str)
def test_a_path_through_a_mark_is_personal(path: tuple[str | int | bytes, ...], personal: bool) -> None:
    """A mark covers its field and all that lies in it, through unions, arrays and maps."""
    of = parse_schema(read_source("t", json.dumps(NESTED).encode())).type
    assert reads_personal(of, path) is personal

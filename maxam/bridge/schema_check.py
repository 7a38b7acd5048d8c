"""Whether the rules and schemas of the receiving side accept all values that a route brings."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from maxam.avro.compatibility import check
from maxam.avro.schema import Schema, parse_schema
from maxam.avro.source import Source
from maxam.config import Limits
from maxam.glob_sets import find_destination
from maxam.globs import Glob, compile_glob
from maxam.links import LinkRoute, mapped

Rules = list[tuple[Mapping[str, Any], Glob]]
Text = Callable[[str, str], bytes]  # of a type and a minor
_LIMITS: Final = Limits()


def compare_schemas(
    route: LinkRoute, sender: Mapping[str, Any], target: Mapping[str, Any], sent: Text, expected: Text
) -> Iterator[tuple[str, str]]:
    """Iterate over the faults, each as code and text.

    Args:
        route: The route.
        sender: `GET /v1/schemas` of the sending side.
        target: Likewise of the receiving side.
        sent: Returns schemas of the sending side.
        expected: Returns schemas of the receiving side.
    """
    rules = [_rules(listing) for listing in (sender, target)]
    topics = [(topic, mapped(topic, route.store)) for topic in _samples(route.glob, rules[0])]
    back = route.glob.partition("/")[0]
    topics += [(mapped(topic, back), topic) for topic in _samples(route.mapped, rules[1])]
    seen: set[tuple[str, str]] = set()
    for topic, topic_there in topics:
        rule, found = _rule_of(topic, rules[0]), _rule_of(topic_there, rules[1])
        pair = "" if rule is None else rule["destination"], "" if found is None else found["destination"]
        if pair in seen or rule is None:
            continue
        seen.add(pair)
        if found is None:
            wider = mapped(rule["destination"], "*")
            yield "no-rule", f"no rule covers {topic_there}; add one to registry.toml of this side, such as {wider}"
        else:
            yield from _compare_rules(rule, found, topic_there, (sender, target), (sent, expected))


def _rules(listing: Mapping[str, Any]) -> Rules:
    return [(rule, compile_glob(rule["destination"], _LIMITS)) for rule in listing["rules"]]


def _rule_of(topic: str, rules: Rules) -> Mapping[str, Any] | None:
    return next((rule for rule, glob in rules if glob.matches(topic)), None)


def _samples(text: str, rules: Rules) -> Iterator[str]:
    """Iterate over one destination of a glob for each rule that decides any of them, and one without a rule."""
    whole = compile_glob(text, _LIMITS)
    earlier: list[Glob] = []
    for glob in [*[glob for _, glob in rules], whole]:
        topic = find_destination([[whole], [glob]], [earlier] if earlier else ())
        if topic is not None:
            yield topic
        earlier.append(glob)


def _compare_rules(
    rule: Mapping[str, Any],
    found: Mapping[str, Any],
    topic: str,
    listings: tuple[Mapping[str, Any], Mapping[str, Any]],
    texts: tuple[Text, Text],
) -> Iterator[tuple[str, str]]:
    if found["encoding"] == "none":
        return
    if (rule["schema"], rule["encoding"]) != (found["schema"], found["encoding"]):
        yield (
            "schema-mismatch",
            f"{topic} has {rule['schema'] or 'no schema'} ({rule['encoding']}) at the sending side and {found['schema']}"
            f" ({found['encoding']}) here; use the same rule",
        )
        return
    name = rule["schema"]
    known = listings[1]["types"].get(name, [])
    for minor in listings[0]["types"].get(name, []):
        if minor not in known:
            yield (
                "unknown-schema-version",
                f"{topic}: {name} {minor} is unknown here; add this version to the schema folder",
            )
            continue
        problems = check(_schema(texts[1](name, minor)), _schema(texts[0](name, minor)))
        if problems:
            yield "schema-mismatch", f"{topic}: {name} {minor} is another schema here: {problems[0]}"


def _schema(text: bytes) -> Schema:
    return parse_schema(Source("", "", json.loads(text)))

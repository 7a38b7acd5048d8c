"""A schema folder as integrators see it: everything that is wrong or odd in it, with file, line and place."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from maxam.avro.compatibility import check_minors
from maxam.avro.folder import read_schema_texts
from maxam.avro.places import line_of, located
from maxam.avro.registry import Registry, inspect_registry
from maxam.avro.registry_file import LOCK_FILE, REGISTRY_FILE
from maxam.avro.rule import SchemaVersion
from maxam.avro.schema import LOGICAL, PII
from maxam.avro.source import Json, read_source
from maxam.config import Limits
from maxam.counting import counted
from maxam.errors import ConfigurationError, GlobError, SchemaError
from maxam.glob_sets import find_destination
from maxam.globs import Glob, destination_problem

Texts = Mapping[str, bytes]  # content of each file by its path relative to the folder, with `/`


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong or odd."""

    severity: Literal["error", "warning"]
    file: str  # relative to the folder; empty when it is about the folder
    line: int | None  # from 1; None when it is about the whole file
    place: str  # path into the file, such as `fields[2].type` or `rule[0].schema`; empty for the whole
    problem: str  # what is wrong, what was expected, what to do

    def __str__(self) -> str:
        file = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (file, self.place, self.problem) if part)


def load_folder(folder: Path) -> Registry:
    """Load a schema folder as the gateway would; raise ConfigurationError with the first mistake, and how many more there are."""
    registry, findings = inspect(read_schema_texts(folder))
    if registry is None:
        errors = [finding for finding in findings if finding.severity == "error"]
        more = f" ({len(errors) - 1} more: maxam-admin schemas check {folder})" if len(errors) > 1 else ""
        raise ConfigurationError(f"{folder}: {errors[0]}{more}")
    return registry


def inspect(texts: Texts) -> tuple[Registry | None, list[Finding]]:
    """Name all that is wrong with a folder, and what is odd when nothing is wrong.

    Returns:
        The registry, None when anything is wrong; and the findings.
    """
    registry, problems = inspect_registry(texts, Limits())
    findings = [_finding(error, texts) for error in problems]
    if registry is not None:
        findings += _warnings(registry, texts)
    return registry, findings


def _finding(error: SchemaError, texts: Texts) -> Finding:
    return Finding("error", error.file, located(error, texts).line, error.place, error.problem)


# Warnings.


def _warnings(registry: Registry, texts: Texts) -> Iterator[Finding]:
    registry_text = texts[REGISTRY_FILE]
    for index, rule in enumerate(registry.rules):
        before = covering(registry, rule.glob, index)
        if before is not None:
            place = f"rule[{index}].destination"
            yield Finding(
                "warning",
                REGISTRY_FILE,
                line_of(REGISTRY_FILE, registry_text, place),
                place,
                f"never decides: rule[{before}] ({registry.rules[before].glob.text}) comes first and matches every destination"
                f" of {rule.glob.text}. Put this one before it, or remove it",
            )
    used = {rule.schema for rule in registry.rules}
    for name in registry.types():
        for version in registry.versions(name):
            used.update(version.schema.uses)
    released = released_minors(texts)
    for name in registry.types():
        newest = registry.versions(name)[0]
        retired = (name, newest.minor) in released  # it must stay for what was written in it
        if name not in used and not retired:
            yield Finding(
                "warning",
                newest.path,
                None,
                "",
                f"no rule carries {name} and no other type holds it; add a rule to {REGISTRY_FILE}, or remove the folder",
            )
    if LOCK_FILE in texts:
        for name in registry.types():
            for version in registry.versions(name)[1:]:
                if (name, version.minor) not in released:
                    yield Finding(
                        "warning",
                        version.path,
                        None,
                        "",
                        f"not in {LOCK_FILE}, though there is a newer minor: nothing keeps it from being changed. Release it with"
                        f" `maxam-admin schemas release {name}`",
                    )

    yield from _trap_warnings(registry, texts, released)
    yield from _candidate_warnings(registry)


def _candidate_warnings(registry: Registry) -> Iterator[Finding]:
    """Compare candidates with the versions in force: rules may try what could never become one."""
    for name in registry.types():
        minors = registry.versions(name)[::-1]
        for candidate in registry.candidates(name):
            found = check_minors([*minors, candidate], registry.compatibility(name))
            told = {str(one.incompatibility): one.remedy for one in found if one.minor is candidate}
            for what, remedy in list(told.items())[:1]:
                more = f" (and {counted(len(told) - 1, 'further reason')})" if len(told) > 1 else ""
                problem = f"could not become a version as it is, as {registry.compatibility(name)} forbids it ({what}); {remedy}{more}"
                yield Finding("warning", candidate.path, None, "", problem)


# Legal Avro that is surely not meant, and stays for ever once it is released.


@dataclass(frozen=True, slots=True)
class Trap:
    """One of them."""

    place: str
    problem: str
    certain: bool  # nothing is released with it


def _trap_warnings(registry: Registry, texts: Texts, released: set[tuple[str, str]]) -> Iterator[Finding]:
    for name in registry.types():
        for version in registry.versions(name):
            if (name, version.minor) not in released:
                for trap in new_traps(registry, version, texts):
                    line = line_of(version.path, texts[version.path], trap.place)
                    yield Finding("warning", version.path, line, trap.place, trap.problem)


def new_traps(registry: Registry, version: SchemaVersion, texts: Texts) -> list[Trap]:
    """Find the traps of one version that no older one has. Once released, they cannot be undone."""
    versions = registry.versions(version.type_name)
    older = versions[versions.index(version) + 1 :]
    known = {trap.problem for one in older for trap in _traps(read_source(one.path, texts[one.path]).document, "")}
    return [
        trap
        for trap in _traps(read_source(version.path, texts[version.path]).document, "")
        if trap.problem not in known
    ]


def _traps(part: Json, place: str, *, of_field: bool = False) -> Iterator[Trap]:
    if isinstance(part, list):
        for index, item in enumerate(part):
            yield from _traps(item, f"{place}[{index}]")
    if not isinstance(part, dict):
        return
    if part.get("type") == "enum" and "default" not in part:
        problem = (
            f"the enum {part.get('name')} has no default, so that no later version can add a symbol. Add a symbol such as UNKNOWN, and"
            ' "default": "UNKNOWN"'
        )
        yield Trap(place, problem, certain=True)
    logical = part.get("logicalType")
    at = f"{place}.logicalType" if place else "logicalType"
    if isinstance(logical, str) and logical not in LOGICAL:
        close = get_close_matches(logical, LOGICAL, 1)
        hint = f"; did you mean {close[0]!r}?" if close else "; remove it, or see to it that all readers know it"
        yield Trap(at, f"unknown logical type {logical!r}, which readers ignore{hint}", certain=bool(close))
    if logical == "decimal" and "scale" not in part:
        problem = f'a decimal of precision {part.get("precision")} without a scale has no digits after the point. Add "scale": 2, or 0'
        yield Trap(at, problem, certain=False)
    if PII in part and not of_field:
        yield Trap(
            f"{place}.{PII}" if place else PII,
            f'"{PII}" marks nothing here: it belongs beside the name of a field',
            certain=True,
        )
    for key in ("fields", "type", "items", "values"):
        inner = part.get(key)
        path = f"{place}.{key}" if place else key
        if key == "fields" and isinstance(inner, list):
            for index, field in enumerate(inner):
                yield from _traps(field, f"{path}[{index}]", of_field=True)
        elif isinstance(inner, dict | list):
            yield from _traps(inner, path)


def released_minors(texts: Texts) -> set[tuple[str, str]]:
    """Return the minor versions of each type in the lock, of a folder that `inspect` found valid."""
    released = tomllib.loads(texts.get(LOCK_FILE, b"").decode()).get("released", {})
    return {(name, minor) for name, minors in released.items() for minor in minors}


def covering(registry: Registry, glob: Glob, before: int) -> int | None:
    """Find the first rule that matches every destination of a glob that stands at a place in the order.

    A rule that is too intricate to be compared counts as one that does not.
    """
    try:
        sample = find_destination([[glob]])
    except GlobError:
        return None
    if sample is None:
        return None
    for index, rule in enumerate(registry.rules[:before]):
        if not glob.prefix.startswith(rule.glob.prefix) or not rule.glob.matches(sample):
            continue  # most rules: the exact comparison takes much longer
        with suppress(GlobError):
            if find_destination([[glob]], [[rule.glob]]) is None:
                return index
    return None


# Which rule.


@dataclass(frozen=True, slots=True)
class Explanation:
    """The rule of a destination, and the format of its values.

    Attributes:
        lines: For people: names and values.
        facts: For programs.
        problem: Why nothing can be sent there. Empty when something can.
    """

    lines: Sequence[tuple[str, object]]
    facts: Mapping[str, object]
    problem: str


def explain(registry: Registry, destination: str) -> Explanation:
    """Return which rule decides about a destination, and the format of its bodies."""
    lines: list[tuple[str, object]] = [("destination", destination)]
    facts: dict[str, object] = {"destination": destination}
    problem = destination_problem(destination.encode(errors="surrogateescape"), Limits().destination_bytes_max)
    if problem is not None:
        return Explanation(lines, facts | {"result": "invalid-destination", "reason": problem}, problem)
    matching = [index for index, rule in enumerate(registry.rules) if rule.glob.matches(destination)]
    if not matching:
        close = get_close_matches(destination, [rule.glob.text for rule in registry.rules], 3, 0.5)
        hint = f". Rules with similar names: {', '.join(close)}" if close else ""
        problem = f"no rule covers {destination}: a SEND is rejected-invalid with result no-rule{hint}"
        return Explanation(lines, facts | {"result": "no-rule", "reason": problem}, problem)
    index = matching[0]
    rule = registry.rules[index]
    lines += [("rule", f"rule[{index}]  {rule.glob.text}"), ("encoding", rule.encoding)]
    facts |= {"rule": index, "glob": rule.glob.text, "encoding": rule.encoding, "schema": rule.schema}
    facts |= {"require_version": rule.version_required, "also": matching[1:]}
    if rule.schema:
        judging = [version for version in registry.versions(rule.schema) if version.minor in rule.minors]
        lines += [("schema", rule.schema), ("minors that judge", ", ".join(rule.minors))]
        lines += [(f"  {v.minor}", f"fingerprint {v.crc_64.hex()}, schema id {v.schema_id}") for v in judging]
        facts["versions"] = [
            {"minor": v.minor, "fingerprint": v.crc_64.hex(), "sha_256": v.sha_256.hex(), "schema_id": v.schema_id}
            for v in judging
        ]
        if rule.candidate is not None:
            lines.append(("tried without effect", rule.candidate.minor))
            facts["shadow"] = rule.candidate.minor
        newest = judging[0]
    else:
        newest = None
    keys = registry.envelope_keys
    match rule.encoding:
        case "datum" if rule.version_required:
            body = "the bare datum; a header schema-version must name its minor"
        case "datum":
            body = "the bare datum; a header schema-version may name its minor, else the newest that it fits judges"
        case "single-object" | "confluent" if newest is not None:
            body = f"{newest.head(rule.encoding).hex(' ')} and the datum, of {newest.minor}"
        case "envelope":
            body = (
                f"a GenericEnvelope with the datum under key {keys.body}, the schema's fingerprint under {keys.fingerprint}, the"
                f" destination under {keys.topic} if at all; an item under {keys.tombstone} deletes"
            )
        case _:
            body = "anything: it is not checked"
    lines += [("a body is", body), ("an empty body", "deletes the topic's value")]
    fresh_within_s = registry.fresh_within_s[index]
    if fresh_within_s is not None:
        lines.append(("fresh within", f"{fresh_within_s:g} s"))
        facts["fresh_within_s"] = fresh_within_s
    expire_after_s = registry.expire_after_s[index]
    if expire_after_s is not None:
        lines.append(("expires after", f"{expire_after_s:g} s"))
        facts["expire_after_s"] = expire_after_s
    lines += [
        (f"rule[{other}]", f"{registry.rules[other].glob.text} matches too, and comes later") for other in matching[1:]
    ]
    return Explanation(lines, facts | {"body": body}, "")


def no_such_type(registry: Registry, type_name: str) -> ConfigurationError:
    """Return the error that there is no such type, with the types that have similar names."""
    known = registry.types()
    close = get_close_matches(type_name, known, 3, 0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known[:20]) or 'none'}"
    return ConfigurationError(f"there is no type {type_name!r}; {hint}")


def version_of(registry: Registry, type_name: str, minor: str | None) -> SchemaVersion:
    """Find a minor of a type, candidates too, the newest one in force by default; raises ConfigurationError."""
    versions = registry.versions(type_name)
    if not versions:
        raise no_such_type(registry, type_name)
    if minor is None:
        return versions[0]
    for version in (*versions, *registry.candidates(type_name)):
        if version.minor == minor:
            return version
    raise ConfigurationError(
        f"{type_name} has no schema version {minor!r}, there are: {', '.join(v.minor for v in versions)}"
    )

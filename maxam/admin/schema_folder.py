"""A schema folder as integrators see it: everything that is wrong or odd in it, with file, line and place."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal

from maxam.avro.places import line_of, located
from maxam.avro.registry import LOCK_FILE, REGISTRY_FILE, Registry, inspect_registry
from maxam.avro.rule import SchemaVersion
from maxam.config import Limits
from maxam.errors import ConfigurationError, SchemaError
from maxam.gateway.sources import read_schema_texts
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


# What is odd.


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
                f" of {rule.glob.text}; put this one before it, or remove it",
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
                        f"not in {LOCK_FILE}, though there is a newer minor: nothing keeps it from being changed; release it with"
                        f" `maxam-admin schemas release {name}`",
                    )


def released_minors(texts: Texts) -> set[tuple[str, str]]:
    """Tell which minors of which types the lock names; of a folder that `inspect` found good."""
    import tomllib  # noqa: PLC0415 only for verbs that look at the lock

    released = tomllib.loads(texts.get(LOCK_FILE, b"").decode()).get("released", {})
    return {(name, minor) for name, minors in released.items() for minor in minors}


def covering(registry: Registry, glob: Glob, before: int) -> int | None:
    """Find a rule that takes everything from a glob that stands at a place in the order, as far as samples can tell."""
    samples = _samples(glob)
    if not samples:
        return None
    for index, rule in enumerate(registry.rules[:before]):
        begins = glob.prefix.startswith(
            rule.glob.prefix
        )  # else it cannot, and a thousand rules need no thousand squared matches
        if begins and all(rule.glob.matches(sample) for sample in samples):
            return index
    return None


_UNUSUAL: Final = "\u03be"  # a letter that no glob is likely to name
_STARS: Final = tuple(text.replace("x", _UNUSUAL) for text in ("", "x", "x.x", "xxx.xx", ".x", "x.", "X/x", "X/x.x"))


def _samples(glob: Glob) -> list[str]:
    """Make destinations that a glob matches, with text in place of its wildcards that no other glob names."""
    samples: list[str] = []
    for star in _STARS:
        text = ""
        for element in glob.elements:
            if element in {"*", "**"}:
                text += star
            elif element == "?":
                text += _UNUSUAL
            elif len(element) > 1:  # a set: what stands first in it, or what is not in it
                text += _UNUSUAL if element[1] in "!^" else element[1]
            else:
                text += element
        if glob.matches(text) and destination_problem(text.encode(), glob.bytes_max) is None:
            samples.append(text)
    return samples


# Which rule.


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a destination carries.

    Attributes:
        lines: For people: names and what they say.
        facts: For programs.
        problem: Why nothing can be sent there; empty when something can.
    """

    lines: Sequence[tuple[str, object]]
    facts: Mapping[str, object]
    problem: str


def explain(registry: Registry, destination: str) -> Explanation:
    """Tell which rule decides about a destination, and what its bodies are."""
    lines: list[tuple[str, object]] = [("destination", destination)]
    facts: dict[str, object] = {"destination": destination}
    problem = destination_problem(destination.encode(errors="surrogateescape"), Limits().destination_bytes_max)
    if problem is not None:
        return Explanation(lines, facts | {"result": "invalid-destination", "reason": problem}, problem)
    matching = [index for index, rule in enumerate(registry.rules) if rule.glob.matches(destination)]
    if not matching:
        close = get_close_matches(destination, [rule.glob.text for rule in registry.rules], 3, 0.5)
        hint = f"; rules with names alike: {', '.join(close)}" if close else ""
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
                f"a GenericEnvelope: the datum under key {keys.body}, the schema's fingerprint under {keys.fingerprint}, the"
                f" destination under {keys.topic} if at all; an item under {keys.tombstone} deletes"
            )
        case _:
            body = "anything: it is not checked"
    lines += [("a body is", body), ("an empty body", "deletes the topic's value")]
    fresh_within_s = registry.fresh_within_s[index]
    if fresh_within_s is not None:
        lines.append(("fresh within", f"{fresh_within_s:g} s"))
        facts["fresh_within_s"] = fresh_within_s
    lines += [
        (f"rule[{other}]", f"{registry.rules[other].glob.text} matches too, and comes later") for other in matching[1:]
    ]
    return Explanation(lines, facts | {"body": body}, "")


def no_such_type(registry: Registry, type_name: str) -> ConfigurationError:
    """Say that there is no such type, and which ones have names alike."""
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
    raise ConfigurationError(f"{type_name} has no minor {minor!r}; there are: {', '.join(v.minor for v in versions)}")

"""Changes of a schema folder: a new type with its rule, the next minor, a release.

Each change is made and proved on the texts first: the result must load, and must have the intended meaning. Then the files are
written aside and put in place one by one, in an order in which the folder loads after every one. Everything that people wrote in
`registry.toml` stays, to the last blank. A rule is put in as text, and the result is read back and compared.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from maxam.avro.places import line_of
from maxam.avro.registry import SCHEMA_SUFFIX, Registry
from maxam.avro.registry_file import CANDIDATE_SUFFIX, LOCK_FILE, REGISTRY_FILE
from maxam.avro.rule import NONE, SchemaVersion
from maxam.config import Limits
from maxam.durable_files import replacing
from maxam.errors import ConfigurationError, GlobError, SchemaError
from maxam.glob_sets import overlap
from maxam.globs import compile_glob
from maxam.schema_tools.diff import differences
from maxam.schema_tools.folder import Texts, covering, inspect, new_traps, no_such_type, released_minors
from maxam.schema_tools.tree import read_tree

TYPE_NAME: Final = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*\.)+[A-Za-z_][A-Za-z0-9_]*_v(0|[1-9][0-9]{0,8})")

_SCAFFOLD: Final = """{{
  "type": "record",
  "name": {name},
  "namespace": {namespace},
  "doc": "What one message says: the whole state of its topic, never a difference, as slow readers skip values.",
  "fields": [
    {{
      "name": "at",
      "type": {{"type": "long", "logicalType": "timestamp-millis"}},
      "doc": "When it was so: milliseconds since 1970-01-01 UTC."
    }}
  ]
}}
"""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a folder that is proved and not yet written.

    Attributes:
        files: New content of each file, in the order of writing.
        said: Messages for people, one line each.
        facts: The same for programs.
    """

    files: Mapping[str, bytes]
    said: tuple[str, ...]
    facts: Mapping[str, Any]


def write(folder: Path, texts: Texts, edit: Edit) -> None:
    """Put an edit into a folder.

    Args:
        folder: The schema folder.
        texts: Files from which the edit was made. A file that has changed since is not touched.
        edit: The edit.

    Raises:
        ConfigurationError: A file cannot be written, or somebody else has changed it. Those before it are in place.
    """
    for name, content in edit.files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            target = path.resolve()  # a link stays a link
            present = target.read_bytes() if target.exists() else None
            if present != texts.get(name):
                raise ConfigurationError(f"{path} was changed by another program meanwhile. Check it and try again")
            with replacing(target) as file:
                file.write(content)
                if present is not None:
                    os.fchmod(file.fileno(), target.stat().st_mode)
        except OSError as error:
            raise ConfigurationError(f"{error.filename or path} cannot be written: {error.strerror}") from error


# A new type.


def new_type(texts: Texts, type_name: str, destination: str | None, encoding: str, like: str | None) -> Edit:
    """Make the first minor of a type, and a rule for it.

    Args:
        texts: A folder.
        type_name: Full name with the major version.
        destination: Glob of the rule; None makes no rule.
        encoding: Of the rule.
        like: Full name of a type whose newest minor is copied; None makes a scaffold.

    Raises:
        ConfigurationError: It is there already, a name or a glob is no good, or the folder is none.
    """
    registry = _good(texts)
    named = TYPE_NAME.fullmatch(type_name)
    if named is None:
        raise SchemaError(
            f"{type_name!r} is no name of a type: expected a namespace, a name and a major version, such as venue.DoorSensor_v1"
        )
    if registry.versions(type_name):
        raise SchemaError(
            f"{type_name} exists: {registry.versions(type_name)[0].path}. `maxam-admin schemas bump {type_name}` makes its next version"
        )
    minor = f"{named[1]}.0"
    path = f"{type_name.replace('.', '/')}/{minor}{SCHEMA_SUFFIX}"
    files = {path: _scaffold(type_name) if like is None else _copy(texts, registry, like, type_name)}
    said = [f"{path}: {'a scaffold; put your fields there' if like is None else f'a copy of {like}'}"]
    facts: dict[str, Any] = {"type": type_name, "minor": minor, "file": path}
    if destination is not None:
        text, index = _with_rule(texts[REGISTRY_FILE], registry, type_name, destination, encoding)
        files[REGISTRY_FILE] = text
        facts |= {"rule": index, "destination": destination, "encoding": encoding}
        after = registry.rules[index].glob.text if index < len(registry.rules) else ""
        where = f", before the rule of {after}, which would take all of it" if after else ""
        line = line_of(REGISTRY_FILE, text, f"rule[{index}]")
        said.append(f"{REGISTRY_FILE}:{line}: rule[{index}] for {destination}{where}")
        glob = compile_glob(destination, Limits())
        for number, rule in enumerate(registry.rules[:index]):
            if overlap(rule.glob, glob):
                said.append(
                    f"note: rule[{number}] ({rule.glob.text}) comes first and takes the destinations that both match"
                )
    if LOCK_FILE not in texts:
        files[LOCK_FILE] = registry.lock(())
        said.append(f"{LOCK_FILE}: made; nothing is released yet")
    _good({**texts, **files})
    return Edit(files, tuple(said), facts)


def _scaffold(type_name: str) -> bytes:
    namespace, _, name = type_name.rpartition(".")
    return _SCAFFOLD.format(name=json.dumps(name), namespace=json.dumps(namespace)).encode()


def _copy(texts: Texts, registry: Registry, like: str, type_name: str) -> bytes:
    """Copy the newest minor of a type under another name, as it is laid out."""
    version = _newest(registry, like)
    namespace, _, name = type_name.rpartition(".")
    text = texts[version.path].decode()
    document = json.loads(text)
    for key, value in (("name", name), ("namespace", namespace)):
        if key not in document:
            raise SchemaError(
                f"it has no {key!r} beside its type, so that it cannot be renamed; copy it by hand", version.path
            )
        pattern = re.compile(rf'("{key}"\s*:\s*){re.escape(json.dumps(document[key]))}')
        text = pattern.sub(lambda found, value=value: f"{found[1]}{json.dumps(value)}", text, count=1)  # type: ignore[misc]
        document[key] = value
    if json.loads(text) != document:
        raise SchemaError("its name does not stand where it can be replaced; copy it by hand", version.path)
    return text.encode()


def _with_rule(text: bytes, registry: Registry, type_name: str, destination: str, encoding: str) -> tuple[bytes, int]:
    """Put a rule into the text of `registry.toml`: last, or before the first one that would take all that it matches."""
    try:
        glob = compile_glob(destination, Limits())
    except GlobError as error:
        raise SchemaError(f"{destination!r} is no good destination: {error}") from None
    for number, rule in enumerate(registry.rules):
        if rule.glob == glob:
            raise SchemaError(
                f"there is a rule for {destination} already, of {rule.schema or 'no schema'}; change it there",
                REGISTRY_FILE,
                f"rule[{number}]",
            )
    before = covering(registry, glob, len(registry.rules))
    index = len(registry.rules) if before is None else before
    newline = "\r\n" if b"\r\n" in text else "\n"
    lines = ["[[rule]]", f"destination = {_toml_text(destination)}"]
    lines += [f"schema = {_toml_text(type_name)}"] if encoding != NONE else []
    lines += [f"encoding = {_toml_text(encoding)}"]
    rule_text = newline.join(lines) + newline
    content = text.decode()
    if before is None:
        head = content if not content or content.endswith("\n") else content + newline
        new = head + (newline if head else "") + rule_text
    else:
        at = _start(content, before)
        new = content[:at] + rule_text + newline + content[at:]
    entry = {"destination": destination, "schema": type_name, "encoding": encoding}
    if encoding == NONE:
        del entry["schema"]
    if not _is_with(tomllib.loads(content), new, index, entry):
        raise SchemaError(
            f"the rules are not written as [[rule]] tables that another can be put between. Put it there as rule[{index}] by hand: "
            + "; ".join(lines),
            REGISTRY_FILE,
        )
    return new.encode(), index


def _start(content: str, index: int) -> int:
    """Find where the text of a rule begins: its header, or the comment that stands right above it."""
    line = line_of(REGISTRY_FILE, content.encode(), f"rule[{index}]") or 1
    lines = content.splitlines(keepends=True)
    first = line - 1
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    if first > 0 and lines[first - 1].strip():
        first = line - 1  # the comment belongs to what is above
    return sum(map(len, lines[:first]))


def _is_with(before: dict[str, Any], new: str, index: int, rule: dict[str, str]) -> bool:
    """Return True if a text is the document that it was, and one more rule."""
    try:
        after = tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        return False
    rules = list(before.get("rule", []))
    rules.insert(index, rule)
    return after == {**before, "rule": rules}


def _toml_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# Versions.


def next_minor(texts: Texts, type_name: str, release: bool, candidate: bool) -> Edit:
    """Copy the newest minor of a type to the next one, once it is released.

    Args:
        texts: A folder.
        type_name: Full name.
        release: Release the newest minor in the same step.
        candidate: The next one judges nothing yet, until it is renamed.

    Raises:
        ConfigurationError: The newest one is not released, there is no such type, or the folder is no good.
    """
    registry = _good(texts)
    newest = _newest(registry, type_name)
    released = released_minors(texts)
    key = (type_name, newest.minor)
    before = registry.versions(type_name)[1:2]
    changes = differences(read_tree(before[0].schema.text), read_tree(newest.schema.text)) if before else []
    if key not in released and not release:
        if before and before[0].schema.text == newest.schema.text:
            raise SchemaError(f"still the same as {before[0].minor}, and not released: change it there", newest.path)
        raise SchemaError(
            f"not released yet, so it may still be changed: edit it there. When it is in use, `maxam-admin schemas release {type_name}`,"
            " or --release to do both in one step",
            newest.path,
        )
    major, _, number = newest.minor.partition(".")
    minor = f"{major}.{int(number) + 1}"
    path = f"{type_name.replace('.', '/')}/{minor}{CANDIDATE_SUFFIX if candidate else SCHEMA_SUFFIX}"
    for version in registry.candidates(type_name):
        if version.minor == minor:
            raise SchemaError(
                f"{type_name} {minor} is there as a candidate; rename it to {minor}{SCHEMA_SUFFIX} to have it judge",
                version.path,
            )
    files: dict[str, bytes] = {}
    said: list[str] = []
    if key not in released:
        _refuse_traps(registry, [newest], texts)
        files[LOCK_FILE] = registry.lock(released | {key})
        said.append(f"{LOCK_FILE}: {type_name} {newest.minor} is released and must not change")
    files[path] = texts[newest.path]
    _good({**texts, **files})
    what = (
        "a candidate, which judges nothing: a rule tries it by `shadow`"
        if candidate
        else "not released: change it there"
    )
    said.append(f"{path}: a copy of {newest.minor}, {what}")
    changed = [str(difference) for difference in changes]
    if before:
        said += [
            f"what {newest.minor} changed since {before[0].minor}:",
            *(f"  {line}" for line in changed or ["nothing"]),
        ]
    facts: dict[str, Any] = {
        "type": type_name,
        "minor": minor,
        "file": path,
        "copied": newest.minor,
        "released": key not in released,
    }
    facts["changed"] = [difference.row() for difference in changes]
    return Edit(files, tuple(said), facts)


def release(texts: Texts, type_names: tuple[str, ...]) -> Edit:
    """Put all minor versions of these types, or of all types, into the lock. Those in it stay as they are.

    Raises:
        ConfigurationError: There is no such type, or the folder is invalid.
    """
    registry = _good(texts)
    for name in type_names:
        _newest(registry, name)
    released = released_minors(texts)
    added = [
        (name, version.minor)
        for name in type_names or registry.types()
        for version in reversed(registry.versions(name))
        if (name, version.minor) not in released
    ]
    _refuse_traps(
        registry,
        [one for name in registry.types() for one in registry.versions(name) if (name, one.minor) in added],
        texts,
    )
    files = {LOCK_FILE: registry.lock(released | set(added))} if added else {}
    if added:
        _good({**texts, **files})
    said = [f"{LOCK_FILE}: {name} {minor} is released and must not change" for name, minor in added]
    facts = {"released": [{"type": name, "minor": minor} for name, minor in added]}
    return Edit(files, tuple(said) or ("everything is released already",), facts)


def _refuse_traps(registry: Registry, versions: Sequence[SchemaVersion], texts: Texts) -> None:
    """Raise SchemaError if versions to be released have a mistake that could not be corrected after the release."""
    for version in versions:
        for trap in new_traps(registry, version, texts):
            if trap.certain:
                line = line_of(version.path, texts[version.path], trap.place)
                raise SchemaError(f"not released: {trap.problem}", version.path, trap.place, line)


def _newest(registry: Registry, type_name: str) -> SchemaVersion:
    versions = registry.versions(type_name)
    if not versions:
        raise no_such_type(registry, type_name)
    return versions[0]


def _good(texts: Texts) -> Registry:
    registry, findings = inspect(texts)
    if registry is None:
        errors = [finding for finding in findings if finding.severity == "error"]
        raise ConfigurationError(
            f"nothing was changed, as the folder {'is' if len(errors) == 1 else f'has {len(errors)} mistakes and is'} not good: {errors[0]}"
        )
    return registry

"""Make the texts of a schema folder an immutable registry: which destination carries what, and every schema by name
and fingerprint.
"""

import re
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final, final

from maxam.avro.compatibility import BACKWARD, COMPATIBILITIES, COMPATIBILITY_DEFAULT, MinorFinding, check_minors
from maxam.avro.envelope import ID_BYTES, EnvelopeKeys
from maxam.avro.fingerprint import CRC_BYTES, SHA_BYTES
from maxam.avro.places import line_of_byte, located
from maxam.avro.rule import DATUM, ENCODINGS, ENVELOPE, NONE, Rule, SchemaVersion, schema_id_of
from maxam.avro.schema import Json, Source, find_problems, full_name, parse_schema, read_source
from maxam.avro.silent import silent_changes
from maxam.config import Limits
from maxam.errors import GlobError, SchemaError
from maxam.globs import compile_glob

REGISTRY_FILE: Final = "registry.toml"
LOCK_FILE: Final = "registry.lock"
FINGERPRINTS: Final = {"CRC-64-AVRO": CRC_BYTES, "SHA-256": SHA_BYTES}
SCHEMA_SUFFIX: Final = ".avsc"
CANDIDATE_SUFFIX: Final = ".candidate.avsc"  # of a minor that is not released: it judges nothing, a rule may try it
PROBLEMS_SHOWN_MAX: Final = 20  # of one folder, in one error; `inspect_registry` gives all
WITNESS_CHARACTERS_MAX: Final = 160  # of a datum that is shown in an error
FRESH_WITHIN_S_MAX: Final = 1e10  # three centuries; infinity and nan are no limits
_ENVELOPE_KEYS: Final = ("body", "fingerprint", "topic", "tombstone")
_RULE_KEYS: Final = (
    "destination",
    "encoding",
    "fresh_within_s",
    "require_version",
    "schema",
    "shadow",
    "store_rejected_bodies",
)
_MINOR: Final = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_PLACE: Final = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*/)*[A-Za-z_][A-Za-z0-9_]*_v(0|[1-9][0-9]{0,8})")

_Toml = dict[str, Any]  # what tomllib gives; every value is checked before it is used


@final
class Registry:
    """All schemas and rules of one schema folder. Immutable.

    Attributes:
        rules: In the order of the file.
        fingerprint: `CRC-64-AVRO` or `SHA-256`: what judgements carry and listings show first.
        envelope_keys: Keys of an envelope's items.
        rejected_bodies_stored: No rule says that what is rejected may not be kept.
        fresh_within_s: For each rule, in seconds, how old the newest value of its destinations may be before it is stale; None: any
            age. The broker does not act on it: `gateway/freshness.py` tells of it.
    """

    __slots__ = (
        "_by_fingerprint",
        "_candidates",
        "_compatibility",
        "_types",
        "envelope_keys",
        "fingerprint",
        "fresh_within_s",
        "rejected_bodies_stored",
        "rules",
    )

    def __init__(
        self,
        rules: tuple[Rule, ...],
        types: Mapping[str, tuple[SchemaVersion, ...]],
        by_fingerprint: Mapping[bytes, Sequence[SchemaVersion]],
        compatibility: Mapping[str, str],
        fingerprint: str,
        envelope_keys: EnvelopeKeys,
        fresh_within_s: tuple[float | None, ...],
        candidates: Mapping[str, tuple[SchemaVersion, ...]],
    ) -> None:
        self.rules: Final = rules
        self.rejected_bodies_stored: Final = all(rule.rejected_bodies_stored for rule in rules)
        self.fresh_within_s: Final = fresh_within_s
        self.fingerprint: Final = fingerprint
        self.envelope_keys: Final = envelope_keys
        self._types: Final = types
        self._by_fingerprint: Final = by_fingerprint
        self._candidates: Final = candidates
        self._compatibility: Final = compatibility

    def rule_for(self, destination: str) -> Rule | None:
        """Give the first rule whose glob matches."""
        for rule in self.rules:
            if rule.glob.matches(destination):
                return rule
        return None

    def types(self) -> tuple[str, ...]:
        """Give the full names of all types, sorted."""
        return tuple(self._types)

    def versions(self, type_name: str) -> tuple[SchemaVersion, ...]:
        """Give all minors of a type, newest first; none for an unknown type."""
        return self._types.get(type_name, ())

    def schema(self, type_name: str, minor: str) -> SchemaVersion | None:
        """Give one minor of a type."""
        for version in self.versions(type_name):
            if version.minor == minor:
                return version
        return None

    def candidates(self, type_name: str) -> tuple[SchemaVersion, ...]:
        """Give the minors of a type that are not released and judge nothing, newest first."""
        return self._candidates.get(type_name, ())

    def by_fingerprint(self, fingerprint: bytes) -> list[SchemaVersion]:
        """Give all schemas with a fingerprint of 8 bytes (CRC-64-AVRO, little-endian) or 32 (SHA-256), newest first."""
        return list(self._by_fingerprint.get(fingerprint, ()))

    def by_id(self, schema_id: int) -> list[SchemaVersion]:
        """Give all schemas with an id, newest first: minors of one type that have the same text."""
        key = schema_id.to_bytes(ID_BYTES, "big") if 0 <= schema_id < 2**31 else b""
        return list(self._by_fingerprint.get(key, ()))

    def by_text(self, text_sha256: str) -> list[SchemaVersion]:
        """Give all schemas whose self-contained text has this SHA-256, in hexadecimal, newest first."""
        same_id = self.by_id(schema_id_of(text_sha256))
        return [version for version in same_id if version.text_sha256 == text_sha256]

    def compatibility(self, type_name: str) -> str:
        """Give the compatibility mode of a type."""
        return self._compatibility.get(type_name, COMPATIBILITY_DEFAULT)

    def texts(self) -> Iterable[tuple[str, bytes]]:
        """Give each self-contained text with its SHA-256 in hexadecimal."""
        texts = {version.text_sha256: version.schema.text for minors in self._types.values() for version in minors}
        return texts.items()

    def lock(self, released: Container[tuple[str, str]] | None = None) -> bytes:
        """Write the text of `registry.lock` that releases these minors of these types, or every minor there is."""
        lines = [
            "# Written by `maxam-admin schemas`. A minor that stands here is released and may not change any more.\n"
        ]
        for name, minors in self._types.items():
            for version in reversed(minors):
                if released is not None and (name, version.minor) not in released:
                    continue
                lines.append(f'\n[released."{name}"."{version.minor}"]\n')
                lines.append(f'fingerprint = "{version.crc_64.hex()}"\n')
                lines.append(f'sha256 = "{version.text_sha256}"\n')
        return "".join(lines).encode()


def load_registry(texts: Mapping[str, bytes], limits: Limits | None = None) -> Registry:
    """Build the registry of a schema folder.

    Args:
        texts: Content of each file by its path relative to the folder, with `/`. Files that are neither
            `registry.toml`, `registry.lock` nor `*.avsc` are nobody's business here.
        limits: Bound the rules' globs.

    Raises:
        SchemaError: Something in it is wrong; names file, line and place, each mistake on a line of its own.
    """
    registry, problems = inspect_registry(texts, limits)
    if registry is None:
        told = [located(problem, texts) for problem in problems[:PROBLEMS_SHOWN_MAX]]
        if len(problems) == 1:
            raise told[0]
        more = f"\n... and {len(problems) - PROBLEMS_SHOWN_MAX} more" if len(problems) > PROBLEMS_SHOWN_MAX else ""
        raise SchemaError("\n".join([str(problem) for problem in told]) + more)
    return registry


def inspect_registry(
    texts: Mapping[str, bytes], limits: Limits | None = None
) -> tuple[Registry | None, list[SchemaError]]:
    """Build the registry of a schema folder, and go on behind each mistake to find the next.

    Args:
        texts: As of `load_registry`.
        limits: Bound the rules' globs.

    Returns:
        The registry, None when anything is wrong with it; and all that is wrong, but for what only follows from something
        that is named already.
    """
    loader = _Loader(texts, limits or Limits())
    registry = loader.load()
    return (None, loader.problems) if loader.problems else (registry, loader.problems)


_Versions = dict[str, tuple[SchemaVersion, ...]]


@final
class _Loader:
    """Makes a registry. A file that cannot be used is stood in for by an empty record, so that nothing else is blamed for it."""

    def __init__(self, texts: Mapping[str, bytes], limits: Limits) -> None:
        self._texts = texts
        self._limits = limits
        self.problems: list[SchemaError] = []
        self._noted: set[str] = set()
        self._broken: set[str] = set()  # paths of files that cannot be used

    def load(self) -> Registry:
        """Make the registry, which is good if nothing was noted."""
        document: _Toml = {}
        if REGISTRY_FILE in self._texts:
            try:
                document = _toml(REGISTRY_FILE, self._texts[REGISTRY_FILE])
                _only(REGISTRY_FILE, "", document, ("registry", "rule", "type"))
            except SchemaError as error:
                self._note(error)
        else:
            self._note(SchemaError("missing in the schema folder", REGISTRY_FILE))

        sources = self._sources(SCHEMA_SUFFIX)
        types = self._parsed(sources, sources)
        known = self._known(types)
        if LOCK_FILE in self._texts:
            self._check_lock(self._texts[LOCK_FILE], types)
        candidates = self._candidates(sources)

        fingerprint = "CRC-64-AVRO"
        keys = EnvelopeKeys()
        try:
            settings = _value(REGISTRY_FILE, "registry", document.get("registry", {}), dict)
            _only(REGISTRY_FILE, "registry", settings, ("envelope_keys", "fingerprint"))
            fingerprint = _fingerprint(settings)
            keys = _envelope_keys(settings.get("envelope_keys", {}))
        except SchemaError as error:
            self._note(error)
        compatibility = self._compatibility(document.get("type", {}), types)

        rules: list[Rule] = []
        fresh_within_s: list[float | None] = []
        bare: dict[str, list[str]] = {}  # rules of a type whose data need not say which minor wrote them
        entries: list[Any] = []
        try:
            entries = _value(REGISTRY_FILE, "rule", document.get("rule", []), list)
        except SchemaError as error:
            self._note(error)
        size = FINGERPRINTS[fingerprint]
        for index, entry in enumerate(entries):
            place = f"rule[{index}]"
            try:
                table = _value(REGISTRY_FILE, place, entry, dict)
                rule = _rule(place, table, types, candidates, size, keys, known, self._limits)
                rules.append(rule)
                if _is_bare(rule):
                    bare.setdefault(rule.schema, []).append(place)
                fresh_within_s.append(_fresh_within_s(place, table))
            except SchemaError as error:
                self._note(error)
        for name, minors in types.items():
            if not self._is_broken(name, types):
                self._check_compatibility(minors, compatibility.get(name, COMPATIBILITY_DEFAULT), sources[name])
                if name in bare:
                    self._check_meanings(minors, bare[name])
        return Registry(tuple(rules), types, known, compatibility, fingerprint, keys, tuple(fresh_within_s), candidates)

    def _is_broken(self, name: str, types: _Versions) -> bool:
        """Tell whether a file that a type needs cannot be used: what it is compared with would only stand in for it."""
        names = {name}
        for version in types[name]:
            names.update(version.schema.uses)
        return any(version.path in self._broken for used in names for version in types.get(used, ()))

    def _check_compatibility(self, minors: Sequence[SchemaVersion], mode: str, sources: Mapping[str, Source]) -> None:
        """Compare the minors of a type, newest first, as its mode asks; one mistake is told once, whatever minors it breaks with."""
        found: dict[tuple[str, str, str, str, str], list[MinorFinding]] = {}
        for finding in check_minors(minors[::-1], mode):
            what = finding.incompatibility
            key = (finding.minor.minor, finding.direction, what.kind, what.reader_path, what.problem)
            found.setdefault(key, []).append(finding)
        for findings in found.values():
            finding = findings[0]
            what = finding.incompatibility
            route = what.reader_route if finding.direction == BACKWARD else what.writer_route
            against = ", ".join([other.against.path for other in findings])
            datum = finding.witness()
            example = "" if datum is None else f", such as {_shortened(datum.text)}"
            self._note(
                SchemaError(
                    f"{what}; {mode} asks that {finding.reader.minor} reads all that {finding.writer.minor} writes{example} "
                    f"(not {finding.direction} compatible with {against}); {finding.remedy}",
                    finding.minor.path,
                    _place(sources[finding.minor.minor].document, route),
                )
            )

    def _check_meanings(self, minors: Sequence[SchemaVersion], rules: Sequence[str]) -> None:
        """Refuse minors that bare data of older ones fit wholly and mean something else by."""
        for index, newer in enumerate(minors):
            for older in minors[index + 1 :]:
                changes = silent_changes(older.schema, newer.schema)
                if changes:
                    what = "; ".join([str(change) for change in changes])
                    self._note(
                        SchemaError(
                            f"a bare datum of {older.path} would be taken for one of {newer.minor} and mean something else, "
                            f"such as {_shortened(changes[0].body.hex(' '))} ({what}); undo the change, append fields and symbols "
                            f"at the end only, or set require_version = true in {', '.join(rules)} of {REGISTRY_FILE}",
                            newer.path,
                        )
                    )

    def _note(self, error: SchemaError) -> None:
        text = str(error)
        if text not in self._noted:  # of a file that several others refer to
            self._noted.add(text)
            self.problems.append(error)

    def _sources(self, suffix: str) -> dict[str, dict[str, Source]]:
        """Read all files of a suffix, candidates only by theirs: sorted by name, their minors from oldest to newest."""
        found: dict[str, dict[tuple[int, int], Source]] = {}
        for path in sorted(self._texts):
            if not path.endswith(suffix) or path.endswith(CANDIDATE_SUFFIX) != (suffix == CANDIDATE_SUFFIX):
                continue
            place, _, file = path.removesuffix(suffix).rpartition("/")
            minor = _MINOR.fullmatch(file)
            major = _PLACE.fullmatch(place)
            if minor is None or major is None or minor[1] != major[1]:
                self._note(
                    SchemaError(
                        "expected <namespace path>/<type name>_v<major>/<major>.<minor>.avsc, such as "
                        "egm/EGMStatus_v1/1.0.avsc",
                        path,
                    )
                )
                continue
            name = place.replace("/", ".")
            try:
                source = _source(path, self._texts[path], minor[0], name)
            except SchemaError as error:
                self._note(error)
                self._broken.add(path)
                source = _stand_in(name, path, minor[0])
            found.setdefault(name, {})[int(minor[1]), int(minor[2])] = source
        return {
            name: {source.minor: source for _, source in sorted(found[name].items(), key=lambda item: item[0])}
            for name in sorted(found)
        }

    def _parsed(
        self, wanted: Mapping[str, Mapping[str, Source]], sources: Mapping[str, Mapping[str, Source]]
    ) -> _Versions:
        """Parse files: each type's minors, newest first."""
        versions: _Versions = {}
        for name, minors in wanted.items():
            parsed: list[SchemaVersion] = []
            for source in reversed(list(minors.values())):
                try:
                    schema = parse_schema(source, sources)
                except SchemaError:
                    for problem in find_problems(source, sources):
                        self._note(problem)
                    self._broken.add(source.path)
                    schema = parse_schema(_stand_in(name, source.path, source.minor))
                parsed.append(SchemaVersion(name, source.minor, source.path, schema))
            versions[name] = tuple(parsed)
        return versions

    def _known(self, types: _Versions) -> dict[bytes, list[SchemaVersion]]:
        """Find each schema by either fingerprint and by its id."""
        known: dict[bytes, list[SchemaVersion]] = {}
        for minors in types.values():
            for version in minors:
                known.setdefault(version.crc_64, []).append(version)
                known.setdefault(version.sha_256, []).append(version)
                same_id = known.setdefault(version.schema_id_bytes, [])
                if same_id and same_id[0].text_sha256 != version.text_sha256:
                    self._note(
                        SchemaError(
                            f"its schema id {version.schema_id} is that of {same_id[0].path} too, which bodies of encoding "
                            '"confluent" could not tell apart; change the text of the one that is not released, a doc will do',
                            version.path,
                        )
                    )
                same_id.append(version)
        return known

    def _candidates(self, sources: Mapping[str, Mapping[str, Source]]) -> _Versions:
        """Parse the minors that are not released; what they refer to must be."""
        candidates = self._sources(CANDIDATE_SUFFIX)
        for name, minors in candidates.items():
            for source in minors.values():
                released = sources.get(name, {}).get(source.minor)
                if released is not None:
                    self._note(
                        SchemaError(
                            f"{name} {source.minor} is there as {released.path} too; remove the candidate, or give it the next "
                            "minor",
                            source.path,
                        )
                    )
        return self._parsed(candidates, sources)

    def _compatibility(self, value: object, types: _Versions) -> dict[str, str]:
        modes: dict[str, str] = {}
        try:
            entries = _value(REGISTRY_FILE, "type", value, dict)
        except SchemaError as error:
            self._note(error)
            return modes
        for name, entry in entries.items():
            try:
                modes[name] = _mode(name, entry, types)
            except SchemaError as error:
                self._note(error)
        return modes

    def _check_lock(self, text: bytes, types: _Versions) -> None:
        """Compare the folder with what was released."""
        try:
            document = _toml(LOCK_FILE, text)
            _only(LOCK_FILE, "", document, ("released",))
            released = _value(LOCK_FILE, "released", document.get("released", {}), dict)
        except SchemaError as error:
            self._note(error)
            return
        for name, minors in released.items():
            try:
                entries = _value(LOCK_FILE, f'released."{name}"', minors, dict)
            except SchemaError as error:
                self._note(error)
                continue
            for minor, entry in entries.items():
                try:
                    self._check_released(name, minor, entry, types)
                except SchemaError as error:
                    self._note(error)

    def _check_released(self, name: str, minor: str, entry: object, types: _Versions) -> None:
        place = f'released."{name}"."{minor}"'
        table = _value(LOCK_FILE, place, entry, dict)
        _only(LOCK_FILE, place, table, ("fingerprint", "sha256"))
        version = next((v for v in types.get(name, ()) if v.minor == minor), None)
        if version is None:
            raise SchemaError("released, but there is no such file any more; restore it", LOCK_FILE, place)
        if version.path in self._broken:
            return
        found = {"fingerprint": version.crc_64.hex(), "sha256": version.text_sha256}
        for key, value in found.items():
            if table.get(key) != value:
                raise SchemaError(
                    f"differs from what was released ({LOCK_FILE}: {place}.{key} is {table.get(key)!r}, the text gives "
                    f"{value!r}); restore it and make a new minor",
                    version.path,
                )


def _is_bare(rule: Rule) -> bool:
    """Tell whether a rule takes data that do not say which minor wrote them: a datum, or an envelope without fingerprint."""
    return rule.encoding in {DATUM, ENVELOPE} and not rule.version_required


def _shortened(text: str) -> str:
    return text if len(text) <= WITNESS_CHARACTERS_MAX else text[: WITNESS_CHARACTERS_MAX - 3] + "..."


def _place(document: Json, route: Sequence[int]) -> str:
    """Find where a type stands in a file; where it is referred to when another place defines it."""
    place = ""
    for index in route:
        if isinstance(document, list):
            place += f"[{index}]"
            document = document[index]
            continue
        if not isinstance(document, dict):
            break
        step = {"record": f"fields[{index}].type", "array": "items", "map": "values"}.get(str(document.get("type")), "")
        if not step:
            break
        place = f"{place}.{step}" if place else step
        if document["type"] == "record":
            fields = document["fields"]
            field = fields[index] if isinstance(fields, list) else None
            document = field.get("type") if isinstance(field, dict) else None
        else:
            document = document[step]
    return place


def _source(path: str, text: bytes, minor: str, name: str) -> Source:
    source = read_source(path, text, minor)
    said = full_name(source)
    if said != name:
        raise SchemaError(f"the file's place says {name}, its text says {said}", path, "name")
    return source


def _stand_in(name: str, path: str, minor: str) -> Source:
    return Source(path, minor, {"type": "record", "name": name, "fields": []})


def _toml(file: str, text: bytes) -> _Toml:
    try:
        return tomllib.loads(text.decode())
    except RecursionError:
        raise SchemaError("nested too deeply", file) from None
    except UnicodeDecodeError as error:
        raise SchemaError(f"not UTF-8 TOML: {error}", file, "", line_of_byte(text, error.start)) from None
    except ValueError as error:
        raise SchemaError(f"not UTF-8 TOML: {error}", file) from None


def _only(file: str, place: str, table: _Toml, keys: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            where = f"{place}.{key}" if place else key
            raise SchemaError(f"unknown key; known here: {', '.join(keys)}", file, where)


_NAMES: Final = {dict: "a table", list: "an array of tables", str: "text", bool: "true or false", int: "a whole number"}


def _value(file: str, place: str, value: Any, of: type) -> Any:  # noqa: ANN401 - TOML values have no better type
    if not isinstance(value, of) or (isinstance(value, bool) and of is not bool):
        raise _mistaken(file, place, _NAMES[of], value)
    return value


def _mistaken(file: str, place: str, expected: str, value: object) -> SchemaError:
    found = repr(value)
    return SchemaError(f"expected {expected}, found {found if len(found) <= 80 else found[:77] + '...'}", file, place)


def _envelope_keys(value: object) -> EnvelopeKeys:
    place = "registry.envelope_keys"
    table = _value(REGISTRY_FILE, place, value, dict)
    _only(REGISTRY_FILE, place, table, _ENVELOPE_KEYS)
    numbers: list[int] = []
    for default, name in enumerate(_ENVELOPE_KEYS, start=1):
        number = _value(REGISTRY_FILE, f"{place}.{name}", table.get(name, default), int)
        if not -(2**31) <= number < 2**31:
            raise SchemaError("an item's key has 32 bits", REGISTRY_FILE, f"{place}.{name}")
        if number in numbers:
            raise SchemaError(
                f"{_ENVELOPE_KEYS[numbers.index(number)]} has {number} too", REGISTRY_FILE, f"{place}.{name}"
            )
        numbers.append(number)
    return EnvelopeKeys(*numbers)


def _fingerprint(settings: _Toml) -> str:
    fingerprint = settings.get("fingerprint", "CRC-64-AVRO")
    if not isinstance(fingerprint, str) or fingerprint not in FINGERPRINTS:
        raise _mistaken(REGISTRY_FILE, "registry.fingerprint", " or ".join(FINGERPRINTS), fingerprint)
    return fingerprint


def _mode(name: str, entry: object, types: _Versions) -> str:
    place = f'type."{name}"'
    if name not in types:
        raise SchemaError(f"no such type; known: {', '.join(types) or 'none'}", REGISTRY_FILE, place)
    table = _value(REGISTRY_FILE, place, entry, dict)
    _only(REGISTRY_FILE, place, table, ("compatibility",))
    mode = table.get("compatibility", COMPATIBILITY_DEFAULT)
    if not isinstance(mode, str) or mode not in COMPATIBILITIES:
        raise _mistaken(REGISTRY_FILE, f"{place}.compatibility", f"one of {', '.join(COMPATIBILITIES)}", mode)
    return mode


def _rule(
    place: str,
    table: _Toml,
    types: Mapping[str, tuple[SchemaVersion, ...]],
    candidates: Mapping[str, tuple[SchemaVersion, ...]],
    fingerprint_bytes: int,
    keys: EnvelopeKeys,
    known: Mapping[bytes, Sequence[SchemaVersion]],
    limits: Limits,
) -> Rule:
    _only(REGISTRY_FILE, place, table, _RULE_KEYS)
    for key in ("destination", "encoding"):
        if key not in table:
            raise SchemaError(f"{key!r} is missing", REGISTRY_FILE, place)
    encoding = table["encoding"]
    if encoding not in ENCODINGS:
        raise _mistaken(REGISTRY_FILE, f"{place}.encoding", f"one of {', '.join(ENCODINGS)}", encoding)
    version_required = _value(REGISTRY_FILE, f"{place}.require_version", table.get("require_version", False), bool)
    schema = _value(REGISTRY_FILE, f"{place}.schema", table.get("schema", ""), str)
    if encoding == NONE:
        if "schema" in table or "shadow" in table or version_required:
            raise SchemaError(
                'with encoding "none" nothing is checked: no schema, no version, no shadow', REGISTRY_FILE, place
            )
    elif "schema" not in table:
        raise SchemaError("'schema' is missing; only encoding \"none\" needs none", REGISTRY_FILE, place)
    elif schema not in types:
        raise SchemaError(
            f"no such type {schema!r}; known: {', '.join(types) or 'none'}", REGISTRY_FILE, f"{place}.schema"
        )
    destination = _value(REGISTRY_FILE, f"{place}.destination", table["destination"], str)
    try:
        glob = compile_glob(destination, limits)
    except GlobError as error:
        raise SchemaError(str(error), REGISTRY_FILE, f"{place}.destination") from None
    stored = _value(REGISTRY_FILE, f"{place}.store_rejected_bodies", table.get("store_rejected_bodies", True), bool)
    versions = types.get(schema, ())
    candidate = None
    if "shadow" in table:
        minor = _value(REGISTRY_FILE, f"{place}.shadow", table["shadow"], str)
        candidate = _candidate(place, minor, (*candidates.get(schema, ()), *versions))
        versions = tuple([version for version in versions if version is not candidate])
        if not versions:
            raise SchemaError(
                f"{schema} has no other version than {minor}, so nothing would judge; a version that is only tried needs one "
                "in force beside it",
                REGISTRY_FILE,
                f"{place}.shadow",
            )
    return Rule(glob, encoding, schema, versions, version_required, fingerprint_bytes, keys, known, candidate, stored)


def _candidate(place: str, minor: str, versions: Sequence[SchemaVersion]) -> SchemaVersion:
    """Find the version that a rule tries: one that is not released, or a released one, which does not judge there."""
    for version in versions:
        if version.minor == minor:
            return version
    known = ", ".join([version.minor for version in versions])
    raise SchemaError(
        f"no version {minor!r} of the rule's type; known: {known}; a new one is put there as <minor>{CANDIDATE_SUFFIX}",
        REGISTRY_FILE,
        f"{place}.shadow",
    )


def _fresh_within_s(place: str, table: _Toml) -> float | None:
    value = table.get("fresh_within_s")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < FRESH_WITHIN_S_MAX:
        raise _mistaken(REGISTRY_FILE, f"{place}.fresh_within_s", "a number of seconds above zero", value)
    return float(value)

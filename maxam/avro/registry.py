"""Make the texts of a schema folder an immutable registry: the rule of each destination, and every schema by name and
fingerprint.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, final

from maxam.avro.compatibility import BACKWARD, COMPATIBILITY_DEFAULT, MinorFinding, check_minors
from maxam.avro.envelope import ID_BYTES, EnvelopeKeys
from maxam.avro.places import located
from maxam.avro.registry_file import (
    CANDIDATE_SUFFIX,
    FINGERPRINTS,
    LOCK_FILE,
    REGISTRY_FILE,
    Toml,
    Versions,
    checked_keys,
    checked_value,
    parse_toml,
    read_ages,
    read_envelope_keys,
    read_fingerprint,
    read_mode,
    read_rule,
)
from maxam.avro.rule import DATUM, ENVELOPE, Rule, SchemaVersion, schema_id_of
from maxam.avro.schema import examine_schema, full_name, parse_schema
from maxam.avro.silent import silent_changes
from maxam.avro.source import Json, Source, read_source
from maxam.config import Limits
from maxam.errors import SchemaError

SCHEMA_SUFFIX: Final = ".avsc"
PROBLEMS_SHOWN_MAX: Final = 20  # of one folder, in one error; `inspect_registry` gives all
WITNESS_CHARACTERS_MAX: Final = 160  # of a datum that is shown in an error
_MINOR: Final = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_PLACE: Final = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*/)*[A-Za-z_][A-Za-z0-9_]*_v(0|[1-9][0-9]{0,8})")


@final
class Registry:
    """All schemas and rules of one schema folder. Immutable.

    Attributes:
        rules: In the order of the file.
        fingerprint: `CRC-64-AVRO` or `SHA-256`: the kind that validations carry and listings show first.
        envelope_keys: Keys of an envelope's items.
        rejected_bodies_stored: True if no rule forbids keeping rejected bodies.
        fresh_within_s: For each rule, the age in seconds at which the newest value of its destinations is stale. None allows any
            age. The broker does not act on it: `gateway/freshness.py` reports it.
        expire_after_s: For each rule, the age in seconds at which a topic is deleted. None allows any age. `broker/expiry.py`
            decides on it.
    """

    __slots__ = (
        "_by_fingerprint",
        "_candidates",
        "_compatibility",
        "_types",
        "envelope_keys",
        "expire_after_s",
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
        ages: tuple[tuple[float | None, float | None], ...],
        candidates: Mapping[str, tuple[SchemaVersion, ...]],
    ) -> None:
        self.rules: Final = rules
        self.rejected_bodies_stored: Final = all(rule.rejected_bodies_stored for rule in rules)
        self.fresh_within_s: Final = tuple([fresh_s for fresh_s, _ in ages])
        self.expire_after_s: Final = tuple([expire_s for _, expire_s in ages])
        self.fingerprint: Final = fingerprint
        self.envelope_keys: Final = envelope_keys
        self._types: Final = types
        self._by_fingerprint: Final = by_fingerprint
        self._candidates: Final = candidates
        self._compatibility: Final = compatibility

    def rule_for(self, destination: str) -> Rule | None:
        """Return the first rule whose glob matches."""
        for rule in self.rules:
            if rule.glob.matches(destination):
                return rule
        return None

    def types(self) -> tuple[str, ...]:
        """Return the full names of all types, sorted."""
        return tuple(self._types)

    def versions(self, type_name: str) -> tuple[SchemaVersion, ...]:
        """Return all minors of a type, newest first. An unknown type has none."""
        return self._types.get(type_name, ())

    def schema(self, type_name: str, minor: str) -> SchemaVersion | None:
        """Return one minor of a type."""
        for version in self.versions(type_name):
            if version.minor == minor:
                return version
        return None

    def candidates(self, type_name: str) -> tuple[SchemaVersion, ...]:
        """Return the minors of a type that are not released and judge nothing, newest first."""
        return self._candidates.get(type_name, ())

    def by_fingerprint(self, fingerprint: bytes) -> list[SchemaVersion]:
        """Return all schemas with a fingerprint of 8 bytes (CRC-64-AVRO, little-endian) or 32 (SHA-256), newest first."""
        return list(self._by_fingerprint.get(fingerprint, ()))

    def by_id(self, schema_id: int) -> list[SchemaVersion]:
        """Return all schemas with an id, newest first: minors of one type that have the same text."""
        key = schema_id.to_bytes(ID_BYTES, "big") if 0 <= schema_id < 2**31 else b""
        return list(self._by_fingerprint.get(key, ()))

    def by_text(self, text_sha256: str) -> list[SchemaVersion]:
        """Return all schemas whose self-contained text has this SHA-256, in hexadecimal, newest first."""
        same_id = self.by_id(schema_id_of(text_sha256))
        return [version for version in same_id if version.text_sha256 == text_sha256]

    def compatibility(self, type_name: str) -> str:
        """Return the compatibility mode of a type."""
        return self._compatibility.get(type_name, COMPATIBILITY_DEFAULT)

    def texts(self) -> Iterable[tuple[str, bytes]]:
        """Return each self-contained text with its SHA-256 in hexadecimal."""
        texts = {version.text_sha256: version.schema.text for minors in self._types.values() for version in minors}
        return texts.items()

    def lock(self, released: Container[tuple[str, str]] | None = None) -> bytes:
        """Write the text of `registry.lock` that releases these minors of these types, or every minor there is."""
        lines = [
            "# Written by `maxam-admin schemas`. A minor that is listed here is released and may no longer change.\n"
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
            `registry.toml`, `registry.lock` nor `*.avsc` are ignored.
        limits: Bound the rules' globs.

    Raises:
        SchemaError: Something in it is wrong. The text has file, line and place, with each mistake on a line of its own.
    """
    registry, problems = inspect_registry(texts, limits)
    if registry is None:
        shown = [located(problem, texts) for problem in problems[:PROBLEMS_SHOWN_MAX]]
        if len(problems) == 1:
            raise shown[0]
        more = f"\n... and {len(problems) - PROBLEMS_SHOWN_MAX} more" if len(problems) > PROBLEMS_SHOWN_MAX else ""
        raise SchemaError("\n".join([str(problem) for problem in shown]) + more)
    return registry


def inspect_registry(
    texts: Mapping[str, bytes], limits: Limits | None = None
) -> tuple[Registry | None, list[SchemaError]]:
    """Build the registry of a schema folder, and continue after each mistake to find the next.

    Args:
        texts: As of `load_registry`.
        limits: Bound the rules' globs.

    Returns:
        The registry, or None if anything is wrong with it, and all mistakes. Mistakes that only follow from another one are
        left out.
    """
    loader = _Loader(texts, limits or Limits())
    registry = loader.load()
    return (None, loader.problems) if loader.problems else (registry, loader.problems)


@final
class _Loader:
    """Makes a registry. An empty record replaces a file that cannot be used, so that nothing else is blamed for it."""

    def __init__(self, texts: Mapping[str, bytes], limits: Limits) -> None:
        self._texts = texts
        self._limits = limits
        self.problems: list[SchemaError] = []
        self._texts_of_problems: set[str] = set()
        self._broken: set[str] = set()  # paths of files that cannot be used

    def load(self) -> Registry:
        """Make the registry, which is valid if no problem was recorded."""
        document: Toml = {}
        with self._noted():
            if REGISTRY_FILE not in self._texts:
                raise SchemaError("missing in the schema folder", REGISTRY_FILE)
            document = parse_toml(REGISTRY_FILE, self._texts[REGISTRY_FILE])
            checked_keys(REGISTRY_FILE, "", document, ("registry", "rule", "type"))

        sources = self._sources(SCHEMA_SUFFIX)
        types = self._parsed(sources, sources)
        known = self._known(types)
        if LOCK_FILE in self._texts:
            self._check_lock(self._texts[LOCK_FILE], types)
        candidates = self._candidates(sources)

        fingerprint = "CRC-64-AVRO"
        keys = EnvelopeKeys()
        with self._noted():
            settings = checked_value(REGISTRY_FILE, "registry", document.get("registry", {}), dict)
            checked_keys(REGISTRY_FILE, "registry", settings, ("envelope_keys", "fingerprint"))
            fingerprint = read_fingerprint(settings)
            keys = read_envelope_keys(settings.get("envelope_keys", {}))
        compatibility = self._compatibility(document.get("type", {}), types)

        rules: list[Rule] = []
        ages: list[tuple[float | None, float | None]] = []
        bare: dict[str, list[str]] = {}  # for each type, rules that take data without the version that wrote them
        entries: list[Any] = []
        with self._noted():
            entries = checked_value(REGISTRY_FILE, "rule", document.get("rule", []), list)
        size = FINGERPRINTS[fingerprint]
        for index, entry in enumerate(entries):
            place = f"rule[{index}]"
            with self._noted():
                table = checked_value(REGISTRY_FILE, place, entry, dict)
                rule = read_rule(place, table, types, candidates, size, keys, known, self._limits)
                rules.append(rule)
                if rule.encoding in {DATUM, ENVELOPE} and not rule.version_required:
                    bare.setdefault(rule.schema, []).append(place)
                ages.append(read_ages(place, table))
        for name, minors in types.items():
            if not self._is_broken(name, types):
                self._check_compatibility(minors, compatibility.get(name, COMPATIBILITY_DEFAULT), sources[name])
                if name in bare:
                    self._check_meanings(minors, bare[name])
        return Registry(tuple(rules), types, known, compatibility, fingerprint, keys, tuple(ages), candidates)

    def _is_broken(self, name: str, types: Versions) -> bool:
        """Return True if a file that a type needs cannot be used: comparing anything with its replacement would be wrong."""
        names = {name}
        for version in types[name]:
            names.update(version.schema.uses)
        return any(version.path in self._broken for used in names for version in types.get(used, ()))

    def _check_compatibility(self, minors: Sequence[SchemaVersion], mode: str, sources: Mapping[str, Source]) -> None:
        """Compare the minor versions of a type, newest first, as its mode requires. Each mistake is reported once."""
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
            example = ""
            if datum is not None and len(datum.text) <= WITNESS_CHARACTERS_MAX:
                example = f", such as {datum.text}"
            elif datum is not None:
                example = f", such as {what.writer_path or 'the whole'} = {_shortened(datum.part)}"
            self._note(
                SchemaError(
                    f"{what}. {mode} requires that {finding.reader.minor} can read all data of {finding.writer.minor}{example} "
                    f"(not {finding.direction} compatible with {against}). {finding.remedy[0].upper()}{finding.remedy[1:]}",
                    finding.minor.path,
                    _place(sources[finding.minor.minor].document, route),
                )
            )

    def _check_meanings(self, minors: Sequence[SchemaVersion], rules: Sequence[str]) -> None:
        """Refuse minors under which bare data of older ones are valid and mean something else."""
        for index, newer in enumerate(minors):
            for older in minors[index + 1 :]:
                changes = silent_changes(older.schema, newer.schema)
                if changes:
                    what = ". ".join([str(change) for change in changes])
                    self._note(
                        SchemaError(
                            f"a bare datum of {older.path} would be taken for one of {newer.minor} and mean something else, "
                            f"such as {_shortened(changes[0].body.hex(' '))} ({what}). Undo the change, append fields and symbols "
                            f"at the end only, or set require_version = true in {', '.join(rules)} of {REGISTRY_FILE}",
                            newer.path,
                        )
                    )

    def _note(self, error: SchemaError) -> None:
        text = str(error)
        if text not in self._texts_of_problems:  # the file may be one that several others refer to
            self._texts_of_problems.add(text)
            self.problems.append(error)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Record an error of the block, and continue after it."""
        try:
            yield
        except SchemaError as error:
            self._note(error)

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
    ) -> Versions:
        """Parse files: each type's minors, newest first."""
        versions: dict[str, tuple[SchemaVersion, ...]] = {}
        for name, minors in wanted.items():
            parsed: list[SchemaVersion] = []
            for source in reversed(list(minors.values())):
                schema, problems = examine_schema(source, sources)
                if schema is None:
                    for problem in problems:
                        self._note(problem)
                    self._broken.add(source.path)
                    schema = parse_schema(_stand_in(name, source.path, source.minor))
                parsed.append(SchemaVersion(name, source.minor, source.path, schema))
            versions[name] = tuple(parsed)
        return versions

    def _known(self, types: Versions) -> dict[bytes, list[SchemaVersion]]:
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
                            f"its schema id {version.schema_id} is that of {same_id[0].path} too, so bodies of encoding "
                            '"confluent" would not show which one wrote them. Change the text of the one that is not released, '
                            "for example a doc",
                            version.path,
                        )
                    )
                same_id.append(version)
        return known

    def _candidates(self, sources: Mapping[str, Mapping[str, Source]]) -> Versions:
        """Parse the minors that are not released. Types that they refer to must be."""
        candidates = self._sources(CANDIDATE_SUFFIX)
        for name, minors in candidates.items():
            for source in minors.values():
                released = sources.get(name, {}).get(source.minor)
                if released is not None:
                    self._note(
                        SchemaError(
                            f"{name} {source.minor} is there as {released.path} too. Remove the candidate, or give it the next "
                            "minor",
                            source.path,
                        )
                    )
        return self._parsed(candidates, sources)

    def _compatibility(self, value: object, types: Versions) -> dict[str, str]:
        modes: dict[str, str] = {}
        with self._noted():
            for name, entry in checked_value(REGISTRY_FILE, "type", value, dict).items():
                with self._noted():
                    modes[name] = read_mode(name, entry, types)
        return modes

    def _check_lock(self, text: bytes, types: Versions) -> None:
        """Compare the folder with what was released."""
        with self._noted():
            document = parse_toml(LOCK_FILE, text)
            checked_keys(LOCK_FILE, "", document, ("released",))
            for name, minors in checked_value(LOCK_FILE, "released", document.get("released", {}), dict).items():
                with self._noted():
                    for minor, entry in checked_value(LOCK_FILE, f'released."{name}"', minors, dict).items():
                        with self._noted():
                            self._check_released(name, minor, entry, types)

    def _check_released(self, name: str, minor: str, entry: object, types: Versions) -> None:
        place = f'released."{name}"."{minor}"'
        table = checked_value(LOCK_FILE, place, entry, dict)
        checked_keys(LOCK_FILE, place, table, ("fingerprint", "sha256"))
        version = next((v for v in types.get(name, ()) if v.minor == minor), None)
        if version is None:
            raise SchemaError("released, but there is no such file. Restore it", LOCK_FILE, place)
        if version.path in self._broken:
            return
        found = {"fingerprint": version.crc_64.hex(), "sha256": version.text_sha256}
        for key, value in found.items():
            if table.get(key) != value:
                raise SchemaError(
                    f"differs from the released text ({LOCK_FILE}: {place}.{key} is {table.get(key)!r}, the text has "
                    f"{value!r}). Restore it and make a new minor",
                    version.path,
                )


def _shortened(text: str) -> str:
    return text if len(text) <= WITNESS_CHARACTERS_MAX else text[: WITNESS_CHARACTERS_MAX - 3] + "..."


def _place(document: Json, route: Sequence[int]) -> str:
    """Return the place of a type in a file, or of the reference to it if another place defines it."""
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
    defined = full_name(source)
    if defined != name:
        raise SchemaError(f"the path of the file stands for {name}, its text defines {defined}", path, "name")
    return source


def _stand_in(name: str, path: str, minor: str) -> Source:
    return Source(path, minor, {"type": "record", "name": name, "fields": []})

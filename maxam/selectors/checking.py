"""Check a selector against the schemas of the destinations that a glob can reach.

The check belongs to SUBSCRIBE alone. Evaluation needs no types: what does not fit is NULL there. So a reload of the registry never
makes a selector invalid that was accepted before.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final, final

from maxam.avro.registry import Registry
from maxam.avro.rule import Rule, SchemaVersion
from maxam.avro.schema import Type
from maxam.errors import GlobError, SelectorError
from maxam.glob_sets import GlobSet, find_destination, overlap
from maxam.globs import Glob
from maxam.selectors import syntax
from maxam.selectors.syntax import Path, Step, Syntax, path_text

NUMBER: Final = "a number"
TEXT: Final = "a text"
BOOLEAN: Final = "a boolean"
NOTHING: Final = "always null"  # fits every type

_KINDS: Final = {
    "null": NOTHING,
    "boolean": BOOLEAN,
    "int": NUMBER,
    "long": NUMBER,
    "float": NUMBER,
    "double": NUMBER,
    "string": TEXT,
    "enum": TEXT,
    "bytes": "bytes",
    "fixed": "a fixed",
    "record": "a record",
    "array": "an array",
    "map": "a map",
}
_COMPARABLE: Final = frozenset((NUMBER, TEXT, BOOLEAN, NOTHING))
_SHOWN_MAX: Final = 8  # names of fields in a hint
_HINT: Final = "It may stand with IS NULL only. If it has several types, a narrower glob may leave one."
_SIMILAR_MAX: Final = 3
_NAMES_MAX: Final = 1000  # that are compared with a wrong one: 5 ms
_COMPARISONS_MAX: Final = 8  # of globs with those of earlier rules
_OVERLAPS_MAX: Final = 500  # pairs of rules that are tested for a common destination
_STATES_MAX: Final = 100  # of one comparison, about 1 ms


def reachable_rules(registry: Registry, glob: Glob, received: GlobSet | None = None) -> list[Rule]:
    """Return the rules that some destination of a glob has, in their order.

    Of a principal that receives `received` only, rules without a destination that it may receive are left out.
    A rule is left out if earlier rules take all destinations that it shares with the glob. If that would take more than some 10 ms
    to find out, rules stay.
    """
    of_glob = GlobSet([glob])
    earlier: list[Glob] = []
    texts: set[str] = set()
    found: list[Rule] = []
    comparisons = _COMPARISONS_MAX
    overlaps = _OVERLAPS_MAX
    for rule in registry.rules:
        if not of_glob.overlaps(rule.glob) or (received is not None and not received.overlaps(rule.glob)):
            continue
        if "**" in texts or glob.text in texts or rule.glob.text in texts:
            continue
        overlaps -= len(earlier)
        others = [other for other in earlier if overlap(other, rule.glob)] if comparisons and overlaps >= 0 else []
        earlier.append(rule.glob)
        texts.add(rule.glob.text)
        if others:
            comparisons -= 1
            wanted: list[Sequence[Glob]] = [[glob], [rule.glob]]
            if received is not None:
                wanted.append(received.globs)
            try:
                if find_destination(wanted, [others], _STATES_MAX) is None:
                    continue
            except GlobError:
                pass
        found.append(rule)
    return found


def reachable_versions(registry: Registry, glob: Glob, received: GlobSet | None = None) -> list[SchemaVersion]:
    """Return the schema versions that `reachable_rules` accept."""
    versions: dict[tuple[str, str], SchemaVersion] = {}
    for rule in reachable_rules(registry, glob, received):
        minors = rule.minors
        for version in registry.versions(rule.schema):
            if version.minor in minors:
                versions[version.type_name, version.minor] = version
    return list(versions.values())


def check(root: Syntax, registry: Registry, glob: Glob, received: GlobSet | None = None) -> None:
    """Check the fields and types of a selector.

    Args:
        root: The selector.
        registry: Has the schemas.
        glob: Of the subscription.
        received: The errors must disclose no schema of destinations outside these. None stands for all destinations.

    Raises:
        SelectorError: It is no condition, no schema version has a field of it, or unlike types are compared. The error has the
            path and the position.
    """
    _Checker(reachable_versions(registry, glob, received)).condition(root)


@final
class _Checker:
    __slots__ = ("_kinds", "_versions")

    def __init__(self, versions: Sequence[SchemaVersion]) -> None:
        self._versions: Final = versions
        self._kinds: Final[dict[Path, str]] = {}

    def condition(self, node: Syntax) -> None:
        """Check a part that must be a condition."""
        kind = self._kind(node)
        if kind not in (BOOLEAN, NOTHING):
            raise SelectorError(
                f"{_shown(node)} is {kind}, not a condition", node.at, "Compare it with something, such as x = 1."
            )

    def _kind(self, node: Syntax) -> str:
        if node.kind == syntax.LITERAL:
            return _kind_of_literal(node.literal)
        if node.kind == syntax.FIELD:
            return self._kind_of_field(node)
        if node.kind == syntax.HEADER:
            return TEXT
        if node.kind in (syntax.NOT, syntax.AND, syntax.OR):
            for item in node.items:
                self.condition(item)
        elif node.kind == syntax.COMPARE:
            kind = self._alike(node, node.items)
            if kind == BOOLEAN and node.sign not in ("=", "<>"):
                raise SelectorError("booleans have no order", node.at, "Compare them with = or <>.")
        elif node.kind == syntax.IN:
            self._alike(node, node.items)
        elif node.kind == syntax.LIKE:
            self._require(node.items[0], TEXT, "LIKE compares texts.")
        elif node.kind == syntax.IS_NULL:
            self._kind(node.items[0])
        else:
            for item in node.items:
                self._require(item, NUMBER, f"{node.sign} calculates with numbers.")
            return NUMBER
        return BOOLEAN

    def _require(self, node: Syntax, kind: str, hint: str) -> None:
        found = self._kind(node)
        if found not in (kind, NOTHING):
            raise SelectorError(f"{_shown(node)} is {found}, not {kind}", node.at, hint)

    def _alike(self, node: Syntax, items: Sequence[Syntax]) -> str:
        """Return the common kind of operands that are compared."""
        known: Syntax | None = None
        kind = NOTHING
        for item in items:
            found = self._kind(item)
            if found not in _COMPARABLE:
                raise SelectorError(f"{_shown(item)} is {found}, which cannot be compared", item.at, _HINT)
            if found == NOTHING:
                continue
            if known is not None and found != kind:
                raise SelectorError(
                    f"{_shown(known)} is {kind} and {_shown(item)} is {found}: they cannot be compared",
                    node.at,
                    "Compare values of one type. Texts stand between single quotes.",
                )
            known, kind = item, found
        return kind

    def _kind_of_field(self, node: Syntax) -> str:
        kind = self._kinds.get(node.path, "")
        if not kind:
            kind = self._kinds[node.path] = self._search(node)
        return kind

    def _search(self, node: Syntax) -> str:
        """Return the kind that a field has in all versions that have it, or two kinds if it has several."""
        kind = ""
        place = ""
        for version in self._versions:
            for of in types_at(version.schema.type, node.path):
                found = _kind_of(of)
                where = f"{version.type_name} {version.minor}"
                if kind in ("", NOTHING):
                    kind, place = found, where
                elif found not in (kind, NOTHING):
                    return f"{kind} in {place} and {found} in {where}"
        if not kind:
            raise self._missing(node)
        return kind

    def _missing(self, node: Syntax) -> SelectorError:
        """Return the error about a field that no version has."""
        if not self._versions:
            hint = "Use header('name') only, or another glob."
            return SelectorError(
                f"{_shown(node)} is unknown: no rule checks the bodies of these destinations", node.at, hint
            )
        of: list[Type] = []
        known = 0
        for length in range(len(node.path)):
            around = [one for v in self._versions for one in types_at(v.schema.type, node.path[:length])]
            if not around:
                break
            of, known = around, length
        step = node.path[known]
        names = sorted({field.name for one in of for field in one.fields})
        outer = path_text(node.path[:known])
        if isinstance(step, str) and names:
            similar = get_close_matches(step, names[:_NAMES_MAX], _SIMILAR_MAX)
            more = " and others" if len(names) > _SHOWN_MAX else ""
            hint = f"Fields there: {', '.join(names[:_SHOWN_MAX])}{more}."
            if similar:
                hint = f"Similar fields: {', '.join(similar)}."
        elif any(one.kind == "array" for one in of):
            hint = f"{outer} is an array: write {outer}[0]."
        elif any(one.kind == "map" for one in of):
            hint = f"{outer} is a map: write {outer}['key']."
        else:
            hint = f"{outer or 'The value'} is {_kind_of(of[0]) if of else NOTHING}."
        types = sorted({version.type_name for version in self._versions})
        more = f" and {len(types) - 1} more" if len(types) > 1 else ""
        return SelectorError(f"no version of {types[0]}{more} has the field {_shown(node)}", node.at, hint)


def types_at(of: Type, path: Path) -> list[Type]:
    """Return the types that a value may have at a path, unions as their branches. Null is left out beside another type."""
    found = list(_branches([of]))
    for step in path:
        found = list(_branches(_inside(found, step)))
    others = [one for one in found if one.kind != "null"]
    return others or found


def _branches(types: Iterable[Type]) -> Iterable[Type]:
    for of in types:
        if of.kind == "union":
            yield from of.branches
        else:
            yield of


def _inside(types: list[Type], step: Step) -> Iterable[Type]:
    """Return the types after one step of a path."""
    for of in types:
        if isinstance(step, str):
            for field in of.fields:
                if field.name == step:
                    yield field.type
        elif of.kind == ("array" if isinstance(step, int) else "map"):
            yield of.branches[0]


def _kind_of(of: Type) -> str:
    """Return the kind of a type. Of the logical types only decimals have a kind of their own."""
    return NUMBER if of.logical == "decimal" else _KINDS[of.kind]


def _kind_of_literal(value: object) -> str:
    if isinstance(value, bytes):
        return TEXT
    return BOOLEAN if isinstance(value, bool) else NUMBER


def _shown(node: Syntax) -> str:
    """Return a part of a selector as errors show it."""
    if node.kind == syntax.FIELD:
        return path_text(node.path)
    if node.kind == syntax.HEADER:
        return f"header('{node.header.decode(errors='replace')}')"
    if node.kind == syntax.LITERAL:
        if isinstance(node.literal, bytes):
            return f"'{node.literal.decode(errors='replace')}'"
        return str(node.literal).upper() if isinstance(node.literal, bool) else str(node.literal)
    return "the calculation" if node.kind in (syntax.ARITHMETIC, syntax.UNARY) else "the condition"

"""The differences between two schemas, field by field, in words. `maxam.avro.compatibility` decides whether they are compatible."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from maxam.avro.compatibility import BACKWARD, FORWARD, check
from maxam.avro.rule import SchemaVersion
from maxam.avro.silent import silent_changes
from maxam.avro.witness import witness
from maxam.schema_tools.tree import Member, Node, read_tree

TEXT_CHARACTERS_MAX: Final = 160  # of a doc, a default or a value in a line
PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference.

    Attributes:
        path: The field, such as `from.venueId`, `meters[].credit` (items), `totals{}` (values) or `meters<egm.QMeters_v1>`;
            empty for the whole.
        kind: `added`, `removed`, `renamed`, `moved`, `type`, `symbols`, `default`, `doc`, `aliases` or `annotation`.
        text: Description of the difference.
        before: Value in the older schema, as JSON.
        after: Value in the newer schema.
    """

    path: str
    kind: str
    text: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path or 'the whole'}: {self.text}"

    def row(self) -> dict[str, Any]:
        """Return it for programs."""
        return {"path": self.path, "kind": self.kind, "text": self.text, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between two schema versions, and which of them can read the other's data: for people and for programs."""

    lines: list[str]
    rows: list[dict[str, Any]]


def compare(old: SchemaVersion, new: SchemaVersion, mode: str) -> Comparison:
    """Compare two minors; `mode` is the compatibility mode of the newer one's type."""
    found = differences(read_tree(old.schema.text), read_tree(new.schema.text))
    lines = [f"{old.type_name} {old.minor} -> {new.type_name} {new.minor}"]
    lines += [f"  {difference}" for difference in found]
    rows = [difference.row() for difference in found]
    if old.schema.text == new.schema.text:
        lines.append("  nothing differs")
    elif not found:
        lines.append("  nothing differs but the layout of the text")
    elif old.crc_64 == new.crc_64:
        lines.append("  the canonical form, and so the fingerprint, is the same")
    for direction, reader, writer in ((BACKWARD, new, old), (FORWARD, old, new)):
        problems = check(reader.schema, writer.schema)
        who = f"{direction}: {reader.minor}"
        lines.append(
            f"{who} reads all that {writer.minor} writes"
            if not problems
            else f"{who} cannot read all that {writer.minor} writes:"
        )
        incompatibilities = []
        for problem in problems:
            lines.append(f"  {problem}")
            shown = witness(writer.schema, problem)
            if shown is not None:
                lines.append(f"    such as {_short(shown.text)}")
            incompatibilities.append(
                {
                    "kind": problem.kind,
                    "reader_path": problem.reader_path,
                    "writer_path": problem.writer_path,
                    "problem": problem.problem,
                    "witness": None if shown is None else {"json": shown.text, "hex": shown.body.hex()},
                }
            )
        rows.append(
            {
                "direction": direction,
                "reader": reader.minor,
                "writer": writer.minor,
                "compatible": not problems,
                "incompatibilities": incompatibilities,
            }
        )
    if old.type_name == new.type_name:
        _compare_meaning(old, new, lines, rows)
        lines.append(f"the compatibility mode of {new.type_name} is {mode}")
    return Comparison(lines, rows)


def _compare_meaning(old: SchemaVersion, new: SchemaVersion, lines: list[str], rows: list[dict[str, Any]]) -> None:
    """Add what bare data of the older minor would be taken for: one type has them on one destination, two never do."""
    silent = silent_changes(old.schema, new.schema)
    if silent:
        lines.append(
            f"bare data of {old.minor} would be taken for {new.minor} and mean something else, without schema-version:"
        )
        lines += [f"  {change}" for change in silent]
        lines.append(f"    such as {silent[0].body.hex(' ')}")
    changes = [
        {"path": change.path, "problem": change.problem, "hex": change.body.hex(), "old": change.old, "new": change.new}
        for change in silent
    ]
    rows.append(
        {
            "direction": "meaning",
            "reader": new.minor,
            "writer": old.minor,
            "compatible": not silent,
            "changes": changes,
        }
    )


def differences(old: Node, new: Node) -> list[Difference]:
    """List what differs, in the order of the newer schema's fields."""
    return list(_Comparison().compare(old, new, ""))


class _Comparison:
    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def compare(self, old: Node, new: Node, path: str) -> Iterator[Difference]:
        """Compare two types at one place; named ones once, wherever they stand."""
        if old.name or new.name:
            if (id(old), id(new)) in self._seen:
                return
            self._seen.add((id(old), id(new)))
        if old.kind != new.kind:
            yield _type(path, old, new)
            return
        if (old.name, old.size, old.logical, old.precision, old.scale) != (
            new.name,
            new.size,
            new.logical,
            new.precision,
            new.scale,
        ):
            yield _type(path, old, new)
        if old.doc != new.doc:
            yield Difference(path, "doc", f"doc of {new.label}: {_quoted(new.doc)}", old.doc, new.doc)
        if old.aliases != new.aliases:
            yield _aliases(path, new.label, old.aliases, new.aliases)
        match new.kind:
            case "record":
                yield from self._members(old, new, path)
            case "enum":
                yield from _symbols(old, new, path)
            case "union":
                yield from self._branches(old, new, path)
            case "array" | "map":
                yield from self.compare(
                    old.branches[0], new.branches[0], path + ("[]" if new.kind == "array" else "{}")
                )
            case _:
                pass

    def _members(self, old: Node, new: Node, path: str) -> Iterator[Difference]:
        before = {member.name: member for member in old.members}
        pairs: list[tuple[Member, Member]] = []
        taken = {member.name for member in new.members if member.name in before}
        for member in new.members:
            place = _at(path, member.name)
            match = before.get(member.name)
            if match is None:
                alias = next((name for name in member.aliases if name in before and name not in taken), None)
                if alias is None:
                    ending = f"default {_quoted(member.default)}" if member.defaulted else "without default"
                    yield Difference(
                        place, "added", f"new field: {member.node.title}, {ending}", None, member.node.title
                    )
                    continue
                taken.add(alias)
                match = before[alias]
                yield Difference(place, "renamed", f"was called {alias}, which is an alias now", alias, member.name)
            pairs.append((match, member))
            yield from self._member(match, member, place)
        for member in old.members:
            if member.name not in taken:
                ending = "" if member.defaulted else "; it had no default, so readers of the old schema need it"
                yield Difference(
                    _at(path, member.name),
                    "removed",
                    f"field removed: {member.node.title}{ending}",
                    member.node.title,
                    None,
                )
        order = [match.name for match, _ in pairs]
        if order != [member.name for member in old.members if member.name in order]:
            names = [member.name for _, member in pairs]
            text = f"fields of {new.label} are in another order: {', '.join(names)}. Bare data follow the order"
            yield Difference(path, "moved", text, [m.name for m in old.members], [m.name for m in new.members])

    def _member(self, old: Member, new: Member, place: str) -> Iterator[Difference]:
        yield from self.compare(old.node, new.node, place)
        if (old.defaulted, old.default) != (new.defaulted, new.default):
            if not new.defaulted:
                text = f"no longer has a default (was {_quoted(old.default)})"
            else:
                text = f"default {_quoted(new.default)}" + (
                    f" (was {_quoted(old.default)})" if old.defaulted else " (had none)"
                )
            yield Difference(place, "default", text, old.default, new.default)
        if old.doc != new.doc:
            yield Difference(place, "doc", f"doc: {_quoted(new.doc)}", old.doc, new.doc)
        if old.aliases != new.aliases and old.name == new.name:
            yield _aliases(place, new.name, old.aliases, new.aliases)
        for key in sorted(old.annotations.keys() | new.annotations.keys()):
            before, after = old.annotations.get(key), new.annotations.get(key)
            if before != after:
                yield Difference(place, "annotation", f"{key}: {_quoted(after)} (was {_quoted(before)})", before, after)

    def _branches(self, old: Node, new: Node, path: str) -> Iterator[Difference]:
        before = {branch.label: branch for branch in old.branches}
        labels = [branch.label for branch in new.branches]
        for branch in new.branches:
            match = before.get(branch.label)
            if match is None:
                text = f"the union may hold {branch.title} now"
                yield Difference(path, "type", text, list(before), labels)
            else:
                several = sum(b.kind != "null" for b in new.branches) > 1
                yield from self.compare(match, branch, f"{path}<{branch.label}>" if several else path)
        for label, branch in before.items():
            if label not in labels:
                yield Difference(path, "type", f"the union may no longer hold {branch.title}", list(before), labels)
        common = [label for label in before if label in labels]
        if common != [label for label in labels if label in before]:
            text = f"the union's branches are in another order: {', '.join(labels)}. Bare data refer to them by number"
            yield Difference(path, "moved", text, list(before), labels)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _type(path: str, old: Node, new: Node) -> Difference:
    promoted = " (Avro promotes it)" if new.kind in PROMOTIONS.get(old.kind, ()) else ""
    return Difference(path, "type", f"{old.title} became {new.title}{promoted}", old.title, new.title)


def _symbols(old: Node, new: Node, path: str) -> Iterator[Difference]:
    added = [symbol for symbol in new.symbols if symbol not in old.symbols]
    removed = [symbol for symbol in old.symbols if symbol not in new.symbols]
    before, after = list(old.symbols), list(new.symbols)
    if added:
        at_end = new.symbols[: len(old.symbols)] == old.symbols
        text = f"new symbols of {new.name}: {', '.join(added)}{', at the end' if at_end else ''}"
        yield Difference(path, "symbols", text, before, after)
    if removed:
        yield Difference(path, "symbols", f"symbols of {new.name} removed: {', '.join(removed)}", before, after)
    if [s for s in old.symbols if s not in removed] != [s for s in new.symbols if s not in added]:
        text = f"symbols of {new.name} are in another order. Bare data refer to them by number"
        yield Difference(path, "moved", text, before, after)
    if old.default != new.default:
        text = f"default of {new.name}: {new.default} (was {old.default})".replace("None", "none")
        yield Difference(path, "default", text, old.default, new.default)


def _aliases(path: str, label: str, old: tuple[str, ...], new: tuple[str, ...]) -> Difference:
    return Difference(path, "aliases", f"aliases of {label}: {', '.join(new) or 'none'}", list(old), list(new))


def _quoted(value: object) -> str:
    return _short(json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[: TEXT_CHARACTERS_MAX - 1]}…"

"""Types in TypeScript, Python and C# for the values of a schema folder as JSON shows them.

One declaration serves all versions of a type. A field that some version lacks is optional, and so is one with personal data,
which not every client receives. The output depends on the schemas alone, so two runs give equal bytes.
"""

import html
import json
import keyword
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from maxam.avro.json.forms import named_forms
from maxam.avro.json.leaves import TIME_EXAMPLES
from maxam.avro.registry import Registry
from maxam.avro.schema import Type
from maxam.schema_tools.tree import Node, read_tree

Language = Literal["typescript", "python", "csharp"]
Longs = Literal["text", "bigint"]

_NOTE: Final = "Made by `maxam-admin schemas types`. Decimals, times, bytes and UUIDs are text, as JSON shows them."


@dataclass(slots=True)
class _Field:
    """A field of a record in all versions."""

    doc: str
    types: list[Type] = field(default_factory=list)
    personal: bool = False
    count: int = 0  # versions of the record that have it


@dataclass(slots=True)
class _Record:
    doc: str
    fields: dict[str, _Field] = field(default_factory=dict)
    count: int = 0


@dataclass(slots=True)
class _Declarations:
    """All named types in the order of their declaration, by full name.

    `short` has their names in the output: the last part where that is unique, else all parts.
    """

    records: dict[str, _Record] = field(default_factory=dict)
    enums: dict[str, dict[str, None]] = field(default_factory=dict)
    named_branches: dict[str, Type] = field(default_factory=dict)
    roots: dict[str, Type] = field(default_factory=dict)
    short: dict[str, str] = field(default_factory=dict)


def type_texts(registry: Registry, names: Iterable[str], language: Language, longs: Longs = "text") -> str:
    """Return the declarations of types, and of all that they hold.

    Args:
        registry: All types.
        names: Full names of the types to declare.
        language: Language of the declarations.
        longs: Form of 64-bit integers in TypeScript. JSON has text beyond 2^53, and `@maxam/client` makes `bigint` of them.
    """
    found = _collect(registry, sorted(set(names)))
    match language:
        case "typescript":
            lines = _typescript(found, longs)
        case "python":
            lines = _python(found)
        case _:
            lines = _csharp(found)
    return "\n".join(lines) + "\n"


def _collect(registry: Registry, names: list[str]) -> _Declarations:
    found = _Declarations()
    for name in names:
        for version in reversed(registry.versions(name)):
            found.roots.setdefault(name, version.schema.type)
            _add(found, version.schema.type, read_tree(version.schema.text), set())
    full = [*found.records, *found.enums]
    parts = [one.rpartition(".")[2] for one in full]
    found.short = {
        one: short if parts.count(short) == 1 else one.replace(".", "_") for one, short in zip(full, parts, strict=True)
    }
    return found


def _add(found: _Declarations, of: Type, node: Node, within: set[str]) -> None:
    if of.kind == "enum":
        found.enums.setdefault(of.name, {}).update(dict.fromkeys(of.symbols))
    elif of.kind == "record":
        if of.name in within:
            return
        within.add(of.name)
        record = found.records.setdefault(of.name, _Record(node.doc))
        record.count += 1
        for inner, member in zip(of.fields, node.members, strict=True):
            entry = record.fields.setdefault(inner.name, _Field(member.doc))
            entry.types.append(inner.type)
            entry.personal |= inner.personal
            entry.count += 1
            _add(found, inner.type, member.node, within)
    else:
        if of.kind == "union":
            for branch, forms in zip(of.branches, named_forms(of), strict=True):
                if forms:
                    found.named_branches[branch.label] = branch
        for branch, below in zip(of.branches, node.branches, strict=True):
            _add(found, branch, below, within)


def _union(parts: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(parts))


@dataclass(frozen=True, slots=True)
class _Syntax:
    """How a language writes types. `leaves` has a text for each result of `_leaf`, and for enums without a type of their own."""

    array: str
    mapping: str
    leaves: dict[str, str]
    labelled: Callable[[Type, str], str]
    union: Callable[[Iterable[str]], str] = _union


def _text(of: Type, found: _Declarations, syntax: _Syntax) -> str:
    """Return the text of a type. A named one is referred to by its name."""
    match of.kind:
        case "union":
            return syntax.union(_branches(of, found, syntax))
        case "array":
            return syntax.array.format(_text(of.branches[0], found, syntax))
        case "map":
            return syntax.mapping.format(_text(of.branches[0], found, syntax))
        case "enum" if "enum" in syntax.leaves:
            return syntax.leaves["enum"]
        case "record" | "enum":
            return found.short[of.name]
        case _:
            return syntax.leaves[_leaf(of)]


def _branches(of: Type, found: _Declarations, syntax: _Syntax) -> Iterator[str]:
    """Yield the forms of each branch of a union. Objects that need their name always have it."""
    for branch, forms in zip(of.branches, named_forms(of), strict=True):
        text = _text(branch, found, syntax)
        if forms:
            yield syntax.labelled(branch, text)
        if not forms or not (branch.kind in ("record", "map") or branch.logical == "duration"):
            yield text


def _leaf(of: Type) -> str:
    """Return the form of a value that holds no other: null, boolean, int, long, real, duration or text."""
    match of.kind:
        case "null" | "boolean":
            return of.kind
        case "int" | "long" if not of.logical:
            return of.kind
        case "float" | "double":
            return "real"
        case "fixed" if of.logical == "duration":
            return "duration"
        case _:
            return "text"


def _optional(entry: _Field, record: _Record) -> bool:
    return entry.personal or entry.count < record.count


def _one_line(doc: str) -> str:
    """Return a text without line ends, and without any character that would end a docstring."""
    return " ".join(doc.split()).replace("\\", "/").replace('"', "'")


# TypeScript.

_ALIASES: Final = (
    "",
    'export type Real = number | "NaN" | "Infinity" | "-Infinity";',
    "",
    "/** An integer beyond 2^53 is text. */",
    "export type Long = number | string;",
)


def _typescript(found: _Declarations, longs: Longs) -> Iterator[str]:
    leaves = {"null": "null", "boolean": "boolean", "int": "number", "long": "Long", "real": "Real", "text": "string"}
    leaves["duration"] = "{ readonly months: number; readonly days: number; readonly milliseconds: number }"
    if longs == "bigint":
        leaves["long"] = "bigint"
    syntax = _Syntax(
        "ReadonlyArray<{}>",
        "Readonly<Record<string, {}>>",
        leaves,
        lambda branch, text: f"{{ readonly {json.dumps(branch.label)}: {text} }}",
    )
    yield f"// {_NOTE}"
    yield from _ALIASES
    for full, record in found.records.items():
        yield from ("", *_comment(record.doc, ""), f"export interface {found.short[full]} {{")
        for name, entry in record.fields.items():
            mark = "?" if _optional(entry, record) else ""
            yield from _comment(f"{entry.doc} {_time_note(entry.types)}", "  ")
            yield f"  readonly {name}{mark}: {_union(_text(of, found, syntax) for of in entry.types)};"
        yield "}"
    for full, symbols in found.enums.items():
        yield from ("", f"export type {found.short[full]} = {' | '.join(map(json.dumps, symbols))};")
    for full, of in found.roots.items() if longs == "bigint" else ():
        paths = ", ".join(json.dumps(path) for path in sorted(set(_long_paths(of, "", frozenset()))))
        name = found.short[full]
        yield from ("", f"/** Option `longs` of `Client.values` for {name}. */")
        yield f"export const longsOf{name} = [{paths}] as const;"


def _comment(doc: str, indent: str) -> list[str]:
    return [f"{indent}/** {_one_line(doc).replace('*/', '* /')} */"] if doc.strip() else []


def _time_note(types: Iterable[Type]) -> str:
    """Return a sentence on the JSON of a date or time, as its documentation may describe the number of Avro. Empty for others."""
    for of in types:
        if of.logical in TIME_EXAMPLES:
            return f"JSON has text such as {TIME_EXAMPLES[of.logical]}."
        if of.kind in ("union", "array", "map") and (note := _time_note(of.branches)):
            return note
    return ""


def _long_paths(of: Type, path: str, within: frozenset[str]) -> Iterator[str]:
    """Yield the paths of plain `long` values. Records in themselves are followed once."""
    match of.kind:
        case "long" if not of.logical:
            yield path
        case "array" | "map":
            yield from _long_paths(of.branches[0], f"{path}.*".lstrip("."), within)
        case "union":
            for branch, forms in zip(of.branches, named_forms(of), strict=True):
                yield from _long_paths(branch, f"{path}.*".lstrip(".") if forms else path, within)
        case "record" if of.name not in within:
            for inner in of.fields:
                yield from _long_paths(inner.type, f"{path}.{inner.name}".lstrip("."), within | {of.name})


# Python.


def _python(found: _Declarations) -> Iterator[str]:
    leaves = {
        "null": "None",
        "boolean": "bool",
        "int": "int",
        "long": "int | str",
        "real": "float | str",
        "text": "str",
    }
    leaves["duration"] = "dict[str, int]"
    syntax = _Syntax("list[{}]", "dict[str, {}]", leaves, lambda branch, _text: _branch_name(branch))
    yield from (f'"""{_NOTE}"""', "", "from typing import Literal, NotRequired, TypedDict")
    for full, symbols in found.enums.items():
        yield from ("", f"{found.short[full]} = Literal[{', '.join(map(json.dumps, symbols))}]")
    for branch in found.named_branches.values():
        text = json.dumps(_text(branch, found, syntax))
        name = _branch_name(branch)
        yield from ("", f'{name} = TypedDict("{name}", {{{json.dumps(branch.label)}: {text}}})')
    for full, record in found.records.items():
        kinds = {}
        for name, entry in record.fields.items():
            kind = _union(_text(of, found, syntax) for of in entry.types)
            kinds[name] = json.dumps(f"NotRequired[{kind}]" if _optional(entry, record) else kind)
        own = found.short[full]
        if any(map(keyword.iskeyword, kinds)):  # such as `from`, which no class can have
            items = ", ".join(f"{json.dumps(name)}: {kind}" for name, kind in kinds.items())
            yield from ("", f'{own} = TypedDict("{own}", {{{items}}})')
        else:
            yield from ("", "", f"class {own}(TypedDict):")
            yield f'    """{_one_line(record.doc) or own}"""'
            yield from ("", *(f"    {name}: {kind}" for name, kind in kinds.items()), "")


def _branch_name(branch: Type) -> str:
    return f"{branch.label.replace('.', '_')}Branch"


# C#.

_CSHARP_STRUCTS: Final = ("bool", "int", "long", "double", "JsonElement")
_CSHARP_HEAD: Final = (
    "#nullable enable",
    "using System.Collections.Generic;",
    "using System.Text.Json;",
    "using System.Text.Json.Serialization;",
    "",
    "namespace Values",
    "{",
    "    /// <summary>Options for JsonSerializer. An integer beyond 2^53 and a number such as NaN come as text.</summary>",
    "    public static class ValueJson",
    "    {",
    "        public static readonly JsonSerializerOptions Options = new JsonSerializerOptions",
    "        {",
    "            NumberHandling = JsonNumberHandling.AllowReadingFromString | JsonNumberHandling.AllowNamedFloatingPointLiterals,",
    "        };",
    "    }",
)


def _csharp(found: _Declarations) -> Iterator[str]:
    """Yield classes. A union of several types is a JsonElement, and an enum a string, as a newer version may add symbols."""
    leaves = {"null": "null", "boolean": "bool", "int": "int", "long": "long", "real": "double", "text": "string"}
    leaves |= {"duration": "Dictionary<string, uint>", "enum": "string"}
    found.short = {
        full: f"@{name}" if name.islower() else name for full, name in found.short.items()
    }  # may be a keyword
    syntax = _Syntax("List<{}>", "Dictionary<string, {}>", leaves, lambda _branch, _text: "JsonElement", _csharp_union)
    yield from (f"// {_NOTE}", *_CSHARP_HEAD)
    for full, record in found.records.items():
        yield from ("", *_summary(record.doc, "    "), f"    public sealed class {found.short[full]}", "    {")
        for (name, entry), member in zip(
            record.fields.items(), _members(record.fields, found.short[full]), strict=True
        ):
            kind = _csharp_union(_text(of, found, syntax) for of in entry.types)
            attribute = f"JsonPropertyName({json.dumps(name)})"
            if _optional(entry, record):
                kind = kind.rstrip("?") + "?"
                attribute += ", JsonIgnore(Condition = JsonIgnoreCondition.WhenWritingNull)"
            yield from (*_summary(entry.doc, "        "), f"        [{attribute}]")
            initial = "" if kind.endswith("?") or kind in _CSHARP_STRUCTS else " = default!;"  # JsonSerializer sets it
            yield f"        public {kind} {member} {{ get; set; }}{initial}"
        yield "    }"
    for full, symbols in found.enums.items():
        yield from ("", f"    public static class {found.short[full]}", "    {")
        for symbol, member in zip(symbols, _members(symbols, found.short[full]), strict=True):
            yield f"        public const string {member} = {json.dumps(symbol)};"
        yield "    }"
    yield "}"


def _csharp_union(parts: Iterable[str]) -> str:
    found = list(dict.fromkeys(parts))
    kinds = dict.fromkeys(part.rstrip("?") for part in found if part != "null")
    kind = next(iter(kinds)) if len(kinds) == 1 else "JsonElement"
    return kind + "?" * any(part == "null" or part.endswith("?") for part in found)


def _members(names: Iterable[str], own: str) -> list[str]:
    """Return names of members that begin with a capital letter, so that none is a keyword, and differ from that of their class."""
    taken = [own]
    for name in names:
        member = name[0].upper() + name[1:]
        while member in taken:
            member += "_"
        taken.append(member)
    return taken[1:]


def _summary(doc: str, indent: str) -> list[str]:
    return [f"{indent}/// <summary>{html.escape(_one_line(doc), quote=False)}</summary>"] if doc else []

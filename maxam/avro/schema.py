"""Avro schemas as written in `.avsc` files: strict parsing, references between files, canonical form.

A schema's *self-contained text* is its file with each type of another file written out where it is first used, depth first.
The `references` attribute is left out, because it only means something inside the folder. Fingerprints are computed from
this text. It is also the text that is served and that the journal keeps.
"""

import json
import math
import re
from typing import Final, final

from maxam.avro.source import Json, Source, Sources
from maxam.counting import counted
from maxam.errors import SchemaError

DEPTH_MAX: Final = (
    64  # levels of one schema's text, and of records, arrays and maps in one value: bounds every recursion
)

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PII: Final = "pii"  # attribute of a field that holds personal data, False by default
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LOGICAL: Final = {  # logical types of the specification, and what they may be of
    "big-decimal": ("bytes",),
    "date": ("int",),
    "decimal": ("bytes", "fixed"),
    "duration": ("fixed",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-nanos": ("long",),
    "time-micros": ("long",),
    "time-millis": ("int",),
    "timestamp-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-nanos": ("long",),
    "uuid": ("string", "fixed"),
}
_LOGICAL_SIZES: Final = {"duration": 12, "uuid": 16}


@final
class Field:
    """A record's field.

    `default` has a meaning only when `defaulted` is True. `aliases` are older names that a reader accepts. `personal` is the
    mark of personal data.
    """

    __slots__ = ("aliases", "default", "defaulted", "name", "personal", "type")

    def __init__(
        self,
        name: str,
        of: "Type",
        defaulted: bool,
        default: Json = None,
        aliases: tuple[str, ...] = (),
        personal: bool = False,
    ) -> None:
        self.name: Final = name
        self.type: Final = of
        self.defaulted: Final = defaulted
        self.default: Final = default
        self.aliases: Final = aliases
        self.personal: Final = personal


@final
class Type:
    """One type of a parsed schema; records that hold themselves make the tree a graph.

    Attributes:
        kind: A primitive's name, or `record`, `enum`, `fixed`, `array`, `map`, `union`.
        name: Full name of a named type, else empty.
        size: Bytes of a fixed.
        symbols: Symbols of an enum.
        fields: Fields of a record.
        branches: Branches of a union; the only one of an array or map is its items' type.
        aliases: Full names that a named type had before.
        symbol_default: Symbol that an enum's reader takes in place of one that it does not know, empty if there is none.
        logical: Name of its logical type, if that is one the specification knows.
        precision: Digits of a decimal.
        scale: Digits of a decimal after the point.
        empty: Every value takes no bytes, so that any number of items costs a sender nothing.
    """

    __slots__ = (
        "aliases",
        "branches",
        "empty",
        "fields",
        "kind",
        "logical",
        "name",
        "precision",
        "scale",
        "size",
        "symbol_default",
        "symbols",
    )

    def __init__(
        self,
        kind: str,
        name: str = "",
        size: int = 0,
        symbols: tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
        symbol_default: str = "",
    ) -> None:
        self.kind: Final = kind
        self.name: Final = name
        self.size: Final = size
        self.symbols: Final = symbols
        self.aliases: Final = aliases
        self.symbol_default: Final = symbol_default
        self.logical = ""
        self.precision = 0
        self.scale = 0
        self.fields: Final[list[Field]] = []
        self.branches: Final[list[Type]] = []
        self.empty = kind == "null" or (kind == "fixed" and size == 0)

    @property
    def label(self) -> str:
        """Label that distinguishes it from other branches of a union: the full name, else the kind."""
        return self.name or self.kind


@final
class Schema:
    """A parsed schema that needs no other file.

    Attributes:
        type: The parsed type.
        text: The self-contained text, UTF-8 JSON on one line.
        canonical: The Parsing Canonical Form, UTF-8.
        uses: Full names of the types that came from other files, in order of first use.
    """

    __slots__ = ("canonical", "text", "type", "uses")

    def __init__(self, of: Type, text: bytes, uses: tuple[str, ...]) -> None:
        self.type: Final = of
        self.text: Final = text
        self.canonical: Final = _canonical(of, set()).encode()
        self.uses: Final = uses


def parse_schema(source: Source, sources: Sources | None = None) -> Schema:
    """Parse a schema and all that it refers to.

    Args:
        source: The file.
        sources: Files that it may refer to.

    Raises:
        SchemaError: The schema or a file that it refers to is invalid. The error names file and place of the first mistake.

    Spec: Avro 1.12 "Schema Declaration", "Names"
    """
    schema, problems = examine_schema(source, sources)
    if schema is None:
        raise problems[0]
    return schema


def examine_schema(source: Source, sources: Sources | None = None) -> tuple[Schema | None, list[SchemaError]]:
    """Parse a schema and continue after a wrong field to find further mistakes. Arguments are those of `parse_schema`.

    Returns:
        The schema, or None if there is a mistake; and all mistakes. A type that a wrong field defines is unknown to the
        fields after it.
    """
    parser = _Parser(sources or {})
    problems = parser.problems
    try:
        of, document = parser.parse(source, source.document, "", "", 1)
        parser.check_defaults()
        if problems:
            return None, problems
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:
        problems.append(SchemaError("nested too deeply", source.path))
        return None, problems
    except SchemaError as error:
        problems.append(error)
        return None, problems
    except UnicodeEncodeError:
        place = _unpaired(source.document)
        return None, [SchemaError("a text in it holds half a surrogate pair", source.path, place or "")]
    for name in source.references:
        if name not in parser.origins or parser.origins[name] is source:
            return None, [SchemaError("the schema does not refer to this type", source.path, f"references.{name}")]
    uses = tuple([name for name, file in parser.types_of_files.items() if file is not source])
    return Schema(of, text, uses), problems


def full_name(source: Source) -> str:
    """Return the full name of the type that a file defines, which must be a named one.

    Raises:
        SchemaError: It does not define one, or its name is malformed.
    """
    document = source.document
    if not isinstance(document, dict) or document.get("type") not in ("record", "enum", "fixed"):  # a list has no hash
        place = "type" if isinstance(document, dict) and "type" in document else ""
        raise _error(source, place, "a schema file must define a record, an enum or a fixed")
    return _name(source, document, "", "")


@final
class _Parser:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.problems: list[SchemaError] = []  # of fields and defaults
        self._types: dict[str, Type] = {}
        self.origins: dict[str, Source] = {}  # in which file each named type met so far is defined
        self.types_of_files: dict[str, Source] = {}
        self._defaults: list[tuple[Source, str, Type, Json]] = []

    def parse(self, source: Source, document: Json, namespace: str, path: str, depth: int) -> tuple[Type, Json]:
        """Parse one schema in its surroundings. Return its type and its part of the self-contained text."""
        if depth > DEPTH_MAX:
            raise _error(source, path, f"nested deeper than {DEPTH_MAX} levels")
        if isinstance(document, str):
            if document in PRIMITIVES:
                return Type(document), document
            return self._reference(source, document, namespace, path, depth)
        if isinstance(document, list):
            return self._union(source, document, namespace, path, depth)
        if not isinstance(document, dict):
            raise _error(source, path, "expected a type's name, an object or a union's array")
        kind = document.get("type")
        if not isinstance(kind, str):
            raise _error(source, _at(path, "type"), "expected the name of a type")
        if kind in PRIMITIVES:
            of, out = Type(kind), dict(document)
        elif kind in {"array", "map"}:
            of, out = self._container(source, document, kind, namespace, path, depth)
        elif kind in {"record", "enum", "fixed"}:
            of, out = self._named(source, document, kind, namespace, path, depth)
        elif len(document) == 1:
            return self._reference(source, kind, namespace, path, depth)
        else:
            raise _error(source, _at(path, "type"), f"unknown type {kind!r}; a reference is the name alone")
        _check_logical(source, document, of, path)
        return of, out

    def check_defaults(self) -> None:
        """Check the defaults of all fields met: only now are types that hold themselves complete."""
        for source, path, of, default in self._defaults:
            problem = _default_problem(of, default, 1)
            if problem:
                self.problems.append(_error(source, path, problem))

    def _reference(self, source: Source, text: str, namespace: str, path: str, depth: int) -> tuple[Type, Json]:
        name = text if "." in text or not namespace else f"{namespace}.{text}"
        origin = self.origins.get(name)
        if origin is source:
            return self._types[name], text
        file = self._file(source, name, path)
        if origin is not None:
            if origin is not file:
                where = file.path if file else "no file"
                raise _error(
                    source, path, f"{name} means {where} here, but this schema holds that of {origin.path} already"
                )
            return self._types[name], text
        if file is None:
            raise _error(source, path, f"unknown type {text!r}: neither defined before this place nor by a file")
        self.types_of_files[name] = file
        return self.parse(file, file.document, "", "", depth)

    def _file(self, source: Source, name: str, path: str) -> Source | None:
        minors = self._sources.get(name, {})
        pinned = source.references.get(name)
        if pinned is not None:
            if pinned not in minors:
                known = ", ".join(minors) or "none"
                raise SchemaError(f"no minor {pinned!r}, known: {known}", source.path, f"references.{name}")
            return minors[pinned]
        if len(minors) > 1:
            example = f'"references": {{"{name}": "{list(minors)[-1]}"}}'
            raise _error(source, path, f"{name} has the minors {', '.join(minors)}; pin one with {example}")
        return next(iter(minors.values()), None)

    def _union(
        self, source: Source, document: list[Json], namespace: str, path: str, depth: int
    ) -> tuple[Type, list[Json]]:
        union = Type("union")
        out: list[Json] = []
        labels: set[str] = set()
        if not document:
            raise _error(source, path, "a union needs a branch")
        for index, branch in enumerate(document):
            place = f"{path}[{index}]"
            of, text = self.parse(source, branch, namespace, place, depth + 1)
            if of.kind == "union":
                raise _error(source, place, "a union may not hold a union directly")
            if of.label in labels:
                raise _error(source, place, f"the union holds {of.label} twice")
            labels.add(of.label)
            union.branches.append(of)
            out.append(text)
        return union, out

    def _container(
        self, source: Source, document: dict[str, Json], kind: str, namespace: str, path: str, depth: int
    ) -> tuple[Type, dict[str, Json]]:
        key = "items" if kind == "array" else "values"
        if key not in document:
            raise _error(source, path, f"{kind} without {key!r}")
        items, text = self.parse(source, document[key], namespace, _at(path, key), depth + 1)
        of = Type(kind)
        of.branches.append(items)
        return of, {**document, key: text}

    def _named(
        self, source: Source, document: dict[str, Json], kind: str, namespace: str, path: str, depth: int
    ) -> tuple[Type, dict[str, Json]]:
        name = _name(source, document, namespace, path)
        inner = name.rpartition(".")[0]
        if name in self._types:
            raise _error(source, path, f"{name} is defined twice (the first is in {self.origins[name].path})")
        if document is source.document:
            self.types_of_files.setdefault(name, source)
        elif name in self._sources:
            raise _error(source, path, f"{name} has a file of its own; refer to it by name")
        aliases = tuple([a if "." in a or not inner else f"{inner}.{a}" for a in _aliases(source, document, path)])
        if kind == "enum":
            of = _enum(source, document, name, aliases, path)
        elif kind == "fixed":
            size = document.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**31:
                raise _error(source, _at(path, "size"), "expected a number of bytes")
            of = Type("fixed", name, size=size, aliases=aliases)
        else:
            of = Type("record", name, aliases=aliases)
        self._types[name] = of
        self.origins[name] = source
        out = {key: value for key, value in document.items() if key != "references" or document is not source.document}
        if kind == "record":
            out["fields"] = self._fields(source, document.get("fields"), of, inner, _at(path, "fields"), depth)
            of.empty = all(field.type.empty for field in of.fields)
        return of, out

    def _fields(self, source: Source, documents: Json, of: Type, namespace: str, path: str, depth: int) -> list[Json]:
        if not isinstance(documents, list):
            raise _error(source, path, "expected an array of fields")
        out: list[Json] = []
        names: set[str] = set()
        for index, document in enumerate(documents):
            try:
                out.append(self._field(source, document, of, names, namespace, f"{path}[{index}]", depth))
            except SchemaError as error:
                self.problems.append(error)
        return out

    def _field(
        self, source: Source, document: Json, of: Type, names: set[str], namespace: str, place: str, depth: int
    ) -> Json:
        if not isinstance(document, dict):
            raise _error(source, place, "expected an object with name and type")
        name = document.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _error(source, _at(place, "name"), f"{name!r} is not a name")
        if name in names:
            raise _error(source, _at(place, "name"), f"field {name!r} is there twice")
        names.add(name)
        if document.get("order", "ascending") not in {"ascending", "descending", "ignore"}:
            raise _error(source, _at(place, "order"), "expected ascending, descending or ignore")
        if not isinstance(document.get(PII, False), bool):
            raise _error(source, _at(place, PII), "expected true or false")
        if "type" not in document:
            raise _error(source, place, "field without 'type'")
        aliases = tuple(_aliases(source, document, place))
        field, text = self.parse(source, document["type"], namespace, _at(place, "type"), depth + 1)
        defaulted = "default" in document
        of.fields.append(Field(name, field, defaulted, document.get("default"), aliases, document.get(PII) is True))
        if defaulted:
            self._defaults.append((source, _at(place, "default"), field, document["default"]))
        return {**document, "type": text}


def _error(source: Source, path: str, problem: str) -> SchemaError:
    return SchemaError(problem, source.path, path, None if path else source.line)


def _unpaired(document: Json) -> str | None:
    """Return the place of a text, or of a key's value, that holds half a surrogate pair. Return None if no text does."""
    left: list[tuple[str, Json]] = [("", document)]
    while left:
        path, value = left.pop()
        if isinstance(value, str) and not _is_text(value):
            return path
        if isinstance(value, list):
            left += [(f"{path}[{index}]", item) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            for key, item in value.items():
                if not _is_text(key):
                    return path
                left.append((_at(path, key), item))
    return None


def _is_text(text: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _name(source: Source, document: dict[str, Json], namespace: str, path: str) -> str:
    name = document.get("name")
    if not isinstance(name, str):
        raise _error(source, path, f"{document['type']} without 'name'")
    place = _at(path, "name")
    if "." not in name:
        own = document.get("namespace", namespace)
        if not isinstance(own, str):
            raise _error(source, _at(path, "namespace"), "expected text")
        if own:
            place = place if "namespace" not in document else _at(path, "namespace")
            name = f"{own}.{name}"
    if not all(_NAME.fullmatch(part) for part in name.split(".")):
        raise _error(source, place, f"{name!r} is not a name")
    if name.rpartition(".")[2] in PRIMITIVES:
        raise _error(source, place, f"{name!r} is the name of a primitive type")
    return name


def _aliases(source: Source, document: dict[str, Json], path: str) -> list[str]:
    aliases = document.get("aliases", [])
    if not isinstance(aliases, list):
        raise _error(source, _at(path, "aliases"), "expected an array of names")
    names: list[str] = []
    for alias in aliases:
        if not isinstance(alias, str) or not all(_NAME.fullmatch(part) for part in alias.split(".")):
            raise _error(source, _at(path, "aliases"), f"{alias!r} is not a name")
        names.append(alias)
    return names


def _enum(source: Source, document: dict[str, Json], name: str, aliases: tuple[str, ...], path: str) -> Type:
    symbols = document.get("symbols")
    if not isinstance(symbols, list):
        raise _error(source, _at(path, "symbols"), "expected an array of names")
    texts: dict[
        str, None
    ] = {}  # not a list: a client that asks the registry for a schema may send thousands of symbols
    for index, symbol in enumerate(symbols):
        place = f"{_at(path, 'symbols')}[{index}]"
        if not isinstance(symbol, str) or not _NAME.fullmatch(symbol):
            raise _error(source, place, f"{symbol!r} is not a name")
        if symbol in texts:
            raise _error(source, place, f"symbol {symbol!r} is there twice")
        texts[symbol] = None
    default = document.get("default", "")
    if not isinstance(default, str) or ("default" in document and default not in texts):
        raise _error(source, _at(path, "default"), f"{default!r} is not one of the symbols")
    return Type("enum", name, symbols=tuple(texts), aliases=aliases, symbol_default=default)


def _check_logical(source: Source, document: dict[str, Json], of: Type, path: str) -> None:
    """Record a known logical type. Refuse one on a base that it cannot have, which Avro would silently ignore."""
    logical = document.get("logicalType")
    if logical is None:
        return
    place = _at(path, "logicalType")
    if not isinstance(logical, str):
        raise _error(source, place, "expected text")
    kinds = LOGICAL.get(logical)
    if kinds is None:
        return  # the specification: implementations must ignore unknown logical types
    if of.kind not in kinds:
        raise _error(source, place, f"{logical} needs {' or '.join(kinds)}, not {of.kind}")
    if of.kind == "fixed" and of.size != _LOGICAL_SIZES.get(logical, of.size):
        raise _error(source, place, f"{logical} needs a fixed of {_LOGICAL_SIZES[logical]} bytes")
    if logical == "decimal":
        precision, scale = document.get("precision"), document.get("scale", 0)
        if not isinstance(precision, int) or isinstance(precision, bool) or precision < 1:
            raise _error(source, _at(path, "precision"), "expected the number of digits, at least 1")
        if not isinstance(scale, int) or isinstance(scale, bool) or not 0 <= scale <= precision:
            raise _error(source, _at(path, "scale"), "expected 0 to the precision")
        if of.kind == "fixed" and precision > math.floor(math.log10(2) * (8 * of.size - 1)):
            raise _error(
                source, _at(path, "precision"), f"a precision of {precision} does not fit in {counted(of.size, 'byte')}"
            )
        of.precision = precision
        of.scale = scale
    of.logical = logical


def _integer_problem(value: Json, bits: int) -> str | None:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        return f"expected a whole number of {bits} bits"
    return None


def _default_problem(of: Type, value: Json, depth: int) -> str | None:  # noqa: C901, PLR0912 - one case for each kind of type
    if depth > DEPTH_MAX:  # compiled, nothing but this keeps the recursion from exhausting the stack
        return f"nested deeper than {DEPTH_MAX} levels"
    match of.kind:
        case "null":
            return None if value is None else "expected null"
        case "boolean":
            return None if isinstance(value, bool) else "expected true or false"
        case "int":
            return _integer_problem(value, 32)
        case "long":
            return _integer_problem(value, 64)
        case "float" | "double":
            return None if isinstance(value, int | float) and not isinstance(value, bool) else "expected a number"
        case "string":
            return None if isinstance(value, str) else "expected text"
        case "bytes" | "fixed":
            if not isinstance(value, str) or any(ord(character) > 0xFF for character in value):
                return "expected text of the characters U+0000 to U+00FF, one for each byte"
            if of.kind == "fixed" and len(value) != of.size:
                return f"expected {counted(of.size, 'byte')}"
            return None
        case "enum":
            return None if value in of.symbols else "expected one of the symbols"
        case "union":
            problem = _default_problem(of.branches[0], value, depth + 1)
            return f"{problem}: a default is of the union's first branch" if problem else None
        case "array":
            if not isinstance(value, list):
                return "expected an array"
            return next(filter(None, (_default_problem(of.branches[0], item, depth + 1) for item in value)), None)
        case "map":
            if not isinstance(value, dict):
                return "expected an object"
            return next(
                filter(None, (_default_problem(of.branches[0], item, depth + 1) for item in value.values())), None
            )
        case _:
            return _record_default_problem(of, value, depth)


def _record_default_problem(of: Type, value: Json, depth: int) -> str | None:
    if not isinstance(value, dict):
        return "expected an object"
    unknown = value.keys() - {field.name for field in of.fields}
    if unknown:
        return f"{of.name} has no field {min(unknown)!r}"
    for field in of.fields:
        if field.name in value:
            problem = _default_problem(field.type, value[field.name], depth + 1)
            if problem:
                return f"{field.name}: {problem}"
        elif not field.defaulted:
            return f"field {field.name!r} of {of.name} is missing"
    return None


def _canonical(of: Type, named: set[str]) -> str:
    """Write the Parsing Canonical Form.

    Spec: Avro 1.12 "Transforming into Parsing Canonical Form"
    """
    if of.name in named:
        return f'"{of.name}"'
    if of.name:
        named.add(of.name)
    match of.kind:
        case "union":
            return f"[{','.join([_canonical(branch, named) for branch in of.branches])}]"
        case "array":
            return f'{{"type":"array","items":{_canonical(of.branches[0], named)}}}'
        case "map":
            return f'{{"type":"map","values":{_canonical(of.branches[0], named)}}}'
        case "fixed":
            return f'{{"name":"{of.name}","type":"fixed","size":{of.size}}}'
        case "enum":
            symbols = ",".join([f'"{symbol}"' for symbol in of.symbols])
            return f'{{"name":"{of.name}","type":"enum","symbols":[{symbols}]}}'
        case "record":
            fields = ",".join([f'{{"name":"{f.name}","type":{_canonical(f.type, named)}}}' for f in of.fields])
            return f'{{"name":"{of.name}","type":"record","fields":[{fields}]}}'
        case _:
            return f'"{of.kind}"'

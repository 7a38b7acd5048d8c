"""Would a reader's schema read what a writer's schema wrote: Avro's schema resolution, with the place of each failure.

Follows "Schema Resolution" of the Avro specification 1.12. Where that leaves a choice: named types match by their full name or an
alias of the reader's, else by their unqualified name; of a reader's union the first branch counts that matches without
promotion, else the first that matches with one; decimals match when the scale is the same and the reader's precision is not
smaller; the root matches whatever its name.

A datum must be one that the writer's schema accepts: the gateway's walker has seen to that.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, final

_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_CONTAINERS: Final = {"array": "[]", "map": "{}"}  # and what stands for their items in a path
_NAMED: Final = ("record", "enum", "fixed")
_FIXED_WIDTH: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a datum is not readable.

    Attributes:
        path: Field names joined by `.`, with `[]` for items of an array and `{}` for values of a map; empty for the root.
        problem: What does not fit there.
    """

    path: str
    problem: str


@final
@dataclass(eq=False, slots=True)
class _Node:
    """A type of a schema; compared by identity, as records may hold themselves."""

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    size: int = 0
    symbols: tuple[str, ...] = ()
    defaulted: bool = False  # an enum with a default
    fields: "list[_Field]" = field(default_factory=list)
    branches: "list[_Node]" = field(default_factory=list)  # of a union; the items of an array or map
    decimal: tuple[int, int] | None = None  # precision and scale

    @property
    def label(self) -> str:
        return self.name or self.kind


@final
@dataclass(slots=True)
class _Field:
    name: str
    aliases: tuple[str, ...]
    defaulted: bool
    node: _Node


@final
class Resolution:
    """How one schema reads what another one wrote.

    Attributes:
        certain: Every datum of the writer's schema is readable; no datum needs to be looked at.
    """

    def __init__(self, writer: str, reader: str) -> None:
        """Resolve two schemas.

        Args:
            writer: Self-contained text, good Avro.
            reader: Likewise.
        """
        self._writer: Final = _parse(json.loads(writer), "", {})
        self._reader: Final = _parse(json.loads(reader), "", {})
        self._certain: Final[dict[tuple[int, int], bool]] = {}
        self.certain: Final = self._is_certain(self._writer, self._reader, root=True)

    def failures(self, datum: bytes) -> list[Failure]:
        """Return why a datum is not readable, each reason once; nothing when it is."""
        if self.certain:
            return []
        found: dict[Failure, None] = {}
        walk = _Walk(datum, found, self._certain)
        walk.read(self._writer, self._reader, "", root=True)
        return list(found)

    def _is_certain(self, writer: _Node, reader: _Node, root: bool = False) -> bool:
        """Tell whether all data of a type are readable. A pair that is being looked at further up counts as such."""
        key = (id(writer), id(reader))
        if key in self._certain:
            return self._certain[key]
        # The greatest fixed point: assume all, and look again as long as an assumption turns out wrong.
        pairs = _reachable(writer, reader, root)
        bad = {pair for pair, local in pairs.items() if local is None}
        while True:
            more = {
                pair for pair, local in pairs.items() if pair not in bad and any(child in bad for child in local or ())
            }
            if not more:
                break
            bad |= more
        self._certain.update({pair: pair not in bad for pair in pairs})
        return self._certain[key]


def _reachable(writer: _Node, reader: _Node, root: bool) -> dict[tuple[int, int], list[tuple[int, int]] | None]:
    """Return each pair of types that data can lead to, with those it leads to at once; None for one that can fail by itself."""
    found: dict[tuple[int, int], list[tuple[int, int]] | None] = {}
    todo = [(writer, reader, root)]
    while todo:
        w, r, at_root = todo.pop()
        key = (id(w), id(r))
        if key in found:
            continue
        children = _children(w, r, at_root)
        found[key] = None if children is None else [(id(a), id(b)) for a, b in children]
        todo += [(a, b, False) for a, b in children or ()]
    return found


def _children(w: _Node, r: _Node, root: bool) -> list[tuple[_Node, _Node]] | None:
    if w.kind == "union":
        return [(branch, r) for branch in w.branches]
    if r.kind == "union":
        chosen = _branch(w, r)
        return None if chosen is None else [(w, chosen)]
    if _mismatch(w, r, root) is not None:
        return None
    match w.kind:
        case "record":
            pairs, missing = _fields(w, r)
            return None if missing else [(f.node, of) for f, of in pairs if of is not None]
        case "enum":
            return [] if r.defaulted or set(w.symbols) <= set(r.symbols) else None
        case "array" | "map":
            return [(w.branches[0], r.branches[0])]
        case "bytes":
            return [] if r.kind == "bytes" else None  # as a string only what is UTF-8
        case _:
            return []


def _mismatch(w: _Node, r: _Node, root: bool = False, place: str = "") -> Failure | None:
    """Tell why a writer's type and a reader's, neither a union, do not match at all; `path` is relative to them.

    As the specification has it, arrays and maps match when their items do, even where there is no item.
    """
    problem: str | None = None
    if w.kind != r.kind:
        plain = w.decimal is None and r.decimal is None
        if not plain or r.kind not in _PROMOTIONS.get(w.kind, ()):
            problem = f"{_shown(w)} is not readable as {_shown(r)}"
    elif w.kind in _CONTAINERS:
        items, readable = w.branches[0], r.branches[0]
        if items.kind != "union" and readable.kind != "union":
            return _mismatch(items, readable, place=place + _CONTAINERS[w.kind])
    elif w.kind in _NAMED and not root and not _names_match(w, r):
        problem = f"{w.name} is not {r.name}"
    elif w.kind == "fixed" and w.size != r.size:
        problem = f"{w.size} bytes are not {r.size}"
    elif w.decimal is not None and r.decimal is not None:
        (precision, scale), (precision_max, reader_scale) = w.decimal, r.decimal
        if scale != reader_scale or precision > precision_max:
            problem = f"{_shown(w)} is not readable as {_shown(r)}"
    return None if problem is None else Failure(place, problem)


def _shown(node: _Node) -> str:
    return node.label if node.decimal is None else f"decimal({node.decimal[0]},{node.decimal[1]})"


def _names_match(w: _Node, r: _Node, full: bool = False) -> bool:
    if w.name == r.name or w.name in r.aliases:
        return True
    return not full and w.name.rpartition(".")[2] == r.name.rpartition(".")[2]


def _branch(w: _Node, union: _Node) -> _Node | None:
    """Choose the branch of a reader's union that reads a writer's type, which is no union."""
    alike = [r for r in union.branches if r.kind == w.kind and _mismatch(w, r) is None]
    for r in alike:
        if w.kind not in _NAMED or _names_match(w, r, full=True):
            return r
    if alike:
        return alike[0]
    return next((r for r in union.branches if _mismatch(w, r) is None), None)


def _fields(w: _Node, r: _Node) -> tuple[list[tuple[_Field, _Node | None]], list[_Field]]:
    """Return each of a writer's fields with the reader's type of it, None where it is skipped; and what the reader misses."""
    readers: dict[str, _Field] = {}
    missing: list[_Field] = []
    written = {f.name for f in w.fields}
    for f in r.fields:
        name = f.name if f.name in written else next((alias for alias in f.aliases if alias in written), None)
        if name is not None and name not in readers:
            readers[name] = f
        elif not f.defaulted:
            missing.append(f)
    return [(f, readers[f.name].node if f.name in readers else None) for f in w.fields], missing


@final
class _Walk:
    """Goes through a datum along both schemas."""

    def __init__(self, data: bytes, found: dict[Failure, None], certain: dict[tuple[int, int], bool]) -> None:
        self._data: Final = data
        self._at = 0
        self._found: Final = found
        self._certain: Final = certain

    def read(self, w: _Node, r: _Node | None, path: str, root: bool = False) -> None:
        """Move behind a value; None for a reader's type skips it."""
        if r is not None and self._certain.get((id(w), id(r))):
            r = None
        if w.kind == "union":
            self.read(w.branches[self._long()], r, path)
            return
        if r is not None and r.kind == "union":
            chosen = _branch(w, r)
            if chosen is None:
                labels = ", ".join(branch.label for branch in r.branches)
                self._fail(path, f"{_shown(w)} is none of the union's: {labels}")
            r = chosen
        if r is not None:
            failure = _mismatch(w, r, root)
            if failure is not None:
                self._fail(path + failure.path, failure.problem)
                r = None
        self._value(w, r, path)

    def _value(self, w: _Node, r: _Node | None, path: str) -> None:
        match w.kind:
            case "record":
                self._record(w, r, path)
            case "enum":
                symbol = w.symbols[self._long()]
                if r is not None and symbol not in r.symbols and not r.defaulted:
                    self._fail(path, f"symbol {symbol} is unknown")
            case "array" | "map":
                items = None if r is None else r.branches[0]
                for _ in self._items():
                    if w.kind == "map":
                        self._bytes()  # the key
                    self.read(w.branches[0], items, path + _CONTAINERS[w.kind])
            case "int" | "long":
                self._long()
            case "bytes" | "string":
                data = self._bytes()
                if w.kind == "bytes" and r is not None and r.kind == "string" and not _is_text(data):
                    self._fail(path, "bytes that are not UTF-8 are not readable as string")
            case _:
                self._at += w.size if w.kind == "fixed" else _FIXED_WIDTH[w.kind]

    def _record(self, w: _Node, r: _Node | None, path: str) -> None:
        if r is None:
            for f in w.fields:
                self.read(f.node, None, path)
            return
        pairs, missing = _fields(w, r)
        for f in missing:
            self._fail(_join(path, f.name), "is not in what was written, and has no default")
        for f, of in pairs:
            self.read(f.node, of, _join(path, f.name))

    def _items(self) -> Iterator[None]:
        count = self._long()
        while count:
            if count < 0:
                count = -count
                self._long()
            for _ in range(count):
                yield
            count = self._long()

    def _bytes(self) -> bytes:
        length = self._long()
        self._at += length
        return self._data[self._at - length : self._at]

    def _long(self) -> int:
        shift = value = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def _fail(self, path: str, problem: str) -> None:
        self._found.setdefault(Failure(path, problem))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _parse(document: Any, namespace: str, names: dict[str, _Node]) -> _Node:  # noqa: ANN401  # parsed JSON of any shape
    match document:
        case str():
            full = document if "." in document or not namespace else f"{namespace}.{document}"
            return names.get(full) or names.get(document) or _Node(document)
        case list():
            return _Node("union", branches=[_parse(branch, namespace, names) for branch in document])
        case {"type": "record" | "error" | "enum" | "fixed"}:
            return _named(document, namespace, names)
        case {"type": "array", "items": items}:
            return _Node("array", branches=[_parse(items, namespace, names)])
        case {"type": "map", "values": values}:
            return _Node("map", branches=[_parse(values, namespace, names)])
        case {"type": "bytes"}:
            return _Node("bytes", decimal=_decimal(document))
        case _:
            return _parse(document["type"], namespace, names)


def _named(document: dict[str, Any], namespace: str, names: dict[str, _Node]) -> _Node:
    name: str = document["name"]
    if "." not in name:
        space = document.get("namespace", namespace)
        name = f"{space}.{name}" if space else name
    namespace = name.rpartition(".")[0]
    aliases = tuple(
        alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in document.get("aliases", ())
    )
    kind = "record" if document["type"] == "error" else document["type"]
    node = _Node(
        kind, name, aliases, document.get("size", 0), tuple(document.get("symbols", ())), "default" in document
    )
    names[name] = node
    if kind == "fixed":
        node.decimal = _decimal(document)
    for entry in document.get("fields", ()):
        of = _parse(entry["type"], namespace, names)
        node.fields.append(_Field(entry["name"], tuple(entry.get("aliases", ())), "default" in entry, of))
    return node


def _decimal(document: dict[str, Any]) -> tuple[int, int] | None:
    if document.get("logicalType") != "decimal":
        return None
    return document["precision"], document.get("scale", 0)

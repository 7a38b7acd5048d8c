"""Avro's schema resolution: whether a reader's schema can read the data of a writer's, with the place of each failure.

Follows "Schema Resolution" of the Avro specification 1.12. Where that leaves a choice:

* named types match by their full name or an alias of the reader's, else by their unqualified name;
* in a reader's union, the branch of the writer's very type wins, for named types the one with the same full name. The next
  choice is the first with the same unqualified name, and the last is the first that the type is promoted to;
* a field of the reader's goes by its own name before any alias of it, and no field that was written is read twice;
* bytes are readable as a string where they are UTF-8, so a schema that wrote bytes is not one that a string always reads;
* a decimal is readable as one with the same scale and no fewer digits. Two other logical types that differ give the same
  bytes different meanings, and neither is readable as the other. If only one side has a logical type, it has no effect.

docs/integrate/schema-compatibility.md lists where other implementations decide otherwise.

Pairs of types (one of the writer's, one of the reader's) make a graph: the pairs that data of the one can lead to. A pair is
*bad* when it fails by itself or leads to a pair that does. Types that hold themselves make cycles, and a cycle alone is no
failure: that is the greatest fixed point.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, final

from maxam.avro.data import DatumReader
from maxam.avro.schema import Field, Type
from maxam.counting import counted

TYPE_MISMATCH: Final = "type-mismatch"
NAME_MISMATCH: Final = "name-mismatch"
FIXED_SIZE_MISMATCH: Final = "fixed-size-mismatch"
LOGICAL_TYPE_MISMATCH: Final = "logical-type-mismatch"
MISSING_DEFAULT: Final = "missing-default"
MISSING_SYMBOLS: Final = "missing-symbols"
MISSING_BRANCH: Final = "missing-branch"
NOT_TEXT: Final = "not-text"
KINDS: Final = (
    TYPE_MISMATCH,
    NAME_MISMATCH,
    FIXED_SIZE_MISMATCH,
    LOGICAL_TYPE_MISMATCH,
    MISSING_DEFAULT,
    MISSING_SYMBOLS,
    MISSING_BRANCH,
    NOT_TEXT,
)

PATHS_MAX: Final = 16  # by which one pair of types is shown: a type used everywhere would repeat itself without end
SYMBOLS_SHOWN_MAX: Final = 10

_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_CONTAINERS: Final = {"array": "[]", "map": "{}"}  # and the sign for their items in a path
_NAMED: Final = ("record", "enum", "fixed")
_FIXED_WIDTH: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


Pair = tuple[int, int]  # a writer's type and a reader's, by `id`


class Failure(NamedTuple):
    """Why a datum is not readable.

    Attributes:
        path: Field names joined by `.`, with `[]` for items of an array and `{}` for values of a map; empty for the root.
        problem: Description of the part that does not fit there.
    """

    path: str
    problem: str


class Incompatibility(NamedTuple):
    """Why not all that a writer's schema can write is readable by a reader's.

    Attributes:
        kind: One of KINDS.
        reader_path: Place in the reader's schema, empty for the root. Field names are joined by `.`. Items of an array are `[]`,
            values of a map `{}`, and branches of a union `<type>`.
        writer_path: Likewise in the writer's schema. For a field that it does not have, the path of the record.
        problem: Description of the part that does not fit there.
        reader_route: The way to `reader_path`: indices of fields and branches, 0 for items.
        writer_route: The way to `writer_path`.
        symbol: Index of the first symbol of the writer's that the reader does not have, 0 for other kinds.
    """

    kind: str
    reader_path: str
    writer_path: str
    problem: str
    reader_route: tuple[int, ...]
    writer_route: tuple[int, ...]
    symbol: int

    def __str__(self) -> str:
        same = self.kind == MISSING_DEFAULT or self.writer_path == self.reader_path
        written = "" if same else f" (written as {self.writer_path or 'the whole'})"
        return f"{self.reader_path or 'the whole'}{written}: {self.problem}"


class _Fault(NamedTuple):
    """A reason why a pair of types fails by itself. `field` and `field_index` identify a field of the reader's."""

    kind: str
    problem: str
    field: str = ""
    field_index: int = -1
    symbol: int = 0


@final
class _Child:
    """A pair of types that another one leads to; an index is -1 on the side that stays where it is."""

    __slots__ = ("reader", "reader_index", "reader_step", "writer", "writer_index", "writer_step")

    def __init__(
        self, writer: Type, reader: Type, writer_index: int, reader_index: int, writer_step: str, reader_step: str
    ) -> None:
        self.writer: Final = writer
        self.reader: Final = reader
        self.writer_index: Final = writer_index
        self.reader_index: Final = reader_index
        self.writer_step: Final = writer_step
        self.reader_step: Final = reader_step

    @property
    def key(self) -> Pair:
        """The pair by the types' `id`."""
        return (id(self.writer), id(self.reader))


@final
class _Pair:
    __slots__ = ("children", "faults")

    def __init__(self) -> None:
        self.faults: Final[list[_Fault]] = []
        self.children: Final[list[_Child]] = []


@final
class _Visit:
    """One way to a pair of types: the one before it and the step from there."""

    __slots__ = ("before", "key", "step")

    def __init__(self, key: Pair, before: "_Visit | None", step: _Child | None) -> None:
        self.key: Final = key
        self.before: Final = before
        self.step: Final = step


@final
class Resolution:
    """How one type reads what another one wrote.

    Attributes:
        certain: Every datum of the writer's type is readable, and no datum needs to be checked.
    """

    __slots__ = ("_any_name", "_bad", "_pairs", "_reader", "_writer", "certain")

    def __init__(self, writer: Type, reader: Type, any_name: bool = False) -> None:
        """Resolve two types.

        Args:
            writer: Must outlive this, with all types in it; so must `reader`.
            reader: Likewise.
            any_name: The two themselves match whatever their names; types in them do not.
        """
        self._writer: Final = writer
        self._reader: Final = reader
        self._any_name: Final = any_name
        self._pairs: Final = _reachable(writer, reader, any_name)
        self._bad: Final = _bad(self._pairs)
        self.certain: Final = (id(writer), id(reader)) not in self._bad

    def incompatibilities(self) -> list[Incompatibility]:
        """Return everything that can be written and not be read. The list is empty if `certain` is True.

        A type that holds itself is shown once. One that is used in many places is shown in at most PATHS_MAX of them.
        """
        if self.certain:
            return []
        found: list[Incompatibility] = []
        shown: dict[Pair, int] = {}
        ways = [_Visit((id(self._writer), id(self._reader)), None, None)]
        for way in ways:  # grows while it is gone through: the shortest ways come first
            shown[way.key] = shown.get(way.key, 0) + 1
            if shown[way.key] > PATHS_MAX:
                continue
            pair = self._pairs[way.key]
            found += [_incompatibility(way, fault) for fault in pair.faults]
            followed = [child for child in pair.children if child.key in self._bad and not _is_on(way, child.key)]
            ways += [_Visit(child.key, way, child) for child in followed]
        found.sort(key=_route)
        return found

    def failures(self, datum: bytes) -> list[Failure]:
        """Return the reasons why a datum is not readable, each once. The list is empty if it is readable.

        Args:
            datum: One that the walker of the writer's schema accepts.
        """
        if self.certain:
            return []
        walk = _Walk(datum, self._bad)
        walk.read(self._writer, self._reader, "", self._any_name)
        return list(walk.found)


def _route(incompatibility: Incompatibility) -> tuple[int, ...]:
    return incompatibility.reader_route


def _is_on(way: _Visit, key: Pair) -> bool:
    visit: _Visit | None = way
    while visit is not None:
        if visit.key == key:
            return True
        visit = visit.before
    return False


def _incompatibility(way: _Visit, fault: _Fault) -> Incompatibility:
    steps: list[_Child] = []
    visit: _Visit | None = way
    while visit is not None:
        if visit.step is not None:
            steps.append(visit.step)
        visit = visit.before
    steps.reverse()
    reader_path = "".join([step.reader_step for step in steps])
    reader_route = [step.reader_index for step in steps if step.reader_index >= 0]
    if fault.field:
        reader_path += f".{fault.field}"
        reader_route.append(fault.field_index)
    return Incompatibility(
        fault.kind,
        reader_path.removeprefix("."),
        "".join([step.writer_step for step in steps]).removeprefix("."),
        fault.problem,
        tuple(reader_route),
        tuple([step.writer_index for step in steps if step.writer_index >= 0]),
        fault.symbol,
    )


def _reachable(writer: Type, reader: Type, any_name: bool) -> dict[Pair, _Pair]:
    """Return each pair of types that data can lead to."""
    found: dict[Pair, _Pair] = {}
    todo = [(writer, reader)]
    root = any_name
    while todo:
        w, r = todo.pop()
        key = (id(w), id(r))
        if key not in found:
            pair = _compare(w, r, root)
            found[key] = pair
            todo += [(child.writer, child.reader) for child in pair.children]
        root = False
    return found


def leading_to(failing: Iterable[Pair], children: Mapping[Pair, Sequence[Pair]]) -> set[Pair]:
    """Return the pairs of types that fail, or lead to one that does. Both arguments are by the types' `id`."""
    parents: dict[Pair, list[Pair]] = {}
    for key, keys in children.items():
        for child in keys:
            parents.setdefault(child, []).append(key)
    todo = list(failing)
    found = set(todo)
    while todo:
        for parent in parents.get(todo.pop(), ()):
            if parent not in found:
                found.add(parent)
                todo.append(parent)
    return found


def _bad(pairs: dict[Pair, _Pair]) -> set[Pair]:
    """Return the pairs that fail, or lead to one that does."""
    failing = [key for key, pair in pairs.items() if pair.faults]
    if not failing:
        return set()
    return leading_to(failing, {key: [child.key for child in pair.children] for key, pair in pairs.items()})


def _compare(w: Type, r: Type, any_name: bool) -> _Pair:
    """Compare two types without the types in them."""
    pair = _Pair()
    if w.kind == "union":
        for index, branch in enumerate(w.branches):
            pair.children.append(_Child(branch, r, index, -1, f"<{branch.label}>", ""))
        return pair
    if r.kind == "union":
        chosen = branch_of(w, r)
        if chosen is None:
            pair.faults.append(_Fault(MISSING_BRANCH, _no_branch(w, r)))
        else:
            index = r.branches.index(chosen)
            pair.children.append(_Child(w, chosen, -1, index, "", f"<{chosen.label}>"))
        return pair
    fault = _mismatch(w, r, any_name)
    if fault is not None:
        pair.faults.append(fault)
        if fault.kind != NAME_MISMATCH:
            return pair  # else it goes on: an alias would repair the name, and nothing else
    _compare_alike(w, r, pair)
    return pair


def _compare_alike(w: Type, r: Type, pair: _Pair) -> None:
    """Compare two types that match, except that their names may differ."""
    match w.kind:
        case "record":
            fields, missing = fields_of(w, r)
            for index, (f, g) in enumerate(fields):
                if g is not None:
                    reader_index = r.fields.index(g)
                    pair.children.append(_Child(f.type, g.type, index, reader_index, f".{f.name}", f".{g.name}"))
            for g in missing:
                pair.faults.append(_Fault(MISSING_DEFAULT, _NOT_WRITTEN, g.name, r.fields.index(g)))
        case "enum":
            unknown = [symbol for symbol in w.symbols if symbol not in r.symbols]
            if unknown and not r.symbol_default:
                pair.faults.append(_Fault(MISSING_SYMBOLS, _unknown(unknown), symbol=w.symbols.index(unknown[0])))
        case "array" | "map":
            step = _CONTAINERS[w.kind]
            pair.children.append(_Child(w.branches[0], r.branches[0], 0, 0, step, step))
        case "bytes" if r.kind == "string":
            pair.faults.append(_Fault(NOT_TEXT, _NOT_UTF_8))
        case "fixed" if w.size != r.size:  # which the names hid
            pair.faults.append(_sizes(w, r))
        case _:
            pass


_NOT_WRITTEN: Final = "is not in what was written, and has no default"
_NOT_UTF_8: Final = "bytes that are not UTF-8 are not readable as string"


def _no_branch(w: Type, union: Type) -> str:
    labels = ", ".join([shown(branch) for branch in union.branches])
    return f"{shown(w)} is none of the union's: {labels}"


def _unknown(symbols: list[str]) -> str:
    if len(symbols) == 1:
        return f"symbol {symbols[0]} is unknown"
    more = f" and {len(symbols) - SYMBOLS_SHOWN_MAX} more" if len(symbols) > SYMBOLS_SHOWN_MAX else ""
    return f"symbols {', '.join(symbols[:SYMBOLS_SHOWN_MAX])}{more} are unknown"


def _sizes(w: Type, r: Type) -> _Fault:
    return _Fault(FIXED_SIZE_MISMATCH, f"{counted(w.size, 'byte')}, not {r.size}")


def _mismatch(w: Type, r: Type, any_name: bool = False) -> _Fault | None:
    """Return why a writer's type and a reader's, neither a union, do not match whatever they hold. None if they match."""
    if w.kind != r.kind:
        if r.kind not in _PROMOTIONS.get(w.kind, ()):
            return _Fault(TYPE_MISMATCH, f"{shown(w)} is not readable as {shown(r)}")
        if w.logical == "decimal" or r.logical == "decimal":  # digits are no text
            return _Fault(LOGICAL_TYPE_MISMATCH, f"{shown(w)} is not readable as {shown(r)}")
    elif w.kind in _NAMED and not any_name and not _names_match(w, r):
        return _Fault(NAME_MISMATCH, f"{w.name} is not {r.name}")
    elif w.kind == "fixed" and w.size != r.size:
        return _sizes(w, r)
    if w.logical and r.logical and (w.logical != r.logical or w.scale != r.scale or w.precision > r.precision):
        return _Fault(LOGICAL_TYPE_MISMATCH, f"{shown(w)} is not readable as {shown(r)}")
    return None


def _deep_mismatch(w: Type, r: Type, any_name: bool, path: str) -> tuple[_Fault, str] | None:
    """Return why two types, neither a union, do not match, and the place. None if they match.

    As the specification has it, arrays and maps match when their items do, even where there is no item.
    """
    while w.kind == r.kind and w.kind in _CONTAINERS:
        path += _CONTAINERS[w.kind]
        w, r = w.branches[0], r.branches[0]
        any_name = False
        if w.kind == "union" or r.kind == "union":
            return None
    fault = _mismatch(w, r, any_name)
    return None if fault is None else (fault, path)


def shown(of: Type) -> str:
    """Return a type's name for people: its full name, its logical type, or its kind."""
    if of.logical == "decimal":
        return f"decimal({of.precision},{of.scale})"
    return of.name or of.logical or of.kind


def _names_match(w: Type, r: Type) -> bool:
    return _is_same_name(w, r) or w.name.rpartition(".")[2] == r.name.rpartition(".")[2]


def _is_same_name(w: Type, r: Type) -> bool:
    return w.name == r.name or w.name in r.aliases


def branch_of(w: Type, union: Type) -> Type | None:
    """Return the branch of a reader's union that reads a writer's type, which is no union. Return None if none does."""
    alike: Type | None = None
    promoted: Type | None = None
    for r in union.branches:
        if r.kind == w.kind:
            if w.kind not in _NAMED or _is_same_name(w, r):
                return r  # even if it does not match further down: no reader would try another one
            if alike is None and _mismatch(w, r) is None:
                alike = r
        elif promoted is None and r.kind in _PROMOTIONS.get(w.kind, ()):
            promoted = r
    return alike or promoted


def fields_of(w: Type, r: Type) -> tuple[list[tuple[Field, Field | None]], list[Field]]:
    """Return pairs of a writer's field and the reader's field of it (None: skipped), and the fields that the reader misses."""
    written = {f.name for f in w.fields}
    readers: dict[str, Field] = {}
    missing: list[Field] = []
    for g in r.fields:
        if g.name in written:
            readers[g.name] = g
    for g in r.fields:
        if g.name in written:
            continue
        name = ""
        for alias in g.aliases:
            if alias in written and alias not in readers:
                name = alias
                break
        if name:
            readers[name] = g
        elif not g.defaulted:
            missing.append(g)
    return [(f, readers.get(f.name)) for f in w.fields], missing


@final
class _Walk:
    """Reads a datum along both schemas."""

    __slots__ = ("_bad", "_reader", "found")

    def __init__(self, data: bytes, bad: set[Pair]) -> None:
        self._reader: Final = DatumReader(data)
        self._bad: Final = bad
        self.found: Final[dict[Failure, None]] = {}

    def read(self, w: Type, r: Type | None, path: str, any_name: bool = False) -> None:
        """Read a value. It is not compared if the reader's type is None."""
        if r is not None and (id(w), id(r)) not in self._bad:
            r = None
        if w.kind == "union":
            self.read(w.branches[self._reader.number()], r, path)
            return
        if r is not None and r.kind == "union":
            chosen = branch_of(w, r)
            if chosen is None:
                self._fail(path, _no_branch(w, r))
            r = chosen
        if r is not None:
            mismatch = _deep_mismatch(w, r, any_name, path)
            if mismatch is not None:
                self._fail(mismatch[1], mismatch[0].problem)
                r = None
        self._value(w, r, path)

    def _value(self, w: Type, r: Type | None, path: str) -> None:
        match w.kind:
            case "record":
                self._record(w, r, path)
            case "enum":
                symbol = w.symbols[self._reader.number()]
                if r is not None and symbol not in r.symbols and not r.symbol_default:
                    self._fail(path, _unknown([symbol]))
            case "array" | "map":
                items = None if r is None else r.branches[0]
                for _ in self._reader.items():
                    if w.kind == "map":
                        self._reader.text()  # the key
                    self.read(w.branches[0], items, path + _CONTAINERS[w.kind])
            case "int" | "long":
                self._reader.number()
            case "bytes" | "string":
                data = self._reader.text()
                if w.kind == "bytes" and r is not None and r.kind == "string" and not _is_text(data):
                    self._fail(path, _NOT_UTF_8)
            case _:
                self._reader.take(w.size if w.kind == "fixed" else _FIXED_WIDTH[w.kind])

    def _record(self, w: Type, r: Type | None, path: str) -> None:
        if r is None:
            for f in w.fields:
                self.read(f.type, None, path)
            return
        fields, missing = fields_of(w, r)
        for g in missing:
            self._fail(_join(path, g.name), _NOT_WRITTEN)
        for f, of in fields:
            self.read(f.type, None if of is None else of.type, _join(path, f.name))

    def _fail(self, path: str, problem: str) -> None:
        self.found.setdefault(Failure(path, problem))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

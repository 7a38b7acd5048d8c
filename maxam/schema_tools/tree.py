"""A schema's self-contained text as a tree that keeps what people wrote: docs, logical types, defaults, aliases.

The walker's tree (`maxam.avro.schema.Type`) knows what bytes may be; this one knows what they mean.
"""

import json
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Any, Final

from maxam.avro.schema import DEPTH_MAX, PRIMITIVES
from maxam.counting import counted
from maxam.errors import SchemaError

EXAMPLE_VALUES_MAX: Final = 5_000  # longer examples are of no use to people

Json = Any  # parsed JSON of any shape


@dataclass(slots=True)
class Member:
    """A record's field. `default` means something only when `defaulted`."""

    name: str
    node: "Node"
    doc: str
    defaulted: bool
    default: Json
    aliases: tuple[str, ...]
    annotations: dict[str, Json]  # what Avro gives no meaning to, such as `pii`


@dataclass(slots=True)
class Node:
    """One type; records that hold themselves make the tree a graph.

    Attributes:
        kind: A primitive's name, or `record`, `enum`, `fixed`, `array`, `map`, `union`.
        name: Full name of a named type, else empty.
        logical: Its logical type, else empty.
        branches: Branches of a union; the only one of an array or map is its items' type.
        default: The default symbol of an enum, else None.
    """

    kind: str
    name: str = ""
    doc: str = ""
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    default: str | None = None
    aliases: tuple[str, ...] = ()
    members: "list[Member]" = field(default_factory=list)
    branches: "list[Node]" = field(default_factory=list)

    @property
    def label(self) -> str:
        """Label that distinguishes it from other branches of a union: the full name, else the kind."""
        return self.name or self.kind

    @property
    def title(self) -> str:
        """How it is called in one line, such as `bytes (decimal 9.2)`, `[null, string]` or `array of egm.Meter_v1`."""
        match self.kind:
            case "union":
                return f"[{', '.join(branch.title for branch in self.branches)}]"
            case "array" | "map":
                return f"{self.kind} of {self.branches[0].title}"
            case _:
                text = self.name and f"{self.kind} {self.name}" if self.kind != "record" else self.name
                text = text or self.kind
                if self.kind == "fixed":
                    text += f" of {counted(self.size, 'byte')}"
                if self.logical == "decimal":
                    return f"{text} (decimal, {counted(self.precision, 'digit')}, {self.scale} of them after the point)"
                return f"{text} ({self.logical})" if self.logical else text


def read_tree(schema_text: bytes) -> Node:
    """Make the tree of a self-contained text that `maxam.avro.schema` has parsed without error."""
    return _Reader().node(json.loads(schema_text), "")


_FIELD_KEYS: Final = frozenset(("name", "type", "doc", "default", "aliases", "order"))


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, Node] = {}

    def node(self, document: Json, namespace: str) -> Node:
        """Read one schema in its surroundings."""
        if isinstance(document, str):
            if document in PRIMITIVES:
                return Node(document)
            name = document if "." in document or not namespace else f"{namespace}.{document}"
            return self._named[name]
        if isinstance(document, list):
            return Node("union", branches=[self.node(branch, namespace) for branch in document])
        kind = document["type"]
        if kind in {"record", "enum", "fixed"}:
            return self._named_type(document, kind, namespace)
        if kind in {"array", "map"}:
            items = self.node(document["items" if kind == "array" else "values"], namespace)
            return Node(kind, branches=[items])
        if kind not in PRIMITIVES:
            return self.node(kind, namespace)
        return self._logical(Node(kind, doc=str(document.get("doc", ""))), document)

    def _named_type(self, document: Json, kind: str, namespace: str) -> Node:
        name = document["name"]
        if "." not in name:
            own = document.get("namespace", namespace)
            name = f"{own}.{name}" if own else name
        node = Node(
            kind,
            name,
            str(document.get("doc", "")),
            size=document.get("size", 0),
            symbols=tuple(document.get("symbols", ())),
            default=document.get("default"),
            aliases=tuple(document.get("aliases", ())),
        )
        self._named[name] = node
        inner = name.rpartition(".")[0]
        for entry in document.get("fields", ()):
            node.members.append(
                Member(
                    entry["name"],
                    self.node(entry["type"], inner),
                    str(entry.get("doc", "")),
                    "default" in entry,
                    entry.get("default"),
                    tuple(entry.get("aliases", ())),
                    {key: value for key, value in entry.items() if key not in _FIELD_KEYS},
                )
            )
        return self._logical(node, document)

    def _logical(self, node: Node, document: Json) -> Node:
        node.logical = document.get("logicalType", "")
        if node.logical == "decimal":
            node.precision = document.get("precision", 0)
            node.scale = document.get("scale", 0)
        return node


_EXAMPLES: Final[dict[tuple[str, str], Json]] = {
    ("int", "date"): "2026-11-21",
    ("int", "time-millis"): "12:00:00.000",
    ("long", "time-micros"): "12:00:00.000000",
    ("long", "timestamp-millis"): "2026-11-21T12:00:00.000Z",
    ("long", "timestamp-micros"): "2026-11-21T12:00:00.000000Z",
    ("long", "timestamp-nanos"): "2026-11-21T12:00:00.000000000Z",
    ("long", "local-timestamp-millis"): "2026-11-21T12:00:00.000",
    ("long", "local-timestamp-micros"): "2026-11-21T12:00:00.000000",
    ("long", "local-timestamp-nanos"): "2026-11-21T12:00:00.000000000",
    ("string", "uuid"): "00000000-0000-4000-8000-000000000000",
    ("fixed", "uuid"): "00000000-0000-4000-8000-000000000000",
    ("fixed", "duration"): {"months": 0, "days": 0, "milliseconds": 0},
}
_PLAIN: Final[dict[str, Json]] = {
    "null": None, "boolean": False, "int": 0, "long": 0, "float": 0.0, "double": 0.0, "bytes": "", "string": "",
}  # fmt: skip


def example(node: Node) -> Json:
    """Make a value of a type as JSON that `encoding.encode_value` takes.

    Of a union the first branch but `null` is shown, so that people see a possible value. A type that holds itself ends with
    `null` or nothing where it can.

    Raises:
        SchemaError: It holds itself without an end, or an example would have more than EXAMPLE_VALUES_MAX values.
    """
    return _Example().value(node, ())


class _Example:
    def __init__(self) -> None:
        self._left = EXAMPLE_VALUES_MAX

    def value(self, node: Node, within: tuple[str, ...]) -> Json:
        """Make a value. `within` holds the names of the records around it."""
        self._left -= 1
        if self._left < 0 or len(within) > DEPTH_MAX:
            raise SchemaError(f"{within[0]}: no example of less than {EXAMPLE_VALUES_MAX} values can be made")
        if node.logical == "decimal" and node.kind in {"bytes", "fixed"}:
            return "0." + "0" * node.scale if node.scale else "0"
        if (node.kind, node.logical) in _EXAMPLES:
            return _EXAMPLES[node.kind, node.logical]
        match node.kind:
            case "record":
                return {member.name: self.value(member.node, (*within, node.name)) for member in node.members}
            case "enum":
                return node.symbols[0] if node.symbols else None
            case "fixed":
                return b64encode(bytes(node.size)).decode()
            case "union":
                return self._branch(node, within)
            case "array":
                return [] if node.branches[0].name in within else [self.value(node.branches[0], within)]
            case "map":
                return {} if node.branches[0].name in within else {"key": self.value(node.branches[0], within)}
            case kind:
                return _PLAIN[kind]

    def _branch(self, node: Node, within: tuple[str, ...]) -> Json:
        order = sorted(node.branches, key=lambda branch: (branch.name in within, branch.kind == "null"))
        branch = order[0]
        value = self.value(branch, within)
        several = sum(branch.kind == "record" for branch in node.branches) > 1
        return {branch.name: value} if several and branch.kind == "record" else value

"""Bodies of the load: text of some length, or schema-true Avro with values that vary."""

import io
import json
import random
from pathlib import Path
from typing import Any, Final, final

import fastavro

from maxam.avro.registry import Registry, load_registry
from maxam.bench.errors import LoadError
from maxam.errors import ConfigurationError

SCHEMAS: Final = Path("schemas").resolve()  # of the clone where this is started: a wheel has none
METER_READING: Final = "egm.EGMMeterReading_v1"
_TRIES: Final = 200  # for a body of just the length that was asked for
_DEPTH_MAX: Final = 16  # of a value; a recursive type ends there
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def text_bodies(number: int, size: int) -> list[bytes]:
    """Return `number` bodies of printable text, all of one size and, from some bytes on, all different."""
    return [(b"%08d " % n * (size // 9 + 1))[:size] for n in range(number)]


def avro_bodies(registry: Registry, type_name: str, destination: str, number: int, size: int | None) -> list[bytes]:
    """Return `number` bodies of the newest minor version of a type, encoded by the rule for `destination`.

    Args:
        registry: Where the type is.
        type_name: Such as `egm.EGMMeterReading_v1`.
        destination: One that the bodies are for, in MaXaM's syntax. Without a rule for it they are bare data.
        number: How many.
        size: Length of each in bytes, reached by lengthening one text in it. None leaves it as it is.

    Raises:
        LoadError: There is no such type, or its bodies cannot have that length or encoding.
    """
    versions = registry.versions(type_name)
    if not versions:
        raise LoadError(f"there is no type {type_name!r} in the schemas. Known: {', '.join(registry.types())}")
    rule = registry.rule_for(destination)
    if rule is not None and rule.schema not in ("", type_name):
        raise LoadError(f"{destination} carries {rule.schema}, not {type_name}; change --topic-template or --type")
    encoding = "datum" if rule is None else rule.encoding
    if encoding == "envelope":
        raise LoadError(f"{type_name} travels in an envelope, which the load cannot make; choose another type")
    head = versions[0].head(encoding)
    maker = _Maker(json.loads(versions[0].schema.text))
    return [head + maker.body(None if size is None else size - len(head)) for _ in range(number)]


def read_schemas(folder: Path) -> Registry:
    """Read a schema folder.

    Raises:
        LoadError: It cannot be used.
    """
    if not folder.is_dir():
        raise LoadError(f"there is no schema folder {folder}; name one with --schemas")
    try:
        return load_registry({str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()})
    except ConfigurationError as error:
        raise LoadError(str(error)) from error


@final
class _Maker:
    """Makes values of one type, the same ones each time it is made."""

    def __init__(self, schema: Any) -> None:  # noqa: ANN401  # JSON
        self._schema: Final = schema
        self._parsed: Final = fastavro.parse_schema(schema)
        self._random: Final = random.Random(1)  # noqa: S311  # no secret
        self._named: Final[dict[str, Any]] = {}
        self._texts: list[tuple[dict[str, Any], str]] = []

    def body(self, size: int | None) -> bytes:
        smallest = 0
        for _ in range(_TRIES):
            self._texts = []
            value = self._value(self._schema, "", 0)
            body = self._encode(value)
            if size is None or len(body) == size:
                return body
            smallest = min(smallest or len(body), len(body))
            if len(body) < size and self._texts:
                holder, key = self._texts[-1]
                # its length takes one byte more from 64 characters on, and so on
                for more in range(size - len(body), size - len(body) - 5, -1):
                    text = holder[key]
                    holder[key] = text + "-" * more
                    body = self._encode(value)
                    if len(body) == size:
                        return body
                    holder[key] = text
        what = (
            f"the smallest was {smallest}"
            if size is not None and smallest > size
            else "it holds no text that could be lengthened so far"
        )
        raise LoadError(f"no body of {size} bytes was found for this type: {what}. Ask for another length")

    def _encode(self, value: object) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._parsed, value)
        return out.getvalue()

    def _value(self, schema: Any, namespace: str, depth: int) -> Any:  # noqa: ANN401  # JSON in, any value out
        if isinstance(schema, list):
            return self._branch(schema, namespace, depth)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, (dict, list)):
            return self._value(kind, namespace, depth)
        below = depth + 1
        match kind:
            case "null":
                return None
            case "boolean":
                return self._random.random() < 0.5
            case "int" | "long":
                return (
                    1_790_000_000_000 if "logicalType" in schema and kind == "long" else self._random.randrange(10**6)
                )
            case "float" | "double":
                return float(self._random.randrange(10**6))
            case "string":
                return "".join(self._random.choices(_LETTERS, k=4))
            case "bytes":
                return self._random.randbytes(4)
            case "fixed":
                return self._random.randbytes(self._name(schema, namespace)["size"])
            case "enum":
                return self._random.choice(self._name(schema, namespace)["symbols"])
            case "array":
                return [self._value(schema["items"], namespace, below) for _ in range(2 if depth < _DEPTH_MAX else 0)]
            case "map":
                return {
                    key: self._value(schema["values"], namespace, below)
                    for key in (("a", "b") if depth < _DEPTH_MAX else ())
                }
            case "record":
                return self._record(self._name(schema, namespace), namespace, below)
            case _:
                known = self._named.get(kind) or self._named[f"{namespace}.{kind}"]
                return self._value(known, known.get("namespace", namespace), depth)

    def _record(self, schema: Any, namespace: str, depth: int) -> dict[str, Any]:  # noqa: ANN401  # JSON
        namespace = schema.get("namespace", namespace)
        made: dict[str, Any] = {}
        for field in schema["fields"]:
            made[field["name"]] = self._value(field["type"], namespace, depth)
            if field["type"] == "string":
                self._texts.append((made, field["name"]))
        return made

    def _branch(self, schemas: list[Any], namespace: str, depth: int) -> Any:  # noqa: ANN401  # JSON in, any value out
        """Return a value of the first branch that is not null, as fastavro wants branches named."""
        if depth >= _DEPTH_MAX and "null" in schemas:
            return None
        branch = next((schema for schema in schemas if schema != "null"), "null")
        value = self._value(branch, namespace, depth)
        if not isinstance(value, dict):
            return value
        name = branch["name"] if isinstance(branch, dict) and "name" in branch else branch
        if not isinstance(name, str):
            return value  # a map
        return (name if "." in name or not namespace else f"{namespace}.{name}", value)

    def _name(self, schema: Any, namespace: str) -> Any:  # noqa: ANN401  # JSON
        name = schema["name"]
        namespace = schema.get("namespace", namespace)
        self._named[name if "." in name or not namespace else f"{namespace}.{name}"] = schema
        return schema

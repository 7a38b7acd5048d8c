"""Print the records of a journal's files as JSON lines, and verify each block: `python records.py FILE...`."""

import io
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def long(file: io.BytesIO) -> int:
    """Return a long: zigzag, the lowest seven bits first."""
    number = shift = 0
    while (byte := file.read(1)[0]) > 127:
        number, shift = number | (byte & 127) << shift, shift + 7
    number |= byte << shift
    return number >> 1 ^ -(number & 1)


def value(file: io.BytesIO, kind: Any) -> Any:  # noqa: ANN401 - an Avro type, and a value of it
    """Return a value of one of the types that the schema of a journal has."""
    kind = kind[long(file)] if isinstance(kind, list) else kind
    kind = {"type": kind} if isinstance(kind, str) else kind
    match kind["type"]:
        case "record":
            return {field["name"]: value(file, field["type"]) for field in kind["fields"]}
        case "array":
            return [value(file, kind["items"]) for count in iter(lambda: long(file), 0) for _ in range(count)]
        case "enum":
            return kind["symbols"][long(file)]
        case "string":
            return file.read(long(file)).decode()
        case "bytes" | "fixed":
            return file.read(kind.get("size") or long(file))
        case "boolean":
            return file.read(1) == b"\1"
        case name:
            return long(file) if name == "long" else None


def records(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the records of a file. Raise ValueError at the first block that is not whole."""
    file = io.BytesIO(data)
    file.seek(4)  # "Obj" and 1
    header = {value(file, "string"): value(file, "bytes") for _ in range(long(file))}
    at = file.seek(1, io.SEEK_CUR)
    sync = file.read(16)
    if int(header["maxam.check"], 16) != zlib.crc32(data[at - 1 : at + 16], zlib.crc32(data[: at - 9])):
        raise ValueError("the header is damaged")
    schema = json.loads(header["avro.schema"])
    chain = int(header["maxam.position"].split()[2], 16) if header["maxam.file"] == b"segment" else 0
    allocated = len(data) % 4096 == 0 and sync[-1] != 0  # the open segment may end in zeros
    last = len(data.rstrip(b"\0")) if allocated else len(data)
    while (start := file.tell()) < last:
        count, end = (long(file), long(file) + file.tell()) if data.find(sync, start) > 0 else (0, 0)
        seed, chain = chain, zlib.crc32(data[start : end - 8], chain)
        if data[end - 8 : end + 16] != chain.to_bytes(4, "big") + seed.to_bytes(4, "big") + sync:
            raise ValueError(f"byte {start}: an unfinished write, or damage")
        yield from (value(file, schema) for _ in range(count))
        file.seek(end + 16)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for record in records(Path(name).read_bytes()):
            sys.stdout.write(json.dumps(record, default=bytes.hex) + "\n")

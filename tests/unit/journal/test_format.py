"""Journal files are as docs/develop/journal-format.md describes them; the reader here is written from that page alone."""

import json
import zlib
from itertools import pairwise
from pathlib import Path

from maxam.journal.encoding import SCHEMA, START, Encoder, end_block, header
from maxam.records import Record
from tests.support.journal_records import SYNC, one_of_each

PAGE = (Path(__file__).parents[3] / "docs" / "develop" / "journal-format.md").read_text()
INCARNATION = "0123456789abcdef"


class Reader:
    """Reads primitive types."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        self.at += count
        assert self.at <= len(self.data)
        return self.data[self.at - count : self.at]

    def long(self) -> int:
        """Return a long."""
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number >> 1 ^ -(number & 1)

    def text(self) -> bytes:
        """Return a string or bytes."""
        return self.take(self.long())

    def field(self, kind: str) -> object:
        """Return a field of a type as the page writes it."""
        if kind.startswith("null or "):
            return self.field(kind.removeprefix("null or ")) if self.long() else None
        match kind:
            case "long" | "enum":
                return self.long()
            case "string" | "bytes":
                return self.text()
            case "boolean":
                return self.take(1) == b"\1"
            case "8 bytes":
                return self.take(8)
            case _:
                raise AssertionError(kind)

    def pairs(self, second: str) -> list[tuple[bytes, object]]:
        """Return an array of pairs that begin with a string."""
        found: list[tuple[bytes, object]] = []
        if count := self.long():
            found = [(self.text(), self.field(second)) for _ in range(count)]
            assert self.long() == 0
        return found


def table(first: str) -> list[list[str]]:
    """Return the rows of the page's table whose head begins with a cell."""
    lines = PAGE.partition(f"\n| {first} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in lines]


def container(batches: list[list[Record]]) -> bytes:
    """Return a finished segment of one block a batch."""
    encoder = Encoder(START, SYNC)
    blocks = b"".join([encoder.encode(batch).data for batch in batches])
    return header(START, SYNC, snapshot=False, incarnation=INCARNATION) + blocks + end_block(encoder.position, SYNC)


def test_a_segment_is_as_the_page_describes_it() -> None:
    """Header, blocks, checks, chain and the fields of each record."""
    records = one_of_each()
    reader = Reader(container([records[:3], records[3:]]))
    assert reader.take(4) == b"Obj\x01"
    entries = [(reader.text().decode(), reader.text(), reader.at) for _ in range(reader.long())]
    assert [name for name, _, _ in entries] == [row[0] for row in table("name") if row[0] != "maxam.floor"]
    assert reader.take(1) == b"\0"
    assert reader.take(16) == SYNC
    at = entries[-1][2]
    assert entries[-1][1] == b"%08x" % zlib.crc32(reader.data[: at - 8] + reader.data[at : reader.at])
    values = {name: value for name, value, _ in entries}
    assert values["maxam.incarnation"] == INCARNATION.encode()
    seed = int(values["maxam.position"].split()[2], 16)

    fields = table("field")
    kinds = {int(row[0]): row[1] for row in table("index")}
    found: list[dict[str, object]] = []
    while reader.at < len(reader.data):
        start = reader.at
        count, size = reader.long(), reader.long()
        end = reader.at + size
        assert reader.data[end - 4 : end] == seed.to_bytes(4, "big")
        seed = zlib.crc32(reader.data[start : end - 8], seed)
        assert reader.data[end - 8 : end - 4] == seed.to_bytes(4, "big")
        for left in reversed(range(count)):
            record: dict[str, object] = {}
            for name, kind, _ in fields:
                if kind == "array":
                    record[name] = reader.pairs("string" if name == "headers" else "long")
                else:
                    record[name] = reader.field(kind)
            assert (record["check"] is None) is (left > 0)
            found.append(record)
        assert reader.at == end
        assert reader.take(16) == SYNC
    assert [record["accepted_at"] for record in found[:-1]] == [record.accepted_at_us for record in records]
    assert kinds[int(str(found[-1]["kind"]))] == "end"
    changes = [
        int(str(record["revision"])) for record in found if kinds[int(str(record["kind"]))] in {"value", "delete"}
    ]
    assert all(after == before + 1 for before, after in pairwise(changes))


def test_the_header_of_a_snapshot_is_as_the_page_describes_it() -> None:
    """A segment has no floor."""
    reader = Reader(header(START, SYNC, snapshot=True, incarnation=INCARNATION, floor=7))
    assert reader.take(4) == b"Obj\x01"
    entries = [(reader.text().decode(), reader.text()) for _ in range(reader.long())]
    assert [name for name, _ in entries] == [row[0] for row in table("name")]
    assert dict(entries)["maxam.floor"] == b"%020d" % 7


def test_the_page_has_each_field_and_kind_of_the_schema() -> None:
    """In the order of the schema."""
    schema = json.loads(SCHEMA)
    assert [row[0] for row in table("field")] == [field["name"] for field in schema["fields"]]
    [kind] = [field["type"] for field in schema["fields"] if field["name"] == "kind"]
    assert [[row[0], row[1]] for row in table("index")] == [[str(at), name] for at, name in enumerate(kind["symbols"])]

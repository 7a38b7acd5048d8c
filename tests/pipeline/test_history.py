"""Typed history: every accepted change once, with the columns that its schema defines, whatever version wrote it."""

import datetime as dt
import json
import random
import shutil
from collections import Counter
from decimal import Decimal
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from maxam.content import long, pack
from maxam.journal.backup import back_up, restore
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.listing import list_segments
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.history import command, splicing
from maxam.pipeline.history.command import update_history
from maxam.pipeline.main import main
from maxam.pipeline.spark import workers
from maxam.records import Change, Validation
from tests.pipeline.typed_journal import (
    DAY_US,
    PUBLISHER,
    START_US,
    Minor,
    delete_change,
    read_table,
    record_type,
    value_change,
    write_journal,
)

# types and values by chance


class Chance:
    """Makes types, younger minors of them, and values, each with what a column must show of it.

    A shown value is None, a leaf, `("record", {field: ...})`, `("array", [...])`, `("map", {...})`, each with the label of its
    type around it: `(label, ...)`.
    """

    def __init__(self, seed: int) -> None:
        """Begin."""
        self.random = random.Random(seed)  # noqa: S311 - a test
        self.names = 0

    def name(self, letter: str) -> str:
        """Make a name that no other has, in no case."""
        self.names += 1
        return f"{letter}{self.names}"

    def type(self, depth: int, union: bool = True) -> Any:
        """Make a type."""
        leaves: list[Any] = ["boolean", "int", "long", "float", "double", "bytes", "string", "null"]
        leaves += [
            {"type": "int", "logicalType": "date"},
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
            {"type": "long", "logicalType": "local-timestamp-micros"},
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            {"type": "long", "logicalType": "of-no-standard"},
        ]
        kind = self.random.choice(["leaf", "leaf", "enum", "fixed", "record", "array", "map", "union"])
        if kind == "union" and union and depth:
            labels = self.random.sample(["int", "string", "boolean", "double", "bytes"], self.random.randint(1, 3))
            branches: list[Any] = [*labels, *(self.record(depth - 1) for _ in range(self.random.randint(0, 2)))]
            if self.random.random() < 0.6:
                branches.insert(self.random.randrange(len(branches) + 1), "null")
            return branches
        if kind == "enum":
            return {"type": "enum", "name": self.name("E"), "symbols": ["A", "B", "C"]}
        if kind == "fixed":
            return {"type": "fixed", "name": self.name("F"), "size": 3}
        if kind in {"array", "map"} and depth:
            return {"type": kind, "items" if kind == "array" else "values": self.type(depth - 1)}
        if kind == "record" and depth:
            return self.record(depth - 1)
        return self.random.choice(leaves)

    def record(self, depth: int) -> dict[str, Any]:
        """Make a record."""
        fields = [{"name": self.name("f"), "type": self.type(depth)} for _ in range(self.random.randint(0, 4))]
        return {"type": "record", "name": self.name("T"), "fields": fields}

    def younger(self, of: Any, depth: int) -> Any:
        """Make what a later minor might have in place of a type."""
        change = self.random.random()
        match of:
            case "int":
                return self.random.choice(["int", "long", "double", ["null", "int"], ["string", "long"]])
            case "string":
                return self.random.choice(["string", "bytes", ["string", "boolean"]])
            case list():
                grown = [self.younger(branch, depth) if isinstance(branch, dict) else branch for branch in of]
                return [*grown, self.record(0)] if change < 0.5 else grown
            case {"type": "record"}:
                fields = []
                for field in of["fields"]:
                    fate = self.random.random()
                    if fate < 0.15:
                        continue
                    made = {"name": field["name"], "type": self.younger(field["type"], depth)}
                    if fate < 0.3:
                        made |= {"name": self.name("f"), "aliases": [field["name"]]}
                    fields.append(made)
                if change < 0.6:
                    fields.insert(
                        self.random.randrange(len(fields) + 1), {"name": self.name("f"), "type": self.type(0)}
                    )
                if change < 0.2:
                    self.random.shuffle(fields)
                return {**of, "fields": fields}
            case {"type": "enum"}:
                return {**of, "symbols": [f"D{len(of['symbols'])}", *of["symbols"]]} if change < 0.5 else of
            case {"type": "array", "items": items}:
                return {"type": "array", "items": self.younger(items, depth)}
            case {"type": "map", "values": values}:
                return {"type": "map", "values": self.younger(values, depth)}
            case _:
                return of

    def value(self, of: Any) -> tuple[Any, Any]:  # noqa: C901, PLR0912 - one case for each kind of type
        """Make a value as fastavro takes it, and as it is to be shown."""
        chance = self.random
        value: Any
        match of:
            case list():
                at = chance.randrange(len(of))
                branch = of[at]
                value, shown = self.value(branch)
                if branch == "null":
                    return None, None
                return (f"t.{branch['name']}" if isinstance(branch, dict) else branch, value), shown
            case {"type": "record", "name": name, "fields": fields}:
                pairs = {field["name"]: self.value(field["type"]) for field in fields}
                return {key: pair[0] for key, pair in pairs.items()}, (
                    name,
                    ("record", {key: pair[1] for key, pair in pairs.items()}),
                )
            case {"type": "array", "items": items}:
                made = [self.value(items) for _ in range(chance.randint(0, 3))]
                return [pair[0] for pair in made], ("array", ("array", [pair[1] for pair in made]))
            case {"type": "map", "values": values}:
                entries = {f"k{i}": self.value(values) for i in range(chance.randint(0, 3))}
                return {k: pair[0] for k, pair in entries.items()}, (
                    "map",
                    ("map", {k: pair[1] for k, pair in entries.items()}),
                )
            case {"type": "enum", "name": name, "symbols": symbols}:
                symbol = chance.choice(symbols)
                return symbol, (name, symbol)
            case {"type": "fixed", "name": name, "size": size}:
                data = chance.randbytes(size)
                return data, (name, data)
            case {"logicalType": "date"}:
                date = dt.date(1970, 1, 1) + dt.timedelta(days=chance.randint(-200_000, 200_000))
                return date, ("date", date)
            case {"logicalType": "timestamp-millis" | "timestamp-micros" as logical}:
                unit = 1000 if logical == "timestamp-millis" else 1
                moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(
                    microseconds=chance.randint(0, 10**9) * unit
                )
                return moment, (logical.replace("-", "_"), moment)
            case {"logicalType": "local-timestamp-micros"}:
                local = dt.datetime(2026, 1, 1) + dt.timedelta(microseconds=chance.randint(0, 10**9))  # noqa: DTZ001 - local it is
                return local, ("local_timestamp_micros", local)
            case {"logicalType": "decimal"}:
                number = Decimal(chance.randint(-(10**9) + 1, 10**9 - 1)).scaleb(-2)
                return number, ("decimal", number)
            case "null":
                return None, None
            case "boolean":
                value = chance.random() < 0.5
            case "int":
                value = chance.randint(-(2**31), 2**31 - 1)
            case "long" | {"type": "long"}:
                value = chance.randint(-(2**53), 2**53)
            case "float" | "double":
                value = chance.randint(-1000, 1000) / 8
            case "bytes":
                value = chance.randbytes(3)
            case "string":
                value = chance.choice(["", "ä", "text"])
            case _:
                raise AssertionError(of)
        return value, (of if isinstance(of, str) else of["type"], value)


KIN = ({"int", "long", "float", "double"}, {"string", "bytes"})


def seen(shown: Any, of: pa.DataType, renamed: dict[str, str]) -> Any:
    """Give what pyarrow must read for a shown value from a column of a type."""
    if shown is None:
        return None
    label, value = shown
    if pa.types.is_struct(of):
        members = [of.field(i).name for i in range(of.num_fields)]
        kin = next((kin for kin in KIN if label in kin), {label})
        at = label if label in members else next((name for name in members if name in kin), None)
        if at is not None:
            inner = of.field(at).type
            return {name: seen_alone(value, inner, renamed) if name == at else None for name in members}
    return seen_alone(value, of, renamed)


def seen_alone(value: Any, of: pa.DataType, renamed: dict[str, str]) -> Any:
    """Give what is read of a value that has a column of its own."""
    match value:
        case ("record", dict() as fields):
            if not pa.types.is_struct(of):
                assert of == pa.bool_()
                assert not fields
                return True
            by_column = {renamed.get(name, name): item for name, item in fields.items()}
            assert set(by_column) <= {of.field(i).name for i in range(of.num_fields)}
            return {
                of.field(i).name: seen(by_column.get(of.field(i).name), of.field(i).type, renamed)
                for i in range(of.num_fields)
            }
        case ("array", list() as items):
            return [seen(item, of.value_type, renamed) for item in items]
        case ("map", dict() as items):
            return [(key, seen(item, of.item_type, renamed)) for key, item in items.items()]
        case str() if pa.types.is_binary(of):
            return value.encode()
        case _:
            return value


def last_names(minors: list[Any]) -> dict[str, str]:
    """Follow all aliases: each name that a field ever had, to its last one."""
    renamed: dict[str, str] = {}

    def follow(of: Any) -> None:
        match of:
            case list():
                for branch in of:
                    follow(branch)
            case dict():
                for field in of.get("fields", ()):
                    for alias in field.get("aliases", ()):
                        renamed[alias] = field["name"]
                    follow(field["type"])
                follow(of.get("items"))
                follow(of.get("values"))
            case _:
                pass

    for minor in minors:
        follow(minor)

    def last(name: str) -> str:
        return last(renamed[name]) if name in renamed else name

    return {name: last(name) for name in renamed}


def random_archive(seed: int, types: int, values: int) -> tuple[list[Minor], list[Change], dict[int, Any]]:
    """Make some types of three minors each, and changes of all of them, mixed."""
    chance = Chance(seed)
    minors: list[Minor] = []
    for number in range(types):
        document = chance.record(3)
        document["name"] = f"t.R{number}_v1"
        for version in range(3):
            minors.append(Minor(document["name"], f"1.{version}", document))
            document = chance.younger(document, 1)
    changes = []
    shown = {}
    for revision in range(1, values + 1):
        minor = chance.random.choice(minors)
        value, shown[revision] = chance.value(minor.document)
        changes.append(value_change(revision, minor, minor.encode(value)))
    return minors, changes, shown


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_every_value_of_every_minor_is_in_its_columns(tmp_path: Path, seed: int) -> None:
    """Types and minors by chance, encoded by fastavro: pyarrow reads each value in the columns of docs/analyse/pipeline-types.md,
    null where its minor has none.
    """
    minors, changes, shown = random_archive(seed, types=6, values=400)
    write_journal(tmp_path / "journal", changes, minors)
    schemas = tmp_path / "schemas"
    for minor in minors:
        path = schemas / minor.name.replace(".", "/") / f"{minor.version}.avsc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(minor.text)
    # what changes by chance is not compatible; older journals hold such types
    modes = [f'[type."{name}"]\ncompatibility = "NONE"\n' for name in sorted({minor.name for minor in minors})]
    (schemas / "registry.toml").write_text("".join(modes))
    report = update_history(None, tmp_path / "journal", tmp_path / "out", schemas=schemas)
    assert report.problems == []
    assert report.last == len(changes)
    rows = 0
    for name in sorted({change.validation.schema for change in changes}):
        table = read_table(tmp_path / "out", name)
        of = table.schema.field("value").type
        renamed = last_names([minor.document for minor in minors if minor.name == name])
        of_type = {change.revision: change for change in changes if change.validation.schema == name}
        assert table["revision"].to_pylist() == list(of_type)
        for row in table.to_pylist():
            change = of_type[row["revision"]]
            assert row["value"] == seen(shown[row["revision"]], of, renamed), change.validation.schema_version
            assert row["schema_version"] == change.validation.schema_version
            assert row["destination"] == change.destination.decode()
            assert row["publisher"] == PUBLISHER.principal
            assert row["accepted_at"] == dt.datetime.fromtimestamp(change.accepted_at_us / 1_000_000, dt.UTC)
            rows += 1
    assert rows == len(changes)


A0 = Minor("t.A_v1", "1.0", record_type("t.A_v1", ("a", "int"), ("s", "string")))
A1 = Minor(
    "t.A_v1", "1.1", record_type("t.A_v1", {"name": "b", "type": "long", "aliases": ["a"]}, ("n", ["null", "int"]))
)
B0 = Minor("t.B_v1", "1.0", record_type("t.B_v1", ("x", "double")))


def some_changes(first: int, last: int, minor: Minor = A0) -> list[Change]:
    """Make changes of two types, one of them of a minor, some deletions and some that no schema judged."""
    changes: list[Change] = []
    for revision in range(first, last + 1):
        at = START_US + revision * DAY_US // 40
        if revision % 10 == 9:
            changes.append(delete_change(revision, "t.A_v1", at))
        elif revision % 10 == 8:
            changes.append(
                Change(revision, at, b"X/raw", False, PUBLISHER, Validation("none", "", "", b""), *pack((), b"raw"))
            )
        elif revision % 3:
            value = {"a": revision, "s": "x"} if minor is A0 else {"b": revision, "n": None}
            changes.append(value_change(revision, minor, minor.encode(value), at, ((b"note", b"of a user"),)))
        else:
            changes.append(value_change(revision, B0, B0.encode({"x": revision / 2}), at))
    return changes


def all_rows(out: Path) -> dict[str, list[Any]]:
    """Read all tables."""
    names = [path.name for path in out.iterdir() if path.name != "_maxam"]
    return {name: read_table(out, name).to_pylist() for name in names}


def test_bit_by_bit_gives_the_same_as_at_once(tmp_path: Path) -> None:
    """Rounds of one segment, runs that end anywhere in a block, an open segment read while it grows: the rows of one run."""
    journal = tmp_path / "journal"
    write_journal(journal, some_changes(1, 60), [A0, B0], segment_bytes=3000, seal=False)
    bits = tmp_path / "bits"
    for until in (1, 5, 30, 31):
        assert update_history(None, journal, bits, until_revision=until, round_bytes=1).last == until
    assert update_history(None, journal, bits).last == 60
    assert sum(update_history(None, journal, bits).rows.values()) == 0
    write_journal(journal, some_changes(61, 80), [A0, B0], segment_bytes=3000)
    report = update_history(None, journal, bits)
    assert (report.first, report.last, sum(report.rows.values())) == (61, 80, 20)
    update_history(None, journal, tmp_path / "once")
    assert all_rows(bits) == all_rows(tmp_path / "once")
    revisions = sorted(row["revision"] for rows in all_rows(bits).values() for row in rows)
    assert revisions == list(range(1, 81))


def test_files_are_named_by_what_is_in_them(tmp_path: Path) -> None:
    """Folder by the UTC date of acceptance, file by its first and last revision; deletions and what has no type included."""
    write_journal(tmp_path / "journal", some_changes(1, 60), [A0, B0])
    update_history(None, tmp_path / "journal", tmp_path / "out")
    for name in ("t.A_v1", "t.B_v1", "untyped"):
        for path in (tmp_path / "out" / name).glob("*/*.parquet"):
            table = pa.parquet.read_table(path, partitioning=None)
            revisions = table["revision"].to_pylist()
            assert path.name == f"{min(revisions):020}-{max(revisions):020}.parquet"
            assert {f"date={at:%Y-%m-%d}" for at in table["accepted_at"].to_pylist()} == {path.parent.name}
    rows = all_rows(tmp_path / "out")
    deleted = [row for row in rows["t.A_v1"] if row["kind"] == "delete"]
    assert [row["revision"] for row in deleted] == [9, 19, 29, 39, 49, 59]
    assert {(row["value"], row["schema_version"]) for row in deleted} == {(None, "")}
    assert [(row["encoding"], row["value"]) for row in rows["untyped"]] == [("none", b"raw")] * 6


def test_a_new_minor_gives_older_files_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    """A renamed and widened field, one removed, one added: every file has the same columns, and no row is lost or doubled."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 40), [A0, B0])
    update_history(None, journal, out)
    before = sorted(path.relative_to(out) for path in out.glob("t.A_v1/*/*.parquet"))
    write_journal(journal, some_changes(41, 80, A1), [A0, A1, B0])
    report = update_history(None, journal, out)
    assert report.rewritten == len(before)
    assert set(before) <= {path.relative_to(out) for path in out.glob("t.A_v1/*/*.parquet")}
    schemas = {pa.parquet.read_schema(path) for path in out.glob("t.A_v1/*/*.parquet")}
    assert len({schema.remove_metadata().to_string() for schema in schemas}) == 1
    rows = read_table(out, "t.A_v1").to_pylist()
    expected = [
        (c.revision, None if c.deleted else {"b": c.revision, "s": None if c.revision > 40 else "x", "n": None})
        for c in [*some_changes(1, 40), *some_changes(41, 80, A1)]
        if c.validation.schema == "t.A_v1"
    ]
    assert [(row["revision"], row["value"]) for row in rows] == expected
    assert spark.read.parquet(str(out / "t.A_v1")).count() == len(expected)
    update_history(None, journal, tmp_path / "once")
    assert all_rows(out) == all_rows(tmp_path / "once")


def test_a_table_that_fell_behind_retention_names_what_is_lost(tmp_path: Path) -> None:
    """It fails, and the table stays as it was; a new table begins with what there is."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 60), [A0, B0], segment_bytes=3000)
    segments = list_segments(journal, "changes")
    assert len(segments) > 3
    update_history(None, journal, out, until_revision=2)
    for segment in segments[:2]:
        Path(segment.path).unlink()
    with pytest.raises(PipelineError, match=f"revisions 3 to {segments[1].last} are lost"):
        update_history(None, journal, out)
    assert sum(len(rows) for rows in all_rows(out).values()) == 2
    report = update_history(None, journal, tmp_path / "new")
    assert (report.first, report.last) == (segments[1].last + 1, 60)


def test_damage_is_told_with_its_place_and_the_rest_is_in_the_table(tmp_path: Path) -> None:
    """A flipped bit, a segment missing in the middle, a torn tail, an unknown schema: each is a problem, and every other
    change is there.
    """
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 140), [A0, B0], segment_bytes=3000, seal=False)
    *sealed, opened = list_segments(journal, "changes")
    flipped, gone = sealed[1], sealed[3]
    data = bytearray(Path(flipped.path).read_bytes())
    data[-400] ^= 1  # after the header
    Path(flipped.path).write_bytes(data)
    Path(gone.path).unlink()
    whole = Path(opened.path).read_bytes()
    Path(opened.path).write_bytes(whole[:-30])
    for path in (journal / "schemas").iterdir():
        if b"t.B_v1" in path.read_bytes():
            path.unlink()
    report = update_history(None, journal, out)
    kinds = Counter(problem.kind for problem in report.problems)
    assert kinds["damaged"] == 1
    assert kinds["missing"] == 1
    assert kinds["torn"] == 1
    assert kinds["unknown-schema"] >= 1
    lost = {
        revision for problem in report.problems if problem.lost for revision in range(problem.first, problem.last + 1)
    }
    damaged = next(problem for problem in report.problems if problem.kind == "damaged")
    assert damaged.path == flipped.path
    assert 0 < damaged.offset < len(data)
    assert flipped.first <= damaged.first <= damaged.last <= flipped.last
    torn = next(problem for problem in report.problems if problem.kind == "torn")
    assert torn.path == opened.path
    rows = all_rows(out)
    assert "t.B_v1" not in rows
    revisions = sorted(row["revision"] for each in rows.values() for row in each)
    assert revisions == [revision for revision in range(1, report.last + 1) if revision not in lost]
    assert set(range(gone.first, gone.last + 1)) <= lost
    assert 133 <= report.last < 140
    again = update_history(None, journal, out)
    assert sum(again.rows.values()) == 0


def test_values_beyond_what_a_column_holds_are_untyped(tmp_path: Path) -> None:
    """A decimal of more digits than its precision, which the gateway accepts: it is reported, its body is kept, and all others are typed."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    minor = Minor("t.D_v1", "1.0", record_type("t.D_v1", ("d", decimal)))
    changes = [value_change(r, minor, minor.encode({"d": Decimal("1.25")})) for r in range(1, 6)]
    changes[2] = value_change(3, minor, b"\x08\x7f\x7f\x7f\x7f")
    write_journal(tmp_path / "journal", changes, [minor])
    report = update_history(None, tmp_path / "journal", tmp_path / "out")
    assert [(problem.kind, problem.first) for problem in report.problems] == [("unreadable", 3)]
    rows = all_rows(tmp_path / "out")
    assert [(row["revision"], row["value"]["d"]) for row in rows["t.D_v1"]] == [
        (r, Decimal("1.25")) for r in (1, 2, 4, 5)
    ]
    assert [(row["revision"], row["value"]) for row in rows["untyped"]] == [(3, b"\x08\x7f\x7f\x7f\x7f")]


def test_a_type_that_holds_itself_shows_its_inner_ones_as_json(tmp_path: Path) -> None:
    """The outermost record has columns, those of its kind within are JSON texts."""
    node = record_type(
        "t.N_v1", ("v", "int"), ("next", ["null", "t.N_v1"]), ("all", {"type": "array", "items": "t.N_v1"})
    )
    minor = Minor("t.N_v1", "1.0", node)
    inner: dict[str, Any] = {"v": 2, "next": None, "all": []}
    body = minor.encode({"v": 1, "next": {"v": 3, "next": inner, "all": []}, "all": [inner, inner]})
    write_journal(tmp_path / "journal", [value_change(1, minor, body)], [minor])
    update_history(None, tmp_path / "journal", tmp_path / "out")
    (row,) = all_rows(tmp_path / "out")["t.N_v1"]
    text = '{"v":2,"next":null,"all":[]}'
    assert row["value"] == {"v": 1, "next": f'{{"v":3,"next":{text},"all":[]}}', "all": [text, text]}


def test_a_table_has_one_writer_and_its_types(tmp_path: Path) -> None:
    """A second writer is refused, and so are other types than those the table is of, unknown ones and foreign folders."""
    from maxam.pipeline.history.table import Table

    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 20), [A0, B0])
    update_history(None, journal, out, types=["t.B_v1"])
    assert list(all_rows(out)) == ["t.B_v1"]
    with pytest.raises(PipelineError, match=r"t\.B_v1"):
        update_history(None, journal, out)
    with pytest.raises(PipelineError, match=r"no type 't\.C_v1'"):
        update_history(None, journal, out, types=["t.C_v1"])
    with Table(out), pytest.raises(PipelineError, match="another process"):
        update_history(None, journal, out, types=["t.B_v1"])
    with pytest.raises(PipelineError, match="not empty"):
        update_history(None, journal, journal)


def test_following_adds_what_is_new_and_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--follow` reads on after each pause, also beside other runs, until it is interrupted; then the table is whole."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 30), [A0, B0], seal=False)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        match len(pauses):
            case 1:
                write_journal(journal, some_changes(31, 50), [A0, B0], seal=False)
            case 2:
                write_journal(journal, some_changes(51, 60), [A0, B0], seal=False)
                update_history(None, journal, out, until_revision=55)
            case 4:
                raise KeyboardInterrupt
            case _:
                pass

    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=sleep))
    words = ["history", "--follow", "--every", "7s", "--journal", str(journal), "--out", str(out)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert [line.partition(":")[0] for line in result.output.splitlines()] == [
        "revisions 1 to 30",
        "revisions 31 to 50",
        "revisions 56 to 60",
    ]
    assert pauses == [7.0] * 4
    revisions = sorted(row["revision"] for rows in all_rows(out).values() for row in rows)
    assert revisions == list(range(1, 61))


def test_many_files_are_made_by_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that processes of this machine share give the same table, and a failure in one of them is reported."""
    monkeypatch.setattr(splicing, "_TASK_BYTES", 1)
    monkeypatch.setattr(workers, "_PROCESS_BYTES", 1)
    journal = tmp_path / "journal"
    write_journal(journal, some_changes(1, 60), [A0, B0], segment_bytes=3000)
    seen: list[tuple[int, int]] = []
    update_history(None, journal, tmp_path / "shared", counted=lambda done, total: seen.append((done, total)))
    assert seen == [(n, len(seen)) for n in range(1, len(seen) + 1)]
    assert len(seen) > 3
    with pytest.raises(ZeroDivisionError):
        workers.on_workers(None, partial(divmod, 1), 3, 3)
    monkeypatch.undo()
    update_history(None, journal, tmp_path / "alone")
    assert all_rows(tmp_path / "shared") == all_rows(tmp_path / "alone")


def test_columns_that_are_computed(tmp_path: Path) -> None:
    """UUIDs and durations of fixed bytes, times and nanoseconds, names that differ in case, empty records, within arrays and
    unions: as docs/analyse/pipeline-types.md defines.
    """
    uuid = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    duration = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    empty = {"type": "record", "name": "Nothing", "fields": []}
    fields: list[tuple[str, Any, bytes, Any]] = [
        ("u", uuid, bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        ("us", {"type": "array", "items": "U"}, b"\2" + bytes(16) + b"\0", ["00000000-0000-0000-0000-000000000000"]),
        ("d", duration, b"\1\0\0\0\2\1\0\0\xff\xff\xff\xff", {"months": 1, "days": 258, "millis": 2**32 - 1}),
        ("dn", ["null", "D"], b"\0", None),
        ("tm", {"type": "int", "logicalType": "time-millis"}, b"\xe8\7", 500),
        ("tu", {"type": "long", "logicalType": "time-micros"}, b"\2", 1),
        ("tn", {"type": "long", "logicalType": "timestamp-nanos"}, b"\1", -1),
        (
            "dec",
            {"type": "fixed", "name": "X", "size": 2, "logicalType": "decimal", "precision": 4},
            b"\xff\xff",
            Decimal(-1),
        ),
        ("wide", {"type": "bytes", "logicalType": "decimal", "precision": 40}, b"\2\1", b"\1"),
        ("Case", "int", b"\2", 1),
        ("case", "int", b"\4", 2),
        ("e", empty, b"", True),
        ("es", {"type": "map", "values": ["null", "Nothing"]}, b"\4\2a\0\2b\2\0", [("a", None), ("b", True)]),
        ("n", "null", b"", None),
        ("only", ["null"], b"\0", None),
        ("two", ["int", "long", "Nothing"], b"\2\6", {"int": None, "long": 3, "Nothing": None}),
    ]
    minor = Minor("t.C_v1", "1.0", record_type("t.C_v1", *((name, of) for name, of, _, _ in fields)))
    body = b"".join(data for _, _, data, _ in fields)
    write_journal(tmp_path / "journal", [value_change(1, minor, body)], [minor])
    report = update_history(None, tmp_path / "journal", tmp_path / "out")
    assert report.problems == []
    (row,) = all_rows(tmp_path / "out")["t.C_v1"]
    assert row["value"] == {name if name != "case" else "case_2": shown for name, _, _, shown in fields}


def gateway_journal(folder: Path, changes: int, body: int, incarnation: str, *, seal: bool) -> None:
    """Go on in a journal, as one life of a gateway with values of its own."""
    journal = Journal.open(folder, OsDisk(), JournalSettings(durable=False, reserve_bytes=0), b"s" * 16, incarnation)
    list(journal.recover())
    minor = Minor("lab.Plain_v1", "1.0", record_type("lab.Plain_v1", ("n", "long")))
    journal.keep_schemas([(sha256(minor.text).hexdigest(), minor.text)])
    for _ in range(changes):
        number = journal.head + 1
        journal.write(journal.encode([value_change(number, minor, long(body + number), at_us=START_US + number)]))
    if seal:
        journal.close()
    else:
        journal.close(seal=False)


@pytest.mark.parametrize("seal", [True, False])
def test_a_table_goes_on_with_its_own_journal_only(tmp_path: Path, seal: bool) -> None:
    """Another gateway's is refused in both directions, at a sealed end and an open one."""
    short, long_one = tmp_path / "short", tmp_path / "long"
    gateway_journal(short, 5, 0, "1" * 16, seal=seal)
    gateway_journal(long_one, 9, 100, "2" * 16, seal=seal)
    tables = {short: tmp_path / "of_short", long_one: tmp_path / "of_long"}
    for journal, out in tables.items():
        update_history(None, journal, out)
        assert update_history(None, journal, out).rows == {}
    for journal, other in ((short, long_one), (long_one, short)):
        before = sorted(path for path in tables[journal].rglob("*.parquet"))
        for restored in (False, True):
            with pytest.raises(PipelineError, match="Name the table's journal"):
                update_history(None, other, tables[journal], restored=restored)
        assert sorted(path for path in tables[journal].rglob("*.parquet")) == before
    gateway_journal(short, 2, 0, "3" * 16, seal=not seal)
    assert update_history(None, short, tables[short]).last == 7
    assert read_table(tables[short], "lab.Plain_v1")["revision"].to_pylist() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("cut", [1, 40, None])
def test_a_torn_tail_is_reported_and_read_later(tmp_path: Path, cut: int | None) -> None:
    """The problem is reported, nothing is new, and another journal is refused; what a gateway writes afterwards is added."""
    journal, longer, other, out = (tmp_path / name for name in ("journal", "longer", "other", "table"))
    gateway_journal(journal, 5, 0, "1" * 16, seal=False)
    gateway_journal(longer, 6, 0, "1" * 16, seal=False)
    gateway_journal(other, 6, 100, "2" * 16, seal=False)
    update_history(None, journal, out)
    segment, more_of, foreign = (Path(list_segments(one, "changes")[0].path) for one in (journal, longer, other))
    whole, more = segment.read_bytes(), more_of.read_bytes()
    assert more.startswith(whole)
    segment.write_bytes(whole + b"\xff" * 100 if cut is None else more[:-cut])
    foreign.write_bytes(foreign.read_bytes() + b"\xff")
    for _ in range(2):
        report = update_history(None, journal, out)
        assert [(one.kind, one.offset, one.lost) for one in report.problems] == [("torn", len(whole), False)]
        assert (report.last, report.rows) == (5, {})
    with pytest.raises(PipelineError, match="Name the table's journal"):
        update_history(None, other, out)
    segment.write_bytes(more)
    assert update_history(None, journal, out).last == 6


def test_a_follower_refuses_what_cannot_be_followed(tmp_path: Path) -> None:
    """A type that the journal does not know, and a table of other types."""
    journal, out = tmp_path / "journal", tmp_path / "table"
    gateway_journal(journal, 5, 0, "1" * 16, seal=False)
    update_history(None, journal, out)
    for types in ("lab.Other_v1", "lab.Plain_v1"):
        words = ["history", "--follow", "--journal", str(journal), "--out", str(out), "--types", types]
        result = CliRunner().invoke(main, words)
        assert (result.exit_code, type(result.exception)) == (1, SystemExit)


def test_an_open_segment_without_a_change_adds_nothing(tmp_path: Path) -> None:
    """As a gateway has it that was just started: the sealed ones before are in the table."""
    journal, out = tmp_path / "journal", tmp_path / "table"
    gateway_journal(journal, 5, 0, "1" * 16, seal=True)
    update_history(None, journal, out)
    gateway_journal(journal, 0, 0, "1" * 16, seal=False)
    report = update_history(None, journal, out)
    assert (report.last, report.rows, report.problems) == (5, {}, [])


def test_a_restored_journal_is_gone_on_with_when_asked_for(tmp_path: Path) -> None:
    """Only if the table is not ahead of the backup: else it holds revisions that mean something else now."""
    journal, copy, out = tmp_path / "journal", tmp_path / "restored", tmp_path / "table"
    gateway_journal(journal, 5, 0, "1" * 16, seal=False)
    update_history(None, journal, out)
    back_up(str(journal), str(tmp_path / "backups"), "1", OsDisk())
    gateway_journal(journal, 2, 0, "1" * 16, seal=False)
    shutil.copytree(out, tmp_path / "ahead")
    update_history(None, journal, tmp_path / "ahead")
    restore(f"{tmp_path}/backups/1", str(copy), OsDisk())
    gateway_journal(copy, 4, 100, "2" * 16, seal=False)
    with pytest.raises(PipelineError, match="--continue-after-restore"):
        update_history(None, copy, out)
    assert update_history(None, copy, out, restored=True).last == 9
    assert update_history(None, copy, out).last == 9
    with pytest.raises(PipelineError, match="new table"):
        update_history(None, copy, tmp_path / "ahead", restored=True)
    values = read_table(out, "lab.Plain_v1")["value"].to_pylist()
    assert [one["n"] for one in values] == [1, 2, 3, 4, 5, 106, 107, 108, 109]


def test_a_table_of_an_older_release_is_compared_by_its_last_row(tmp_path: Path) -> None:
    """It kept neither incarnation nor check: the journal that has the same change goes on, another does not."""
    journal, other, out = tmp_path / "journal", tmp_path / "other", tmp_path / "table"
    gateway_journal(journal, 5, 0, "1" * 16, seal=True)
    gateway_journal(other, 4, 0, "2" * 16, seal=True)
    update_history(None, journal, out)
    kept = json.loads((out / "_maxam/state.json").read_text())
    older = {name: value for name, value in kept.items() if name not in {"end_chain", "incarnation"}}
    (out / "_maxam/state.json").write_text(json.dumps(older))
    with pytest.raises(PipelineError, match="ends with revision 4"):
        update_history(None, other, out)
    shifted = Journal.open(other, OsDisk(), JournalSettings(durable=False, reserve_bytes=0), b"s" * 16)
    list(shifted.recover())
    minor = Minor("lab.Plain_v1", "1.0", record_type("lab.Plain_v1", ("n", "long")))
    shifted.write(shifted.encode([value_change(5, minor, long(5), at_us=START_US + 77)]))
    shifted.close()
    with pytest.raises(PipelineError, match="is not the one in the table"):
        update_history(None, other, out)
    update_history(None, journal, out)
    kept = json.loads((out / "_maxam/state.json").read_text())
    assert kept["incarnation"] == "1" * 16


def test_a_table_that_begins_late_says_so(tmp_path: Path) -> None:
    """Changes that retention removed before its first run are no loss of the table's, but reported."""
    journal = tmp_path / "journal"
    for _ in range(2):
        gateway_journal(journal, 5, 0, "1" * 16, seal=True)
    Path(list_segments(journal, "changes")[0].path).unlink()
    report = update_history(None, journal, tmp_path / "table")
    assert [(one.kind, one.first, one.last, one.lost) for one in report.problems] == [("expired", 1, 5, False)]
    assert (report.first, report.last) == (6, 10)


def test_a_folder_that_is_no_table_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """The journal itself, a folder with other files and a file are refused, and nothing is written there."""
    journal, other, file = tmp_path / "journal", tmp_path / "other", tmp_path / "file"
    write_journal(journal, some_changes(1, 5), [A0, B0])
    other.mkdir()
    (other / "notes.txt").touch()
    file.touch()
    before = sorted(tmp_path.rglob("*"))
    for out in (journal, other, file):
        with pytest.raises(PipelineError, match="Give another"):
            update_history(None, journal, out)
    assert sorted(tmp_path.rglob("*")) == before

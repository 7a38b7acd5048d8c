"""The checks of the data source's writer before it publishes, and how rows of a table become SENDs."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from maxam.pipeline.errors import PipelineError
from maxam.pipeline.publish.publisher import Counts, Rejected, Row
from maxam.pipeline.spark.sink import MaxamStreamWriter, MaxamWriter, _Numbering, _rows, check_columns, read_options

GOOD = {"gateway": "localhost:61614", "certificate": "/c", "key": "/k", "ca": "/a"}


def _ddl(text: str) -> StructType:
    """Make a schema without Spark, which alone reads its own language."""
    known = {
        "string": "string",
        "binary": "binary",
        "boolean": "boolean",
        "long": "long",
        "int": "integer",
        "double": "double",
        "headers": {
            "type": "array",
            "containsNull": True,
            "elementType": {
                "type": "struct",
                "fields": [
                    {"name": name, "type": "string", "nullable": True, "metadata": {}} for name in ("name", "value")
                ],
            },
        },
    }
    fields = [
        {"name": name, "type": known[kind], "nullable": True, "metadata": {}}
        for name, kind in (pair.split() for pair in text.split(","))
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"gateway": "localhost"}, "gateway must be HOST:PORT of the STOMP listener, found 'localhost'"),
        ({"gateway": "localhost:0"}, "gateway must be HOST:PORT"),
        ({"key": ""}, "the option key is missing"),
        ({"widnow": "5"}, "unknown option widnow; writing knows gateway"),
        ({"window": "many"}, "window must be a number from 1 to 1e\\+06, found 'many'"),
        ({"retrySeconds": "0"}, "retrySeconds must be a number from 0.1"),
        ({"rejects": "ignore"}, "rejects must be fail or report, found 'ignore'"),
        ({"rejects": "report"}, "needs the option report"),
        ({"source": "s" * 129}, "source must have 1 to 128 bytes"),
    ],
)
def test_a_wrong_option_is_named(change: dict[str, str], text: str) -> None:
    """Each option that is missing, unknown or malformed is refused with its name and what was expected."""
    with pytest.raises(PipelineError, match=text):
        read_options(GOOD | change)


def test_options_are_read_whatever_their_case() -> None:
    """Names are not case-sensitive, IPv6 addresses stand in brackets, and what Spark adds of its own is skipped."""
    options = read_options(GOOD | {"gateway": "[::1]:1", "WINDOW": "7", "checkName": "n", "checkpointLocation": "x"})
    assert (options.target.address, options.target.port) == ("::1", 1)
    assert (options.target.window, options.target.check_name, options.rejects) == (7, "n", "fail")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("destination string", "column body \\(binary\\) is missing"),
        ("destination string,body string", "column body: must be binary, found string"),
        ("destination string,body binary,revision long", "column revision: not known"),
        ("destination string,body binary,source_revision double", "source_revision: must be long, found double"),
        ("destination string,body binary,headers string", "headers: must be array<struct<name"),
    ],
)
def test_a_wrong_column_is_named(schema: str, text: str) -> None:
    """Each column that is missing, unknown or of another type is refused with what it must be."""
    with pytest.raises(PipelineError, match=text):
        check_columns(_ddl(schema), None)


def test_a_source_needs_an_order_of_the_caller() -> None:
    """The option `source` without the column `source_revision` is refused: a second run would be taken for the first."""
    plain = _ddl("destination string,body binary")
    with pytest.raises(PipelineError, match="column source_revision"):
        check_columns(plain, "mine")
    check_columns(_ddl("destination string,body binary,headers headers,delete boolean,source_revision int"), "mine")


@pytest.mark.parametrize("writer", [MaxamWriter, MaxamStreamWriter])
def test_nothing_can_be_overwritten(writer: type[MaxamWriter | MaxamStreamWriter]) -> None:
    """Publishing takes nothing away, so that mode `overwrite` is refused."""
    with pytest.raises(PipelineError, match="append"):
        writer(_ddl("destination string,body binary"), GOOD, True)


def test_rows_become_sends_and_those_that_cannot_are_refused() -> None:
    """Null and empty bodies delete, unless a column `delete` decides; reserved headers go, first repeats win."""
    refused: list[Rejected] = []
    batch = pa.RecordBatch.from_pylist(
        [
            {"destination": "X/a", "body": b"1", "delete": None, "source_revision": 5},
            {"destination": "X/a", "body": None, "delete": True, "source_revision": 6},
            {"destination": "X/a", "body": b"", "delete": False, "source_revision": 7},
            {"destination": "X/a", "body": b"1", "delete": True, "source_revision": 8},
            {"destination": None, "body": b"1", "delete": False, "source_revision": 9},
            {"destination": "X/a", "body": b"1", "delete": False, "source_revision": None},
            {"destination": "X/a", "body": b"1", "delete": False, "source_revision": -1},
        ]
    )
    rows = list(_rows(iter([batch]), _Numbering("s", None), refused.append))
    assert rows == [[Row(5, "X/a", b"1"), Row(6, "X/a", b"")]]
    assert [row.result for row in refused] == [
        "empty-body",
        "delete-with-body",
        "no-destination",
        "bad-source-revision",
        "bad-source-revision",
    ]
    names = ["b", "source", "b", "receipt", "a", "content-length"]
    headers = [{"name": name, "value": f"{place}"} for place, name in enumerate(names)]
    batches = [
        pa.RecordBatch.from_pylist([{"destination": "X/a", "body": None, "headers": headers}]),
        pa.RecordBatch.from_pylist([{"destination": "X/b", "body": b"", "headers": None}]),
    ]
    [[one], [other]] = _rows(iter(batches), _Numbering("s", 100), refused.append)
    assert (one.number, one.body) == (100, b"")
    assert list((one.headers or {}).items()) == [("b", "0"), ("a", "4")]
    assert other == Row(101, "X/b", b"")


def test_counts_add_up() -> None:
    """Sums of tasks keep what was rejected apart by disposition and result, and a few examples."""
    total = Counts()
    for place in range(10):
        one = Counts(accepted=1, superseded=2)
        one.reject(Rejected(place, "X/a", "rejected-invalid", "schema-mismatch", "r"))
        total.add(one)
    assert str(total) == "10 accepted, 20 superseded, 10 rejected-invalid schema-mismatch"
    assert [row.number for row in total.examples] == [0, 1, 2, 3, 4]


def test_a_relative_file_is_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that is named relatively is found where the options are read, or refused there, not by a task."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineError, match=r"key: .*'me.key'"):
        read_options({**GOOD, "key": "me.key"})
    (tmp_path / "me.key").write_text("")
    options = read_options({**GOOD, "key": "me.key", "report": "rejected", "rejects": "report"})
    assert (options.target.key, options.report) == (str(tmp_path / "me.key"), str(tmp_path / "rejected"))

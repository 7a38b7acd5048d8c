"""docs/examples/journal reads a journal's files as the project does, with Python alone, and notices each wrong byte."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from maxam.bench.archive import write_archive
from maxam.journal.dump import read_records
from maxam.journal.encoding import START, Encoder, end_block, header
from maxam.journal.listing import Problem
from maxam.records import Change
from tests.support.journal_records import SYNC, one_of_each

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "journal" / "records.py"
records: Callable[[bytes], Iterator[dict[str, Any]]] = runpy.run_path(str(EXAMPLE))["records"]


def container() -> bytes:
    """Return a finished file of two blocks."""
    encoder = Encoder(START, SYNC)
    each = one_of_each()
    blocks = b"".join([encoder.encode(batch).data for batch in (each[:3], each[3:])])
    return header(START, SYNC, snapshot=False, incarnation="0" * 16) + blocks + end_block(encoder.position, SYNC)


@pytest.mark.slow
def test_it_reads_what_the_project_reads(tmp_path: Path) -> None:
    """Each change of an archive, from the command line, in order."""
    write_archive(tmp_path, records=2_000, topics=50)
    paths = sorted((tmp_path / "segments").glob("*.avro"))
    done = subprocess.run([sys.executable, EXAMPLE, *paths], capture_output=True, check=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [one[1] for one in read_records(tmp_path) if not isinstance(one, Problem) and isinstance(one[1], Change)]
    assert [
        (one["revision"], one["kind"], one["destination"], one["body"], one["accepted_at"], one["schema"])
        for one in found
        if one["kind"] in ("value", "delete")
    ] == [
        (
            one.revision,
            "delete" if one.deleted else "value",
            one.destination.decode(),
            one.body.hex(),
            one.accepted_at_us,
            one.validation.schema,
        )
        for one in expected
    ]


def test_it_reads_each_kind_of_record() -> None:
    """The records of both blocks, and the end."""
    found = list(records(container()))
    assert len(found) == len(one_of_each()) + 1
    assert found[-1]["kind"] == "end"


def test_room_that_is_allocated_ahead_is_no_damage() -> None:
    """An open segment may end in zeros, up to a multiple of 4,096 bytes."""
    data = container()
    assert list(records(data.ljust(-len(data) % 4096 + len(data), b"\0"))) == list(records(data))
    with pytest.raises(ValueError, match="byte"):
        list(records(data + b"\0"))


@pytest.mark.slow
def test_it_notices_each_wrong_byte_and_each_cut() -> None:
    """No change of one byte is overlooked, and a cut file ends with an error unless the cut is between two blocks."""
    data = container()
    whole = 0
    for at in range(4, len(data)):
        changed = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
        with pytest.raises((ValueError, LookupError)):
            list(records(changed))
        try:
            list(records(data[:at]))
            whole += 1
        except (ValueError, LookupError):
            pass
    assert whole == 3  # after the header, and after each block

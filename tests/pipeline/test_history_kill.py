"""The typed history survives `kill -9`: a process is killed at each point where it matters."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from maxam.compiled import child_environment
from maxam.pipeline.history.command import Form, update_history
from tests.pipeline.test_history import A0, A1, B0, all_rows, some_changes
from tests.pipeline.typed_journal import write_journal

ROOT = Path(__file__).parents[2]
POINTS = ("splicing", "writing", "listing", "moving", "stating", "forgetting")


def rows(out: Path) -> dict[str, list[Any]]:
    """Return the rows of each type: those of its Delta log, if it has one."""
    found = all_rows(out)
    for name in found:
        if (out / name / "_delta_log").is_dir():
            found[name] = (
                DeltaTable(out / name).to_pyarrow_table().sort_by("revision").drop_columns(["date"]).to_pylist()
            )
        else:
            found[name] = [{key: value for key, value in row.items() if key != "date"} for row in found[name]]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_no_row_is_lost_or_doubled_by_kills(tmp_path: Path, form: Form) -> None:
    """One run after the other is killed on the same table. A reader sees no row twice after each, and the table ends as that of one run.

    The runs have rounds to do, and a schema version for which the columns of older files are widened.
    """
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 100), [A0, B0], segment_bytes=4000, seal=False)
    update_history(None, journal, out, until_revision=20, form=form)
    write_journal(journal, some_changes(101, 200, A1), [A0, A1, B0], segment_bytes=4000, seal=False)
    for point in (*POINTS, *(["logging"] if form == "delta" else [])):
        command = [sys.executable, "-m", "tests.pipeline.history_process", str(journal), str(out), point, "8000", form]
        ended = subprocess.run(
            command, cwd=ROOT, env=child_environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        assert ended.returncode == -signal.SIGKILL, (point, ended.stderr.decode()[-2000:])
        seen = sorted(row["revision"] for each in rows(out).values() for row in each)
        assert len(seen) == len(set(seen)), point
    update_history(None, journal, out)
    update_history(None, journal, tmp_path / "once")
    assert rows(out) == rows(tmp_path / "once")
    revisions = sorted(row["revision"] for each in rows(out).values() for row in each)
    assert revisions == list(range(1, 201))

"""The typed history survives `kill -9`: a process is killed at each point where it matters."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from maxam.compiled import child_environment
from maxam.pipeline.history.command import update_history
from tests.pipeline.test_history import A0, A1, B0, all_rows, some_changes
from tests.pipeline.typed_journal import write_journal

ROOT = Path(__file__).parents[2]
POINTS = ("splicing", "writing", "listing", "moving", "stating", "forgetting")


@pytest.mark.slow
def test_no_row_is_lost_or_doubled_by_kills(tmp_path: Path) -> None:
    """One run after the other is killed on the same table. A reader sees no row twice after each, and the table ends as that of one run.

    The runs have rounds to do, and a schema version for which the columns of older files are widened.
    """
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 100), [A0, B0], segment_bytes=4000, seal=False)
    update_history(None, journal, out, until_revision=20)
    write_journal(journal, some_changes(101, 200, A1), [A0, A1, B0], segment_bytes=4000, seal=False)
    for point in POINTS:
        command = [sys.executable, "-m", "tests.pipeline.history_process", str(journal), str(out), point, "8000"]
        ended = subprocess.run(
            command, cwd=ROOT, env=child_environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        assert ended.returncode == -signal.SIGKILL, (point, ended.stderr.decode()[-2000:])
        seen = sorted(row["revision"] for rows in all_rows(out).values() for row in rows)
        assert len(seen) == len(set(seen)), point
    update_history(None, journal, out)
    update_history(None, journal, tmp_path / "once")
    assert all_rows(out) == all_rows(tmp_path / "once")
    revisions = sorted(row["revision"] for rows in all_rows(out).values() for row in rows)
    assert revisions == list(range(1, 201))

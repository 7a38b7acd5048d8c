"""The benchmark of the pipeline measures what it claims. No test checks how fast anything is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from maxam.bench.archive import write_archive
from maxam.bench.bodies import SCHEMAS
from maxam.bench.errors import LoadError
from maxam.compiled import child_environment, core
from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import tables
from tests.benchmarks.pipeline import Result, measure, print_results
from tests.support.patience import PATIENCE_S

RECORDS = 2000


@pytest.mark.slow
def test_jobs_are_measured_on_an_archive_that_is_kept(tmp_path: Path) -> None:
    """Each result has time, records and the memory of Java and Python; the archive stays and is used again."""
    command = [sys.executable, benchmarks.__file__, "pipeline", "--records", str(RECORDS), "--once", "--json"]
    command += ["--only", "history", "--only", "scan", "--folder", str(tmp_path), "--master", "local[2]"]
    done = subprocess.run(
        command,
        cwd=SCHEMAS.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["measurement"] for result in results] == ["history", "scan"]
    for result in results:
        assert (result["records"], result["where"], result["core"]) == (RECORDS, "local[2]", core())
        assert result["took_s"] > 0
        assert result["cpu_s"] > 0
        assert (result["java_mib"] > 100) == (result["measurement"] == "scan")  # the only one that needs Java
        assert result["python_mib"] > 20
    assert done.stderr.count("writing an archive") == 1
    assert (tmp_path / str(RECORDS) / "segments").is_dir()


@pytest.mark.slow
def test_a_scan_that_is_short_of_records_is_a_failure(tmp_path: Path) -> None:
    """A damaged archive gives no figures, but what is wrong."""
    write_archive(tmp_path, RECORDS, topics=50)
    (segment, *_) = sorted((tmp_path / "segments").iterdir())
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(Exception, match="damaged"):
        measure("examine", tmp_path, RECORDS, "local[1]")


def test_the_table_tells_what_twice_the_data_took(capsys: pytest.CaptureFixture[str]) -> None:
    """Medians of runs, changes per second, and the ratio of the times for N and 2N."""
    runs = [("scan", 1000, 1.0), ("scan", 1000, 3.0), ("scan", 1000, 2.0), ("scan", 2000, 5.0), ("latest", 2000, 1.0)]
    results = [
        Result(name, records, "local[*]", "compiled", took_s, 2 * took_s, 100, 50) for name, records, took_s in runs
    ]
    print_results(Console(width=120), results)
    told = capsys.readouterr().out
    assert "compiled core" in told
    rows = [line.split() for line in told.splitlines()]
    assert ["scan", "1,000", "local[*]", "2.00", "500", "4.0", "100", "50"] in rows
    assert ["scan", "2,000", "local[*]", "5.00", "400", "10.0", "x", "2.50", "100", "50"] in rows
    assert ["latest", "2,000", "local[*]", "1.00", "2,000", "2.0", "100", "50"] in rows


OUTLIVES = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.5: pass"], start_new_session=True)
"""


def test_a_command_counts_with_all_that_it_starts() -> None:
    """The processor time of a process that outlives its command counts; a command that fails is an error with its output."""
    used = tables.measure("a job", "us", [sys.executable, "-c", OUTLIVES])
    assert used.cpu_s >= 0.5
    assert used.took_s > 0
    assert used.peak_mib > 0
    with pytest.raises(LoadError, match="broken"):
        tables.measure("a job", "us", [sys.executable, "-c", "raise SystemExit('broken')"])

"""Compare the pipeline's commands with DuckDB and plain Spark on one archive, in one run: `make pipeline-compare`.

Each job is a whole command in a process of its own. Processor time is that of all its processes, Java's start included. Memory is the
most that all of them held together. DuckDB and plain Spark do not decode bodies, and verify no block of the journal.
"""

import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
from rich import box
from rich.console import Console
from rich.table import Table

from maxam.bench.archive import write_archive
from maxam.bench.errors import LoadError
from maxam.bench.output import console
from maxam.compiled import core
from tests.benchmarks.pipeline import child_paths, held_mib

_LOOK_S: Final = 0.1  # between two samples of memory
_ERROR_BYTES: Final = 4000  # of the output of a failed job
_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER: Java outlives the Python that started it, and counts too
_MAXAM: Final = "import sys; from maxam.programs import pipeline; sys.argv[0] = 'maxam-pipeline'; pipeline()"

_DUCKDB: Final = """
import importlib.util, sys
from pathlib import Path

import duckdb

journal, out, query = sys.argv[1:]
package = Path(importlib.util.find_spec("duckdb_extension_avro").origin).parent
database = duckdb.connect(config={"allow_unsigned_extensions": "true"})
database.execute(f"LOAD '{next(package.rglob('avro.duckdb_extension'))}'")
database.execute(query.format(changes=f"read_avro('{journal}/segments/*.avro')", out=out))
"""
_DUCKDB_LATEST: Final = (
    "COPY (SELECT * FROM (SELECT destination, max(revision) AS revision, arg_max((kind, accepted_at, publisher, schema, body),"
    " revision) AS change FROM {changes} WHERE kind IN ('value', 'delete') GROUP BY destination) WHERE change[1] = 'value')"
    " TO '{out}/duckdb-latest.parquet' (COMPRESSION zstd)"
)
_DUCKDB_TABLE: Final = (
    "COPY (SELECT revision, accepted_at, kind, destination, publisher, schema, schema_version, body,"
    " CAST(accepted_at AS DATE) AS date FROM {changes} WHERE kind IN ('value', 'delete'))"
    " TO '{out}/duckdb-table' (FORMAT parquet, PARTITION_BY (schema, date), COMPRESSION zstd)"
)
_SPARK: Final = """
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

journal, out, job = sys.argv[1:]
spark = SparkSession.builder.master("local[*]").config("spark.driver.memory", "2g").config("spark.ui.enabled", "false").getOrCreate()
changes = spark.read.format("org.apache.spark.sql.avro.AvroFileFormat").load(f"{journal}/segments")
changes = changes.where(F.col("kind").isin("value", "delete"))
columns = ["revision", "accepted_at", "kind", "publisher", "schema", "body"]
if job == "latest":
    newest = changes.groupBy("destination").agg(F.max_by(F.struct(*columns), "revision").alias("change"))
    newest.where("change.kind = 'value'").write.parquet(f"{out}/spark-latest")
else:
    rows = changes.select("destination", "schema_version", *columns).withColumn("date", F.to_date("accepted_at"))
    rows.write.partitionBy("schema", "date").parquet(f"{out}/spark-table")
spark.stop()
"""


@dataclass(frozen=True, slots=True)
class Used:
    """Cost of one job.

    Attributes:
        job: Its purpose.
        by: The program.
        cpu_s: Processor time of all its processes.
        took_s: From its start to its end.
        peak_mib: Most memory that all its processes held together.
    """

    job: str
    by: str
    cpu_s: float
    took_s: float
    peak_mib: float


def measure(job: str, by: str, command: Sequence[str]) -> Used:
    """Run a command and return what it used.

    Raises:
        LoadError: It failed; with the end of its output.
    """
    began_s = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.tables", *command],
        env=child_paths(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    peak_mib = 0.0
    ended = threading.Event()

    def look() -> None:
        nonlocal peak_mib
        while not ended.wait(_LOOK_S):
            peak_mib = max(peak_mib, sum(held_mib(child.pid)))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        said, errors = child.communicate()
    finally:
        ended.set()
        looking.join()
        if child.poll() is None:
            child.terminate()
            child.wait()
    if child.returncode:
        raise LoadError(f"{job} by {by} failed:\n{(errors or said)[-_ERROR_BYTES:]}")
    cpu_s = float(said.splitlines()[-1])
    return Used(job, by, cpu_s, time.perf_counter() - began_s, peak_mib)


def _child(command: Sequence[str]) -> int:
    """Run a command, wait for all that it started, and print the processor time of all."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    with suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    sys.stdout.write(f"{used.ru_utime + used.ru_stime}\n")
    return done.returncode


def compare(journal: Path, out: Path, duckdb: str | None) -> list[Used]:
    """Run all jobs on a journal.

    Args:
        journal: It is only read.
        out: For what the jobs write.
        duckdb: A Python whose DuckDB reads Avro; None to leave it out.
    """
    python = sys.executable

    def maxam(*arguments: str) -> list[str]:
        return [python, "-c", _MAXAM, *arguments, "--journal", str(journal), "--quiet"]

    def history(form: str) -> list[str]:
        return maxam("history", "--out", str(out / form), "--format", form)

    def peers(job: str, query: str, mark: str) -> list[Used]:
        found = []
        for by, command in (
            ("DuckDB", [duckdb, "-c", _DUCKDB, str(journal), str(out), query]),
            ("plain Spark", [python, "-c", _SPARK, str(journal), str(out), mark]),
        ):
            if command[0] is not None:
                found.append(measure(job, by, [text for text in command if text is not None]))
        return found

    latest, bodies = out / "latest-values.parquet", out / "latest-bodies.parquet"
    return [
        measure("the value of each topic, decoded", "maxam", maxam("latest", "--out", str(latest))),
        measure("the value of each topic, as bodies", "maxam", maxam("latest", "--no-values", "--out", str(bodies))),
        *peers("the value of each topic, as bodies", _DUCKDB_LATEST, "latest"),
        measure("all changes as tables, decoded", "maxam, Parquet", history("parquet")),
        measure("all changes as tables, decoded", "maxam, Delta", history("delta")),
        *peers("all changes as tables, as bodies", _DUCKDB_TABLE, "table"),
        measure("nothing new since the last run", "maxam, Parquet", history("parquet")),
        measure("nothing new since the last run", "maxam, Delta", history("delta")),
    ]


def print_results(screen: Console, title: str, results: Sequence[Used]) -> None:
    """Print one row for each job."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("job", "by", "CPU, s", "s", "memory, MiB"):
        table.add_column(name, justify="left" if name in {"job", "by"} else "right")
    for each in results:
        table.add_row(each.job, each.by, f"{each.cpu_s:,.1f}", f"{each.took_s:,.1f}", f"{each.peak_mib:,.0f}")
    screen.print(table)


@click.command("pipeline-compare")
@click.option("--records", type=click.IntRange(1), default=2_000_000, show_default=True, help="Changes of the archive.")
@click.option("--topics", type=click.IntRange(1), default=1_000_000, show_default=True, help="Topics of the archive.")
@click.option(
    "--duckdb",
    metavar="PYTHON",
    help="A Python with duckdb and duckdb-extension-avro of one version. [default: DuckDB is left out]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object per job, a line each.")
def tables_command(records: int, topics: int, duckdb: str | None, as_json: bool) -> None:
    """Compare maxam-pipeline with DuckDB and plain Spark in one run: processor time and memory of whole commands.

    Two million changes take 0.6 GB, and what the jobs write twice as much.
    """
    if duckdb is not None and shutil.which(duckdb) is None:
        raise LoadError(f"--duckdb {duckdb}: no such program. Name a Python")
    with tempfile.TemporaryDirectory(prefix="maxam-tables-", dir="/var/tmp") as name:  # /tmp may be memory
        journal, out = Path(name) / "journal", Path(name) / "out"
        out.mkdir()
        write_archive(journal, records, topics=topics)
        results = compare(journal, out, duckdb)
    if as_json:
        for each in results:
            click.echo(json.dumps(asdict(each)))
        return
    about: Mapping[str, str] = {"changes": f"{records:,}", "topics": f"{topics:,} at most", "core": core()}
    print_results(console(to_stderr=False), ", ".join(f"{key}: {value}" for key, value in about.items()), results)


if __name__ == "__main__":
    sys.exit(_child(sys.argv[1:]))

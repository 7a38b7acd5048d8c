"""Measure the pipeline's jobs on archives of N and 2N changes: `make pipeline-bench`.

Each measurement runs in a process of its own. The memory of Java and that of the Python processes are sampled until it ends, each as
the sum over the processes. A scan needs Spark, which has started before the clock does. The other jobs take no Java.
"""

import datetime as dt
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich import box
from rich.console import Console
from rich.table import Table

from maxam.bench.archive import START, write_archive
from maxam.bench.errors import LoadError
from maxam.bench.output import console
from maxam.compiled import child_environment, core
from maxam.journal.disk import OsDisk
from maxam.journal.names import sealed_segments
from maxam.pipeline.examining import examine
from maxam.pipeline.main import main as pipeline_main
from tests.benchmarks.brokers.process import cpu_s, tree
from tests.benchmarks.cluster import spark_home, standalone

DAYS: Final = 3.0  # of an archive; `latest` asks for their middle
_LOOK_S: Final = 0.1  # between two samples of memory
_ERROR_BYTES: Final = 4000  # of the output of a failed measurement
CLUSTER: Final = "cluster"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run.

    Attributes:
        measurement: One of MEASUREMENTS, or `cluster`.
        records: Changes in the archive.
        where: Spark's master; for `cluster` how many workers.
        core: `compiled` or `interpreted`.
        took_s: From the call of the job to its end; Spark had started.
        cpu_s: Processor time that the driver, its Java and its Python workers used meanwhile; of `cluster` the driver's only.
            It is the figure to compare on a machine that does other work too.
        java_mib: Most memory that Java held.
        python_mib: Most memory that the driver and its Python workers held together.
    """

    measurement: str
    records: int
    where: str
    core: str
    took_s: float
    cpu_s: float
    java_mib: float
    python_mib: float


# Each job takes the session, the journal and a folder for what it writes.


def _examine(spark: Any, journal: Path, _: Path) -> None:  # pyspark is loaded by the child only
    problems = examine(spark, journal).problems
    if problems:
        raise LoadError(f"{journal} is damaged: {problems[0].text}")


def _scan(spark: Any, journal: Path, _: Path) -> Callable[[], None]:  # likewise
    """Read every record with its body by Spark's own reader; checking the archive is `examine`."""
    from maxam.pipeline.spark.reading import read_journal  # needs pyspark

    archive = examine(spark, journal)

    def scan() -> None:
        rows = read_journal(spark, journal, archive=archive).selectExpr(
            "count(1)", "sum(length(body))", "max(revision)"
        )
        ((count, _, last),) = rows.collect()
        if count != last:
            raise LoadError(f"{journal}: {count:,} rows were read, but the last revision is {last:,}")

    return scan


def _history(_: Any, journal: Path, out: Path) -> None:  # likewise
    _verb("history", "--journal", str(journal), "--out", str(out / "history"))


def _latest(_: Any, journal: Path, out: Path) -> None:  # likewise
    middle = START + dt.timedelta(days=DAYS / 2)
    arguments = ["--at", middle.isoformat(), "--format", "json", "--out", str(out / "latest.json")]
    _verb("latest", "--journal", str(journal), *arguments)


def _verb(*arguments: str) -> None:
    pipeline_main([*arguments, "--quiet"], standalone_mode=False)


MEASUREMENTS: Final[Mapping[str, Callable[[Any, Path, Path], Callable[[], None] | None]]] = {
    "scan": _scan,
    "examine": _examine,
    "history": _history,
    "latest": _latest,
}
"""Jobs; one that has to prepare something returns what is to be measured then."""


def _child(measurement: str, journal: str, out: str, master: str, conf: str) -> None:
    """Run one measurement in this process and print how long it took."""
    from maxam.pipeline.spark.session import open_session  # needs pyspark

    spark = open_session(master, conf=json.loads(conf)) if measurement == "scan" else None
    if spark is not None:
        spark.range(0, 8, 1, 8).count()  # the first job loads classes, wherever tasks run
    began_s, before_s = time.perf_counter(), cpu_s(os.getpid())
    prepared = MEASUREMENTS[measurement](spark, Path(journal), Path(out))
    if prepared is not None:
        began_s, before_s = time.perf_counter(), cpu_s(os.getpid())
        prepared()
    took_s, used_s = time.perf_counter() - began_s, cpu_s(os.getpid()) - before_s
    if spark is not None:
        spark.stop()
    sys.stdout.write(json.dumps({"took_s": took_s, "cpu_s": used_s, "core": core()}) + "\n")


def measure(
    measurement: str,
    journal: Path,
    records: int,
    master: str,
    conf: Mapping[str, str] | None = None,
    where: str | None = None,
) -> Result:
    """Run one measurement in a process of its own.

    Args:
        measurement: One of MEASUREMENTS.
        journal: The archive.
        records: Changes in it.
        master: Spark's.
        conf: Spark's further settings.
        where: Text of the result instead of the master.

    Raises:
        LoadError: It failed; with the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="maxam-bench-") as out:
        arguments = [measurement, str(journal), out, master, json.dumps(conf or {})]
        child = subprocess.Popen(  # ourselves
            [sys.executable, "-m", "tests.benchmarks.pipeline", *arguments],
            env=child_paths(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        java_mib = python_mib = 0.0
        ended = threading.Event()

        def look() -> None:
            nonlocal java_mib, python_mib
            while not ended.wait(_LOOK_S):
                java, python = held_mib(child.pid)
                java_mib, python_mib = max(java_mib, java), max(python_mib, python)

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
            raise LoadError(f"{measurement} of {journal} failed:\n{errors[-_ERROR_BYTES:]}")
    told = json.loads(said.splitlines()[-1])
    return Result(
        measurement, records, where or master, told["core"], told["took_s"], told["cpu_s"], java_mib, python_mib
    )


def child_paths() -> dict[str, str]:
    """Return an environment in which a Python process finds this maxam and, after it, `tests`."""
    environment = child_environment()
    environment["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).resolve().parents[2]}"
    return environment


def held_mib(pid: int) -> tuple[float, float]:
    """Return what Java processes below this one hold, and what all others do, this one included."""
    java = python = 0
    for member in tree(pid):
        try:
            pages = int(Path(f"/proc/{member}/statm").read_text().split()[1])
            name = Path(f"/proc/{member}/comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        if name == "java":
            java += pages
        else:
            python += pages
    return java * os.sysconf("SC_PAGESIZE") / 2**20, python * os.sysconf("SC_PAGESIZE") / 2**20


@contextmanager
def _archives(folder: Path | None) -> Iterator[Path]:
    """Return where archives are: the folder that is to be kept, or one that goes."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="maxam-archives-", dir="/var/tmp") as name:  # /tmp may be memory
        yield Path(name)


def _archive(folder: Path, records: int, tell: Callable[[str], None]) -> Path:
    """Return an archive of N changes; write it unless it is there whole."""
    journal = folder / f"{records}"
    if (journal / "segments").is_dir():
        segments = sealed_segments(journal, OsDisk())
        if segments and segments[-1].last == records:
            return journal
        shutil.rmtree(journal)  # a killed run's
    tell(f"writing an archive of {records:,} changes")
    began_s = time.perf_counter()
    written = write_archive(journal, records, days=DAYS)
    took_s = time.perf_counter() - began_s
    tell(f"{written.length_bytes / 1e9:.2f} GB in {took_s:.0f} s, {records / took_s:,.0f} changes/s")
    return journal


def _on_clusters(journal: Path, records: int, tell: Callable[[str], None]) -> Iterator[Result]:
    """Measure the scan on a cluster of one worker of one core, and on one of two."""
    for workers in (1, 2):
        where = f"{workers} workers" if workers > 1 else "1 worker"
        tell(f"scan, {records:,} changes, on a cluster of {where} with a core each")
        with (
            tempfile.TemporaryDirectory(prefix="maxam-cluster-") as folder,
            standalone(Path(folder), workers) as master,
        ):
            # all workers are there before the clock starts
            conf = {"spark.executor.memory": "800m", "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
            found = measure("scan", journal, records, master, conf, where)
        yield Result(CLUSTER, *list(asdict(found).values())[1:])


def print_results(screen: Console, results: Sequence[Result]) -> None:
    """Print medians, and how much longer twice the data took."""
    table = Table(title="Pipeline", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "changes", "on", "s", "changes/s", "CPU, s", "time for twice", "Java, MiB", "Python, MiB"):
        table.add_column(name, justify="left" if name in {"", "on"} else "right")
    medians: dict[tuple[str, int, str], float] = {}
    groups: dict[tuple[str, int, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.measurement, result.records, result.where), []).append(result)
    for (measurement, records, where), runs in groups.items():
        took_s = statistics.median([run.took_s for run in runs])
        medians[measurement, records, where] = took_s
        half_s = medians.get((measurement, records // 2, where))
        table.add_row(
            measurement,
            f"{records:,}",
            where,
            f"{took_s:,.2f}",
            f"{records / took_s:,.0f}",
            f"{statistics.median([run.cpu_s for run in runs]):,.1f}",
            f"x {took_s / half_s:.2f}" if half_s else "",
            f"{max(run.java_mib for run in runs):,.0f}",
            f"{max(run.python_mib for run in runs):,.0f}",
        )
    screen.print(table)
    screen.print(f"{results[0].core} core, {len(os.sched_getaffinity(0))} cores of this machine", highlight=False)


@click.command("pipeline")
@click.option(
    "--records", type=click.IntRange(1), default=10_000_000, show_default=True, help="Changes of the smaller archive."
)
@click.option("--twice/--once", default=True, show_default=True, help="Also with twice the changes.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([*MEASUREMENTS, CLUSTER]),
    help="One measurement; may be repeated. `cluster`: the scan by one worker of one core and by two.",
)
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="Medians of so many.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs, but for `cluster`.")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Keep the archives there, and use those that are there already."
)
@click.option("--json", "as_json", is_flag=True, help="Print one object per run, a line each.")
def pipeline_command(
    records: int, twice: bool, only: Sequence[str], runs: int, master: str, folder: Path | None, as_json: bool
) -> None:
    """Measure the jobs of maxam-pipeline on archives of N and 2N changes, as docs/analyse/pipeline.md reports it.

    Ten million changes take 2.9 GB, twenty million the double. Java's start is not counted.
    """
    screen = Console(stderr=True)

    def tell(text: str) -> None:
        screen.print(text, highlight=False, style="dim")

    wanted = list(dict.fromkeys(only)) or [*MEASUREMENTS, CLUSTER]
    results: list[Result] = []

    def keep(result: Result) -> None:
        results.append(result)
        if as_json:
            click.echo(json.dumps(asdict(result)))

    spark_home()
    with _archives(folder) as place:
        for number in (records, 2 * records) if twice else (records,):
            journal = _archive(place, number, tell)
            for name in wanted * runs:
                if name != CLUSTER:
                    tell(f"{name}, {number:,} changes")
                    keep(measure(name, journal, number, master))
                elif number == records:
                    for result in _on_clusters(journal, number, tell):
                        keep(result)
    if not as_json:
        print_results(console(to_stderr=False), results)


if __name__ == "__main__":
    _child(*sys.argv[1:])

"""Jobs run on a Spark cluster whose machines have no maxam, by the commands of docs/analyse/pipeline-cluster.md as they stand there."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from maxam.bench.archive import write_archive
from maxam.compiled import child_environment
from maxam.errors import MaxamError
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.records import Change
from tests.benchmarks.cluster import connect_server, master_command, standalone, worker_command
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/analyse/pipeline-cluster.md").read_text(encoding="utf-8")
MASTER = "spark://127.0.0.1:7077"  # as the guide has it
REMOTE = "sc://127.0.0.1:15002"
WORKERS = "/opt/workers"
KNOWN = {"master": MASTER, "remote": REMOTE, "workers": WORKERS, "program": "dist/maxam_pipeline.py"}
RECORDS = 20_000
QUICK = {
    "JDK_JAVA_OPTIONS": os.environ["SPARK_SUBMIT_OPTS"]
}  # of tests/pipeline/conftest.py, for servers and executors
PASSED_ON = {"JAVA_HOME", "SPARK_SUBMIT_OPTS"}  # to the guide's commands, of this environment
SHIM = """#!/bin/sh
export PYTHONPATH={path} PYTHONSAFEPATH=1
exec {python} {arguments} "$@"
"""
WHERE = """
import json
import os
import runpy
import pyarrow
from pyspark.sql import SparkSession


def find(batches):
    import maxam.journal.decoding, os
    for _ in batches:
        pass
    yield pyarrow.RecordBatch.from_pydict({"file": [maxam.journal.decoding.__file__], "cwd": [os.getcwd()]})

spark = SparkSession.builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0").getOrCreate()
rows = spark.range(0, 2, 1, 2).mapInArrow(find, "file string, cwd string").collect()
with open("where.json", "w", encoding="utf-8") as file:
    json.dump([row.asDict() for row in rows], file)
runpy.run_path("dist/maxam_pipeline.py", run_name="__main__")
"""
"""Runs the guide's job, and before it finds from where each of two workers imports maxam."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder as the guide supposes it: with a clone's packing script, and commands `python` and `maxam-pipeline`."""
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "deploy").symlink_to(ROOT / "deploy")
    (folder / "bin").mkdir()
    for name, arguments in (("python", ""), ("maxam-pipeline", "-m maxam.pipeline.main")):
        command = folder / "bin" / name
        path = child_environment()["PYTHONPATH"]
        command.write_text(SHIM.format(path=path, python=sys.executable, arguments=arguments), encoding="utf-8")
        command.chmod(0o755)
    run(folder, "Pack what the workers need")
    return folder


@pytest.fixture(scope="module")
def newest(folder: Path) -> Iterator[dict[str, int]]:
    """Write a journal whose last segment is open, and return the newest revision of each topic that has a value."""
    place = folder / "var" / "journal"
    write_archive(place, RECORDS, topics=500)
    journal = Journal.open(place, OsDisk(), JournalSettings(durable=False), bytes(16))
    changes = [record for record in journal.recover() if isinstance(record, Change)]
    last = changes[-1]
    again = [change for change in changes if not change.deleted][:7]
    tail = [
        Change(
            last.revision + n,
            last.accepted_at_us + n,
            c.destination,
            False,
            c.publisher,
            c.validation,
            c.content,
            c.body_at,
        )
        for n, c in enumerate(again, 1)
    ]
    journal.write(journal.encode(list(tail)))
    heads = {change.destination.decode(): change for change in [*changes, *tail]}
    yield {destination: change.revision for destination, change in heads.items() if not change.deleted}
    journal.close()


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Run a cluster of two workers; return its address and where its logs and the workers' folders are."""
    place = tmp_path_factory.mktemp("cluster")
    try:
        with standalone(place, 2, environment=QUICK) as address:
            yield address, place
    except MaxamError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no cluster: {error}")


def blocks(heading: str) -> list[str]:
    """Return the commands that stand below a heading of the guide, a text for each example."""
    section = GUIDE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found


def run(folder: Path, heading: str, number: int = 0, **other: str) -> str:
    """Run an example of the guide in a bare environment, with `other` values for its addresses and paths; return its output."""
    text = blocks(heading)[number]
    for name, value in other.items():
        assert KNOWN[name] in text
        text = text.replace(KNOWN[name], value)
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {name: value for name, value in os.environ.items() if name in PASSED_ON}
    done = subprocess.run(
        ["bash", "-euc", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def values(path: Path) -> dict[str, int]:
    """Return the revision of each topic in what `latest` wrote, after a check of the values."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(row["value"]["from"]["egmElectronicId"] in row["destination"] for row in rows)
    return {row["destination"]: row["revision"] for row in rows}


def test_the_guide_starts_the_cluster_that_the_tests_start() -> None:
    """Its commands for master and worker are those of `tests.benchmarks.cluster`, with its own ports."""
    lines = [line for block in blocks("A standalone cluster") for line in block.splitlines()]
    spark_class = "$SPARK_HOME/bin/spark-class "
    assert spark_class + " ".join(master_command(7077, 8080)) in lines
    assert spark_class + " ".join(worker_command(MASTER, "1g")) in lines


@pytest.mark.slow
def test_spark_submit_takes_the_environment_along(
    folder: Path, newest: dict[str, int], master: tuple[str, Path]
) -> None:
    """`latest` by spark-submit gives the newest value of each topic, those of the open segment too.

    Both workers import maxam from the environment that Spark unpacked in their own folders.
    """
    address, place = master
    (folder / "where.py").write_text(WHERE, encoding="ascii")
    run(folder, "Jobs by spark-submit", master=address, program="where.py")
    assert values(folder / "by-submit.json") == newest
    found = json.loads((folder / "where.json").read_text(encoding="utf-8"))
    assert {Path(row["file"]).relative_to(place).parts[0] for row in found} == {"worker-0", "worker-1"}
    assert all(row["file"].startswith(f"{row['cwd']}/environment/lib/") for row in found)


@pytest.mark.slow
def test_workers_with_a_python_of_their_own_are_sent_maxam_alone(
    folder: Path, newest: dict[str, int], master: tuple[str, Path], tmp_path: Path
) -> None:
    """`latest` by --master with Python files gives the same on workers whose Python has what maxam imports, but no maxam."""
    workers = tmp_path / "workers"
    workers.mkdir()
    subprocess.run(["tar", "-xzf", folder / "dist/environment.tar.gz", "-C", workers], check=True)
    (package,) = workers.glob("lib/python*/site-packages/maxam")
    package.rename(tmp_path / "removed")
    run(folder, "Jobs by --master", master=master[0], workers=str(workers))
    assert values(folder / "by-master.json") == newest


@pytest.mark.slow
def test_a_connect_client_sends_the_environment(folder: Path, newest: dict[str, int], master: tuple[str, Path]) -> None:
    """`latest` through Spark Connect gives the same; the client starts no Java."""
    server, _ = blocks("Jobs through Spark Connect")
    for option in ("--class org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"):
        assert option in server
    options = ["--master", master[0], "--conf", "spark.executor.memory=800m"]
    with connect_server(folder, options, {"PYSPARK_PYTHON": "environment/bin/python", **QUICK}) as remote:
        run(folder, "Jobs through Spark Connect", 1, remote=remote)
    assert values(folder / "by-connect.json") == newest

"""A Spark cluster on this machine, started from the Python package: a standalone master with workers, or a Connect server.

Its processes get none of our environment, so Python workers find only what a job brings along. docs/analyse/pipeline-cluster.md is the
recipe for people.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from os import sched_getaffinity
from pathlib import Path
from typing import Final

from maxam.bench.errors import LoadError
from maxam.pipeline.spark.java import find_java
from tests.benchmarks.brokers.process import process

LOOPBACK: Final = "127.0.0.1"
_READY: Final = {"master": "I have been elected leader", "worker": "Successfully registered with master"}
_CONNECT_READY: Final = r"Connect server started at: "


def spark_home() -> Path:
    """Return the folder of the Python package, which is a whole Spark except the scripts that start a cluster.

    Raises:
        LoadError: It is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LoadError("Spark is not installed: install maxam[pipeline]")
    return Path(spec.origin).parent


def master_command(port: int, web_port: int) -> list[str]:
    """Return the arguments of spark-class for a master on this machine's loopback address; a port 0 is any free one."""
    where = ["--host", LOOPBACK, "--port", str(port), "--webui-port", str(web_port)]
    return ["org.apache.spark.deploy.master.Master", *where]


def worker_command(master: str, memory: str) -> list[str]:
    """Return the arguments of spark-class for a worker of one core."""
    where = ["--host", LOOPBACK, "--webui-port", "0", "--cores", "1", "--memory", memory]
    return ["org.apache.spark.deploy.worker.Worker", *where, master]


@contextmanager
def standalone(
    folder: Path, workers: int, memory: str = "1g", environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run a master and N workers of one core each, on different cores if there are enough. End them on leaving.

    Args:
        folder: An empty one, for their logs and what the workers unpack.
        workers: How many.
        memory: Of each, for executors: `1g`.
        environment: Further variables, which executors inherit.

    Yields:
        The address for `--master`.

    Raises:
        LoadError: Spark is not installed, or a process did not start; with the end of its log.
        PipelineError: There is no Java.
    """
    variables = {
        **_environment(),
        **(environment or {}),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # it would take port 6066, whatever the other ports are
    }
    program = str(spark_home() / "bin" / "spark-class")
    with ExitStack() as running:
        started = running.enter_context(
            _run([program, *master_command(0, 0)], folder / "master", _READY["master"], variables)
        )
        address = f"spark://{LOOPBACK}:{started}"
        cores = sorted(sched_getaffinity(0), reverse=True)
        for number in range(workers):
            # One core is what Spark gives to tasks; Java's compiler and collector would take others.
            core = {cores[number % len(cores)]}
            command = [program, *worker_command(address, memory), "--work-dir", "."]
            running.enter_context(_run(command, folder / f"worker-{number}", _READY["worker"], variables, core))
        yield address


@contextmanager
def connect_server(folder: Path, options: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a Spark Connect server; end it on leaving.

    Args:
        folder: Its working folder, which may hold what `options` name.
        options: Further ones of spark-submit, such as `--master`.
        environment: Further variables.

    Yields:
        The address for `--remote`.

    Raises:
        LoadError: Spark is not installed, or it did not start; with the end of its log.
        PipelineError: There is no Java.
    """
    command = [str(spark_home() / "bin" / "spark-submit")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": LOOPBACK,
        "spark.ui.enabled": "false",
    }.items():
        command += ["--conf", f"{name}={value}"]
    command += [*options, "spark-internal"]  # the class is Spark's own: there is no file to submit
    with _run(command, folder, _CONNECT_READY, {**_environment(), **(environment or {})}) as port:
        yield f"sc://{LOOPBACK}:{port}"


@contextmanager
def _run(
    command: Sequence[str],
    folder: Path,
    ready: str,
    environment: Mapping[str, str],
    cores: set[int] | None = None,
) -> Iterator[str]:
    """Run a server, on some cores or on all that we have; yield its port."""
    folder.mkdir(parents=True, exist_ok=True)
    with process(command, folder, cores or sched_getaffinity(0), ready, environment) as started:
        yield started.find(rf"(?:server started at: {LOOPBACK}:|service 'spark(?:Master|Worker)' on port )(\d+)")


def _environment() -> dict[str, str]:
    return {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": LOOPBACK,
        "PATH": "/usr/bin:/bin",  # not a virtual environment's
    }

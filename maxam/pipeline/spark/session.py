"""Open a Spark session that a maxam job runs in. To import this without Spark raises PipelineError, with what to install."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from maxam.compiled import child_environment
from maxam.pipeline.errors import PipelineError, not_installed
from maxam.pipeline.spark.java import find_java

try:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from maxam.pipeline.spark.reading import register
except ModuleNotFoundError as missing:
    raise not_installed(missing) from missing

LOCAL: Final = "local[*]"
DRIVER_MEMORY: Final = "2g"  # of a local session; sorts and shuffles spill, so that an archive of any size fits
_LOCAL_PARTITIONS_PER_CORE: Final = 2  # of a shuffle; each costs some 10 ms however small it is
_SETTINGS: Final = {  # of any session, remote ones too
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",  # the data source leaves out segments by it
}
_UPLOADED: Final = {
    "spark.submit.pyFiles": "pyfile",
    "spark.archives": "archive",
}  # what a Connect server takes as files
_LOOPBACK_MASTERS: Final = ("local", "spark://127.0.0.1:", "spark://localhost:")


def open_session(
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    app: str = "maxam-pipeline",
) -> SparkSession:
    """Open a session, with settings that suit a journal, and register the data source `maxam` in it.

    Args:
        master: Address of Spark, such as `local[N]` or `spark://HOST:PORT`. Without it that of spark-submit, else all cores of this
            machine.
        remote: Address of a Spark Connect server, `sc://HOST:PORT`, instead of a master.
        conf: Spark's own settings; they win over ours. Of a remote session, `spark.archives` and `spark.submit.pyFiles` name
            files of this machine, which are sent to the server for this session.
        app: Name of the application on a cluster.

    Returns:
        The session, which the caller stops. Spark has one in a process: when there is one already, it is returned, with our settings
        as far as a running session takes them.

    Raises:
        PipelineError: There is no Java, or Spark does not start. The text has advice.
    """
    if master is not None and remote is not None:
        raise PipelineError("a session has a master or a remote address, not both")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, which knows the master and has started Java
    settings, environment = dict(_SETTINGS), {}
    builder = SparkSession.builder.appName(app)
    if remote is not None:
        builder = builder.remote(remote)
    elif master is not None or not submitted:
        master = master or LOCAL
        builder = builder.master(master)
        settings |= _driver_settings(master)
    if not submitted and (remote is None or remote.startswith("local")):
        java = find_java()
        settings["spark.driver.defaultJavaOptions"] = f"-Dlog4j2.configurationFile={java.logging.as_uri()}"
        environment = _environment(java.home, master or LOCAL)
    settings |= conf or {}
    uploads = {name: settings.pop(name) for name in _UPLOADED if remote is not None and name in settings}
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _environment_of(environment):
        try:
            spark = builder.getOrCreate()
            for name, paths in uploads.items():
                spark.addArtifacts(*paths.split(","), **{_UPLOADED[name]: True})
        except (PySparkException, OSError, ValueError, RuntimeError) as error:
            raise PipelineError(f"Spark does not start: {_first_line(error)}") from error
    register(spark)
    return spark


def running_session() -> SparkSession | None:
    """Return the session that this process has, if any."""
    return SparkSession.getActiveSession()


def _driver_settings(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith(_LOOPBACK_MASTERS):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if master.startswith("local"):
        cores = len(os.sched_getaffinity(0))
        settings |= {
            "spark.driver.memory": DRIVER_MEMORY,
            "spark.sql.shuffle.partitions": str(max(4, _LOCAL_PARTITIONS_PER_CORE * cores)),
        }
    return settings


def _environment(java_home: Path, master: str) -> dict[str, str]:
    """Return what Java and the Python workers that it starts must find in their environment."""
    environment = child_environment()
    found = {
        "JAVA_HOME": str(java_home),
        "PYTHONPATH": environment["PYTHONPATH"],
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    if master.startswith(_LOOPBACK_MASTERS):
        found.setdefault("SPARK_LOCAL_IP", os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"))
    return found


@contextmanager
def _environment_of(changes: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the environment while Spark starts, and the former ones again afterwards."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__

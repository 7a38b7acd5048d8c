"""`maxam-pipeline compact`: an archive of one change per topic and day."""

import shutil
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal, get_args

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation uses

from maxam.durable_files import sync
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.jobs.spark_newest import MICROSECOND, read_newest
from maxam.pipeline.spark.native_avro import NATIVE_AVRO, native_avro
from maxam.pipeline.spark.selection import Selection, selection_options

Container = Literal["avro", "parquet"]
_COMPRESSION: Final = {"avro": "deflate", "parquet": "zstd"}  # what every reader has
DAY: Final = timedelta(days=1)
_DATE: Final = "date"
_REMOVALS_MAX: Final = 50
_REMOVAL_PAUSE_S: Final = 0.1


def dated(changes: DataFrame) -> DataFrame:
    """Return changes with one more column, `date`: in UTC, of `accepted_at`."""
    day = F.floor(F.unix_micros("accepted_at") / F.lit(DAY // MICROSECOND))
    return changes.withColumn(_DATE, F.date_from_unix_date(day.cast("int")))


def write_days(rows: DataFrame, folder: Path, container: Container) -> int:
    """Write rows as one file for each day, `<folder>/YYYY-MM-DD.avro` or `.parquet`, in order of revision.

    Args:
        rows: Of `dated`.
        folder: Does not exist; it appears when all is written.
        container: Of Avro, which Spark's own writer writes, or Parquet.

    Returns:
        How many files that are.

    Raises:
        PipelineError: The folder exists or cannot be written.
    """
    if folder.exists():
        raise PipelineError(f"{folder} exists: name a folder that does not, or remove it first")
    folder = folder.absolute()  # Java may stand elsewhere than we
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    except OSError as error:
        raise PipelineError(f"{folder} cannot be written: {error.strerror}") from error
    written = aside / "written"
    ready = aside / "ready"
    try:
        ready.mkdir()
        kind = NATIVE_AVRO if container == "avro" else "parquet"
        days = rows.repartition(_DATE).sortWithinPartitions(_DATE, "revision")
        writer = days.write.format(kind).option("compression", _COMPRESSION[container])
        writer.partitionBy(_DATE).save(str(written))
        if not written.is_dir():
            raise PipelineError(f"{written} is not here: the workers must write where this machine reads")
        for day in written.glob(f"{_DATE}=*"):
            (part,) = day.glob(f"part-*.{container}")  # a day is one partition
            part.rename(ready / f"{day.name.removeprefix(f'{_DATE}=')}.{container}")
        count = _synced(ready)
        ready.rename(folder)
    except OSError as error:
        raise PipelineError(f"{folder} cannot be written: {error.strerror}") from error
    finally:
        _remove(aside)
    with suppress(OSError):
        sync(folder.parent)
    return count


def _remove(folder: Path) -> None:
    """Remove a folder that tasks of a failed job may still be writing to for a moment."""
    for _ in range(_REMOVALS_MAX):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_REMOVAL_PAUSE_S)


def _synced(folder: Path) -> int:
    files = list(folder.iterdir())
    for path in (*files, folder):
        sync(path)
    return len(files)


@click.command("compact")
@job_options(output=False)
@selection_options
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="A new folder.")
@click.option(
    "--container",
    type=click.Choice(get_args(Container)),
    default="avro",
    show_default=True,
    help="Format of its files.",
)
def compact_command(job: Job, selection: Selection, out: Path, container: Container) -> None:
    """Write the last change of each topic on each day in UTC, deletes included, to a new folder: a file for each day.

    The files have the columns of the journal's changes: Avro for any Avro tool, or Parquet. They are an archive for reading; a gateway does
    not start from them. The journal is not touched. The folder appears when all is written.

    \b
    maxam-pipeline compact --journal var/journal --until 2026-11-01T00:00:00Z --out archive/until-october
    """  # noqa: D301  # a mark of click's: the lines stay as they are
    if container == "avro" and not native_avro(job.spark):
        raise PipelineError("this Spark has no Avro writer: use --container parquet")
    archive = job.examine(**selection.prune())
    with job.progress("counting"):
        before = job.changes(archive=archive, columns=("revision",), **selection.prune()).count()
    with job.progress("compacting"):
        rows = dated(read_newest(job.spark, archive, selection, DAY))
        files = write_days(rows, out, container)
    with job.progress("counting"):
        kept = (
            job.spark.read.format(NATIVE_AVRO if container == "avro" else "parquet").load(str(out.absolute())).count()
            if files
            else 0
        )
    click.echo(f"{out}: kept {kept:,} of {before:,} changes, in {files:,} days")

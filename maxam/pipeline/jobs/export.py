"""`maxam-pipeline export`: changes as a file for other tools."""

from typing import Final

import click
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation uses

from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.jobs.decoding import with_values
from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.jobs.spark_newest import read_newest
from maxam.pipeline.spark.selection import Selection, selection_options

# In a table on a narrow terminal, the first ones first.
_EXPENDABLE: Final = (
    "fingerprint",
    "schema_fingerprint",
    "value_offset",
    "value_length",
    "encoding",
    "headers",
    "schema_version",
    "schema",
    "publisher",
    "accepted_at",
)


@click.command("export")
@job_options
@selection_options
@click.option(
    "--latest", "only_latest", is_flag=True, help="Only the newest change of each topic among the selected ones."
)
@click.option("--values", is_flag=True, help="Decode bodies into a column value, JSON.")
@click.option("--bodies/--no-bodies", default=True, show_default=True, help="Give the bodies as they were sent.")
@click.option(
    "--drop-pii",
    is_flag=True,
    help="Leave the fields that schemas mark as personal out of the values, and the bodies and user headers out altogether.",
)
@click.option("--rejected", is_flag=True, help="Rejected SENDs instead, with disposition, result and reason.")
def export_command(
    job: Job, selection: Selection, only_latest: bool, values: bool, bodies: bool, drop_pii: bool, rejected: bool
) -> None:
    """Export changes, values and deletes, with all that the journal holds about them.

    The suffix of --out selects the format: .parquet, .csv, .json or .jsonl. It becomes one file. Parquet with --out FOLDER/ becomes a
    new folder of files that Spark writes in parallel, which is faster for large archives. Changes are in order of their revision,
    but in a folder and with --latest.

    \b
    maxam-pipeline export --journal var/journal --out changes.parquet
    maxam-pipeline export --journal var/journal --values --no-bodies --since 2026-11-21T00:00:00Z --out today.jsonl
    maxam-pipeline export --journal var/journal --values --drop-pii --out for-analysts.jsonl
    """  # noqa: D301  # a mark of click's: the lines stay as they are
    if rejected and (only_latest or values):
        raise click.UsageError("--rejected goes with neither --latest nor --values: rejected bodies are no values")
    if rejected and drop_pii:
        raise click.UsageError(
            "--rejected goes not with --drop-pii: what was rejected may hold anything, its reason too"
        )
    if only_latest:
        archive = job.examine(**selection.prune())
        with job.progress("finding the newest changes"):
            rows = read_newest(job.spark, archive, selection)
    else:
        rows = job.changes(records="rejected" if rejected else "changes", **selection.prune())
        if not job.writes_folder:
            rows = rows.orderBy("revision")
    if values:
        rows = with_values(rows, Catalogue.load(job.journal, job.schemas), without_pii=drop_pii)
    if not bodies or drop_pii:
        rows = rows.drop("body")
    if drop_pii:
        rows = rows.drop("headers")
    job.emit(rows.withColumn("schema_fingerprint", F.lower(F.hex("schema_fingerprint"))), expendable=_EXPENDABLE)

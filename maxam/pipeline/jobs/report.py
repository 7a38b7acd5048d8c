"""The command `report`: what happened, as one page of charts."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from maxam.pipeline.errors import PipelineError
from maxam.pipeline.jobs.figures import COLUMNS, REJECTED_COLUMNS, compute
from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.jobs.output import replacing
from maxam.pipeline.jobs.page import render
from maxam.pipeline.spark.reading import read_journal

_SUFFIXES: Final = (".html", ".htm")


@click.command("report")
@job_options(output=False)
@click.option(
    "--out",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE.html",
    help="The page to write.",
)
def report_command(job: Job, page: Path) -> None:
    """Draw what happened as one HTML page: rates, topics, staleness, rejects, growth.

    The page needs no network and no other file: mail it, archive it, open it anywhere. Staleness is known of durable
    subscriptions only: the journal holds their ACKs.
    """
    if page.suffix.lower() not in _SUFFIXES:
        raise click.UsageError(f"--out {page}: the report is an HTML page. Give a file that ends in .html")
    accepted, refused = job.examine(), job.examine(records="rejected")
    changes = job.changes(archive=accepted, columns=COLUMNS)
    rejected = job.changes(archive=refused, records="rejected", columns=REJECTED_COLUMNS)
    # Of the same segments as the changes: their problems have been reported.
    sessions = read_journal(job.spark, job.journal, records="sessions", problems="skip")
    problems = [*accepted.problems, *refused.problems]
    with job.progress("computing"):
        figures = compute(changes, sessions, rejected, str(job.journal), datetime.now(UTC), problems)
    text = render(figures)
    try:
        with replacing(page) as file:
            file.write(text.encode())
    except OSError as error:
        raise PipelineError(f"{page} cannot be written: {error.strerror or error}") from error
    job.remark(f"written: {page}")

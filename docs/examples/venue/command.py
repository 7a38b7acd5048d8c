"""The command: its options, and what it does with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from maxam.pipeline import BodyEncoder, Catalogue, Job, PipelineError, Target, gateway_options, job_options
from venue.live import TOO_MANY_VENUES, Publisher, counted, follow_readings
from venue.periods import GAMING_DAY, Kind, Periods
from venue.totals import Per, meter_deltas, meter_readings, meter_totals, newest_totals, period_sums

_EXPENDABLE: Final = (  # columns that a narrow terminal does without, in this order
    "period_start",
    "period_end",
    "unusable",
    "undated",
    "moves",
    "late",
    "roll_overs",
    "gaps",
    "baselines",
)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--by",
    type=click.Choice([GAMING_DAY, "hour"]),
    default=GAMING_DAY,
    show_default=True,
    help="The periods of the totals.",
)
@click.option(
    "--timezone", default="UTC", show_default=True, metavar="NAME", help="Time zone of the periods, an IANA name."
)
@click.option(
    "--day-start", default="00:00", show_default=True, metavar="HH:MM", help="Local time at which a gaming day begins."
)
@click.option(
    "--per",
    type=click.Choice(["machine", "venue"]),
    default="machine",
    show_default=True,
    help="One row for each machine in a venue, or for each venue.",
)
@click.option("--publish", is_flag=True, help="Also publish the newest period of each venue and the one before it.")
@click.option(
    "--follow",
    is_flag=True,
    help="With --publish, publish whenever readings change the totals, until SIGINT or SIGTERM. Prints no table.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder in which --follow keeps its counts, of one process at a time. The next run continues there.",
)
@gateway_options
@job_options
def main(
    job: Job,
    by: Kind,
    timezone: str,
    day_start: str,
    per: Per,
    publish: bool,
    follow: bool,
    state: Path | None,
    target: Callable[[], Target],
) -> None:
    """Add up what machines counted, by hour or gaming day.

    A row holds the increase of the accounting meters of a machine: money in and out, turnover, wins, games. The difference of two
    readings belongs to the period of the later one.

    The other columns count readings. Those of `readings` were compared with one before. Some of these came after a reset (resets)
    or a roll-over (roll_overs). For others the one before was older than the preceding period (gaps) or of another venue (moves). A
    baseline has nothing to compare with. Late and unusable readings are skipped, and undated ones have no time of their own.

    With --publish the totals of each venue go to X/Venue.<venueId>.VenueMeterTotals, and those by hour to
    X/Venue.<venueId>.Hour.VenueMeterTotals. --schemas defines their encoding. The certificate must have the right to send there.
    """
    try:
        periods = Periods.read(by, timezone, day_start)
    except PipelineError as error:
        raise click.UsageError(str(error)) from error
    if follow and (not publish or state is None):
        raise click.UsageError("--follow needs --publish and --state FOLDER")
    if state is not None and not follow:
        raise click.UsageError("--state is for --follow")
    publisher: Publisher | None = None
    if publish:
        if job.schemas is None:
            raise click.UsageError("--publish needs --schemas FOLDER")
        encoder = BodyEncoder.read(job.schemas)
        publisher = Publisher(job, target(), encoder, follow)
    if follow and publisher is not None and state is not None:
        follow_readings(job, periods, state, publisher)
        return
    archive = job.examine()
    catalogue = Catalogue.load(job.journal, job.schemas)
    deltas = meter_deltas(meter_readings(job.changes(archive=archive), catalogue), periods)
    sums = period_sums(deltas).persist()
    job.emit(meter_totals(sums, periods, per), _EXPENDABLE)
    if publisher is not None:
        if job.incomplete:
            raise PipelineError("not published: part of the archive could not be read, so readings may be missing")
        with job.progress("publishing"):
            totals = newest_totals(sums, periods, archive.last)
            counts = publisher.publish(totals)
        if totals.left_out:
            job.warn(f"not all was published: {TOO_MANY_VENUES}")
        job.remark(f"totals of {counted(counts.accepted, 'venue')} published as of revision {archive.last}")
        if counts.superseded:
            job.warn(
                f"not published: {counted(counts.superseded, 'venue')}, as the gateway has had those of this revision or of a newer one"
            )
    sums.unpersist()

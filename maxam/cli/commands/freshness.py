"""`maxam-admin topics overdue`: which topics are older than their rule allows."""

import click

from maxam.cli.options import limit_option, listing_option, print_rows, with_credentials
from maxam.cli.repeating import watch_option
from maxam.https_client import Credentials, Remote


@click.command("overdue")
@click.argument("glob", default="**")
@limit_option()
@listing_option
@watch_option
@with_credentials
def topics_overdue(credentials: Credentials, glob: str, limit: int | None, as_json: bool) -> None:
    """List the topics that match GLOB and are older than fresh_within_s of their rule, in order of their names."""
    with Remote(credentials) as remote:
        rows = remote.pages("/v1/overdue", "overdue", glob=glob, limit=200)
        columns = ["DESTINATION", "#REVISION", "@ACCEPTED AT", "PUBLISHER", "#FRESH WITHIN S", "#OVERDUE S"]
        print_rows(
            rows,
            limit,
            as_json,
            columns,
            lambda row: [
                row["destination"],
                row["revision"],
                row["accepted_at"],
                row["publisher"],
                f"{row['fresh_within_s']:g}",
                f"{row['overdue_s']:.1f}",
            ],
            ["REVISION", "PUBLISHER", "ACCEPTED AT"],
        )

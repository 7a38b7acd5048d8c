"""`maxam-admin topics overdue`: which topics are older than their rule allows."""

import click

from maxam.cli.options import listing, print_rows
from maxam.https_client import Credentials, Remote


@click.command("overdue")
@click.argument("glob", default="**")
@listing()
def topics_overdue(credentials: Credentials, glob: str, limit: int | None, as_json: bool) -> None:
    """List the topics that match GLOB and are older than fresh_within_s of their rule, in order of their names."""
    with Remote(credentials) as remote:
        rows = remote.pages("/v1/overdue", "overdue", glob=glob, limit=200)
        print_rows(
            rows,
            limit,
            as_json,
            [
                "DESTINATION",
                "#REVISION",
                "@ACCEPTED AT",
                "PUBLISHER",
                ("#FRESH WITHIN S", lambda row: f"{row['fresh_within_s']:g}"),
                ("#OVERDUE S", lambda row: f"{row['overdue_s']:.1f}"),
            ],
            ["REVISION", "PUBLISHER", "ACCEPTED AT"],
        )

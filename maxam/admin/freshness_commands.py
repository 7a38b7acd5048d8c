"""`maxam-admin topics overdue`: which topics are older than their rule allows."""

from itertools import islice

import click

from maxam.admin.options import first_rows, json_option, limit_option, with_credentials
from maxam.admin.output import print_json, print_table
from maxam.admin.remote import Credentials, Remote
from maxam.admin.repeating import watch_option


@click.command("overdue")
@click.argument("glob", default="**")
@limit_option
@json_option
@watch_option
@with_credentials
def topics_overdue(credentials: Credentials, glob: str, limit: int | None, as_json: bool) -> None:
    """List the topics that match GLOB and are older than fresh_within_s of their rule, in order of their names."""
    with Remote(credentials) as remote:
        rows = remote.pages("/v1/overdue", "overdue", glob=glob, limit=200)
        if as_json:
            for row in islice(rows, limit):
                print_json(row)
            return
        columns = ["DESTINATION", "#REVISION", "ACCEPTED AT", "PUBLISHER", "#FRESH WITHIN S", "#OVERDUE S"]
        table = [
            [
                row["destination"],
                row["revision"],
                row["accepted_at"],
                row["publisher"],
                f"{row['fresh_within_s']:g}",
                f"{row['overdue_s']:.1f}",
            ]
            for row in first_rows(rows, limit)
        ]
    print_table(columns, table, ["REVISION", "PUBLISHER", "ACCEPTED AT"])

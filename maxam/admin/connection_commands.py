"""`maxam-admin connections`: who is connected to the gateway's listeners, also before it has said who it is."""

import click

from maxam.admin.options import json_option, limit_option, print_rows, with_credentials
from maxam.admin.remote import Credentials, Remote
from maxam.admin.repeating import watch_option


@click.command()
@limit_option
@json_option
@watch_option
@with_credentials
def connections(credentials: Credentials, limit: int | None, as_json: bool) -> None:
    """List connections of clients and of operators, in order of their opening."""
    with Remote(credentials) as remote:
        rows = remote.pages("/v1/connections", "connections", limit=200)
        columns = [
            "#ID",
            "KIND",
            "STATE",
            "ADDRESS",
            "PRINCIPAL",
            "CLIENT-ID",
            "SINCE",
            "#HEARD S AGO",
            "#SENDS",
            "#MESSAGES",
        ]
        columns += ["#BYTES IN", "#BYTES OUT", "#RECEIPTS", "#UN-ACKED", "#WINDOW", "TLS"]
        expendable = ["TLS", "WINDOW", "RECEIPTS", "BYTES IN", "BYTES OUT", "KIND", "SINCE", "HEARD S AGO", "UN-ACKED"]
        print_rows(
            rows,
            limit,
            as_json,
            columns,
            lambda row: [
                row["id"],
                row["kind"],
                row["state"],
                row["address"],
                row["principal"],
                row["client_id"],
                row["opened_at"],
                row["heard_s"],
                row["sends"],
                row["messages"],
                row["bytes_in"],
                row["bytes_out"],
                row["receipts_waiting"],
                row["in_flight"],
                row["window"],
                row["tls"],
            ],
            [*expendable, "MESSAGES", "SENDS"],
        )

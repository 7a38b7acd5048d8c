"""`maxam-admin rejects`: list, show and resubmit rejected SENDs."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from maxam.cli.options import done, json_option, listing, print_rows, with_credentials
from maxam.https_client import Credentials, Remote, reject_path
from maxam.terminal.groups import LazyGroup
from maxam.terminal.moments import SINCE_HELP, Moment
from maxam.terminal.options import remark
from maxam.terminal.tables import print_fields, print_json, print_line


@click.group(
    cls=LazyGroup,
    lazy={
        "decode": (
            "maxam.cli.commands.rejects_decode:rejects_decode",
            "Decode the body of a rejected SEND up to its fault.",
        )
    },
)
def rejects() -> None:
    """Show the last rejected SENDs, why they were rejected, and send them again.

    They are those of this run of the gateway, of each principal the last ones. Older ones are in the journal: `maxam-pipeline rejects`.
    """


def _wanted_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose rejected SENDs."""
    for option in (
        click.option("--since", type=Moment(), help=f"Take only what was rejected since: {SINCE_HELP}"),
        click.option("--result", metavar="CODE", help="Take only SENDs with this result, such as schema-mismatch."),
        click.option("--destination", metavar="GLOB", help="Take only SENDs to matching destinations."),
        click.option("--principal", help="Take only SENDs of this principal."),
    ):
        verb = option(verb)
    return verb


@rejects.command("sums")
@_wanted_options
@listing(default=100, most=100)
def rejects_sums(
    credentials: Credentials,
    principal: str | None,
    destination: str | None,
    result: str | None,
    since: datetime | None,
    limit: int,
    as_json: bool,
) -> None:
    """Count rejected SENDs by principal and result, the largest number first, with the newest reason of each."""
    wanted = {"principal": principal, "destination": destination, "result": result}
    with Remote(credentials) as remote:
        answer = remote.get("/v1/reject-sums", **wanted, since=None if since is None else since.isoformat())
    rows: list[dict[str, Any]] = answer["sums"]
    print_rows(
        iter(rows),
        limit,
        as_json,
        ["#COUNT", "PRINCIPAL", "RESULT", "@LAST AT", "DESTINATION", "REASON"],
        ["DESTINATION", "LAST AT"],
        shortened=["REASON"],
        names=["principal", "result"],
    )


@rejects.command("list")
@_wanted_options
@listing()
def rejects_list(
    credentials: Credentials,
    principal: str | None,
    destination: str | None,
    result: str | None,
    since: datetime | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List rejected SENDs, the newest first."""
    wanted = {"principal": principal, "destination": destination, "result": result}
    with Remote(credentials) as remote:
        print_rows(
            remote.pages(
                "/v1/rejects", "rejects", limit=200, **wanted, since=None if since is None else since.isoformat()
            ),
            limit,
            as_json,
            ["ID", "@REJECTED AT", "PRINCIPAL", "DESTINATION", "RESULT", ("#BYTES", "body_bytes"), "REASON"],
            ["BYTES", "REJECTED AT", "RESULT"],
            shortened=["REASON"],
            names=["id"],
        )
        if as_json:
            return
        kept = remote.get("/v1/rejects", limit=1)
    remark(
        f"{kept['kept']} are kept since the gateway's start at {kept['since']}. {kept['forgotten']} more made room."
        " `maxam-pipeline rejects` reads older ones from the journal",
    )


@rejects.command("show")
@click.argument("reject_id", metavar="ID")
@json_option
@with_credentials
def rejects_show(credentials: Credentials, reject_id: str, as_json: bool) -> None:
    """Show one rejected SEND, and its body as far as the certificate may receive the destination."""
    with Remote(credentials) as remote:
        row = remote.get(reject_path(reject_id))
    if as_json:
        print_json(row)
        return
    fault, headers, body = row.pop("fault") or {}, row.pop("headers", []), row.pop("body", None)
    resubmissions = row.pop("resubmissions")
    row.pop("resubmitted")
    print_fields(
        [
            *row.items(),
            *((f"fault {name}", value) for name, value in fault.items() if value is not None),
            *((f"header {name}", text) for name, text in headers),
            *(("sent again", f"{one['at']} by {one['by']}: {one['disposition']}") for one in resubmissions),
        ]
    )
    if body is not None:
        print_line(body)


@rejects.command("resubmit")
@click.argument("reject_id", metavar="ID")
@click.option("--force", is_flag=True, help="Send it even if the topic has changed since.")
@json_option
@with_credentials
def rejects_resubmit(credentials: Credentials, reject_id: str, force: bool, as_json: bool) -> None:
    """Send a rejected SEND again, as this certificate's principal, to be judged by the rules and rights in force now."""
    with Remote(credentials) as remote:
        answer = remote.post(reject_path(reject_id) + "/resubmit", force=str(force).lower())
    result = f" ({answer['result']})" if "result" in answer else ""
    done(as_json, f"{answer['disposition']}{result}: {answer['destination']}", answer)

"""`maxam-admin enrolment`: make tokens for new clients; list and remove enrolled clients."""

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import click

from maxam.cli.arranging import FIELDS, NAMES_ONLY, SORT, setting
from maxam.cli.confirming import REMOVE_PRINCIPAL, REVOKE_TOKEN, ask, yes_option
from maxam.cli.options import done, json_option, listing, print_rows, with_credentials
from maxam.https_client import Credentials, Remote
from maxam.terminal.groups import CommandGroup
from maxam.terminal.moments import Duration
from maxam.terminal.options import RenamedOption
from maxam.terminal.tables import print_fields, print_json, print_line, print_table


@click.group(cls=CommandGroup)
def enrolment() -> None:
    """Create tokens for new clients; list and remove enrolled clients. Needs the admin right enrol."""


@enrolment.group()
def token() -> None:
    """Make, list and revoke one-time tokens."""


@token.command("create")
@click.argument("principal")
@click.option(
    "--capability", "capabilities", multiple=True, metavar="NAME", help="Capability of the new principal. Repeatable."
)
@click.option(
    "--owns", multiple=True, metavar="GLOB", help="Glob that its SENDs are limited to. Repeatable. [default: no limit]"
)
@click.option(
    "--valid-for",
    cls=RenamedOption,
    former=["--minutes"],
    type=Duration(timedelta(minutes=1), bare="m"),
    default="1h",
    show_default=True,
    help="Validity of the token, in whole minutes.",
)
@json_option
@with_credentials
def token_create(
    credentials: Credentials,
    principal: str,
    capabilities: tuple[str, ...],
    owns: tuple[str, ...],
    valid_for: timedelta,
    as_json: bool,
) -> None:
    """Make a token by which a new client becomes PRINCIPAL. It can be given no right that you do not hold yourself.

    The token is shown once. The first client that uses it becomes PRINCIPAL, so hand it over in private.
    """
    wanted: dict[str, object] = {
        "principal": principal,
        "capabilities": capabilities,
        "minutes": int(valid_for / timedelta(minutes=1)),
    }
    if owns:
        wanted["owns"] = owns
    with Remote(credentials) as remote:
        made = remote.post("/v1/enrolment-tokens", wanted)
    if as_json:
        print_json(made)
        return
    print_fields([(name, made[name]) for name in ("id", "principal", "expires_at", "token", "ca_sha256")])
    print_line(
        f"on the client: maxam-admin enrol FOLDER --at {made['host']}:{made['port']} --ca-sha256 {made['ca_sha256']}"
    )


@token.command("list")
@listing()
def token_list(credentials: Credentials, limit: int | None, as_json: bool) -> None:
    """List the tokens of the last 30 days, oldest first."""
    with Remote(credentials) as remote:
        rows = remote.get("/v1/enrolment-tokens")["tokens"]
    print_rows(
        iter(rows),
        limit,
        as_json,
        [
            "ID",
            "PRINCIPAL",
            ("CAPABILITIES", lambda row: " ".join(row["capabilities"])),
            ("OWNS", _owned),
            "MADE BY",
            "@EXPIRES AT",
            "@USED AT",
        ],
        ["OWNS", "CAPABILITIES", "MADE BY"],
        names=["id"],
    )


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@yes_option
@json_option
@with_credentials
def token_revoke(credentials: Credentials, token_id: str, yes: bool, as_json: bool) -> None:
    """Make a token worthless that was not used yet."""
    ask(REVOKE_TOKEN, token_id, yes)
    with Remote(credentials) as remote:
        remote.delete(f"/v1/enrolment-tokens/{token_id}")
    done(as_json, f"revoked {token_id}", {"id": token_id, "revoked": True})


@enrolment.command("list")
@listing()
def enrolment_list(credentials: Credentials, limit: int | None, as_json: bool) -> None:
    """List who was enrolled, and which certificates were renewed. JSON is one object that has both."""
    with Remote(credentials) as remote:
        answer = remote.get("/v1/enrolments")
    arranged = setting(NAMES_ONLY) or setting(SORT) or setting(FIELDS)
    if as_json and not arranged:
        print_json(answer)
        return
    print_rows(
        iter(answer["principals"]),
        limit,
        as_json,
        [
            "PRINCIPAL",
            ("CAPABILITIES", lambda row: " ".join(row["capabilities"])),
            ("OWNS", _owned),
            ("FINGERPRINTS", lambda row: " ".join([one[:16] for one in row["fingerprints"]])),
        ],
        ["OWNS", "CAPABILITIES"],
        names=["principal"],
    )
    if answer["renewals"] and not arranged:
        print_table(
            ["RENEWED", "RETIRED", "BY"],
            [
                (row["renews"][:16], row["retired"], " ".join([one[:16] for one in row["fingerprints"]]))
                for row in answer["renewals"]
            ],
        )


@enrolment.command("remove")
@click.argument("principal")
@yes_option
@json_option
@with_credentials
def enrolment_remove(credentials: Credentials, principal: str, yes: bool, as_json: bool) -> None:
    """Take PRINCIPAL, who was enrolled, out of the policy: it is closed at once. Its certificate is not revoked by that."""
    ask(REMOVE_PRINCIPAL, principal, yes)
    with Remote(credentials) as remote:
        remote.delete(f"/v1/enrolments?{urlencode({'principal': principal})}")
    done(as_json, f"removed {principal}", {"principal": principal, "removed": True})


def _owned(row: dict[str, Any]) -> str:
    return "(all)" if row["owns"] is None else " ".join(row["owns"])

"""`maxam-admin principals`: the principals of the policy in force, with rights, certificates, last use and sessions."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from maxam.cli.completion import principals as principal_names
from maxam.cli.options import json_option, listing, print_rows, with_credentials
from maxam.https_client import Credentials, NotFoundError, Remote
from maxam.terminal.groups import CommandGroup
from maxam.terminal.moments import Duration
from maxam.terminal.options import remark
from maxam.terminal.tables import print_fields, print_json, print_table


@click.group(cls=CommandGroup)
def principals() -> None:
    """List principals with their rights, certificates and sessions, and when each was seen last."""


@principals.command("list")
@click.option("--find", metavar="TEXT", help="List only principals with this text in their name or a capability.")
@click.option("--unseen-for", type=Duration(), help="List only those that were not seen for this long, such as 30d.")
@click.option("--expires-within", type=Duration(), help="List only those whose certificate expires within this time.")
@listing()
def principals_list(
    credentials: Credentials,
    find: str | None,
    unseen_for: timedelta | None,
    expires_within: timedelta | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List the principals of the policy, in order of their names.

    Uses of certificates are known since the start of the gateway. A certificate that was not used since then has no expiry here.
    """
    with Remote(credentials) as remote:
        since = _time(remote.get("/v1/principals", limit=1)["since"]) if unseen_for is not None else None
        now = datetime.now(UTC)
        if unseen_for is not None and since is not None and now - since < unseen_for:
            remark(f"the gateway started {since:%Y-%m-%d %H:%M} UTC: earlier uses are in the audit log only")
        rows = remote.pages("/v1/principals", "principals", limit=200, find=find)
        print_rows(
            _wanted(rows, now, unseen_for, expires_within),
            limit,
            as_json,
            [
                "PRINCIPAL",
                ("CAPABILITIES", lambda row: " ".join(row["capabilities"])),
                ("ADMIN", lambda row: " ".join(row["admin"])),
                ("@LAST SEEN", "last_seen_at"),
                "@VALID UNTIL",
                ("#CERTIFICATES", lambda row: len(row["certificates"])),
                "#SESSIONS",
                "#CONNECTED",
            ],
            ["CERTIFICATES", "ADMIN", "SESSIONS", "CAPABILITIES"],
            names=["principal"],
        )


@principals.command("show")
@click.argument("principal", shell_complete=principal_names)
@json_option
@with_credentials
def principals_show(credentials: Credentials, principal: str, as_json: bool) -> None:
    """Show one principal with its rights and certificates."""
    with Remote(credentials) as remote:
        found = remote.get("/v1/principals", principal=principal)["principals"]
    if not found:
        raise NotFoundError(f"the policy has no principal {principal}")
    [row] = found
    if as_json:
        print_json(row)
        return
    certificates = row.pop("certificates")
    print_fields((name, ", ".join(value) if isinstance(value, list) else value) for name, value in row.items())
    print_table(
        ["CERTIFICATE", "@LAST SEEN", "@VALID UNTIL", "ADDRESS"],
        [(one["fingerprint"], one["last_seen_at"], one["valid_until"], one["address"]) for one in certificates],
        ["ADDRESS"],
    )


def _wanted(
    rows: Iterator[dict[str, Any]], now: datetime, unseen_for: timedelta | None, expires_within: timedelta | None
) -> Iterator[dict[str, Any]]:
    for row in rows:
        seen, until = row["last_seen_at"], row["valid_until"]
        if unseen_for is not None and seen is not None and now - _time(seen) < unseen_for:
            continue
        if expires_within is not None and (until is None or _time(until) - now > expires_within):
            continue
        yield row


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)

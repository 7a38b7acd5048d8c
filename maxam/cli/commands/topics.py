"""`maxam-admin topics`: what the topics hold."""

import sys
from typing import Any, Final

import click

from maxam.cli.completion import destinations
from maxam.cli.confirming import DELETE_TOPIC, DELETE_TOPICS, ask, ask_many, dry_run_option, yes_option
from maxam.cli.options import (
    WHOLE,
    Column,
    done,
    full_option,
    json_option,
    listing,
    print_rows,
    with_credentials,
)
from maxam.counting import counted
from maxam.exit_codes import ExitCode
from maxam.https_client import Credentials, Remote, topic_path
from maxam.terminal.groups import LazyGroup
from maxam.terminal.options import remark
from maxam.terminal.tables import VALUE, cell, print_json

PAGE: Final = 200  # of a listing, and of the deletes in one request


@click.group(
    cls=LazyGroup,
    lazy={
        "get": ("maxam.cli.commands.topics_get:topics_get", "Show one topic and its value."),
        "history": (
            "maxam.cli.commands.history:topics_history",
            "Show the last changes of a topic, out of the journal.",
        ),
        "overdue": (
            "maxam.cli.commands.freshness:topics_overdue",
            "List the topics that match GLOB and are older than fresh_within_s of their rule, in order of their names.",
        ),
        "put": ("maxam.cli.commands.put:topics_put", "Send a value to a topic."),
        "watch": (
            "maxam.cli.commands.topics_watch:topics_watch",
            "Show the values of all topics that match GLOB, and each update of them, until Ctrl-C.",
        ),
    },
)
def topics() -> None:
    """Show, watch, put and delete topics, and see their history."""


@topics.command("list")
@click.argument("glob", default="**")
@click.option("--where", metavar="SELECTOR", help="List only topics whose value satisfies a selector.")
@click.option("--values", is_flag=True, help="Show values too, as far as the certificate may receive them.")
@full_option
@listing()
def topics_list(
    credentials: Credentials,
    glob: str,
    where: str | None,
    values: bool,
    full: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    """List the topics that match GLOB, in order of their names.

    A selector is a condition on fields and headers, as that of a SUBSCRIBE (docs/protocol.md, Selectors). With --where only topics are
    listed that the certificate may receive.

    \b
    maxam-admin topics list 'X/EGM.*.EGMStatus' --where "status = 'ONLINE' AND meters.turnover > 1000"
    """  # noqa: D301 a mark of click's: the lines stay as they are
    values = values or full
    with Remote(credentials) as remote:
        rows = remote.pages("/v1/topics", "topics", glob=glob, limit=200, values=str(values).lower(), where=where)
        columns: list[Column] = [
            "DESTINATION",
            "#REVISION",
            "@ACCEPTED AT",
            "PUBLISHER",
            ("SCHEMA", lambda row: f"{row['schema']} {row['schema_version']}".strip() or f"({row['encoding']})"),
            ("#BYTES", "body_bytes"),
            "@UNKNOWN SINCE",
        ]
        if values:
            columns.append((VALUE, lambda row: cell(_value_cell(row), None) if full else _value_cell(row)))
        print_rows(
            rows,
            limit,
            as_json,
            columns,
            ["SCHEMA", "PUBLISHER", "BYTES", "ACCEPTED AT"],
            WHOLE,
            optional=["@UNKNOWN SINCE"],
        )


@topics.command("delete")
@click.argument("destination", required=False, shell_complete=destinations)
@click.option("--glob", metavar="GLOB", help="Delete all topics that match this glob.")
@click.option(
    "--if-revision", type=click.IntRange(min=1), metavar="R", help="Delete only if the value has this revision."
)
@dry_run_option
@yes_option
@json_option
@with_credentials
def topics_delete(
    credentials: Credentials,
    destination: str | None,
    glob: str | None,
    if_revision: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete the value of a topic, or of many, each as a SEND of an empty body by this certificate's principal.

    \b
    maxam-admin topics delete X/EGM.7.EGMStatus
    maxam-admin topics delete --glob 'X/EGM.Q.*' --dry-run
    """  # noqa: D301 a mark of click's: the lines stay as they are
    if (destination is None) == (glob is None):
        raise click.UsageError("give either DESTINATION or --glob")
    with Remote(credentials) as remote:
        if glob is not None:
            if if_revision is not None:
                raise click.UsageError("--if-revision goes with DESTINATION")
            _delete_all(remote, glob, dry_run, yes, as_json)
            return
        assert destination is not None  # noqa: S101 as checked above
        if dry_run:
            remote.get(topic_path(destination))
            done(as_json, destination, {"destination": destination})
            return
        ask(DELETE_TOPIC, destination, yes)
        remote.delete(topic_path(destination), if_revision=if_revision)
    done(as_json, f"deleted {destination}", {"destination": destination, "disposition": "accepted"})


def _delete_all(remote: Remote, glob: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete all topics that match a glob; exits with 1 if some were rejected."""
    names = [row["destination"] for row in remote.pages("/v1/topics", "topics", glob=glob, limit=PAGE)]
    if dry_run:
        for name in names:
            done(as_json, name, {"destination": name})
        remark(f"{counted(len(names), 'topic')} would be deleted")
        return
    ask_many(DELETE_TOPICS, len(names), "topic", yes)
    deleted = 0
    rejected: dict[str, int] = {}
    for start in range(0, len(names), PAGE):
        answer = remote.post("/v1/deletions", {"destinations": names[start : start + PAGE]})
        deleted += answer["deleted"]
        for row in answer["deletions"]:
            if as_json:
                print_json(row)
            if row["reason"] is not None:
                rejected[row["outcome"]] = rejected.get(row["outcome"], 0) + 1
    if not as_json:
        done(as_json, f"deleted {counted(deleted, 'topic')}", {})
    for outcome, count in rejected.items():
        click.echo(f"{counted(count, 'delete')} rejected: {outcome}", err=True)
    if rejected:
        sys.exit(ExitCode.CHECK_FAILED)


def _value_cell(row: dict[str, Any]) -> object:
    match row["value_state"]:
        case "decoded":
            return row["value"]
        case "raw":
            return f"({row['problem']})"
        case state:
            return f"({state})"

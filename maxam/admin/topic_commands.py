"""`maxam-admin topics`: what the topics hold."""

import sys
from typing import Any

import click

from maxam.admin.completion import destinations
from maxam.admin.freshness_commands import topics_overdue
from maxam.admin.history_commands import topics_history
from maxam.admin.options import WHOLE, done, full_option, json_option, limit_option, print_rows, with_credentials
from maxam.admin.output import VALUE, cell, print_fields, print_json, print_line, print_value
from maxam.admin.put_commands import topics_put
from maxam.admin.remote import Credentials, NotFoundError, Remote, topic_path
from maxam.admin.repeating import watch_option


@click.group()
def topics() -> None:
    """Show, watch, put and delete topics, and see their history."""


topics.add_command(topics_history)
topics.add_command(topics_overdue)
topics.add_command(topics_put)


@topics.command("list")
@click.argument("glob", default="**")
@click.option("--values", is_flag=True, help="Show values too, as far as the certificate may receive them.")
@full_option
@limit_option
@json_option
@watch_option
@with_credentials
def topics_list(
    credentials: Credentials, glob: str, values: bool, full: bool, limit: int | None, as_json: bool
) -> None:
    """List the topics that match GLOB, in order of their names."""
    values = values or full
    with Remote(credentials) as remote:
        rows = remote.pages("/v1/topics", "topics", glob=glob, limit=200, values=str(values).lower())
        columns = ["DESTINATION", "#REVISION", "ACCEPTED AT", "PUBLISHER", "SCHEMA", "#BYTES"]
        expendable = ["SCHEMA", "PUBLISHER", "BYTES", "ACCEPTED AT"]
        print_rows(
            rows,
            limit,
            as_json,
            [*columns, VALUE] if values else columns,
            lambda row: [
                row["destination"],
                row["revision"],
                row["accepted_at"],
                row["publisher"],
                f"{row['schema']} {row['schema_version']}".strip() or f"({row['encoding']})",
                row["body_bytes"],
                *([cell(_value_cell(row), None) if full else _value_cell(row)] if values else []),
            ],
            expendable,
            WHOLE,
        )


@topics.command("get")
@click.argument("destination", shell_complete=destinations)
@json_option
@with_credentials
def topics_get(credentials: Credentials, destination: str, as_json: bool) -> None:
    """Show one topic and its value."""
    with Remote(credentials) as remote:
        topic = remote.get(topic_path(destination))
        if topic["value_state"] == "raw" and topic["schema"]:
            _decode_here(remote, topic)
    if as_json:
        print_json(topic)
        return
    state = topic.pop("value_state")
    value, body, headers = topic.pop("value", None), topic.pop("body", ""), topic.pop("headers", [])
    print_fields([*topic.items(), *((f"header {name}", text) for name, text in headers)])
    if state == "decoded":
        print_value(value)
    else:
        print_line(body if state == "raw" else "(the value is withheld: this certificate may not receive the topic)")


def _decode_here(remote: Remote, topic: dict[str, Any]) -> None:
    """Decode a value that the gateway left to us for its size."""
    from base64 import b64decode  # noqa: PLC0415 fastavro takes 50 ms to import, which the other verbs save

    from maxam.admin.judging import read_version  # noqa: PLC0415 likewise
    from maxam.admin.values import ValueDecodeError, decode_value  # noqa: PLC0415 likewise
    from maxam.records import Judgement  # noqa: PLC0415 likewise

    name, minor = topic["schema"], topic["schema_version"]
    judgement = Judgement(topic["encoding"], name, minor, b"", topic["value_offset"], topic["value_length"])
    try:
        version = read_version(remote, name, minor)
        if topic["schema_fingerprint"] not in (version.crc_64.hex(), version.sha_256.hex()):
            return  # what has the name now is another schema, as `problem` says
        value = decode_value(version.schema.text, b64decode(topic["body"]), judgement)
    except NotFoundError:
        return
    except ValueDecodeError as error:
        topic["problem"] = str(error)
        return
    for key in ("problem", "body", "value_offset", "value_length"):
        del topic[key]
    topic |= {"value_state": "decoded", "value": value}


@topics.command("delete")
@click.argument("destination", shell_complete=destinations)
@click.option("--if-revision", type=click.IntRange(min=1), metavar="R", help="Only if the value has this revision.")
@json_option
@with_credentials
def topics_delete(credentials: Credentials, destination: str, if_revision: int | None, as_json: bool) -> None:
    """Delete the value of a topic, as a SEND of an empty body by this certificate's principal."""
    condition = {} if if_revision is None else {"if_revision": if_revision}
    with Remote(credentials) as remote:
        remote.delete(topic_path(destination), **condition)
    done(as_json, f"deleted {destination}", {"destination": destination, "disposition": "accepted"})


@topics.command("watch")
@click.argument("glob")
@click.option("--stomp", metavar="HOST:PORT", help="STOMP listener. [default: the one that the gateway names]")
@click.option("--virtual-host", metavar="NAME", help="The host of CONNECT. [default: one that the gateway accepts]")
@click.option("--count", type=click.IntRange(min=1), help="End after so many updates.")
@click.option("--full", is_flag=True, help="Show values whole: an update a line, as long as it is, on a terminal too.")
@json_option
@with_credentials
def topics_watch(
    credentials: Credentials,
    glob: str,
    stomp: str | None,
    virtual_host: str | None,
    count: int | None,
    full: bool,
    as_json: bool,
) -> None:
    """Show the values of all topics that match GLOB, and each update of them, until Ctrl-C.

    With --stomp it needs no admin right, only the right to receive.
    """
    from maxam.admin.watch import Style, watch  # noqa: PLC0415 trio and the client take 200 ms to import

    style: Style = "json" if as_json else "whole" if full else "table" if sys.stdout.isatty() else "lines"
    watch(credentials, glob, stomp, virtual_host, style, count)


def _value_cell(row: dict[str, Any]) -> object:
    match row["value_state"]:
        case "decoded":
            return row["value"]
        case "raw":
            return f"({row['problem']})"
        case state:
            return f"({state})"

"""The `maxam-admin` command.

Exit codes: 0 done, 1 refused or not found, 2 usage. Listings with `--json` print one object a line.
"""

import sys
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import click
from cryptography import x509

from maxam.admin.audit_commands import audit
from maxam.admin.certificate_commands import certs
from maxam.admin.certificates import fingerprint as certificate_fingerprint
from maxam.admin.certificates import issue_development_certificates
from maxam.admin.enrolment_commands import enrol, enrolment
from maxam.admin.journal_commands import journal
from maxam.admin.options import FILE, FOLDER, Group, done, first_rows, json_option, limit_option, with_credentials
from maxam.admin.output import VALUE, print_fields, print_json, print_line, print_table, print_value
from maxam.admin.policy_commands import policy
from maxam.admin.reject_commands import rejects
from maxam.admin.reload_commands import reload
from maxam.admin.remote import Credentials, NotFoundError, Remote, session_path, topic_path
from maxam.admin.schema_commands import schemas
from maxam.compiled import version
from maxam.errors import ConfigurationError

DEFAULT_GATEWAY: Final = "localhost:8643"


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version(), prog_name="maxam", message="%(prog)s %(version)s")
@click.option(
    "--gateway",
    envvar="MAXAM_GATEWAY",
    default=DEFAULT_GATEWAY,
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    help="Admin listener of the gateway.",
)
@click.option("--certificate", envvar="MAXAM_CERTIFICATE", show_envvar=True, type=FILE, help="Our certificate, PEM.")
@click.option("--key", envvar="MAXAM_KEY", show_envvar=True, type=FILE, help="Its key, PEM, without a password.")
@click.option(
    "--ca", envvar="MAXAM_CA", show_envvar=True, type=FILE, help="The CA that signed the gateway's certificate."
)
@click.option(
    "--server-name",
    envvar="MAXAM_SERVER_NAME",
    show_envvar=True,
    metavar="NAME",
    help="Name that the gateway's certificate must carry. [default: any that the CA signed]",
)
@click.pass_context
def main(
    context: click.Context,
    gateway: str,
    certificate: Path | None,
    key: Path | None,
    ca: Path | None,
    server_name: str | None,
) -> None:
    """Look into a running maxam gateway and act on it; check the files that belong to one."""
    context.obj = Credentials(gateway, certificate, key, ca, server_name)


# Topics.


@main.group()
def topics() -> None:
    """Show, watch and delete topics."""


@topics.command("list")
@click.argument("glob", default="**")
@click.option("--values", is_flag=True, help="Show values too, as far as the certificate may receive them.")
@limit_option
@json_option
@with_credentials
def topics_list(credentials: Credentials, glob: str, values: bool, limit: int | None, as_json: bool) -> None:
    """List the topics that match GLOB, in order of their names."""
    with Remote(credentials) as remote:
        rows = remote.pages("/v1/topics", "topics", glob=glob, limit=200, values=str(values).lower())
        if as_json:
            for row in islice(rows, limit):
                print_json(row)
            return
        columns = ["DESTINATION", "#REVISION", "ACCEPTED AT", "PUBLISHER", "SCHEMA", "#BYTES"]
        table = [
            [
                row["destination"],
                row["revision"],
                row["accepted_at"],
                row["publisher"],
                f"{row['schema']} {row['schema_version']}".strip() or f"({row['encoding']})",
                row["body_bytes"],
                *([_value_cell(row)] if values else []),
            ]
            for row in first_rows(rows, limit)
        ]
    expendable = ["SCHEMA", "PUBLISHER", "BYTES", "ACCEPTED AT"]
    print_table([*columns, VALUE] if values else columns, table, expendable)


@topics.command("get")
@click.argument("destination")
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
@click.argument("destination")
@json_option
@with_credentials
def topics_delete(credentials: Credentials, destination: str, as_json: bool) -> None:
    """Delete the value of a topic, as a SEND of an empty body by this certificate's principal."""
    with Remote(credentials) as remote:
        remote.delete(topic_path(destination))
    done(as_json, f"deleted {destination}", {"destination": destination, "disposition": "accepted"})


@topics.command("watch")
@click.argument("glob")
@click.option("--stomp", metavar="HOST:PORT", help="STOMP listener. [default: the one that the gateway names]")
@click.option("--virtual-host", metavar="NAME", help="The host of CONNECT. [default: one that the gateway accepts]")
@click.option("--count", type=click.IntRange(min=1), help="End after so many updates.")
@json_option
@with_credentials
def topics_watch(
    credentials: Credentials, glob: str, stomp: str | None, virtual_host: str | None, count: int | None, as_json: bool
) -> None:
    """Show the values of all topics that match GLOB, and each update of them, until Ctrl-C.

    With --stomp it needs no admin right, only the right to receive.
    """
    from maxam.admin.watch import watch  # noqa: PLC0415 trio and the client take 200 ms to import

    style: Literal["json", "table", "lines"] = "json" if as_json else "table" if sys.stdout.isatty() else "lines"
    watch(credentials, glob, stomp, virtual_host, style, count)


# Sessions.


@main.group()
def sessions() -> None:
    """Show, disconnect and end sessions."""


@sessions.command("list")
@limit_option
@json_option
@with_credentials
def sessions_list(credentials: Credentials, limit: int | None, as_json: bool) -> None:
    """List all sessions, in order of principal and client-id."""
    with Remote(credentials) as remote:
        rows = remote.pages("/v1/sessions", "sessions", limit=200)
        if as_json:
            for row in islice(rows, limit):
                print_json(row)
            return
        table = [
            [
                row["principal"],
                row["client_id"],
                row["connected"],
                row["durable"],
                row["peer"],
                row["connected_at"],
                row["subscriptions"],
                row["owed"],
                row["unacked"],
                row["window"],
            ]
            for row in first_rows(rows, limit)
        ]
    expendable = ["WINDOW", "SINCE", "SUBSCRIPTIONS", "PEER", "DURABLE", "UN-ACKED", "OWED"]
    columns = ["PRINCIPAL", "CLIENT-ID", "CONNECTED", "DURABLE", "PEER", "SINCE"]
    print_table([*columns, "#SUBSCRIPTIONS", "#OWED", "#UN-ACKED", "#WINDOW"], table, expendable)


@sessions.command("show")
@click.argument("principal")
@click.argument("client_id")
@json_option
@with_credentials
def sessions_show(credentials: Credentials, principal: str, client_id: str, as_json: bool) -> None:
    """Show one session and its subscriptions."""
    with Remote(credentials) as remote:
        session = remote.get(session_path(principal, client_id))
    if as_json:
        print_json(session)
        return
    subscriptions = session.pop("subscriptions")
    print_fields(session.items())
    print_table(
        ["SUBSCRIPTION", "GLOB", "ACK", "DURABLE", "DELIVERING", "#OWED", "#UN-ACKED", "#CONFLATED"],
        [
            (s["id"], s["glob"], s["ack"], s["durable"], s["delivering"], s["owed"], s["unacked"], s["conflated"])
            for s in subscriptions
        ],
    )


@sessions.command("kick")
@click.argument("principal")
@click.argument("client_id")
@json_option
@with_credentials
def sessions_kick(credentials: Credentials, principal: str, client_id: str, as_json: bool) -> None:
    """Close the live connection of a session with an ERROR; what it owes stays."""
    with Remote(credentials) as remote:
        remote.post(session_path(principal, client_id) + "/kick")
    done(as_json, f"kicked {principal} {client_id}", {"principal": principal, "client_id": client_id, "kicked": True})


@sessions.command("drop")
@click.argument("principal")
@click.argument("client_id")
@json_option
@with_credentials
def sessions_drop(credentials: Credentials, principal: str, client_id: str, as_json: bool) -> None:
    """End a session for good: its connection, its durable subscriptions and all that they owe."""
    with Remote(credentials) as remote:
        remote.delete(session_path(principal, client_id))
    done(as_json, f"dropped {principal} {client_id}", {"principal": principal, "client_id": client_id, "dropped": True})


# Files; no gateway is needed.


@main.command()
@click.argument("certificate", type=FILE)
@json_option
def fingerprint(certificate: Path, as_json: bool) -> None:
    """Print what a policy names the certificate in a PEM file by."""
    try:
        found = certificate_fingerprint(x509.load_pem_x509_certificate(certificate.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"{certificate} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{certificate} holds no PEM certificate: {error}") from error
    done(as_json, found, {"file": str(certificate), "fingerprint": found})


@main.command("dev-certs")
@click.argument("folder", type=FOLDER)
@json_option
def dev_certs(folder: Path, as_json: bool) -> None:
    """Make a development CA with certificates for a server and four clients, replacing what is in FOLDER."""
    try:
        fingerprints = issue_development_certificates(folder, datetime.now(UTC))
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from error
    if as_json:
        print_json(fingerprints)
    else:
        print_fields(fingerprints.items())


def _value_cell(row: dict[str, Any]) -> object:
    match row["value_state"]:
        case "decoded":
            return row["value"]
        case "raw":
            return f"({row['problem']})"
        case state:
            return f"({state})"


main.add_command(schemas)
main.add_command(certs)
main.add_command(enrol)
main.add_command(enrolment)
main.add_command(policy)
main.add_command(audit)
main.add_command(journal)
main.add_command(reload)
main.add_command(rejects)

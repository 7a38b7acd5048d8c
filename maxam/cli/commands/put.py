"""`maxam-admin topics put`: set the value of a topic."""

import json
import sys
from pathlib import Path
from typing import Any, Final

import click

from maxam.avro.registry import Registry
from maxam.cli.commands.schema_bodies import FORMS, INPUT, read_input
from maxam.cli.completion import destinations
from maxam.cli.options import done, json_option, with_credentials
from maxam.errors import ConfigurationError
from maxam.exit_codes import ExitCode
from maxam.https_client import Credentials, Remote, RemoteError, topic_path
from maxam.schema_tools.trial import BINARY, JSON, bytes_of, form_of, trial
from maxam.schema_tools.validating import EVERYTHING, fetch_registry
from maxam.terminal.tables import print_json, print_line

_INVALID: Final = "rejected-invalid"
_OF_GLOBS: Final = frozenset("*?[]{}!\\")  # a destination with one of these is no glob of itself


@click.command("put", short_help="Send a value to a topic.")
@click.argument("destination", shell_complete=destinations)
@click.argument("file", type=INPUT)
@click.option("--as", "form", type=click.Choice(FORMS), help="Form of the body in FILE. [default: detected]")
@click.option("--schema-version", metavar="M", help="Schema version of the value. [default: the newest]")
@click.option("--header", "headers", metavar="NAME:VALUE", multiple=True, help="Header of the SEND. Repeatable.")
@click.option(
    "--if-revision",
    type=click.IntRange(min=0),
    metavar="R",
    help="Send only if the value has this revision. 0 requires that there is no value.",
)
@click.option("--source", metavar="NAME", help="Name of the value's source, with --source-revision.")
@click.option(
    "--source-revision",
    type=click.IntRange(min=0),
    metavar="N",
    help="Number of the value in its source. The gateway refuses older ones after it.",
)
@json_option
@with_credentials
def topics_put(
    credentials: Credentials,
    destination: str,
    file: Path,
    form: str | None,
    schema_version: str | None,
    headers: tuple[str, ...],
    if_revision: int | None,
    source: str | None,
    source_revision: int | None,
    as_json: bool,
) -> None:
    """Send the value in FILE (`-`: standard input) to a topic, as a SEND of this certificate's principal.

    FILE holds JSON, which is encoded by the rule of the destination, or the body as hexadecimal text, or as it is. Of a body that
    is rejected the field, what was expected and what was found is shown, as by `schemas test`. Exit code 1 when it is rejected.

    \b
    maxam-admin topics put X/EGM.Q.12345.EGMStatus status.json
    echo '{"venueId": 7}' | maxam-admin topics put X/Venue.7.VenueStatus - --if-revision 0 --header 'note:test'
    """  # noqa: D301 a mark of click's: the lines stay as they are
    data = read_input(file)
    form = form or form_of(data)
    given = {
        "headers": json.dumps([_pair(text) for text in headers]) if headers else None,
        "if_revision": if_revision,
        "source": source,
        "source_revision": source_revision,
    }
    with Remote(credentials) as remote:
        if form == JSON:
            registry = _registry(remote, destination)
            rule = registry.rule_for(destination)
            if rule is not None and rule.version_required:
                schema_version = schema_version or rule.minors[0]
            body = trial(registry, data, str(file), destination, JSON, schema_version).body
        else:
            body = bytes_of(data, form, str(file))
        if not body:
            raise ConfigurationError(
                f"{file}: an empty body would delete the value: `maxam-admin topics delete` does that"
            )
        parameters = {
            name: value for name, value in {**given, "schema_version": schema_version}.items() if value is not None
        }
        try:
            answer = remote.put(topic_path(destination), body, **parameters)
        except RemoteError as error:
            if error.disposition != _INVALID:
                raise
            every = _registry(
                remote, destination, whole=True
            )  # so that the rule has the number that `schemas explain` shows
            found = trial(every, body, str(file), destination, BINARY, schema_version)
            if found.accepted:  # it was refused for something else than the body
                raise
            if as_json:
                print_json(found.facts())
            else:
                for line in found.lines():
                    print_line(line)
            sys.exit(ExitCode.CHECK_FAILED)
    done(as_json, _said(destination, answer), answer)


def _registry(remote: Remote, destination: str, *, whole: bool = False) -> Registry:
    """Fetch the gateway's rules and schemas, as far as they can be those of a destination or as a whole."""
    whole = whole or bool(_OF_GLOBS & set(destination)) or "/" not in destination
    return fetch_registry(remote, EVERYTHING if whole else destination)


def _pair(text: str) -> list[str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise click.BadParameter(f"{text!r} is not NAME:VALUE", param_hint="--header")
    return [name, value]


def _said(destination: str, answer: dict[str, Any]) -> str:
    if answer["result"] is not None:
        return f"{answer['disposition']} ({answer['result']}): {destination} stays as it is"
    return f"{answer['disposition']}: {destination} has revision {answer['revision']}"

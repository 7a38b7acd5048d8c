"""`maxam-admin schemas new`, `bump`, `release` and `plan`: change a schema folder, and what a change would do."""

import sys
from collections.abc import Callable
from pathlib import Path

import click

from maxam.avro.folder import read_schema_texts
from maxam.cli.commands.schema_options import folder_argument, folder_option
from maxam.cli.options import json_option, limit_option, with_credentials
from maxam.errors import ConfigurationError
from maxam.https_client import Credentials, Remote
from maxam.schema_tools.edits import Edit, new_type, next_minor, release, write
from maxam.schema_tools.folder import load_folder
from maxam.schema_tools.plan import make_plan
from maxam.terminal.tables import print_json, print_line


@click.command("new", short_help="Make a new type, and a rule for it.")
@click.argument("type_name", metavar="TYPE")
@click.option("--destination", metavar="GLOB", help="Make a rule for these destinations, too.")
@click.option(
    "--encoding",
    type=click.Choice(("datum", "single-object", "envelope", "confluent")),
    default="datum",
    show_default=True,
    help="Encoding of the rule.",
)
@click.option(
    "--like", metavar="TYPE", help="Copy the newest minor of this type instead of a scaffold, for a new major."
)
@folder_option
@json_option
def schemas_new(
    type_name: str, destination: str | None, encoding: str, like: str | None, folder: Path, as_json: bool
) -> None:
    """Make a new TYPE, <namespace>.<name>_v<major>: a file to put its fields into, and a rule in registry.toml.

    The rules in registry.toml stay as they are. The new rule comes last, or before the first rule that would take all of its
    destinations. `registry.lock` is made when there is none; the new minor is not in it until `schemas release`, and may be
    changed until then. Nothing is written unless the folder is good before and after.

    \b
    maxam-admin schemas new venue.DoorSensor_v1 --destination 'X/VENUE.*.DoorSensor' --encoding single-object
    maxam-admin schemas new egm.EGMStatus_v2 --like egm.EGMStatus_v1
    """  # noqa: D301 a mark of click's: the lines stay as they are
    _change(folder, as_json, lambda texts: new_type(texts, type_name, destination, encoding, like))


@click.command("bump", short_help="Copy the newest version of a type to the next one.")
@click.argument("type_name", metavar="TYPE")
@click.option("--release", is_flag=True, help="Release the newest minor in the same step.")
@click.option(
    "--candidate", is_flag=True, help="Make a candidate, which judges nothing until it is renamed; a rule may try it."
)
@folder_option
@json_option
def schemas_bump(type_name: str, release: bool, candidate: bool, folder: Path, as_json: bool) -> None:
    """Copy the newest version of TYPE to the next minor version, and list the changes since the version before.

    Edit the copy. The command is refused while the newest version is not released: edit that one, or release it first with
    --release. Nothing is written unless the folder is valid before and after.

    \b
    maxam-admin schemas bump egm.EGMStatus_v1
    """  # noqa: D301 a mark of click's: the lines stay as they are
    _change(folder, as_json, lambda texts: next_minor(texts, type_name, release, candidate))


@click.command("release", short_help="Put schema versions into registry.lock.")
@click.argument("type_names", metavar="[TYPE]...", nargs=-1)
@folder_option
@json_option
def schemas_release(type_names: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Put all versions of these types, or of all types, into registry.lock. A change of their text is an error from then on.

    Release a version when it goes into use, and commit the lock with it. A release cannot be undone: correct a released
    version with the next one.

    \b
    maxam-admin schemas release egm.EGMStatus_v1
    """  # noqa: D301 a mark of click's: the lines stay as they are
    _change(folder, as_json, lambda texts: release(texts, type_names))


def _change(folder: Path, as_json: bool, make: Callable[[dict[str, bytes]], Edit]) -> None:
    texts = read_schema_texts(folder)
    edit = make(texts)
    write(folder, texts, edit)
    if as_json:
        print_json(dict(edit.facts))
        return
    for line in edit.said:
        print_line(line)


@click.command("plan", short_help="Show what a folder would do to a running gateway.")
@folder_argument
@limit_option("Show at most this many rows of each kind.", 100)
@json_option
@with_credentials
def schemas_plan(credentials: Credentials, folder: Path, limit: int, as_json: bool) -> None:
    """Show what a schema folder would do to a running gateway before it is put into force there.

    Every present value is judged by the folder's rules as if its publisher sent it again. The rows show the publishers that would
    be rejected, and why. They show topics without a rule, and the recently rejected SENDs that would pass.
    Needs the admin right `read`; values that the certificate may not receive are counted, not judged. Reads the topics a page
    at a time and changes nothing. Exit code 1 when a publisher would break, a topic would lose its rule, or the folder is no good.
    With --json each row is an object on a line; the last line sums up.

    \b
    maxam-admin schemas plan next/schemas
    """  # noqa: D301 a mark of click's: the lines stay as they are
    registry = load_folder(folder)
    progress = click.echo if sys.stderr.isatty() else None
    with Remote(credentials) as remote:
        plan = make_plan(
            remote, registry, None if progress is None else lambda text: click.echo(f"\r{text}", err=True, nl=False)
        )
    if progress is not None:
        click.echo("\r\033[K", err=True, nl=False)
    if as_json:
        for row in plan.rows():
            print_json(row)
    else:
        plan.print(limit)
    if plan.breaks:
        raise ConfigurationError(plan.verdict)

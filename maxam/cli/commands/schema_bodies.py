"""`maxam-admin schemas test`, `encode` and `decode`: bodies of SENDs and their schemas."""

import sys
from pathlib import Path
from typing import Final

import click

from maxam.cli.commands.schema_options import Command, registry_of, registry_options
from maxam.cli.options import FILE, json_option, with_credentials
from maxam.errors import ConfigurationError
from maxam.exit_codes import ExitCode
from maxam.https_client import Credentials
from maxam.schema_tools.trial import decode, encode, trial
from maxam.terminal.options import RenamedOption
from maxam.terminal.tables import print_json, print_line, print_value

INPUT: Final = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
INPUT_BYTES_MAX: Final = 67_108_864  # of a file that is tried: far above what any frame may hold
FORMS: Final = ("json", "hex", "binary")
CONTEXT_BYTES: Final = 8  # shown before and after a fault


def read_input(file: Path) -> bytes:
    """Read a file, or standard input for `-`; raises ConfigurationError."""
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(INPUT_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    if len(data) > INPUT_BYTES_MAX:
        raise ConfigurationError(f"{file} is larger than {INPUT_BYTES_MAX} bytes; is it the right file?")
    return data


_as_option: Final = click.option(
    "--as", "form", type=click.Choice(FORMS), help="Form of the body in FILE. [default: detected]"
)
_version_header_option: Final = click.option(
    "--schema-version", metavar="MINOR", help="Value of the header schema-version of the SEND."
)


@click.command("test", short_help="Show what the broker would answer to a body.")
@click.argument("file", type=INPUT)
@click.option("--destination", required=True, metavar="D", help="Destination of the SEND.")
@_as_option
@_version_header_option
@registry_options
@json_option
@with_credentials
def schemas_test(
    credentials: Credentials,
    file: Path,
    destination: str,
    form: str | None,
    schema_version: str | None,
    folder: Path,
    live: bool,
    as_json: bool,
) -> None:
    """Show what the broker would answer to a SEND of the body in FILE (`-`: standard input) to a destination.

    FILE holds the body as it is, or as hexadecimal text, or a value as JSON, which is encoded by the rule first. The
    headers of the RECEIPT are shown as the broker would send them: the same code makes them. For a rejected body the field, the
    expected and the actual value, and the bytes around it follow. Only the body is judged. Whether a client
    may send there depends on the policy. Exit code 0 when it would be accepted, else 1.

    \b
    maxam-admin schemas test status.json --destination X/EGM.Q.12345.EGMStatus
    printf '02' | maxam-admin schemas test - --destination X/EGM.Q.12345.EGMStatus --as hex
    """  # noqa: D301 a mark of click's: the lines stay as they are
    registry = registry_of(credentials, folder, live)
    found = trial(registry, read_input(file), str(file), destination, form, schema_version)
    if as_json:
        print_json(found.facts())
    else:
        for line in found.lines():
            print_line(line)
        if found.value_known:
            print_value(found.value)
    if not found.accepted:
        sys.exit(ExitCode.CHECK_FAILED)


_target_options: Final = (
    click.option("--destination", metavar="D", help="Destination whose rule gives type and encoding."),
    click.option("--type", "type_name", metavar="TYPE", help="Type of the body, without --destination."),
    click.option(
        "--encoding",
        metavar="E",
        help="datum, single-object, envelope, confluent or none. [default: the rule's, else datum]",
    ),
    click.option(
        "--schema-version",
        "minor",
        cls=RenamedOption,
        former=["--minor"],
        metavar="VERSION",
        help="Schema version of the type. [default: the newest]",
    ),
)


def _with_target(verb: Command) -> Command:
    for option in reversed(_target_options):
        verb = option(verb)
    return verb


@click.command("encode", short_help="Make a body of JSON.")
@click.argument("file", type=INPUT)
@_with_target
@click.option("--hex", "as_hex", is_flag=True, help="Write hexadecimal text. [default: to a terminal]")
@click.option("--out", type=FILE, help="File to write. [default: standard output]")
@registry_options
@with_credentials
def schemas_encode(
    credentials: Credentials,
    file: Path,
    destination: str | None,
    type_name: str | None,
    encoding: str | None,
    minor: str | None,
    as_hex: bool,
    out: Path | None,
    folder: Path,
    live: bool,
) -> None:
    """Make a body of the JSON in FILE (`-`: standard input), in any encoding.

    The JSON is that of `decode`, `topics get` and the console. Bytes and fixed are base64, decimals text, dates and times
    ISO 8601. A record out of a union of several is {"<type name>": {...}}. Fields that have a default may be left out. With
    encoding `none` the JSON is a text of base64.

    \b
    maxam-admin schemas encode status.json --destination X/EGM.Q.12345.EGMStatus --out status.bin
    maxam-admin schemas encode status.json --type egm.EGMStatus_v1 --schema-version 1.0 --encoding envelope --hex
    """  # noqa: D301 a mark of click's: the lines stay as they are
    registry = registry_of(credentials, folder, live)
    body = encode(registry, read_input(file), str(file), destination, type_name, encoding, minor)
    if as_hex or (out is None and sys.stdout.isatty()):
        body = body.hex().encode() + b"\n"
    if out is None:
        click.echo(body, nl=False)
        return
    try:
        out.write_bytes(body)
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror}") from error


@click.command("decode", short_help="Show a body as JSON.")
@click.argument("file", type=INPUT)
@_with_target
@click.option("--as", "form", type=click.Choice(FORMS[1:]), help="Form of the body in FILE. [default: detected]")
@registry_options
@json_option
@with_credentials
def schemas_decode(
    credentials: Credentials,
    file: Path,
    destination: str | None,
    type_name: str | None,
    encoding: str | None,
    minor: str | None,
    form: str | None,
    folder: Path,
    live: bool,
    as_json: bool,
) -> None:
    """Show the body in FILE (`-`: standard input), binary or hexadecimal text, as JSON.

    It is judged first, as the broker would: what is not valid is not shown, but explained. With --json the value stands in an
    object with the minor that it follows; else it stands alone, as `encode` takes it.

    \b
    maxam-admin schemas decode status.bin --destination X/EGM.Q.12345.EGMStatus
    echo 'C3 01 ...' | maxam-admin schemas decode - --type egm.EGMStatus_v1 --encoding single-object
    """  # noqa: D301 a mark of click's: the lines stay as they are
    registry = registry_of(credentials, folder, live)
    of_type, of_header = (None, minor) if type_name is None else (minor, None)  # as the SEND declares it, by its rule
    found = decode(registry, read_input(file), str(file), form, destination, type_name, encoding, of_type, of_header)
    if as_json:
        print_json(found.facts)
        return
    if found.note:
        click.echo(found.note, err=True)
    print_value(found.value)

"""`maxam-admin schemas types`: types of the values in the languages of clients."""

import shlex
from pathlib import Path
from typing import Final, cast

import click

from maxam.avro.registry import Registry
from maxam.cli.commands.schema_options import registry_of, registry_options
from maxam.cli.options import with_credentials
from maxam.errors import ConfigurationError
from maxam.https_client import Credentials
from maxam.schema_tools.folder import version_of
from maxam.schema_tools.type_texts import Language, Longs, type_texts

# The languages of Avro's own generators, which work on the binary form of values: the command, and its needs.
GENERATORS: Final = {
    "java": (
        "java -jar avro-tools-1.12.1.jar compile -string schema {files} generated",
        "avro-tools 1.12.1 needs a JVM",
    ),
    "go": ("avrogen -pkg values -o values.go {files}", "avrogen of github.com/hamba/avro/v2 2.31.0 needs Go"),
}


@click.command("types")
@click.argument("type_names", metavar="[TYPE]...", nargs=-1)
@click.option(
    "--language",
    type=click.Choice(["typescript", "python", "csharp", *GENERATORS]),
    required=True,
    help="Language of the declarations.",
)
@click.option(
    "--longs",
    type=click.Choice(["text", "bigint"]),
    default="text",
    show_default=True,
    help="Form of 64-bit integers in TypeScript: text beyond 2^53, or bigint, with the option `longs` of @maxam/client.",
)
@registry_options
@with_credentials
def schemas_types(
    credentials: Credentials,
    type_names: tuple[str, ...],
    language: str,
    longs: Longs,
    folder: Path,
    live: bool,
) -> None:
    """Print the declarations of each TYPE, by default of all types.

    For TypeScript, Python and C# these are the values as JSON shows them, which subscribers with `accept-format:json` receive.
    One declaration serves all versions of a type. For Java and Go the command prints how to run Avro's own generator over the
    newest versions in the folder, for values in binary form.

    \b
    maxam-admin schemas types egm.EGMStatus_v1 --language typescript > egm-status.ts
    maxam-admin schemas types --language python > values.py
    maxam-admin schemas types --language csharp > Values.cs
    maxam-admin schemas types --language java
    """  # noqa: D301 a mark of click's: the lines stay as they are
    registry = registry_of(credentials, folder, live)
    names = type_names or tuple(registry.types())
    for name in names:
        version_of(registry, name, None)  # reports one that does not exist
    if language not in GENERATORS:
        click.echo(type_texts(registry, names, cast("Language", language), longs), nl=False)
        return
    if live:
        raise ConfigurationError(f"--language {language} works on the files of a folder: leave --live out")
    command, needs = GENERATORS[language]
    files = [shlex.quote(str(folder / path)) for path in _in_order(registry, names)]
    click.echo(f"# {needs}")
    click.echo(command.format(files=" ".join(files)))


def _in_order(registry: Registry, names: tuple[str, ...]) -> list[str]:
    """Return the files of the newest versions, each after those of the types that it holds."""
    paths: dict[str, str] = {}

    def enter(name: str) -> None:
        if name not in paths:
            version = version_of(registry, name, None)
            for used in version.schema.uses:
                enter(used)
            paths[name] = version.path

    for name in sorted(names):
        enter(name)
    return list(paths.values())

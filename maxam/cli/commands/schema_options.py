"""The options of the commands about schema folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from maxam.avro.registry import Registry
from maxam.cli.options import FOLDER
from maxam.errors import ConfigurationError
from maxam.https_client import Credentials, Remote
from maxam.schema_tools.folder import load_folder
from maxam.schema_tools.validating import fetch_registry

FOLDER_VARIABLE: Final = "MAXAM_SCHEMAS"
FOLDER_DEFAULT: Final = "schemas"

Command = TypeVar("Command", bound=Callable[..., Any])
folder_option: Final = click.option(
    "--folder",
    type=FOLDER,
    envvar=FOLDER_VARIABLE,
    show_envvar=True,
    default=FOLDER_DEFAULT,
    show_default=True,
    help="The schema folder.",
)
folder_argument: Final = click.argument("folder", type=FOLDER, envvar=FOLDER_VARIABLE, default=FOLDER_DEFAULT)


def registry_options(verb: Command) -> Command:
    """Give a command `--folder` and `--live`."""
    live = click.option(
        "--live", is_flag=True, help="Ask the gateway (--admin) for what is in force there, instead of the folder."
    )
    return folder_option(live(verb))


def registry_of(credentials: Credentials, folder: Path, live: bool) -> Registry:
    """Return the registry of a folder, or with `live` that in force in the gateway."""
    if live:
        with Remote(credentials) as remote:
            return fetch_registry(remote)
    if not folder.exists():
        raise ConfigurationError(
            f"there is no schema folder {folder}. Give one with --folder, or ask the gateway: --live"
        )
    return load_folder(folder)

"""Options that several demos have."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., object])


def folder_option(default: str) -> Callable[[_F], _F]:
    """Return the option for the folder of a demo."""
    return click.option(
        "--folder",
        type=click.Path(path_type=Path),
        default=Path(default),
        show_default=True,
        help="Folder for certificates, configurations, journals and logs. It is made again at each start.",
    )


schemas_option: Final = click.option(
    "--schemas",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("schemas"),
    show_default=True,
    help="Folder of the shipped schemas.",
)


def machines_option(default: int, most: int, text: str) -> Callable[[_F], _F]:
    """Return the option for the number of machines."""
    return click.option("--machines", type=click.IntRange(1, most), default=default, show_default=True, help=text)


seconds_option: Final = click.option(
    "--seconds", type=click.FloatRange(0.1), help="End after this time. By default Ctrl-C ends it."
)

"""`maxam-admin bench`: run `maxam-bench`."""

import os
import shutil
import sys
from pathlib import Path
from typing import Final

import click

from maxam.errors import ConfigurationError

_PROGRAM: Final = "maxam-bench"


@click.command(
    add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Run maxam-bench with ARGUMENTS: measure load, latency and freshness of a broker."""
    called = Path(sys.argv[0])  # of an installed gateway a link, whose target has maxam-bench beside it
    found = [folder / _PROGRAM for folder in (called.parent, called.resolve().parent) if (folder / _PROGRAM).is_file()]
    program = str(found[0]) if found else shutil.which(_PROGRAM)
    if program is None:
        raise ConfigurationError(f"{_PROGRAM} is neither beside {Path(sys.argv[0]).name} nor on the path")
    os.execv(program, [_PROGRAM, *arguments])  # noqa: S606 it takes our place: its output and exit code are ours

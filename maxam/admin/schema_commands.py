"""The verbs `maxam-admin schemas ...`."""

from pathlib import Path

import click

from maxam.admin.options import FOLDER, json_option
from maxam.admin.output import print_fields, print_json, print_line


@click.group()
def schemas() -> None:
    """Check schema folders."""


@schemas.command("check")
@click.argument("folder", type=FOLDER)
@json_option
def schemas_check(folder: Path, as_json: bool) -> None:
    """Load a schema folder as the gateway would, and say what is wrong with it."""
    from maxam.config import Limits  # noqa: PLC0415 with the next line
    from maxam.gateway.sources import read_registry  # noqa: PLC0415 fastavro and the broker take 100 ms to import

    registry = read_registry(folder, Limits())
    minors = {name: [version.minor for version in registry.versions(name)] for name in registry.types()}
    if as_json:
        print_json({"folder": str(folder), "rules": len(registry.rules), "types": minors})
        return
    print_line(f"{folder}: good, {len(registry.rules)} rules, {len(minors)} types")
    if minors:
        print_fields((name, " ".join(found)) for name, found in minors.items())

"""The verbs `maxam-admin policy ...`."""

from pathlib import Path

import click

from maxam.admin.options import FILE, done, json_option


@click.group()
def policy() -> None:
    """Check policies."""


@policy.command("check")
@click.argument("file", type=FILE)
@json_option
def policy_check(file: Path, as_json: bool) -> None:
    """Load a policy as the gateway would, and say what is wrong with it."""
    from maxam.config import Limits  # noqa: PLC0415 fastavro and the broker take 100 ms to import
    from maxam.gateway.sources import read_policy  # noqa: PLC0415 fastavro and the broker take 100 ms to import

    read_policy(file, Limits())
    done(as_json, f"{file}: good", {"file": str(file), "good": True})

"""`maxam-admin config`: addresses and certificate in use, and the origin of each."""

import sys
from pathlib import Path

import click

from maxam.cli.options import json_option
from maxam.client_config import FILES, Given
from maxam.exit_codes import ExitCode
from maxam.terminal.tables import print_json, print_table


@click.command()
@json_option
@click.pass_obj
def config(given: Given, as_json: bool) -> None:
    """Show the admin address and the certificate in use, and where each is set. Exit with 1 if a file is missing.

    These are settings of this command. `maxam-gateway --config FILE --check` checks the configuration of a gateway.
    """
    rows = []
    for setting in given.resolve().values():
        problem = ""
        if setting.key in FILES:
            if setting.value is None:
                problem = "missing"
            else:
                try:
                    Path(setting.value).open("rb").close()
                except OSError as error:
                    problem = error.strerror or "cannot be read"
        rows.append({"setting": setting.key, "value": setting.value, "from": setting.origin, "problem": problem})
    if as_json:
        for row in rows:
            print_json(row)
    else:
        print_table(["SETTING", "VALUE", "FROM", "PROBLEM"], [list(row.values()) for row in rows])
    if any(row["problem"] for row in rows):
        sys.exit(ExitCode.CHECK_FAILED)

"""`maxam-admin config`: which gateway is asked, with which certificate, and what says so."""

import sys
from pathlib import Path

import click

from maxam.admin.client_config import FILES, Given
from maxam.admin.options import json_option
from maxam.admin.output import print_json, print_table


@click.command()
@json_option
@click.pass_obj
def config(given: Given, as_json: bool) -> None:
    """Show which gateway is asked and with which certificate, and what says so; exits with 1 if something is missing."""
    rows = []
    for setting in given.resolve():
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
        sys.exit(1)

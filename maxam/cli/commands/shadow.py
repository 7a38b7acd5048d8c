"""`maxam-admin schemas shadow`: how candidate versions judge live traffic."""

from typing import Any

import click

from maxam.cli.options import json_option, with_credentials
from maxam.https_client import Credentials, Remote
from maxam.terminal.tables import print_json, print_line, print_table


@click.command("shadow")
@json_option
@with_credentials
def shadow(credentials: Credentials, as_json: bool) -> None:
    """Show what candidate versions would have made of live traffic: what share they would have rejected, whose, and why."""
    with Remote(credentials) as remote:
        rules = list(remote.pages("/v1/shadow", "rules", limit=100))
    if as_json:
        for rule in rules:
            print_json(rule)
        return
    if not rules:
        print_line('no rule of the registry has a candidate (shadow = "<minor>")')
    for number, rule in enumerate(rules):
        if number:
            print_line("")
        _print_trials(rule)


def _print_trials(rule: dict[str, Any]) -> None:
    print_line(
        f"{rule['destination']}: {rule['schema']} {rule['candidate']} ({rule['file']}), in force: {', '.join(rule['judges'])}"
    )
    if not rule["tried"]:
        print_line(f"{rule['seen']} seen, none tried")
        return
    share = rule["rejected_share"]
    print_line(
        f"{rule['seen']} seen, {rule['tried']} tried: {100 * share:.3g} % would be rejected. {rule['fits']} fit, {rule['older']} are of an"
        f" older version and readable. {rule['newly_accepted']} are rejected now and would be accepted"
    )
    counts = ["seen", "tried", "fits", "older", "rejected", "newly_accepted"]
    print_table(
        ["PRINCIPAL", *(f"#{name.upper().replace('_', ' ')}" for name in counts)],
        [[row["principal"], *(row[name] for name in counts)] for row in rule["principals"]],
        remedy="--json shows all",
    )
    if rule["reasons"]:
        print_table(
            ["PRINCIPAL", "#COUNT", "WHY", "EXAMPLE", "AT"],
            [
                [
                    row["principal"],
                    row["count"],
                    row["problem"],
                    row["example"]["destination"],
                    row["example"]["at"],
                ]
                for row in rule["reasons"]
            ],
            ["AT"],
        )

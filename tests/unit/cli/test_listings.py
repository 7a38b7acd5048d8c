"""Listings are sorted, cut to chosen fields or to names, and show ages on a terminal; options of the connection follow a command too."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from maxam.cli import arranging
from maxam.cli.main import main
from maxam.cli.options import limit_option, listing_option, print_rows
from maxam.terminal import tables
from maxam.terminal.moments import age
from maxam.terminal.options import WIDE

ROWS: list[dict[str, Any]] = [
    {"name": "b", "owed": 2, "seen_at": "2026-01-01T00:00:00Z", "up": True},
    {"name": "c", "owed": None, "seen_at": None, "up": False},
    {"name": "a", "owed": 10, "seen_at": "2026-01-02T00:00:00Z", "up": True},
]


@click.command()
@limit_option()
@listing_option
def listing(limit: int | None, as_json: bool) -> None:
    """List ROWS."""
    rows: Iterator[dict[str, Any]] = iter(ROWS)
    print_rows(rows, limit, as_json, ["NAME", "#OWED"], names=["name", "up"])


def shown(*arguments: str) -> Result:
    """Run the listing."""
    return CliRunner().invoke(listing, arguments)


def names(*arguments: str) -> str:
    """Return the names of the rows, in order, as JSON, names and table show them alike."""
    as_json = "".join(json.loads(line)["name"] for line in shown(*arguments, "--json").stdout.splitlines())
    assert as_json == "".join(line[0] for line in shown(*arguments, "-o", "name").stdout.splitlines())
    assert as_json == "".join(line[0] for line in shown(*arguments).stdout.splitlines()[2:])
    return as_json


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        ([], "bca"),
        (["--sort", "name"], "abc"),
        (["--sort", "-name"], "cba"),
        (["--sort", "owed"], "bac"),
        (["--sort", "-owed"], "abc"),
        (["--sort", "-owed", "-n", "1"], "a"),
        (["--sort", "owed", "-n", "2"], "ba"),
        (["--sort", "seen_at"], "bac"),
    ],
)
def test_listings_are_sorted(arguments: list[str], order: str) -> None:
    """By texts and numbers, up and down. Rows without the value are last. A limit counts after the sorting."""
    assert names(*arguments) == order


@given(st.lists(st.none() | st.integers() | st.text() | st.booleans()), st.none() | st.integers(1, 5), st.booleans())
def test_a_limit_takes_the_first_of_all(values: list[Any], limit: int | None, falls: bool) -> None:
    """The first rows of a sorted listing are the same with and without a limit, whatever the values are."""

    def arranged(most: int | None) -> list[Any]:
        context = click.Context(listing)
        context.meta[arranging.SORT] = "-value" if falls else "value"
        with context:
            return [row["value"] for row in arranging.in_wanted_order(iter([{"value": one} for one in values]), most)]

    everything = arranged(None)
    assert len(everything) == len(values)
    assert arranged(limit) == everything[:limit]


def test_fields_are_chosen() -> None:
    """A table and JSON have the fields that are asked for, in that order. A field that no row has is a wrong command line."""
    assert json.loads(shown("--columns", "owed,name", "--json").stdout.splitlines()[0]) == {"owed": 2, "name": "b"}
    assert shown("--columns", "up, name").stdout.splitlines()[0].split() == ["UP", "NAME"]
    assert shown("-o", "name").stdout.splitlines()[0] == "b\tTrue"
    for wrong in (["--columns", "none"], ["--sort", "none"], ["--columns", "none", "--json"]):
        assert shown(*wrong).exit_code == 2
        assert "owed" in shown(*wrong).stderr


def test_times_are_ages_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """There they are as long ago as they are; in a pipe and with `-o wide` they are times."""
    now = datetime.now(UTC)
    at = (now - timedelta(hours=3)).isoformat()
    assert str(age(at, now)).endswith("ago")
    assert str(age((now + timedelta(days=3)).isoformat(), now)).startswith("in ")
    assert [age(one, now) for one in (None, "", "soon", 7)] == [None, "", "soon", 7]
    tables.print_table(["NAME", "@SEEN"], [["a", at]])
    assert at in capsys.readouterr().out
    terminal = Console(width=80, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(tables, "console", lambda: terminal)
    for wide in (False, True):
        context = click.Context(listing)
        context.meta[WIDE] = wide
        with context:
            tables.print_table(["NAME", "@SEEN"], [["a", at]])
        assert (at in capsys.readouterr().out) is wide


def test_options_of_the_connection_follow_a_command(tmp_path: Path) -> None:
    """`--admin` counts before and after a command, in both spellings. An option that the command has itself is the command's."""

    def admin(*arguments: str) -> str:
        run = CliRunner().invoke(main, [*arguments, "--json"])
        rows = {row["setting"]: row["value"] for row in map(json.loads, run.stdout.splitlines())}
        return str(rows["admin"])

    for arguments in (
        ["--admin", "a:1", "config"],
        ["config", "--admin", "a:1"],
        ["config", "--admin=a:1"],
        ["config", "-a", "a:1", "--server-name", "x"],
        ["--admin", "b:2", "config", "--gateway", "a:1"],
    ):
        assert admin(*arguments) == "a:1"
    missing = tmp_path / "none.pem"
    own = CliRunner().invoke(main, ["policy", "explain", "--cert", str(missing), "--send", "X/a", "-a", "a:1"])
    assert str(missing) in own.stderr
    assert CliRunner().invoke(main, ["health", "--", "--admin", "a:1"]).exit_code == 2


LISTINGS = frozenset(("list", "members", "orphans", "overdue", "problems", "reload-status", "slow", "sums", "wills"))


def listings(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Iterate over all commands that list rows."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from listings(command, f"{path}{name} ")
        elif command is not None and name in LISTINGS:
            yield f"{path}{name}", command


def test_each_listing_is_arranged() -> None:
    """Every command that lists rows can print names alone, sort, choose fields and limit the rows."""
    found = dict(listings(main))
    assert len(found) >= 15
    for path, command in found.items():
        options = {option.name: option for option in command.params}
        assert {"sort", "columns", "limit", "output"} <= options.keys(), path
        assert isinstance(options["output"].type, click.Choice)
        assert "name" in options["output"].type.choices, path


def test_version_and_help_are_understood() -> None:
    """As users of other tools type them: `version`, `help`, and `help COMMAND`."""

    def printed(*arguments: str) -> str:
        done = CliRunner().invoke(main, arguments, prog_name="maxam-admin")
        assert done.exit_code == 0, done.output
        return done.output

    assert printed("version") == printed("--version")
    assert printed("help") == printed("--help")
    assert printed("help", "topics", "list") == printed("topics", "list", "--help")


def test_a_renewed_certificate_is_told_from_its_successor(tmp_path: Path) -> None:
    """`certs list` shows which certificate followed which, and those alone that expire soon and were not renewed."""
    folder, variables = str(tmp_path / "ca"), {"MAXAM_CA_PASSPHRASE": "correct horse battery staple"}

    def certs(*words: str) -> list[dict[str, Any]]:
        done = CliRunner().invoke(main, ["certs", *words, "--json"], env=variables)
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    certs("ca", folder)
    for name, days in (("old", "10d"), ("soon", "10d"), ("late", "90d")):
        certs("issue", folder, name, "--to", str(tmp_path / name), "--valid-for", days)
    [old, _, _] = certs("list", folder)
    certs("renew", folder, old["fingerprint"], "--to", str(tmp_path / "next"), "--valid-for", "90d")
    rows = certs("list", folder)
    assert [row["name"] for row in rows] == ["old", "soon", "late", "old"]
    assert [row["renewed_by"] for row in rows] == [rows[3]["fingerprint"], "", "", ""]
    assert [row["name"] for row in certs("list", folder, "--expires-within", "30d")] == ["soon"]
    assert [row["name"] for row in certs("list", folder, "--sort", "name", "-n", "1")] == ["late"]


def test_a_missing_schema_folder_leads_to_the_gateway(tmp_path: Path) -> None:
    """On a machine without a schema folder, the error shows the two ways on."""
    done = CliRunner().invoke(main, ["schemas", "list", "--folder", str(tmp_path / "none")])
    assert done.exit_code != 0
    assert "--live" in done.stderr
    assert "--folder" in done.stderr

"""The options that all commands share: form of output, quiet, durations and points in time, former names."""

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from cryptography import x509
from rich.console import Console

from maxam.bench.main import main as bench
from maxam.cli.main import main
from maxam.pipeline.main import main as pipeline
from maxam.terminal import tables
from maxam.terminal.moments import Duration, Moment
from maxam.terminal.options import WIDE, RenamedOption

PROGRAMS = {"maxam-admin": main, "maxam-bench": bench, "maxam-pipeline": pipeline}


def run(*arguments: str) -> str:
    """Run a command that succeeds; return its output."""
    result = CliRunner().invoke(main, arguments, env={"MAXAM_CA_PASSPHRASE": "a passphrase of some length"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_in_both_spellings(tmp_path: Path) -> None:
    """`-o json` and `--json` are one thing; a former name of a command prints the same."""
    run("certs", "dev", str(tmp_path))
    file = str(tmp_path / "operator.pem")
    outputs = {
        run("certs", "fingerprint", file, "-o", "json"),
        run("certs", "fingerprint", file, "--format", "json"),
        run("certs", "fingerprint", file, "--json"),
        run("fingerprint", file, "--json"),
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("program", "arguments", "code"),
    [
        ("maxam-admin", "topics get X/a --json", "certificate-invalid"),
        ("maxam-admin", "topics list -o json", "certificate-invalid"),
        ("maxam-admin", "certs fingerprint none.pem --json", "configuration-invalid"),
        ("maxam-pipeline", "latest --journal none --format json", "file-not-found"),
    ],
)
def test_errors_of_json_are_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, arguments: str, code: str
) -> None:
    """A command whose output is JSON prints an error as one JSON object on standard error, with the code of the line."""
    monkeypatch.chdir(tmp_path)
    given = ["--admin", "127.0.0.1:9", "--cert", "c.pem", "--key", "c.key", "--ca", "a.pem"]
    common = given if program == "maxam-admin" else []
    words = arguments.split()
    result = CliRunner().invoke(PROGRAMS[program], [*common, *words])
    assert result.stdout == ""
    (key, error), *others = json.loads(result.stderr).items()
    assert (key, error["code"], others) == ("error", code, [])
    plain = [word for word in words if word not in {"--json", "-o", "--format", "json"}]
    line = CliRunner().invoke(PROGRAMS[program], [*common, *plain])
    assert line.stderr == f"Error [{code}]: {error['message']}\n"
    assert line.exit_code == result.exit_code > 0


def test_quiet_leaves_out_confirmations_and_keeps_results(tmp_path: Path) -> None:
    """`-q` prints no line about a finished action, and every result."""
    assert run("certs", "ca", str(tmp_path / "one")) != ""
    assert run("certs", "ca", str(tmp_path / "two"), "-q") == ""
    assert len(run("certs", "fingerprint", str(tmp_path / "two/ca.pem"), "-q")) == 65


def test_wide_tables_have_all_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow terminal leaves columns out, except `-o wide`."""
    terminal = Console(width=20, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(tables, "console", lambda: terminal)
    for wide, titles in ((False, ["DESTINATION"]), (True, ["DESTINATION", "SCHEMA"])):
        context = click.Context(click.Command("x"))
        context.meta[WIDE] = wide
        with context:
            tables.print_table(["DESTINATION", "SCHEMA"], [["X/a", "s" * 30]], ["SCHEMA"])
        assert capsys.readouterr().out.splitlines()[0].split() == titles


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("2h", 7200), ("7d", 604_800), ("1.5h", 5400)]
)
def test_durations(text: str, seconds: float) -> None:
    """A duration is a number with a unit, and the same ago as a point in time."""
    length = Duration().convert(text, None, None)
    assert length == timedelta(seconds=seconds)
    before = datetime.now(UTC)
    moment = Moment().convert(text, None, None)
    assert before - length <= moment <= datetime.now(UTC) - length


def test_a_number_alone_is_of_the_former_unit() -> None:
    """Where a former spelling had a unit of its own, a number alone goes on meaning that; elsewhere it is refused."""
    assert Duration(bare="m").convert("60", None, None) == timedelta(hours=1)
    for kind, text in ((Duration(), "60"), (Duration(bare="s"), "0"), (Moment(), "60"), (Duration(timedelta(1)), "1h")):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)
    assert Duration(zero=True, bare="s").convert("0", None, None) == timedelta()


def test_a_renamed_option_shows_its_present_name_only() -> None:
    """The former name and variable work, and no help shows them."""

    @click.command()
    @click.option("--new", cls=RenamedOption, former=["--old"], envvar=["NEW", "OLD"], show_envvar=True, help="Name.")
    def command(new: str | None) -> None:
        click.echo(new)

    runner = CliRunner()
    assert runner.invoke(command, ["--old", "a"]).stdout == runner.invoke(command, ["--new", "a"]).stdout == "a\n"
    assert runner.invoke(command, [], env={"OLD": "b"}).stdout == "b\n"
    assert runner.invoke(command, [], env={"OLD": "b", "NEW": "c"}).stdout == "c\n"
    shown = runner.invoke(command, ["--help"]).stdout
    assert "--new" in shown
    assert "old" not in shown.lower()


def test_former_spellings_of_durations_count_in_their_former_unit(tmp_path: Path) -> None:
    """`--days 90` is `--valid-for 90d`."""
    authority = str(tmp_path / "ca")
    run("certs", "ca", authority)
    for option, value in (("--days", "90"), ("--valid-for", "90d")):
        run("certs", "issue", authority, "a", "--to", str(tmp_path / f"for{option}"), option, value)
    made = [x509.load_pem_x509_certificate(path.read_bytes()) for path in tmp_path.glob("for*/a.pem")]
    assert {one.not_valid_after_utc.date() - one.not_valid_before_utc.date() for one in made} == {timedelta(days=90)}


def test_short_options_are_the_same_everywhere() -> None:
    """An option has its short form in all commands of all programs, and no short form has two meanings."""
    shorts: dict[str, set[str]] = defaultdict(set)
    for option in (one for program in PROGRAMS.values() for one in options(program, click.Context(program))):
        for long in (name for name in option.opts if name.startswith("--")):
            shorts[long] |= {name for name in option.opts if not name.startswith("--")} or {""}
    assert {long: names for long, names in shorts.items() if len(names) > 1 and long != "--help"} == {}
    used = [name for names in shorts.values() for name in names if name]
    assert sorted(used) == sorted(set(used))


def options(command: click.Command, context: click.Context) -> Iterator[click.Option]:
    """Iterate over the options of a command and of those in it; former commands left out."""
    yield from (one for one in command.params if isinstance(one, click.Option) and not getattr(one, "former", ()))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from options(child, context)

"""`maxam-conformance`: certify a client library of any language."""

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import cast

import click
import trio

from maxam.compiled import version
from maxam.conformance.driver import BrokenPromiseError
from maxam.conformance.reporting import print_verdicts, write_transcript
from maxam.conformance.running import PROMISES, Run, make_plan
from maxam.conformance.server import Transport
from maxam.exit_codes import ExitCode
from maxam.terminal.groups import CommandGroup
from maxam.terminal.moments import Duration
from maxam.terminal.options import YAML
from maxam.terminal.tables import print_json, print_table


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version(), prog_name="maxam", message="%(prog)s %(version)s")
def conformance() -> None:
    """Certify a client library of any language. docs/integrate/conformance.md explains drivers and promises."""


@conformance.command("promises")
@click.option(
    "-o",
    "--format",
    "output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Form of the output. json is one object per line, yaml one document each.",
)
def promises_command(output: str) -> None:
    """List the promises that are judged."""
    rows = [(one.code, one.level, one.text) for one in PROMISES.values()]
    if output in ("json", "yaml"):
        click.get_current_context().meta[YAML] = output == "yaml"
        for code, level, text in rows:
            print_json({"code": code, "level": level, "text": text})
    else:
        print_table(("CODE", "LEVEL", "PROMISE"), rows)


@conformance.command("run")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--transport",
    type=click.Choice(["tls", "wss"]),
    default="tls",
    show_default=True,
    help="How the library connects: mutual TLS, or a WebSocket with tickets.",
)
@click.option(
    "--only", multiple=True, type=click.Choice(list(PROMISES)), metavar="CODE", help="Judge this promise. Repeatable."
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the first case.")
@click.option(
    "--runs", type=click.IntRange(1), default=3, show_default=True, help="Cases of each seeded promise, one seed each."
)
@click.option("--steps", metavar="N,N", help="Play only these steps of a seeded case, as a failure lists them.")
@click.option("--shrink", "shrinks", is_flag=True, help="Find the steps that are enough for a failure.")
@click.option("--jobs", type=click.IntRange(1), default=4, show_default=True, help="Cases at the same time.")
@click.option(
    "--timeout",
    type=Duration(timedelta(seconds=1), bare="s"),
    default="45s",
    show_default=True,
    help="Time in which a library must do what it promises. Its longest pause counts.",
)
@click.option(
    "--quiet-time",
    type=Duration(timedelta(milliseconds=100), bare="s"),
    default="2s",
    show_default=True,
    help="Time in which a library must not do what it promised not to do.",
)
@click.option(
    "--heart-beat",
    type=Duration(timedelta(seconds=1), bare="s"),
    default="2s",
    show_default=True,
    help="Interval of heart-beats that the library is asked for where they are judged.",
)
@click.option(
    "--transcripts",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write the frames of each case that failed into this folder.",
)
@click.option(
    "-o",
    "--format",
    "output",
    type=click.Choice(["table", "json", "yaml", "junit"]),
    default="table",
    show_default=True,
    help="Form of the verdicts. json is one object per line, yaml one document each; junit is XML with a test for each promise.",
)
def run_command(
    *,
    command: Sequence[str],
    transport: str,
    only: Sequence[str],
    seed: int,
    runs: int,
    steps: str | None,
    shrinks: bool,
    jobs: int,
    timeout: timedelta,
    quiet_time: timedelta,
    heart_beat: timedelta,
    transcripts: Path | None,
    output: str,
) -> None:
    """Judge a library by its driver, which COMMAND starts. Put `--` before a COMMAND with options of its own."""
    numbers = _numbers(steps)
    with tempfile.TemporaryDirectory(prefix="maxam-conformance-") as folder:
        plan = make_plan(
            Path(folder),
            command=command,
            transport=cast("Transport", transport),
            heart_beat_ms=int(heart_beat.total_seconds() * 1000),
            timeout_s=timeout.total_seconds(),
            quiet_s=quiet_time.total_seconds(),
            errors=None if transcripts is None else subprocess.DEVNULL,
        )
        run = Run(plan, only, seed, runs, numbers, shrinks, jobs)
        try:
            verdicts = trio.run(run.judge)
        except (BrokenPromiseError, OSError) as error:
            raise click.UsageError(f"{shlex.join(command)}: {error}") from error
    print_verdicts(verdicts, output, command, plan.transport)
    if transcripts is not None:
        transcripts.mkdir(parents=True, exist_ok=True)
        for code, transcript in run.transcripts.items():
            write_transcript(transcripts / f"{code}.txt", transcript)
    if any(one.verdict in ("fail", "blocked") for one in verdicts):
        sys.exit(ExitCode.CHECK_FAILED)


def _numbers(steps: str | None) -> list[int] | None:
    try:
        return None if steps is None else [int(one) for one in steps.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{steps!r} is no list of numbers such as 0,3", param_hint="--steps") from error

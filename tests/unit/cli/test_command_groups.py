"""The groups of commands of all programs: their tables are those of their commands."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Final

import click
import pytest

from maxam.terminal.groups import LazyGroup

PROGRAMS: Final = {"maxam-admin": "maxam.cli.main", "maxam-pipeline": "maxam.pipeline.main"}


def tables(group: LazyGroup, path: str) -> Iterator[tuple[str, click.Command, str]]:
    """Iterate over the entries of the tables of a group and the groups in it: the path, the command and the summary."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if name in group.lazy:
            yield f"{path} {name}", command, group.lazy[name][1]
        if isinstance(command, LazyGroup) and not command.hidden:
            yield from tables(command, f"{path} {name}")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_table_has_the_summary_of_each_command(program: str) -> None:
    """A group's list, which imports no command, shows the first sentence of the help of each; aliases have none there."""
    main = import_module(PROGRAMS[program]).main
    found = list(tables(main, program))
    assert len(found) >= 10
    for path, command, summary in found:
        assert command.hidden == (not summary), path
        assert not summary or summary == command.get_short_help_str(300), path


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("complete", [False, True])
def test_a_list_of_commands_imports_none(program: str, complete: bool) -> None:
    """Neither --help nor the completion of a command's name imports the module of a command."""
    module = PROGRAMS[program]
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    asked = {variable: "zsh_complete", "COMP_WORDS": f"{program} ", "COMP_CWORD": "1"} if complete else {}
    script = f"""
import sys
from {module} import main
try:
    main(["--help"], prog_name="{program}")
finally:
    rooms = ("maxam.cli.commands.", "maxam.pipeline.jobs.", "maxam.pipeline.history.", "pyspark", "cryptography", "trio")
    print(*[name for name in sys.modules if name.startswith(rooms)], file=sys.stderr)
"""
    run = subprocess.run([sys.executable, "-c", script], env=asked, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert ("journal" if program == "maxam-admin" else "changes") in run.stdout
    assert run.stderr.split() == []


@pytest.mark.parametrize("program", ["gateway", "admin", "bench", "bridge", "pipeline"])
def test_help_of_a_program_loads_no_work_of_it(program: str) -> None:
    """`--help` needs neither the event loop nor certificates nor Spark, each of which takes a tenth of a second to import."""
    script = f"""
import sys
from maxam.programs import {program}
sys.argv = ["maxam-{program}", "--help"]
try:
    {program}()
finally:
    print(*(sys.modules.keys() & {{"trio", "cryptography", "asyncio", "fastavro", "pyspark"}}), file=sys.stderr)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr.split()) == (0, [])

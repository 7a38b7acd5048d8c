"""The verbs `maxam-admin journal ...`: they read and mend folders, and need no gateway."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maxam.admin.options import FOLDER, json_option
from maxam.admin.output import print_json, print_table
from maxam.errors import ConfigurationError, JournalError

if TYPE_CHECKING:
    from maxam.journal.verify import FileReport


@click.group()
def journal() -> None:
    """Check journals."""


@journal.command("verify")
@click.argument("folder", type=FOLDER)
@json_option
def journal_verify(folder: Path, as_json: bool) -> None:
    """Read every file of a journal and say whether it is whole; changes nothing, and a gateway may be running."""
    from maxam.journal.disk import OsDisk  # noqa: PLC0415 the broker takes 100 ms to import
    from maxam.journal.verify import verify  # noqa: PLC0415 the broker takes 100 ms to import

    if not (folder / "segments").is_dir():
        raise ConfigurationError(f"{folder} is not the folder of a journal: it has no folder `segments`")
    try:
        reports = list(verify(folder, OsDisk()))
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be read: {error.strerror}") from error
    damaged = [report for report in reports if report.problem is not None and not report.torn]
    if as_json:
        for report in reports:
            print_json(asdict(report))
    else:
        print_table(
            ["FILE", "#BYTES", "#RECORDS", "#FIRST", "#LAST", "STATE"],
            [(str(Path(r.path).relative_to(folder)), r.length, r.records, r.first, r.last, _state(r)) for r in reports],
        )
    if damaged:
        raise JournalError(f"{len(damaged)} of {len(reports)} files are damaged")


def _state(report: "FileReport") -> str:
    if report.problem is None:
        return "good"
    if report.torn:
        return f"unfinished write at byte {report.offset}: the next start cuts it off"
    return f"byte {report.offset}: {report.problem}"

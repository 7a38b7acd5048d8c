"""The verbs `maxam-admin journal ...`: they read, mend, copy and restore folders, and but for `status` need no gateway."""

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from maxam.admin.options import FOLDER, Group, done, json_option, with_credentials
from maxam.admin.output import print_fields, print_json, print_line, print_table
from maxam.admin.remote import Credentials, Remote
from maxam.admin.repeating import watch_option
from maxam.counting import counted
from maxam.errors import ConfigurationError, JournalError

if TYPE_CHECKING:
    from maxam.admin.journal_schemas import JournalSchemas
    from maxam.journal.backup import Done
    from maxam.journal.repair import Plan
    from maxam.journal.verify import FileReport
    from maxam.records import Change, RejectedSend

Body = Literal["none", "hex", "value"]

# A repair does not know the gateway's `source_retention_s`: what it keeps too long of deleted topics, the next snapshot forgets.
_SOURCE_RETENTION_S: Final = 315_360_000.0
_DUMP_BODY_BYTES_MAX: Final = 64  # of a body in hex on a line for people
_ROWS_MAX: Final = 50  # topics and sessions that a repair names on the screen; --json names all


@click.group(cls=Group)
def journal() -> None:
    """Check, dump, mend, back up and restore journals; see how that of a gateway does."""


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Turn what the system says into one line."""
    if not (folder / "segments").is_dir():
        raise ConfigurationError(f"{folder} is not the folder of a journal: it has no folder `segments`")
    with _one_line():
        yield


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigurationError(f"{error.filename or 'the disk'}: {error.strerror}") from error


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).strftime("%Y%m%dT%H%M%S.%fZ")


@journal.command("status")
@json_option
@watch_option
@with_credentials
def journal_status(credentials: Credentials, as_json: bool) -> None:
    """Show what is in the journal of a gateway, where it stands, and how its disk does."""
    with Remote(credentials) as remote:
        told = remote.get("/v1/journal")
    if as_json:
        print_json(told)
        return
    segments, opened, snapshots, rejected = told["segments"], told["open"], told["snapshots"], told["rejected"]
    disk, commits = told["disk"], told["commits"]
    states = [state for state in ("full", "slow", "low") if disk[state]]
    print_fields(
        [
            ("folder", told["folder"]),
            ("durability", told["durability"]),
            (
                "head, committed",
                f"{told['head']}, {told['committed']}; {counted(told['waiting'], 'operation')} waiting",
            ),
            (
                "sealed segments",
                f"{segments['count']}, {_size(segments['bytes'])}"
                + (f", revisions {segments['first']} to {segments['last']}" if segments["count"] else ""),
            ),
            ("  records from, to", f"{segments['oldest_at'] or '-'}, {segments['newest_at'] or '-'}"),
            (
                "open segment",
                f"{_size(opened['bytes'])}, revisions {opened['first']} to {opened['last']}" if opened else "none",
            ),
            (
                "newest snapshot",
                f"revision {snapshots['revision']}, {snapshots['age_s']:.0f} s old, {_size(snapshots['bytes'])}"
                if snapshots["count"]
                else "none",
            ),
            (
                "archive keeps",
                f"{counted(told['archive']['days_max'], 'day', 'g')}, {_size(told['archive']['bytes_max'])} (0: all)",
            ),
            (
                "rejected SENDs",
                f"{counted(rejected['count'], 'segment')}, {_size(rejected['bytes'])} of {_size(rejected['bytes_max'])}",
            ),
            (
                "disk",
                f"{'unknown' if disk['free_bytes'] is None else _size(disk['free_bytes'])} free, warns below "
                f"{_size(disk['free_bytes_min'])}: {', '.join(states) or 'well'}",
            ),
            (
                "commits",
                f"{commits['count']} in {commits['over_s']:.0f} s; p50 {_ms(commits['p50_s'])}, p99 {_ms(commits['p99_s'])}, last "
                f"{_ms(commits['last_s'])}",
            ),
            *([("problem", told["problem"])] if told["problem"] else []),
        ]
    )


def _size(count: int) -> str:
    """Return bytes as people read them."""
    if count < 10_240:
        return counted(count, "byte")
    power = min(4, (count.bit_length() - 1) // 10)
    return f"{count / 1024**power:.1f} {('', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.3g} ms"


@journal.command("verify")
@click.argument("folder", type=FOLDER)
@json_option
def journal_verify(folder: Path, as_json: bool) -> None:
    """Read every file of a journal, or of a backup, and say whether it is whole; changes nothing, and a gateway may be running."""
    from maxam.journal.backup import MANIFEST, verify_manifest  # noqa: PLC0415 with the next lines
    from maxam.journal.disk import OsDisk  # noqa: PLC0415 the broker takes 100 ms to import
    from maxam.journal.verify import verify  # noqa: PLC0415 the broker takes 100 ms to import

    with _readable(folder):
        reports = list(verify(folder, OsDisk()))
        if (folder / MANIFEST).exists():
            reports += verify_manifest(str(folder), OsDisk())
    damaged = [report for report in reports if report.problem is not None and not report.torn]
    if as_json:
        for report in reports:
            print_json(asdict(report))
    else:
        print_table(["FILE", "#BYTES", "#RECORDS", "#FIRST", "#LAST", "STATE"], _verified(reports, folder))
        if not damaged:
            print_line(f"{counted(len(reports), 'file')}, none of them damaged")
    if damaged:
        raise JournalError(
            f"{len(damaged)} of {counted(len(reports), 'file')} damaged; `maxam-admin journal repair {folder}` shows what can be kept"
        )


def _verified(reports: "list[FileReport]", folder: Path) -> Iterator[tuple[object, ...]]:
    """Iterate over the rows of a table; texts of schemas, whose names say nothing to people, are one row as far as they are good."""
    texts = [r for r in reports if r.path.endswith(".avsc") and r.problem is None and not r.note]
    for r in reports:
        if r not in texts:
            revisions = (r.first, r.last) if r.first else (None, None)
            yield str(Path(r.path).relative_to(folder)), r.length, r.records, *revisions, _state(r)
    if texts:
        yield f"schemas/ ({counted(len(texts), 'text')})", sum(r.length for r in texts), None, None, None, "good"


def _state(report: "FileReport") -> str:
    if report.problem is None:
        return report.note or "good"
    if report.torn:
        return f"unfinished write at byte {report.offset}: the next start cuts it off"
    return f"byte {report.offset}: {report.problem}"


@journal.command("repair")
@click.argument("folder", type=FOLDER)
@click.option("--apply", "apply_it", is_flag=True, help="Do it; without, nothing is changed.")
@json_option
def journal_repair(folder: Path, apply_it: bool, as_json: bool) -> None:
    """Show what of a damaged journal cannot be kept, and with --apply leave a journal that a gateway starts from.

    Names each byte range that would be dropped, its revisions, and the topics that would show an older value. The originals go to
    FOLDER/damaged/<time>/. No gateway may be running.
    """
    from maxam.config import Limits  # noqa: PLC0415 with the next lines
    from maxam.gateway.snapshot import summed_up  # noqa: PLC0415 the broker takes 100 ms to import
    from maxam.journal.disk import OsDisk  # noqa: PLC0415 as above
    from maxam.journal.repair import Repair  # noqa: PLC0415 as above

    with _readable(folder):
        repair = Repair.open(str(folder.resolve()), OsDisk())
        plan = repair.plan
        aside = None
        if apply_it and not (plan.empty and not plan.notes):
            limits = Limits(source_retention_s=_SOURCE_RETENTION_S)
            aside = repair.apply(lambda records: summed_up(records, limits).snapshot(), _now(), secrets.token_bytes(16))
        else:
            repair.close()
    if as_json:
        print_json(plan.report() | {"applied": aside is not None, "originals": aside})
    else:
        _print_plan(plan)
        if aside is not None:
            print_line(f"done; the originals and this report are in {aside}")
        elif not plan.empty:
            print_line("nothing was changed: --apply does it")


def _print_plan(plan: "Plan") -> None:
    if plan.empty and not plan.notes:
        print_line(f"{plan.folder}: nothing to repair")
        return
    if plan.drops:
        print_line("cannot be kept:")
        print_table(
            ["FILE", "#BYTE", "#BYTES", "REVISIONS", "STATE", "WHAT IS WRONG"],
            [
                (
                    drop.path.removeprefix(plan.folder + "/"),
                    drop.offset,
                    drop.length,
                    _revisions(drop.first, drop.last, drop.exact),
                    "affected" if drop.needed else "not affected",
                    drop.fault,
                )
                for drop in plan.drops
            ],
            ["BYTES", "STATE"],
        )
    if plan.topics:
        print_line("topics that will show an older value than was accepted (publish them again, or delete them):")
        print_table(
            ["DESTINATION", "#LOST", "KIND", "#SHOWN", "ACCEPTED AT", "NAMED BY"],
            [
                (
                    topic.destination,
                    topic.lost,
                    "" if topic.deleted is None else "delete" if topic.deleted else "value",
                    topic.shown or "none",
                    _shown_at(topic.shown, topic.shown_at_us, topic.shown_deleted),
                    "a whole record" if topic.certain else "the damaged bytes",
                )
                for topic in plan.topics[:_ROWS_MAX]
            ],
            ["KIND", "NAMED BY", "ACCEPTED AT"],
        )
    if plan.unknown:
        print_line(f"of {plan.unknown} lost revisions at most nothing tells the topic")
    if plan.candidates:
        have = f"{counted(plan.candidates, 'topic')} {'has' if plan.candidates == 1 else 'have'}"
        print_line(f"{have} no change since: one that is not named, or named wrongly by damaged bytes, is among them")
    if plan.sessions:
        print_line("lost of durable sessions, as far as the damaged bytes tell:")
        print_table(
            ["PRINCIPAL", "CLIENT-ID", "SUBSCRIPTION", "WHAT"],
            [(one.principal, one.client_id, one.subscription, one.kind) for one in plan.sessions[:_ROWS_MAX]],
        )
    if len(plan.topics) > _ROWS_MAX or len(plan.sessions) > _ROWS_MAX:
        print_line(f"only the first {_ROWS_MAX} are shown: --json shows all")
    for note in plan.notes:
        print_line(note)
    print_line(f"revisions will go on above {plan.head}")


def _revisions(first: int, last: int, exact: bool) -> str:
    if not first:
        return "none"
    text = f"{first}" if first == last else f"{first} to {last}"
    return text if exact else f"{text} at most"


def _shown_at(revision: int, at_us: int, deleted: bool) -> str:
    from maxam.journal.archive import time_text  # noqa: PLC0415 only a repair needs it

    if not revision:
        return "the topic will be unknown"
    return f"{time_text(at_us)}{', deleted' if deleted else ''}"


@journal.command("dump")
@click.argument("folder", type=FOLDER)
@click.option("--from", "first", type=click.IntRange(min=1), help="First revision.")
@click.option("--to", "last", type=click.IntRange(min=1), help="Last revision.")
@click.option("--destination", metavar="GLOB", help="Only records about destinations that match.")
@click.option("--rejected", is_flag=True, help="The journal of rejected SENDs, with its own revisions.")
@click.option(
    "--body", type=click.Choice(["none", "hex", "value"]), default="none", show_default=True, help="How bodies show."
)
@json_option
def journal_dump(
    folder: Path,
    first: int | None,
    last: int | None,
    destination: str | None,
    rejected: bool,
    body: Body,
    as_json: bool,
) -> None:
    """Print the records of a journal in order, one a line; a gateway may be running. What cannot be read is told on standard error."""
    from maxam.admin.journal_schemas import JournalSchemas  # noqa: PLC0415 only this verb needs them
    from maxam.config import Limits  # noqa: PLC0415 likewise
    from maxam.globs import compile_glob  # noqa: PLC0415 likewise
    from maxam.journal.archive import Problem  # noqa: PLC0415 likewise
    from maxam.journal.dump import as_row, concerns, read_records  # noqa: PLC0415 likewise
    from maxam.records import Change, RejectedSend  # noqa: PLC0415 likewise

    if first is not None and last is not None and first > last:
        raise click.UsageError(f"--from {first} is above --to {last}")
    glob = None if destination is None else compile_glob(destination, Limits())
    schemas = JournalSchemas(folder)
    lost = False
    with _readable(folder):
        for found in read_records(folder, rejected, first, last):
            if isinstance(found, Problem):
                lost = lost or found.lost
                click.echo(f"problem: {found}", err=True)
                continue
            revision, record = found
            if glob is not None and not concerns(record, lambda name: glob.matches(name.decode())):
                continue
            row = as_row(revision, record)
            if isinstance(record, Change | RejectedSend) and body != "none":
                row |= {"body": record.body.hex()} if body == "hex" else _value(schemas, record)
            if as_json:
                print_json(row)
            else:
                print_line(_line(row))
    if lost:
        raise JournalError("not everything could be read: see the problems above")


def _line(row: dict[str, Any]) -> str:
    """Return a record as a line for people."""
    if "destination" not in row:
        head = f"{row['revision']} {row['accepted_at']} {row['kind']} {row['principal']} {row['client_id']}"
        rest = [f"{name}={value}" for name, value in row.items() if name in {"subscription", "glob", "eager"}]
        return " ".join([head, *rest, *(f"{name}@{reached}" for name, reached in row.get("positions", ()))])
    schema = f"{row['schema']} {row['schema_version']}".strip() or row["encoding"]
    parts = [
        f"{row['revision']} {row['accepted_at']} {row['kind']} {row['destination']}",
        f"{row['publisher']} {schema} {counted(row['bytes'], 'byte')}",
        *(f"{name}:{value}" for name, value in row["headers"]),
    ]
    if "result" in row:
        parts.append(f"{row['disposition']} {row['result']}: {row['reason']}")
    if "value" in row:
        parts.append(json.dumps(row["value"], ensure_ascii=False))
    elif "body" in row:
        text = row["body"]
        parts.append(text if len(text) <= 2 * _DUMP_BODY_BYTES_MAX else f"{text[: 2 * _DUMP_BODY_BYTES_MAX]}...")
    return " ".join(parts)


def _value(schemas: "JournalSchemas", record: "Change | RejectedSend") -> dict[str, Any]:
    """Return the decoded value of a body, the body in hex where there is none to decode, and why."""
    from maxam.admin.values import ValueDecodeError, decode_value  # noqa: PLC0415 fastavro takes 50 ms to import

    if not record.body:
        return {}
    told = len(schemas.problems)
    text = schemas.text(record.judgement)
    for problem in schemas.problems[told:]:
        click.echo(f"problem: {problem}", err=True)
    if text is None:
        return {"body": record.body.hex(), "problem": "no schema"}
    try:
        return {"value": decode_value(text, record.body, record.judgement)}
    except ValueDecodeError as error:
        return {"body": record.body.hex(), "problem": str(error)}


@journal.command("backup")
@click.argument("folder", type=FOLDER)
@click.argument("destination", type=FOLDER)
@json_option
def journal_backup(folder: Path, destination: Path, as_json: bool) -> None:
    """Copy a journal into a new folder DESTINATION/<time>, while a gateway may be writing it.

    Files that the backup before in DESTINATION has too are linked to it. The copy is proven; its manifest, written last, has size and
    SHA-256 of each file. Configuration, policy, certificates and keys are not in it.
    """
    from maxam.journal.backup import back_up  # noqa: PLC0415 as above
    from maxam.journal.disk import OsDisk  # noqa: PLC0415 as above

    with _readable(folder):
        if destination.resolve().is_relative_to(folder.resolve()):
            problem = f"{destination} is in the journal {folder}"
            raise ConfigurationError(f"{problem}: name a folder elsewhere, best on another disk")
        made = back_up(str(folder.resolve()), str(destination.resolve()), _now(), OsDisk())
    done(as_json, f"{_made(made)}, {made.copied} of them copied", asdict(made))


@journal.command("restore")
@click.argument("backup", type=FOLDER)
@click.argument("folder", type=FOLDER)
@json_option
def journal_restore(backup: Path, folder: Path, as_json: bool) -> None:
    """Make a journal in FOLDER, which must be empty or missing, of one backup, having checked every byte against its manifest."""
    from maxam.journal.backup import restore  # noqa: PLC0415 as above
    from maxam.journal.disk import OsDisk  # noqa: PLC0415 as above

    if not backup.is_dir():
        raise ConfigurationError(f"{backup} is no folder")
    with _one_line():
        made = restore(str(backup.resolve()), str(folder.resolve()), OsDisk())
    done(as_json, _made(made), asdict(made))


def _made(made: "Done") -> str:
    size = f"{counted(made.files, 'file')}, {counted(made.bytes, 'byte')}"
    return f"{made.folder}: revision {made.head}, {size}"

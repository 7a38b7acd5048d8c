"""`maxam-admin journal`: read, repair, copy and restore folders. Only `status` needs a gateway."""

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import click

from maxam.avro.json.decoding import ValueDecodeError, decode_value
from maxam.broker.summary import summed_up
from maxam.cli.options import FOLDER, done, json_option, limit_option
from maxam.config import Limits
from maxam.counting import counted
from maxam.errors import ConfigurationError, JournalError
from maxam.globs import compile_glob
from maxam.journal.backup import Done, back_up, newest_backup, read_manifest, restore, verify_backup
from maxam.journal.disk import OsDisk
from maxam.journal.dump import as_row, concerns, read_records
from maxam.journal.listing import Problem, time_text
from maxam.journal.repair import Repair
from maxam.journal.repair_plan import Plan
from maxam.journal.replay import Replay
from maxam.journal.schema_texts import SchemaTexts
from maxam.journal.verify import FileReport
from maxam.journal.whole import newest_incarnation
from maxam.records import Change, RejectedSend
from maxam.terminal.groups import LazyGroup, PartialError
from maxam.terminal.tables import print_json, print_line, print_table

Body = Literal["none", "hex", "value"]

# A repair does not know the gateway's `dedup_retention_s`: what it keeps too long of deleted topics, the next snapshot forgets. It keeps
# only the deletes that a subscription is owed, as no position before its snapshot can be used.
_SOURCE_RETENTION_S: Final = 315_360_000.0
_NAME_FORMAT: Final = "%Y%m%dT%H%M%S.%fZ"  # of backups
_DUMP_BODY_BYTES_MAX: Final = 64  # of a body in hex on a line for people
_ROWS_MAX: Final = 50  # topics and sessions that a repair lists; --json lists all


@click.group(
    cls=LazyGroup,
    lazy={"status": ("maxam.cli.commands.journal_status:journal_status", "")},
)
def journal() -> None:
    """Verify, dump, repair, back up and restore the files of journals."""


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Return an error of the system as one line."""
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
    return datetime.fromtimestamp(time.time(), UTC).strftime(_NAME_FORMAT)


@journal.command("verify")
@click.argument("folder", type=FOLDER)
@json_option
def journal_verify(folder: Path, as_json: bool) -> None:
    """Verify every file of a journal or backup. Changes nothing, and a gateway may be running."""
    with _readable(folder):
        reports = list(verify_backup(str(folder), OsDisk()))
        incarnation = newest_incarnation(str(folder), OsDisk())
    damaged = [report for report in reports if report.problem is not None and not report.torn]
    if as_json:
        for report in reports:
            print_json(asdict(report))
    else:
        print_table(["FILE", "#BYTES", "#RECORDS", "#FIRST", "#LAST", "STATE"], _verified(reports, folder))
        if not damaged:
            print_line(f"{counted(len(reports), 'file')}, none of them damaged; incarnation {incarnation or 'none'}")
    if damaged:
        raise JournalError(
            f"{len(damaged)} of {counted(len(reports), 'file')} damaged; `maxam-admin journal repair {folder}` shows what can be kept"
        )


def _verified(reports: list[FileReport], folder: Path) -> Iterator[tuple[object, ...]]:
    """Iterate over the rows of a table. Valid texts of schemas are one row."""
    texts = [r for r in reports if r.path.endswith(".avsc") and r.problem is None and not r.note]
    for r in reports:
        if r not in texts:
            revisions = (r.first, r.last) if r.first else (None, None)
            yield str(Path(r.path).relative_to(folder)), r.length, r.records, *revisions, _state(r)
    if texts:
        yield f"schemas/ ({counted(len(texts), 'text')})", sum(r.length for r in texts), None, None, None, "good"


def _state(report: FileReport) -> str:
    if report.problem is None:
        return report.note or "good"
    if report.torn:
        return f"unfinished write at byte {report.offset}: the next start cuts it off"
    return f"byte {report.offset}: {report.problem}"


@journal.command("repair")
@click.argument("folder", type=FOLDER)
@click.option("--apply", "apply_it", is_flag=True, help="Apply the repair. Without it nothing is changed.")
@json_option
def journal_repair(folder: Path, apply_it: bool, as_json: bool) -> None:
    """Show what of a damaged journal cannot be kept, and with --apply leave a journal that a gateway starts from.

    Lists each byte range that would be dropped, its revisions, and the topics that would show an older value. The originals go to
    FOLDER/damaged/<time>/. No gateway may be running.
    """
    with _readable(folder):
        repair = Repair.open(str(folder.resolve()), OsDisk())
        plan = repair.plan
        aside = None
        if apply_it and not (plan.empty and not plan.notes):
            limits = Limits(dedup_retention_s=_SOURCE_RETENTION_S, delete_retention_s=0.0)
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


def _print_plan(plan: Plan) -> None:
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
        print_line(f"of {plan.unknown} lost revisions at most the topic is unknown")
    if plan.candidates:
        have = f"{counted(plan.candidates, 'topic')} {'has' if plan.candidates == 1 else 'have'}"
        print_line(f"{have} no change since: one that is not named, or named wrongly by damaged bytes, is among them")
    if plan.sessions:
        print_line("lost of durable sessions, as far as it is known:")
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
    if not revision:
        return "the topic will be unknown"
    return f"{time_text(at_us)}{', deleted' if deleted else ''}"


@journal.command("dump")
@click.argument("folder", type=FOLDER)
@click.option("--from", "first", type=click.IntRange(min=1), help="First revision to print.")
@click.option("--to", "last", type=click.IntRange(min=1), help="Last revision to print.")
@click.option("--destination", metavar="GLOB", help="Print only records of matching destinations.")
@click.option("--rejected", is_flag=True, help="Print the journal of rejected SENDs, with its own revisions.")
@click.option(
    "--body", type=click.Choice(["none", "hex", "value"]), default="none", show_default=True, help="Form of bodies."
)
@limit_option("Print at most this many records, the first ones.")
@json_option
def journal_dump(
    folder: Path,
    first: int | None,
    last: int | None,
    destination: str | None,
    rejected: bool,
    body: Body,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print the records of a journal in order, one a line; a gateway may be running. Standard error gets the incarnation and what cannot be read."""
    if first is not None and last is not None and first > last:
        raise click.UsageError(f"--from {first} is above --to {last}")
    glob = None if destination is None else compile_glob(destination, Limits())
    schemas = SchemaTexts()
    lost, printed = False, 0
    with _readable(folder):
        click.echo(f"incarnation: {newest_incarnation(str(folder), OsDisk()) or 'none'}", err=True)
        if body == "value":
            schemas.read(str(folder))
            for path, reason in schemas.problems:
                click.echo(f"problem: {path}: {reason}", err=True)
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
            printed += 1
            if printed == limit:
                break
    if lost:
        raise PartialError("not everything could be read: see the problems above")


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


def _value(schemas: SchemaTexts, record: Change | RejectedSend) -> dict[str, Any]:
    """Return the decoded value of a body, the body in hex where there is none to decode, and why."""
    if not record.body:
        return {}
    validation = record.validation
    text = schemas.text(validation.schema, validation.schema_version, validation.schema_fingerprint)
    if text is None:
        return {"body": record.body.hex(), "problem": "no schema"}
    try:
        return {"value": decode_value(text, record.body, record.validation)}
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
    if not backup.is_dir():
        raise ConfigurationError(f"{backup} is no folder")
    with _one_line():
        made = restore(str(backup.resolve()), str(folder.resolve()), OsDisk())
    done(as_json, _made(made), asdict(made))


@journal.command("drill")
@click.argument("backups", type=FOLDER)
@click.option(
    "--scratch",
    type=FOLDER,
    help="Folder with room for one backup. The journal that is restored there is removed again. [default: that of the system]",
)
@json_option
def journal_drill(backups: Path, scratch: Path | None, as_json: bool) -> None:
    """Prove that the newest backup of a folder restores: verify it, restore it, and recover all values and sessions as a gateway does.

    BACKUPS is a folder of backups, or one backup. A gateway may be running; the drill writes none of its files. It needs as much memory
    as that gateway. Configuration, certificates and keys are not part of a backup: check them with `maxam-gateway --check`.
    """
    disk = OsDisk()
    with _one_line(), TemporaryDirectory(prefix="maxam-drill-", dir=scratch) as temporary:
        backup = newest_backup(str(backups.resolve()), disk)
        manifest = read_manifest(backup, disk)
        began_s = time.monotonic()
        damaged = [report for report in verify_backup(backup, disk) if report.problem is not None]
        if damaged:
            raise JournalError(
                f"{damaged[0].path}: {damaged[0].problem}; `maxam-admin journal verify {backup}` shows all"
            )
        verified_s = time.monotonic()
        restored = restore(backup, f"{temporary}/journal", disk)
        restored_s = time.monotonic()
        replay = Replay(restored.folder, disk)
        broker = summed_up(replay.records(), Limits(dedup_retention_s=_SOURCE_RETENTION_S, delete_retention_s=0.0))
        recovered_s = time.monotonic()
    if replay.position.revision != manifest.head:
        raise JournalError(
            f"{backup} restores to revision {replay.position.revision}, and its manifest has {manifest.head}"
        )
    row: dict[str, object] = {
        "backup": backup,
        "begun_at": _begun_at(manifest.when),
        "revision": manifest.head,
        "bytes": restored.bytes,
        "topics": broker.store.live,
        "sessions": len(broker.sessions),
        "verify_s": round(verified_s - began_s, 3),
        "restore_s": round(restored_s - verified_s, 3),
        "recover_s": round(recovered_s - restored_s, 3),
    }
    held = (
        counted(broker.store.live, "topic"),
        counted(len(broker.sessions), "session"),
        counted(restored.bytes, "byte"),
    )
    seconds = f"verified in {row['verify_s']} s, restored in {row['restore_s']} s, recovered in {row['recover_s']} s"
    made = row["begun_at"] or manifest.when
    done(as_json, f"{backup} of {made} restores to revision {manifest.head}: {', '.join(held)} ({seconds})", row)


def _begun_at(when: str) -> str | None:
    """Return the time in the name of a backup, or None if the name has none."""
    try:
        return datetime.strptime(when, _NAME_FORMAT).replace(tzinfo=UTC).isoformat(timespec="seconds")
    except ValueError:
        return None


def _made(made: Done) -> str:
    size = f"{counted(made.files, 'file')}, {counted(made.bytes, 'byte')}"
    return f"{made.folder}: revision {made.head}, {size}"

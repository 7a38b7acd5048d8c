"""The verbs `maxam-admin rejects ...`, and `schemas shadow`."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from maxam.admin.options import FOLDER, Group, done, json_option, limit_option, print_rows, with_credentials
from maxam.admin.output import VALUE, print_fields, print_json, print_line, print_table
from maxam.admin.remote import Credentials, Remote, reject_path
from maxam.admin.repeating import watch_option
from maxam.counting import counted
from maxam.errors import ConfigurationError

if TYPE_CHECKING:
    from maxam.admin.faults import Dissection, Part
    from maxam.avro.rule import SchemaVersion

PARTS_SHOWN: Final = 20  # before the fault, unless all are asked for
HEX_BYTES: Final = 12  # on either side of the fault
_AGO: Final = re.compile(r"([0-9]{1,9})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_FAULT_MARK: Final = ">"


@click.group(cls=Group)
def rejects() -> None:
    """Show the last rejected SENDs, why they were rejected, and send them again.

    They are those of this run of the gateway, of each principal the last ones. Older ones are in the journal: `maxam-pipeline rejects`.
    """


@rejects.command("list")
@click.option("--principal", help="Only what this principal sent.")
@click.option("--destination", metavar="GLOB", help="Only what was sent to destinations that match.")
@click.option("--result", metavar="CODE", help="Only what was rejected with this result, such as schema-mismatch.")
@click.option(
    "--since", metavar="WHEN", help="Only since: 90s, 15m, 2h, 7d ago, or a time such as 2026-11-21T09:30:00Z."
)
@limit_option
@json_option
@watch_option
@with_credentials
def rejects_list(
    credentials: Credentials,
    principal: str | None,
    destination: str | None,
    result: str | None,
    since: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List rejected SENDs, the newest first."""
    wanted = {
        "principal": principal,
        "destination": destination,
        "result": result,
        "since": None if since is None else moment(since, datetime.now(UTC)),
    }
    parameters = {name: text for name, text in wanted.items() if text is not None}
    with Remote(credentials) as remote:
        print_rows(
            remote.pages("/v1/rejects", "rejects", limit=200, **parameters),
            limit,
            as_json,
            ["ID", "REJECTED AT", "PRINCIPAL", "DESTINATION", "RESULT", "#BYTES", "REASON"],
            lambda row: [
                row["id"],
                row["rejected_at"],
                row["principal"],
                row["destination"],
                row["result"],
                row["body_bytes"],
                row["reason"],
            ],
            ["BYTES", "REJECTED AT", "RESULT"],
            shortened=["REASON"],
        )
        if as_json:
            return
        kept = remote.get("/v1/rejects", limit=1)
    click.echo(
        f"kept since the gateway's start at {kept['since']}: {kept['kept']}, and {kept['forgotten']} more that made room; older ones are"
        " in the journal: maxam-pipeline rejects",
        err=True,
    )


@rejects.command("show")
@click.argument("reject_id", metavar="ID")
@json_option
@with_credentials
def rejects_show(credentials: Credentials, reject_id: str, as_json: bool) -> None:
    """Show one rejected SEND, and its body as far as the certificate may receive the destination."""
    with Remote(credentials) as remote:
        row = remote.get(reject_path(reject_id))
    if as_json:
        print_json(row)
        return
    fault, headers, body = row.pop("fault") or {}, row.pop("headers", []), row.pop("body", None)
    resubmissions = row.pop("resubmissions")
    row.pop("resubmitted")
    print_fields(
        [
            *row.items(),
            *((f"fault {name}", value) for name, value in fault.items() if value is not None),
            *((f"header {name}", text) for name, text in headers),
            *(("sent again", f"{one['at']} by {one['by']}: {one['disposition']}") for one in resubmissions),
        ]
    )
    if body is not None:
        print_line(body)


@rejects.command("decode")
@click.argument("reject_id", metavar="ID")
@click.option(
    "--version",
    "minor",
    metavar="MINOR",
    help="Hold it against this version. [default: the one that it names, else the newest]",
)
@click.option("--type", "type_name", metavar="NAME", help="Of this type. [default: that of the destination's rule]")
@click.option(
    "--schemas",
    "folder",
    type=FOLDER,
    help="Take rules and schemas from a folder, candidates too, not from the gateway.",
)
@click.option(
    "--all", "whole", is_flag=True, help=f"Show all values, not only the last {PARTS_SHOWN} before the fault."
)
@json_option
@with_credentials
def rejects_decode(
    credentials: Credentials,
    reject_id: str,
    minor: str | None,
    type_name: str | None,
    folder: Path | None,
    whole: bool,
    as_json: bool,
) -> None:
    """Take the body of a rejected SEND apart: its values up to the fault, and the fault marked."""
    from base64 import b64decode  # noqa: PLC0415 with the next line

    from maxam.admin.faults import dissect  # noqa: PLC0415 fastavro takes 50 ms to import, which the other verbs save

    with Remote(credentials) as remote:
        row = remote.get(reject_path(reject_id))
        if "body" not in row:
            raise ConfigurationError(f"{reject_id} has no body to decode: {row['problem']}")
        encoding, keys, versions = (
            _known_there(remote, row["destination"], type_name)
            if folder is None
            else _known_here(folder, row["destination"], type_name)
        )
    chosen = None
    if minor is not None:
        chosen = next((version for version in versions if version.minor == minor), None)
        if chosen is None:
            known = ", ".join([version.minor for version in versions]) or "none"
            raise ConfigurationError(
                f"there is no version {minor} of what {row['destination']} carries; known: {known}"
            )
    body = b64decode(row["body"])
    found = dissect(body, encoding, keys, versions, row["headers"], chosen)
    if as_json:
        print_json(_decoded(reject_id, encoding, found))
    else:
        _print_decoded(row, encoding, body, found, whole)


@rejects.command("resubmit")
@click.argument("reject_id", metavar="ID")
@click.option("--force", is_flag=True, help="Even if the topic has been changed since.")
@json_option
@with_credentials
def rejects_resubmit(credentials: Credentials, reject_id: str, force: bool, as_json: bool) -> None:
    """Send a rejected SEND again, as this certificate's principal, to be judged by the rules and rights in force now."""
    with Remote(credentials) as remote:
        answer = remote.post(reject_path(reject_id) + "/resubmit", force=str(force).lower())
    result = f" ({answer['result']})" if "result" in answer else ""
    done(as_json, f"{answer['disposition']}{result}: {answer['destination']}", answer)


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
        print_line('no rule of the registry names a candidate (shadow = "<minor>")')
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
        f"{rule['seen']} seen, {rule['tried']} tried: {100 * share:.3g} % would be rejected; {rule['fits']} fit, {rule['older']} are of an"
        f" older version and readable, {rule['mended']} are rejected now and would not be"
    )
    counts = ["seen", "tried", "fits", "older", "rejected", "mended"]
    print_table(
        ["PRINCIPAL", *(f"#{name.upper()}" for name in counts)],
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


def moment(text: str, now: datetime) -> str:
    """Make a time of what people write; raises click.BadParameter."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        try:
            return (now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})).isoformat()
        except OverflowError:
            pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise click.BadParameter(
            f"{text!r} is neither an age such as 15m nor a time with its zone such as 2026-11-21T09:30:00Z",
            param_hint="--since",
        )
    return found.isoformat()


def _known_there(remote: Remote, destination: str, type_name: str | None) -> tuple[str, Any, "list[SchemaVersion]"]:
    """Ask the gateway for encoding, envelope keys and versions of what a destination carries."""
    from maxam.admin.judging import read_version  # noqa: PLC0415 fastavro takes 50 ms to import
    from maxam.avro.envelope import EnvelopeKeys  # noqa: PLC0415 with the line above
    from maxam.avro.rule import DATUM  # noqa: PLC0415 likewise
    from maxam.config import Limits  # noqa: PLC0415 likewise
    from maxam.globs import compile_glob  # noqa: PLC0415 likewise

    listing = remote.get("/v1/schemas")
    limits = Limits()
    found = (rule for rule in listing["rules"] if compile_glob(rule["destination"], limits).matches(destination))
    rule = next(found, {"encoding": DATUM, "schema": ""})
    name = type_name or rule["schema"]
    minors = listing["types"].get(name, [])
    if type_name is not None and not minors:
        raise ConfigurationError(
            f"the gateway knows no type {type_name}; known: {', '.join(listing['types']) or 'none'}"
        )
    keys = EnvelopeKeys(**listing["envelope_keys"])
    return rule["encoding"], keys, [read_version(remote, name, minor) for minor in minors]


def _known_here(folder: Path, destination: str, type_name: str | None) -> tuple[str, Any, "list[SchemaVersion]"]:
    """The same of a schema folder, candidates first."""
    from maxam.avro.rule import DATUM  # noqa: PLC0415 with the next lines
    from maxam.config import Limits  # noqa: PLC0415 with the next line
    from maxam.gateway.sources import read_registry  # noqa: PLC0415 fastavro and the broker take 100 ms to import

    registry = read_registry(folder, Limits())
    rule = registry.rule_for(destination)
    name = type_name or ("" if rule is None else rule.schema)
    versions = [*registry.versions(name), *registry.candidates(name)]
    if type_name is not None and not versions:
        raise ConfigurationError(f"{folder} has no type {type_name}; known: {', '.join(registry.types()) or 'none'}")
    return DATUM if rule is None else rule.encoding, registry.envelope_keys, versions


def _decoded(reject_id: str, encoding: str, found: "Dissection") -> dict[str, object]:
    fault = found.fault
    return {
        "id": reject_id,
        "encoding": encoding,
        "schema": None if found.version is None else found.version.type_name,
        "schema_version": None if found.version is None else found.version.minor,
        "version_is": found.why,
        "values": [
            {"path": part.path, "offset": part.offset, "length": part.length, "type": part.type, "value": part.value}
            for part in found.parts
        ],
        "likeness": found.likeness,
        "fault": None
        if fault is None
        else {"path": fault.path, "expected": fault.expected, "found": fault.found, "offset": fault.offset},
    }


def _print_decoded(row: dict[str, Any], encoding: str, body: bytes, found: "Dissection", whole: bool) -> None:
    print_line(f"{row['destination']}: {row['result']}: {row['reason']}")
    version = found.version
    against = "nothing" if version is None else f"{version.type_name} {version.minor}"
    print_line(
        f"{counted(len(body), 'byte')}, encoding {encoding}, held against {against}"
        + (f" ({found.why})" if found.why else "")
    )
    parts = found.parts if whole else found.parts[-PARTS_SHOWN:]
    if len(parts) < len(found.parts):
        print_line(f"good before these: {counted(len(found.parts) - len(parts), 'value')}; --all shows all")
    rows = [["", part.offset, part.length, part.path, part.type, _shown(part)] for part in parts]
    fault = found.fault
    if fault is not None:
        text = f"expected {fault.expected}, found {fault.found}"
        rows.append([_FAULT_MARK, fault.offset, None, fault.path or "value", "", text])
    print_table(["", "#BYTE", "#LENGTH", "FIELD", "TYPE", VALUE], rows, ["LENGTH", "TYPE"])
    if found.likeness:
        print_line(found.likeness)
    if fault is not None:
        before = body[max(0, fault.offset - HEX_BYTES) : fault.offset].hex(" ")
        behind = body[fault.offset : fault.offset + HEX_BYTES].hex(" ")
        print_line(f"byte {fault.offset}: {before} {_FAULT_MARK} {behind or '(the end)'}")
    else:
        print_line(
            "nothing is wrong with it"
            if version is not None
            else "there is no schema to hold it against: see --type and --schemas"
        )


def _shown(part: "Part") -> object:
    return json.dumps(part.value) if part.value is None or isinstance(part.value, bool) else part.value

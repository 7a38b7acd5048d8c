"""`maxam-admin rejects decode`: decode the body of a rejected SEND up to its fault."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any, Final

import click

from maxam.avro.envelope import EnvelopeKeys
from maxam.avro.folder import read_registry
from maxam.avro.rule import DATUM, SchemaVersion
from maxam.cli.options import FOLDER, json_option, with_credentials
from maxam.config import Limits
from maxam.counting import counted
from maxam.errors import ConfigurationError
from maxam.globs import compile_glob
from maxam.https_client import Credentials, Remote, reject_path
from maxam.schema_tools.faults import Dissection, Part, dissect
from maxam.schema_tools.validating import read_version
from maxam.terminal.options import RenamedOption
from maxam.terminal.tables import VALUE, print_json, print_line, print_table

PARTS_SHOWN: Final = 20  # before the fault, unless all are asked for
HEX_BYTES: Final = 12  # on either side of the fault
_FAULT_MARK: Final = ">"


@click.command("decode")
@click.argument("reject_id", metavar="ID")
@click.option(
    "--schema-version",
    "minor",
    cls=RenamedOption,
    former=["--version"],
    metavar="MINOR",
    help="Schema version to compare with. [default: the one in the body, else the newest]",
)
@click.option("--type", "type_name", metavar="NAME", help="Type of the body. [default: that of the destination's rule]")
@click.option(
    "--schemas",
    "folder",
    type=FOLDER,
    help="Schema folder to use, with its candidates, instead of the gateway's schemas.",
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
    """Decode the body of a rejected SEND up to its fault."""
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
            raise ConfigurationError(f"{row['destination']} has no schema version {minor}, known: {known}")
    body = b64decode(row["body"])
    found = dissect(body, encoding, keys, versions, row["headers"], chosen)
    if as_json:
        print_json(_decoded(reject_id, encoding, found))
    else:
        _print_decoded(row, encoding, body, found, whole)


def _known_there(remote: Remote, destination: str, type_name: str | None) -> tuple[str, Any, "list[SchemaVersion]"]:
    """Ask the gateway for encoding, envelope keys and versions of what a destination carries."""
    listing = remote.get("/v1/schemas")
    limits = Limits()
    found = (rule for rule in listing["rules"] if compile_glob(rule["destination"], limits).matches(destination))
    rule = next(found, {"encoding": DATUM, "schema": ""})
    name = type_name or rule["schema"]
    minors = listing["types"].get(name, [])
    if type_name is not None and not minors:
        raise ConfigurationError(
            f"the gateway knows no type {type_name}, known: {', '.join(listing['types']) or 'none'}"
        )
    keys = EnvelopeKeys(**listing["envelope_keys"])
    return rule["encoding"], keys, [read_version(remote, name, minor) for minor in minors]


def _known_here(folder: Path, destination: str, type_name: str | None) -> tuple[str, Any, "list[SchemaVersion]"]:
    """The same of a schema folder, candidates first."""
    registry = read_registry(folder, Limits())
    rule = registry.rule_for(destination)
    name = type_name or ("" if rule is None else rule.schema)
    versions = [*registry.versions(name), *registry.candidates(name)]
    if type_name is not None and not versions:
        raise ConfigurationError(f"{folder} has no type {type_name}, known: {', '.join(registry.types()) or 'none'}")
    return DATUM if rule is None else rule.encoding, registry.envelope_keys, versions


def _decoded(reject_id: str, encoding: str, found: Dissection) -> dict[str, object]:
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


def _print_decoded(row: dict[str, Any], encoding: str, body: bytes, found: Dissection, whole: bool) -> None:
    print_line(f"{row['destination']}: {row['result']}: {row['reason']}")
    version = found.version
    against = "nothing" if version is None else f"{version.type_name} {version.minor}"
    print_line(
        f"{counted(len(body), 'byte')}, encoding {encoding}, compared with {against}"
        + (f" ({found.why})" if found.why else "")
    )
    parts = found.parts if whole else found.parts[-PARTS_SHOWN:]
    if len(parts) < len(found.parts):
        print_line(f"valid before these: {counted(len(found.parts) - len(parts), 'value')} (--all shows them)")
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
            else "there is no schema to compare it with: see --type and --schemas"
        )


def _shown(part: Part) -> object:
    return json.dumps(part.value) if part.value is None or isinstance(part.value, bool) else part.value

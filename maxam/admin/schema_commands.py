"""The verbs `maxam-admin schemas ...`: a schema folder checked, read, tried and changed; most need no gateway."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from maxam.admin.options import FILE, FOLDER, Group, json_option, limit_option, print_rows, with_credentials
from maxam.admin.output import print_fields, print_json, print_line, print_table, print_value
from maxam.admin.reject_commands import shadow
from maxam.admin.remote import Credentials, Remote
from maxam.counting import counted
from maxam.errors import ConfigurationError

if TYPE_CHECKING:
    from maxam.admin.schema_edits import Edit
    from maxam.avro.registry import Registry
    from maxam.avro.rule import Rule, SchemaVersion

INPUT: Final = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
INPUT_BYTES_MAX: Final = 67_108_864  # of a file that is tried: far above what any frame may hold
FORMS: Final = ("json", "hex", "binary")
FOLDER_VARIABLE: Final = "MAXAM_SCHEMAS"
FOLDER_DEFAULT: Final = "schemas"
CONTEXT_BYTES: Final = 8  # that are shown before and behind a fault

_Verb = TypeVar("_Verb", bound=Callable[..., Any])
_folder_option: Final = click.option(
    "--folder",
    type=FOLDER,
    envvar=FOLDER_VARIABLE,
    show_envvar=True,
    default=FOLDER_DEFAULT,
    show_default=True,
    help="The schema folder.",
)
_folder_argument: Final = click.argument("folder", type=FOLDER, envvar=FOLDER_VARIABLE, default=FOLDER_DEFAULT)


def _registry_options(verb: _Verb) -> _Verb:
    """Let a verb read a folder, or with --live what is in force in a gateway."""
    live = click.option(
        "--live", is_flag=True, help="Ask the gateway (--gateway) for what is in force there, instead of the folder."
    )
    return _folder_option(live(verb))


def _registry(credentials: Credentials, folder: Path, live: bool) -> "Registry":
    if live:
        from maxam.admin.judging import fetch_registry  # noqa: PLC0415 as below

        with Remote(credentials) as remote:
            return fetch_registry(remote)
    from maxam.admin.schema_folder import load_folder  # noqa: PLC0415 the gateway's modules take 100 ms to import

    return load_folder(folder)


@click.group(cls=Group)
def schemas() -> None:
    """Check, read, try and change a schema folder.

    The folder is --folder (of `check` and `plan`: the argument), or the variable MAXAM_SCHEMAS, or `schemas` in the current
    folder. All but `plan`, `shadow` and what has --live work without a gateway.
    """


# Is it good.


@schemas.command("check", short_help="Name everything that is wrong with a folder.")
@_folder_argument
@click.option("--strict", is_flag=True, help="Exit with 1 when there are warnings, too.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github", "junit"]),
    default="text",
    show_default=True,
    help="github: workflow commands, which mark lines in a pull request; junit: a test for each file, as XML.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def schemas_check(folder: Path, strict: bool, form: str, as_json: bool) -> None:
    """Name everything that is wrong with a schema folder, as the gateway would judge it.

    Errors (exit code 1) would keep the gateway from taking the folder: each is a line with file, line, place in the file,
    what was expected and what to do. Warnings, on standard error, are about what would work but hardly is what is meant.
    With --json each finding is an object on a line, {severity, file, line, place, problem}; the last line sums up. The
    forms for CI say the same on standard output, warnings too; exit codes are the same in each.

    \b
    maxam-admin schemas check schemas
    maxam-admin schemas check --format junit schemas >schemas.xml
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.admin.schema_folder import inspect  # noqa: PLC0415 the gateway's modules take 100 ms to import
    from maxam.gateway.sources import read_schema_texts  # noqa: PLC0415 likewise

    texts = read_schema_texts(folder)
    registry, findings = inspect(texts)
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    minors = {} if registry is None else {n: [v.minor for v in registry.versions(n)] for n in registry.types()}
    if as_json or form == "json":
        for finding in findings:
            print_json({slot: getattr(finding, slot) for slot in finding.__slots__})
        rules = 0 if registry is None else len(registry.rules)
        counts = {"good": errors == 0, "errors": errors, "warnings": warnings}
        print_json({"folder": str(folder), **counts, "rules": rules, "types": minors})
    elif form in {"github", "junit"}:
        from maxam.admin.check_formats import github_lines, junit_lines  # noqa: PLC0415 with the rest

        lines = github_lines(folder, findings) if form == "github" else junit_lines(folder, texts, findings)
        for line in lines:
            print_line(line)
    else:
        from maxam.admin.escaping import shown  # noqa: PLC0415 with the rest

        for finding in findings:
            if finding.severity == "error":
                print_line(str(finding))
            else:
                click.echo(shown(f"warning: {finding}"), err=True)
        if registry is not None:
            print_line(f"{folder}: good, {counted(len(registry.rules), 'rule')}, {counted(len(minors), 'type')}")
            if minors:
                print_fields((name, " ".join(found)) for name, found in minors.items())
    if errors:
        more = f", {counted(warnings, 'warning')}" if warnings else ""
        raise ConfigurationError(f"{folder}: {counted(errors, 'error')}{more}")
    if strict and warnings:
        raise ConfigurationError(f"{folder}: {counted(warnings, 'warning')} (--strict)")


# What is there.


@schemas.command("list", short_help="List types, or rules.")
@_registry_options
@click.option("--rules", is_flag=True, help="List the rules in their order instead: the first that matches decides.")
@limit_option
@json_option
@with_credentials
def schemas_list(
    credentials: Credentials, folder: Path, live: bool, rules: bool, limit: int | None, as_json: bool
) -> None:
    """List the types with their minors, newest first, and how they are carried.

    A minor with a `*` is not released: `registry.lock` does not name it, and it may still be changed. One in brackets is a
    candidate, which judges nothing; a gateway does not list them.

    \b
    maxam-admin schemas list --folder schemas
    maxam-admin schemas list --live --rules
    """  # noqa: D301 a mark of click's: the lines stay as they are
    registry = _registry(credentials, folder, live)
    if rules:
        _list_rules(registry, limit, as_json)
        return
    released = None if live else _released(folder)
    print_rows(
        iter([_type_row(registry, name, released) for name in registry.types()]),
        limit,
        as_json,
        ["TYPE", "MINORS", "COMPATIBILITY", "ENCODING", "#RULES", "NEWEST FINGERPRINT"],
        lambda row: [
            row["type"],
            " ".join(
                [f"({minor})" for minor in row["candidates"]]
                + [v["minor"] + ("*" if v["released"] is False else "") for v in row["versions"]]
            ),
            row["compatibility"],
            " ".join(sorted({rule["encoding"] for rule in row["rules"]})) or "-",
            len(row["rules"]),
            row["versions"][0]["fingerprints"][registry.fingerprint],
        ],
        ["NEWEST FINGERPRINT", "COMPATIBILITY"],
    )


def _list_rules(registry: "Registry", limit: int | None, as_json: bool) -> None:
    print_rows(
        iter([{"index": index, **_rule_row(rule)} for index, rule in enumerate(registry.rules)]),
        limit,
        as_json,
        ["#RULE", "DESTINATION", "SCHEMA", "ENCODING", "MINORS", "SHADOW"],
        lambda row: [
            row["index"],
            row["destination"],
            row["schema"],
            row["encoding"],
            " ".join(row["versions"]),
            row["shadow"],
        ],
        ["MINORS", "SHADOW", "ENCODING"],
    )


def _released(folder: Path) -> set[tuple[str, str]]:
    from maxam.admin.schema_folder import released_minors  # noqa: PLC0415 as above
    from maxam.gateway.sources import read_schema_texts  # noqa: PLC0415 as above

    return released_minors(read_schema_texts(folder))


def _rule_row(rule: "Rule") -> dict[str, Any]:
    return {
        "destination": rule.glob.text,
        "schema": rule.schema,
        "encoding": rule.encoding,
        "require_version": rule.version_required,
        "versions": rule.minors,
        "shadow": None if rule.candidate is None else rule.candidate.minor,
    }


def _version_row(version: "SchemaVersion", released: bool | None) -> dict[str, Any]:
    return {
        "minor": version.minor,
        "released": released,
        "fingerprints": {"CRC-64-AVRO": version.crc_64.hex(), "SHA-256": version.sha_256.hex()},
        "text_sha256": version.text_sha256,
        "schema_id": version.schema_id,
        "file": version.path,
    }


def _type_row(registry: "Registry", name: str, released: set[tuple[str, str]] | None) -> dict[str, Any]:
    return {
        "type": name,
        "compatibility": registry.compatibility(name),
        "versions": [
            _version_row(version, None if released is None else (name, version.minor) in released)
            for version in registry.versions(name)
        ],
        "candidates": [candidate.minor for candidate in registry.candidates(name)],
        "rules": [_rule_row(rule) for rule in registry.rules if rule.schema == name],
    }


@schemas.command("show", short_help="Show a type, its text or an example.")
@click.argument("type_name", metavar="TYPE")
@click.argument("minor", required=False)
@_registry_options
@click.option(
    "--text", is_flag=True, help="Print the self-contained schema text, as the gateway serves it, and nothing else."
)
@click.option("--example", is_flag=True, help="Print an example value as JSON, which `encode` and `test` take.")
@json_option
@with_credentials
def schemas_show(
    credentials: Credentials,
    type_name: str,
    minor: str | None,
    folder: Path,
    live: bool,
    text: bool,
    example: bool,
    as_json: bool,
) -> None:
    """Show a type: its minors and their fingerprints, who carries it, and the fields of its newest minor, or of MINOR.

    \b
    maxam-admin schemas show egm.EGMStatus_v1
    maxam-admin schemas show egm.EGMStatus_v1 1.0 --text > EGMStatus.avsc
    maxam-admin schemas show egm.EGMStatus_v1 --example > status.json
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.admin.schema_tree import example as example_of  # noqa: PLC0415 as above
    from maxam.admin.schema_tree import read_tree  # noqa: PLC0415 as above

    registry = _registry(credentials, folder, live)
    version = _version(registry, type_name, minor)
    if text:
        click.echo(version.schema.text)
        return
    tree = read_tree(version.schema.text)
    if example:
        print_value(example_of(tree))
        return
    released = None if live else _released(folder)
    row = _type_row(registry, type_name, released)
    if as_json:
        print_json(row | {"minor": version.minor, "schema": json.loads(version.schema.text)})
        return
    uses = ", ".join(version.schema.uses)
    fields = [("type", type_name), ("doc", tree.doc), ("compatibility", row["compatibility"])]
    fields += [("holds types of other files", uses)] if uses else []
    fields += [("candidates", ", ".join(row["candidates"]))] if row["candidates"] else []
    print_fields(fields)
    print_line("")
    cells = [
        [v["minor"], v["released"], v["fingerprints"]["CRC-64-AVRO"], v["fingerprints"]["SHA-256"], v["schema_id"]]
        for v in row["versions"]
    ]
    print_table(["MINOR", "RELEASED", "CRC-64-AVRO", "SHA-256", "#SCHEMA ID"], cells, ["SHA-256", "SCHEMA ID"])
    if row["rules"]:
        print_line("")
        print_table(["DESTINATION", "ENCODING"], [[rule["destination"], rule["encoding"]] for rule in row["rules"]])
    print_line("")
    print_table([f"FIELD OF {version.minor}", "TYPE", "DEFAULT", "DOC"], _field_rows(tree), ["DEFAULT"])


def _field_rows(tree: Any) -> list[list[object]]:  # noqa: ANN401 a Node, whose module is imported by the verb
    """List all fields, those of records in other records behind them; a record that holds itself is entered once."""
    rows: list[list[object]] = []

    def enter(node: Any, path: str, within: tuple[str, ...]) -> None:  # noqa: ANN401 likewise
        for branch, place in _records_in(node, path):
            if branch.name in within:
                continue
            for member in branch.members:
                at = f"{place}.{member.name}" if place else member.name
                notes = "".join(f" [{key}: {json.dumps(value)}]" for key, value in member.annotations.items())
                symbols = _symbols_in(member.node)
                notes += f" One of {', '.join(symbols)}." if symbols else ""
                rows.append(
                    [at, member.node.title, json.dumps(member.default) if member.defaulted else "", member.doc + notes]
                )
                enter(member.node, at, (*within, branch.name))

    enter(tree, "", ())
    return rows


def _symbols_in(node: Any) -> tuple[str, ...]:  # noqa: ANN401 likewise
    if node.kind in {"union", "array", "map"}:
        return next(filter(None, map(_symbols_in, node.branches)), ())
    symbols: tuple[str, ...] = node.symbols
    return symbols


def _records_in(node: Any, path: str) -> list[tuple[Any, str]]:  # noqa: ANN401 likewise
    match node.kind:
        case "record":
            return [(node, path)]
        case "array":
            return _records_in(node.branches[0], path + "[]")
        case "map":
            return _records_in(node.branches[0], path + "{}")
        case "union":
            several = sum(branch.kind != "null" for branch in node.branches) > 1
            return [
                found
                for branch in node.branches
                for found in _records_in(branch, f"{path}<{branch.label}>" if several else path)
            ]
        case _:
            return []


def _version(registry: "Registry", type_name: str, minor: str | None) -> "SchemaVersion":
    """Find a minor of a type, the newest one by default; a minor of another major is one of the type of that major."""
    from maxam.admin.schema_folder import version_of  # noqa: PLC0415 as above

    if minor is not None:
        stem, mark, major = type_name.rpartition("_v")
        sibling = f"{stem}_v{minor.partition('.')[0]}"
        if mark and major != minor.partition(".")[0] and registry.versions(sibling):
            type_name = sibling
    return version_of(registry, type_name, minor)


@schemas.command("explain", short_help="Say what a destination must hold.")
@click.argument("destination")
@_registry_options
@json_option
@with_credentials
def schemas_explain(credentials: Credentials, destination: str, folder: Path, live: bool, as_json: bool) -> None:
    """Say what a SEND to DESTINATION must hold: the rule that decides, its encoding, its schema and which minors judge.

    Exit code 1 when no rule covers it: such a SEND is rejected.

    \b
    maxam-admin schemas explain X/EGM.Q.12345.EGMStatus
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.admin.schema_folder import explain  # noqa: PLC0415 as above

    registry = _registry(credentials, folder, live)
    found = explain(registry, destination)
    if as_json:
        print_json(found.facts)
    else:
        print_fields(found.lines)
    if found.problem:
        raise ConfigurationError(found.problem)


@schemas.command("diff", short_help="Say what differs between two minors.")
@click.argument("type_name", metavar="TYPE")
@click.argument("old", required=False)
@click.argument("new", required=False)
@_registry_options
@json_option
@with_credentials
def schemas_diff(
    credentials: Credentials,
    type_name: str,
    old: str | None,
    new: str | None,
    folder: Path,
    live: bool,
    as_json: bool,
) -> None:
    """Say field by field what differs between two minors of TYPE, and whether each can read what the other writes.

    Without OLD and NEW: the newest minor against the one before; with OLD alone: the newest against that. A minor of another
    major, such as 2.0, is one of the type of that major. What cannot be read is shown with a value that proves it. Exit code 0
    whatever differs: `schemas check` judges.

    \b
    maxam-admin schemas diff egm.EGMMeterReading_v1 1.0 1.1
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.admin.schema_diff import compare  # noqa: PLC0415 as above

    registry = _registry(credentials, folder, live)
    versions = registry.versions(type_name)
    if old is None and len(versions) == 1:
        raise ConfigurationError(
            f"{type_name} has one minor only, {versions[0].minor}: there is nothing to compare it with"
        )
    newer = _version(registry, type_name, new)
    older = versions[1] if old is None and versions else _version(registry, type_name, old)
    comparison = compare(older, newer, registry.compatibility(type_name))
    if as_json:
        for row in comparison.rows:
            print_json(row)
        return
    for line in comparison.lines:
        print_line(line)


# Bodies.


def read_input(file: Path) -> bytes:
    """Read a file, or standard input for `-`; raises ConfigurationError."""
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(INPUT_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    if len(data) > INPUT_BYTES_MAX:
        raise ConfigurationError(f"{file} is larger than {INPUT_BYTES_MAX} bytes; is it the right file?")
    return data


_as_option: Final = click.option(
    "--as", "form", type=click.Choice(FORMS), help="What FILE holds. [default: found out, and said]"
)
_version_header_option: Final = click.option(
    "--schema-version", metavar="MINOR", help="As if the SEND had the header schema-version:MINOR."
)


@schemas.command("test", short_help="Show what the broker would answer to a body.")
@click.argument("file", type=INPUT)
@click.option("--destination", required=True, metavar="D", help="Where the body would be sent to.")
@_as_option
@_version_header_option
@_registry_options
@json_option
@with_credentials
def schemas_test(
    credentials: Credentials,
    file: Path,
    destination: str,
    form: str | None,
    schema_version: str | None,
    folder: Path,
    live: bool,
    as_json: bool,
) -> None:
    """Show what the broker would answer to a SEND of the body in FILE (`-`: standard input) to a destination.

    FILE holds the body as it is, or as hexadecimal text, or a value as JSON, which is encoded as the rule says first. The
    headers of the RECEIPT are shown exactly as the broker would send them, by the very code that judges there; of a rejected
    body also the field, what was expected, what was found, and the bytes around it. Only the body is judged: whether a client
    may send there is the policy's to say. Exit code 0 when it would be accepted, else 1.

    \b
    maxam-admin schemas test status.json --destination X/EGM.Q.12345.EGMStatus
    printf '02' | maxam-admin schemas test - --destination X/EGM.Q.12345.EGMStatus --as hex
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.admin.trial import trial  # noqa: PLC0415 as above

    registry = _registry(credentials, folder, live)
    found = trial(registry, read_input(file), str(file), destination, form, schema_version)
    if as_json:
        print_json(found.facts())
    else:
        for line in found.lines():
            print_line(line)
        if found.value_known:
            print_value(found.value)
    if not found.accepted:
        sys.exit(1)


_target_options: Final = (
    click.option("--destination", metavar="D", help="Its rule says type and encoding."),
    click.option("--type", "type_name", metavar="TYPE", help="The type, where no --destination says it."),
    click.option(
        "--encoding",
        metavar="E",
        help="datum, single-object, envelope, confluent or none. [default: the rule's, else datum]",
    ),
    click.option("--minor", metavar="MINOR", help="Of the type. [default: the newest]"),
)


def _with_target(verb: _Verb) -> _Verb:
    for option in reversed(_target_options):
        verb = option(verb)
    return verb


@schemas.command("encode", short_help="Make a body of JSON.")
@click.argument("file", type=INPUT)
@_with_target
@click.option("--hex", "as_hex", is_flag=True, help="Write hexadecimal text. [default: to a terminal]")
@click.option("--out", type=FILE, help="Write there. [default: standard output]")
@_registry_options
@with_credentials
def schemas_encode(
    credentials: Credentials,
    file: Path,
    destination: str | None,
    type_name: str | None,
    encoding: str | None,
    minor: str | None,
    as_hex: bool,
    out: Path | None,
    folder: Path,
    live: bool,
) -> None:
    """Make a body of the JSON in FILE (`-`: standard input), in any encoding.

    The JSON is what `decode`, `topics get` and the console show: bytes and fixed as base64, decimals as text, dates and times
    in ISO 8601, a record out of a union of several as {"<type name>": {...}}. Fields that have a default may be left out. With
    encoding `none` the JSON is a text of base64.

    \b
    maxam-admin schemas encode status.json --destination X/EGM.Q.12345.EGMStatus --out status.bin
    maxam-admin schemas encode status.json --type egm.EGMStatus_v1 --minor 1.0 --encoding envelope --hex
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.admin.trial import encode  # noqa: PLC0415 as above

    registry = _registry(credentials, folder, live)
    body = encode(registry, read_input(file), str(file), destination, type_name, encoding, minor)
    if as_hex or (out is None and sys.stdout.isatty()):
        body = body.hex().encode() + b"\n"
    if out is None:
        sys.stdout.buffer.write(body)
        return
    try:
        out.write_bytes(body)
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror}") from error


@schemas.command("decode", short_help="Show a body as JSON.")
@click.argument("file", type=INPUT)
@_with_target
@click.option("--as", "form", type=click.Choice(FORMS[1:]), help="What FILE holds. [default: found out]")
@_version_header_option
@_registry_options
@json_option
@with_credentials
def schemas_decode(
    credentials: Credentials,
    file: Path,
    destination: str | None,
    type_name: str | None,
    encoding: str | None,
    minor: str | None,
    form: str | None,
    schema_version: str | None,
    folder: Path,
    live: bool,
    as_json: bool,
) -> None:
    """Show the body in FILE (`-`: standard input), binary or hexadecimal text, as JSON.

    It is judged first, as the broker would: what is not valid is not shown, but explained. With --json the value stands in an
    object with the minor that it follows; else it stands alone, as `encode` takes it.

    \b
    maxam-admin schemas decode status.bin --destination X/EGM.Q.12345.EGMStatus
    echo 'C3 01 ...' | maxam-admin schemas decode - --type egm.EGMStatus_v1 --encoding single-object
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.admin.trial import decode  # noqa: PLC0415 as above

    registry = _registry(credentials, folder, live)
    found = decode(registry, read_input(file), str(file), form, destination, type_name, encoding, minor, schema_version)
    if as_json:
        print_json(found.facts)
        return
    if found.note:
        click.echo(found.note, err=True)
    print_value(found.value)


# Changes.


@schemas.command("new", short_help="Make a new type, and a rule for it.")
@click.argument("type_name", metavar="TYPE")
@click.option("--destination", metavar="GLOB", help="Make a rule for these destinations, too.")
@click.option(
    "--encoding",
    type=click.Choice(("datum", "single-object", "envelope", "confluent")),
    default="datum",
    show_default=True,
    help="Of the rule.",
)
@click.option(
    "--like", metavar="TYPE", help="Copy the newest minor of this type instead of a scaffold: a new major, say."
)
@_folder_option
@json_option
def schemas_new(
    type_name: str, destination: str | None, encoding: str, like: str | None, folder: Path, as_json: bool
) -> None:
    """Make a new TYPE, <namespace>.<name>_v<major>: a file to put its fields into, and a rule in registry.toml.

    What stands in registry.toml stays as it is; the rule comes last, or before the first rule that would take all of its
    destinations. `registry.lock` is made when there is none; the new minor is not in it until `schemas release`, and may be
    changed until then. Nothing is written unless the folder is good before and after.

    \b
    maxam-admin schemas new venue.DoorSensor_v1 --destination 'X/VENUE.*.DoorSensor' --encoding single-object
    maxam-admin schemas new egm.EGMStatus_v2 --like egm.EGMStatus_v1
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.admin.schema_edits import new_type  # noqa: PLC0415 as above

    _change(folder, as_json, lambda texts: new_type(texts, type_name, destination, encoding, like))


@schemas.command("bump", short_help="Copy the newest minor to the next one.")
@click.argument("type_name", metavar="TYPE")
@click.option("--release", is_flag=True, help="Release the newest minor in the same step.")
@click.option(
    "--candidate", is_flag=True, help="Make a candidate, which judges nothing until it is renamed; a rule may try it."
)
@_folder_option
@json_option
def schemas_bump(type_name: str, release: bool, candidate: bool, folder: Path, as_json: bool) -> None:
    """Copy the newest minor of TYPE to the next one, to be changed there, and say what changed so far.

    Refused while the newest is not released, as then it may still be changed itself; --release puts it into registry.lock
    first. Nothing is written unless the folder is good before and after.

    \b
    maxam-admin schemas bump egm.EGMStatus_v1
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.admin.schema_edits import next_minor  # noqa: PLC0415 as above

    _change(folder, as_json, lambda texts: next_minor(texts, type_name, release, candidate))


@schemas.command("release", short_help="Put minors into registry.lock.")
@click.argument("type_names", metavar="[TYPE]...", nargs=-1)
@_folder_option
@json_option
def schemas_release(type_names: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Put all minors of these types, or of all types, into registry.lock: from then on a changed text is an error.

    Do it when a minor goes into use, and commit the lock with it. There is no way back: correct a released minor by the next.

    \b
    maxam-admin schemas release egm.EGMStatus_v1
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.admin.schema_edits import release  # noqa: PLC0415 as above

    _change(folder, as_json, lambda texts: release(texts, type_names))


def _change(folder: Path, as_json: bool, make: "Callable[[dict[str, bytes]], Edit]") -> None:
    from maxam.admin.schema_edits import write  # noqa: PLC0415 as above
    from maxam.gateway.sources import read_schema_texts  # noqa: PLC0415 as above

    texts = read_schema_texts(folder)
    edit = make(texts)
    write(folder, texts, edit)
    if as_json:
        print_json(dict(edit.facts))
        return
    for line in edit.said:
        print_line(line)


@schemas.command("plan", short_help="Say what a folder would do to a running gateway.")
@_folder_argument
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Show at most so many rows of each sort.",
)
@json_option
@with_credentials
def schemas_plan(credentials: Credentials, folder: Path, limit: int, as_json: bool) -> None:
    """Say what a schema folder would do to a running gateway before it is put into force there.

    Every present value is judged by the folder's rules as if its publisher sent it again: which publishers would be rejected
    from then on, and why; which topics no rule would cover any more; which of the SENDs that were rejected lately would pass.
    Needs the admin right `read`; values that the certificate may not receive are counted, not judged. Reads the topics a page
    at a time and changes nothing. Exit code 1 when a publisher would break, a topic would lose its rule, or the folder is no good.
    With --json each row is an object on a line; the last line sums up.

    \b
    maxam-admin schemas plan next/schemas
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.admin.schema_folder import load_folder  # noqa: PLC0415 as above
    from maxam.admin.schema_plan import make_plan  # noqa: PLC0415 as above

    registry = load_folder(folder)
    progress = click.echo if sys.stderr.isatty() else None
    with Remote(credentials) as remote:
        plan = make_plan(
            remote, registry, None if progress is None else lambda text: click.echo(f"\r{text}", err=True, nl=False)
        )
    if progress is not None:
        click.echo("\r\033[K", err=True, nl=False)
    if as_json:
        for row in plan.rows():
            print_json(row)
    else:
        plan.print(limit)
    if plan.breaks:
        raise ConfigurationError(plan.verdict)


schemas.add_command(shadow)

"""`maxam-admin schemas`: check and read a schema folder."""

import json
from pathlib import Path
from typing import Any

import click

from maxam.avro.folder import read_schema_texts
from maxam.avro.json.schemas import rule_row, version_row
from maxam.avro.registry import Registry
from maxam.avro.rule import SchemaVersion
from maxam.cli.commands.schema_options import folder_argument, registry_of, registry_options
from maxam.cli.options import json_option, limit_option, listing_option, print_rows, with_credentials
from maxam.counting import counted
from maxam.errors import ConfigurationError
from maxam.https_client import Credentials
from maxam.schema_tools.check_formats import github_lines, junit_lines
from maxam.schema_tools.diff import compare
from maxam.schema_tools.folder import explain, inspect, released_minors, version_of
from maxam.schema_tools.tree import example as example_of
from maxam.schema_tools.tree import read_tree
from maxam.terminal.escaping import shown
from maxam.terminal.groups import LazyGroup
from maxam.terminal.tables import print_fields, print_json, print_line, print_table, print_value


@click.group(
    cls=LazyGroup,
    lazy={
        "test": ("maxam.cli.commands.schema_bodies:schemas_test", "Show what the broker would answer to a body."),
        "encode": ("maxam.cli.commands.schema_bodies:schemas_encode", "Make a body of JSON."),
        "decode": ("maxam.cli.commands.schema_bodies:schemas_decode", "Show a body as JSON."),
        "new": ("maxam.cli.commands.schema_changes:schemas_new", "Make a new type, and a rule for it."),
        "bump": (
            "maxam.cli.commands.schema_changes:schemas_bump",
            "Copy the newest version of a type to the next one.",
        ),
        "release": ("maxam.cli.commands.schema_changes:schemas_release", "Put schema versions into registry.lock."),
        "plan": ("maxam.cli.commands.schema_changes:schemas_plan", "Show what a folder would do to a running gateway."),
        "types": (
            "maxam.cli.commands.schema_types:schemas_types",
            "Print the declarations of each TYPE, by default of all types.",
        ),
        "shadow": (
            "maxam.cli.commands.shadow:shadow",
            "Show what candidate versions would have made of live traffic: what share they would have rejected, whose, and why.",
        ),
    },
)
def schemas() -> None:
    """Check, read, try and change a schema folder.

    The folder is --folder (of `check` and `plan`: the argument), or the variable MAXAM_SCHEMAS, or `schemas` in the current
    folder. All but `plan`, `shadow` and what has --live work without a gateway.
    """


# Checking.


@schemas.command("check", short_help="List every fault of a folder.")
@folder_argument
@click.option("--strict", is_flag=True, help="Exit with 1 when there are warnings, too.")
@click.option(
    "-o",
    "--format",
    "form",
    type=click.Choice(["text", "json", "github", "junit"]),
    default="text",
    show_default=True,
    help="github marks lines in a pull request. junit is XML with a test for each file.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def schemas_check(folder: Path, strict: bool, form: str, as_json: bool) -> None:
    """List every fault of a schema folder, as the gateway would find them.

    With an error (exit code 1) the gateway would refuse the folder. Each is a line with file, line, place in the file,
    what was expected and what to do. Warnings, on standard error, are about what would work but hardly is what is meant.
    Globs are judged by the default [limits] of a configuration.
    With --json each finding is an object on a line, {severity, file, line, place, problem}; the last line sums up. The
    forms for CI have the same on standard output, warnings too. Exit codes are the same in each.

    \b
    maxam-admin schemas check schemas
    maxam-admin schemas check --format junit schemas >schemas.xml
    """  # noqa: D301 a mark of click's: the lines stay as they are
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
        lines = github_lines(folder, findings) if form == "github" else junit_lines(folder, texts, findings)
        for line in lines:
            print_line(line)
    else:
        for finding in findings:
            if finding.severity == "error":
                print_line(str(finding))
            else:
                click.echo(shown(f"warning: {finding}"), err=True)
        if registry is not None:
            print_line(f"{folder}: valid, {counted(len(registry.rules), 'rule')}, {counted(len(minors), 'type')}")
            if minors:
                print_fields((name, " ".join(found)) for name, found in minors.items())
    if errors:
        more = f", {counted(warnings, 'warning')}" if warnings else ""
        raise ConfigurationError(f"{folder}: {counted(errors, 'error')}{more}")
    if strict and warnings:
        raise ConfigurationError(f"{folder}: {counted(warnings, 'warning')} (--strict)")


# Reading.


@schemas.command("list", short_help="List types, or rules.")
@registry_options
@click.option("--rules", is_flag=True, help="List the rules in their order instead: the first that matches decides.")
@limit_option()
@listing_option
@with_credentials
def schemas_list(
    credentials: Credentials, folder: Path, live: bool, rules: bool, limit: int | None, as_json: bool
) -> None:
    """List the types with their versions, newest first, and the encodings of their values.

    A version with a `*` is not released: it is not in `registry.lock`, and may still be changed. One in brackets is a
    candidate, which no SEND is validated against. A gateway does not list candidates.

    \b
    maxam-admin schemas list --folder schemas
    maxam-admin schemas list --live --rules
    """  # noqa: D301 a mark of click's: the lines stay as they are
    registry = registry_of(credentials, folder, live)
    if rules:
        _list_rules(registry, limit, as_json)
        return
    released = None if live else _released(folder)
    print_rows(
        iter([_type_row(registry, name, released) for name in registry.types()]),
        limit,
        as_json,
        [
            "TYPE",
            (
                "MINORS",
                lambda row: " ".join(
                    [f"({minor})" for minor in row["candidates"]]
                    + [v["minor"] + ("*" if v["released"] is False else "") for v in row["versions"]]
                ),
            ),
            "COMPATIBILITY",
            ("ENCODING", lambda row: " ".join(sorted({rule["encoding"] for rule in row["rules"]})) or "-"),
            ("#RULES", lambda row: len(row["rules"])),
            ("NEWEST FINGERPRINT", lambda row: row["versions"][0]["fingerprints"][registry.fingerprint]),
        ],
        ["NEWEST FINGERPRINT", "COMPATIBILITY"],
        names=["type"],
    )


def _list_rules(registry: Registry, limit: int | None, as_json: bool) -> None:
    print_rows(
        iter([{"index": index, **rule_row(rule)} for index, rule in enumerate(registry.rules)]),
        limit,
        as_json,
        [
            ("#RULE", "index"),
            "DESTINATION",
            "SCHEMA",
            "ENCODING",
            ("MINORS", lambda row: " ".join(row["versions"])),
            "SHADOW",
        ],
        ["MINORS", "SHADOW", "ENCODING"],
    )


def _released(folder: Path) -> set[tuple[str, str]]:
    return released_minors(read_schema_texts(folder))


def _type_row(registry: Registry, name: str, released: set[tuple[str, str]] | None) -> dict[str, Any]:
    return {
        "type": name,
        "compatibility": registry.compatibility(name),
        "versions": [
            version_row(version)
            | {
                "released": None if released is None else (name, version.minor) in released,
                "file": version.path,
            }
            for version in registry.versions(name)
        ],
        "candidates": [candidate.minor for candidate in registry.candidates(name)],
        "rules": [rule_row(rule) for rule in registry.rules if rule.schema == name],
    }


@schemas.command("show", short_help="Show a type, its text or an example.")
@click.argument("type_name", metavar="TYPE")
@click.argument("minor", required=False)
@registry_options
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
    """Show a type: its versions, their fingerprints, the rules that use it, and the fields of its newest version, or of MINOR.

    \b
    maxam-admin schemas show egm.EGMStatus_v1
    maxam-admin schemas show egm.EGMStatus_v1 1.0 --text > EGMStatus.avsc
    maxam-admin schemas show egm.EGMStatus_v1 --example > status.json
    """  # noqa: D301 a mark of click's: the lines stay as they are
    registry = registry_of(credentials, folder, live)
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


def _field_rows(tree: Any) -> list[list[object]]:  # noqa: ANN401 a Node, whose module is imported by the command
    """List all fields, then those of records in other records. A record that holds itself is entered once."""
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


def _version(registry: Registry, type_name: str, minor: str | None) -> SchemaVersion:
    """Find a minor of a type, the newest one by default; a minor of another major is one of the type of that major."""
    if minor is not None:
        stem, mark, major = type_name.rpartition("_v")
        sibling = f"{stem}_v{minor.partition('.')[0]}"
        if mark and major != minor.partition(".")[0] and registry.versions(sibling):
            type_name = sibling
    return version_of(registry, type_name, minor)


@schemas.command("explain", short_help="Show what a destination must hold.")
@click.argument("destination")
@registry_options
@json_option
@with_credentials
def schemas_explain(credentials: Credentials, destination: str, folder: Path, live: bool, as_json: bool) -> None:
    """Show what a SEND to DESTINATION must hold: the rule that decides, its encoding, its schema and the versions in force.

    Exit code 1 when no rule covers it: such a SEND is rejected.

    \b
    maxam-admin schemas explain X/EGM.Q.12345.EGMStatus
    """  # noqa: D301 a mark of click's: the lines stay as they are
    registry = registry_of(credentials, folder, live)
    found = explain(registry, destination)
    if as_json:
        print_json(found.facts)
    else:
        print_fields(found.lines)
    if found.problem:
        raise ConfigurationError(found.problem)


@schemas.command("diff", short_help="Show the differences between two versions of a schema.")
@click.argument("type_name", metavar="TYPE")
@click.argument("old", required=False)
@click.argument("new", required=False)
@registry_options
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
    """Show the differences between two versions of TYPE field by field, and whether each can read the data of the other.

    Without OLD and NEW it compares the newest version with the one before, with OLD alone the newest version with OLD. A
    version of another major, such as 2.0, is one of the type of that major. An example value shows each part that cannot be
    read. The exit code is 0 whether or not there are differences; use `schemas check` to validate a folder.

    \b
    maxam-admin schemas diff egm.EGMMeterReading_v1 1.0 1.1
    """  # noqa: D301 a mark of click's: the lines stay as they are
    registry = registry_of(credentials, folder, live)
    versions = registry.versions(type_name)
    if old is None and len(versions) == 1:
        raise ConfigurationError(
            f"{type_name} has one version only, {versions[0].minor}: there is nothing to compare it with"
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

"""`maxam-admin policy`: check, explain and compare policies."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from cryptography import x509

from maxam.avro.folder import read_registry
from maxam.broker.explaining import (
    Difference,
    differences,
    explain_receive,
    explain_right,
    explain_send,
    find_oddities,
    moved_fingerprints,
)
from maxam.broker.policy import ADMIN_RIGHTS, Policy, inspect_policies, load_policies
from maxam.cli.options import FILE, FOLDER, json_option, with_credentials
from maxam.config import Limits
from maxam.counting import counted
from maxam.errors import ConfigurationError, GlobError
from maxam.exit_codes import ExitCode
from maxam.files import read_file
from maxam.globs import Glob, compile_glob
from maxam.https_client import Credentials, Remote
from maxam.pki.certificates import fingerprint
from maxam.terminal.escaping import shown
from maxam.terminal.groups import CommandGroup
from maxam.terminal.options import RenamedOption
from maxam.terminal.tables import print_fields, print_json, print_line, print_table
from maxam.toml_lines import line_of

_GRANTING: Final = ("allowed", "all", "part", "undecided")


@click.group(cls=CommandGroup)
def policy() -> None:
    """Check policies, explain what they allow, compare them."""


@policy.command("check")
@click.argument("files", type=FILE, nargs=-1, required=True)
@click.option(
    "--schemas", type=FOLDER, help="Schema folder. Globs that match no destination of its rules are reported."
)
@click.option("--strict", is_flag=True, help="Exit with 1 if there are warnings.")
@json_option
def policy_check(files: tuple[Path, ...], schemas: Path | None, strict: bool, as_json: bool) -> None:
    """List every error of a policy, as the gateway would find them, and warnings.

    Errors (exit code 1) would keep the gateway from taking it: unknown capabilities, a fingerprint of two principals, unusable globs and
    the like. Warnings, on standard error: principals without rights or certificate, capabilities that no principal has, globs that others make
    superfluous, an owns that leaves nothing. Give the operators' file and the one of enrolled clients together, as the gateway reads them.
    Globs are judged by the default [limits] of a configuration.
    With --json each finding is an object on a line, {severity, file, line, place, problem}; the last line sums up.

    \b
    maxam-admin policy check policy.toml --schemas schemas
    """  # noqa: D301 a mark of click's: the lines stay as they are
    texts = _read(files)
    loaded, errors = inspect_policies(list(texts.items()), Limits())
    findings = [("error", error.file, error.place, error.problem) for error in errors]
    if not errors:
        rules = None if schemas is None else _rules(schemas)
        findings += [("warning", odd.file, odd.place, odd.problem) for odd in find_oddities(loaded, rules)]
    for severity, file, place, problem in findings:
        line = line_of(texts[file], place, problem) if file in texts else None
        if as_json:
            print_json({"severity": severity, "file": file, "line": line, "place": place, "problem": problem})
            continue
        text = ": ".join(part for part in (file if line is None else f"{file}:{line}", place, problem) if part)
        if severity == "error":
            print_line(text)
        else:
            click.echo(shown(f"warning: {text}"), err=True)
    name = ", ".join(map(str, files))
    warnings = len(findings) - len(errors)
    counts = {"principals": len(loaded.principals), "capabilities": len(loaded.capabilities)}
    replicating, fronts = [
        [one for one in loaded.principals if right in loaded.rights(one).admin] for right in ("replicate", "front")
    ]
    if as_json:
        summary = {"file": name, "good": not errors, "errors": len(errors), "warnings": warnings, **counts}
        print_json({**summary, "replicate": replicating, "front": fronts})
    elif not errors:
        held = counted(len(loaded.principals), "principal"), counted(len(loaded.capabilities), "capability")
        print_line(f"{name}: valid, {held[0]}, {held[1]}")
        if replicating:
            print_line(f"{name}: the right replicate, to the journal with every value: {', '.join(replicating)}")
        if fronts:
            print_line(f"{name}: the right front, to send in the name of each client: {', '.join(fronts)}")
    if errors:
        raise ConfigurationError(f"{name}: {counted(len(errors), 'error')}")
    if strict and warnings:
        raise ConfigurationError(f"{name}: {counted(warnings, 'warning')} (--strict)")


@policy.command("explain")
@click.option("--principal", metavar="NAME", help="Name of the principal.")
@click.option(
    "--cert",
    "certificate",
    cls=RenamedOption,
    former=["--certificate"],
    type=FILE,
    help="PEM file of the principal's certificate.",
)
@click.option("--fingerprint", metavar="HEX", help="SHA-256 of the principal's certificate.")
@click.option("--send", metavar="DESTINATION", help="Destination of a SEND.")
@click.option("--receive", metavar="GLOB", help="Glob of a subscription.")
@click.option("--right", type=click.Choice(sorted(ADMIN_RIGHTS)), help="Admin right.")
@click.option(
    "--policy",
    "files",
    type=FILE,
    multiple=True,
    help="Policy file to use instead of the gateway's policy. Repeatable.",
)
@json_option
@with_credentials
def policy_explain(
    credentials: Credentials,
    principal: str | None,
    certificate: Path | None,
    fingerprint: str | None,
    send: str | None,
    receive: str | None,
    right: str | None,
    files: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Show the rule by which a principal may, or may not, send to a destination, receive a glob, or use an admin right.

    Exits with 1 if it may not at all. Without --policy the gateway is asked, which needs the right read.

    \b
    maxam-admin policy explain --principal controller-7 --send X/EGM.Q.7001.EGMStatus
    maxam-admin policy explain --cert client.pem --receive 'X/EGM.**' --policy policy.toml
    """  # noqa: D301 a mark of click's: the lines stay as they are
    if (principal is not None) + (certificate is not None) + (fingerprint is not None) != 1:
        raise click.UsageError("give one of --principal, --cert and --fingerprint")
    what = {name: text for name, text in (("send", send), ("receive", receive), ("right", right)) if text is not None}
    if len(what) != 1:
        raise click.UsageError("give one of --send, --receive and --right")
    if certificate is not None:
        fingerprint = _fingerprint(certificate)
    if files:
        answer = _explain_here(files, principal, fingerprint, **what)
    else:
        who = {"fingerprint": fingerprint} if fingerprint is not None else {"principal": principal or ""}
        with Remote(credentials) as remote:
            answer = remote.get("/v1/policy/explain", **who, **what)
    if as_json:
        print_json(answer)
    else:
        _print_explanation(answer)
    if answer["verdict"] not in _GRANTING:
        sys.exit(ExitCode.CHECK_FAILED)


@policy.command("diff")
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option(
    "--enrolled", type=FILE, multiple=True, help="File of enrolled clients, which the gateway reads with either policy."
)
@click.option(
    "--live",
    is_flag=True,
    help="Ask the gateway too for the sessions and topics that would be affected.",
)
@json_option
@with_credentials
def policy_diff(
    credentials: Credentials, old: Path, new: Path, enrolled: tuple[Path, ...], live: bool, as_json: bool
) -> None:
    """Compare the policies OLD and NEW by the meaning of their globs: list what each principal gains and loses.

    Each row has an example, a destination that it is true of. With --live (right read) rows follow for connections that would be
    closed. Others follow for present topics that a principal with a session could no longer receive.

    \b
    maxam-admin policy diff policy.toml policy-new.toml --live
    """  # noqa: D301 a mark of click's: the lines stay as they are
    before, after = _load((old, *enrolled)), _load((new, *enrolled))
    found = list(differences(before, after))
    rows = [asdict(difference) for difference in found]
    effects = _effects(credentials, before, after, found) if live else []
    if as_json:
        for row in [*rows, *effects]:
            print_json(row)
        return
    if not rows:
        print_line("no principal gains or loses anything")
    else:
        print_table(
            ["PRINCIPAL", "CHANGE", "RIGHT", "WHAT", "SUCH AS"],
            [
                (
                    row["principal"],
                    row["change"] if row["exact"] else f"{row['change']} perhaps",
                    row["right"],
                    row["what"],
                    row["example"],
                )
                for row in rows
            ],
            ["SUCH AS"],
        )
    for effect in effects:
        print_line(effect["text"])
    if live and not effects:
        print_line("no connection would be closed, and no principal with a session would lose a present topic")


def _read(files: Sequence[Path]) -> dict[str, bytes]:
    return {str(file): read_file(file, "the policy", "correct the path") for file in files}


def _load(files: Sequence[Path]) -> Policy:
    return load_policies(list(_read(files).items()), Limits())


def _rules(folder: Path) -> list[Glob]:
    return [rule.glob for rule in read_registry(folder, Limits()).rules]


def _fingerprint(certificate: Path) -> str:
    try:
        return fingerprint(x509.load_pem_x509_certificate(certificate.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"{certificate} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{certificate} holds no PEM certificate: {error}") from error


def _explain_here(
    files: Sequence[Path],
    principal: str | None,
    fingerprint: str | None,
    send: str | None = None,
    receive: str | None = None,
    right: str | None = None,
) -> dict[str, Any]:
    """Explain by files; lines of them are added to places."""
    texts = _read(files)
    limits = Limits()
    loaded = load_policies(list(texts.items()), limits)
    if fingerprint is not None:
        principal = loaded.principal_of(fingerprint.replace(":", "").lower())
        if principal is None:
            raise ConfigurationError(
                f"{', '.join(texts)}: no principal has the fingerprint {fingerprint}: its client is refused, or has no rights"
            )
    name = principal or ""
    if send is not None:
        explained = explain_send(loaded, name, send, limits.destination_bytes_max)
    elif right is not None:
        explained = explain_right(loaded, name, right)
    else:
        try:
            glob = compile_glob(receive or "", limits)
        except GlobError as error:
            raise ConfigurationError(f"--receive {receive}: {error}") from error
        explained = explain_receive(loaded, name, glob)
    answer = asdict(explained)
    for grant in [*answer["decisive"], *answer["grants"], *(answer["owns"] or ())]:
        grant["line"] = line_of(texts[grant["file"]], grant["place"])
    return answer


def _print_explanation(answer: dict[str, Any]) -> None:
    print_line(f"{answer['verdict']}: {answer['why']}")
    fields = [("principal", answer["principal"]), (answer["action"], answer["target"])]
    fields += [("decided at", _where(grant)) for grant in answer["decisive"]]
    if answer["will"]:
        fields.append(("last will", answer["will"]))
    if answer["remedies"]:
        fields.append(("would allow", "the capability " + " or ".join(answer["remedies"])))
    print_fields(fields)
    asked = [*answer["grants"], *(answer["owns"] or ())]
    if asked:
        rows = [(grant["by"] or "(owns)", grant["glob"], grant["match"], _where(grant)) for grant in asked]
        print_table(["CAPABILITY", "GLOB", "SAYS", "WRITTEN AT"], rows, ["WRITTEN AT"])


def _where(grant: dict[str, Any]) -> str:
    line = grant.get("line")
    file = grant["file"] if line is None else f"{grant['file']}:{line}"
    return f"{file} {grant['place']}"


def _effects(
    credentials: Credentials, before: Policy, after: Policy, found: Sequence[Difference]
) -> list[dict[str, Any]]:
    """Ask the gateway what a change would do now."""
    moved = moved_fingerprints(before, after)
    losing = {one.principal for one in found if one.change == "loses" and one.right == "receive"}
    effects: list[dict[str, Any]] = []
    with Remote(credentials) as remote:
        sessions = list(remote.pages("/v1/sessions", "sessions", limit=200))
        for row in sessions:
            owner = moved.get(row["fingerprint"] or "")
            if owner is None or not row["connected"]:
                continue
            who = f"{row['principal']} {row['client_id']}"
            why = "its certificate is no longer in the policy" if owner[1] is None else f"it would be {owner[1]}"
            facts = {"effect": "closed", "principal": row["principal"], "client_id": row["client_id"], "why": why}
            effects.append({**facts, "text": f"closed: the connection of {who} from {row['peer']}, as {why}"})
        losing &= {row["principal"] for row in sessions} & set(after.principals)
        if losing:
            effects += _lost_topics(remote, before, after, sorted(losing))
    return effects


def _lost_topics(remote: Remote, before: Policy, after: Policy, losing: list[str]) -> list[dict[str, Any]]:
    counts = dict.fromkeys(losing, 0)
    examples: dict[str, str] = {}
    rights = [(name, before.rights(name), after.rights(name)) for name in losing]
    for row in remote.pages("/v1/topics", "topics", limit=200):
        destination = row["destination"].encode()
        for name, was, now in rights:
            if was.may_receive(destination) and not now.may_receive(destination):
                counts[name] += 1
                examples.setdefault(name, row["destination"])
    return [
        {
            "effect": "lost",
            "principal": name,
            "topics": count,
            "example": examples[name],
            "text": f"lost: {name}, who has a session, may no longer receive {count} present topics, such as {examples[name]}",
        }
        for name, count in counts.items()
        if count
    ]

"""The verbs `maxam-admin policy ...`: check policies, explain them, compare them."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from maxam.admin.options import FILE, FOLDER, json_option, with_credentials
from maxam.admin.output import print_fields, print_json, print_line, print_table
from maxam.admin.remote import Credentials, Remote
from maxam.counting import counted
from maxam.errors import ConfigurationError, GlobError

if TYPE_CHECKING:
    from maxam.broker.explaining import Difference
    from maxam.broker.policy import Policy
    from maxam.globs import Glob

_GRANTING: Final = ("allowed", "all", "part", "undecided")


@click.group()
def policy() -> None:
    """Check policies, explain what they allow, compare them."""


@policy.command("check")
@click.argument("files", type=FILE, nargs=-1, required=True)
@click.option("--schemas", type=FOLDER, help="A schema folder: names globs that match nothing that its rules cover.")
@click.option("--strict", is_flag=True, help="Warnings too make the exit code 1.")
@json_option
def policy_check(files: tuple[Path, ...], schemas: Path | None, strict: bool, as_json: bool) -> None:
    """Name everything that is wrong with a policy, as the gateway would judge it, and what is odd in it.

    Errors (exit code 1) would keep the gateway from taking it: unknown capabilities, a fingerprint of two principals, unusable globs and
    the like. Warnings, on standard error: principals without rights or certificate, capabilities that nobody has, globs that others make
    superfluous, an owns that leaves nothing. Give the operators' file and the one of enrolled clients together, as the gateway reads them.
    With --json each finding is an object on a line, {severity, file, line, place, problem}; the last line sums up.

    \b
    maxam-admin policy check policy.toml --schemas schemas
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.broker.explaining import find_oddities  # noqa: PLC0415 likewise
    from maxam.broker.policy import inspect_policies  # noqa: PLC0415 likewise
    from maxam.broker.toml_lines import line_of  # noqa: PLC0415 the broker's modules take 50 ms to import
    from maxam.config import Limits  # noqa: PLC0415 likewise

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
            from maxam.admin.escaping import shown  # noqa: PLC0415 with the rest

            click.echo(shown(f"warning: {text}"), err=True)
    name = ", ".join(map(str, files))
    warnings = len(findings) - len(errors)
    counts = {"principals": len(loaded.principals), "capabilities": len(loaded.capabilities)}
    if as_json:
        print_json({"file": name, "good": not errors, "errors": len(errors), "warnings": warnings, **counts})
    elif not errors:
        held = counted(len(loaded.principals), "principal"), counted(len(loaded.capabilities), "capability")
        print_line(f"{name}: good, {held[0]}, {held[1]}")
    if errors:
        raise ConfigurationError(f"{name}: {counted(len(errors), 'error')}")
    if strict and warnings:
        raise ConfigurationError(f"{name}: {counted(warnings, 'warning')} (--strict)")


@policy.command("explain")
@click.option("--principal", metavar="NAME", help="Who.")
@click.option("--certificate", type=FILE, help="The same, by a PEM file of the certificate.")
@click.option("--fingerprint", metavar="HEX", help="The same, by the certificate's SHA-256.")
@click.option("--send", metavar="DESTINATION", help="May it SEND there?")
@click.option("--receive", metavar="GLOB", help="How much of this may it receive?")
@click.option(
    "--policy",
    "files",
    type=FILE,
    multiple=True,
    help="Ask this file (or these) instead of what is in force in the gateway.",
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
    files: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Name the rule by which somebody may, or may not, SEND to a destination or receive what a glob matches.

    Exits with 1 if it may not at all. Without --policy the gateway is asked, which needs the right read.

    \b
    maxam-admin policy explain --principal controller-7 --send X/EGM.Q.7001.EGMStatus
    maxam-admin policy explain --certificate client.pem --receive 'X/EGM.**' --policy policy.toml
    """  # noqa: D301 a mark of click's: the lines stay as they are
    if (principal is not None) + (certificate is not None) + (fingerprint is not None) != 1:
        raise click.UsageError("give one of --principal, --certificate and --fingerprint")
    if (send is None) == (receive is None):
        raise click.UsageError("give either --send or --receive")
    if certificate is not None:
        fingerprint = _fingerprint(certificate)
    if files:
        answer = _explain_here(files, principal, fingerprint, send, receive)
    else:
        who = {"fingerprint": fingerprint} if fingerprint is not None else {"principal": principal or ""}
        what = {"receive": receive} if receive is not None else {"send": send or ""}
        with Remote(credentials) as remote:
            answer = remote.get("/v1/policy/explain", **who, **what)
    if as_json:
        print_json(answer)
    else:
        _print_explanation(answer)
    if answer["verdict"] not in _GRANTING:
        sys.exit(1)


@policy.command("diff")
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option(
    "--enrolled", type=FILE, multiple=True, help="The file of enrolled clients, which the gateway reads beside either."
)
@click.option(
    "--live",
    is_flag=True,
    help="Ask the gateway too: which sessions would lose their connection, which topics nobody could read on.",
)
@json_option
@with_credentials
def policy_diff(
    credentials: Credentials, old: Path, new: Path, enrolled: tuple[Path, ...], live: bool, as_json: bool
) -> None:
    """Say who gains and who loses what when the policy NEW follows OLD, by what globs mean, not by how they are written.

    Each row names an example, a destination that it is true of. With --live (right read) rows follow for connected sessions that would be
    closed, and for present topics that a principal with a session may not receive any more.

    \b
    maxam-admin policy diff policy.toml policy-new.toml --live
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.broker.explaining import differences  # noqa: PLC0415 the broker's modules take 50 ms to import

    before, after = _load((old, *enrolled)), _load((new, *enrolled))
    found = list(differences(before, after))
    rows = [asdict(difference) for difference in found]
    effects = _effects(credentials, before, after, found) if live else []
    if as_json:
        for row in [*rows, *effects]:
            print_json(row)
        return
    if not rows:
        print_line("nobody gains or loses anything")
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
    from maxam.gateway.files import read_file  # noqa: PLC0415 with the others

    return {str(file): read_file(file, "the policy", "correct the path") for file in files}


def _load(files: Sequence[Path]) -> "Policy":
    from maxam.broker.policy import load_policies  # noqa: PLC0415 the broker's modules take 50 ms to import
    from maxam.config import Limits  # noqa: PLC0415 likewise

    return load_policies(list(_read(files).items()), Limits())


def _rules(folder: Path) -> "list[Glob]":
    from maxam.config import Limits  # noqa: PLC0415 with the line below
    from maxam.gateway.sources import read_registry  # noqa: PLC0415 fastavro and the broker take 100 ms to import

    return [rule.glob for rule in read_registry(folder, Limits()).rules]


def _fingerprint(certificate: Path) -> str:
    from cryptography import x509  # noqa: PLC0415 the other verbs do without

    from maxam.admin.certificates import fingerprint  # noqa: PLC0415 likewise

    try:
        return fingerprint(x509.load_pem_x509_certificate(certificate.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"{certificate} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{certificate} holds no PEM certificate: {error}") from error


def _explain_here(
    files: Sequence[Path], principal: str | None, fingerprint: str | None, send: str | None, receive: str | None
) -> dict[str, Any]:
    """Explain by files; lines of them are added to places."""
    from maxam.broker.explaining import explain_receive, explain_send  # noqa: PLC0415 likewise
    from maxam.broker.policy import load_policies  # noqa: PLC0415 likewise
    from maxam.broker.toml_lines import line_of  # noqa: PLC0415 the broker's modules take 50 ms to import
    from maxam.config import Limits  # noqa: PLC0415 likewise
    from maxam.globs import compile_glob  # noqa: PLC0415 likewise

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
    credentials: Credentials, before: "Policy", after: "Policy", found: "Sequence[Difference]"
) -> list[dict[str, Any]]:
    """Ask the gateway what a change would do now."""
    from maxam.broker.explaining import moved_fingerprints  # noqa: PLC0415 the broker's modules take 50 ms to import

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
            why = "the policy no longer names its certificate" if owner[1] is None else f"it would be {owner[1]}"
            facts = {"effect": "closed", "principal": row["principal"], "client_id": row["client_id"], "why": why}
            effects.append({**facts, "text": f"closed: the connection of {who} from {row['peer']}: {why}"})
        losing &= {row["principal"] for row in sessions} & set(after.principals)
        if losing:
            effects += _lost_topics(remote, before, after, sorted(losing))
    return effects


def _lost_topics(remote: Remote, before: "Policy", after: "Policy", losing: list[str]) -> list[dict[str, Any]]:
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
            "text": f"lost: {name}, who has a session, may not receive {count} present topics any more, such as {examples[name]}",
        }
        for name, count in counts.items()
        if count
    ]

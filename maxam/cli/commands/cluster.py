"""`maxam-admin cluster`: gateways that follow each other, and the two decisions that a person has to make."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import click

from maxam.cli.confirming import REMOVE_MEMBER, ask, yes_option
from maxam.cli.options import FOLDER, done, json_option, limit_option, listing_option, print_rows, with_credentials
from maxam.cli.repeating import watch_option
from maxam.cluster.checking import largest_entry
from maxam.cluster.comparing import Sealed, differences, last_common
from maxam.cluster.engine import open_log
from maxam.cluster.forking import Tail, set_aside, tail_of
from maxam.cluster.founding import found
from maxam.cluster.membership import is_member, leave
from maxam.cluster.promotion import Promotion, look, promote
from maxam.config import load_settings
from maxam.counting import counted
from maxam.errors import ConfigurationError
from maxam.https_client import Credentials, Remote, RemoteError
from maxam.journal.decisions import note_decision
from maxam.journal.disk import OsDisk
from maxam.journal.listing import time_text
from maxam.terminal.tables import print_fields, print_json, print_line, print_table
from maxam.terminal.units import duration, size

_COMPARED_S: Final = 600.0  # for the answer of a member that reads segments whole


@click.group()
def cluster() -> None:
    """Show which gateway follows which, make a cluster, promote an observer, return a forked journal."""


@cluster.command("status")
@json_option
@watch_option
@with_credentials
def cluster_status(credentials: Credentials, as_json: bool) -> None:
    """Show the role of the gateway, the gateway that it follows, its cluster, and the gateways that follow it."""
    with Remote(credentials) as remote:
        answer = remote.get("/v1/cluster")
    if as_json:
        print_json(answer)
        return
    source, state = answer["source"], answer["cluster"]
    print_fields(
        [
            ("role", answer["role"]),
            ("revision", f"{answer['revision']}, accepted at {answer['accepted_at'] or 'no time'}"),
            ("as of", answer["as_of"]),
            ("incarnation", answer["incarnation"] or "none"),
            *([] if source is None else _source_fields(source)),
            *([] if state is None else _cluster_fields(state)),
        ]
    )
    if state is not None:
        print_table(
            ["NAME", "ROLE", "VERSION", "READY", "#BEHIND", "LAG", "#SYNCED", "#REVISION", "FREE", "MEMORY", "HOST"],
            [
                (
                    row["name"],
                    row["role"],
                    row["software"],
                    "yes" if row["ready"] else "no" if row["live"] else "silent",
                    row["lag_entries"],
                    f"{row['lag_s']:.1f} s",
                    row["synced"],
                    row["revision"],
                    "unknown" if row["free_bytes"] is None else size(row["free_bytes"]),
                    size(row["memory_bytes"]),
                    row["host"],
                )
                for row in state["members"]
            ],
            ["NAME", "HOST"],
        )
    if answer["followers"]:
        print_table(
            ["PRINCIPAL", "ADDRESS", "NAME", "VERSION", "WISH", "#REVISION", "#BEHIND", "LAG", "SENT", "LINKED"],
            [
                (
                    row["principal"],
                    row["address"],
                    row["name"],
                    row["software"],
                    row["wish"],
                    row["revision"],
                    row["lag_changes"],
                    "unknown" if row["lag_s"] is None else f"{row['lag_s']:.1f} s, {size(row['lag_bytes'])}",
                    size(row["sent_bytes"]),
                    duration(row["linked_s"]),
                )
                for row in answer["followers"]
            ],
            ["NAME", "VERSION"],
        )
    elif source is None and state is None:
        print_line("no gateway follows this one")


def _cluster_fields(state: dict[str, Any]) -> list[tuple[str, object]]:
    fields: list[tuple[str, object]] = [
        ("cluster", f"{state['name']}, member {state['member']}"),
        ("leader", f"{state['leader'] or 'none'}, term {state['term']}, index {state['index']}"),
    ]
    if state["problem"]:
        fields.append(("log", f"{state['problem']}{' (suspended)' if state['suspended'] else ''}"))
    fields.append(("log holds", f"{size(state['log_bytes'])} of {size(state['log_bytes_max'])}"))
    engine = state["engine"]
    if engine is not None:
        full = ", FULL" if engine["full"] else ""
        fields.append(("etcd", f"{size(engine['bytes'])} of {size(engine['quota'])}{full}"))
        fields += [(f"etcd {one['address']}", one["release"] or "NO ANSWER") for one in engine["nodes"]]
    fields += [("differs", f"{one['item']} on {one['member']}") for one in state["differs"]]
    return fields


def _source_fields(source: dict[str, Any]) -> list[tuple[str, object]]:
    linked_s = source["linked_s"]
    fields: list[tuple[str, object]] = [
        ("source", f"{source['name'] or 'unknown'} at {source['address']}, version {source['software'] or 'unknown'}"),
        ("link", f"{source['state']}{'' if linked_s is None else ', for ' + duration(linked_s)}"),
        (
            "lag",
            f"{source['lag_s']:.1f} s, {counted(source['lag_changes'], 'change')}, {size(source['lag_bytes'])} waiting",
        ),
    ]
    if source["state"] == "copying":
        fields.append(("copied", f"{size(source['copied_bytes'])} of {size(source['copy_bytes'])}"))
    if source["problem"]:
        fields.append(("problem", f"{source['refused'] + ': ' if source['refused'] else ''}{source['problem']}"))
    return fields


@cluster.command("init")
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    required=True,
    help="Configuration file of the gateway, maxam.toml, with a section [cluster].",
)
@click.option("--force", is_flag=True, help="Replace the log of a cluster, or make one again that is lost for good.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for the name of the cluster.")
@json_option
def cluster_init(path: Path, force: bool, yes: bool, as_json: bool) -> None:
    r"""Make the log of a cluster, beginning at the end of a gateway's journal.

    Run it once, on the gateway whose journal the cluster goes on with. The gateway must be stopped. The other members copy its
    journal when they start.

    With --force, stop all members, and use the journal with the highest revision. Accepted changes that it lacks are lost. Members
    with fewer changes go on, and members with other changes end with `forked`. Positions of clients become invalid.

    \b
    Examples:
    maxam-admin cluster init --config /etc/maxam/maxam.toml
    """
    try:
        settings = load_settings(path.read_text(encoding="utf-8"), str(path), path.absolute().parent)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 ({error}). Save it as UTF-8") from error
    member = settings.cluster
    if member is None:
        raise ConfigurationError(f"{path}: there is no section [cluster]. Add it, then try again")
    if not yes:
        _confirm(member.name)
    log = open_log(member.name, member.endpoints, member.ca, member.certificate, member.key)
    try:
        log.prove(largest_entry(settings, member))
        folder = str(settings.journal.folder.absolute())
        made = found(log, folder, force=force)
        note_decision(
            folder, "founded", time.time_ns() // 1000, cluster=member.name, revision=made.revision, force=force
        )
    finally:
        log.close()
    done(
        as_json,
        f"the log of {member.name} begins at revision {made.revision}: start the gateway, then the other members",
        asdict(made),
    )


@cluster.command("handover")
@click.option("--to", metavar="NAME", default="", help="Member that shall lead. The default is the first in rank.")
@json_option
@with_credentials
def cluster_handover(credentials: Credentials, to: str, as_json: bool) -> None:
    """Hand over the lead of a cluster from the gateway to another member.

    The gateway must lead. It ends with status 75 once the other member serves, and follows after its next start.
    """
    with Remote(credentials) as remote:
        answer = remote.post("/v1/cluster/handover", None, to=to)
    done(as_json, f"requested: {answer['member']} hands over", answer)


@cluster.command("members")
@click.option("--remove", metavar="NAME", default="", help="Remove a member that is silent, and gone for good.")
@yes_option
@limit_option()
@listing_option
@with_credentials
def cluster_members(credentials: Credentials, remove: str, yes: bool, limit: int | None, as_json: bool) -> None:
    """List the members of a cluster, or remove one.

    The log forgets an entry once the journals of copies_min live members have it. It waits for members that are silent, if fewer are
    left. Remove one that does not come back. Ask the member that leads.
    """
    if remove:
        ask(REMOVE_MEMBER, remove, yes)
    with Remote(credentials) as remote:
        if remove:
            remote.delete("/v1/cluster/members", name=remove)
            done(as_json, f"removed: {remove}", {"name": remove})
            return
        members = _members(remote)
    print_rows(
        iter(members),
        limit,
        as_json,
        [
            "NAME",
            ("LIVE", lambda row: "yes" if row["live"] else "no"),
            "ROLE",
            ("READY", lambda row: "yes" if row["ready"] else "no"),
            "#SYNCED",
            "#REVISION",
            "HOST",
            ("@ANNOUNCED", "announced_at"),
        ],
        ["NAME", "HOST"],
        names=["name"],
    )


def _members(remote: Remote) -> list[dict[str, Any]]:
    state = remote.get("/v1/cluster")["cluster"]
    if state is None:
        raise RemoteError("the gateway is no member of a cluster")
    members: list[dict[str, Any]] = state["members"]
    return members


@cluster.command("compare")
@click.option("--full", is_flag=True, help="Compare the SHA-256 of each segment, which reads them all.")
@json_option
@with_credentials
def cluster_compare(credentials: Credentials, full: bool, as_json: bool) -> None:
    """Compare the sealed segments of all live members: by size and last block, or with --full by their bytes.

    The command asks each member at its announced host and admin port, with the same certificate. It fails if a segment differs.
    """
    journals: dict[str, list[Sealed]] = {}
    with Remote(credentials) as remote:
        members = [row for row in _members(remote) if row["live"] and row["admin_port"]]
    for row in members:
        host = f"[{row['host']}]" if ":" in row["host"] else row["host"]
        with Remote(replace(credentials, gateway=f"{host}:{row['admin_port']}"), _COMPARED_S) as remote:
            pages = remote.pages("/v1/cluster/segments", "segments", full="true" if full else "false")
            journals[row["name"]] = [Sealed(**one) for one in pages]
    compared, found = differences(journals)
    if as_json:
        print_json({"members": sorted(journals), "segments": compared, "differences": [asdict(one) for one in found]})
    elif found:
        print_table(
            ["#FIRST", "#LAST", "MEMBER", "#BYTES", "#CHAIN", "SHA-256"],
            [
                (one.first, segment.last, name, segment.bytes, segment.chain, segment.sha256 or "")
                for one in found
                for name, segment in sorted(one.members.items())
            ],
            ["SHA-256"],
        )
    if found:
        raise RemoteError(
            f"{counted(len(found), 'segment')} of {compared} differ: keep the journals, and report it", "journal-other"
        )
    if not as_json:
        print_line(f"{counted(compared, 'segment')} are the same at {', '.join(sorted(journals))}")


@cluster.command("leave")
@click.argument("folder", type=FOLDER)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for a confirmation.")
@json_option
def cluster_leave(folder: Path, yes: bool, as_json: bool) -> None:
    """Make the journal of a member, in FOLDER, one of a gateway that serves by itself.

    The gateway must be stopped. Remove [cluster] from its maxam.toml. Its next start gives the journal a new incarnation. To follow
    the cluster again, the journal has to be set aside.
    """
    path = str(folder.resolve())
    if not yes:
        click.confirm("Leave the cluster with this journal? Its changes will not be those of the cluster", abort=True)
    leave(path)
    note_decision(path, "left", time.time_ns() // 1000)
    done(as_json, "left: remove [cluster] from the gateway's maxam.toml, then start it", {"folder": path})


@cluster.command("promote")
@click.argument("folder", type=FOLDER)
@click.option("--because", required=True, metavar="TEXT", help="Reason of the promotion, for the audit log.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for a confirmation.")
@json_option
def cluster_promote(folder: Path, because: str, yes: bool, as_json: bool) -> None:
    r"""Make the journal of an observer, in FOLDER, one that serves clients.

    Use it when the source is lost. The observer must be stopped. Clients of the new gateway lose the changes that the source
    accepted after the last one here. The next start gives the journal a new incarnation, and records the promotion in the audit log.

    \b
    Examples:
    maxam-admin cluster promote /var/lib/maxam/journal --because "site A burnt down, decided by J. Doe"
    """
    if not because.strip():
        raise click.UsageError("--because needs a reason")
    found = look(str(folder.resolve()), because, time.time_ns() // 1000)
    if not as_json:
        print_fields(_promotion_fields(found))
    if not yes:
        click.confirm(
            "Promote this journal? Its former source must never serve clients again before it is a copy of it",
            abort=True,
        )
    promote(str(folder.resolve()), found)
    done(
        as_json,
        "promoted: remove [follow] from the gateway's maxam.toml, then start it",
        {**asdict(found), "missing": found.missing},
    )


def _promotion_fields(found: Promotion) -> list[tuple[str, object]]:
    followed = found.followed
    accepted = f", accepted at {time_text(found.accepted_at_us)}" if found.accepted_at_us else ""
    if followed is None:
        heard = "nothing was heard of the source"
    else:
        age_s = max(0.0, (found.at_us - followed.heard_at_us) / 1e6)
        heard = (
            f"{time_text(followed.heard_at_us)}, {duration(age_s)} ago: {followed.source} ({followed.address}) had revision"
            f" {followed.revision}"
        )
    return [
        ("last change", f"revision {found.revision}{accepted}"),
        ("last heard", heard),
        ("known to be missing", counted(found.missing, "change")),
    ]


@cluster.command("rejoin")
@click.argument("folder", type=FOLDER)
@click.option("--apply", "apply_it", is_flag=True, help="Set the journal aside. Without it nothing is changed.")
@click.option("-y", "--yes", is_flag=True, help="With --apply: do not ask for a confirmation.")
@json_option
@with_credentials
def cluster_rejoin(credentials: Credentials, folder: Path, apply_it: bool, yes: bool, as_json: bool) -> None:
    """Show what a forked journal, in FOLDER, has that the gateway has not, and with --apply set it aside.

    Use it on the former site after an observer was promoted: --admin is the admin listener of the promoted gateway. Or use it for a
    member whose journal is forked: --admin is the admin listener of another member. The gateway of FOLDER must be
    stopped. Its next start copies the journal of its new source, or of another member.
    """
    path = str(folder.resolve())
    member = is_member(path, OsDisk())
    with Remote(credentials) as remote:
        tail = _tail_of_member(remote, path) if member else _tail_of_site(remote, path)
        state = remote.get("/v1/cluster")["cluster"]
    if not as_json:
        _print_tail(tail)
    if apply_it and not yes:
        _confirm("" if state is None else state["name"])
    aside = None
    if apply_it:
        aside = set_aside(path)
        note_decision(path, "set-aside", time.time_ns() // 1000, aside=aside, after=tail.after, last=tail.last)
    if as_json:
        print_json({**asdict(tail), "aside": aside})
        return
    if aside is not None:
        print_line(f"set aside as {aside}; start the gateway with [{'cluster' if member else 'follow'}]")
    else:
        print_line("nothing was changed: --apply sets the journal aside")


def _confirm(name: str) -> None:
    """Ask for the name of a cluster, or only for a confirmation without one. Raises UsageError or Abort."""
    if not name:
        click.confirm("Set the journal aside?", abort=True)
    elif click.prompt("Name of the cluster, to confirm", err=True) != name:
        raise click.UsageError(f"that is not the name of the cluster, {name}")


def _tail_of_site(remote: Remote, path: str) -> Tail:
    """Return what a journal has after the place at which the incarnation of a promoted gateway begins."""
    answer = remote.get("/v1/cluster")
    start = answer["incarnation_start"]
    if start is None:
        raise RemoteError(
            "the gateway does not know where its incarnation begins: its archive does not reach back so far"
        )
    tail = tail_of(path, start["revision"], start["chain"])
    if tail.incarnation == answer["incarnation"]:
        raise ConfigurationError(
            f"{path} has the incarnation of the gateway, {tail.incarnation}: the gateway was not promoted since. Start it with"
            " [follow] instead"
        )
    return tail


def _tail_of_member(remote: Remote, path: str) -> Tail:
    """Return what the journal of a member has after the last block that the cluster has too."""

    def held(revision: int, chain: int) -> bool | None:
        found: bool | None = remote.get("/v1/cluster/block", revision=revision, chain=chain)["held"]
        return found

    place = last_common(path, held)
    if place is None:
        raise ConfigurationError(f"the cluster has all blocks of {path}: it is not forked. Start its gateway")
    return tail_of(path, *place)


def _print_tail(tail: Tail) -> None:
    if tail.topics:
        print_line(
            f"changes that only this journal has, revisions {tail.after + 1} to {tail.last} (publish them again, or leave them):"
        )
        print_table(
            ["DESTINATION", "#CHANGES", "KIND", "#REVISION", "ACCEPTED AT", "#BYTES"],
            [
                (
                    topic.destination,
                    topic.changes,
                    "delete" if topic.deleted else "value",
                    topic.revision,
                    time_text(topic.accepted_at_us),
                    topic.body_bytes,
                )
                for topic in tail.topics
            ],
            ["BYTES"],
        )
    else:
        print_line(f"the gateway has all changes of this journal, which ends with revision {tail.last}")
    if tail.others:
        print_line(f"{counted(tail.others, 'record')} of sessions and acknowledgements, too")

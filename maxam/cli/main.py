"""The `maxam-admin` command."""

from collections.abc import Mapping
from typing import Final, final

import click

from maxam.client_config import admin_option, given_options, identity_options
from maxam.compiled import version
from maxam.terminal.groups import LazyGroup

# Name of each command -> (`module:object`, first sentence of its help). A former name has no sentence, and no list shows it.
_COMMANDS: Final = {
    "audit": (
        "maxam.cli.commands.audit:audit",
        "Read and prove the audit log: who did what, with which outcome and why.",
    ),
    "backup": (
        "maxam.cli.commands.backup:backup",
        "Create and list backups of the gateway's journal.",
    ),
    "bench": (
        "maxam.cli.commands.bench:bench",
        "Run maxam-bench with ARGUMENTS: measure load, latency and freshness of a broker.",
    ),
    "bridges": (
        "maxam.cli.commands.bridges:bridges",
        "List, show, pause, resume and drill the bridges between this gateway and others; check a bridge's configuration.",
    ),
    "can-i": (
        "maxam.cli.commands.identity:can_i",
        "Show whether your certificate may send to a destination, receive a glob, or has an admin right.",
    ),
    "certs": (
        "maxam.cli.commands.certs:certs",
        "Manage a local certificate authority: issue, list, renew and revoke certificates.",
    ),
    "cluster": (
        "maxam.cli.commands.cluster:cluster",
        "Show which gateway follows which, make a cluster, promote an observer, return a forked journal.",
    ),
    "completion": (
        "maxam.cli.completion:completion",
        "Print the script for the completion of commands, options and the gateway's names.",
    ),
    "config": (
        "maxam.cli.commands.config:config",
        "Show the admin address and the certificate in use, and where each is set.",
    ),
    "connections": (
        "maxam.cli.commands.connections:connections",
        "List, show and close connections; find clients that cannot connect.",
    ),
    "dev-certs": ("maxam.cli.commands.dev_certs:dev_certs", ""),
    "enrol": (
        "maxam.cli.commands.enrol:enrol",
        "Make a key in FOLDER, and get a certificate for it: client.key (mode 0600), client.pem, ca.pem.",
    ),
    "enrolment": (
        "maxam.cli.commands.enrolment:enrolment",
        "Create tokens for new clients; list and remove enrolled clients.",
    ),
    "fingerprint": ("maxam.cli.commands.dev_certs:fingerprint", ""),
    "gateway": ("maxam.cli.commands.gateway:gateway", "Ask a running gateway for its state, and reload its files."),
    "health": ("maxam.cli.commands.health:health", "Show whether the broker is in service, and its warnings."),
    "journal": (
        "maxam.cli.commands.journal:journal",
        "Verify, dump, repair, back up and restore the files of journals.",
    ),
    "policy": ("maxam.cli.commands.policy:policy", "Check policies, explain what they allow, compare them."),
    "principals": (
        "maxam.cli.commands.principals:principals",
        "List principals with their rights, certificates and sessions, and when each was seen last.",
    ),
    "rejects": (
        "maxam.cli.commands.rejects:rejects",
        "Show the last rejected SENDs, why they were rejected, and send them again.",
    ),
    "reload": ("maxam.cli.commands.gateway:reload", ""),
    "schemas": ("maxam.cli.commands.schemas:schemas", "Check, read, try and change a schema folder."),
    "sessions": ("maxam.cli.commands.sessions:sessions", "Show, disconnect and end sessions."),
    "subscriptions": (
        "maxam.cli.commands.subscriptions:subscriptions",
        "List and end subscriptions, find those that are behind, and explain why one lacks a value.",
    ),
    "tickets": (
        "maxam.cli.commands.tickets:tickets",
        "Make tickets for pages and other clients without a certificate.",
    ),
    "top": (
        "maxam.cli.commands.top:top",
        "Show rates, subscriptions that are behind, and busy topics and sessions, live.",
    ),
    "topics": ("maxam.cli.commands.topics:topics", "Show, watch, put and delete topics, and see their history."),
    "whoami": (
        "maxam.cli.commands.identity:whoami",
        "Show the principal of your certificate, its rights, and until when the certificate is valid.",
    ),
}


@final
class AdminGroup(LazyGroup):
    """The commands of `maxam-admin`. Options of the connection may also follow a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, after moving options of the connection in front of the command.

        `version` and `help COMMAND` mean `--version` and `COMMAND --help`.
        """
        if args[:1] == ["version"]:
            args = ["--version", *args[1:]]
        elif args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, self._reordered(ctx, args))

    def _reordered(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments with the options of the connection in front. An option that the command has itself stays there."""
        try:
            _, rest, _ = self.make_parser(ctx).parse_args(list(args))
        except click.UsageError:
            return args  # the error is reported when they are parsed again
        command: click.Command | None = self
        at = 0
        while isinstance(command, click.Group) and at < len(rest) and not rest[at].startswith("-"):
            command = command.get_command(click.Context(command), rest[at])
            at += 1
        if command is None or isinstance(command, click.Group) or command.ignore_unknown_options:
            return args
        own = {name for option in command.params for name in option.opts}
        ours = {name: option for option in self.params for name in option.opts if name not in own}
        moved, kept = _split(rest[at:], ours)
        return [*args[: len(args) - len(rest)], *moved, *rest[:at], *kept]


def _split(args: list[str], ours: Mapping[str, click.Parameter]) -> tuple[list[str], list[str]]:
    """Return the options that are ours, each with its value, and the other arguments."""
    moved: list[str] = []
    kept: list[str] = []
    at = 0
    while at < len(args):
        name, equals, _ = args[at].partition("=")
        if args[at] == "--":
            return moved, kept + args[at:]
        option = ours.get(name)
        if not isinstance(option, click.Option) or option.is_flag:
            kept.append(args[at])
            at += 1
        else:
            length = 1 if equals else 2
            moved += args[at : at + length]
            at += length
    return moved, kept


@click.group(
    cls=AdminGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(version(), prog_name="maxam", message="%(prog)s %(version)s")
@admin_option
@identity_options
@click.pass_context
def main(context: click.Context, /, **_options: object) -> None:
    """Inspect and operate a running maxam gateway; check and change its files."""
    context.obj = given_options(context)

"""The `maxam-admin` command."""

from typing import Final

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


@click.group(
    cls=LazyGroup,
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

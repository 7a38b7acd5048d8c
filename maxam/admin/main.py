"""The `maxam-admin` command.

Exit codes: 0 done, 1 refused or not found, 2 usage. Listings with `--json` print one object a line.
"""

from datetime import UTC, datetime
from pathlib import Path

import click
from cryptography import x509

from maxam.admin.audit_commands import audit
from maxam.admin.backup_commands import backup
from maxam.admin.bench_commands import bench
from maxam.admin.certificate_commands import certs
from maxam.admin.certificates import fingerprint as certificate_fingerprint
from maxam.admin.certificates import issue_development_certificates
from maxam.admin.client_config import DEFAULT_GATEWAY, given_options
from maxam.admin.completion import completion
from maxam.admin.config_commands import config
from maxam.admin.connection_commands import connections
from maxam.admin.enrolment_commands import enrol, enrolment
from maxam.admin.health_commands import health
from maxam.admin.journal_commands import journal
from maxam.admin.options import FILE, FOLDER, Group, done, json_option
from maxam.admin.output import print_fields, print_json
from maxam.admin.policy_commands import policy
from maxam.admin.reject_commands import rejects
from maxam.admin.reload_commands import reload
from maxam.admin.schema_commands import schemas
from maxam.admin.session_commands import sessions
from maxam.admin.subscription_commands import subscriptions
from maxam.admin.top_commands import top
from maxam.admin.topic_commands import topics
from maxam.compiled import version
from maxam.errors import ConfigurationError


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version(), prog_name="maxam", message="%(prog)s %(version)s")
@click.option(
    "--gateway",
    envvar="MAXAM_GATEWAY",
    show_envvar=True,
    metavar="HOST:PORT",
    help=f"Admin listener of the gateway. [default: {DEFAULT_GATEWAY}]",
)
@click.option("--certificate", envvar="MAXAM_CERTIFICATE", show_envvar=True, type=FILE, help="Our certificate, PEM.")
@click.option("--key", envvar="MAXAM_KEY", show_envvar=True, type=FILE, help="Its key, PEM, without a password.")
@click.option(
    "--ca", envvar="MAXAM_CA", show_envvar=True, type=FILE, help="The CA that signed the gateway's certificate."
)
@click.option(
    "--server-name",
    envvar="MAXAM_SERVER_NAME",
    show_envvar=True,
    metavar="NAME",
    help="Name that the gateway's certificate must carry. [default: any that the CA signed]",
)
@click.option(
    "--client-config",
    envvar="MAXAM_CLIENT_CONFIG",
    show_envvar=True,
    type=FILE,
    help="What sets these five where nothing else does. [default: ~/.config/maxam/client.toml, /etc/maxam/client.toml]",
)
@click.option(
    "--profile", envvar="MAXAM_PROFILE", show_envvar=True, metavar="NAME", help="One of several gateways in that file."
)
@click.pass_context
def main(context: click.Context, /, **_options: object) -> None:
    """Look into a running maxam gateway and act on it; check the files that belong to one."""
    context.obj = given_options(context)


# Files; no gateway is needed.


@main.command()
@click.argument("certificate", type=FILE)
@json_option
def fingerprint(certificate: Path, as_json: bool) -> None:
    """Print what a policy names the certificate in a PEM file by."""
    try:
        found = certificate_fingerprint(x509.load_pem_x509_certificate(certificate.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"{certificate} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{certificate} holds no PEM certificate: {error}") from error
    done(as_json, found, {"file": str(certificate), "fingerprint": found})


@main.command("dev-certs")
@click.argument("folder", type=FOLDER)
@json_option
def dev_certs(folder: Path, as_json: bool) -> None:
    """Make a development CA with certificates for a server and four clients, replacing what is in FOLDER."""
    try:
        fingerprints = issue_development_certificates(folder, datetime.now(UTC))
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from error
    if as_json:
        print_json(fingerprints)
    else:
        print_fields(fingerprints.items())


main.add_command(backup)
main.add_command(bench)
main.add_command(completion)
main.add_command(config)
main.add_command(connections)
main.add_command(health)
main.add_command(top)
main.add_command(topics)
main.add_command(sessions)
main.add_command(subscriptions)
main.add_command(schemas)
main.add_command(certs)
main.add_command(enrol)
main.add_command(enrolment)
main.add_command(policy)
main.add_command(audit)
main.add_command(journal)
main.add_command(reload)
main.add_command(rejects)

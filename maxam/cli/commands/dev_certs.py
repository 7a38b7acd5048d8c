"""Commands about single certificate files: development certificates and fingerprints."""

from datetime import UTC, datetime
from pathlib import Path

import click
from cryptography import x509

from maxam.cli.options import FILE, FOLDER, json_option
from maxam.errors import ConfigurationError
from maxam.pki.certificates import fingerprint as certificate_fingerprint
from maxam.pki.certificates import issue_development_certificates
from maxam.terminal.tables import print_fields, print_json, print_line


@click.command()
@click.argument("certificate", type=FILE)
@json_option
def fingerprint(certificate: Path, as_json: bool) -> None:
    """Print the fingerprint that a policy has for the certificate in a PEM file."""
    try:
        found = certificate_fingerprint(x509.load_pem_x509_certificate(certificate.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"{certificate} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{certificate} holds no PEM certificate: {error}") from error
    if as_json:
        print_json({"file": str(certificate), "fingerprint": found})
    else:
        print_line(found)


@click.command("dev-certs")
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

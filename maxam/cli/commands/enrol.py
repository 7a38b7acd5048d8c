"""`maxam-admin enrol`: get and renew the certificate of a client."""

import datetime as dt
import os
from pathlib import Path
from typing import Final

import click
from cryptography import x509

from maxam.cli.options import FILE, FOLDER, done, json_option
from maxam.counting import counted
from maxam.errors import ConfigurationError
from maxam.pki.authority import key_digest, text_of
from maxam.pki.certificates import fingerprint
from maxam.pki.est_client import NEXT, ClientFolder, EstClient, KeyType
from maxam.terminal.moments import Duration
from maxam.terminal.options import RenamedOption
from maxam.terminal.tables import print_fields, print_json

TOKEN_VARIABLE: Final = "MAXAM_ENROLMENT_TOKEN"  # noqa: S105  # its name


@click.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--at",
    "address",
    metavar="HOST:PORT",
    help="Enrolment listener of the gateway. [default: make only the key and the request]",
)
@click.option("--ca-sha256", metavar="HEX", help="SHA-256 of the CA certificate, which comes with the token.")
@click.option("--token-file", type=FILE, help=f"File with the token. [default: {TOKEN_VARIABLE}, or asked for]")
@click.option("--server-name", metavar="NAME", help="Name in the gateway's certificate. [default: HOST]")
@click.option(
    "--key-type",
    type=click.Choice(["p256", "p384", "rsa", "ed25519"]),
    default="p256",
    show_default=True,
    help="Type of the key.",
)
@click.option("--renew", is_flag=True, help="Get the certificate that follows the one in FOLDER, for a new key.")
@click.option(
    "--if-left",
    "least",
    cls=RenamedOption,
    former=["--days-left"],
    type=Duration(bare="d"),
    help="With --renew: renew only a certificate that is valid for less than this, such as 30d. For timers.",
)
@json_option
def enrol(
    folder: Path,
    address: str | None,
    ca_sha256: str | None,
    token_file: Path | None,
    server_name: str | None,
    key_type: KeyType,
    renew: bool,
    least: dt.timedelta | None,
    as_json: bool,
) -> None:
    """Make a key in FOLDER, and get a certificate for it: client.key (mode 0600), client.pem, ca.pem.

    The key never leaves the machine. Interrupted, run it again: the token is good for the same key.

    \b
    maxam-admin enrol /etc/maxam --at gateway.venue:8644 --ca-sha256 9f3c... --token-file token
    maxam-admin enrol /etc/maxam --at gateway.venue:8644 --renew --if-left 30d
    maxam-admin enrol /etc/maxam      # only client.key and client.csr, for `maxam-admin certs sign`
    """  # noqa: D301 a mark of click's: the lines stay as they are
    if least is not None and not renew:
        raise click.UsageError("--if-left goes with --renew")
    if address is None and not renew:
        given = {"--ca-sha256": ca_sha256, "--token-file": token_file, "--server-name": server_name}
        ignored = [name for name, value in given.items() if value is not None]
        if ignored:
            raise click.UsageError(f"{', '.join(ignored)}: of no use without --at HOST:PORT, the gateway")
    client = ClientFolder(folder)
    if renew:
        if address is None:
            raise click.UsageError("--renew needs --at HOST:PORT")
        _renew(client, EstClient(address, server_name), key_type, least, as_json)
        return
    if client.certificate is not None:
        raise ConfigurationError(f"{folder} holds a certificate already: --renew gets the next one")
    key = client.key(key_type)
    if address is None:
        request = client.write_request(key)
        answer: dict[str, object] = {"request": str(request), "key_sha256": key_digest(key.public_key())}
        done(as_json, f"have {request} signed, key SHA-256 {answer['key_sha256']}", answer)
        return
    if ca_sha256 is None:
        raise click.UsageError(
            "--at needs --ca-sha256 HEX, which came with the token: who would know the gateway else?"
        )
    est = EstClient(address, server_name)
    token = _token(token_file)
    certificate, authorities = est.enrol(est.pinned(ca_sha256), token, key)
    client.keep(certificate, authorities)
    _show(client, certificate, as_json)


def _renew(client: ClientFolder, est: EstClient, key_type: KeyType, least: dt.timedelta | None, as_json: bool) -> None:
    old = client.certificate
    if old is None:
        raise ConfigurationError(f"{client.folder} holds no certificate to renew: enrol first")
    left = old.not_valid_after_utc - dt.datetime.now(dt.UTC)
    if least is not None and left > least:
        done(as_json, f"valid for {counted(left.days, 'day')} more", {"renewed": False, "days_left": left.days})
        return
    certificate, authorities = est.renew(client, client.key(key_type, NEXT))
    client.replace(certificate, authorities)
    _show(client, certificate, as_json)


def _token(file: Path | None) -> str:
    if file is not None:
        try:
            return file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the token file {file} cannot be read: {error}") from error
    given = os.environ.get(TOKEN_VARIABLE)
    if given:
        return given
    asked: str = click.prompt("Token", hide_input=True, err=True)
    return asked.strip()


def _show(client: ClientFolder, certificate: x509.Certificate, as_json: bool) -> None:
    facts = {
        "folder": str(client.folder),
        "fingerprint": fingerprint(certificate),
        "valid_until": text_of(certificate.not_valid_after_utc),
    }
    if as_json:
        print_json(facts)
    else:
        print_fields(facts.items())

"""`maxam-admin enrol`, by which a client gets and renews its certificate, and `maxam-admin enrolment ...` for operators."""

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import click

from maxam.admin.options import FILE, FOLDER, Group, done, json_option, with_credentials
from maxam.admin.output import print_fields, print_json, print_line, print_table
from maxam.admin.remote import Credentials, Remote
from maxam.counting import counted
from maxam.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography import x509

    from maxam.admin.est_client import ClientFolder, EstClient, KeyType

TOKEN_VARIABLE: Final = "MAXAM_ENROLMENT_TOKEN"  # noqa: S105  # its name


# For clients.


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--at", "address", metavar="HOST:PORT", help="The enrolment listener. [default: only key and request]")
@click.option("--ca-sha256", metavar="HEX", help="SHA-256 of the authority, which came with the token.")
@click.option("--token-file", type=FILE, help=f"Holds the token. [default: {TOKEN_VARIABLE}, or asked for]")
@click.option("--server-name", metavar="NAME", help="Name in the gateway's certificate. [default: HOST]")
@click.option(
    "--key-type",
    type=click.Choice(["p256", "p384", "rsa", "ed25519"]),
    default="p256",
    show_default=True,
    help="Of a key that is made.",
)
@click.option("--renew", is_flag=True, help="Get the certificate that follows the one in FOLDER, for a new key.")
@click.option(
    "--days-left",
    type=click.IntRange(min=1),
    help="With --renew: do nothing while it is valid for longer; for a timer.",
)
@json_option
def enrol(
    folder: Path,
    address: str | None,
    ca_sha256: str | None,
    token_file: Path | None,
    server_name: str | None,
    key_type: "KeyType",
    renew: bool,
    days_left: int | None,
    as_json: bool,
) -> None:
    """Make a key in FOLDER, and get a certificate for it: client.key (mode 0600), client.pem, ca.pem.

    The key never leaves the machine. Interrupted, run it again: the token is good for the same key.

    \b
    maxam-admin enrol /etc/maxam --at gateway.venue:8644 --ca-sha256 9f3c... --token-file token
    maxam-admin enrol /etc/maxam --at gateway.venue:8644 --renew --days-left 30
    maxam-admin enrol /etc/maxam      # only client.key and client.csr, for `maxam-admin certs sign`
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.admin.authority import key_digest  # noqa: PLC0415  # cryptography takes 100 ms, which others save
    from maxam.admin.est_client import ClientFolder, EstClient  # noqa: PLC0415  # likewise

    if days_left is not None and not renew:
        raise click.UsageError("--days-left goes with --renew")
    client = ClientFolder(folder)
    if renew:
        if address is None:
            raise click.UsageError("--renew needs --at HOST:PORT")
        _renew(client, EstClient(address, server_name), key_type, days_left, as_json)
        return
    if client.certificate is not None:
        raise ConfigurationError(f"{folder} holds a certificate already: --renew gets the next one")
    key = client.key(key_type)
    if address is None:
        request = client.write_request(key)
        answer: dict[str, object] = {"request": str(request), "key_sha256": key_digest(key.public_key())}
        done(as_json, f"have {request} signed; SHA-256 of its key: {answer['key_sha256']}", answer)
        return
    if ca_sha256 is None:
        raise click.UsageError(
            "--at needs --ca-sha256 HEX, which came with the token: who would know the gateway else?"
        )
    est = EstClient(address, server_name)
    token = _token(token_file)
    certificate, authorities = est.enrol(est.pinned(ca_sha256), token, key)
    client.keep(certificate, authorities)
    _tell(client, certificate, as_json)


def _renew(client: "ClientFolder", est: "EstClient", key_type: "KeyType", days_left: int | None, as_json: bool) -> None:
    from maxam.admin.est_client import NEXT  # noqa: PLC0415  # see above

    old = client.certificate
    if old is None:
        raise ConfigurationError(f"{client.folder} holds no certificate to renew: enrol first")
    left = old.not_valid_after_utc - dt.datetime.now(dt.UTC)
    if days_left is not None and left > dt.timedelta(days=days_left):
        done(as_json, f"valid for {counted(left.days, 'day')} more", {"renewed": False, "days_left": left.days})
        return
    certificate, authorities = est.renew(client, client.key(key_type, NEXT))
    client.replace(certificate, authorities)
    _tell(client, certificate, as_json)


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


def _tell(client: "ClientFolder", certificate: "x509.Certificate", as_json: bool) -> None:
    from maxam.admin.authority import text_of  # noqa: PLC0415  # see above
    from maxam.admin.certificates import fingerprint  # noqa: PLC0415  # see above

    facts = {
        "folder": str(client.folder),
        "fingerprint": fingerprint(certificate),
        "valid_until": text_of(certificate.not_valid_after_utc),
    }
    if as_json:
        print_json(facts)
    else:
        print_fields(facts.items())


# For operators.


@click.group(cls=Group)
def enrolment() -> None:
    """Make tokens for new clients; see and take out who was enrolled. Needs the admin right enrol."""


@enrolment.group()
def token() -> None:
    """Make, list and revoke one-time tokens."""


@token.command("create")
@click.argument("principal")
@click.option(
    "--capability", "capabilities", multiple=True, metavar="NAME", help="What it may do. Several times for several."
)
@click.option(
    "--owns", multiple=True, metavar="GLOB", help="What its SENDs are narrowed to. [default: they are not narrowed]"
)
@click.option("--minutes", type=click.IntRange(min=1), default=60, show_default=True, help="Validity of the token.")
@json_option
@with_credentials
def token_create(
    credentials: Credentials,
    principal: str,
    capabilities: tuple[str, ...],
    owns: tuple[str, ...],
    minutes: int,
    as_json: bool,
) -> None:
    """Make a token by which a new client becomes PRINCIPAL. It can be given no right that you do not hold yourself.

    The token is shown once. Whoever has it first is PRINCIPAL: hand it over in private.
    """
    wanted: dict[str, object] = {"principal": principal, "capabilities": capabilities, "minutes": minutes}
    if owns:
        wanted["owns"] = owns
    with Remote(credentials) as remote:
        made = remote.post("/v1/enrolment-tokens", wanted)
    if as_json:
        print_json(made)
        return
    print_fields([(name, made[name]) for name in ("id", "principal", "expires_at", "token", "ca_sha256")])
    print_line(
        f"on the client: maxam-admin enrol FOLDER --at {made['host']}:{made['port']} --ca-sha256 {made['ca_sha256']}"
    )


@token.command("list")
@json_option
@with_credentials
def token_list(credentials: Credentials, as_json: bool) -> None:
    """List the tokens of the last 30 days, oldest first."""
    with Remote(credentials) as remote:
        rows = remote.get("/v1/enrolment-tokens")["tokens"]
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_table(
        ["ID", "PRINCIPAL", "CAPABILITIES", "OWNS", "MADE BY", "EXPIRES AT", "USED AT"],
        [
            (
                row["id"],
                row["principal"],
                " ".join(row["capabilities"]),
                _owned(row),
                row["made_by"],
                row["expires_at"],
                row["used_at"],
            )
            for row in rows
        ],
        ["OWNS", "CAPABILITIES", "MADE BY"],
    )


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@json_option
@with_credentials
def token_revoke(credentials: Credentials, token_id: str, as_json: bool) -> None:
    """Make a token worthless that was not used yet."""
    with Remote(credentials) as remote:
        remote.delete(f"/v1/enrolment-tokens/{token_id}")
    done(as_json, f"revoked {token_id}", {"id": token_id, "revoked": True})


@enrolment.command("list")
@json_option
@with_credentials
def enrolment_list(credentials: Credentials, as_json: bool) -> None:
    """List who was enrolled, and which certificates were renewed."""
    with Remote(credentials) as remote:
        answer = remote.get("/v1/enrolments")
    if as_json:
        print_json(answer)
        return
    print_table(
        ["PRINCIPAL", "CAPABILITIES", "OWNS", "FINGERPRINTS"],
        [
            (
                row["principal"],
                " ".join(row["capabilities"]),
                _owned(row),
                " ".join([one[:16] for one in row["fingerprints"]]),
            )
            for row in answer["principals"]
        ],
        ["OWNS", "CAPABILITIES"],
    )
    if answer["renewals"]:
        print_table(
            ["RENEWED", "RETIRED", "BY"],
            [
                (row["renews"][:16], row["retired"], " ".join([one[:16] for one in row["fingerprints"]]))
                for row in answer["renewals"]
            ],
        )


@enrolment.command("remove")
@click.argument("principal")
@json_option
@with_credentials
def enrolment_remove(credentials: Credentials, principal: str, as_json: bool) -> None:
    """Take PRINCIPAL, who was enrolled, out of the policy: it is closed at once. Its certificate is not revoked by that."""
    with Remote(credentials) as remote:
        remote.delete(f"/v1/enrolments?{urlencode({'principal': principal})}")
    done(as_json, f"removed {principal}", {"principal": principal, "removed": True})


def _owned(row: dict[str, Any]) -> str:
    return "(all)" if row["owns"] is None else " ".join(row["owns"])

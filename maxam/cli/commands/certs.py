"""`maxam-admin certs`: a local certificate authority. No gateway is needed."""

import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import click
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from maxam.cli.confirming import REVOKE_CERTIFICATE, ask, yes_option
from maxam.cli.options import FILE, FOLDER, done, json_option, limit_option, listing_option, print_rows
from maxam.durable_files import replace_durably
from maxam.errors import ConfigurationError
from maxam.pki.authority import (
    LIST_FILE,
    AuthorityFolder,
    Entry,
    key_digest,
    key_problem,
    read_passphrase,
    read_request,
    text_of,
)
from maxam.pki.certificates import fingerprint, is_for_links
from maxam.terminal.groups import LazyGroup
from maxam.terminal.moments import Duration
from maxam.terminal.options import RenamedOption
from maxam.terminal.tables import print_fields, print_json

PASSPHRASE_VARIABLE: Final = "MAXAM_CA_PASSPHRASE"  # noqa: S105  # its name
_F = TypeVar("_F", bound=Callable[..., object])
_DAY: Final = dt.timedelta(days=1)
_AUTHORITY: Final = click.argument("folder", type=FOLDER)
_PASSPHRASE: Final = click.option(
    "--passphrase-file",
    type=FILE,
    help=f"File with the passphrase of the CA's key. [default: {PASSPHRASE_VARIABLE}, or asked for]",
)


def _valid_for(default: str | None, most: dt.timedelta, text: str) -> Callable[[_F], _F]:
    """Return the option for a validity in whole days."""
    return click.option(
        "--valid-for",
        "validity",
        cls=RenamedOption,
        former=["--days"],
        type=Duration(_DAY, most, bare="d"),
        default=default,
        show_default=default is not None,
        help=text,
    )


_VALIDITY: Final = _valid_for("365d", 3650 * _DAY, "Validity, such as 90d.")
_SERVER_NAMES: Final = click.option(
    "--server-name",
    "server_names",
    multiple=True,
    metavar="NAME",
    help="A DNS name or IP address: makes it a server's certificate. Several times for several.",
)
_LINK: Final = click.option(
    "--link", is_flag=True, help="With --server-name, also a client's certificate, as members of a cluster need it."
)
_TO: Final = click.option("--to", "to", type=FILE, required=True, help="File to write the certificate to, PEM.")
_FORCE: Final = click.option("--force", is_flag=True, help="Replace the file of --to whatever it holds.")
_REQUEST: Final = "certificate signing request"


@click.group(
    cls=LazyGroup,
    lazy={
        "dev": (
            "maxam.cli.commands.dev_certs:dev_certs",
            "Make a development CA with certificates for a server and four clients, replacing what is in FOLDER.",
        ),
        "fingerprint": (
            "maxam.cli.commands.dev_certs:fingerprint",
            "Print the fingerprint that a policy has for the certificate in a PEM file.",
        ),
    },
)
def certs() -> None:
    """Manage a local certificate authority: issue, list, renew and revoke certificates.

    \b
    maxam-admin certs ca /etc/maxam/ca --name "Venue 12 clients"
    maxam-admin certs issue /etc/maxam/ca gateway --server-name gateway.venue --to /etc/maxam/tls
    maxam-admin certs sign /etc/maxam/ca meters meters.csr --to meters.pem
    maxam-admin certs revoke /etc/maxam/ca 3f92a1c4
    """  # noqa: D301 a mark of click's: the lines stay as they are


@certs.command("ca")
@_AUTHORITY
@click.option("--name", default="maxam clients", show_default=True, help="Common name of the CA.")
@_valid_for("3650d", 36_500 * _DAY, "Validity, such as 3650d.")
@_PASSPHRASE
@json_option
def certs_ca(folder: Path, name: str, validity: dt.timedelta, passphrase_file: Path | None, as_json: bool) -> None:
    """Make an authority in FOLDER: ca.pem, ca.key (encrypted with the passphrase), an empty crl.pem."""
    passphrase = _passphrase(passphrase_file, folder, confirm=True)
    authority = AuthorityFolder.create(folder, name, passphrase, _now(), validity.days)
    answer: dict[str, object] = {"folder": str(folder), "ca_sha256": authority.fingerprint}
    done(as_json, f"made {folder}, certificate SHA-256 {authority.fingerprint}", answer)


@certs.command("issue")
@_AUTHORITY
@click.argument("name")
@click.option(
    "--to", "to", type=FOLDER, required=True, help="Where to write NAME.pem and NAME.key (mode 0600, not encrypted)."
)
@_SERVER_NAMES
@_LINK
@_VALIDITY
@_PASSPHRASE
@json_option
def certs_issue(
    folder: Path,
    name: str,
    to: Path,
    server_names: tuple[str, ...],
    link: bool,
    validity: dt.timedelta,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Make a key and a certificate for NAME. Better for clients: let them make their own key, and sign their request."""
    if not name or "/" in name or name.startswith("."):
        raise ConfigurationError(f"NAME {name!r} names files here: expected no '/' and no '.' at its beginning")
    key_file, certificate_file = to / f"{name}.key", to / f"{name}.pem"
    if key_file.exists() or certificate_file.exists():
        raise ConfigurationError(f"{key_file} or {certificate_file} exists: move it away, or choose another folder")
    authority = _unlocked(folder, passphrase_file)
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    certificate = authority.sign(name, key.public_key(), _now(), validity.days, server_names, link=link)
    try:
        to.mkdir(parents=True, exist_ok=True)
        replace_durably(key_file, pem, 0o600)
    except OSError as error:
        raise ConfigurationError(f"{to} cannot be written: {error.strerror}") from error
    try:
        authority.add(certificate, name, _now(), "certs issue")
        _write(certificate_file, certificate)
    except BaseException:
        key_file.unlink(missing_ok=True)  # of no use without its certificate, and in the way of the next try
        raise
    _show(certificate, certificate_file, as_json)


@certs.command("sign")
@_AUTHORITY
@click.argument("name")
@click.argument("request", type=FILE)
@_TO
@_FORCE
@_SERVER_NAMES
@_LINK
@_VALIDITY
@_PASSPHRASE
@json_option
def certs_sign(
    folder: Path,
    name: str,
    request: Path,
    to: Path,
    force: bool,
    server_names: tuple[str, ...],
    link: bool,
    validity: dt.timedelta,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Certify the key of a certificate signing REQUEST (PKCS 10) for NAME; nothing else that it asks for counts."""
    key = read_request(_read(request, _REQUEST))
    authority = _unlocked(folder, passphrase_file)
    certificate = authority.sign(name, key, _now(), validity.days, server_names, link=link)
    _require_replaceable(to, certificate, authority, force)
    authority.add(certificate, name, _now(), "certs sign")
    _write(to, certificate)
    _show(certificate, to, as_json)


@certs.command("get")
@_AUTHORITY
@click.argument("certificate")
@_TO
@_FORCE
@json_option
def certs_get(folder: Path, certificate: str, to: Path, force: bool, as_json: bool) -> None:
    """Write a certificate that the authority in FOLDER has issued, such as one whose file is lost.

    CERTIFICATE is a fingerprint, a serial number, or the first 8 digits or more of one of them.
    """
    authority = AuthorityFolder(folder)
    found = authority.find(certificate).load()
    _require_replaceable(to, found, authority, force)
    _write(to, found)
    _show(found, to, as_json)


@certs.command("list")
@_AUTHORITY
@click.option(
    "--expires-within",
    type=Duration(bare="d"),
    help="List only valid certificates that expire within this time and were not renewed.",
)
@limit_option()
@listing_option
def certs_list(folder: Path, expires_within: dt.timedelta | None, limit: int | None, as_json: bool) -> None:
    """List what the authority in FOLDER has issued, oldest first. RENEWED BY is the certificate that followed one."""
    entries = AuthorityFolder(folder).entries()
    now = _now()
    renewed = {entry.renews: entry.fingerprint for entry in entries if entry.renews}
    rows = [_row(entry, now) | {"renewed_by": renewed.get(entry.fingerprint, "")} for entry in entries]
    if expires_within is not None:
        end = text_of(now + expires_within)
        rows = [
            row for row in rows if row["state"] == "valid" and not row["renewed_by"] and str(row["valid_until"]) < end
        ]
    print_rows(
        iter(rows),
        limit,
        as_json,
        [
            "NAME",
            ("KIND", lambda row: "server" if row["server_names"] else "client"),
            "STATE",
            "@VALID UNTIL",
            ("FINGERPRINT", lambda row: row["fingerprint"][:16]),
            ("ISSUED BY", "by"),
            ("RENEWED BY", lambda row: row["renewed_by"][:16]),
        ],
        ["ISSUED BY", "KIND"],
        optional=["RENEWED BY"],
        names=["name", "fingerprint"],
    )


@certs.command("revoke")
@_AUTHORITY
@click.argument("certificate")
@click.option("--reason", default="", help="Reason of the revocation, kept in the index.")
@click.option("--only", is_flag=True, help="Revoke this certificate only, not those that were renewed from it.")
@_PASSPHRASE
@yes_option
@json_option
def certs_revoke(
    folder: Path, certificate: str, reason: str, only: bool, passphrase_file: Path | None, yes: bool, as_json: bool
) -> None:
    """Revoke CERTIFICATE and whatever was renewed from it, and write a new crl.pem.

    CERTIFICATE is a fingerprint, a serial number, the first 8 digits or more of one of them, or a PEM file.
    """
    authority = _unlocked(folder, passphrase_file)
    found = authority.find(certificate)
    ask(REVOKE_CERTIFICATE, f"{found.name} ({found.fingerprint[:16]})", yes)
    revoked = authority.revoke(found, reason, _now(), only=only)
    names = ", ".join(f"{entry.name} ({entry.fingerprint[:16]})" for entry in revoked) or "nothing that was not already"
    answer: dict[str, object] = {"revoked": [entry.fingerprint for entry in revoked], "crl": str(_list(authority))}
    done(as_json, f"revoked {names}; wrote {_list(authority)}", answer)


@certs.command("renew")
@_AUTHORITY
@click.argument("certificate")
@click.option("--request", type=FILE, help="A new key's certificate signing request. [default: the same key]")
@_TO
@_FORCE
@_VALIDITY
@_PASSPHRASE
@json_option
def certs_renew(
    folder: Path,
    certificate: str,
    request: Path | None,
    to: Path,
    force: bool,
    validity: dt.timedelta,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Issue the successor of CERTIFICATE, for the same names.

    The policy stays as it is: add the new fingerprint beside the old one before the old certificate expires.
    """
    authority = _unlocked(folder, passphrase_file)
    now = _now()
    old = authority.find(certificate)
    if old.revoked_at:
        raise ConfigurationError(f"{old.fingerprint} was revoked at {old.revoked_at}; issue a new certificate instead")
    key = old.load().public_key() if request is None else read_request(_read(request, _REQUEST))
    if key_problem(key):
        raise ConfigurationError(f"the key of {old.fingerprint} is {key_problem(key)}; give a --request with another")
    link = is_for_links(old.load())
    renewed = authority.sign(old.name, key, now, validity.days, old.server_names, link=link)  # type: ignore[arg-type]
    _require_replaceable(to, renewed, authority, force)
    authority.add(renewed, old.name, now, "certs renew", old.fingerprint)
    _write(to, renewed)
    _show(renewed, to, as_json)


@certs.command("crl")
@_AUTHORITY
@_valid_for(None, 3650 * _DAY, "Time until the CRL's nextUpdate. [default: as of the last CRL, else 30d]")
@click.option(
    "--if-due", is_flag=True, help="Write the CRL only if less than a third of its validity is left. For timers."
)
@_PASSPHRASE
@json_option
def certs_crl(
    folder: Path, validity: dt.timedelta | None, if_due: bool, passphrase_file: Path | None, as_json: bool
) -> None:
    """Write a new CRL, before the last one expires."""
    now = _now()
    path = _list(AuthorityFolder(folder))
    if if_due and not AuthorityFolder(folder).list_due(now):
        done(as_json, f"{path} is not due", {"crl": str(path), "written": False})
        return
    _unlocked(folder, passphrase_file).write_list(now, None if validity is None else validity.days)
    done(as_json, f"wrote {path}", {"crl": str(path), "written": True})


def _unlocked(folder: Path, passphrase_file: Path | None) -> AuthorityFolder:
    authority = AuthorityFolder(folder)
    authority.unlock(_passphrase(passphrase_file, folder, confirm=False))
    return authority


def _passphrase(file: Path | None, folder: Path, *, confirm: bool) -> str:
    if file is not None:
        return read_passphrase(file)
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given:
        return given
    asked: str = click.prompt(
        f"Passphrase of the authority in {folder}", hide_input=True, confirmation_prompt=confirm, err=True
    )
    return asked


def _list(authority: AuthorityFolder) -> Path:
    return authority.folder / LIST_FILE


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"the {what} {path} cannot be read: {error.strerror}") from error


def _require_replaceable(path: Path, certificate: x509.Certificate, authority: AuthorityFolder, force: bool) -> None:
    """Refuse to write a certificate over a file of the authority, and unforced over anything but a certificate of the same name."""
    if path.resolve().parent == authority.folder.resolve():
        raise ConfigurationError(f"--to {path} is in the CA directory: choose another folder")
    if force or not path.exists():
        return
    try:
        there = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        there = None
    if there is None or there.subject != certificate.subject or there == authority.certificate:
        raise ConfigurationError(
            f"--to {path} exists and is no certificate of this name: choose another file, or give --force"
        )


def _write(path: Path, certificate: x509.Certificate) -> None:
    try:
        replace_durably(path, certificate.public_bytes(Encoding.PEM), 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}. The certificate is issued: `maxam-admin certs get` writes it elsewhere, by its"
            f" serial number {certificate.serial_number:x}"
        ) from error


def _show(certificate: x509.Certificate, path: Path, as_json: bool) -> None:
    facts = {
        "certificate": str(path),
        "fingerprint": fingerprint(certificate),
        "key_sha256": key_digest(certificate.public_key()),
        "valid_until": text_of(certificate.not_valid_after_utc),
    }
    if as_json:
        print_json(facts)
    else:
        print_fields(facts.items())


def _row(entry: Entry, now: dt.datetime) -> dict[str, object]:
    return {
        "name": entry.name,
        "server_names": list(entry.server_names),
        "state": _state(entry, now),
        "fingerprint": entry.fingerprint,
        "serial": entry.serial,
        "key_sha256": entry.key,
        "issued_at": entry.issued_at,
        "valid_until": entry.valid_until,
        "by": entry.by,
        "renews": entry.renews,
        "revoked_at": entry.revoked_at,
        "reason": entry.reason,
    }


def _state(entry: Entry, now: dt.datetime) -> str:
    if entry.revoked_at:
        return "revoked"
    return "valid" if entry.counts(now) else "expired"


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)

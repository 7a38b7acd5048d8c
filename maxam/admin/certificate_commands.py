"""The verbs `maxam-admin certs ...`: an authority in a folder, and what it issues and revokes. No gateway is needed."""

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from maxam.admin.options import FILE, FOLDER, Group, done, json_option
from maxam.admin.output import print_fields, print_json, print_table
from maxam.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography import x509

    from maxam.admin.authority import AuthorityFolder, Entry

# What imports cryptography is imported inside the verbs: it takes 100 ms, which the others save.

PASSPHRASE_VARIABLE: Final = "MAXAM_CA_PASSPHRASE"  # noqa: S105  # its name
_AUTHORITY: Final = click.argument("folder", type=FOLDER)
_PASSPHRASE: Final = click.option(
    "--passphrase-file",
    type=FILE,
    help=f"Holds the passphrase of the authority's key. [default: {PASSPHRASE_VARIABLE}, or asked for]",
)
_DAYS: Final = click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Validity.")
_SERVER_NAMES: Final = click.option(
    "--server-name",
    "server_names",
    multiple=True,
    metavar="NAME",
    help="A DNS name or IP address: makes it a server's certificate. Several times for several.",
)
_REQUEST: Final = "certificate signing request"


@click.group(cls=Group)
def certs() -> None:
    """Be a certificate authority in a folder: issue, list, renew and revoke certificates.

    \b
    maxam-admin certs ca /etc/maxam/ca --name "Venue 12 clients"
    maxam-admin certs issue /etc/maxam/ca gateway --server-name gateway.venue --to /etc/maxam/tls
    maxam-admin certs sign /etc/maxam/ca meters meters.csr --to meters.pem
    maxam-admin certs revoke /etc/maxam/ca 3f92a1c4
    """  # noqa: D301 a mark of click's: the lines stay as they are


@certs.command("ca")
@_AUTHORITY
@click.option("--name", default="maxam clients", show_default=True, help="Common name, for people.")
@click.option("--days", type=click.IntRange(1, 36_500), default=3650, show_default=True, help="Validity.")
@_PASSPHRASE
@json_option
def certs_ca(folder: Path, name: str, days: int, passphrase_file: Path | None, as_json: bool) -> None:
    """Make an authority in FOLDER: ca.pem, ca.key (encrypted with the passphrase), an empty crl.pem."""
    from maxam.admin.authority import AuthorityFolder  # noqa: PLC0415 see above

    passphrase = _passphrase(passphrase_file, folder, confirm=True)
    authority = AuthorityFolder.create(folder, name, passphrase, _now(), days)
    answer: dict[str, object] = {"folder": str(folder), "ca_sha256": authority.fingerprint}
    done(as_json, f"made {folder}; SHA-256 of its certificate: {authority.fingerprint}", answer)


@certs.command("issue")
@_AUTHORITY
@click.argument("name")
@click.option(
    "--to", "to", type=FOLDER, required=True, help="Where to write NAME.pem and NAME.key (mode 0600, not encrypted)."
)
@_SERVER_NAMES
@_DAYS
@_PASSPHRASE
@json_option
def certs_issue(
    folder: Path,
    name: str,
    to: Path,
    server_names: tuple[str, ...],
    days: int,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Make a key and a certificate for NAME. Better for clients: let them make their own key, and sign their request."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 see above
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 see above

    from maxam.admin.authority import replace_durably  # noqa: PLC0415 see above

    if not name or "/" in name or name.startswith("."):
        raise ConfigurationError(f"NAME {name!r} names files here: expected no '/' and no '.' at its beginning")
    key_file, certificate_file = to / f"{name}.key", to / f"{name}.pem"
    if key_file.exists() or certificate_file.exists():
        raise ConfigurationError(f"{key_file} or {certificate_file} exists: move it away, or choose another folder")
    authority = _unlocked(folder, passphrase_file)
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    certificate = authority.sign(name, key.public_key(), _now(), days, server_names)
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
    _tell(certificate, certificate_file, as_json)


@certs.command("sign")
@_AUTHORITY
@click.argument("name")
@click.argument("request", type=FILE)
@click.option("--to", "to", type=FILE, required=True, help="Where to write the certificate, PEM.")
@_SERVER_NAMES
@_DAYS
@_PASSPHRASE
@json_option
def certs_sign(
    folder: Path,
    name: str,
    request: Path,
    to: Path,
    server_names: tuple[str, ...],
    days: int,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Certify the key of a certificate signing REQUEST (PKCS 10) for NAME; nothing else that it asks for counts."""
    from maxam.admin.authority import read_request  # noqa: PLC0415 see above

    key = read_request(_read(request, _REQUEST))
    authority = _unlocked(folder, passphrase_file)
    certificate = authority.sign(name, key, _now(), days, server_names)
    authority.add(certificate, name, _now(), "certs sign")
    _write(to, certificate)
    _tell(certificate, to, as_json)


@certs.command("list")
@_AUTHORITY
@json_option
def certs_list(folder: Path, as_json: bool) -> None:
    """List what the authority in FOLDER has issued, oldest first."""
    from maxam.admin.authority import AuthorityFolder  # noqa: PLC0415 see above

    entries = AuthorityFolder(folder).entries()
    now = _now()
    if as_json:
        for entry in entries:
            print_json(_row(entry, now))
        return
    print_table(
        ["NAME", "KIND", "STATE", "VALID UNTIL", "FINGERPRINT", "ISSUED BY"],
        [
            (
                entry.name,
                "server" if entry.server_names else "client",
                _state(entry, now),
                entry.valid_until,
                entry.fingerprint[:16],
                entry.by,
            )
            for entry in entries
        ],
        ["ISSUED BY", "KIND"],
    )


@certs.command("revoke")
@_AUTHORITY
@click.argument("certificate")
@click.option("--reason", default="", help="For people; kept in the index.")
@click.option("--only", is_flag=True, help="Leave the certificates that were renewed from it.")
@_PASSPHRASE
@json_option
def certs_revoke(
    folder: Path, certificate: str, reason: str, only: bool, passphrase_file: Path | None, as_json: bool
) -> None:
    """Revoke CERTIFICATE and whatever was renewed from it, and write a new crl.pem.

    CERTIFICATE is a fingerprint, a serial number, the first 8 digits or more of one of them, or a PEM file.
    """
    authority = _unlocked(folder, passphrase_file)
    revoked = authority.revoke(authority.find(certificate), reason, _now(), only=only)
    names = ", ".join(f"{entry.name} ({entry.fingerprint[:16]})" for entry in revoked) or "nothing that was not already"
    answer: dict[str, object] = {"revoked": [entry.fingerprint for entry in revoked], "crl": str(_list(authority))}
    done(as_json, f"revoked {names}; wrote {_list(authority)}", answer)


@certs.command("renew")
@_AUTHORITY
@click.argument("certificate")
@click.option("--request", type=FILE, help="A new key's certificate signing request. [default: the same key]")
@click.option("--to", "to", type=FILE, required=True, help="Where to write the new certificate, PEM.")
@_DAYS
@_PASSPHRASE
@json_option
def certs_renew(
    folder: Path,
    certificate: str,
    request: Path | None,
    to: Path,
    days: int,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Issue the successor of CERTIFICATE, for the same names; add its fingerprint to the policy beside the old one."""
    from maxam.admin.authority import key_problem, read_request  # noqa: PLC0415 see above

    authority = _unlocked(folder, passphrase_file)
    now = _now()
    old = authority.find(certificate)
    if old.revoked_at:
        raise ConfigurationError(f"{old.fingerprint} was revoked at {old.revoked_at}; issue a new certificate instead")
    key = old.load().public_key() if request is None else read_request(_read(request, _REQUEST))
    if key_problem(key):
        raise ConfigurationError(f"the key of {old.fingerprint} is {key_problem(key)}; give a --request with another")
    renewed = authority.sign(old.name, key, now, days, old.server_names)  # type: ignore[arg-type]  # has no problem
    authority.add(renewed, old.name, now, "certs renew", old.fingerprint)
    _write(to, renewed)
    _tell(renewed, to, as_json)


@certs.command("crl")
@_AUTHORITY
@click.option(
    "--days", type=click.IntRange(1, 3650), default=30, show_default=True, help="Until the next one is promised."
)
@click.option("--if-due", is_flag=True, help="Only if less than a third of the last one's time is left: for a timer.")
@_PASSPHRASE
@json_option
def certs_crl(folder: Path, days: int, if_due: bool, passphrase_file: Path | None, as_json: bool) -> None:
    """Write the revocation list anew, before the last one expires."""
    from maxam.admin.authority import AuthorityFolder  # noqa: PLC0415 see above

    now = _now()
    path = _list(AuthorityFolder(folder))
    if if_due and not AuthorityFolder(folder).list_due(now):
        done(as_json, f"{path} is not due", {"crl": str(path), "written": False})
        return
    _unlocked(folder, passphrase_file).write_list(now, days)
    done(as_json, f"wrote {path}", {"crl": str(path), "written": True})


def _unlocked(folder: Path, passphrase_file: Path | None) -> "AuthorityFolder":
    from maxam.admin.authority import AuthorityFolder  # noqa: PLC0415 see above

    authority = AuthorityFolder(folder)
    authority.unlock(_passphrase(passphrase_file, folder, confirm=False))
    return authority


def _passphrase(file: Path | None, folder: Path, *, confirm: bool) -> str:
    from maxam.admin.authority import read_passphrase  # noqa: PLC0415 see above

    if file is not None:
        return read_passphrase(file)
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given:
        return given
    asked: str = click.prompt(
        f"Passphrase of the authority in {folder}", hide_input=True, confirmation_prompt=confirm, err=True
    )
    return asked


def _list(authority: "AuthorityFolder") -> Path:
    from maxam.admin.authority import LIST_FILE  # noqa: PLC0415 see above

    return authority.folder / LIST_FILE


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"the {what} {path} cannot be read: {error.strerror}") from error


def _write(path: Path, certificate: "x509.Certificate") -> None:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 see above

    from maxam.admin.authority import replace_durably  # noqa: PLC0415 see above

    try:
        replace_durably(path, certificate.public_bytes(Encoding.PEM), 0o644)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


def _tell(certificate: "x509.Certificate", path: Path, as_json: bool) -> None:
    from maxam.admin.authority import key_digest, text_of  # noqa: PLC0415 see above
    from maxam.admin.certificates import fingerprint  # noqa: PLC0415 see above

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


def _row(entry: "Entry", now: dt.datetime) -> dict[str, object]:
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


def _state(entry: "Entry", now: dt.datetime) -> str:
    if entry.revoked_at:
        return "revoked"
    return "valid" if entry.counts(now) else "expired"


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)

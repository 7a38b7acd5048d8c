"""`maxam-admin whoami` and `can-i`: the principal of the own certificate, and what it may do."""

import sys
from typing import Final

import click

from maxam.cli.options import json_option, with_credentials
from maxam.exit_codes import ExitCode
from maxam.https_client import Credentials, Remote
from maxam.terminal.tables import print_fields, print_json, print_line

GRANTING: Final = ("allowed", "all", "part", "undecided")  # verdicts with which at least a part is allowed
_PARAMETERS: Final = {"send": "send", "receive": "receive", "admin": "right"}


@click.command()
@json_option
@with_credentials
def whoami(credentials: Credentials, as_json: bool) -> None:
    """Show the principal of your certificate, its rights, and until when the certificate is valid. No right is needed.

    Exits with 1 if the policy has no principal for the certificate.
    """
    with Remote(credentials) as remote:
        answer = remote.get("/v1/whoami")
    if as_json:
        print_json(answer)
    else:
        unknown = answer["principal"] is None
        name = "(none: the policy does not list this certificate)" if unknown else answer["principal"]
        owns = [] if answer["owns"] is None else [("owns", "\n".join(answer["owns"]) or "(nothing)")]
        print_fields(
            [
                ("principal", name),
                ("fingerprint", answer["fingerprint"]),
                ("certificate", str(credentials.certificate)),
                ("valid until", answer["valid_until"]),
                ("capabilities", ", ".join(answer["capabilities"]) or "(none)"),
                ("admin rights", ", ".join(answer["admin"]) or "(none)"),
                ("may send", ", ".join(answer["send"]) or "(nothing)"),
                ("may receive", ", ".join(answer["receive"]) or "(nothing)"),
                *[(title, text.replace("\n", ", ")) for title, text in owns],
                *[(name, True) for name in ("bridge", "pii") if answer[name]],
            ]
        )
    if answer["principal"] is None:
        sys.exit(ExitCode.CHECK_FAILED)


@click.command()
@click.argument("action", type=click.Choice(list(_PARAMETERS)))
@click.argument("what", metavar="DESTINATION|GLOB|RIGHT")
@json_option
@with_credentials
def can_i(credentials: Credentials, action: str, what: str, as_json: bool) -> None:
    """Show whether your certificate may send to a destination, receive a glob, or has an admin right.

    Exits with 1 if it may not at all.

    \b
    maxam-admin can-i send X/EGM.Q.7001.EGMStatus
    maxam-admin can-i receive 'X/EGM.**'
    maxam-admin can-i admin write
    """  # noqa: D301 a mark of click's: the lines stay as they are
    with Remote(credentials) as remote:
        answer = remote.get("/v1/can-i", **{_PARAMETERS[action]: what})
    if as_json:
        print_json(answer)
    else:
        print_line(f"{answer['verdict']}: {answer['why']}")
    if answer["verdict"] not in GRANTING:
        sys.exit(ExitCode.CHECK_FAILED)

"""The options by which a verb reaches a running gateway."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from maxam.admin.remote import RemoteError, split_address
from maxam.pipeline.publisher import Target

DEFAULT_GATEWAY: Final = "localhost:61614"
_FILE: Final = click.Path(path_type=Path, dir_okay=False)


def gateway_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options of a STOMP connection, and a `Target` as argument `target`.

    Certificates are named by the variables of `maxam-admin`; the address is not, as that is another listener.
    """

    @functools.wraps(verb)
    def run(
        *arguments: object,
        gateway: str,
        certificate: Path | None,
        key: Path | None,
        ca: Path | None,
        server_name: str | None,
        virtual_host: str,
        **options: object,
    ) -> None:
        def target() -> Target:
            """Check the options; raises UsageError naming the option."""
            try:
                address, port = split_address(gateway, "--gateway")
            except RemoteError as error:
                raise click.UsageError(str(error)) from error
            files: dict[str, str] = {}
            for name, path in (("certificate", certificate), ("key", key), ("ca", ca)):
                if path is None:
                    raise click.UsageError(f"no {name} is given: use --{name} FILE or set MAXAM_{name.upper()}")
                files[name] = str(path.absolute())
            return Target(address, port, files["certificate"], files["key"], files["ca"], virtual_host, server_name)

        verb(*arguments, target=target, **options)

    options = [
        click.option(
            "--gateway",
            envvar="MAXAM_STOMP",
            show_envvar=True,
            default=DEFAULT_GATEWAY,
            show_default=True,
            metavar="HOST:PORT",
            help="STOMP listener of the gateway (not the admin listener that MAXAM_GATEWAY names).",
        ),
        click.option(
            "--certificate", envvar="MAXAM_CERTIFICATE", show_envvar=True, type=_FILE, help="Our certificate, PEM."
        ),
        click.option("--key", envvar="MAXAM_KEY", show_envvar=True, type=_FILE, help="Its key, without a password."),
        click.option(
            "--ca", envvar="MAXAM_CA", show_envvar=True, type=_FILE, help="The CA of the gateway's certificate."
        ),
        click.option(
            "--server-name",
            envvar="MAXAM_SERVER_NAME",
            show_envvar=True,
            metavar="NAME",
            help="Name that the gateway's certificate must carry. [default: any that the CA signed]",
        ),
        click.option(
            "--virtual-host", default="MAXVAPI", show_default=True, metavar="NAME", help="The host of CONNECT."
        ),
    ]
    for option in reversed(options):
        run = option(run)
    return run

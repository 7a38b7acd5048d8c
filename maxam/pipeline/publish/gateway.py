"""The options by which a command reaches a running gateway."""

import functools
from collections.abc import Callable

import click

from maxam.client_config import PARAMETERS, given_options, identity_options, server_option
from maxam.https_client import split_address
from maxam.pipeline.publish.publisher import Target


def gateway_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a STOMP connection, and a function that makes a `Target` of them as argument `target`.

    The function raises RemoteError or ConfigurationError, naming the option at fault.
    """

    @functools.wraps(command)
    def run(*arguments: object, virtual_host: str, **options: object) -> None:
        given = given_options(click.get_current_context())

        def target() -> Target:
            credentials = given.credentials()
            address, port = split_address(credentials.server, "--server")
            files = {name: str(path.absolute()) for name, path in credentials.files().items()}
            name = credentials.server_name
            return Target(address, port, files["cert"], files["key"], files["ca"], virtual_host, name)

        own = {name: value for name, value in options.items() if name not in PARAMETERS}
        command(*arguments, target=target, **own)

    virtual_host = click.option(
        "--virtual-host", default="MAXVAPI", show_default=True, metavar="NAME", help="Header host of CONNECT."
    )
    return server_option("--gateway")(identity_options(virtual_host(run)))

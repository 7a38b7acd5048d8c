"""Completion of shells: its script, and the names of topics, sessions and subscriptions of the gateway."""

import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from maxam.client_config import given_options
from maxam.errors import MaxamError
from maxam.https_client import Remote

NAMES_MAX: Final = 100  # offered at a time
TIMEOUT_S: Final = 2.0  # somebody waits with a finger on the key
SHELLS: Final = ("bash", "zsh", "fish")
_VARIABLE: Final = "_MAXAM_ADMIN_COMPLETE"
_BASH: Final = "bash_complete"  # in that variable

Names = Callable[[click.Context, click.Parameter, str], list[str]]


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script for the completion of commands, options and the gateway's names.

    \b
    bash: eval "$(maxam-admin completion bash)"            in ~/.bashrc
    zsh:  eval "$(maxam-admin completion zsh)"             in ~/.zshrc
    fish: maxam-admin completion fish > ~/.config/fish/completions/maxam-admin.fish
    """  # noqa: D301 with the backspace click keeps the lines as they are
    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 of the shells above there is one
    root = click.get_current_context().find_root()
    click.echo(made(root.command, {}, Path(sys.argv[0]).name, _VARIABLE).source())


def destinations(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return destinations that begin as what was typed."""
    parameters: dict[str, str | int] = {"limit": NAMES_MAX}
    if incomplete:
        parameters["after"] = incomplete
    return _ask(context, "/v1/topics", "topics", lambda row: row["destination"], incomplete, parameters)


def principals(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return principals with a session."""
    return _ask(context, "/v1/sessions", "sessions", lambda row: row["principal"], incomplete, {"limit": NAMES_MAX})


def client_ids(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return client-ids of the principal that stands before."""
    parameters: dict[str, str | int] = {"limit": NAMES_MAX, "principal": context.params.get("principal") or ""}
    return _ask(context, "/v1/sessions", "sessions", lambda row: row["client_id"], incomplete, parameters)


def subscription_ids(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return ids of the subscriptions of the session that stands before."""
    wanted = {name: context.params.get(name) or "" for name in ("principal", "client_id")}
    parameters: dict[str, str | int] = {"limit": NAMES_MAX, **wanted}
    return _ask(context, "/v1/subscriptions", "subscriptions", lambda row: row["id"], incomplete, parameters)


def _ask(
    context: click.Context,
    path: str,
    rows: str,
    name: Callable[[dict[str, str]], str],
    incomplete: str,
    parameters: dict[str, str | int],
) -> list[str]:
    """Return names of the first page that begin as what was typed; none when the gateway cannot be asked."""
    try:
        credentials = given_options(context.find_root()).credentials()
        with Remote(credentials, TIMEOUT_S) as remote:
            found: Iterable[str] = dict.fromkeys(map(name, remote.get(path, **parameters)[rows]))
    except MaxamError:
        return []  # an error would not be seen there
    names = [text for text in found if text and text.startswith(incomplete) and text.isprintable()]
    # Bash puts into the command line what it is given, and would run what a client has put into a name; the others quote it.
    return [shlex.quote(name) for name in names] if os.environ.get(_VARIABLE) == _BASH else names

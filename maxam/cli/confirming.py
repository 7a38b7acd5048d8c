"""Questions before a change that cannot be undone, in the words of the console."""

import sys
from collections.abc import Callable
from typing import Final, TypeVar

import click

from maxam.counting import counted
from maxam.terminal.escaping import shown

# Title and text of each question. The console has the same.
END_SESSION: Final = (
    "End this session?",
    "Its durable subscriptions go with it, and what they are owed. Its client begins from nothing when it connects again. This cannot be undone.",
)
END_SUBSCRIPTION: Final = (
    "End this subscription?",
    "The topics that it is owed go with it. Its client begins from nothing when it subscribes again. This cannot be undone.",
)
DELETE_TOPIC: Final = (
    "Delete this topic?",
    "An empty SEND of your own principal removes its value for every subscriber. This cannot be undone. Its publisher may set it again.",
)
DELETE_TOPICS: Final = ("Delete these topics?", DELETE_TOPIC[1].replace("its value", "the value of each"))
REMOVE_PRINCIPAL: Final = (
    "Remove this principal?",
    "Its connections are closed at once, and its certificate gives access no longer. To connect again it needs a new token.",
)
REVOKE_TOKEN: Final = (
    "Revoke this token?",
    "No client can enrol with it any longer. This cannot be undone. To enrol, its client needs a new token.",
)
REMOVE_MEMBER: Final = (
    "Remove this member?",
    "The log no longer waits for it, and may forget entries that its journal lacks. Do this only if it is gone for good.",
)
REVOKE_CERTIFICATE: Final = (
    "Revoke this certificate?",
    "Its client is closed once the gateway has the new CRL, and needs a new certificate. This cannot be undone.",
)
KICK_SESSIONS: Final = (
    "Disconnect these sessions?",
    "Their connections are closed with an ERROR that gives this reason. The sessions stay, and most clients connect again at once.",
)
Question = tuple[str, str]
_F = TypeVar("_F", bound=Callable[..., object])


def yes_option(verb: _F) -> _F:
    """Give a command `-y`, `--yes`."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask for a confirmation.")(verb)


def dry_run_option(verb: _F) -> _F:
    """Give a command `--dry-run`."""
    return click.option("--dry-run", is_flag=True, help="List what would be changed, and change nothing.")(verb)


def ask(question: Question, named: str, yes: bool) -> None:
    """Ask before a change of one thing that the command names, on a terminal; raises click.Abort after a no.

    A script has named the thing, so it is not asked.
    """
    if not yes and _on_a_terminal():
        title, text = question
        click.echo(f"{title} {shown(named)}\n{text}", err=True)
        click.confirm("Go on?", abort=True, err=True)


def ask_many(question: Question, count: int, thing: str, yes: bool) -> None:
    """Ask before a change of many things; raises click.Abort after a no, and UsageError without a terminal."""
    if yes or not count:
        return
    if not _on_a_terminal():
        raise click.UsageError(f"{counted(count, thing)} would be changed: add --yes, or --dry-run to list them")
    title, text = question
    click.echo(f"{title} {counted(count, thing)}\n{text}", err=True)
    if click.prompt("To go on, type their number", err=True) != str(count):
        raise click.Abort


def _on_a_terminal() -> bool:
    return sys.stdin.isatty()

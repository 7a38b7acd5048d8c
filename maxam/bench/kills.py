"""`maxam-bench run --kill-leader`: kill the leader of a cluster again and again under load, and measure what clients notice."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
import trio
from rich import box
from rich.console import Console
from rich.table import Table

from maxam.bench.errors import LoadError
from maxam.bench.output import console
from maxam.bench.plan import Plan
from maxam.bench.target import TlsFiles
from maxam.client.addresses import Address
from maxam.failover.load import Identity, Load, Outage, Work
from maxam.failover.outages import SHARES, TIMES, as_json, shown, summary
from maxam.terminal.tables import print_json

RATE: Final = 500.0
_COMMAND_S: Final = 60.0  # for the command that kills
_TAKEN: Final = frozenset(  # options that have a meaning with --kill-leader
    (
        "kill_leader",
        "kills",
        "server",
        "cert",
        "key",
        "ca",
        "server_name",
        "client_config",
        "profile",
        "certificates",
        "virtual_host",
        "topic_template",
        "globs",
        "publishers",
        "subscribers",
        "topics",
        "rate",
        "body_bytes",
        "schemas",
        "type_name",
        "seconds",
        "settle_s",
        "as_json",
        "output",
    )
)


def check_options(context: click.Context) -> None:
    """Raise UsageError if an option of the command line has no meaning with --kill-leader."""
    for option in context.command.params:
        name = option.name or ""
        if name not in _TAKEN and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} has no meaning with --kill-leader; leave it out")


def kill_leader(plan: Plan, command: str, kills: int, as_text: bool) -> bool:
    """Run the load, kill the leader with a command of the shell, and print the figures.

    Args:
        plan: The work: `seconds` pass before each kill.
        command: Ends the gateway whose address is in its environment.
        kills: How often.
        as_text: Print one object of JSON.

    Returns:
        Whether no accepted value was lost, and none came after a newer one.

    Raises:
        LoadError: The command failed, or the load could not go on.
        ClientError: A client cannot connect.
    """
    load = Load(_work(plan))
    output = console(to_stderr=as_text)
    lacking = trio.run(_run, load, plan, command, kills, output)
    problems = _problems(load, lacking)
    if as_text:
        print_json(_json(load, plan, problems))
    else:
        _print(output, load.outages, plan)
    for text in problems:
        output.print(f"problem: {text}", style="red", markup=False, highlight=False, soft_wrap=True)
    return not problems


def _work(plan: Plan) -> Work:
    target, bodies = plan.target, plan.bodies
    if len(plan.groups) != 1 or len(plan.groups[0].globs) != 1:
        raise LoadError("--kill-leader needs at least one subscriber, and one --glob that matches all topics")
    topics = [plan.syntax.topic(number) for number in range(plan.topics)]
    glob = plan.groups[0].globs[0]
    matches = plan.syntax.matcher(glob)
    unmatched = next((topic for topic in topics if not matches(topic)), None)
    if unmatched is not None:
        raise LoadError(f"--glob {glob} does not match {unmatched}: with --kill-leader it must match all topics")
    if plan.topics < 2 * plan.publishers:
        raise LoadError(
            f"{plan.publishers} publishers share {plan.topics} topics; with --kill-leader give two for each"
        )
    values = iter(range(2**62))
    return Work(
        target.addresses,
        _identity(target.publisher),
        _identity(target.subscriber),
        topics,
        glob,
        lambda _topic: bodies[next(values) % len(bodies)],
        plan.per_second or RATE,
        plan.publishers,
        plan.groups[0].connections,
        target.virtual_host,
    )


def _identity(files: TlsFiles | None) -> Identity:
    if files is None or files.certificate is None:
        raise LoadError("--kill-leader needs mutual TLS: give --certificates, or --cert, --key and --ca")
    return Identity(files.certificate, files.key or files.certificate, files.ca, files.server_name)


async def _run(load: Load, plan: Plan, command: str, kills: int, output: Console) -> int:
    """Run the load and the kills; return how many last values subscribers lack in the end."""

    async def kill(leader: Address) -> None:
        await _execute(command, leader)

    async with load.running():
        await load.until_all_have_a_value()
        for number in range(kills):
            await trio.sleep(plan.seconds)
            outage = await load.kill(kill)
            output.print(
                f"kill {number + 1} of {kills}: {shown(outage.before)}, then {shown(outage.after)};"
                f" no RECEIPT for {outage.no_receipt_s:.2f} s, lost {outage.lost}",
                highlight=False,
                soft_wrap=True,
            )
        return await load.stop(plan.settle_s)


async def _execute(command: str, leader: Address) -> None:
    """Run the command with the leader's address in MAXAM_LEADER, MAXAM_LEADER_HOST and MAXAM_LEADER_PORT."""
    host, port = leader
    environment = {
        **os.environ,
        "MAXAM_LEADER": shown(leader),
        "MAXAM_LEADER_HOST": host,
        "MAXAM_LEADER_PORT": str(port),
    }
    with trio.move_on_after(_COMMAND_S) as patience:
        done = await trio.run_process(
            ["/bin/sh", "-c", command], env=environment, check=False, capture_stdout=True, capture_stderr=True
        )
        if done.returncode == 0:
            return
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise LoadError(f"the command of --kill-leader ended with status {done.returncode} for {shown(leader)}: {said}")
    if patience.cancelled_caught:
        raise LoadError(f"--kill-leader: the command did not end within {_COMMAND_S:g} s for {shown(leader)}")


def _problems(load: Load, lacking: int) -> list[str]:
    found = {
        f"{load.lost} accepted values were lost": load.lost,
        f"{load.older} values came after a newer one of their topic": load.older,
        f"subscribers lack the last value of {lacking} topics": lacking,
        f"{load.published.rejected} SENDs were rejected: {load.published.reason}": load.published.rejected,
    }
    return [text for text, count in found.items() if count]


def _json(load: Load, plan: Plan, problems: Sequence[str]) -> Mapping[str, Any]:
    return {
        **as_json(load.outages),
        "publishers": plan.publishers,
        "subscribers": load.work.subscribers,
        "topics": plan.topics,
        "rate_asked_per_s": load.work.per_second,
        "receipts": load.receipts,
        "rejected": load.published.rejected,
        "lost": load.lost,
        "older_after_newer": load.older,
        "problems": problems,
    }


def _print(output: Console, outages: Sequence[Outage], plan: Plan) -> None:
    title = f"{len(outages)} kills of the leader: {plan.publishers} publishers, {plan.topics:,} topics"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("s")
    for share in SHARES:
        table.add_column(share, justify="right")
    for name, found in summary(outages).items():
        table.add_row(TIMES[name], *[f"{found[share]:.2f}" for share in SHARES])
    output.print(table)
    unknown, reconnected = (sum(getattr(one, name) for one in outages) for name in ("unknown", "reconnected"))
    output.print(
        f"{sum(one.lost for one in outages)} accepted values lost, {unknown} SENDs of unknown outcome,"
        f" {reconnected} connections made again",
        highlight=False,
        soft_wrap=True,
    )

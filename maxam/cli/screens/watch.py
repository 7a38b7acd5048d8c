"""`topics watch`: an eager subscription whose values are shown as they come, over as many connections as it takes."""

import signal
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, Literal, final

import trio
from rich.live import Live
from rich.table import Table
from rich.text import Text

from maxam.avro.json.decoding import Json, ValueDecodeError
from maxam.cli.options import WHOLE
from maxam.client import ClientError, Kind, Message, ResumingClient, resuming
from maxam.https_client import Credentials, Remote, RemoteError, split_addresses
from maxam.schema_tools.validating import Validator
from maxam.terminal.escaping import shown
from maxam.terminal.options import remark
from maxam.terminal.tables import GAP, VALUE, cell, console, is_cut, make_table, print_json, print_line, report_cut

TOPICS_MAX: Final = 1000  # remembered for the table: those that changed last
VIRTUAL_HOST: Final = "MAXVAPI"  # the gateway's default
CELL_MIN: Final = 8  # characters of a name or value, however narrow the terminal
REFRESH_S: Final = 0.25
PAUSE_MAX_S: Final = 5.0  # before it connects again: a person waits
RELEARN_S: Final = 5.0  # at most so often the registry is asked for again when a value does not fit it

Style = Literal["table", "lines", "whole", "json"]  # a value a line is cut; whole it is not


@final
@dataclass(frozen=True, slots=True)
class Wanted:
    """The updates to show.

    Attributes:
        glob: Pattern of the topics.
        selector: Condition on their values, or None.
        min_interval_s: Minimum time between two values of a topic, or None.
    """

    glob: str
    selector: str | None = None
    min_interval_s: float | None = None


@final
@dataclass(frozen=True, slots=True)
class Update:
    """One value as it arrived, or another change of its topic."""

    destination: str
    revision: int
    received_at: str
    kind: Kind
    reason: str
    deleted: bool
    schema: str
    value: Json
    problem: str  # why a value is not shown; empty if it is, or if there is none


@final
class _Display:
    """Puts updates on the terminal in one style.

    Attributes:
        client: The client whose lost connections it reports; None before the first connection.
    """

    def __init__(self, style: Style) -> None:
        self.style: Final = style
        self.client: ResumingClient | None = None
        self._newest: Final[OrderedDict[str, Update]] = OrderedDict()
        self._count = 0
        self._told_cut = False
        self._trouble = ""  # the reason for the last loss
        self._lost_at = 0  # number of connections then

    def lost(self, reason: ClientError, _wait_s: float) -> None:
        """Report a lost connection, or an attempt that failed for another reason than the one before."""
        trouble = f"not connected: {reason}"
        if trouble != self.trouble and self.style != "table":
            remark(f"{trouble}; trying again")
        self._trouble, self._lost_at = trouble, self.client.connections if self.client is not None else 0

    @property
    def trouble(self) -> str:
        """The reason why there is no connection; empty while there is one."""
        return self._trouble if self.client is not None and self.client.connections == self._lost_at else ""

    def put(self, update: Update) -> None:
        """Show an update, at once or with the next refresh."""
        self._count += 1
        if self.style == "json":
            print_json(
                {
                    "destination": update.destination,
                    "revision": update.revision,
                    "received_at": update.received_at,
                    "kind": update.kind,
                    "reason": update.reason,
                    "deleted": update.deleted,
                    "schema": update.schema,
                    "value": update.value,
                    "problem": update.problem,
                }
            )
        elif self.style == "whole":
            print_line(f"{update.revision} {update.destination} {cell(_text(update), None).plain}")
        elif self.style == "lines":
            print_line(f"{update.revision} {update.destination} {cell(_text(update)).plain}")
            if not self._told_cut and is_cut(_text(update)):
                self._told_cut = True
                report_cut([VALUE], WHOLE)
        else:
            self._newest[update.destination] = update
            self._newest.move_to_end(update.destination, last=False)
            if len(self._newest) > TOPICS_MAX:
                self._newest.popitem()

    def table(self, rows_max: int, width: int) -> Table:
        """Return the newest updates, as many as fit, each on one line of `width` characters."""
        rows = list(self._newest.values())[: max(rows_max, 1)]
        cells = [(cell(row.destination).plain, str(row.revision), row.received_at[11:23], row) for row in rows]
        # Cut here: rich would take the room away from the short columns too.
        revision_width = max(len(text) for text in ("REV", *(revision for _, revision, *_ in cells)))
        room = width - len("00:00:00.000") - 3 * GAP - revision_width
        longest = max(len(text) for text in ("DESTINATION", *(name for name, *_ in cells)))
        destination_width = max(min(longest, room // 2), CELL_MIN)
        value_width = max(room - destination_width, CELL_MIN)
        cut = any(len(cell(_text(row)).plain) > value_width or is_cut(_text(row)) for *_, row in cells)
        table = make_table(
            ["DESTINATION", "#REV", "RECEIVED", "VALUE"],
            [
                (shown(name, destination_width), revision, at, shown(cell(_text(row)).plain, value_width))
                for name, revision, at, row in cells
            ],
        )
        for column in table.columns:
            column.no_wrap = True
        table.caption = Text(
            f"{cell(self.trouble).plain}; Ctrl-C ends"
            if self.trouble
            else f"updates: {self._count}, topics: {len(self._newest)}; {f'{WHOLE}; ' if cut else ''}Ctrl-C ends",
            style="table.caption",
            no_wrap=True,
            overflow="ellipsis",
        )
        return table


def _text(update: Update) -> str | Json:
    match update.kind:
        case "delete":
            return f"({update.reason or 'deleted'})"
        case "left":
            return f"(left: {update.reason})"
        case "value" | "fresh" if not update.reason:
            return f"({update.problem})" if update.problem else update.value
        case _:
            return f"({update.reason})"


@final
class _Watcher:
    """Decodes the messages of one glob."""

    def __init__(self, remote: Remote, glob: str) -> None:
        self._remote: Final = remote
        self._glob: Final = glob
        self._validator = Validator(remote, glob)
        self._relearn_at_s = 0.0

    async def update(self, message: Message) -> Update:
        schema, value, problem = "", None, ""
        if message.body and message.kind in ("value", "fresh"):
            try:
                schema, value = self._decode(message)
            except ValueDecodeError as error:
                problem = str(error)
                if trio.current_time() >= self._relearn_at_s:
                    # the gateway accepted it, so its registry may be another one by now
                    self._relearn_at_s = trio.current_time() + RELEARN_S
                    try:
                        self._validator = await trio.to_thread.run_sync(Validator, self._remote, self._glob)
                        schema, value = self._decode(message)
                        problem = ""
                    except ValueDecodeError as still:
                        problem = str(still)
                    except RemoteError:
                        pass  # values may come from another gateway while this admin listener is down
        return Update(
            destination=message.destination,
            revision=int(message.message_id),
            received_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            kind=message.kind,
            reason=message.reason,
            deleted=message.deleted,
            schema=schema,
            value=value,
            problem=problem,
        )

    def _decode(self, message: Message) -> tuple[str, Json]:
        headers = tuple((name.encode(), text.encode()) for name, text in message.headers.items())
        return self._validator.decode(message.destination, headers, message.body)


def watch(
    credentials: Credentials,
    wanted: Wanted,
    stomp: str | None,
    virtual_host: str | None,
    style: Style,
    count: int | None,
) -> None:
    """Show every value of matching topics, then each update, until SIGINT, SIGTERM or `count` updates.

    Args:
        credentials: Of the admin API; the same certificate subscribes.
        wanted: The topics and values to show.
        stomp: `HOST:PORT` of the STOMP listener; None asks the gateway, which needs the admin right `read`.
        virtual_host: Of the CONNECT. None: the one that the gateway reports, or its default.
        style: How to show them.
        count: End after N updates. None goes on until a signal.

    Raises:
        MaxamError, OSError: It cannot go on. Also a group of them.
    """
    with Remote(credentials) as remote:
        if stomp is None:
            about = remote.get("/v1/about")["stomp"]
            addresses, virtual_host = [(about["host"], about["port"])], virtual_host or about["virtual_host"]
        else:
            addresses = split_addresses(stomp, "--server")
        watcher = _Watcher(remote, wanted.glob)
        display = _Display(style)
        trio.run(partial(_watch, credentials, addresses, virtual_host or VIRTUAL_HOST, watcher, wanted, display, count))


async def _watch(
    credentials: Credentials,
    addresses: list[tuple[str, int]],
    virtual_host: str,
    watcher: _Watcher,
    wanted: Wanted,
    display: _Display,
    count: int | None,
) -> None:
    certificate, key, ca = credentials.certificate, credentials.key, credentials.ca
    if certificate is None or key is None or ca is None:
        raise RemoteError("certificate, key and CA are needed")
    async with trio.open_nursery() as nursery:
        await nursery.start(_until_signal, nursery.cancel_scope)
        if display.style == "table":
            nursery.start_soon(_refresh, display)
        async with resuming(
            *addresses[0],
            others=addresses[1:],
            certificate=certificate,
            key=key,
            ca=ca,
            check_name=credentials.server_name,
            host=virtual_host,
            on_loss=display.lost,
            pause_max_s=PAUSE_MAX_S,
        ) as client:
            display.client = client
            current = bool(client.incarnation)  # an older gateway shows plain values, and all again after a loss
            async with client.subscribe(
                wanted.glob,
                eager=True,
                metadata=current,
                markers=current,
                selector=wanted.selector,
                min_interval_s=wanted.min_interval_s,
            ) as subscription:
                if subscription.filtered:
                    print_line(
                        f"this certificate may receive no topic that matches {wanted.glob}: no value will arrive"
                    )
                shown: set[str] = set()
                async for message in subscription:
                    if message.kind == "left" and message.destination not in shown:
                        continue  # after a lost connection it comes for each topic that does not satisfy the selector
                    if message.deleted:
                        shown.discard(message.destination)
                    else:
                        shown.add(message.destination)
                    display.put(await watcher.update(message))
                    if count is not None:
                        count -= 1
                        if count <= 0:
                            break
        nursery.cancel_scope.cancel()


async def _until_signal(scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


async def _refresh(display: _Display) -> None:
    terminal = console()
    with Live(console=terminal, auto_refresh=False, screen=False) as live:
        try:
            while True:
                live.update(display.table(terminal.height - 5, terminal.width), refresh=True)
                await trio.sleep(REFRESH_S)
        finally:
            live.update(display.table(terminal.height - 5, terminal.width), refresh=True)

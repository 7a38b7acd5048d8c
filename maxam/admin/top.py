"""What `maxam-admin top` shows: one screen of what a gateway does now, who is behind, and what is busy."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from maxam.admin.escaping import shown
from maxam.admin.output import make_table
from maxam.admin.remote import Remote
from maxam.errors import MaxamError

ROWS_MAX: Final = 50  # asked for of each list; more than a terminal shows
SIDE_BY_SIDE_COLUMNS: Final = 110  # from which on two lists stand beside each other
NAME_COLUMNS_MIN: Final = 12
REASONS_MAX: Final = 3  # `health` shows all
_BARS: Final = "▁▂▃▄▅▆▇█"
_TREND_COLUMNS: Final = 60
_STATUS_STYLES: Final = {"ready": "green", "degraded": "bold yellow"}

Json = dict[str, Any]


@final
@dataclass(slots=True)
class Look:
    """What the gateway answered last, and since when it has not.

    Attributes:
        health: Of `/v1/health`.
        rates: Of `/v1/rates`.
        behind: Of `/v1/subscriptions/slow`.
        problem: Why the last question was not answered; empty: it was.
        answered_s: When the last answer came, by the monotonic clock.
    """

    health: Json = field(default_factory=dict)
    rates: Json = field(default_factory=dict)
    behind: Json = field(default_factory=dict)
    problem: str = ""
    answered_s: float = field(default_factory=time.monotonic)

    def renew(self, remote: Remote) -> None:
        """Ask for everything again; what is not answered stays as it was, with the problem."""
        try:
            self.health = remote.get("/v1/health")
            self.rates = remote.get("/v1/rates")
            self.behind = remote.get("/v1/subscriptions/slow", limit=ROWS_MAX)
        except MaxamError as error:
            self.problem = shown(str(error))
        else:
            self.problem = ""
            self.answered_s = time.monotonic()

    def as_json(self) -> Json:
        """Return it all as one object."""
        return {"health": self.health, "rates": self.rates, "behind": self.behind, "problem": self.problem}


def screen(look: Look, where: str, keys: str, width: int, height: int) -> RenderableType:
    """Lay out a look for a terminal of that many columns and lines, every line whole or cut, none folded."""
    if not look.health:
        return Group(Text(f"maxam {where}", no_wrap=True), Text(look.problem or "asking ...", style="bold"))
    head = _head(look, where)
    room = max(height - len(head) - 2, 4)
    behind_rows = max(3, room // 2 - 2)
    lists_rows = max(1, room - min(behind_rows, max(len(look.behind["subscriptions"]), 1)) - 5)
    parts: list[RenderableType] = [*head, Text(""), _behind(look, width, behind_rows)]
    hot, busy = _hot(look), _busy(look)
    if width >= SIDE_BY_SIDE_COLUMNS:
        half = (width - 3) // 2
        side = Table.grid(padding=(0, 3, 0, 0))
        side.add_row(_ranking(hot, half, lists_rows - 2), _ranking(busy, half, lists_rows - 2))
        parts.append(side)
    else:
        parts.append(_ranking(hot, width, lists_rows - 2))
    parts.append(Text(keys, style="dim", no_wrap=True, overflow="crop"))
    return Group(*parts)


def _head(look: Look, where: str) -> list[Text]:
    health, rates, figures = look.health, look.rates, look.health["figures"]
    status = health["status"]
    lines = [
        Text.assemble(
            f"{health['server']} {health['core']}  {where}  up {duration(health['uptime_s'])}  ",
            (status, _STATUS_STYLES.get(status, "bold red")),
        )
    ]
    if look.problem:
        age = duration(time.monotonic() - look.answered_s)
        lines.append(Text(f"NO ANSWER; what follows is {age} old: {look.problem}", style="bold red"))
    reasons = [*health["reasons"], *health["degraded"]][:REASONS_MAX]
    lines += [Text(shown(reason), style="yellow") for reason in reasons]
    trends = [
        ("SEND/s", rates["sends_per_s"], [row[1] for row in rates["history"]]),
        ("MESSAGE/s", rates["messages_per_s"], [row[2] for row in rates["history"]]),
    ]
    lines += [
        Text.assemble((f"{title:<10}{now:>12,.0f}  ", "bold"), (bars(values), "cyan")) for title, now, values in trends
    ]
    connected = health["connections"]["connected"]
    lines.append(
        Text(
            f"ACK/s {rates['acks_per_s']:,.0f}  rejected/s {rates['rejects_per_s']:,.0f}  {figures['topics']:,} topics"
            f"  {connected:,} connected  {figures['sessions']:,} sessions  {look.behind['behind']:,} behind"
            f"  {health['overdue']:,} overdue  revision {figures['revision']:,}"
        )
    )
    for line in lines:
        line.no_wrap = True
        line.overflow = "ellipsis"
    return lines


def _behind(look: Look, width: int, rows_max: int) -> RenderableType:
    rows = look.behind["subscriptions"]
    if not rows:
        return Text("nobody is behind", style="green")
    room = width - 46
    name = max(NAME_COLUMNS_MIN, room * 2 // 5)
    table = make_table(
        ["WHO IS BEHIND", "SUBSCRIPTION", "#STALE", "#OWED", "#UN-ACKED", "#CONFLATED"],
        [
            (
                shown(f"{row['principal']} {row['client_id']}" + ("" if row["connected"] else " (away)"), name),
                shown(row["glob"], max(NAME_COLUMNS_MIN, room - name)),
                duration(row["staleness_s"]),
                f"{row['owed']:,}",
                f"{row['unacked']:,}",
                f"{row['conflated']:,}",
            )
            for row in rows[:rows_max]
        ],
    )
    for column in table.columns:
        column.no_wrap = True
    return table


def _hot(look: Look) -> list[tuple[str, str]]:
    return [("HOT TOPICS", "UPD/s")] + [
        (row["destination"], f"{row['updates_per_s']:,.1f}") for row in look.rates["hot_topics"]
    ]


def _busy(look: Look) -> list[tuple[str, str]]:
    return [("BUSY SESSIONS", "SEND/s + MESSAGE/s")] + [
        (f"{row['principal']} {row['client_id']}", f"{row['sends_per_s']:,.0f} + {row['messages_per_s']:,.0f}")
        for row in look.rates["busy_sessions"]
    ]


def _ranking(rows: Sequence[tuple[str, str]], width: int, rows_max: int) -> Table:
    (title, figure), *found = rows
    table = make_table(
        [title, f"#{figure}"],
        [(shown(name, max(NAME_COLUMNS_MIN, width - 24)), value) for name, value in found[: max(rows_max, 1)]],
    )
    for column in table.columns:
        column.no_wrap = True
    return table


def bars(values: Sequence[float]) -> str:
    """Return a trend, the newest last, scaled to its largest."""
    shown_values = values[-_TREND_COLUMNS:]
    top = max(shown_values, default=0.0)
    if top <= 0:
        return _BARS[0] * len(shown_values)
    return "".join([_BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)] for value in shown_values])


def duration(seconds: float) -> str:
    """Return seconds as people say them, in two units at most."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    if minutes < 100:
        return f"{minutes} m {int(seconds) % 60} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} m" if hours < 48 else f"{hours // 24} d {hours % 24} h"

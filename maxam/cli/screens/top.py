"""`maxam-admin top`: rates, subscriptions that are behind, busy topics and sessions, on one screen."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from maxam.counting import counted
from maxam.errors import MaxamError
from maxam.https_client import Remote
from maxam.terminal.escaping import shown
from maxam.terminal.tables import GAP, make_table
from maxam.terminal.units import duration

ROWS_MAX: Final = 50  # asked for of each list; more than a terminal shows
SIDE_BY_SIDE_COLUMNS: Final = 110  # from which on two lists stand beside each other
NAME_COLUMNS_MIN: Final = 12
REASONS_MAX: Final = 3  # `health` shows all
# Why a subscription lacks something, by `cause` of its row.
WHY: Final = {
    "": "",
    "detached": "is away",
    "paused": "connected, not subscribed",
    "unacknowledged": "slow to acknowledge",
    "unread": "slow to read",
    "catching-up": "asked for everything, under way",
    "held": "held by min-interval",
}
_BARS: Final = "▁▂▃▄▅▆▇█"
_TITLE_LINES: Final = 2  # of a list
_LIST_LINES_MIN: Final = 4
_WHY_FROM: Final = 75  # columns of a terminal that has room for it
_EVERYTHING_FROM: Final = 120
_STATUS_STYLES: Final = {"ready": "green", "degraded": "bold yellow"}

Json = dict[str, Any]


@final
@dataclass(slots=True)
class Report:
    """The last answers of the gateway, and their age.

    Attributes:
        health: Of `/v1/health`.
        rates: Of `/v1/rates`.
        behind: Of `/v1/subscriptions/slow`.
        problem: Text of the last error. Empty if the last request was answered.
        answered_s: When the last answer came, by the monotonic clock.
    """

    health: Json = field(default_factory=dict)
    rates: Json = field(default_factory=dict)
    behind: Json = field(default_factory=dict)
    error: MaxamError | None = None
    answered_s: float = field(default_factory=time.monotonic)

    def renew(self, remote: Remote) -> None:
        """Ask for everything again; what is not answered stays as it was, with the problem."""
        try:
            self.health = remote.get("/v1/health")
            self.rates = remote.get("/v1/rates")
            self.behind = remote.get("/v1/subscriptions/slow", limit=ROWS_MAX)
        except MaxamError as error:
            self.error = error
        else:
            self.error = None
            self.answered_s = time.monotonic()

    @property
    def problem(self) -> str:
        """The text of the last error, if the last request failed."""
        return "" if self.error is None else shown(str(self.error))

    def as_json(self) -> Json:
        """Return it all as one object."""
        return {"health": self.health, "rates": self.rates, "behind": self.behind, "problem": self.problem}


def screen(report: Report, where: str, keys: str, width: int, height: int) -> RenderableType:
    """Lay out the answers for a terminal of `width` columns and `height` lines. Long lines are cut, not folded."""
    if not report.health:
        return Group(Text(f"maxam {where}", no_wrap=True), Text(report.problem or "asking ...", style="bold"))
    head = _head(report, where, width)
    room = max(height - len(head) - 4, _LIST_LINES_MIN * 2)  # without blank lines and that of the keys
    behind = report.behind["subscriptions"][: max(room // 2 - _TITLE_LINES, 1)]
    rows_max = max(room - (_TITLE_LINES + len(behind) if behind else 1) - _TITLE_LINES, 1)
    parts: list[RenderableType] = [*head, Text(""), _behind(behind, width), Text("")]
    if width >= SIDE_BY_SIDE_COLUMNS:
        half = (width - GAP) // 2
        side = Table.grid(padding=(0, GAP, 0, 0))
        side.add_row(_ranking(_hot(report), half, rows_max), _ranking(_busy(report), half, rows_max))
        parts.append(side)
    else:
        parts.append(_ranking(_hot(report), width, rows_max))
    parts.append(Text(keys, style="dim", no_wrap=True, overflow="crop"))
    return Group(*parts)


def _head(report: Report, where: str, width: int) -> list[Text]:
    health, rates, figures = report.health, report.rates, report.health["figures"]
    status = health["status"]
    lines = [
        Text.assemble(
            f"{health['server']} {health['core']}  {where}  up {duration(health['uptime_s'])}  ",
            (status, _STATUS_STYLES.get(status, "bold red")),
        )
    ]
    if report.problem:
        age = duration(time.monotonic() - report.answered_s)
        lines.append(Text(f"NO ANSWER: {report.problem}. The figures are {age} old", style="bold red"))
    reasons = [*health["reasons"], *health["degraded"]]
    lines += [Text(shown(reason), style="yellow") for reason in reasons[:REASONS_MAX]]
    if len(reasons) > REASONS_MAX:
        lines.append(Text(f"and {len(reasons) - REASONS_MAX} more: maxam-admin health", style="yellow"))
    trends = [
        ("SEND/s", rates["sends_per_s"], [row[1] for row in rates["history"]]),
        ("MESSAGE/s", rates["messages_per_s"], [row[2] for row in rates["history"]]),
    ]
    lines += [
        Text.assemble((f"{title:<10}{now:>12,.0f}  ", "bold"), (bars(values, width - 26), "cyan"))
        for title, now, values in trends
    ]
    sizes = [
        f"{report.behind['behind']:,} behind",
        f"{health['overdue']:,} overdue",
        f"{rates['rejects_per_s']:,.0f} rejected/s",
        f"{rates['acks_per_s']:,.0f} ACK/s",
        counted(figures["topics"], "topic", ","),
        f"{health['connections']['connected']:,} connected",
        f"{health['connections']['problems']:,} cannot connect",
        counted(figures["sessions"], "session", ","),
        f"revision {figures['revision']:,}",
    ]
    if (backup := health.get("backup")) is not None:
        sizes.append("no backup" if backup["age_s"] is None else f"backup {duration(backup['age_s'])} old")
    lines.append(Text("  ".join(sizes)))
    for line in lines:
        line.no_wrap = True
        line.overflow = "ellipsis"
    return lines


def _behind(rows: list[Json], width: int) -> RenderableType:
    if not rows:
        return Text("no subscription is behind", style="green")
    columns: list[tuple[str, Callable[[Json], str]]] = [
        ("SUBSCRIPTIONS BEHIND", lambda row: f"{row['principal']} {row['client_id']}"),
        ("#BY", lambda row: duration(row["staleness_s"])),
    ]
    if width >= _WHY_FROM:
        columns.append(("WHY", lambda row: WHY[row["cause"]]))
    columns.append(("#OWED", lambda row: f"{row['owed']:,}"))
    if width >= _EVERYTHING_FROM:
        columns += [
            ("#UN-ACKED", lambda row: f"{row['unacked']:,}"),
            ("#CONFLATED", lambda row: f"{row['conflated']:,}"),
            ("GLOB", lambda row: row["glob"]),
        ]
    cells = [[text(row) for _, text in columns] for row in rows]
    titles = [title for title, _ in columns]
    rest = sum([max(len(row[at]) for row in [*cells, titles]) for at in range(1, len(columns))]) + GAP * len(columns)
    for row in cells:
        row[0] = shown(row[0], max(NAME_COLUMNS_MIN, width - rest))
    return _unfolded(titles, cells)


def _hot(report: Report) -> list[tuple[str, str]]:
    return [("HOT TOPICS", "UPD/s")] + [
        (row["destination"], f"{row['updates_per_s']:,.1f}") for row in report.rates["hot_topics"]
    ]


def _busy(report: Report) -> list[tuple[str, str]]:
    return [("BUSY SESSIONS", "SEND/s + MESSAGE/s")] + [
        (f"{row['principal']} {row['client_id']}", f"{row['sends_per_s']:,.0f} + {row['messages_per_s']:,.0f}")
        for row in report.rates["busy_sessions"]
    ]


def _ranking(rows: Sequence[tuple[str, str]], width: int, rows_max: int) -> Table:
    (title, figure), *found = rows
    figures = max(len(value) for _, value in rows)
    name = max(NAME_COLUMNS_MIN, width - figures - GAP)
    return _unfolded([title, f"#{figure}"], [(shown(text, name), value) for text, value in found[:rows_max]])


def _unfolded(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = make_table(titles, rows)
    for column in table.columns:
        column.no_wrap = True
    return table


def bars(values: Sequence[float], columns: int) -> str:
    """Return a trend of at most `width` columns, the newest last, scaled to the largest of them."""
    last = values[-max(columns, 1) :]
    top = max(last, default=0.0) or 1.0
    return "".join([_BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)] for value in last])

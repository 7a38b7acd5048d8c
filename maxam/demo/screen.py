"""The screen of the demo: a full screen on a terminal, a line every two seconds elsewhere."""

import time
from collections import deque
from typing import Final, final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from maxam.demo.floor import Floor, Row
from maxam.demo.news_screen import NewsScreen
from maxam.failover.measures import Published, Received, share

REFRESH_S: Final = 0.25
SIDE_COLUMNS: Final = 41
SIDE_LINES: Final = 20
NEWS_LINES: Final = 3
COLUMNS: Final = {  # of the table: title and characters, enough for the values of machines
    "Machine": 7,
    "Floor": 5,
    "Game": 15,
    "Credit": 9,
    "Money in": 10,
    "Turnover": 12,
    "Status": 20,
    "Age": 7,
    "Upd/s": 5,
}
EXPENDABLE: Final = ("Turnover", "Age", "Money in", "Game", "Upd/s", "Floor", "Credit")  # in this order
TABLE_COLUMNS: Final = 78  # what a table is worth having beside the figures, not below them
_DASH: Final = "-"


@final
class Screen(NewsScreen):
    """Shows figures that others keep."""

    def __init__(
        self,
        console: Console,
        title: str,
        floor: Floor,
        published: Published,
        eager: Received,
        slow: Received,
        slow_s: float,
    ) -> None:
        super().__init__(console, NEWS_LINES, REFRESH_S)
        self._name: Final = title
        self._floor: Final = floor
        self._published: Final = published
        self._eager: Final = eager
        self._slow: Final = slow
        self._slow_s: Final = slow_s
        self._shown_s = self._began_s
        self._counted = (0, 0, 0)
        self._rates = (0.0, 0.0, 0.0)

    def refresh(self) -> None:
        """Show the figures as they are now."""
        now_s = time.monotonic()
        elapsed_s = max(now_s - self._shown_s, 0.001)
        self._shown_s = now_s
        counted = (self._published.sent, self._eager.messages, self._slow.messages)
        weight = min(1.0, elapsed_s / 2)
        published, eager, slow = (
            rate + weight * ((new - old) / elapsed_s - rate)
            for rate, new, old in zip(self._rates, counted, self._counted, strict=True)
        )
        self._rates = (published, eager, slow)
        self._counted = counted
        self._floor.pass_time(elapsed_s)
        if self._live is None:
            self._print(self._line())
        else:
            self._live.update(self._everything(), refresh=True)

    @property
    def _queue_s(self) -> float:
        """Delay that the slow subscriber would have by now if it had to take every value in order."""
        return self._slow.surplus * self._slow_s

    def _line(self) -> str:
        published, eager, slow = self._published, self._eager, self._slow
        return (
            f"{self._clock()}  sent {published.sent} (rejected {published.rejected})"
            f"  |  eager received {eager.messages}, age {_milliseconds(share(eager.ages_s, 0.5))}"
            f"  |  slow received {slow.messages}, skipped {slow.skipped}, age {_milliseconds(share(slow.ages_s, 0.5))},"
            f" overtaken by {slow.behind} (a queue: {self._queue_s:.0f} s late)"
        )

    def _everything(self) -> RenderableType:
        width, height = self._console.size
        title = self._title(self._name)
        news = self._news()
        if self._published.rejected:
            refusal = f"{self._published.rejected:,} rejected: {self._published.reason}"
            news.append(Text(refusal, style="bold red", no_wrap=True, overflow="ellipsis"))
        lines = height - 1 - len(news)
        if width < TABLE_COLUMNS + 1 + SIDE_COLUMNS or lines < SIDE_LINES:
            figures = self._figures()
            return Group(title, *news, *figures, self._machines(lines - len(figures), width))
        grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
        grid.add_column(ratio=1)
        grid.add_column(width=SIDE_COLUMNS)
        side = Group(self._publisher_panel(), self._eager_panel(), self._slow_panel())
        grid.add_row(self._machines(lines, width - SIDE_COLUMNS - 1), side)
        return Group(title, *news, grid)

    def _machines(self, lines: int, room: int) -> Table:
        """Return as much of the table as `lines` and `room` characters hold: whole columns, the expendable ones last."""
        rows = self._floor.rows()
        rows_max = max(1, lines - 2)
        urgent = sum(row.urgent for row in rows)
        playing = sum(row.playing for row in rows)
        table = Table(
            box=None,
            padding=(0, 1, 0, 0),
            header_style="bold cyan",
            row_styles=("", "on grey7"),
            caption=f"{min(rows_max, len(rows))} of {len(rows)} machines · {playing} played · {urgent} need somebody",
            caption_justify="left",
        )
        shown = dict(COLUMNS)
        for name in EXPENDABLE:
            if sum(shown.values()) + len(shown) <= room:
                break
            del shown[name]
        for name, width in shown.items():
            text = name in ("Machine", "Floor", "Game", "Status")
            table.add_column(name, width=width, no_wrap=True, justify="left" if text else "right")
        now_ms = time.time() * 1000
        for row in rows[:rows_max]:
            cells = dict(zip(COLUMNS, _cells(row, now_ms), strict=True))
            table.add_row(*[cells[name] for name in shown])
        return table

    def _publisher_panel(self) -> Panel:
        published = self._published
        facts = _facts(
            ("values sent", f"{published.sent:,}", f"{self._rates[0]:,.0f}/s"),
            ("topics", f"{len(published.newest):,}", ""),
            ("receipt after", _milliseconds(share(published.latencies_s, 0.5)), "median"),
            ("", _milliseconds(share(published.latencies_s, 0.99)), "99 %"),
        )
        style = "red" if published.rejected else "cyan"
        return Panel(facts, title="publisher", title_align="left", border_style=style)

    def _eager_panel(self) -> Panel:
        eager = self._eager
        facts = _facts(
            ("received", f"{eager.messages:,}", f"{self._rates[1]:,.0f}/s"),
            ("skipped", f"{eager.skipped:,}", ""),
            ("age on arrival", _milliseconds(share(eager.ages_s, 0.5)), "median"),
            ("", _milliseconds(share(eager.ages_s, 0.99)), "99 %"),
        )
        return Panel(facts, title="eager subscriber", title_align="left", border_style="green")

    def _slow_panel(self) -> Panel:
        slow = self._slow
        facts = _facts(
            ("received", f"{slow.messages:,}", f"{self._rates[2]:,.0f}/s"),
            ("skipped", f"{slow.skipped:,}", "newer came"),
            ("age on arrival", _milliseconds(share(slow.ages_s, 0.5)), "median"),
            ("", _milliseconds(share(slow.ages_s, 0.99)), "99 %"),
            ("overtaken", f"{slow.behind}", "newer values"),
        )
        contrast = Text(f"A queue would have it {self._queue_s:,.0f} s behind.", style="dim")
        title = f"slow subscriber ({_milliseconds(self._slow_s)} per message)"
        return Panel(Group(facts, contrast), title=title, title_align="left", border_style="yellow")

    def _figures(self) -> list[Text]:
        """Return the panels' contents in a line each, for a screen without room for panels."""
        published, eager, slow = self._published, self._eager, self._slow
        sent_rate, eager_rate, slow_rate = self._rates
        lines = (
            f"publisher  sent {published.sent:,}, {sent_rate:,.0f}/s · {len(published.newest):,} topics"
            f" · receipt after {_median(published.latencies_s)}",
            f"eager      received {eager.messages:,}, {eager_rate:,.0f}/s · skipped {eager.skipped:,}"
            f" · age {_median(eager.ages_s)}",
            f"slow       received {slow.messages:,}, {slow_rate:,.0f}/s · skipped {slow.skipped:,}"
            f" · age {_median(slow.ages_s)}",
            f"           {_milliseconds(self._slow_s)} per message: a queue would have it {self._queue_s:,.0f} s behind",
        )
        styles = ("cyan", "green", "yellow", "yellow")
        return [
            Text(line, style=style, no_wrap=True, overflow="ellipsis")
            for line, style in zip(lines, styles, strict=True)
        ]


def _facts(*facts: tuple[str, str, str]) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="dim", width=14)
    table.add_column(justify="right", style="bold", width=9)
    table.add_column(style="dim", ratio=1)
    for fact in facts:
        table.add_row(*fact)
    return table


def _cells(row: Row, now_ms: float) -> tuple[RenderableType, ...]:
    style = "bold red" if row.urgent else "green" if row.playing else "dim"
    age_s = (now_ms - row.updated_ms) / 1000
    return (
        Text(row.gmid, style="bold"),
        row.position,
        row.game,
        _money(row.credit),
        _money(row.money_in),
        _money(row.turnover),
        Text(row.status, style=style),
        f"{age_s:.1f} s" if row.updated_ms else _DASH,
        f"{row.updates_per_s:.1f}",
    )


def _money(cents: int) -> str:
    return f"{cents / 100:,.2f}" if cents >= 0 else _DASH


def _median(values: deque[float]) -> str:
    return _milliseconds(share(values, 0.5))


def _milliseconds(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds >= 1
        else f"{seconds * 1000:.1f} ms"
        if seconds < 0.01
        else f"{seconds * 1000:.0f} ms"
    )

"""The screen of the estate demo: what each venue published, and what the centre knows of it."""

import time
from dataclasses import dataclass, field
from typing import Final, Self, final

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from maxam.demo.line import Line
from maxam.demo.news_screen import NewsScreen
from maxam.failover.measures import Published, Received

REFRESH_S: Final = 0.25
_NEWS_LINES: Final = 8


@final
@dataclass
class Venue:
    """One venue, seen from both sides.

    Attributes:
        name: Its name, which is its store at the centre too.
        line: From its bridge to the centre.
        published: The values that its machines published there.
        received: Those that a client at the centre received.
        unknown: Topics that the centre has reported to that client as unknown.
        cut_s: When the line was cut. None while it is not.
        repaired_s: When the line was repaired, until both sides are equal. None before and after.
        moved: Messages that the client had received when the line was repaired.
    """

    name: str
    line: Line
    published: Published
    received: Received
    unknown: set[str] = field(default_factory=set)
    cut_s: float | None = None
    repaired_s: float | None = None
    moved: int = 0

    def step(self, now_s: float) -> str:
        """Return a piece of news if both sides have become equal after an outage, else an empty text."""
        if self.repaired_s is None or self.received.stale() or self.unknown:
            return ""
        news = (
            f"{self.name}: both sides are equal {now_s - self.repaired_s:.1f} s after the repair;"
            f" {self.received.messages - self.moved} messages arrived"
        )
        self.repaired_s = None
        return news


@final
class EstateScreen(NewsScreen):
    """Shows venues that others keep."""

    def __init__(self, console: Console, venues: list[Venue], hint: str) -> None:
        super().__init__(console, _NEWS_LINES, REFRESH_S)
        self._venues: Final = venues
        self._hint: Final = hint

    def __enter__(self) -> Self:
        if self._live is None:
            self._print(self._hint)
        return super().__enter__()

    def refresh(self) -> None:
        """Show the venues as they are now."""
        if self._live is None:
            lines = [f"{venue.name} {_line(venue)}, {_knowledge(venue)}" for venue in self._venues]
            self._print(f"{self._clock()}  " + "  |  ".join(lines))
            return
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
        for name in ("Venue", "Line to the centre"):
            table.add_column(name, no_wrap=True)
        for name in ("Topics", "Published", "Received", "Conflated", "Outdated"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("The centre calls them", no_wrap=True)
        for venue in self._venues:
            outdated = venue.received.stale()
            table.add_row(
                Text(venue.name, style="bold"),
                Text(_line(venue), style="green" if venue.cut_s is None else "bold red"),
                f"{len(venue.published.accepted):,}",
                f"{venue.published.sent:,}",
                f"{venue.received.messages:,}",
                f"{venue.received.skipped:,}",
                Text(f"{outdated:,}", style="yellow" if outdated else "dim"),
                Text(f"{len(venue.unknown):,} unknown", style="bold red")
                if venue.unknown
                else Text("current", "green"),
            )
        title = self._title("maxam demo · three venues and a centre")
        hint = Text(self._hint, style="dim")
        self._live.update(Group(title, Text(""), table, Text(""), hint, Text(""), *self._news()), refresh=True)


def _line(venue: Venue) -> str:
    return "up" if venue.cut_s is None else f"cut for {time.monotonic() - venue.cut_s:.0f} s"


def _knowledge(venue: Venue) -> str:
    known = f"{len(venue.unknown)} unknown" if venue.unknown else "current"
    return f"{venue.published.sent} published, {venue.received.stale()} outdated, {known}"

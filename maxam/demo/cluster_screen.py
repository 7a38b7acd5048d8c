"""The screen of the cluster demo: who leads, what clients get, and what each kill did to them."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Final, final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from maxam.demo.cluster_site import ClusterSite, Member
from maxam.demo.news_screen import NewsScreen
from maxam.failover.load import Load, Outage
from maxam.failover.measures import share
from maxam.failover.outages import SHARES, TIMES, summary

REFRESH_S: Final = 0.2
_NEWS_LINES: Final = 6
_KILLS_SHOWN: Final = 8
_STYLES: Final = {"leading": "bold green", "following": "cyan", "down": "bold red"}


@final
class ClusterScreen(NewsScreen):
    """Shows a cluster and its clients."""

    def __init__(self, console: Console, site: ClusterSite, load: Load, keys: bool, quiet: bool) -> None:
        """Show nothing yet.

        Args:
            console: Where.
            site: The cluster.
            load: The clients.
            keys: Whether keys work.
            quiet: Show nothing, as with --json.
        """
        super().__init__(console, _NEWS_LINES, REFRESH_S, quiet=quiet)
        self._site: Final = site
        self._load: Final = load
        self._keys: Final = keys
        self._quiet: Final = quiet
        self._counted = (self._began_s, 0)
        self._rate = 0.0

    def add_news(self, news: str) -> None:
        """Show a piece of news."""
        if self._live is not None:
            super().add_news(news)
        elif not self._quiet:
            self._print(f"{self._clock()}  {news}")

    def refresh(self) -> None:
        """Show everything as it is now."""
        now_s, receipts = time.monotonic(), self._load.receipts
        elapsed_s = max(now_s - self._counted[0], 0.001)
        weight = min(1.0, elapsed_s)
        self._rate += weight * ((receipts - self._counted[1]) / elapsed_s - self._rate)
        self._counted = now_s, receipts
        if self._live is not None:
            keys = "k kills the leader, q ends" if self._keys else "Ctrl-C ends"
            title = self._title("maxam demo · a cluster of gateways", keys)
            outages = self._load.outages
            kills: list[RenderableType] = [Text(""), kill_table(outages)] if outages else []
            self._live.update(
                Group(
                    title, Text(""), self._members(), Text(""), Text(self._figures()), *kills, Text(""), *self._news()
                ),
                refresh=True,
            )
        elif not self._quiet:
            roles = ", ".join(f"{one.name} {one.role}" for one in self._site.members)
            self._print(f"{self._clock()}  {roles}  |  {self._figures()}")

    def _members(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
        for name in ("Member", "Role"):
            table.add_column(name, no_wrap=True)
        for name in ("Term", "Revision", "Port"):
            table.add_column(name, justify="right", no_wrap=True)
        for member in self._site.members:
            role = Text(member.role, style=_STYLES.get(member.role, "yellow"))
            table.add_row(Text(member.name, style="bold"), role, *_state(member), str(member.stomp))
        return table

    def _figures(self) -> str:
        load = self._load
        ages = load.received[0].ages_s
        waiting = f", none for {load.silent_s:.1f} s" if load.silent_s > 1 else ""
        return (
            f"{load.receipts:,} RECEIPTs, {self._rate:,.0f}/s{waiting}"
            f"  |  RECEIPT after {_ms(load.answers_s, 0.5)}, 99 % {_ms(load.answers_s, 0.99)}"
            f"  |  age of values {_ms(ages, 0.5)}, 99 % {_ms(ages, 0.99)}"
            f"  |  lost {load.lost}"
        )


def kill_table(outages: Sequence[Outage]) -> Table:
    """Return the newest kills, and the percentiles of all."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("Kill", no_wrap=True)
    for title in ("No RECEIPT", "At one publisher", "No value", "Staleness", "Unknown", "Lost"):
        table.add_column(title, justify="right", no_wrap=True)
    first = max(0, len(outages) - _KILLS_SHOWN)
    for number, outage in enumerate(outages[first:], first + 1):
        times = [f"{getattr(outage, name):.2f} s" for name in TIMES]
        table.add_row(str(number), *times, str(outage.unknown), _lost(outage.lost))
    for name in SHARES if len(outages) > 1 else ():
        times = [f"{found[name]:.2f} s" for found in summary(outages).values()]
        table.add_row(
            Text(name, style="dim"), *times, "", _lost(sum(one.lost for one in outages)) if name == "max" else ""
        )
    return table


def _lost(count: int) -> Text:
    return Text(str(count), style="bold red" if count else "bold green")


def _state(member: Member) -> tuple[str, str]:
    if member.state is None or member.state["cluster"] is None:
        return "-", "-"
    return str(member.state["cluster"]["term"]), f"{member.state['revision']:,}"


def _ms(values_s: deque[float], part: float) -> str:
    return f"{share(values_s, part) * 1000:,.0f} ms"

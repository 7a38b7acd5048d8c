"""The screen that all demos share: a full screen on a terminal, else lines, with the newest pieces of news."""

import time
from collections import deque
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

LINE_S: Final = 2.0  # between two lines where there is no terminal


class NewsScreen:
    """Shows news and the time since the start. A context manager: on a terminal it takes the screen and gives it back."""

    def __init__(self, console: Console, news_max: int, refresh_s: float, *, quiet: bool = False) -> None:
        """Show nothing yet.

        Args:
            console: The terminal, or where its output goes instead.
            news_max: Pieces of news on a full screen.
            refresh_s: Seconds between two refreshes of a full screen.
            quiet: Show nothing at all.
        """
        self._console: Final = console
        self._began_s: Final = time.monotonic()
        self._told: Final[deque[str]] = deque(maxlen=news_max)
        live = console.is_terminal and not quiet
        self._live: Final = Live(console=console, auto_refresh=False, screen=True) if live else None
        self.refresh_s: Final = LINE_S if self._live is None else refresh_s

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def add_news(self, news: str) -> None:
        """Show a piece of news."""
        if self._live is None:
            self._print(news)
        else:
            self._told.append(f"{self._clock()} {news}")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)

    def _title(self, name: str, keys: str = "Ctrl-C ends") -> Text:
        title = Text(f" {name}", style="bold")
        return title.append(f"   {self._clock()}   {keys}", style="dim")

    def _news(self) -> list[Text]:
        return [Text(line, style="magenta", no_wrap=True, overflow="ellipsis") for line in self._told]

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._began_s)
        return f"{seconds // 60:02}:{seconds % 60:02}"

"""One line per event on standard error, in a form that no peer can forge or flood."""

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final, final

_LOGGER: Final = logging.getLogger("maxam")
_VALUE_CHARACTERS_MAX: Final = 200
_KEYS_MAX: Final = 10_000  # addresses remembered within one minute
_WINDOW_S: Final = 60.0

# Controls, line and paragraph separators, bidirectional overrides and lone surrogates: what could fake or hide a line.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_QUOTED: Final = re.compile(r'[\s"=\\]|^$')


def escape(text: str) -> str:
    """Return `text` on one line, with every character escaped that could fake or hide another."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def clean(value: object) -> str:
    """Return `value` as text for a log line: unsafe characters escaped, cut at 200 characters, quoted when it must be."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if len(text) > _VALUE_CHARACTERS_MAX:
        text = text[:_VALUE_CHARACTERS_MAX] + "…"
    if _QUOTED.search(text) or _UNSAFE.search(text):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        text = f'"{escape(escaped)}"'
    return text


def log_event(level: int, event: str, /, **values: object) -> None:
    """Log one event as `event key=value ...`; values that are None are left out."""
    if _LOGGER.isEnabledFor(level):
        parts = [event, *(f"{key}={clean(value)}" for key, value in values.items() if value is not None)]
        _LOGGER.log(level, "%s", " ".join(parts))


def log_bug(event: str, error: BaseException, /, **values: object) -> None:
    """Log an error nobody planned for, with its traceback."""
    parts = [event, *(f"{key}={clean(value)}" for key, value in values.items() if value is not None)]
    _LOGGER.error("%s", " ".join(parts), exc_info=error)


@final
class _Formatter(logging.Formatter):
    """`time level event key=value ...`; text of other libraries is escaped, tracebacks follow on lines of their own."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        message = record.getMessage()
        if record.name != _LOGGER.name:
            message = f"library name={clean(record.name)} text={clean(message)}"
        line = f"{stamp} {record.levelname.lower()} {message}"
        if record.exc_info:
            # Indented, so that a line at the margin is always an event.
            line += "\n" + "\n".join(f"  {escape(part)}" for part in self.formatException(record.exc_info).splitlines())
        return line


def start_logging(level: int = logging.INFO) -> None:
    """Send all logging of the process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    _LOGGER.setLevel(level)


@final
class LogLimit:
    """Let at most so many lines a minute through for one key, and tell how many were held back."""

    def __init__(self, lines_per_minute_max: int) -> None:
        self._lines_max: Final = lines_per_minute_max
        self._window_start_s = 0.0
        self._counts: dict[tuple[str, str], int] = {}

    def admit(self, event: str, address: str, now_s: float) -> bool:
        """Count one line of `event` from `address`; return whether to write it."""
        if now_s - self._window_start_s >= _WINDOW_S:
            held = sum(count - self._lines_max for count in self._counts.values() if count > self._lines_max)
            if held:
                log_event(logging.WARNING, "log-lines-held-back", count=held)
            self._window_start_s = now_s
            self._counts.clear()
        key = (event, address) if len(self._counts) < _KEYS_MAX else (event, "")
        count = self._counts[key] = self._counts.get(key, 0) + 1
        return count <= self._lines_max

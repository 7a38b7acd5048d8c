"""One line per event on standard error, in a form that no peer can forge or flood."""

import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, final

from maxam.error_codes import INTERNAL, code_of

_LOGGER: Final = logging.getLogger("maxam")
_VALUE_CHARACTERS_MAX: Final = 200
_KEYS_MAX: Final = 10_000  # addresses remembered within one minute
_WINDOW_S: Final = 60.0
_LIBRARY_LINES_PER_MINUTE_MAX: Final = 10  # of one logger of another library
_PRIORITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))

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
    """Log one event as `event key=value ...`; values that are None are left out. See `_line` for `error`."""
    if _LOGGER.isEnabledFor(level):
        _LOGGER.log(level, "%s", _Event(event, values))


def log_bug(event: str, error: BaseException, /, **values: object) -> None:
    """Log an unexpected error, with its traceback."""
    _LOGGER.error("%s", _Event(event, {**values, "error_code": INTERNAL}), exc_info=error)


@final
class _Event:
    """An event with its values, as a formatter writes it. One with an `error` gets its `error_code`.

    The code is that of an exception, else the event's name. As a text it is `event key=value ...`.
    """

    def __init__(self, event: str, values: Mapping[str, object]) -> None:
        error = values.get("error")
        if error is not None and "error_code" not in values:
            values = {**values, "error_code": code_of(error) if isinstance(error, BaseException) else event}
        self.event: Final = event
        self.values: Final = {key: value for key, value in values.items() if value is not None}

    def __str__(self) -> str:
        return " ".join([self.event, *(f"{key}={clean(value)}" for key, value in self.values.items())])

    def fields(self) -> dict[str, object]:
        """Return event and values as JSON has them."""
        return {"event": self.event, **{key: _json_value(value) for key, value in self.values.items()}}


def _json_value(value: object) -> object:
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[:_VALUE_CHARACTERS_MAX] + "…"


@final
class _Formatter(logging.Formatter):
    """`time level event key=value ...`; text of other libraries is escaped, tracebacks follow on lines of their own."""

    def __init__(self, priorities: bool) -> None:
        """Make one; with `priorities` each line begins with its priority, as systemd's journal reads it."""
        super().__init__()
        self._priorities: Final = priorities
        self.json = False  # one object a line instead

    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        line = self._json(record, stamp) if self.json else self._text(record, stamp)
        if self._priorities:
            priority = next((f"<{number}>" for level, number in _PRIORITIES if record.levelno >= level), "<7>")
            line = priority + line.replace("\n", f"\n{priority}")
        return line

    def _json(self, record: logging.LogRecord, stamp: str) -> str:
        found = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if isinstance(found, _Event):
            fields = found.fields()
        else:
            fields = {"event": "library", "name": record.name, "text": _json_value(record.getMessage())}
        fields = {"at": stamp, "level": record.levelname.lower(), **fields}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        # ASCII without control characters: \x7f too, which JSON itself allows
        return json.dumps(fields, separators=(",", ":")).replace("\x7f", "\\u007f")

    def _text(self, record: logging.LogRecord, stamp: str) -> str:
        message = record.getMessage()
        if record.name != _LOGGER.name:
            message = f"library name={clean(record.name)} text={clean(message)}"
        line = f"{stamp} {record.levelname.lower()} {message}"
        if record.exc_info:
            # Indented, so that a line at the margin is always an event.
            line += "\n" + "\n".join(f"  {escape(part)}" for part in self.formatException(record.exc_info).splitlines())
        return line


@final
class _LibraryLimit(logging.Filter):
    """Let few records of other libraries through, and no traceback of an error of the system: some log one ten times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._limit: Final = LogLimit(_LIBRARY_LINES_PER_MINUTE_MAX)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        if record.name.partition(".")[0] == _LOGGER.name:
            return True
        if record.exc_info and isinstance(record.exc_info[1], OSError):
            record.exc_info = None
        return self._limit.admit("library", record.name, time.monotonic())


def _is_journal(stream: str) -> bool:
    """Return whether standard error is systemd's journal, which it names by device and inode."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


def start_logging() -> None:
    """Send all logging of the process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(_is_journal(os.environ.get("JOURNAL_STREAM", ""))))
    handler.addFilter(_LibraryLimit())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    _LOGGER.setLevel(logging.INFO)


def set_log_format(name: Literal["text", "json"]) -> None:
    """Choose the form of the lines that follow, after `start_logging`."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, _Formatter):
            handler.formatter.json = name == "json"


@final
class LogLimit:
    """Let at most a number of lines a minute through for one key, and report how many were suppressed."""

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

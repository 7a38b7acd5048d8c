"""Lines of the audit log for operators, read from its files while the gateway writes them."""

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

from maxam.audit_chain import first_sequence

SEARCHED_MAX: Final = 2000  # lines of one request: some 10 ms of a thread
Line = dict[str, Any]


def read_lines(folder: Path, after: int, most: int, wanted: Callable[[Line], bool]) -> tuple[list[Line], int, bool]:
    """Return the first lines after a sequence that are wanted.

    Args:
        folder: Folder of the audit log.
        after: Sequence of the line before the first one that is searched.
        most: Lines that are returned at most.
        wanted: Returns whether a line is.

    Returns:
        The lines, the sequence of the last one that was searched, and whether there may be more.

    Raises:
        OSError: A file cannot be read.
    """
    found: list[Line] = []
    searched, last = 0, after
    names = _files(folder)
    begin = max([at for at, name in enumerate(names) if _first(name) <= after + 1], default=0)
    for name in names[begin:]:
        with suppress(FileNotFoundError), (folder / name).open("rb") as stream:  # the oldest file may just have gone
            for raw in islice(stream, max(0, after + 1 - _first(name)), None):
                line = _parsed(raw)
                if line is None:
                    continue  # half a line: the gateway is writing it
                last = line["sequence"]
                searched += 1
                if wanted(line):
                    found.append(line)
                if len(found) == most or searched == SEARCHED_MAX:
                    return found, last, True
    return found, last, False


def sequence_before(folder: Path, since: str) -> int:
    """Return a sequence that is below those of all lines since a time, which is in the form of `at`."""
    before = 0
    for name in _files(folder):
        with suppress(FileNotFoundError), (folder / name).open("rb") as stream:
            line = _parsed(stream.readline())
            if line is None or str(line.get("at")) >= since:
                return before
            before = _first(name) - 1
    return before


def newest_sequence(folder: Path) -> int:
    """Return the sequence of the newest line. 0 if there is none."""
    names = _files(folder)
    if not names:
        return 0
    with (folder / names[-1]).open("rb") as stream:
        return _first(names[-1]) - 1 + sum(_parsed(raw) is not None for raw in stream)


def _files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if first_sequence(path.name) is not None)


def _first(name: str) -> int:
    return first_sequence(name) or 0


def _parsed(raw: bytes) -> Line | None:
    """Return a whole line. None for any other."""
    if not raw.endswith(b"\n"):
        return None
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and isinstance(line.get("sequence"), int) else None

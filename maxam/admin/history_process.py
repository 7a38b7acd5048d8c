"""Read the changes of one topic out of a journal, in a process of its own: `python -m maxam.admin.history_process`.

To read a segment, and to decode values, keeps Python busy for long: the gateway's process has better things to do.
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import trio

from maxam.admin.journal_schemas import JournalSchemas
from maxam.admin.topic_rows import WITHHELD, may_be_personal, topic_row, value_fields
from maxam.compiled import child_environment
from maxam.errors import ConfigurationError, MaxamError
from maxam.globs import destination_problem
from maxam.journal.history import Bounds, read_page
from maxam.records import Change

READ_S_MAX: Final = 8.0  # of one page, after which no further segment is begun; well below the time limit of a request
READ_BYTES_MAX: Final = 1 << 30  # of segments that one page reads
VALUE_BYTES_MAX: Final = 131_072  # of the headers and bodies of one page, but for the first one
DECODED_BYTES_MAX: Final = 65_536  # a longer body is shown as it is
SHOWN_CHARACTERS_MAX: Final = 1 << 20  # so is one whose value takes more as JSON
# Of the changes of one page as JSON, but for the first one: few bytes can be much text, and the gateway holds a page in memory.
PAGE_CHARACTERS_MAX: Final = 4 << 20
_NICENESS: Final = 15
_NO_TEXT: Final = "is not in the journal's folder `schemas`"
_REFUSED: Final = 2  # the exit code when the folder cannot be read
_PERSONAL: Final = 3  # and that when all is well, and personal fields may be in the page


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """What is asked for.

    Attributes:
        folder: The journal's.
        destination: The topic.
        before: Only lower revisions are wanted; None for the newest.
        limit: Changes at most.
        values: Whether values are wanted.
        withheld: Whether they are not for whoever asks.
        with_pii: Whether what schemas mark as personal is wanted too.
    """

    folder: str
    destination: str
    before: int | None
    limit: int
    values: bool
    withheld: bool
    with_pii: bool = True


async def history(request: HistoryRequest) -> tuple[bytes, bool]:
    """Return a page as JSON, and whether personal fields may be in it; ended when cancelled.

    Raises:
        ConfigurationError: The journal cannot be read.
        OSError: There is no process to be had, or it was ended from without.
    """
    done = await trio.run_process(
        [sys.executable, "-m", "maxam.admin.history_process"],
        stdin=json.dumps(asdict(request)).encode(),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env=child_environment(),
    )
    if done.returncode == _REFUSED:
        raise ConfigurationError(done.stderr.decode(errors="replace").strip())
    if done.returncode not in {0, _PERSONAL}:
        last = done.stderr[-200:].decode(errors="replace")
        raise OSError(f"the process that reads the journal ended with {done.returncode}: {last}")
    return done.stdout, done.returncode == _PERSONAL


def page(request: HistoryRequest) -> dict[str, Any]:
    """Read a page, here and now.

    Returns:
        `changes` (newest first), `next` (None: there is nothing more), `problems`, whether something is `lost`, and whether the
        values may hold personal fields (`pii_given`).

    Raises:
        MaxamError: It is not the folder of a journal, or no topic can be called so.
        OSError: It cannot be read.
    """
    destination = request.destination.encode(errors="surrogateescape")
    problem = destination_problem(destination, len(destination))  # how long one may be is the gateway's to say
    if problem is not None:
        raise ConfigurationError(problem)
    deadline_s = time.monotonic() + READ_S_MAX
    bounds = Bounds(request.limit, VALUE_BYTES_MAX, READ_BYTES_MAX, lambda: time.monotonic() > deadline_s)
    found = read_page(request.folder, destination, request.before, bounds)
    schemas = JournalSchemas(Path(request.folder))
    rows: list[dict[str, object]] = []
    before, characters = found.before, 0
    for change in found.changes:
        row = _row(change, schemas, request)
        characters += len(json.dumps(row))
        if rows and characters > PAGE_CHARACTERS_MAX:
            before = change.revision + 1
            break
        rows.append(row)
    given = request.values and request.with_pii and not request.withheld
    return {
        "changes": rows,
        "pii_given": given and any(may_be_personal(one, schemas.text(one.judgement)) for one in found.changes),
        "next": before,
        "lost": any(problem.lost for problem in found.problems),
        "problems": [
            {
                "kind": problem.kind,
                "file": os.path.relpath(problem.path, request.folder),
                "offset": problem.offset,
                "first": problem.first or None,
                "last": problem.last or None,
                "text": problem.text,
                "lost": problem.lost,
            }
            for problem in found.problems
        ],
    }


def _row(change: Change, schemas: JournalSchemas, request: HistoryRequest) -> dict[str, object]:
    row = topic_row(change) | {"deleted": change.deleted}
    if not request.values:
        return row
    if request.withheld:
        return row | WITHHELD
    if change.deleted:
        headers = [[name.decode(), value.decode()] for name, value in change.headers]
        return row | {"value_state": "deleted", "headers": headers}
    text = schemas.text(change.judgement)
    shown = value_fields(change, text, DECODED_BYTES_MAX, _NO_TEXT, with_pii=request.with_pii)
    if "value" in shown and len(json.dumps(shown["value"])) > SHOWN_CHARACTERS_MAX:
        why = f"its value takes more than {SHOWN_CHARACTERS_MAX} characters"
        shown = value_fields(change, text, DECODED_BYTES_MAX, _NO_TEXT, why, with_pii=request.with_pii)
    return row | shown


def main() -> int:
    """Run the process: the request comes on standard input, the page goes to standard output."""
    os.nice(_NICENESS)
    request = HistoryRequest(**json.load(sys.stdin))
    try:
        found = page(request)
    except MaxamError as error:
        sys.stderr.write(str(error))
        return _REFUSED
    except OSError as error:
        sys.stderr.write(f"{error.filename or 'the disk'}: {error.strerror}")
        return _REFUSED
    json.dump(found, sys.stdout, separators=(",", ":"))
    return _PERSONAL if found["pii_given"] else 0


if __name__ == "__main__":
    sys.exit(main())

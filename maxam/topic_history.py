"""Read the changes of one topic out of a journal, in a process of its own: `python -m maxam.topic_history`.

To read a segment, and to decode values, keeps Python busy for long: the gateway's process has better things to do.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, final

import trio

from maxam.avro.json.rows import WITHHELD, may_be_personal, topic_row, value_fields
from maxam.background import enter_background
from maxam.compiled import child_environment
from maxam.errors import ConfigurationError, MaxamError
from maxam.globs import destination_problem
from maxam.journal.history import Bounds, read_page
from maxam.journal.schema_texts import SchemaTexts
from maxam.records import Change

READ_S_MAX: Final = 8.0  # of one page, after which no further segment is begun; well below the time limit of a request
READ_BYTES_MAX: Final = 1 << 30  # of segments that one page reads
VALUE_BYTES_MAX: Final = 131_072  # of the headers and bodies of one page, except those of the first one
DECODED_BYTES_MAX: Final = 65_536  # a longer body is shown as it is
SHOWN_CHARACTERS_MAX: Final = 1 << 20  # so is one whose value takes more as JSON
# Of the changes of one page as JSON, except the first one. Few bytes can be much text, and the gateway holds a page in memory.
PAGE_CHARACTERS_MAX: Final = 4 << 20
_NICENESS: Final = 15
_NO_TEXT: Final = "is not in the journal's folder `schemas`"
_REFUSED: Final = 2  # the exit code when the folder cannot be read
_PERSONAL: Final = 3  # and that when all is well, and personal fields may be in the page


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """The request for a page.

    Attributes:
        folder: The journal's.
        destination: The topic.
        before: Only lower revisions are wanted. None for the newest.
        limit: Changes at most.
        values: Whether values are wanted.
        withheld: True if the client may not receive them.
        with_pii: Whether fields are wanted that schemas mark as personal.
        versions: Texts of the registry in force by type and version. The journal does not hold the version of a text.
    """

    folder: str
    destination: str
    before: int | None
    limit: int
    values: bool
    withheld: bool
    with_pii: bool = True
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


async def history(request: HistoryRequest) -> tuple[bytes, bool]:
    """Return a page as JSON, and whether personal fields may be in it; ended when cancelled.

    Raises:
        ConfigurationError: The journal cannot be read.
        OSError: There is no process to be had, or it was ended from without.
    """
    done = await trio.run_process(
        [sys.executable, "-m", "maxam.topic_history"],
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
    problem = destination_problem(destination, len(destination))  # the gateway decides on the maximum length
    if problem is not None:
        raise ConfigurationError(problem)
    deadline_s = time.monotonic() + READ_S_MAX
    bounds = Bounds(request.limit, VALUE_BYTES_MAX, READ_BYTES_MAX, lambda: time.monotonic() > deadline_s)
    found = read_page(request.folder, destination, request.before, bounds)
    schemas = _Schemas(request)
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
        "pii_given": given and any(may_be_personal(one, schemas.marked(one)) for one in found.changes[: len(rows)]),
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


@final
class _Schemas:
    """The texts by which the values of one topic were judged, read as they are needed."""

    def __init__(self, request: HistoryRequest) -> None:
        self._folder: Final = request.folder
        self._texts: Final = SchemaTexts()
        self._read: Final[set[str]] = set()
        for name, minors in request.versions.items():
            for minor, text in minors.items():
                self._texts.add(name, minor, text.encode())

    def marked(self, change: Change) -> bytes | None:
        """Return the text that judged a value, with all marks of personal fields; None if there is none."""
        validation = change.validation
        if not validation.schema:
            return None
        if validation.schema not in self._read:
            self._read.add(validation.schema)
            self._texts.read(self._folder, validation.schema)
        return self._texts.marked(validation.schema, validation.schema_version, validation.schema_fingerprint)


def _row(change: Change, schemas: _Schemas, request: HistoryRequest) -> dict[str, object]:
    row = topic_row(change) | {"deleted": change.deleted}
    if not request.values:
        return row
    if request.withheld:
        return row | WITHHELD
    if change.deleted:
        headers = [[name.decode(), value.decode()] for name, value in change.headers]
        return row | {"value_state": "deleted", "headers": headers}
    text = schemas.marked(change)
    shown = value_fields(change, text, DECODED_BYTES_MAX, _NO_TEXT, with_pii=request.with_pii)
    if "value" in shown and len(json.dumps(shown["value"])) > SHOWN_CHARACTERS_MAX:
        why = f"its value takes more than {SHOWN_CHARACTERS_MAX} characters"
        shown = value_fields(change, text, DECODED_BYTES_MAX, _NO_TEXT, why, with_pii=request.with_pii)
    return row | shown


def main() -> int:
    """Run the process: the request comes on standard input, the page goes to standard output."""
    enter_background(_NICENESS)
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

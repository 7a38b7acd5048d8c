"""Which part of a journal can be read, and what is wrong with the rest. It imports no library, so jobs without Spark start fast."""

import functools
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from maxam.config import Limits
from maxam.errors import JournalError
from maxam.globs import Glob, compile_glob
from maxam.journal import archive as archives
from maxam.journal.archive import Archive
from maxam.journal.disk import OsDisk
from maxam.journal.index import load
from maxam.journal.listing import Problem, Records
from maxam.journal.names import Segment
from maxam.pipeline.errors import PipelineError

__all__ = ["Alternatives", "Archive", "Problem", "examine", "globs_of", "may_hold", "micros"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Alternatives = list[tuple[bytes, bool]]  # a destination, or with True how it begins


def may_hold(folder: str, segment: Segment, wanted: Iterable[Alternatives]) -> bool:
    """Return True if a sealed segment can hold changes of the wanted destinations, as far as there is an index of it."""
    wanted = list(wanted)
    if not wanted:
        return True
    index = load(folder, Segment(segment.first, segment.last, segment.path), OsDisk())
    if index is None:
        return True
    return all(
        any(index.may_hold_prefix(name) if begins else index.may_hold(name) for name, begins in alternatives)
        for alternatives in wanted
    )


def micros(at: datetime) -> int:
    """Return microseconds since the epoch; a time without a zone is in UTC, the zone of the session."""
    return ((at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def examine(
    spark: object,  # noqa: ARG001 - part of the contract: a cluster may do it some day
    folder: str | os.PathLike[str],
    *,
    records: Records = "changes",
    from_revision: int | None = None,
    to_revision: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    destinations: Iterable[str | Glob] | None = None,
) -> Archive:
    """Prove every block in the range, and return the readable part and the problems.

    Reads the files once, several at a time, without decoding them. Memory does not grow with the archive. Segments out of the
    range are not read.

    Args:
        spark: Not needed.
        folder: The journal's.
        records: Kind of the records to read.
        from_revision: First one wanted. None for the first one that is there.
        to_revision: Last one wanted.
        since: First time wanted, with a zone.
        until: Time before which; with a zone.
        destinations: Globs; segments that hold no change of any are left out, as far as there are indexes.

    Raises:
        PipelineError: It is not the folder of a journal, or cannot be read; or a time has no zone.
        GlobError: A glob is malformed.
    """
    root = os.path.abspath(folder)  # noqa: PTH100 - a string is wanted
    try:
        return archives.examine(
            root,
            records,
            from_revision,
            to_revision,
            _micros(since),
            _micros(until),
            None if destinations is None else functools.partial(_may_hold, root, records, globs_of(destinations)),
        )
    except (JournalError, OSError) as error:
        raise PipelineError(str(error)) from error


def globs_of(destinations: Iterable[str | Glob]) -> list[Glob]:
    """Return compiled globs. A single one stands for itself."""
    if isinstance(destinations, str | Glob):
        destinations = [destinations]
    return [one if isinstance(one, Glob) else compile_glob(one, Limits()) for one in destinations]


def _may_hold(folder: str, records: Records, globs: list[Glob], segment: Segment) -> bool:
    alternatives = [(glob.prefix.encode(), glob.prefix != glob.text) for glob in globs]
    return records != "changes" or may_hold(folder, segment, [alternatives])


def _micros(at: datetime | None) -> int | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise PipelineError(f"the time {at} has no zone: give it one, such as datetime.UTC")
    return micros(at)

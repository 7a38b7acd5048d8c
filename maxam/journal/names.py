"""The names of the files in a journal's folder, and lists of its segments and snapshots.

```
lock                                   held by the process that writes
reserve                                room for acknowledgements on a full disk
segments/<first>-<last>.avro           sealed: final, ends with an end mark
segments/<first>.open.avro             being written; made by the first write after a roll or a start
segments/<...>.open.avro.torn-<offset> a torn tail, which a start cut off
snapshots/reserve.<n>                  room for the next snapshots, which are written into it
snapshots/<revision>.avro              stands for all segments up to that revision, which one of them ends with
schemas/<sha256>.avsc                  self-contained texts
rejected/...                           rejected SENDs, with a counter of their own (see `rejects`)
index/<first>-<last>.index             the contents of a sealed segment in short (see `index`); never needed
damaged/<when>/...                     files that a repair replaced, and its report (see `repair`)
restoring                              a backup is being copied here: no journal yet (see `backup`)
cluster                                what a member of a cluster noted (see `cluster.membership`)
followed                               what an observer heard of its source last (see `cluster.promotion`)
promoted                               the decision to go on with the journal of an observer, for the audit log of the next start
decisions                              commands that were run on the stopped journal, likewise
renew-incarnation                      the next start gives the journal a new incarnation: it was restored, or a repair lost revisions
```
"""

import os
import re
from dataclasses import dataclass
from typing import Final

from maxam.journal.disk import Disk

OPEN: Final = ".open.avro"
SEALED: Final = ".avro"
RESTORING: Final = "restoring"
RENEW: Final = "renew-incarnation"
FOLLOWED: Final = "followed"
MEMBERSHIP: Final = "cluster"
PROMOTION: Final = "promoted"
DECISIONS: Final = "decisions"
RESERVE: Final = "reserve."  # begins the names of files that keep room for a snapshot
_SEGMENT: Final = re.compile(r"([0-9]{20})(?:-([0-9]{20})|\.open)\.avro")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A segment of a journal.

    Attributes:
        first: Revision of its first change.
        last: Of its last change; 0 while the gateway writes it.
        path: The file. An open one moves when it is sealed.
    """

    first: int
    last: int
    path: str

    @property
    def open(self) -> bool:
        """True while the gateway may still write it. A sealed segment never changes, and any Avro reader accepts all of it."""
        return self.last == 0


def segment_path(folder: str, first: int, last: int = 0) -> str:
    """Return the path of a segment; `last` is 0 for an open one."""
    return f"{folder}/{first:020}-{last:020}{SEALED}" if last else f"{folder}/{first:020}{OPEN}"


def sealed_segments(folder: str | os.PathLike[str], disk: Disk) -> list[Segment]:
    """Return the sealed segments in order of revision."""
    return list_segments(f"{os.fspath(folder)}/segments", disk)[0]


def list_segments(folder: str, disk: Disk) -> tuple[list[Segment], list[Segment]]:
    """Return the sealed segments of a folder and the open ones, each in order. There should be one open one, with 0 as `last`."""
    sealed: list[Segment] = []
    opened: list[Segment] = []
    for name in disk.names(folder):
        segment = parse_segment_name(folder, name)
        if segment is not None:
            (sealed if segment.last else opened).append(segment)
    return sorted(sealed), sorted(opened)


def parse_segment_name(folder: str, name: str) -> Segment | None:
    """Return the segment of a name that the gateway gives, 0 as last for an open one; None for any other file."""
    found = _SEGMENT.fullmatch(name)
    return None if found is None else Segment(int(found[1]), int(found[2] or 0), f"{folder}/{name}")


def parse_snapshot_name(name: str) -> int | None:
    """Return the last revision that a snapshot of this name stands for; None for any other file."""
    stem = name.removesuffix(SEALED)
    return int(stem) if stem != name and stem.isascii() and stem.isdecimal() else None


def list_snapshots(folder: str, disk: Disk) -> list[tuple[int, str]]:
    """Return revision and path of the snapshots, oldest first."""
    found = [(parse_snapshot_name(name), f"{folder}/{name}") for name in disk.names(folder)]
    return sorted((revision, path) for revision, path in found if revision is not None)


def is_torn_tail(name: str) -> bool:
    """Return True if a name is that of an end that a start cut off and kept."""
    return ".open.avro.torn-" in name or name.endswith(".open.avro.damaged")

"""The size of the journal and the age of its newest snapshot, measured at intervals, as a scrape must not wait for the disk."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import trio

from maxam.journal.names import parse_segment_name, parse_snapshot_name

_INTERVAL_S: Final = 15.0
_SEGMENTS: Final = "segments"
_SNAPSHOTS: Final = "snapshots"
_REJECTED: Final = "rejected"
_OTHER: Final = "other"  # indexes, schemas, the reserve, torn tails
PARTS: Final = (_SEGMENTS, _SNAPSHOTS, _REJECTED, _OTHER)


@dataclass(frozen=True, slots=True)
class Found:
    """The contents of the journal's folder.

    Attributes:
        bytes_of: Size of each part.
        segments: Number of segments, the open one included.
        snapshot_at_s: Time at which the newest snapshot was written, seconds since the epoch. 0.0 if there is none.
    """

    bytes_of: dict[str, int]
    segments: int
    snapshot_at_s: float


def measure(folder: Path) -> Found:
    """Measure all files of a journal. Files that vanish meanwhile do not count. Blocks. Raises OSError when there is no folder."""
    bytes_of = dict.fromkeys(PARTS, 0)
    segments = 0
    snapshots: list[tuple[int, float]] = []
    for root, _, names in os.walk(folder, onerror=_fail):
        part = Path(root).relative_to(folder).parts[:1]
        kind = part[0] if part and part[0] in bytes_of else _OTHER
        for name in names:
            with suppress(FileNotFoundError):
                status = (Path(root) / name).stat()
                bytes_of[kind] += status.st_size
                segments += kind == _SEGMENTS and parse_segment_name(root, name) is not None
                revision = parse_snapshot_name(name) if kind == _SNAPSHOTS else None
                if revision is not None:
                    snapshots.append((revision, status.st_mtime))
    return Found(bytes_of, segments, max(snapshots)[1] if snapshots else 0.0)


def _fail(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


@final
class JournalSize:
    """Measures the journal at intervals.

    Attributes:
        found: Result of the last measurement. Empty before the first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self.found = Found(dict.fromkeys(PARTS, 0), 0, 0.0)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            with suppress(OSError):  # a disk that cannot even be asked is the committer's to meet
                # a file system that hangs is not waited for at the end
                self.found = await trio.to_thread.run_sync(measure, self._folder, abandon_on_cancel=True)
            await trio.sleep(_INTERVAL_S)

"""How much of its disk the journal may use, so that a publisher that fills the disk cannot stop the gateway for good.

Three rules keep a full disk able to free itself. The archive has at most a share of the disk. A segment has at most a small part of
it, so that whole segments can be removed. Room for the next snapshot is reserved as files of their own, because segments can be removed
only once a snapshot stands for them.
"""

import os
from pathlib import Path
from typing import Final, final

from maxam.broker.store import Store
from maxam.config import JournalSettings

SEGMENTS_PER_DISK_MIN: Final = 32  # the largest segment is this part of the disk
_SEGMENT_BYTES_MIN: Final = 65_536  # the least that `segment_bytes_max` may be
_SAMPLE_TOPICS: Final = 1000  # topics read for one estimate: some 1 ms of the event loop
_SAMPLE_MEMORY_TOPICS: Final = 100_000  # older samples count half beyond this number
_CHANGE_BYTES: Final = 100  # of a record beside destination and content: revision, time, principal, validation
_MARGIN: Final = 1.25  # sessions, and what comes until the snapshot is built
_MARGIN_BYTES: Final = 8_388_608  # for a few large values that come before the next estimate
_MARGIN_PER_DISK: Final = 64  # but no more than this part of the disk


def disk_bytes(folder: Path) -> int:
    """Return the size of the disk that holds a folder, or will hold it; raises OSError."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize


def retention_bytes_max(settings: JournalSettings, disk: int) -> int:
    """Return how many bytes the archive may have on a disk of this size. 0 means any number."""
    share = int(settings.retention_disk_share_max * disk)
    if not settings.retention_bytes_max or not share:
        return settings.retention_bytes_max
    return min(settings.retention_bytes_max, share)


def segment_bytes_max(settings: JournalSettings, disk: int) -> int:
    """Return how many bytes a segment may have on a disk of this size."""
    return min(settings.segment_bytes_max, max(disk // SEGMENTS_PER_DISK_MIN, _SEGMENT_BYTES_MIN))


def wanted_bytes(settings: JournalSettings) -> int:
    """Return the least size of a disk on which the configuration can be used to its limits."""
    return settings.retention_bytes_max + settings.rejected_bytes_max + settings.free_bytes_min


@final
class SnapshotSize:
    """Estimates the size of the next snapshot from the topics, some of them at a time."""

    def __init__(self, store: Store) -> None:
        """Make one that has seen nothing."""
        self._store: Final = store
        self._cursor: bytes | None = None
        self._topics = 0
        self._bytes = 0

    def look(self, newest_bytes: int, disk: int) -> int:
        """Measure the next topics. Return the estimate.

        Args:
            newest_bytes: Size of the newest snapshot, which bounds the estimate from below.
            disk: Size of the disk.
        """
        topics = self._store.topics
        names = self._store.names_slice(b"", self._cursor, _SAMPLE_TOPICS)
        self._cursor = names[-1] if len(names) == _SAMPLE_TOPICS else None
        self._topics += len(names)
        self._bytes += sum(len(name) + len(topics[name].change.content) + _CHANGE_BYTES for name in names)
        if self._topics > _SAMPLE_MEMORY_TOPICS:
            self._topics //= 2
            self._bytes //= 2
        values = self._bytes * len(topics) // self._topics if self._topics else 0
        return int(max(values, newest_bytes) * _MARGIN) + min(_MARGIN_BYTES, disk // _MARGIN_PER_DISK)

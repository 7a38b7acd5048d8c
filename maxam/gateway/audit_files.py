"""The files of the audit log: numbered and chained lines, in files that follow one another, on a disk that may fail."""

import contextlib
import json
import logging
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final, final

from maxam.audit_chain import GENESIS, LINE_BYTES_MAX, Anchor, digest, file_name, first_sequence, write_line
from maxam.config import AuditSettings
from maxam.gateway.log import log_event
from maxam.journal.disk import Disk

RETRY_S: Final = 30.0  # between attempts to write to a disk that failed
LOST: Final = "lines-lost"
CUT: Final = "unfinished-line-cut"


def stamp(at_s: float) -> str:
    """Return a time, in seconds since the epoch, as it stands in lines."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@final
class AuditFiles:
    """Writes lines to the files of a folder, and goes on when the disk fails. Belongs to one thread, and gets the time as an argument.

    Attributes:
        head: The last line that was written.
        lines: Number of lines written since the start.
        lost: Number of lines that could not be written.
        failure: Why nothing can be written. Empty while it can.
    """

    def __init__(self, folder: Path, disk: Disk, settings: AuditSettings) -> None:
        self.head = Anchor(0, GENESIS)
        self.lines = 0
        self.lost = 0
        self.failure = ""
        self._folder: Final = folder
        self._disk: Final = disk
        self._settings: Final = settings
        self._unreported = 0  # lost lines that no line reports yet
        self._lock = -1
        self._handle = -1
        self._size = 0  # of whole lines in the open file
        self._opened_at_s = 0.0  # about when its first line was written
        self._retry_at_s = 0.0
        self._unsynced = False

    def write(self, batch: list[dict[str, object]], now_s: float, wall: str) -> None:
        """Write lines, or count them as lost.

        Args:
            batch: Their contents, in order.
            now_s: Monotonic seconds.
            wall: The time, for lines about the log itself.
        """
        if not self._open(now_s, wall):
            self._lose(len(batch))
            return
        if self._unreported:
            batch = [{"at": wall, "event": LOST, "outcome": "failed", "count": self._unreported}, *batch]
        head = self.head
        parts: list[bytes] = []
        for facts in batch:
            line = write_line(head.sequence + 1, head.sha256, facts)
            if len(line) > LINE_BYTES_MAX:
                line = write_line(
                    head.sequence + 1, head.sha256, {"at": wall, "event": LOST, "outcome": "too long", "count": 1}
                )
            head = Anchor(head.sequence + 1, digest(line))
            parts += [line, b"\n"]
        data = b"".join(parts)
        try:
            if self._size and (
                self._size + len(data) > self._settings.file_bytes_max
                or now_s - self._opened_at_s >= self._settings.file_age_s_max
            ):
                self._rotate(now_s)
            at = 0
            while at < len(data):
                at += self._disk.pwrite(self._handle, data[at:], self._size + at)
        except OSError as error:
            self._fail(error, now_s)
            self._lose(len(batch) - (1 if self._unreported else 0))
            return
        self._unsynced = True
        self._size += len(data)
        self.head = head
        self.lines += len(batch)
        if self._unreported:
            log_event(logging.WARNING, "audit-works", lost=self._unreported)
            self._unreported = 0

    def sync(self, now_s: float) -> None:
        """Make what was written durable."""
        if self._unsynced and self._handle >= 0:
            self._unsynced = False
            try:
                self._disk.fdatasync(self._handle)
            except OSError as error:
                self._fail(error, now_s)

    def close(self, now_s: float) -> None:
        """Sync, and close the file and the lock."""
        self.sync(now_s)
        self._close_handles()

    def _lose(self, count: int) -> None:
        self.lost += count
        self._unreported += count

    def _open(self, now_s: float, wall: str) -> bool:
        if self._handle >= 0:
            return True
        if now_s < self._retry_at_s:
            return False
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            if self._lock < 0:
                self._lock = self._disk.lock(str(self._folder / "lock"))
            self._resume(now_s, wall)
        except BlockingIOError:
            self._fail(OSError(f"another process writes to {self._folder}"), now_s)
        except OSError as error:
            self._fail(error, now_s)
        if self._handle >= 0:
            self.failure = ""
        return self._handle >= 0

    def _resume(self, now_s: float, wall: str) -> None:
        """Go on after the last line that there is."""
        names = sorted(name for name in self._disk.names(str(self._folder)) if first_sequence(name) is not None)
        head, cut = Anchor(0, GENESIS), 0
        while names:
            path = str(self._folder / names[-1])
            last, end, size = self._last_line(path)
            cut += size - end
            torn = b"" if size == end else self._disk.read(path, end, min(size - end, 2 * LINE_BYTES_MAX))
            if last is None:  # not even one: the file was made, and its first line never finished
                if size:
                    self._note_cut(path, end, torn)
                if len(names) > 1 or first_sequence(names[-1]) == 1:
                    self._disk.unlink(path)
                    names.pop()
                    continue
                head = Anchor((first_sequence(names[-1]) or 1) - 1, GENESIS)
                break
            head = Anchor(_sequence_of(last, names[-1]), digest(last))
            handle = self._disk.open(path)
            try:
                if size > end:
                    self._note_cut(path, end, torn)
                    self._disk.truncate(handle, end)
            except OSError:
                self._disk.close(handle)
                raise
            if end < self._settings.file_bytes_max:
                self._handle, self._size = handle, end
            else:
                self._disk.close(handle)
            break
        self.head = head
        if self._handle < 0:
            self._create(head.sequence + 1)
        self._opened_at_s = now_s
        if cut:
            self.write([{"at": wall, "event": CUT, "outcome": "cut", "bytes": cut}], now_s, wall)

    def _note_cut(self, path: str, offset: int, torn: bytes) -> None:
        fingerprint = sha256(torn).hexdigest()
        log_event(logging.WARNING, "audit-tail-cut", path=path, offset=offset, length=len(torn), sha256=fingerprint)

    def _last_line(self, path: str) -> tuple[bytes | None, int, int]:
        """Return the last whole line of a file, None when there is none; where it ends, and where the file does."""
        size = self._disk.size(path)
        start, data = size, b""
        while start > 0 and data.count(b"\n") < 2:
            length = min(start, LINE_BYTES_MAX)
            start -= length
            data = self._disk.read(path, start, length) + data
        end = data.rfind(b"\n")
        if end < 0:
            return None, 0, size
        begin = data.rfind(b"\n", 0, end) + 1
        return data[begin:end], start + end + 1, size

    def _rotate(self, now_s: float) -> None:
        """Begin a new file, and remove the oldest ones above `files_max`."""
        self.sync(now_s)
        if self._handle < 0:
            raise OSError(self.failure)
        self._disk.close(self._handle)
        self._handle = -1
        self._create(self.head.sequence + 1)
        self._opened_at_s = now_s
        names = sorted(name for name in self._disk.names(str(self._folder)) if first_sequence(name) is not None)
        for name in names[: -self._settings.files_max]:
            self._disk.unlink(str(self._folder / name))
        self._disk.fsync_folder(str(self._folder))

    def _create(self, sequence: int) -> None:
        self._handle = self._disk.create(str(self._folder / file_name(sequence)))
        self._size = 0
        self._disk.fsync_folder(str(self._folder))

    def _fail(self, error: OSError, now_s: float) -> None:
        """Close the file, so that the next attempt reads its real state."""
        if self._handle >= 0:
            with contextlib.suppress(OSError):  # half a line, which is cut off at the next opening at the latest
                self._disk.truncate(self._handle, self._size)
            with contextlib.suppress(OSError):
                self._disk.close(self._handle)
            self._handle = -1
        self._unsynced = False
        self._retry_at_s = now_s + RETRY_S
        if not self.failure:
            action = f"events are counted, not written; tried again every {RETRY_S:g} s"
            log_event(logging.ERROR, "audit-failed", folder=self._folder, error=error, action=action)
        self.failure = str(error)

    def _close_handles(self) -> None:
        for handle in (self._handle, self._lock):
            if handle >= 0:
                with contextlib.suppress(OSError):
                    self._disk.close(handle)
        self._handle = self._lock = -1


def _sequence_of(line: bytes, name: str) -> int:
    """Return the number of a line; of one that is damaged, something that no line has."""
    try:
        sequence = json.loads(line)["sequence"]
    except (ValueError, TypeError, KeyError, RecursionError):
        sequence = None
    # `audit verify` reports the damage. Going on is all that can be done here.
    return sequence if isinstance(sequence, int) else (first_sequence(name) or 1) + 1_000_000

"""The policy file of enrolled clients at the members of a cluster.

Theory of operation. The leader appends each change of the file to the log, as an entry with the whole contents. The keeper of each
member stores the file when it comes to that entry, and the watch of files puts it into force. So the file of a member that follows the
log is as new as its journal.

A member that copies a journal misses the entries that the log has forgotten. It sets its own file aside, and announces that it is
missing. The leader logs its contents again for such a member. Until then the member claims the lead later than others.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, final

from maxam.cluster.entry import FILE_BYTES_MAX, FILES
from maxam.cluster.log import LogError
from maxam.cluster.logged import LoggedJournal
from maxam.cluster.membership import Announcement
from maxam.durable_files import replace_durably
from maxam.errors import ConfigurationError, DiskFullError, JournalError
from maxam.gateway.log import log_event
from maxam.journal.disk import is_shortage

MISSING: Final = "missing"
PRESENT: Final = "present"
STALE: Final = ".stale"  # ends the name of a file that was set aside
_MODE: Final = 0o644
_AGAIN_S: Final = 5.0  # before the contents are logged again for a member that lacks them
(_NAME,) = FILES


@final
class EnrolledFile:
    """The file `[policy] enrolled` of a member.

    Attributes:
        problem: Why the newest contents could not be stored; empty if they were.
    """

    def __init__(
        self, path: Path | None, logged: LoggedJournal, members: Callable[[], Mapping[str, Announcement]]
    ) -> None:
        """Take the file as it is.

        Args:
            path: Of the file. None if this member reads none.
            logged: Journal of the leader.
            members: Returns the newest announcements.
        """
        self.problem = ""
        self._path: Final = path
        self._logged: Final = logged
        self._members: Final = members
        self._again_s = 0.0

    @property
    def state(self) -> str:
        """PRESENT or MISSING; empty if this member reads no such file."""
        if self._path is None:
            return ""
        return PRESENT if os.path.lexists(self._path) else MISSING

    @property
    def stale(self) -> bool:
        """Whether this member lacks the file, and another one has it."""
        return self.state == MISSING and self._announced(PRESENT)

    def degraded(self) -> list[str]:
        """Return why clients that were enrolled would have no rights if this member led."""
        if self.problem:
            return [f"enrolled-file: {self.problem}"]
        return [f"enrolled-file: {self._absence()}"] if self.stale else []

    def store(self, _name: str, contents: bytes) -> None:
        """Store the contents of an entry, on the keeper's thread. Raises DiskFullError, so that it is tried again."""
        if self._path is None:
            return
        try:
            replace_durably(self._path, contents, _MODE)
        except OSError as error:
            if is_shortage(error):
                raise DiskFullError(f"no room for {self._path}: {error}") from error
            self.problem = f"[policy] enrolled {self._path} cannot be written: {error.strerror}. The gateway writes it"
            log_event(logging.ERROR, "enrolled-file-failed", file=self._path, error=error)
        else:
            self.problem = ""

    def write(self, contents: bytes) -> None:
        """Replace the file at all members. When this returns, it is in the log and stored here. Blocks.

        Raises:
            ConfigurationError: It is too large, or this member lacks what others have.
            JournalError: This member does not lead, or the log or the disk has no room.
        """
        if len(contents) > FILE_BYTES_MAX:
            raise ConfigurationError(
                f"[policy] enrolled: {len(contents)} bytes are more than a cluster replicates, {FILE_BYTES_MAX}."
                " Move principals into [policy] file"
            )
        if self.stale:
            raise ConfigurationError(self._absence())
        try:
            self._logged.keep_file(_NAME, contents)
        except LogError as error:
            raise JournalError(f"the log did not take the file of enrolled clients: {error}") from error

    def set_aside(self) -> None:
        """Set the file aside, because the log has forgotten entries that may have changed it."""
        if self._path is None:
            return
        try:
            self._path.replace(f"{self._path}{STALE}")
        except FileNotFoundError:
            pass
        except OSError as error:
            log_event(logging.ERROR, "enrolled-file-failed", file=self._path, error=error)

    @property
    def lacked(self) -> bool:
        """Whether another member lacks the file, and this one has it. After `complete` it is False for some seconds."""
        return self.state == PRESENT and time.monotonic() >= self._again_s and self._announced(MISSING)

    def complete(self) -> None:
        """Log the contents again for a member that lacks them, while this one leads. Blocks."""
        self._again_s = time.monotonic() + _AGAIN_S
        if self._path is None:
            return
        try:
            self._logged.keep_file(_NAME, self._path.read_bytes())
        except (OSError, LogError, JournalError) as error:
            log_event(logging.WARNING, "enrolled-file-failed", file=self._path, error=error, action="tried again")

    def _announced(self, state: str) -> bool:
        return any(one.enrolled == state for one in self._members().values())

    def _absence(self) -> str:
        return f"[policy] enrolled {self._path} is missing, and another member has it. Copy it from there"

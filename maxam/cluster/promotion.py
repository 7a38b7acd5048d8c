"""Make the journal of an observer one of its own: a person decides that, when the source is lost.

Two files in the journal's folder serve that. An observer notes in `followed` what it heard of its source last. `promoted` has the
decision, until the next start writes it into the audit log.
"""

import json
import os
from dataclasses import asdict, dataclass
from typing import Final

from maxam.errors import JournalError
from maxam.journal.disk import Disk, OsDisk, write_file
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import FOLLOWED, PROMOTION, RENEW

_NOTE_BYTES_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class Followed:
    """The newest sign of life of the source.

    Attributes:
        source: Name of the gateway.
        address: `host:port` of its link.
        revision: Its newest change.
        at_us: Its time then, microseconds since the epoch.
        heard_at_us: The time here.
    """

    source: str
    address: str
    revision: int
    at_us: int
    heard_at_us: int


@dataclass(frozen=True, slots=True)
class Promotion:
    """The decision of a person to go on with the journal of an observer.

    Attributes:
        because: The reason that was given.
        revision: The last change of the journal.
        accepted_at_us: When the source accepted it, microseconds since the epoch; 0 for none.
        at_us: When it was decided.
        followed: The newest sign of life of the source. None if there was none.
    """

    because: str
    revision: int
    accepted_at_us: int
    at_us: int
    followed: Followed | None

    @property
    def missing(self) -> int:
        """The changes that the source is known to have had and this journal does not."""
        return 0 if self.followed is None else max(0, self.followed.revision - self.revision)


def write_followed(folder: str, note: Followed) -> None:
    """Note what was heard of the source. Raises OSError."""
    path = f"{folder}/{FOLLOWED}"
    with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123  # a string is at hand
        json.dump(asdict(note), file)
    os.replace(f"{path}.new", path)  # noqa: PTH105  # likewise


def read_followed(folder: str, disk: Disk) -> Followed | None:
    """Return what an observer noted. None if there is no note, or it was cut short by a power cut."""
    try:
        return Followed(**json.loads(disk.read(f"{folder}/{FOLLOWED}", 0, _NOTE_BYTES_MAX)))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def read_promotion(folder: str, disk: Disk) -> Promotion | None:
    """Return the decision that the next start has to record. None without one."""
    try:
        found = json.loads(disk.read(f"{folder}/{PROMOTION}", 0, _NOTE_BYTES_MAX))
        followed = found.pop("followed")
        return Promotion(**found, followed=None if followed is None else Followed(**followed))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError) as error:
        raise JournalError(f"{folder}/{PROMOTION} is not a promotion ({error}). Promote the journal again") from error


def forget_promotion(folder: str, disk: Disk) -> None:
    """Remove the decision, which is in the audit log now."""
    disk.unlink(f"{folder}/{PROMOTION}")
    disk.fsync_folder(folder)


def look(folder: str, because: str, now_us: int) -> Promotion:
    """Return what a promotion would decide, after reading the whole journal; only a torn tail is cut off.

    Args:
        folder: Of the journal of an observer that is stopped.
        because: The reason.
        now_us: Microseconds since the epoch.

    Raises:
        JournalError: The journal is in use, or damaged, or was promoted before.
        OSError: It cannot be read.
    """
    disk = OsDisk()
    if not disk.names(folder) or "segments" not in disk.names(folder):
        raise JournalError(f"{folder} holds no journal")
    if RENEW in disk.names(folder):
        raise JournalError(f"{folder} was promoted, restored or repaired before. Start its gateway")
    journal = Journal.open(folder, disk, JournalSettings(reserve_bytes=0), bytes(16))
    try:
        for _ in journal.recover(following=True):
            pass
        return Promotion(because, journal.head, journal.accepted_at_us, now_us, read_followed(folder, disk))
    finally:
        journal.close(seal=False)


def promote(folder: str, promotion: Promotion) -> None:
    """Have the next start give the journal a new incarnation and record the decision. Raises OSError."""
    disk = OsDisk()
    write_file(disk, f"{folder}/{PROMOTION}", [json.dumps(asdict(promotion)).encode()])
    write_file(disk, f"{folder}/{RENEW}", [b""])
    disk.fsync_folder(folder)

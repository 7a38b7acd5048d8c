"""The note of a member of a cluster in its journal's folder, and its announcement to the other members.

The file `cluster` has the identifier of the cluster, and the index of an entry whose predecessors are all synced in the journal. The
index may be old. It only makes it faster to find the place of the journal in the log.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final, final

from maxam.cluster.entry import CLUSTER_ID_BYTES
from maxam.errors import JournalError
from maxam.journal.disk import Disk, OsDisk, write_file
from maxam.journal.names import MEMBERSHIP, RENEW

_NOTE_BYTES_MAX: Final = 4096
_ANNOUNCEMENT_BYTES_MAX: Final = 65_536


@final
@dataclass(frozen=True, slots=True)
class Membership:
    """The note of a member.

    Attributes:
        cluster: Identifier of the cluster; empty if it is not known.
        index: Of an entry that is synced in the journal; 0 for none.
    """

    cluster: bytes
    index: int


def write_membership(folder: str, note: Membership, disk: Disk) -> None:
    """Write the note of a member, durably. Raises OSError or DiskFullError."""
    text = json.dumps({"cluster": note.cluster.hex(), "index": note.index})
    write_file(disk, f"{folder}/{MEMBERSHIP}", [text.encode()])
    disk.fsync_folder(folder)


def update_membership(folder: str, note: Membership) -> None:
    """Write the note of a member again, without a sync. Raises OSError."""
    path = f"{folder}/{MEMBERSHIP}"
    with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123  # a string is at hand
        json.dump({"cluster": note.cluster.hex(), "index": note.index}, file)
    os.replace(f"{path}.new", path)  # noqa: PTH105  # likewise


def read_membership(folder: str, disk: Disk) -> Membership | None:
    """Return the note of a member; None if the journal belongs to no cluster. Of one that a power cut left in part, nothing is known."""
    try:
        found = json.loads(disk.read(f"{folder}/{MEMBERSHIP}", 0, _NOTE_BYTES_MAX))
        note = Membership(bytes.fromhex(found["cluster"]), int(found["index"]))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        return Membership(b"", 0)
    return note if len(note.cluster) == CLUSTER_ID_BYTES else Membership(b"", 0)


def is_member(folder: str, disk: Disk) -> bool:
    """Return True if a journal belongs to a cluster."""
    return MEMBERSHIP in disk.names(folder)


def leave(folder: str) -> None:
    """Make the journal of a member one of its own. Its next start, without `[cluster]`, gives it a new incarnation.

    Args:
        folder: Of the journal. No gateway may be running.

    Raises:
        JournalError: The journal is in use, or belongs to no cluster.
        OSError: The folder cannot be written.
    """
    disk = OsDisk()
    if not is_member(folder, disk):
        raise JournalError(f"{folder} is not the journal of a member of a cluster")
    try:
        lock = disk.lock(f"{folder}/lock")
    except BlockingIOError as error:
        raise JournalError(f"the journal folder {folder} is in use by another process; stop its gateway") from error
    try:
        write_file(disk, f"{folder}/{RENEW}", [b""])
        disk.fsync_folder(folder)
        disk.unlink(f"{folder}/{MEMBERSHIP}")
        disk.fsync_folder(folder)
    finally:
        disk.close(lock)


@final
@dataclass(frozen=True, slots=True)
class Announcement:
    """The announcement of a member to the others, once a second.

    Attributes:
        name: Of the member.
        number: Changes with each announcement.
        software: Its release.
        role: As `Role` has it.
        priority: To lead; 0 for never.
        ready: It follows, may lead, and is within a second of the head.
        applied: Index of the last entry that its broker has applied.
        synced: Index of the last entry that is durable in its journal.
        revision: Of its last change.
        host: Where others reach it.
        stomp: Port of clients; 0 before it has led.
        admin: Port of the admin listener; 0 for none.
        link: Port of its links; 0 for none.
        free_bytes: Room on the disk of its journal; -1 if it is unknown.
        memory_bytes: Limit of its memory.
        enrolled: `present` or `missing`, as the file of enrolled clients is; empty if it reads none.
        digests: Of the files in force, as `item=digest`, separated by spaces.
        lag_s: Seconds since it had all of the log.
    """

    name: str
    number: int
    software: str
    role: str
    priority: int
    ready: bool
    applied: int
    synced: int
    revision: int
    host: str
    stomp: int
    admin: int
    link: int
    free_bytes: int
    memory_bytes: int
    enrolled: str = ""
    digests: str = ""
    lag_s: float = 0.0

    def encode(self) -> bytes:
        """Return the bytes that are announced."""
        return json.dumps(asdict(self)).encode()


_TYPES: Final = {one.name: one.type for one in fields(Announcement)}


def read_announcement(data: bytes) -> Announcement | None:
    """Return the announcement of these bytes; None if another release wrote them. Unknown keys are ignored."""
    try:
        found = json.loads(data[:_ANNOUNCEMENT_BYTES_MAX])
        known = {name: found[name] for name in _TYPES if name in found}
        valid = all(type(value) is _TYPES[name] for name, value in known.items())
        return Announcement(**known) if valid else None
    except (ValueError, TypeError):
        return None


def read_announcements(found: Mapping[str, bytes]) -> dict[str, Announcement]:
    """Return the announcements of members by name, without those that cannot be read or have another name."""
    read = {name: read_announcement(data) for name, data in found.items()}
    return {name: one for name, one in read.items() if one is not None and one.name == name}

"""Make the log of a cluster: it begins at the end of a journal."""

import os
import time
from dataclasses import dataclass
from typing import Final, final

from maxam.cluster.entry import CLUSTER_ID_BYTES, FORMAT, GENESIS, INCARNATION, SEAL, Entry
from maxam.cluster.log import NONCE_BYTES, Head, Log, LogLostError
from maxam.cluster.membership import Membership, write_membership
from maxam.cluster.swap import settle
from maxam.errors import JournalError
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import SYNC_BYTES, Position
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.identity import end_chain
from maxam.journal.names import RENEW

_TRIES: Final = 20  # of one entry, while the engine gives no answer


@final
@dataclass(frozen=True, slots=True)
class Founded:
    """A log that was made.

    Attributes:
        cluster: Identifier of the cluster, 32 hex digits.
        incarnation: Of the journals of its members.
        revision: At which the log begins.
        index: Of its last entry.
    """

    cluster: str
    incarnation: str
    revision: int
    index: int


def found(log: Log, folder: str) -> Founded:
    """Make the log of a cluster that begins at the end of a journal. A new folder gets an empty journal.

    Args:
        log: Of the cluster; there must be none yet.
        folder: Of the journal. No gateway may be running.

    Raises:
        JournalError: The cluster has a log already, or the journal cannot be used.
        LogError: The engine gives no answer.
        OSError: The journal cannot be read.
    """
    disk = OsDisk()
    journal = Journal.open(folder, disk, JournalSettings(reserve_bytes=0), bytes(SYNC_BYTES))
    try:
        if RENEW in disk.names(folder):
            raise JournalError(
                f"{folder} was promoted, restored or repaired. Start its gateway once without [cluster], then try again"
            )
        for _ in journal.recover(following=True):
            pass
        position = journal.position
        if position.chain == 0 and position.revision > 0:  # recovered from a snapshot alone
            chain = end_chain(folder, "changes", position.revision)
            position = Position(position.revision, position.accepted_at_us, chain)
        incarnation = journal.incarnation or os.urandom(8).hex()
        there = log.head()
        if there is not None:
            raise JournalError(
                f"the cluster has a log: {there.leader or 'no member'} led last, at revision {there.position.revision}. Start the gateway"
            )
        cluster = os.urandom(CLUSTER_ID_BYTES)
        first = _append(log, None, cluster, Entry(GENESIS, False, position, position, bytes(SYNC_BYTES), cluster, 1))
        marker, payload = bytes(SYNC_BYTES), incarnation.encode()
        sealed = _append(log, first, cluster, Entry(SEAL, False, position, position, marker, b"", 2))
        last = _append(log, sealed, cluster, Entry(INCARNATION, False, position, position, marker, payload, 3))
        write_membership(folder, Membership(cluster, 0), disk)
        return Founded(cluster.hex(), incarnation, position.revision, last.index)
    finally:
        journal.close(seal=False)


def _append(log: Log, before: Head | None, cluster: bytes, entry: Entry) -> Head:
    """Append an entry before the first leader. Raises LogError."""
    head = Head(cluster, 0, entry.index, "", entry.after, FORMAT, 0, os.urandom(NONCE_BYTES))
    left = _TRIES

    def pause(pause_s: float) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise LogLostError("the engine of the cluster gives no answer. See [cluster] endpoints, then try again")
        time.sleep(pause_s)

    return settle(lambda: log.append(entry.encode(), head, before), pause)

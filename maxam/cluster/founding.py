"""Make the log of a cluster: it begins at the end of a journal."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from maxam.cluster.entry import CLUSTER_ID_BYTES, FORMAT, GENESIS, INCARNATION, SEAL, Entry
from maxam.cluster.log import NONCE_BYTES, Head, Log, LogLostError, SupersededError
from maxam.cluster.membership import Membership, read_membership, write_membership
from maxam.cluster.swap import swap_until_known
from maxam.errors import JournalError
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import SYNC_BYTES
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.identity import with_chain
from maxam.journal.names import RENEW

_TRIES: Final = 20  # of one entry, while the engine gives no answer
_SILENCE_S: Final = 4.0  # without a new head: no member leads. A leader writes one each second


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


def found(log: Log, folder: str, *, force: bool = False, silence_s: float = _SILENCE_S) -> Founded:
    """Make the log of a cluster that begins at the end of a journal. A new folder gets an empty journal.

    With `force` the log replaces another one, or one that is lost. Accepted changes that this journal lacks are lost then. So the
    journals get a new incarnation. The cluster keeps its identifier: members whose journals are a beginning of this one go on.

    Args:
        log: Of the cluster. There must be none yet without `force`.
        folder: Of the journal. No gateway may be running.
        force: Replace the log.
        silence_s: Time in which no member writes, before a log is replaced.

    Raises:
        JournalError: The cluster has a log or had one, a member leads, or the journal cannot be used.
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
        position = with_chain(folder, journal.position)
        incarnation = journal.incarnation or os.urandom(8).hex()
        there, note = log.head(), read_membership(folder, disk)
        cluster = os.urandom(CLUSTER_ID_BYTES)
        if force:
            incarnation = os.urandom(8).hex()
            own, theirs = b"" if note is None else note.cluster, b"" if there is None else there.cluster
            if own and theirs and own != theirs:
                raise JournalError(
                    f"{folder} belongs to another cluster than the log. Correct [cluster] name or endpoints"
                )
            cluster = own or theirs or cluster
            there = None if there is None else _cleared(log, there, cluster, silence_s)
        elif there is not None:
            raise JournalError(
                f"the cluster has a log: {there.leader or 'no member'} led last, at revision {there.position.revision}. Start the gateway"
            )
        elif note is not None:
            raise JournalError(
                f"{folder} is the journal of a member, and the cluster has no log. If that is lost for good, find the member with the"
                " highest revision, and use --force there"
            )
        first = _append(log, there, cluster, Entry(GENESIS, False, position, position, bytes(SYNC_BYTES), cluster, 1))
        marker, payload = bytes(SYNC_BYTES), incarnation.encode()
        sealed = _append(log, first, cluster, Entry(SEAL, False, position, position, marker, b"", 2))
        last = _append(log, sealed, cluster, Entry(INCARNATION, False, position, position, marker, payload, 3))
        write_membership(folder, Membership(cluster, 0), disk)
        return Founded(cluster.hex(), incarnation, position.revision, last.index)
    finally:
        journal.close(seal=False)


def _cleared(log: Log, there: Head, cluster: bytes, silence_s: float) -> Head:
    """Forget all entries of a log that no member writes, and return its head. Raises JournalError and LogError."""
    time.sleep(silence_s)
    position, nonce = there.position, os.urandom(NONCE_BYTES)
    fence = Head(cluster, there.term + 1, there.index, "", position, FORMAT, 0, nonce)
    try:
        head = _swapped(lambda: log.beat(fence, there))  # no leader of before can write from here on
    except SupersededError as error:
        raise JournalError(
            f"{there.leader or 'another member'} leads the cluster. Stop all members, then try again"
        ) from error
    log.trim(head.index)
    return head


def _append(log: Log, before: Head | None, cluster: bytes, entry: Entry) -> Head:
    """Append an entry before the first leader. Raises LogError."""
    head = Head(cluster, 0, entry.index, "", entry.after, FORMAT, 0, os.urandom(NONCE_BYTES))
    return _swapped(lambda: log.append(entry.encode(), head, before))


def _swapped(swap: Callable[[], Head]) -> Head:
    """Return the head after a swap, which is tried until its outcome is known. Raises LogError."""
    left = _TRIES

    def pause(pause_s: float) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise LogLostError("the engine of the cluster gives no answer. See [cluster] endpoints, then try again")
        time.sleep(pause_s)

    return swap_until_known(swap, pause)

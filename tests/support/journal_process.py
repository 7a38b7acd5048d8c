"""Write or read a journal in a process of its own, so that another core can do it: `-m tests.support.journal_process write|read FOLDER`.

Prints which core did it and, when reading, the records.
"""

import sys

from maxam.compiled import core
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import sealed_segments
from maxam.journal.snapshots import write_snapshot
from tests.support.journal_records import SYNC, change, one_of_each, plain_all

SETTINGS = JournalSettings(segment_bytes_max=2500, reserve_bytes=4096)


def write_journal(folder: str) -> None:
    """Write sealed segments and a snapshot, byte for byte the same at any time."""
    journal = Journal.open(folder, OsDisk(), SETTINGS, SYNC)
    if list(journal.recover()):
        raise AssertionError(f"{folder} holds a journal already")
    journal.write(journal.encode(one_of_each()))
    at_us = journal.accepted_at_us
    for n in range(1, 40):
        journal.write(journal.encode([change(journal.head + 1, body=b"x" * n, at_us=at_us + n)]))
    journal.close()
    first = sealed_segments(folder, OsDisk())[0]
    write_snapshot(folder, OsDisk(), first.last, [change(first.last)], SYNC, at_us)


def read_journal(folder: str) -> list[object]:
    """Read what recovery reads, in a form that can be compared and printed."""
    journal = Journal.open(folder, OsDisk(), SETTINGS, SYNC)
    records = plain_all(list(journal.recover()))
    journal.close()
    return records


if __name__ == "__main__":
    sys.stdout.write(f"{core()}\n")
    if sys.argv[1] == "write":
        write_journal(sys.argv[2])
    else:
        sys.stdout.write(f"{read_journal(sys.argv[2])!r}\n")

"""The note of a member: it is only a hint, so a part of it stops no start."""

from maxam.cluster.membership import Membership, read_membership, write_membership
from maxam.journal.names import MEMBERSHIP
from tests.simulation.disk import SimulatedDisk

FOLDER = "/journal"
NOTE = Membership(b"sixteen bytes ID", 7)


def test_any_part_of_a_note_is_a_note_of_nothing_known() -> None:
    """A power cut can leave any beginning of the file, and zeros after it."""
    disk = SimulatedDisk()
    disk.make_folder(FOLDER)
    assert read_membership(FOLDER, disk) is None
    write_membership(FOLDER, NOTE, disk)
    assert read_membership(FOLDER, disk) == NOTE
    path = f"{FOLDER}/{MEMBERSHIP}"
    whole = disk.contents()[path]
    for size in range(len(whole)):
        for left in (whole[:size], whole[:size].ljust(len(whole), b"\0")):
            disk.put(path, left)
            assert read_membership(FOLDER, disk) == Membership(b"", 0)

"""A backup is whole or none, holds what a start needs, shares what does not change, and is believed only byte for byte."""

import errno
import json
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

from maxam.broker.summary import summed_up
from maxam.config import Limits
from maxam.errors import JournalDamagedError, JournalError
from maxam.journal import backup
from maxam.journal.backup import (
    LOCK,
    MANIFEST,
    UNFINISHED,
    back_up,
    read_manifest,
    restore,
    verify_backup,
    verify_manifest,
)
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.losses import read_losses
from maxam.journal.names import RENEW, sealed_segments
from maxam.journal.repair import Repair
from tests.faults import corruption
from tests.simulation.disk import PowerCut, SimulatedDisk
from tests.support.journal_records import SYNC, change

ROOT = corruption.ROOT
BACKUPS = "/backups"
NEW = "/restored"


def shown(disk: SimulatedDisk, root: str = ROOT) -> tuple[int, dict[bytes, int], set[bytes]]:
    """Return what a start on a folder comes to: head, topics with a value, and what the durable session is owed."""
    copied = {path.replace(root, ROOT, 1): data for path, data in disk.contents().items() if path.startswith(root)}
    if root != ROOT:
        assert not any(path.endswith("/restoring") for path in copied)
    started, broker = corruption.start(corruption.loaded(copied))
    owed = broker.sessions["alice", "pump"].subscriptions[b"s"].owed
    topics = {topic.destination: topic.change.revision for topic in corruption.live(broker)}
    return started.head, topics, {topic.destination for topic in owed}


def journal() -> SimulatedDisk:
    """Return a journal with everything in it."""
    return corruption.loaded(corruption.truth().files)


def write_more(disk: SimulatedDisk, changes: int) -> None:
    """Go on in a journal, over several segments, as after a restart."""
    going = Journal.open(ROOT, disk, JournalSettings(segment_bytes_max=3000, reserve_bytes=0), SYNC)
    list(going.recover())
    for _ in range(changes):
        at_us = going.accepted_at_us + 1
        going.write(going.encode([change(going.head + 1, b"X/T.1", b"more" * 100, at_us=at_us)]))
    disk.close(going._lock)


def test_a_restored_backup_starts_as_the_journal_would() -> None:
    """Head, values and what is owed are the same. Schemas and rejected SENDs are copied, lock and indexes are not."""
    disk = journal()
    done = back_up(ROOT, BACKUPS, "1", disk)
    before = shown(disk)
    assert (done.head, done.copied) == (before[0], done.bytes)
    restored = restore(f"{BACKUPS}/1", NEW, disk)
    assert (restored.head, restored.files) == (done.head, done.files)
    assert shown(disk, NEW) == before
    kinds = {path.split("/")[2] for path in disk.contents() if path.startswith(NEW)}
    assert kinds == {"segments", "snapshots", "schemas", "rejected", RENEW}
    assert list(verify_manifest(f"{BACKUPS}/1", disk)) == []


def test_the_next_backup_links_what_has_not_changed() -> None:
    """Only the open segment and what is new is copied; the backups share the rest, and each stands on its own."""
    disk = journal()
    back_up(ROOT, BACKUPS, "1", disk)
    first = shown(disk)
    again = back_up(ROOT, BACKUPS, "2", disk)
    assert again.copied == sum(len(data) for path, data in disk.contents().items() if "1/" in path and "open" in path)
    write_more(disk, 30)
    third = back_up(ROOT, BACKUPS, "3", disk)
    assert again.copied < third.copied < third.bytes
    segment = sealed_segments(ROOT, disk)[0].path.removeprefix(ROOT)
    assert disk.files[f"{BACKUPS}/3{segment}"] is disk.files[f"{BACKUPS}/1{segment}"]
    for number, wanted in ((1, first), (3, shown(disk))):
        restore(f"{BACKUPS}/{number}", f"{NEW}{number}", disk)
        assert shown(disk, f"{NEW}{number}") == wanted
    assert disk.files[f"{NEW}3{segment}"] is not disk.files[f"{BACKUPS}/3{segment}"]


def test_a_write_under_way_is_left_out_and_damage_refuses() -> None:
    """A half block at the end of the open segment is cut; a damaged block before a whole one, or elsewhere, makes no backup."""
    disk = journal()
    [opened] = [path for path in disk.contents() if "segments" in path and "open" in path]
    data = disk.contents()[opened].rstrip(b"\0")  # without the room that was allocated ahead
    disk.put(opened, data[:-9])
    assert back_up(ROOT, BACKUPS, "1", disk).head < corruption.truth().head
    broken = bytearray(data)
    broken[-len(data) // 2] ^= 1
    for number, (path, harmed) in enumerate(
        [(opened, bytes(broken)), (sealed_segments(ROOT, disk)[0].path, data), (opened, data[:200])], 2
    ):
        disk = journal()
        disk.put(path, harmed)
        if len(harmed) == 200:  # its header was not written yet: it holds nothing
            assert back_up(ROOT, BACKUPS, f"{number}", disk).head == sealed_segments(ROOT, disk)[-1].last
            continue
        with pytest.raises((JournalError, JournalDamagedError)):
            back_up(ROOT, BACKUPS, f"{number}", disk)
        with pytest.raises(JournalError, match=f"is no backup: it has no {MANIFEST}"):
            restore(f"{BACKUPS}/{number}", NEW, disk)


class Rolling(SimulatedDisk):
    """A disk on which the gateway seals its open segment, or retention removes a segment, at a given call."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.rolled = False

    def _call(self, name: str, what: str, midway: bool = False) -> bool:
        if not self.rolled and self.calls >= self.at > 0:
            self.rolled = True
            faults, self.faults = self.faults, {}
            write_more(self, 12)
            self.unlink(sealed_segments(ROOT, self)[0].path)
            self.faults = faults
        return super()._call(name, what, midway)


@pytest.mark.slow
def test_files_may_be_sealed_and_removed_at_any_moment() -> None:
    """Whenever the gateway rolls and retention removes, the backup is of one moment: a start on it shows that."""
    quiet = journal()
    begun = quiet.calls
    back_up(ROOT, BACKUPS, "1", quiet)
    heads = set()
    for call in range(1, quiet.calls - begun, 3):
        disk = Rolling(0)
        for path, file in journal().files.items():
            disk.files[path] = file
        disk.at = disk.calls + call
        done = back_up(ROOT, BACKUPS, "1", disk)
        restore(f"{BACKUPS}/1", NEW, disk)
        head, topics, _ = shown(disk, NEW)
        assert head == done.head
        assert topics.keys() == corruption.truth().shown(corruption.truth().head).keys() | {b"X/T.1"}
        heads.add(head)
    assert len(heads) > 1


def crashes(begin: SimulatedDisk, calls: int) -> Iterator[tuple[SimulatedDisk, int]]:
    """Yield disks on which the power goes at a call from now on."""
    for call in range(0, calls, 7):
        disk = corruption.loaded({path: data for path, data in begin.contents().items() if not path.endswith("lock")})
        disk.make_folder(BACKUPS)
        for folder in [path for path, file in disk.files.items() if file.folder]:
            disk.fsync_folder(folder)
        disk.faults = {disk.calls + call + 1: 0}
        yield disk, call


def test_a_power_cut_leaves_a_whole_backup_or_none() -> None:
    """Without its manifest nothing is taken for a backup; with it all of it is there."""
    begin = journal()
    begin.make_folder(BACKUPS)
    begun = begin.calls
    back_up(ROOT, BACKUPS, "1", begin)
    finished = 0
    for disk, call in crashes(journal(), begin.calls - begun):
        with pytest.raises(PowerCut):
            back_up(ROOT, BACKUPS, "1", disk)
        after = disk.restarted(random.Random(call).randrange)  # noqa: S311 - repeatable, not secret
        try:
            read_manifest(f"{BACKUPS}/1", after)
        except (JournalError, FileNotFoundError):
            continue
        restore(f"{BACKUPS}/1", NEW, after)
        assert shown(after, NEW) == shown(journal())
        finished += 1
    assert finished < 3


def test_a_power_cut_while_restoring_leaves_no_journal_that_starts() -> None:
    """A start on what is half restored is refused, with the remedy."""
    begin = journal()
    back_up(ROOT, BACKUPS, "1", begin)
    wanted = shown(begin)
    begun = begin.calls
    restore(f"{BACKUPS}/1", NEW, begin)
    for disk, call in crashes(begin, begin.calls - begun):
        for path in [path for path in disk.files if path.startswith(NEW)]:
            del disk.files[path]
        with pytest.raises(PowerCut):
            restore(f"{BACKUPS}/1", NEW, disk)
        after = disk.restarted(random.Random(call).randrange)  # noqa: S311 - repeatable, not secret
        if f"{NEW}/segments" not in after.files:
            continue
        if f"{NEW}/restoring" in after.files:
            with pytest.raises(JournalError, match="not restored"):
                Journal.open(NEW, after, JournalSettings(reserve_bytes=0), SYNC)
        else:
            started = Journal.open(NEW, after, JournalSettings(reserve_bytes=0), SYNC)
            list(started.recover())
            assert started.head == wanted[0]


def test_what_is_not_what_the_manifest_says_is_not_restored() -> None:
    """Any changed, shorter or missing file of a backup is shown, and so is an invalid manifest. A folder in use is left alone."""
    begin = journal()
    back_up(ROOT, BACKUPS, "1", begin)
    paths = sorted(path for path in begin.contents() if path.startswith(f"{BACKUPS}/1/"))
    generator = random.Random(7)  # noqa: S311 - repeatable, not secret
    for number in range(60):
        disk = corruption.loaded(begin.contents())
        path = paths[number % len(paths)]
        data = bytearray(disk.contents()[path])
        if number % 3:
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        else:
            del data[generator.randrange(len(data)) :]
        disk.put(path, bytes(data))
        if not path.endswith(MANIFEST):
            with pytest.raises(JournalError, match=f"{path} .*manifest"):
                restore(f"{BACKUPS}/1", NEW, disk)
            continue
        with suppress(JournalError):
            restore(f"{BACKUPS}/1", NEW, disk)
            assert shown(disk, NEW) == shown(begin)  # it was a figure that nothing depends on
    disk = corruption.loaded(begin.contents())
    disk.unlink(next(path for path in paths if path.endswith(".avro")))
    with pytest.raises(JournalError, match="manifest"):
        restore(f"{BACKUPS}/1", NEW, disk)
    with pytest.raises(JournalError, match="is not empty"):
        restore(f"{BACKUPS}/1", ROOT, disk)
    manifest = json.loads(begin.contents()[f"{BACKUPS}/1/{MANIFEST}"])
    manifest["files"][0]["path"] = "../../etc/passwd"
    disk.put(f"{BACKUPS}/1/{MANIFEST}", json.dumps(manifest).encode())
    with pytest.raises(JournalError, match="etc/passwd"):
        restore(f"{BACKUPS}/1", "/another", disk)


def test_a_file_that_only_has_the_name_and_size_of_one_before_is_copied() -> None:
    """A journal restored from a backup gives the same names and sizes to other files. The next backup holds these, not the old ones."""
    disk = journal()
    back_up(ROOT, BACKUPS, "1", disk)
    restore(f"{BACKUPS}/1", NEW, disk)
    write_more(disk, 30)
    back_up(ROOT, BACKUPS, "2", disk)
    going = Journal.open(NEW, disk, JournalSettings(segment_bytes_max=3000, reserve_bytes=0), b"another marker..")
    list(going.recover())
    for _ in range(30):
        at_us = going.accepted_at_us + 1
        going.write(going.encode([change(going.head + 1, b"X/T.1", b"less" * 100, at_us=at_us)]))
    disk.close(going._lock)
    old = {path.removeprefix(f"{BACKUPS}/2"): data for path, data in disk.contents().items() if f"{BACKUPS}/2" in path}
    new = {path.removeprefix(NEW): data for path, data in disk.contents().items() if path.startswith(NEW)}
    assert [path for path in new if path in old and len(new[path]) == len(old[path]) and new[path] != old[path]]
    back_up(NEW, BACKUPS, "3", disk)
    restore(f"{BACKUPS}/3", "/third", disk)
    assert shown(disk, "/third") == shown(disk, NEW)
    for path, data in disk.contents().items():
        if path.startswith("/third/segments"):
            assert data == disk.contents()[path.replace("/third", NEW)]


def test_a_backup_before_that_cannot_be_believed_stops_none() -> None:
    """Then nothing is linked to it, and all is copied."""
    for text in (b"{", b"[]", b'{"format": 99}', b'{"format": ' + b"[" * 100_000):
        disk = journal()
        back_up(ROOT, BACKUPS, "1", disk)
        disk.put(f"{BACKUPS}/1/{MANIFEST}", text)
        done = back_up(ROOT, BACKUPS, "2", disk)
        assert done.copied == done.bytes


@pytest.mark.parametrize("path", ["/etc/x", "..", "segments/..", "lock", "restoring", "segments/\ud800", "segments/\0"])
def test_a_manifest_names_files_of_a_journal_only(path: str) -> None:
    """Nothing else is written by a restore, whatever somebody made of the manifest."""
    disk = journal()
    back_up(ROOT, BACKUPS, "1", disk)
    manifest = json.loads(disk.contents()[f"{BACKUPS}/1/{MANIFEST}"])
    manifest["files"][0]["path"] = path
    disk.put(f"{BACKUPS}/1/{MANIFEST}", json.dumps(manifest).encode())
    with pytest.raises(JournalError, match="backup"):
        restore(f"{BACKUPS}/1", NEW, disk)
    assert NEW not in disk.files


def test_a_repaired_journal_has_backups_that_can_be_restored() -> None:
    """The report of the repair is in them, under a time with microseconds as `journal repair` writes it, and what it lost stays explained."""
    disk = journal()
    path = sealed_segments(ROOT, disk)[-1].path
    data = bytearray(disk.contents()[path])
    data[len(data) // 2] ^= 1
    disk.put(path, bytes(data))
    repair = Repair.open(ROOT, disk)
    repair.apply(lambda records: summed_up(records, Limits()).snapshot(), "20261122T155540.588326Z", SYNC)
    back_up(ROOT, BACKUPS, "1", disk)
    assert [one for one in verify_backup(f"{BACKUPS}/1", disk) if one.problem is not None] == []
    assert read_manifest(f"{BACKUPS}/1", disk).verified
    restore(f"{BACKUPS}/1", NEW, disk)
    assert shown(disk, NEW) == shown(disk)
    assert read_losses(NEW, disk) == read_losses(ROOT, disk)
    assert read_losses(NEW, disk).ranges["segments"]


@pytest.mark.parametrize("folder", ["snapshots", "schemas"])
def test_a_copy_in_a_store_without_empty_folders_is_whole(folder: str) -> None:
    """A copy of a backup that lacks a folder without files is verified and restored as the backup is."""
    disk = journal()
    for path in [path for path in disk.contents() if path.startswith(f"{ROOT}/{folder}/")]:
        disk.unlink(path)
    back_up(ROOT, BACKUPS, "1", disk)
    assert not disk.names(f"{BACKUPS}/1/{folder}")
    disk.remove_folder(f"{BACKUPS}/1/{folder}")
    assert [one for one in verify_backup(f"{BACKUPS}/1", disk) if one.problem is not None] == []
    restore(f"{BACKUPS}/1", NEW, disk)
    assert shown(disk, NEW) == shown(disk)


def test_a_linked_file_that_has_decayed_is_copied_from_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backup before is not believed for what it once was; the new one is whole."""
    monkeypatch.setattr(backup, "_ENDS_BYTES", 32)  # the files here are so small that their ends are all of them
    disk = journal()
    back_up(ROOT, BACKUPS, "1", disk)
    [path, *_] = [path for path in disk.contents() if path.startswith(f"{BACKUPS}/1/segments/") and "-" in path]
    data = bytearray(disk.contents()[path])
    data[len(data) // 2] ^= 1
    disk.put(path, bytes(data))
    done = back_up(ROOT, BACKUPS, "2", disk)
    assert done.copied == done.bytes
    assert [one for one in verify_backup(f"{BACKUPS}/2", disk) if one.problem is not None] == []


def test_a_backup_of_a_release_that_did_not_verify_is_not_said_to_be_verified() -> None:
    """Its manifest has no such entry."""
    disk = journal()
    back_up(ROOT, BACKUPS, "1", disk)
    manifest = json.loads(disk.contents()[f"{BACKUPS}/1/{MANIFEST}"])
    del manifest["verified"]
    disk.put(f"{BACKUPS}/1/{MANIFEST}", json.dumps(manifest).encode())
    assert not read_manifest(f"{BACKUPS}/1", disk).verified


def names(disk: SimulatedDisk) -> set[str]:
    """Return what the folder of backups holds."""
    return {path.split("/")[2] for path in disk.files if path.startswith(f"{BACKUPS}/")}


@pytest.mark.slow
def test_a_backup_that_fails_leaves_nothing() -> None:
    """Whichever call finds the disk full or broken, no folder stays that could be taken for a backup, or for one under way."""
    quiet = journal()
    begun = quiet.calls
    back_up(ROOT, BACKUPS, "1", quiet)
    failed = 0
    for call in range(1, quiet.calls - begun, 5):
        disk = corruption.loaded(
            {path: data for path, data in journal().contents().items() if not path.endswith("lock")}
        )
        disk.faults = {disk.calls + call: errno.EIO if call % 2 else errno.ENOSPC}
        try:
            back_up(ROOT, BACKUPS, "1", disk)
        except (OSError, JournalError):
            failed += 1
            assert names(disk) <= {LOCK}
        disk.faults = {}
        back_up(ROOT, BACKUPS, "2", disk)
        restore(f"{BACKUPS}/2", NEW, disk)
        assert shown(disk, NEW) == shown(journal())
    assert failed > 20


def test_what_a_crash_leaves_goes_with_the_next_backup() -> None:
    """A power cut in a backup, or in the removal of an old one, leaves whole backups and folders marked as none. The next clears them."""
    begin = journal()
    back_up(ROOT, BACKUPS, "1", begin)
    back_up(ROOT, BACKUPS, "2", begin)
    begun = begin.calls
    back_up(ROOT, BACKUPS, "3", begin, kept=1)
    before = journal()
    back_up(ROOT, BACKUPS, "1", before)
    back_up(ROOT, BACKUPS, "2", before)
    left_over = 0
    for disk, call in crashes(before, begin.calls - begun):
        with pytest.raises(PowerCut):
            back_up(ROOT, BACKUPS, "3", disk, kept=1)
        after = disk.restarted(random.Random(call).randrange)  # noqa: S311 - repeatable, not secret
        whole = names(after) - {LOCK}
        left_over += any(name.endswith(UNFINISHED) for name in whole)
        whole = {name for name in whole if not name.endswith(UNFINISHED)}
        assert whole & {"2", "3"}
        for name in whole:
            assert not list(verify_manifest(f"{BACKUPS}/{name}", after))
        done = back_up(ROOT, BACKUPS, "4", after, kept=2)
        assert names(after) == {LOCK, "4", max(whole)}
        assert set(done.removed) == whole - {max(whole)}
    assert left_over > 10


def test_the_newest_whole_backups_stay() -> None:
    """Only whole backups of the same journal count and go; a damaged one, one of another journal and strange folders stay."""
    disk = journal()
    for number in range(1, 6):
        back_up(ROOT, BACKUPS, f"{number}", disk)
    disk.unlink(f"{BACKUPS}/4/" + read_manifest(f"{BACKUPS}/4", disk).files[0].path)
    for path, data in list(disk.contents().items()):
        if path.startswith(ROOT):
            disk.files[path.replace(ROOT, "/another", 1)] = disk.files[path]
            assert data is not None
    restore(f"{BACKUPS}/1", "/other", disk)
    back_up("/other", BACKUPS, "6", disk)
    disk.make_folder(f"{BACKUPS}/letters")
    disk.put(f"{BACKUPS}/letters/{MANIFEST}", b"of love")
    done = back_up(ROOT, BACKUPS, "7", disk, kept=2)
    assert done.removed == ("3", "2", "1")
    assert names(disk) == {LOCK, "4", "5", "6", "7", "letters"}
    done = back_up(ROOT, BACKUPS, "8", disk, kept=1)
    assert done.removed == ("7", "5")
    restore(f"{BACKUPS}/8", NEW, disk)
    assert shown(disk, NEW) == shown(disk)


def test_a_clock_that_was_set_back_costs_no_new_backup() -> None:
    """The one just made stays, though others are called as if they were made later."""
    disk = journal()
    for when in ("2036", "2037", "2026-1"):
        back_up(ROOT, BACKUPS, when, disk, kept=2)
    assert names(disk) == {LOCK, "2037", "2026-1"}
    assert back_up(ROOT, BACKUPS, "2026-2", disk, kept=2).removed == ("2026-1",)
    assert back_up(ROOT, BACKUPS, "2026-3", disk, kept=1).removed == ("2037", "2026-2")
    assert names(disk) == {LOCK, "2026-3"}


def test_what_others_put_into_a_backup_is_not_removed() -> None:
    """Of a backup that has to go what no backup holds stays, with its folder, and fails nothing."""
    disk = journal()
    back_up(ROOT, BACKUPS, "1", disk)
    disk.put(f"{BACKUPS}/1/notes.txt", b"mine")
    assert back_up(ROOT, BACKUPS, "2", disk, kept=1).removed == ()
    assert disk.contents()[f"{BACKUPS}/1{UNFINISHED}/notes.txt"] == b"mine"
    back_up(ROOT, BACKUPS, "3", disk, kept=1)
    assert names(disk) == {LOCK, f"1{UNFINISHED}", "3"}


def test_one_backup_at_a_time_is_made_in_a_folder() -> None:
    """Another process that makes one there is not disturbed."""
    disk = journal()
    disk.make_folder(BACKUPS)
    held = disk.lock(f"{BACKUPS}/{LOCK}")
    with pytest.raises(JournalError, match="another backup"):
        back_up(ROOT, BACKUPS, "1", disk)
    assert names(disk) == {LOCK}
    disk.close(held)
    back_up(ROOT, BACKUPS, "1", disk)


def test_a_backup_never_holds_keys() -> None:
    """For any other files in the journal's folders, a backup has only the files of a journal."""
    disk = journal()
    secret = b"-----BEGIN PRIVATE KEY-----"
    disk.make_folder(f"{ROOT}/certs")
    for folder in ("", "/certs", "/segments", "/snapshots", "/schemas", "/rejected"):
        for name in ("server.key", "ca.pem", "policy.toml", ".hidden", "00000000000000000001.avro.key"):
            disk.put(f"{ROOT}{folder}/{name}", secret)
    back_up(ROOT, BACKUPS, "1", disk)
    held = {path: data for path, data in disk.contents().items() if path.startswith(f"{BACKUPS}/1/")}
    assert not [path for path, data in held.items() if secret in data]
    assert {path.rpartition(".")[2] for path in held} == {"avro", "avsc", "json"}

"""Damage a journal at random, thousands of times, and hold what a start and a repair make of it against what was accepted.

`python -m tests.faults.corruption --faults 1000` makes a small journal on a disk in memory. It has an archive, snapshots, sealed segments,
an open one, durable sessions, rejected SENDs, schemas and indexes. One of its files is damaged: a bit is flipped, bytes are zeroed, or
the end is cut off. Or the whole file is missing or exists twice. Then:

* a start is right, is refused with file and position, or only sets aside the last write of the open segment;
* a repair that is only planned changes nothing;
* after a repair, `verify` finds nothing wrong and a start works;
* after it each topic has a value that was once accepted for it;
* if that is not the newest one, the plan has reported it, or the revision is among those whose topic is unknown;
* revisions go on above all that were ever given.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256

from maxam.broker.broker import Broker
from maxam.broker.summary import summed_up
from maxam.config import Limits
from maxam.errors import JournalDamagedError
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.index import build
from maxam.journal.names import sealed_segments
from maxam.journal.rejects import RejectedJournal, RejectedSettings
from maxam.journal.repair import Repair
from maxam.journal.repair_plan import Plan
from maxam.journal.replay import read_sealed
from maxam.journal.snapshots import write_snapshot
from maxam.journal.verify import verify
from maxam.records import AcknowledgementRecord, Record, SubscriptionRecord
from tests.simulation.disk import SimulatedDisk
from tests.support.journal_records import NOW_US, SYNC, change, rejected

ROOT = "/journal"
TEXT = b'{"type":"record","name":"S_v1","fields":[]}'
PLAIN = JournalSettings(segment_bytes_max=7000, reserve_bytes=0)
AHEAD = replace(PLAIN, ahead_bytes=4096)  # the open segment ends in zeros
SNAPSHOTS = (70, 105)  # revisions
TOPICS = 12
CHANGES = 150
BATCH_MAX = 5


@dataclass(frozen=True)
class Truth:
    """The accepted values.

    Attributes:
        files: Of the journal, by path.
        values: By topic, the body of each of its revisions; None for a delete.
        head: The last revision.
        owed: Topics that the durable session is owed.
        last_batch: Changes of the last write.
    """

    files: dict[str, bytes]
    values: dict[bytes, dict[int, bytes | None]]
    head: int
    owed: frozenset[bytes]
    last_batch: int

    def newest(self, topic: bytes, head: int) -> int:
        """Return the newest revision of a topic up to a head, 0 for none."""
        return max((revision for revision in self.values[topic] if revision <= head), default=0)

    def shown(self, head: int) -> dict[bytes, int]:
        """Return the topics that have a value at a head, and its revision."""
        found = {topic: self.newest(topic, head) for topic in self.values}
        return {topic: n for topic, n in found.items() if n and self.values[topic][n] is not None}


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


@cache
def truth(settings: JournalSettings = AHEAD) -> Truth:
    """Write the journal, the same at each call with the same settings."""
    disk = SimulatedDisk()
    generator = random.Random(1)  # noqa: S311 - repeatable, not secret
    values: dict[bytes, dict[int, bytes | None]] = {b"X/T.%d" % n: {} for n in range(TOPICS)}
    journal = Journal.open(ROOT, disk, settings, SYNC)
    list(journal.recover())
    journal.keep_schemas([(sha256(TEXT).hexdigest(), TEXT)])
    session = ("alice", "pump", b"s")
    journal.write(journal.encode([SubscriptionRecord(NOW_US, *session, b"X/**", True)]))
    snapshots = 0
    size = 0
    while journal.head < CHANGES:
        batch: list[Record] = []
        size = generator.randint(1, BATCH_MAX)
        for revision in range(journal.head + 1, journal.head + size + 1):
            topic = b"X/T.%d" % generator.randrange(TOPICS)
            deleted = generator.random() < 0.1
            body = b"" if deleted else b"%d " % revision * generator.randint(1, 30)
            values[topic][revision] = None if deleted else body
            batch.append(change(revision, topic, body, deleted=deleted))
        if generator.random() < 0.3:
            acknowledged = tuple((topic, max(found)) for topic, found in values.items() if found)[:4]
            batch.append(AcknowledgementRecord(NOW_US + 1000 * (journal.head + size), *session, acknowledged))
        journal.write(journal.encode(batch))
        sealed = sealed_segments(ROOT, disk)
        if snapshots < len(SNAPSHOTS) and sealed and sealed[-1].last >= SNAPSHOTS[snapshots]:
            snapshots += 1
            broker = summed_up(read_sealed(ROOT, disk), Limits())
            write_snapshot(ROOT, disk, broker.committed_revision, broker.snapshot(), SYNC, broker.accepted_at_us)
    for segment in sealed_segments(ROOT, disk):
        build(ROOT, segment, disk)
    refused = RejectedJournal.open(ROOT, disk, RejectedSettings(segment_bytes_max=2600), SYNC)
    for number in range(1, 12):
        refused.append([rejected(number)])
    refused.abandon()
    journal._disk.close(journal._lock)  # as a killed process does
    files = {path: data for path, data in disk.contents().items() if not path.endswith("lock")}
    broker = start(loaded(files))[1]
    owed = frozenset(topic.destination for topic in broker.sessions["alice", "pump"].subscriptions[b"s"].owed)
    return Truth(files, values, CHANGES if journal.head == CHANGES else journal.head, owed, size)


def loaded(files: dict[str, bytes]) -> SimulatedDisk:
    """Return a disk that holds these files."""
    disk = SimulatedDisk()
    for path in sorted(files):
        parts = path.split("/")
        for depth in range(2, len(parts)):
            disk.make_folder("/".join(parts[:depth]))
        disk.put(path, files[path])
    for folder in ("", "/segments", "/snapshots", "/schemas"):
        disk.make_folder(ROOT + folder)
        disk.fsync_folder(ROOT)
    disk.fsync_folder("/")
    return disk


def start(disk: SimulatedDisk) -> tuple[Journal, Broker]:
    """Start as a gateway does, and let go again without writing."""
    journal = Journal.open(ROOT, disk, PLAIN, SYNC)
    try:
        broker = summed_up(journal.recover(), Limits())
        broker.recovered(0.0, journal.head)
    finally:
        disk.close(journal._lock)
    return journal, broker


def damage(files: dict[str, bytes], generator: random.Random) -> tuple[str, str]:
    """Damage one file; return its path and what was done."""
    folder = generator.choice(
        ["segments", "segments", "segments", "snapshots", "rejected", "schemas", "index", ".open"]
    )
    path = generator.choice([path for path in sorted(files) if folder in path] or sorted(files))
    data = bytearray(files[path])
    kind = generator.choices(["flip", "cut", "zero", "gone", "twice"], [50, 25, 10, 10, 5])[0]
    place = generator.randrange(len(data)) if data else 0
    match kind:
        case "flip":
            data[place] ^= 1 << generator.randrange(8)
        case "cut":
            del data[place:]
        case "zero":
            length = min(generator.choice([1, 64, 512]), len(data) - place)
            data[place : place + length] = bytes(length)
        case "twice" if "/segments/" in path and "-" in path:
            first, last = path.rpartition("/")[2].removesuffix(".avro").split("-")
            files[f"{ROOT}/segments/{int(first) + 1:020}-{int(last) + 1:020}.avro"] = bytes(data)
        case _:
            del files[path]
            return path, f"{kind} {place}"
    files[path] = bytes(data)
    return path, f"{kind} {place}"


def check(seed: int) -> str:
    """Damage the journal as a seed determines; return what became of it. Odd seeds have room allocated ahead.

    Raises:
        BrokenPromiseError: A promise was broken.
    """
    accepted = truth(AHEAD if seed % 2 else PLAIN)
    generator = random.Random(seed)  # noqa: S311 - repeatable, not secret
    files = dict(accepted.files)
    harmed = [damage(files, generator) for _ in range(generator.choice([1, 1, 1, 2]))]
    disk = loaded(files)
    try:
        outcome = _check_start(disk, accepted, harmed)
        RejectedJournal.open(ROOT, disk, RejectedSettings(), SYNC).abandon()  # as a gateway does
        before = _contents(disk)
        repair = Repair.open(ROOT, disk)
        plan = repair.plan
        _require(_contents(disk) == before, "a plan changed something")
        _require(not plan.empty or outcome != "refused", "nothing to repair, but the start was refused")
        repair.apply(lambda records: summed_up(records, Limits()).snapshot(), "now", SYNC)
        problems = [report for report in verify(ROOT, disk) if report.problem is not None]
        _require(not problems, f"still damaged: {problems}")
        _check_repaired(disk, accepted, plan, outcome, harmed)
    except AssertionError as error:
        raise BrokenPromiseError(f"seed {seed}: {harmed}: {error}") from error
    except Exception as error:
        raise BrokenPromiseError(f"seed {seed}: {harmed}: {error!r}") from error
    return outcome


def _contents(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.contents().items() if not path.endswith("lock")}


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise BrokenPromiseError(text)


def _check_start(disk: SimulatedDisk, accepted: Truth, harmed: Sequence[tuple[str, str]]) -> str:
    try:
        journal, broker = start(disk)
    except JournalDamagedError as error:
        if f"{error.path}: byte {error.offset}: " not in str(error) or "journal repair" not in str(error):
            raise BrokenPromiseError(f"refused without file, position or remedy: {error}") from error
        return "refused"
    shown = {topic.destination: topic.change.revision for topic in live(broker)}
    if shown != accepted.shown(journal.head):
        raise BrokenPromiseError(f"shown {shown}, accepted {accepted.shown(journal.head)}")
    for topic in live(broker):
        if topic.change.body != accepted.values[topic.destination][topic.change.revision]:
            raise BrokenPromiseError(f"a value of {topic.destination!r} that was never accepted")
    if journal.head == accepted.head:
        return "right"
    if any(path.endswith(".open.avro") and "/segments/" in path for path, _ in harmed):
        return "cut"  # a shorter open segment is what a crash leaves; or it is gone
    raise BrokenPromiseError(f"started at revision {journal.head} of {accepted.head}")


def live(broker: Broker) -> list:  # type: ignore[type-arg]  # of topics
    """Return the topics that hold a value."""
    return [topic for topic in broker.store.topics.values() if not topic.change.deleted]


def _check_repaired(
    disk: SimulatedDisk, accepted: Truth, plan: Plan, outcome: str, harmed: Sequence[tuple[str, str]]
) -> None:
    journal, broker = start(disk)
    # its end can be anything: what is gone from there leaves no trace
    lost_quietly = any("/segments/" in path and path.endswith(".open.avro") for path, _ in harmed)
    if journal.head < accepted.head and not lost_quietly:
        raise BrokenPromiseError(f"revisions went back to {journal.head}")
    head = accepted.head if journal.head >= accepted.head or outcome == "refused" else journal.head
    wanted = accepted.shown(head)
    listed = {topic.destination.encode(): topic.shown for topic in plan.topics}
    found = {topic.destination: topic.change for topic in live(broker)}
    untold = 0
    for topic in accepted.values:
        revision = found[topic].revision if topic in found else 0
        if revision and found[topic].body != accepted.values[topic].get(revision):
            raise BrokenPromiseError(f"a value of {topic!r} that was never accepted")
        if revision == wanted.get(topic, 0):
            continue
        if topic in listed:
            if revision not in (listed[topic], 0):
                raise BrokenPromiseError(f"{topic!r} shows {revision}, the plan said {listed[topic]}")
        else:
            untold += 1
    unsure = plan.unknown + sum(not topic.certain for topic in plan.topics)  # the flipped bit can be in a name
    if untold > unsure and not lost_quietly:
        raise BrokenPromiseError(f"{untold} topics are stale that the plan does not know, {unsure} unsure")


def main() -> None:
    """Run many seeds and print how often what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.corruption", description=__doc__)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outcomes = Counter(check(seed) for seed in range(options.seed, options.seed + options.faults))
    for outcome, times in sorted(outcomes.items()):
        sys.stdout.write(f"{outcome:10} {times}\n")


if __name__ == "__main__":
    main()

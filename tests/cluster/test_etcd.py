"""Faults of real etcd nodes under `EtcdLog`: nothing that was acknowledged is lost, and nothing takes effect twice.

KILLS sets how often etcd's leader is killed (`make etcd-test`).
"""

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from maxam.client_tls import CertificateFileError
from maxam.cluster import etcd
from maxam.cluster.etcd import EtcdLog, check_releases
from maxam.cluster.etcd_messages import (
    DELETE_RANGE,
    PUT,
    TXN,
    Event,
    KeyValue,
    StatusAnswer,
    WatchAnswer,
    delete_range_request,
    put_request,
)
from maxam.cluster.etcd_nodes import Node, Nodes, Watch
from maxam.cluster.log import Head, LogDamagedError, LogFullError, LogLostError, LogSize, LogTrimmedError
from maxam.errors import ConfigurationError
from tests.cluster.log_site import (
    all_entries,
    append,
    entries_until,
    entry,
    filled,
    following,
    head_of,
    insist,
    payload_of,
    reader,
    steps,
)
from tests.support.cutting_relay import CuttingRelay
from tests.support.etcd_cluster import EtcdCluster
from tests.support.patience import PATIENCE_S

KILLS: Final = int(os.environ.get("KILLS", "2"))
MIB: Final = 1_048_576
ROOMY_BYTES: Final = 33_554_432  # a quota that is soon reached


class Traffic:
    """A writer and a follower of one log. A context manager: leaving ends both and compares what they saw.

    Attributes:
        payloads: Payloads of the entries that were acknowledged, in order.
        pauses: Seconds that each append took.
    """

    def __init__(self, cluster: EtcdCluster, name: str, payload_bytes: int = 4096) -> None:
        """Make clients; nothing is written yet."""
        self.payloads: list[bytes] = []
        self.pauses: list[float] = []
        self._log: Final = cluster.log(name)
        self._following: Final = cluster.log(name)
        self._size: Final = payload_bytes
        self._seen: list[bytes] = []
        self._stop: Final = threading.Event()
        self._changed: Final = threading.Condition()
        self._threads: Final = [threading.Thread(target=self._write), threading.Thread(target=self._follow)]
        self._last = 1 << 62

    def more(self, count: int) -> None:
        """Wait until this many further entries were acknowledged and followed."""
        with self._changed:
            goal = len(self.payloads) + count
            assert self._changed.wait_for(lambda: len(self._seen) >= goal, PATIENCE_S)

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        try:
            assert [payload_of(one) for one in self._seen] == self.payloads
            assert all_entries(self._log) == self._seen
        finally:
            self._log.close()
            self._following.close()

    def _write(self) -> None:
        head = None
        while not self._stop.is_set() or head is None:
            made = following(head)
            payload = b"%08d" % made.index + bytes(self._size)
            began = time.monotonic()
            head = insist(self._log, entry(made.index, payload), made, head)
            self.pauses.append(time.monotonic() - began)
            with self._changed:
                self.payloads.append(payload)
        self._last = head.index

    def _follow(self) -> None:
        with reader(self._following) as found:
            for step in found:
                if isinstance(step, bytes):
                    with self._changed:
                        self._seen.append(step)
                        self._changed.notify_all()
                if len(self._seen) >= self._last:
                    return


@contextmanager
def client(cluster: EtcdCluster, name: str, endpoints: list[str] | None = None) -> Iterator[EtcdLog]:
    """Return a client of a log."""
    with closing(cluster.log(name, endpoints)) as log:
        yield log


@contextmanager
def relayed(cluster: EtcdCluster, name: str) -> Iterator[tuple[EtcdLog, list[CuttingRelay]]]:
    """Return a client that connects through relays, and the relays."""
    with ExitStack() as stack:
        relays = [stack.enter_context(CuttingRelay(int(one.rpartition(":")[2]))) for one in cluster.endpoints]
        addresses = [f"https://127.0.0.1:{relay.port}" for relay in relays]
        yield stack.enter_context(client(cluster, name, addresses)), relays


def test_killed_leader(etcd_cluster: EtcdCluster) -> None:
    """Writer and follower go on when etcd's leader is killed."""
    with Traffic(etcd_cluster, "kills") as traffic:
        for _ in range(KILLS):
            traffic.more(20)
            node = etcd_cluster.leader()
            node.kill()
            traffic.more(20)
            node.start()
            etcd_cluster.wait()
    print(f"\npauses of {KILLS} kills, s: {[round(one, 2) for one in sorted(traffic.pauses)[-KILLS:]]}")  # noqa: T201


def test_frozen_nodes(etcd_cluster: EtcdCluster) -> None:
    """Writer and follower go on when a node is frozen, whether it leads or not, and after it goes on."""
    with Traffic(etcd_cluster, "frozen") as traffic:
        traffic.more(20)
        for leads in (False, True):
            leader = etcd_cluster.leader()
            node = leader if leads else next(one for one in etcd_cluster.nodes if one is not leader)
            node.freeze()
            traffic.more(20)
            node.thaw()
            etcd_cluster.wait()
            traffic.more(20)


def test_all_nodes_killed(etcd_cluster: EtcdCluster) -> None:
    """Without a majority all calls are lost. After a restart nothing is missing."""
    with client(etcd_cluster, "all") as log, reader(etcd_cluster.log("all")) as found:
        head = filled(log, [b"a", b"b"])
        entries_until(found, 2)
        for node in etcd_cluster.nodes:
            node.kill()
        made = following(head)
        with pytest.raises(LogLostError):
            log.append(entry(3), made, head)
        for call in (log.head, lambda: log.read(1, 1), lambda: log.trim(0), log.size, lambda: next(log.follow(1))):
            with pytest.raises(LogLostError):
                call()
        for node in etcd_cluster.nodes:
            node.start()
        etcd_cluster.wait()
        head = insist(log, entry(3), made, head)
        assert len(entries_until(found, 3, 3)) == 1
        assert len(all_entries(log)) == 3


def test_frozen_watch(etcd_cluster: EtcdCluster) -> None:
    """A follower whose node is frozen notices within three seconds, and goes on at another one."""
    watched, other = etcd_cluster.nodes[0], [node.address for node in etcd_cluster.nodes[1:]]
    with client(etcd_cluster, "silent", other) as log, client(etcd_cluster, "silent") as own:
        head = append(log, None)
        with closing(steps(own, 1)) as found:  # type: ignore[type-var]  # a generator
            entries_until(found, 1)
            while next(found) is not None:  # the watch has begun
                head = append(log, head)
            watched.freeze()
            try:
                for _ in range(3):
                    head = append(log, head)
                kinds = [next(found) for _ in range(2)]
                while not (isinstance(kinds[-1], Head) and kinds[-1].index == head.index):
                    kinds.append(next(found))
                assert sum(one is None for one in kinds) <= 2
            finally:
                watched.thaw()
    etcd_cluster.wait()


def test_muted_answers(etcd_cluster: EtcdCluster) -> None:
    """An answer that does not come by its deadline leaves the outcome open; the same call settles it."""
    with relayed(etcd_cluster, "muted") as (log, relays):
        head = append(log, None)
        for relay in relays:
            relay.mute()
        made = following(head)
        with pytest.raises(LogLostError):
            log.append(entry(2, b"x"), made, head)
        for relay in relays:
            relay.unmute()
        with client(etcd_cluster, "muted") as other:
            assert len(all_entries(other)) == 2
        assert insist(log, entry(2, b"x"), made, head).wrote(made)
        assert len(all_entries(log)) == 2
        assert log.failures > 0


def test_no_space(tmp_path: Path) -> None:
    """Over the quota, an append either took effect or is refused, and once an answer was lost it stays unknown."""
    with EtcdCluster(tmp_path, quota_bytes=ROOMY_BYTES) as cluster, relayed(cluster, "full") as (log, relays):
        payload = bytes(4 * MIB)
        heads: list[Head] = []
        with pytest.raises(LogFullError):
            fill(log, heads, payload)
        head = heads[-1]
        with client(cluster, "full") as other:
            assert len(all_entries(other)) == len(heads) == head.index > 1
            with pytest.raises(LogFullError):
                append(other, head)
            with pytest.raises(LogFullError):
                log.prove(1000)
        made = following(head)
        for relay in relays:
            relay.mute()
        with pytest.raises(LogLostError):
            log.append(entry(made.index), made, head)
        for relay in relays:
            relay.unmute()
        head_of(log)  # connects again, so that the next call has no try without an answer
        for _ in range(3):
            with pytest.raises(LogLostError):
                log.append(entry(made.index), made, head)
        found = head_of(log)
        assert found is not None
        assert found.wrote(head)
        log.trim(head.index - 1)
        log._trims[0] = (0.0, log._trims[0][1])
        log.trim(head.index - 1)
        while True:
            cluster.disarm()  # the room is there once etcd has compacted its file
            try:
                head = log.append(entry(made.index), made, head)
            except LogLostError:
                continue
            break
        assert [len(one) for one in all_entries(log, head.index - 1)] == [len(entry(1, payload)), len(entry(1))]


def test_request_size(etcd_cluster: EtcdCluster) -> None:
    """The largest request is proved at each node; a larger entry is refused, and not in the log."""
    with client(etcd_cluster, "sizes") as log:
        head = append(log, None)
        assert log.prove(5 * MIB).quota == log.size().quota > MIB
        with pytest.raises(ConfigurationError):
            log.prove(9 * MIB)
        for size in (9 * MIB, 20 * MIB):  # the second is refused by gRPC
            made = following(head)
            with pytest.raises(LogFullError):
                insist(log, entry(2, bytes(size)), made, head)
        head = append(log, head, bytes(5 * MIB))
        assert head.index == 2
        assert log.announced() == {}


def test_compaction_under_a_late_follower(etcd_cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that is later than the compaction goes on without a gap, or begins again where the log was trimmed."""
    monkeypatch.setattr(etcd, "_COMPACT_AFTER_S", 0.0)
    with client(etcd_cluster, "compact") as log, client(etcd_cluster, "compact") as other:
        head = append(log, None)
        found = other.follow(1)
        assert isinstance(next(found), bytes)
        for number in range(60):
            head = append(log, head, bytes(200_000))
            if number % 10 == 9:
                log.trim(head.index - 40)
        with pytest.raises(LogTrimmedError) as caught:
            entries_until(found, head.index, 2)
        assert caught.value.first == head.index - 39
        with reader(other, caught.value.first) as late:
            assert len(entries_until(late, head.index, caught.value.first)) == 40


@pytest.mark.parametrize("seed", range(3))
def test_a_watch_that_drops_and_repeats(etcd_cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Events that a watch drops, repeats or reverses are noticed by the index."""
    rng = random.Random(seed)  # noqa: S311  # a test
    take = Watch.take
    past: list[Event] = []

    def bad(watch: Watch, timeout_s: float) -> WatchAnswer | None:
        answer = take(watch, timeout_s)
        if answer is None or not answer.events:
            return answer
        events = [one for one in answer.events if rng.random() > 0.2]
        past.extend(events)
        if past and rng.random() < 0.3:
            events.insert(rng.randrange(len(events) + 1), rng.choice(past))
        if rng.random() < 0.1:
            events.reverse()
        return answer._replace(events=events)

    monkeypatch.setattr(Watch, "take", bad)
    with client(etcd_cluster, f"drops-{seed}") as log, client(etcd_cluster, f"drops-{seed}") as other:
        head = append(log, None, b"0")
        payloads = [b"0"]
        with reader(other) as found:
            assert len(entries_until(found, 1)) == 1
            for _ in range(15):
                count = rng.randrange(1, 8)
                for _ in range(count):
                    payloads.append(b"%d" % len(payloads))
                    head = append(log, head, payloads[-1])
                entries = entries_until(found, head.index, head.index - count + 1)
                assert [payload_of(one) for one in entries] == payloads[-count:]


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_damaged_entries(etcd_cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch, nodes: int) -> None:
    """An entry that is damaged at some nodes is read from another one. If all are damaged, the log is."""
    call = Node.call
    damaged = {node.address for node in etcd_cluster.nodes[:nodes]}
    payload = b"to be damaged" * 100

    def flip(node: Node, method: str, request: bytes, timeout_s: float) -> bytes:
        answer = call(node, method, request, timeout_s)
        return answer.replace(payload, payload[:-1] + b"!") if method == TXN and node.address in damaged else answer

    monkeypatch.setattr(Node, "call", flip)
    with client(etcd_cluster, f"damage-{nodes}") as log:
        filled(log, [b"whole", payload, b"whole"])
        if nodes < 3:
            assert [payload_of(one) for one in all_entries(log)] == [b"whole", payload, b"whole"]
            with reader(log) as found:
                assert len(entries_until(found, 3)) == 3
        else:
            assert [payload_of(one) for one in log.read(1, MIB)] == [b"whole"]
            for get in (lambda: log.read(2, MIB), lambda: next(log.follow(2))):
                with pytest.raises(LogDamagedError):
                    get()


def test_damaged_event(etcd_cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that sends a damaged entry is replaced."""
    take = Watch.take

    def flip(watch: Watch, timeout_s: float) -> WatchAnswer | None:
        answer = take(watch, timeout_s)
        if answer is None:
            return None
        events = [
            Event(one.deleted, KeyValue(one.kv.key, one.kv.value[:-1] + b"!", one.kv.mod_revision))
            if b"/e/" in one.kv.key
            else one
            for one in answer.events
        ]
        return answer._replace(events=events)

    monkeypatch.setattr(Watch, "take", flip)
    with client(etcd_cluster, "event") as log, client(etcd_cluster, "event") as other:
        head = append(log, None)
        with reader(other) as found:
            entries_until(found, 1)
            for number in range(5):
                head = append(log, head, b"%d" % number)
                assert [payload_of(one) for one in entries_until(found, head.index, head.index)] == [b"%d" % number]


def test_missing_entry(etcd_cluster: EtcdCluster) -> None:
    """An index that is missing among the entries is damage, and no trimmed log."""
    with client(etcd_cluster, "gap") as log:
        filled(log, [b"a", b"b", b"c"])
        log._call(DELETE_RANGE, delete_range_request(log._entry_key(2)))
        assert [payload_of(one) for one in log.read(1, MIB)] == [b"a"]
        with pytest.raises(LogDamagedError):
            log.read(2, MIB)
        log._call(PUT, put_request(log._head_key, b"no head"))
        for get in (log.head, lambda: log.read(1, 1)):
            with pytest.raises(LogDamagedError):
                get()


def test_a_log_that_begins_again(etcd_cluster: EtcdCluster) -> None:
    """A head with a lower index ends the old log: its entries after that index are gone, and a follower sees the head."""
    with client(etcd_cluster, "again") as log, reader(etcd_cluster.log("again")) as found:
        old = filled(log, [b"1", b"2", b"3"])
        entries_until(found, 3)
        head = insist(log, entry(1, b"new"), following(None, leader="b"), old)
        for step in found:
            if isinstance(step, Head):
                assert (step.index, step.leader) == (1, "b")
                break
        assert [payload_of(one) for one in all_entries(log)] == [b"new"]
        assert log.read(2, MIB) == []
        append(log, head, b"newer")
        assert [payload_of(one) for one in all_entries(log)] == [b"new", b"newer"]
        with reader(log) as late:
            assert [payload_of(one) for one in entries_until(late, 2)] == [b"new", b"newer"]


@pytest.mark.parametrize(
    ("version", "accepted"),
    [
        ("3.6.0", True),
        ("3.6.16", True),
        ("3.7.0-rc.0", True),
        ("4.0", True),
        ("", True),
        ("3.5.21", False),
        ("x", False),
    ],
)
def test_releases(version: str, accepted: bool) -> None:
    """A node with a release before 3.6 is refused, unless it does not answer."""
    size = LogSize(0, 0, 0, (("https://a:1", "3.6.0"), ("https://b:1", version)))
    if accepted:
        check_releases(size)
        return
    with pytest.raises(ConfigurationError):
        check_releases(size)


def test_an_old_node(etcd_cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log on a node with an old release is refused before anything is written."""
    status = Nodes.status

    def old(nodes: Nodes) -> list[tuple[str, StatusAnswer | None]]:
        (address, first), *others = status(nodes)
        return [(address, first and first._replace(version="3.5.21")), *others]

    with client(etcd_cluster, "old") as log:
        log.check()
        monkeypatch.setattr(Nodes, "status", old)
        for call in (log.check, lambda: log.prove(1000)):
            with pytest.raises(ConfigurationError):
                call()


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:2379", "127.0.0.1:2379", "https://127.0.0.1", "https://:2379", "https://a:b"]
)
def test_bad_endpoints(etcd_cluster: EtcdCluster, endpoint: str) -> None:
    """An endpoint is an address with https and a port."""
    with pytest.raises(ConfigurationError):
        etcd_cluster.log("x", [endpoint])


def test_certificates(etcd_cluster: EtcdCluster, certificates: Path) -> None:
    """A missing file is an error at once. Nodes of another authority, and nodes that refuse the certificate, do not answer."""
    own = etcd_cluster.certificates
    files = (own / "ca.pem", own / "client.pem", own / "client.key")
    for missing in range(3):
        with pytest.raises(CertificateFileError):
            EtcdLog(
                "x", etcd_cluster.endpoints, *(own / "none" if at == missing else file for at, file in enumerate(files))
            )
    with pytest.raises(ConfigurationError):
        EtcdLog("x", [], *files)
    foreign = (certificates / "ca.pem", certificates / "operator.pem", certificates / "operator.key")
    for ca, pair in ((foreign[0], files[1:]), (files[0], foreign[1:])):
        with closing(EtcdLog("x", etcd_cluster.endpoints, ca, *pair)) as log:
            for call in (log.head, log.size):
                with pytest.raises(LogLostError):
                    call()


def fill(log: EtcdLog, heads: list[Head], payload: bytes) -> None:
    """Append until the log refuses it."""
    while True:
        heads.append(append(log, heads[-1] if heads else None, payload))

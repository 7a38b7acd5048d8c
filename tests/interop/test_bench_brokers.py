"""The brokers that are compared, each as the load meets it; a peer that is not installed is skipped."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from maxam.bench.errors import LoadError
from maxam.bench.target import Line, Role
from maxam.stomp.frames import Frame
from tests.benchmarks.brokers import activemq, artemis, maxam, process, rabbitmq
from tests.benchmarks.brokers.broker import Broker
from tests.benchmarks.readings import meter_reading

CORE = min(os.sched_getaffinity(0))
CORES = {CORE}
TOPICS = 10
VALUES = 1000

_RABBITMQ = pytest.mark.skipif(not rabbitmq.installed(), reason="no RabbitMQ here: make test-deps")
_ARTEMIS_HOME = Path(folder) if (folder := os.environ.get("MAXAM_BENCH_ARTEMIS")) else None
_ARTEMIS = pytest.mark.skipif(
    not artemis.installed(_ARTEMIS_HOME), reason="no release of Artemis in $MAXAM_BENCH_ARTEMIS"
)
_ACTIVEMQ = pytest.mark.skipif(not activemq.installed(), reason="no ActiveMQ here: make test-deps")
Start = Callable[[], contextlib.AbstractContextManager[Broker]]


def _frame(command: str, headers: Sequence[tuple[str, str]], body: bytes = b"") -> bytes:
    lines = [command, *[f"{name}:{value}" for name, value in headers], "", ""]
    return "\n".join(lines).encode() + body + b"\0"


def _send(broker: Broker, topic: str, number: int, body: bytes) -> bytes:
    head = [
        ("destination", topic),
        ("number", str(number)),
        ("receipt", str(number)),
        ("content-length", str(len(body))),
    ]
    head += [(name, value.replace("{destination}", topic)) for name, value in broker.send_headers]
    return _frame("SEND", head, body)


def _subscribe(broker: Broker, line: Line, ack: str) -> None:
    syntax = broker.target.syntax
    for number in range(TOPICS) if broker.each_topic else (None,):
        glob = syntax.glob if number is None else syntax.topic(number)
        line.subscribe(f"s{number}", glob, ack, headers=broker.subscribe_headers)


def _message(line: Line) -> Frame:
    while (found := line.next()).command != b"MESSAGE":
        assert found.command == b"RECEIPT", found
    return found


def _threads_cores(pid: int) -> set[str]:
    cores = set()
    for task in [task for member in process.tree(pid) for task in Path(f"/proc/{member}/task").iterdir()]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            cores.add((task / "status").read_text().split("Cpus_allowed_list:")[1].split()[0])
    return cores


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextlib.contextmanager
def _lines(broker: Broker) -> Iterator[tuple[Line, Line]]:
    publisher, subscriber = broker.target.connect(Role.PUBLISHER), broker.target.connect(Role.SUBSCRIBER)
    try:
        yield publisher, subscriber
    finally:
        publisher.close()
        subscriber.close()


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(lambda: maxam.gateway(CORES, settings="[limits]\nframe_headers_max = 99"), id="maxam"),
        pytest.param(lambda: rabbitmq.rabbitmq(CORES), id="rabbitmq", marks=_RABBITMQ),
        pytest.param(lambda: activemq.activemq(CORES), id="activemq", marks=_ACTIVEMQ),
        pytest.param(lambda: artemis.artemis(CORES, _ARTEMIS_HOME), id="artemis", marks=_ARTEMIS),
        pytest.param(
            lambda: artemis.artemis(CORES, _ARTEMIS_HOME, artemis.Kind.FSYNC), id="artemis-fsync", marks=_ARTEMIS
        ),
    ],
)
def test_a_value_with_its_user_header_goes_through_each_broker_which_keeps_its_core_and_leaves_nothing(
    start: Start,
) -> None:
    """Over mutual TLS a SEND has its RECEIPT and reaches a wildcard with header and body. All threads are on the core, and all end."""
    body = meter_reading(120)
    with start() as broker:
        with _lines(broker) as (publisher, subscriber):
            _subscribe(broker, subscriber, "auto")
            topic = broker.target.syntax.topic(7)
            publisher.write(_send(broker, topic, 3, body))
            assert publisher.receipt().headers[b"receipt-id"] == b"3"
            message = _message(subscriber)
            assert (message.headers[b"number"], message.body) == (b"3", body)
            assert message.headers[b"destination"].decode() == topic
        members = process.tree(broker.pid)
        assert _threads_cores(broker.pid) == {str(CORE)}
        assert broker.cpu_s() > 0
        assert broker.resident_mib() > 10
        assert broker.version[0].isdecimal()
        assert "\n" not in broker.configuration
        assert "TLS 1.3" in broker.configuration
    assert not [pid for pid in members if _runs(pid)]


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(lambda: maxam.gateway(CORES, durability="none"), id="maxam"),
        pytest.param(lambda: rabbitmq.rabbitmq(CORES, last_value=True), id="rabbitmq", marks=_RABBITMQ),
        pytest.param(lambda: activemq.activemq(CORES, last_value_topics=TOPICS), id="activemq", marks=_ACTIVEMQ),
        pytest.param(
            lambda: artemis.artemis(CORES, _ARTEMIS_HOME, artemis.Kind.LAST_VALUE), id="artemis", marks=_ARTEMIS
        ),
    ],
)
def test_a_last_value_variant_owes_a_consumer_that_waits_two_values_a_topic_at_most(start: Start) -> None:
    """A consumer that acknowledges nothing until 1,000 values of 10 topics are sent gets 20 at most, and the last of each topic last."""
    body = meter_reading(120)
    with start() as broker, _lines(broker) as (publisher, subscriber):
        _subscribe(broker, subscriber, "client" if broker.name == "maxam" else "client-individual")
        for first in range(0, VALUES, TOPICS):
            for number in range(first, first + TOPICS):
                publisher.write(_send(broker, broker.target.syntax.topic(number % TOPICS), number, body))
            for _ in range(TOPICS):
                publisher.receipt()
            stored_ms = time.time_ns() // 1_000_000
            while time.time_ns() // 1_000_000 == stored_ms:
                pass  # ActiveMQ distinguishes older from newer by its clock's milliseconds
        last: dict[int, int] = {}
        taken = 0
        while sorted(last.values()) != list(range(VALUES - TOPICS, VALUES)):
            message = _message(subscriber)
            number = int(message.headers[b"number"])
            assert number > last.get(number % TOPICS, -1)
            last[number % TOPICS] = number
            taken += 1
            subscriber.write(_frame("ACK", [("id", message.headers[b"ack"].decode())]))
        assert taken <= 2 * TOPICS


def test_what_a_broker_started_ends_with_it(tmp_path: Path) -> None:
    """A child that does not notice that its parent ends is ended too, and counted while it lives."""
    with process.process(["sh", "-c", "sleep 60 & echo ready; wait"], tmp_path, CORES, "ready") as started:
        members = process.tree(started.pid)
        assert len(members) == 2
        assert process.resident_mib(started.pid) > process.resident_mib(members[1])
    assert not [pid for pid in members if _runs(pid)]


def test_a_daemon_that_left_the_family_ends_with_its_broker(tmp_path: Path) -> None:
    """One in a session of its own, whose parent has ended, is no descendant. It is ended all the same, with what it starts."""
    script = "(setsid sh -c 'echo $$ >pid; sleep 60; true' &) ; until [ -s pid ]; do :; done; echo ready; sleep 60"
    with process.process(["sh", "-c", script], tmp_path, CORES, "ready") as started:
        daemon = int((tmp_path / "pid").read_text())
        assert daemon not in process.tree(started.pid)
        members = process.tree(daemon)
    assert not [pid for pid in members if _runs(pid)]


def test_a_command_that_ends_before_it_is_ready_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    """The last output of a broker that gave up is in the error's text."""
    with (
        pytest.raises(LoadError, match=r"sh ended with 3.*\n.*no licence"),
        process.process(["sh", "-c", "echo no licence; exit 3"], tmp_path, CORES, "ready"),
    ):
        pass

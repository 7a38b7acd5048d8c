"""The values of a reader that stopped for a while and reads on, from the real gateway over real sockets."""

import itertools
import random
import threading
from collections.abc import Iterator

import pytest

from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import Frame
from tests.support.gateway_folder import BlockingClient, GatewayFolder, GatewayProcess

pytestmark = pytest.mark.slow

TOPICS = [b"X/EGM.Q.%05d.EGMMeterReading" % number for number in range(100)]
ROUNDS = 100  # of updates of all topics while the reader stalls: many times what any buffer holds
STALE_BYTES_MAX = 65_536
RECEIVE_BUFFER_BYTES = 16_384  # the client's kernel holds some 28 KiB then, which no broker can take back


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Run a gateway."""
    with GatewayFolder(tmp_path_factory.mktemp("gateway")).start() as process:
        yield process
        assert process.stop() == 0
        assert "internal-error" not in process.log()


def subscriber(gateway: GatewayProcess, ack: bytes) -> BlockingClient:
    """Connect one with a small receive buffer and subscribe to all topics."""
    client = BlockingClient(
        gateway.port, gateway.files.folder / "certs", "subscriber", receive_buffer_bytes=RECEIVE_BUFFER_BYTES
    )
    client.write(encoder.connect("MAXVAPI"))
    assert client.frame().command == b"CONNECTED"
    client.write(encoder.subscribe(VERSION_1_2, b"s", b"X/EGM.*", ack, receipt_id=b"subscribed"))
    assert client.frame().command == b"RECEIPT"
    return client


def publish(client: BlockingClient, bodies: dict[bytes, bytes]) -> None:
    """Send one value to each topic and see all of them accepted."""
    client.write(b"".join([encoder.send(VERSION_1_2, t, body, receipt_id=b"r") for t, body in bodies.items()]))
    for _ in bodies:
        assert client.frame().headers[b"disposition"] == b"accepted"


def wire_bytes(frame: Frame) -> int:
    """Return what a frame took on the wire."""
    lines = sum(len(name) + len(value) + 2 for name, value in frame.headers.items())
    return len(frame.command) + 1 + lines + 1 + len(frame.body) + 1


@pytest.mark.parametrize("ack", [b"auto", b"client"])
@pytest.mark.parametrize("body_bytes", [100, 2000, 20_000])
def test_little_is_stale_after_a_stall(gateway: GatewayProcess, ack: bytes, body_bytes: int) -> None:
    """A reader that stopped during 10,000 updates gets at most 64 KiB that is not its topic's newest, and every newest."""
    order = random.Random(7)  # noqa: S311  # to be repeatable
    bodies: dict[bytes, bytes] = {}
    with subscriber(gateway, ack) as stalled, gateway.client() as publisher:
        for number in range(ROUNDS):
            topics = order.sample(TOPICS, len(TOPICS))  # no topic is always the last
            bodies = {topic: (b"%06d" % number).ljust(body_bytes, b".") for topic in topics}
            publish(publisher, bodies)
        missing = dict(bodies)
        stale_bytes = 0
        while missing:
            frame = stalled.frame()
            topic = frame.headers[b"destination"]
            if frame.body != bodies[topic]:
                stale_bytes += wire_bytes(frame)
            else:
                del missing[topic]  # a KeyError here is a newest value that came twice
            if ack == b"client":
                stalled.write(encoder.ack(VERSION_1_2, b"s", frame.headers[b"message-id"]))
        assert stale_bytes <= STALE_BYTES_MAX


def test_acks_of_fifty_messages_never_stall(gateway: GatewayProcess) -> None:
    """A client that acks every 50th message goes on receiving for as long as values come."""
    enough = threading.Event()

    def keep_publishing() -> None:
        with gateway.client() as publisher:
            for number in itertools.count():
                if enough.is_set():
                    return
                publish(publisher, dict.fromkeys(TOPICS, b"%d" % number))

    with subscriber(gateway, b"client") as reader:
        publishing = threading.Thread(target=keep_publishing)
        publishing.start()
        try:
            for number in range(1, 2001):
                frame = reader.frame()  # raises when there is none
                if number % 50 == 0:
                    reader.write(encoder.ack(VERSION_1_2, b"s", frame.headers[b"message-id"]))
        finally:
            enough.set()
            publishing.join()


def test_a_stalled_reader_delays_nobody(gateway: GatewayProcess) -> None:
    """While one reader takes nothing, another on the same topics receives each value before the next is sent."""
    with subscriber(gateway, b"auto"), subscriber(gateway, b"auto") as reader, gateway.client() as publisher:
        for number in range(300):
            topic = TOPICS[number % len(TOPICS)]
            body = b"%06d" % number + bytes(1000)
            assert publisher.send(topic, body) == b"accepted"
            frame = reader.frame()
            assert (frame.headers[b"destination"], frame.body) == (topic, body)

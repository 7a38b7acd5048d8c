"""The far link of the load tool: order, delay, and what comes back to a sender that is not read."""

import socket

import pytest

from maxam.bench.relay import Relay, Way
from maxam.bench.target import Target
from maxam.bench.worker import Times
from tests.support.patience import PATIENCE_S


@pytest.mark.parametrize("jitter_ns", [0, 30])
def test_bytes_arrive_in_order_after_the_way(jitter_ns: int) -> None:
    """Each piece arrives no earlier than its way takes, no later than jitter and those ahead of it allow, and in order."""
    way = Way(100, jitter_ns, seed=1)
    for now_ns in range(0, 500, 10):
        way.put(b"%04d" % now_ns, now_ns)
    assert way.bytes == 200
    got = b""
    for now_ns in range(0, 1000, 10):
        got += way.take(now_ns)
        pieces = len(got) // 4
        assert pieces <= max(0, (now_ns - 100) // 10 + 1)
        assert pieces >= min(50, (now_ns - 100 - jitter_ns) // 10 + 1)
    assert got == b"".join(b"%04d" % now_ns for now_ns in range(0, 500, 10))
    assert (way.bytes, way.due_ns) == (0, None)


def test_what_comes_together_goes_on_together() -> None:
    """Pieces that are due leave as one, so the relay does not lower a rate by the number of its calls."""
    way = Way(100, 0, seed=1)
    for now_ns in (1, 2, 3):
        way.put(b"x", now_ns)
    assert way.due_ns == 101
    assert way.take(100) == b""
    assert way.take(103) == b"xxx"


def test_a_relay_forwards_both_ways_and_the_end() -> None:
    """Two megabytes come back as they were sent, then the close of one side reaches the other; its use is reported."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = Relay(Target("127.0.0.1", listener.getsockname()[1]), 2.0, 1.0, None)
        try:
            client = socket.create_connection((relay.target.host, relay.target.port), PATIENCE_S)
            broker = listener.accept()[0]
            broker.settimeout(PATIENCE_S)
            with client, broker:
                relay.begin(Times(0, 0, 0, 0))
                sent = bytes(range(256)) * 8192
                for start in range(0, len(sent), 16_384):
                    client.sendall(sent[start : start + 16_384])
                    got = b""
                    while len(got) < 16_384:
                        got += broker.recv(65_536)
                    broker.sendall(got)
                    back = b""
                    while len(back) < 16_384:
                        back += client.recv(65_536)
                    assert back == sent[start : start + 16_384]
                broker.shutdown(socket.SHUT_WR)
                assert client.recv(1) == b""
            assert relay.finish().busy >= 0.0
        finally:
            relay.end()

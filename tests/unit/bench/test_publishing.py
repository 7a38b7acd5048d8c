"""When the load's SENDs leave."""

import socket
import time

from maxam.bench.plan import Plan
from maxam.bench.publishing import Published, _Publisher
from maxam.bench.target import Line, Target
from maxam.bench.worker import Times

TARGET = Target("127.0.0.1", 1)
AHEAD_NS = 2_000_000
NEVER_NS = 2**63


def test_a_send_made_ready_before_it_is_due_leaves_when_it_is() -> None:
    """Nothing is written before its time, and overdue values at once. Both have the time of writing."""
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        result = Published(1)
        publisher = _Publisher(
            Line(near, None, "test"), Plan(TARGET, (b"x",)), Times(0, NEVER_NS, NEVER_NS, NEVER_NS), result
        )
        due_ns = time.monotonic_ns() + AHEAD_NS
        written_ns = publisher.write_due(b"first", 1, due_ns)
        assert due_ns <= written_ns <= time.monotonic_ns()
        assert publisher.write_due(b"second", 2, due_ns) >= written_ns
        assert far.recv(100) == b"firstsecond"
        assert (publisher.sent, result.sent, result.last_sent_ns >= written_ns) == (3, 3, True)

"""Connections as such: how many come and go in a second, and what one that does nothing costs."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from maxam.bench.errors import LoadError
from maxam.bench.target import Line, Role, Target
from maxam.bench.worker import Channel

_FILES_SPARE: Final = 100  # open files of this process besides the connections


def come_and_go(channel: Channel, target: Target, seconds: float) -> int:
    """Connect, CONNECT, DISCONNECT with a receipt, again and again; return how often.

    Raises:
        LoadError: The broker refuses one.
    """
    files = target.subscriber
    context = None if files is None else files.context()
    begin_s = channel.ready().origin_ns / 1e9
    time.sleep(max(0.0, begin_s - time.monotonic()))
    count = 0
    while time.monotonic() - begin_s < seconds:
        line = target.connect(Role.SUBSCRIBER, context=context)
        line.write(b"DISCONNECT\nreceipt:bye\n\n\0")
        line.receipt()
        line.close()
        count += 1
    return count


def allow_connections(number: int) -> None:
    """Raise the limit of open files of this process so that it may have N connections.

    Raises:
        LoadError: This system allows fewer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _FILES_SPARE
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise LoadError(
                f"{number} connections need {wanted} open files, and this system allows {hard}; see `ulimit -n`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def held(target: Target, number: int) -> Iterator[list[Line]]:
    """Hold N connections that do nothing.

    Raises:
        LoadError: The broker or this system allows fewer.
    """
    allow_connections(number)
    files = target.subscriber
    context = None if files is None else files.context()
    lines: list[Line] = []
    try:
        lines.extend(target.connect(Role.SUBSCRIBER, context=context) for _ in range(number))
        yield lines
    finally:
        for line in lines:
            line.close()

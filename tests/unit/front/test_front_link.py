"""One end of a link of a front: the same over a pair of sockets and over TLS."""

import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from maxam.cluster import wire
from maxam.gateway.front_link import FrontLink, FrontLinkError
from tests.support.patience import PATIENCE_S

Pair = tuple[socket.socket, socket.socket]


def plain(_certificates: Path) -> Pair:
    """Return a pair of sockets."""
    return socket.socketpair()


def over_tls(certificates: Path) -> Pair:
    """Return both ends of a TLS connection."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    client = ssl.create_default_context(cafile=certificates / "ca.pem")
    near, far = socket.socketpair()
    ends: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: ends.append(server.wrap_socket(far, server_side=True)))
    thread.start()
    made = client.wrap_socket(near, server_hostname="localhost")
    thread.join()
    return made, ends[0]


both = pytest.mark.parametrize("pair", [plain, over_tls])


@both
def test_frames_arrive_whole_and_in_order_both_ways(pair: Callable[[Path], Pair], certificates: Path) -> None:
    """Small ones and ones that are larger than all buffers, while both ends send. The bytes sent are counted."""
    frames = [wire.frame(wire.OPS, bytes([number]) * size) for number, size in enumerate((0, 1, 20_000, 9_000_000, 3))]

    async def run() -> None:
        ends = [FrontLink(one, 1 << 28) for one in pair(certificates)]
        got: list[list[bytes]] = [[], []]
        async with trio.open_nursery() as nursery:
            for end, found in zip(ends, got, strict=True):
                nursery.start_soon(end.run, lambda some, found=found: found.extend(one.body for one in some))
            for frame in frames:
                for end in ends:
                    end.send(frame)
            with trio.fail_after(PATIENCE_S):
                while min(map(len, got)) < len(frames):  # noqa: ASYNC110  # of two tasks
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert got[0] == got[1] == [frame[5:] for frame in frames]
        assert [end.sent_bytes for end in ends] == [sum(map(len, frames))] * 2

    trio.run(run)


@both
def test_a_peer_that_reads_nothing_ends_the_link(pair: Callable[[Path], Pair], certificates: Path) -> None:
    """No more than the limit waits for it, and nothing waits in `send`."""

    async def run() -> None:
        near, far = pair(certificates)
        link = FrontLink(near, 20_000_000)
        for _ in range(4):
            link.send(wire.frame(wire.OPS, bytes(9_000_000)))
        with pytest.RaisesGroup(pytest.RaisesExc(FrontLinkError, match="the peer hangs")), trio.fail_after(PATIENCE_S):
            await link.run(lambda _frames: None)
        far.close()

    trio.run(run)


def test_a_link_goes_on_with_what_was_read_before(certificates: Path) -> None:
    """Frames that the owner before has read come first, and a frame of which it has read a part is completed."""
    frames = [wire.frame(wire.OPS, b"%d" % number) for number in range(3)]

    async def run() -> None:
        near, far = over_tls(certificates)
        reader = wire.FrameReader()
        received = reader.feed(frames[0] + frames[1][:3])
        far.sendall(frames[1][3:] + frames[2])
        got: list[bytes] = []
        async with trio.open_nursery() as nursery:
            link = FrontLink(near, 1 << 20, reader, received)
            nursery.start_soon(link.run, lambda some: got.extend(one.body for one in some))
            with trio.fail_after(PATIENCE_S):
                while len(got) < 3:  # noqa: ASYNC110  # of another task
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert got == [b"0", b"1", b"2"]
        far.close()

    trio.run(run)

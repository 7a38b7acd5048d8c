"""Many connections of one principal that send nothing but expensive frames, beside a publisher of another one."""

import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from maxam.gateway import transport
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.support.living_gateway import EVERYTHING, Site, living, run

CONNECTIONS = 40
FRAMES = 50
SENDS = 30
PASSES_PER_SEND = 12  # of the event loop, between a SEND and its RECEIPT in a client of the same loop
GLOB = "X/" + "*[a-z0-9!-~]abcdefghabcdefgha" * 15


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """The files of a gateway with two clients."""
    return Site(tmp_path, "anna", "ben")


@pytest.mark.parametrize("publisher", ["anna", "ben"])
def test_expensive_frames_on_many_connections_hold_up_no_publisher(site: Site, publisher: str) -> None:
    """Per SEND of a publisher a few expensive frames are handled, however many connections send them, also if it shares their principal."""
    site.policy({"anna": EVERYTHING, "ben": EVERYTHING})
    subscribe = encoder.subscribe(VERSION_1_2, b"s", GLOB.encode(), b"auto", receipt_id=None)
    flood = (subscribe + encoder.unsubscribe(VERSION_1_2, b"s")) * FRAMES

    async def test() -> None:
        async with living(site) as gateway, AsyncExitStack() as stack:
            hostile = [await stack.enter_async_context(gateway.client("ben", f"{at}")) for at in range(CONNECTIONS)]
            one = await stack.enter_async_context(gateway.client(publisher, "publisher"))
            peers = [one.peer for one in gateway.gateway.connections if one.peer is not None]

            def handled() -> int:
                return sum(peer.frames for peer in peers if peer.client_id != "publisher")

            # A clock on which each expensive frame takes 10 ms and nothing else takes any time.
            clock = SimpleNamespace(perf_counter=lambda: handled() * 0.005, time_ns=time.time_ns)
            before = handled()
            with patch.object(transport, "time", clock):
                for client in hostile:
                    await client.write(flood)
                for _ in range(SENDS):
                    assert (await one.send("X/a", b"v"))[0] == b"accepted"
                assert 0 < (handled() - before) / 2 < SENDS * PASSES_PER_SEND + CONNECTIONS

    run(test)

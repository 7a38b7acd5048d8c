"""Memory of links that have ended."""

import gc
import ssl
import weakref
from pathlib import Path

import pytest
import trio

from maxam.cluster import wire
from maxam.cluster.link import Link, LinkLostError, connect
from maxam.journal.encoding import START
from maxam.link_config import LinkSettings
from tests.support.living_gateway import Living, Site, living, run, until


def _link(gateway: Living, context: ssl.SSLContext) -> Link:
    links = gateway.gateway.links
    assert links is not None
    assert links.address is not None
    link = connect("127.0.0.1", links.address[1], context, lambda: START, lambda: "")
    link.send(wire.encode_hello(wire.Hello(wire.FEED, "follower", "1", "", START)))
    return link


def _end(link: Link, data: bytes) -> None:
    link.send(data)
    with pytest.raises(LinkLostError):
        _read_on(link)
    link.close()


def _read_on(link: Link) -> None:
    while True:
        link.expect()


@pytest.mark.parametrize("data", [b"", wire.frame(wire.LIST, b""), b"\0\0\0\0\xff"])
def test_nothing_of_an_ended_link_stays(tmp_path: Path, data: bytes) -> None:
    """Its buffers are megabytes. The search of cycles is rare, so if they waited for it, a line that flaps would fill the memory."""

    async def test() -> None:
        site = Site(tmp_path, "follower")
        site.policy({"follower": {"admin": ["replicate"]}})
        async with living(site, link=LinkSettings("127.0.0.1", 0)) as gateway:
            links = gateway.gateway.links
            assert links is not None
            await until(lambda: links.address is not None)
            link = await trio.to_thread.run_sync(_link, gateway, site.context("follower"))
            await until(lambda: bool(links.states))
            there = weakref.ref(next(iter(links.states)))
            gc.disable()
            try:
                if data:
                    await trio.to_thread.run_sync(_end, link, data)
                else:
                    link.close()
                await until(lambda: not links.states)
                await until(lambda: there() is None)
            finally:
                gc.enable()

    run(test)

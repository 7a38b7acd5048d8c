"""Live views over real TLS: what begins them, what they outlast, and what ends them."""

import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import h11
import pytest
import trio

from maxam.api import application as api
from maxam.api import service
from maxam.api.listener_limits import ListenerLimits
from maxam.api.live import shared, views
from maxam.audit_chain import Checker, read_folder
from maxam.gateway.audit import audit_folder
from maxam.links import CENTRE, PAUSED, UP, Link, LinkRoute
from tests.support.living_gateway import EVERYTHING, Living, Site, living, until
from tests.support.patience import PATIENCE_S

READS = EVERYTHING | {"admin": ["read"]}


class Tab:
    """A browser tab's connection with one request."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.data = b""
        self.ended = False  # as HTTP ends a response; without it the connection was cut

    async def ask(self, target: str, method: str = "GET") -> None:
        """Send the request."""
        data = self._http.send(h11.Request(method=method, target=target, headers=[("host", "localhost")]))
        assert data is not None
        await self.stream.send_all(data + (self._http.send(h11.EndOfMessage()) or b""))

    async def read(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Read until there is enough, or to the end."""
        while not enough():
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                try:
                    data = bytes(await self.stream.receive_some(65_536))
                except trio.BrokenResourceError:
                    return
                if not data:
                    return
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                self.status, self.headers = event.status_code, dict(event.headers)
            elif isinstance(event, h11.Data):
                self.data += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self.ended = True
                return

    async def events(self, count: int) -> list[tuple[str, Any]]:
        """Read on until N events have come."""
        pattern = re.compile(r"event: (\w+)\ndata: (.*)\n\n")
        await self.read(lambda: len(pattern.findall(self.data.decode())) >= count)
        return [(kind, json.loads(data)) for kind, data in pattern.findall(self.data.decode())]


@asynccontextmanager
async def tab(
    g: Living, target: str = "/v1/live", who: str = "reader", method: str = "GET", receive_bytes: int | None = None
) -> AsyncIterator[Tab]:
    """Open a tab for the length of a block."""
    raw = trio.socket.socket()
    if receive_bytes is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    await raw.connect(("127.0.0.1", g.admin_port))
    stream = trio.SSLStream(trio.SocketStream(raw), g.site.context(who), https_compatible=True)
    try:
        opened = Tab(stream)
        await opened.ask(target, method)
        yield opened
    finally:
        await trio.aclose_forcefully(stream)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return the files of a gateway whose `reader` is a publisher that may read the console."""
    made = Site(tmp_path, "reader", "other")
    made.policy({"reader": READS, "other": READS})
    return made


def run(site: Site, test: Callable[[Living], Awaitable[None]]) -> None:
    """Run a test beside a gateway."""

    async def main() -> None:
        async with living(site) as g:
            await test(g)

    trio.run(main)


def limited(monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
    """Have the admin listener made with other limits."""
    monkeypatch.setattr(service, "ListenerLimits", partial(ListenerLimits, **limits))


def test_a_stream_outlasts_the_limits_of_requests(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the time that a request may take nor that between two requests ends it."""
    monkeypatch.setattr(api, "REQUEST_TIMEOUT_S", 0.5)  # the request itself must come in time
    monkeypatch.setattr(views, "PING_S", 1.5)
    limited(monkeypatch, request_head_timeout_s=0.5)

    async def test(g: Living) -> None:
        async with tab(g) as one, g.client("reader") as client:
            await one.events(2)
            assert (one.status, one.headers[b"content-type"]) == (200, b"text/event-stream")
            assert one.headers[b"cache-control"] == b"no-store"
            while sum(kind == "ping" for kind, _ in await one.events(3)) < 1:
                pass
            await client.send("X/A.1", b"v")
            found = await one.events(len(await one.events(3)) + 1)
            assert any("X/A.1" in told.get("destinations", ()) for _, told in found)

    run(site, test)


def test_topics_are_unknown_while_their_link_is_down(site: Site) -> None:
    """The event `unknown` has the topics of a link that is paused and no others, and none once it is up again."""
    (site.schemas / "registry.toml").write_text('[[rule]]\ndestination = "*/**"\nencoding = "none"\n')
    site.policy({"reader": READS | {"send": ["**"]}})

    async def unknown(one: Tab, number: int) -> dict[str, str]:
        await one.read(lambda: one.data.count(b"event: unknown\n") >= number)
        found: dict[str, str] = [told["since"] for kind, told in await one.events(1) if kind == "unknown"][-1]
        return found

    async def test(g: Living) -> None:
        async with tab(g, "/v1/live?glob=X/*") as one, g.client("reader") as client:
            for topic in ("X/A.1", "X/B.1"):
                await client.send(topic, b"v")
            await one.read(lambda: b"X/B.1" in one.data)
            for number, (state, names) in enumerate([(PAUSED, {"X/A.1"}), (UP, set())], 1):
                link = Link("V7", "centre", CENTRE, state, "", 0, 0, "", 600, "a", "b", (LinkRoute(UP, "Y/A.*", "X"),))
                assert await client.send("B/V7.Link", link.encoded()) == (b"accepted", b"")
                assert set(await unknown(one, number)) == names

    run(site, test)


def test_what_is_asked_wrongly_is_told(site: Site) -> None:
    """Parameters are checked before anything is streamed, and a HEAD has no stream."""

    async def test(g: Living) -> None:
        for query, code in (
            ("glob=X%2F[", "invalid-glob"),
            ("rows=0", "invalid-parameter"),
            ("rows=201", "invalid-parameter"),
            ("rows=%C2%B2", "invalid-parameter"),
            ("every_ms=249", "invalid-parameter"),
            ("every_ms=60001", "invalid-parameter"),
            ("pii=1", "invalid-parameter"),
            ("every=1", "invalid-parameter"),
        ):
            async with tab(g, f"/v1/live?{query}") as one:
                await one.read()
                assert (one.status, json.loads(one.data)["error"]) == (400, code), query
        async with tab(g, method="HEAD") as one:
            await one.read(lambda: bool(one.status))
            assert (one.status, one.data) == (200, b"")

    run(site, test)


def test_a_tab_too_many_is_told_and_one_that_leaves_makes_room(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """429 for one principal, 503 for all; a place is free as soon as its reader has gone."""
    monkeypatch.setattr(shared, "STREAMS_OF_PRINCIPAL_MAX", 2)
    monkeypatch.setattr(shared, "STREAMS_MAX", 3)

    async def refusal(g: Living, who: str) -> tuple[int, str]:
        async with tab(g, who=who) as one:
            await one.read()
            return one.status, json.loads(one.data)["error"]

    async def test(g: Living) -> None:
        async with tab(g) as first, tab(g, who="other") as third:
            async with tab(g) as second:
                for one in (first, second, third):
                    await one.events(1)
                assert await refusal(g, "reader") == (429, "too-many-streams")
                assert await refusal(g, "other") == (503, "too-many-streams")
            while (await refusal_or_none(g)) is not None:
                pass

    async def refusal_or_none(g: Living) -> str | None:
        async with tab(g) as one:
            await one.read(lambda: bool(one.data))
            return None if one.status == 200 else str(one.status)

    run(site, test)


def test_rights_and_certificates_count_while_it_lasts(site: Site) -> None:
    """After a reload that takes the right, and after one that revokes the certificate, a stream reports the reason and ends."""

    async def test(g: Living) -> None:
        async with tab(g) as one, tab(g, who="other") as other:
            await one.events(2)
            await other.events(2)
            site.policy({"reader": EVERYTHING, "other": READS})
            await g.reload()
            await one.read()
            assert '"error":"forbidden"' in one.data.decode()
            assert one.ended
            site.revoke("other")
            await g.reload()
            await other.read()
            assert '"error":"certificate-refused"' in other.data.decode()
        async with tab(g) as one:
            await one.read()
            assert (one.status, json.loads(one.data)["error"]) == (403, "forbidden")

    run(site, test)


def test_a_reader_that_does_not_read_is_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tab that takes nothing for the listener's write timeout loses its connection; nothing was queued for it meanwhile."""
    limited(monkeypatch, write_timeout_s=0.3)
    monkeypatch.setattr(views, "BYTES_PER_S_MAX", 2**24)  # the buffers of both sockets fill at once

    async def test(g: Living) -> None:
        async with g.client("reader") as client, tab(g, "/v1/live?rows=200&every_ms=250", receive_bytes=2048) as one:
            await client.send("X/A", b"x")
            await one.read(lambda: bool(one.status))
            while g.gateway.access.admin_connections:
                for number in range(200):
                    await client.send(f"X/A.{number}", b"y" * 500)
            await one.read()
            assert not one.ended
            assert len(one.data) < 200_000

    run(site, test)


@pytest.mark.parametrize("reads", [True, False])
def test_a_stop_waits_for_no_stream(site: Site, monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    """When the gateway stops a stream ends as HTTP ends responses, and a client that does not read is closed, however long writes may take."""
    limited(monkeypatch, write_timeout_s=1e6, graceful_timeout_s=PATIENCE_S if reads else 0.1)

    async def main() -> None:
        async with living(site) as g:
            async with g.client("reader") as client:
                for number in range(200):
                    await client.send(f"X/A.{number}", b"x" * 500)
            async with tab(g, "/v1/live?rows=200&every_ms=250", receive_bytes=None if reads else 2048) as one:
                if reads:
                    await one.events(1)
                else:
                    await one.read(lambda: bool(one.status))
                g.gateway.stop()
                if reads:
                    await one.read()
                    assert one.ended
                await until(lambda: not g.gateway.access.admin_connections)

    trio.run(main)


def test_asking_for_personal_fields_is_audited(site: Site) -> None:
    """The audit log has each operator who has read personal fields, with the topics, and no other."""

    async def test(g: Living) -> None:
        async with tab(g) as one:
            await one.events(1)
        async with tab(g, "/v1/live?glob=X%2FA*&pii=true") as one:
            await one.events(1)

    run(site, test)
    lines = [line.facts for line in read_folder(audit_folder(site.settings), Checker())]
    asked = [line for line in lines if line.get("path") == "/v1/live"]
    assert [(line["principal"], line["reason"]) for line in asked] == [("reader", "with personal fields of X/A*")]

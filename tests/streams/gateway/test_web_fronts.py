"""The web listener of a gateway with fronts: what must hold over all of them."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trio

from maxam.config import FrontsSettings
from maxam.gateway.front_orders import FrontOrders
from maxam.gateway.front_web import FrontWeb
from maxam.web_config import WebSettings
from tests.support.living_gateway import EVERYTHING, Living, Site, TestClient, living, run, until
from tests.support.web_client import connect, dial, make_ticket, page, read_answer, refusal, request_values

pytestmark = pytest.mark.slow

WEB = WebSettings(listen="127.0.0.1:0")
BACKEND = {**EVERYTHING, "admin": ["ticket"]}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with two fronts, a publisher, and a backend that may make tickets."""
    site = Site(tmp_path, "anna", "backend")
    site.policy({"anna": EVERYTHING, "backend": BACKEND})
    site.settings = replace(site.settings, fronts=FrontsSettings(2))
    return site


@asynccontextmanager
async def served(site: Site, web: WebSettings = WEB) -> AsyncIterator[Living]:
    """Run the gateway until the end of a block, which begins when both fronts serve."""
    async with living(site, web=web) as gateway:
        fronts = gateway.gateway.fronts
        assert fronts is not None
        await until(lambda: sum(front.ready for front in fronts.running) == 2)
        yield gateway


def counts(gateway: Living) -> list[int]:
    """Return the connections of the web listener at each front."""
    fronts = gateway.gateway.fronts
    assert fronts is not None
    return [front.web for front in fronts.running]


async def answer(gateway: Living, ticket: str, answers: list[bytes]) -> None:
    """Connect with a ticket, note the command of the answer, and leave."""
    stream = await dial(gateway)
    async with TestClient(stream) as client:
        await stream.upgrade()
        await client.write(connect(ticket))
        answers.append((await client.frame()).command)


def test_a_ticket_is_used_once_over_all_fronts(site: Site) -> None:
    """Of several CONNECTs with one ticket at the same time, at both fronts, one is accepted. The gateway counts all."""

    async def test() -> None:
        async with served(site) as gateway:
            answers: list[bytes] = []
            ticket = make_ticket(gateway)
            async with trio.open_nursery() as clients:
                for _ in range(6):
                    clients.start_soon(answer, gateway, ticket, answers)
            assert sorted(answers) == [b"CONNECTED", *[b"ERROR"] * 5]
            tickets = gateway.gateway.tickets
            assert (tickets.made, tickets.used, tickets.refused) == (1, 1, 5)

    run(test)


def test_connections_of_the_web_listener_are_limited_over_all_fronts(site: Site) -> None:
    """Two of two connections are at two fronts, a third is closed, and health and metrics count them together."""

    async def test() -> None:
        async with served(site, replace(WEB, connections_max=2)) as gateway:
            async with page(gateway, make_ticket(gateway)), page(gateway, make_ticket(gateway), "other"):
                with pytest.raises((trio.BrokenResourceError, EOFError)):
                    await dial(gateway)
                assert counts(gateway) == [1, 1]
                used = {name: count for name, count, _, _ in gateway.gateway.limits_used()}
                assert used["web_connections_max"] == used["connections_max"] == 2
            await until(lambda: gateway.gateway.web_open == 0)
            async with page(gateway, make_ticket(gateway)):
                assert gateway.gateway.web_open == 1

    run(test)


def test_a_page_sends_where_its_ticket_allows_and_takes_over_its_session(site: Site) -> None:
    """A session moves to the front of its newest connection. SENDs of a ticket are judged by its globs, also after a reload."""

    async def test() -> None:
        async with served(site) as gateway, gateway.client("anna") as anna:
            await anna.subscribe("X/**")
            rights: dict[str, Any] = {"send": ["X/Chat.*"], "client_id": "tab"}
            async with (
                page(gateway, make_ticket(gateway, **rights)) as old,
                page(gateway, make_ticket(gateway, **rights)) as new,
            ):
                assert (await old.error())[0] == b"session taken over by a newer connection"
                assert (await new.send("X/Chat.1", b"v"))[0] == b"accepted"
                assert await new.send("X/Cash.1", b"v") == (b"rejected-unauthorised", b"unauthorised")
                site.policy({"anna": EVERYTHING, "backend": BACKEND, "operator": {"admin": ["read"]}})
                await gateway.reload()
                assert (await new.send("X/Chat.2", b"v"))[0] == b"accepted"
                assert await anna.values(2) == {"X/Chat.1": b"v", "X/Chat.2": b"v"}

    run(test)


async def hold(gateway: Living, kind: type, method: str, while_held: Callable[[], Awaitable[None]]) -> None:
    """Have a page connect, whose step through the gateway's `method` is held until `while_held` has returned."""
    held: list[tuple[Any, ...]] = []
    original = getattr(kind, method)
    stream = await dial(gateway)
    await stream.upgrade()
    with patch.object(kind, method, lambda *arguments: held.append(arguments)):
        await stream.send_all(connect(make_ticket(gateway)))
        await until(lambda: bool(held))
        await while_held()
    original(*held[0])
    async with TestClient(stream) as client:
        assert (await client.error())[0] == b"policy changed, reconnect"


def test_a_page_that_waits_is_judged_by_what_came_into_force_meanwhile(site: Site) -> None:
    """A maker that loses its right takes the pages with it that wait for their session, or for the answer about their ticket."""

    async def test() -> None:
        async with served(site) as gateway:

            async def withdraw() -> None:
                site.policy({"anna": EVERYTHING, "backend": EVERYTHING})
                await gateway.reload()

            await hold(gateway, FrontOrders, "grant", withdraw)
            site.policy({"anna": EVERYTHING, "backend": BACKEND})
            await gateway.reload()
            async with page(gateway, make_ticket(gateway)):
                pass

    run(test)


def test_a_page_that_leaves_while_its_ticket_is_asked_for_leaves_nothing(site: Site) -> None:
    """The answer comes to a connection that is gone. The ticket is used up, and the front serves others."""

    async def test() -> None:
        async with served(site) as gateway:
            held: list[tuple[Any, ...]] = []
            ticket = make_ticket(gateway)
            with patch.object(FrontWeb, "take_ticket", lambda *arguments: held.append(arguments)):
                stream = await dial(gateway)
                await stream.upgrade()
                await stream.send_all(connect(ticket))
                await until(lambda: bool(held))
                await stream.aclose()
                await until(lambda: gateway.gateway.web_open == 0)
            FrontWeb.take_ticket(*held[0])
            assert await refusal(gateway, ticket) == b"ticket-invalid"
            assert not gateway.gateway.broker.sessions

    run(test)


def test_values_over_http_come_through_fronts(site: Site) -> None:
    """A ticket reads a page of values, another one a stream, in which a large value arrives whole. A stop ends the stream."""

    async def test() -> None:
        async with served(site) as gateway, gateway.client("anna") as anna:
            await anna.send("X/Floor.1", b"v")
            ticket = make_ticket(gateway, receive=["X/Floor.*"])
            found = await read_answer(await request_values(gateway, "/v1/values?glob=X/**", ticket))
            head, _, body = found.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert [row["destination"] for row in json.loads(body)["values"]] == ["X/Floor.1"]
            assert (await read_answer(await request_values(gateway, "/v1/values?glob=X/**", ticket))).startswith(
                b"HTTP/1.1 401 "
            )
            assert await refusal(gateway, ticket) == b"ticket-invalid"
            stream: Any = None
            for leaves in (True, False):
                ticket = make_ticket(gateway, receive=["X/Floor.*"])
                stream = await request_values(gateway, "/v1/values/live?glob=X/**", ticket)
                assert b"X/Floor.1" in await read_answer(stream, b"event: sync")
                await anna.send("X/Floor.2", b"w" * 400_000)
                assert len(await read_answer(stream, b"\n\n")) > 500_000
                if leaves:
                    await trio.aclose_forcefully(stream)
                    await until(lambda: gateway.gateway.web_open == 0)
            gateway.gateway.stop()
            await read_answer(stream)

    run(test)

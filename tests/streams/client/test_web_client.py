"""The client over the web listener: a WebSocket, and a ticket in place of a certificate."""

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from maxam.client import (
    ClientError,
    ConnectionLostError,
    GatewayError,
    ResumingClient,
    TlsError,
    UnreachableError,
    connect,
    resuming,
    sync,
)
from maxam.web_config import WebSettings
from tests.support.living_gateway import EVERYTHING, Living, Site, living, run
from tests.support.web_client import make_ticket

WEB = WebSettings(listen="127.0.0.1:0", origins=())
BACKEND = {**EVERYTHING, "admin": ["ticket"]}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with a publisher, and a backend that may make tickets."""
    site = Site(tmp_path, "anna", "backend", "spare")
    site.policy({"anna": EVERYTHING, "backend": BACKEND})
    return site


def place(gateway: Living, path: str = "") -> dict[str, Any]:
    """Return address and authority of the web listener."""
    return {"address": f"wss://127.0.0.1:{gateway.web_port}{path}", "ca": gateway.site.certificates / "ca.pem"}


def test_a_ticket_opens_a_live_map(site: Site) -> None:
    """Values of any size come through, RECEIPTs too, and the ticket's globs are the limit."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway, gateway.client("anna") as anna:
            large = bytes(200_000)
            await anna.send("X/Floor.1", b"first")
            await anna.send("X/Cash.1", b"first")
            ticket = make_ticket(gateway, receive=["X/Floor.*"], send=["X/Floor.2"])
            async with (
                connect(**place(gateway), ticket=ticket) as client,
                client.values("X/**", type=bytes) as values,
            ):
                assert dict(values) == {"X/Floor.1": b"first"}
                await anna.send("X/Floor.1", large)
                assert (await anext(values)).value == large
                assert (await client.send("X/Floor.2", large)).accepted
                assert (await anext(values)).destination == "X/Floor.2"
                assert not (await client.send("X/Floor.1", b"v")).accepted

    run(test)


def test_each_connection_asks_for_a_ticket(site: Site) -> None:
    """A function, async or not, gives one for each. If it fails it is asked again."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway, gateway.client("anna") as anna:
            calls = count(1)

            async def ticket() -> str:
                if next(calls) == 2:
                    raise LookupError("the backend restarts")
                return make_ticket(gateway)

            async with (
                resuming(**place(gateway), ticket=ticket) as client,
                client.values("X/**", type=bytes) as values,
            ):
                assert isinstance(client, ResumingClient)
                assert client._client is not None
                client._client._link.fail(ConnectionLostError("cut"))
                await values.sync()
                assert client.connections == 2
                await anna.send("X/a", b"v")
                assert (await anext(values)).value == b"v"
            assert next(calls) == 4

    run(test)


def test_refused_credentials_have_a_code(site: Site) -> None:
    """A used ticket, and a token where the gateway has no issuer. One that cannot change is final."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            ticket = make_ticket(gateway)
            async with connect(**place(gateway), ticket=ticket):
                pass
            credentials: list[dict[str, Any]] = [{"ticket": ticket}, {"token": "a.b.c"}]
            for given in credentials:
                with pytest.raises(GatewayError) as caught:
                    async with connect(**place(gateway), **given):
                        pytest.fail("connected")
                assert caught.value.code in ("ticket-invalid", "token-invalid", "unauthenticated")
                assert not {ticket, "a.b.c"} & set(str(caught.value).split())

    run(test)


def test_what_is_no_web_listener_is_reported(site: Site) -> None:
    """Another path, the listener for certificates, another name, and no server."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            ticket = partial(make_ticket, gateway)
            with pytest.raises(UnreachableError, match="404"):
                async with connect(**place(gateway, "/other"), ticket=ticket):
                    pytest.fail("connected")
            with pytest.raises(TlsError):
                async with connect(**place(gateway), ticket=ticket, check_name="another.example"):
                    pytest.fail("connected")
            port = gateway.web_port
        with pytest.raises(UnreachableError):
            async with connect(f"wss://127.0.0.1:{port}", ca=site.certificates / "ca.pem", ticket="t"):
                pytest.fail("connected")

    run(test)


def test_without_async_on_asyncio(site: Site) -> None:
    """The same in a thread of its own."""

    def script(gateway: Living, ticket: str) -> dict[str, bytes]:
        with sync.connect(**place(gateway), ticket=ticket) as client, client.values("X/**", type=bytes) as values:
            return dict(values)

    async def test() -> None:
        async with living(site, web=WEB) as gateway, gateway.client("anna") as anna:
            await anna.send("X/a", b"v")
            ticket = make_ticket(gateway)
            assert await trio.to_thread.run_sync(script, gateway, ticket) == {"X/a": b"v"}

    run(test)


@pytest.mark.parametrize(
    "given",
    [
        {"address": "wss://h"},
        {"address": "wss://h", "ticket": "t", "token": "t"},
        {"address": "wss://h", "ticket": "t", "certificate": "c"},
        {"address": "h", "ticket": "t"},
        {"address": "h"},
        {"address": "ws://h", "ticket": "t"},
        {"address": "wss://", "ticket": "t"},
        {"address": "wss://h:port", "ticket": "t"},
        {"address": "wss://h", "ticket": lambda: 1 / 0},
    ],
)
def test_arguments_that_do_not_belong_together_are_refused(given: dict[str, Any]) -> None:
    """Before anything is sent."""

    async def test() -> None:
        with pytest.raises(ClientError):
            async with connect(**given, timeout_s=1):
                pytest.fail("connected")

    trio.run(test)


def test_a_ticket_cannot_serve_a_client_that_connects_again() -> None:
    """It serves one connection."""

    async def test() -> None:
        with pytest.raises(ClientError, match="function"):
            async with resuming("wss://h", ticket="t"):
                pytest.fail("connected")

    trio.run(test)

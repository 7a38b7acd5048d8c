"""The listener of clients without a certificate: from the upgrade to a value, and each reason to refuse it."""

import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from wsproto.extensions import PerMessageDeflate

from maxam.config import FrontsSettings, Limits, ReloadSettings
from maxam.gateway.tickets import TicketError
from maxam.gateway.web_upgrade import ORIGIN_CHARACTERS_MAX
from maxam.web_config import WebSettings
from tests.support.living_gateway import EVERYTHING, Site, living, run, until, within
from tests.support.web_client import (
    RefusedError,
    connect,
    dial,
    make_ticket,
    page,
    read_answer,
    refusal,
    request_values,
)

ORIGIN = "https://floor.example"
WEB = WebSettings(listen="127.0.0.1:0", origins=(ORIGIN,))
BACKEND = {**EVERYTHING, "admin": ["ticket"]}
ALONE = pytest.mark.parametrize("site", [0], indirect=True)  # of which nothing depends on fronts


@pytest.fixture(params=[0, pytest.param(2, marks=pytest.mark.slow)], ids=["alone", "fronts"])
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    """A site with a publisher, and a backend that may make tickets; its gateway has fronts or none."""
    site = Site(tmp_path, "anna", "backend", "spare")
    site.settings = replace(site.settings, fronts=FrontsSettings(request.param))
    site.policy({"anna": EVERYTHING, "backend": BACKEND})
    return site


@pytest.mark.parametrize("origin", [None, ORIGIN])
def test_a_ticket_gives_the_values_of_its_globs_and_no_others(site: Site, origin: str | None) -> None:
    """A page with a ticket receives what the ticket names, now and later."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway, gateway.client("anna") as anna:
            for topic in ("X/Floor.1", "X/Cash.1"):
                assert await anna.send(topic, b"first") == (b"accepted", b"")
            ticket = make_ticket(gateway, receive=["X/Floor.*"])
            async with page(gateway, ticket, origin=origin) as client:
                await client.subscribe("X/**", eager=True)
                assert await client.values(1) == {"X/Floor.1": b"first"}
                await anna.send("X/Cash.1", b"second")
                await anna.send("X/Floor.1", b"second")
                assert await client.values(1) == {"X/Floor.1": b"second"}
                assert await client.send("X/Floor.1", b"mine") == (b"rejected-unauthorised", b"unauthorised")

    run(test)


def test_a_request_may_come_with_the_end_of_the_handshake(site: Site) -> None:
    """The upgrade is answered when request and last flight of the handshake arrive together, as browsers and busy machines have it."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            stream = await trio.open_tcp_stream("127.0.0.1", gateway.web_port)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = gateway.site.context(None).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    if outgoing.pending:
                        await stream.send_all(outgoing.read())
                    incoming.write(await stream.receive_some(65_536))
            request = b"GET /stomp HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            request += b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            tls.write(request + b"sec-websocket-protocol: v12.stomp\r\n\r\n")
            await stream.send_all(outgoing.read())
            answer = b""
            while not answer:
                incoming.write(await stream.receive_some(65_536))
                with suppress(ssl.SSLWantReadError):
                    answer = tls.read(65_536)
            assert answer.startswith(b"HTTP/1.1 101 ")
            await stream.aclose()

    run(test)


def test_a_ticket_is_used_up_by_one_connect(site: Site) -> None:
    """A second CONNECT with the same ticket, and one with a guess, get the same ERROR."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            ticket = make_ticket(gateway)
            async with page(gateway, ticket):
                assert await refusal(gateway, ticket) == b"ticket-invalid"
            assert await refusal(gateway, ticket) == b"ticket-invalid"
            assert await refusal(gateway, ticket[:-1]) == b"ticket-invalid"
            assert await refusal(gateway, "") == b"ticket-invalid"
            assert await refusal(gateway, ticket, "password") == b"unauthenticated"

    run(test)


def test_a_ticket_is_for_its_client_id_and_its_origin(site: Site) -> None:
    """A CONNECT without client-id gets that of the ticket; with another one, or from another page, it is refused."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            ticket = make_ticket(gateway, client_id="tab", origin=ORIGIN)
            async with page(gateway, ticket, origin=ORIGIN):
                (session,) = gateway.gateway.broker.sessions
                assert session == ("page", "tab")
            ticket = make_ticket(gateway, client_id="tab")
            assert await refusal(gateway, ticket, client_id="other") == b"ticket-invalid"
            ticket = make_ticket(gateway, origin="https://other.example")
            assert await refusal(gateway, ticket, origin=ORIGIN) == b"ticket-invalid"

    run(test)


@ALONE
@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ({"receive": ["Y/**"]}, "beyond-maker"),
        ({"send": ["Y/**"]}, "beyond-maker"),
        ({"principal": "anna"}, "principal-exists"),
        ({"principal": "$gateway"}, "invalid-request"),
        ({"receive": ["X/["]}, "invalid-glob"),
        ({"receive": ["X/a"] * 65}, "invalid-request"),
    ],
)
def test_a_maker_grants_only_what_it_has(site: Site, wish: dict[str, Any], code: str) -> None:
    """A ticket with a right that its maker lacks, or in the name of a principal of the policy, is not made."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            with pytest.raises(TicketError) as refused:
                make_ticket(gateway, **wish)
            assert refused.value.code == code

    run(test)


_WITHDRAWN = {
    "no right to make tickets": lambda site: site.policy({"anna": EVERYTHING, "backend": EVERYTHING}),
    "fewer globs": lambda site: site.policy({"anna": EVERYTHING, "backend": BACKEND | {"receive": ["X/Floor.*"]}}),
    "a principal of the name": lambda site: site.policy(
        {"anna": EVERYTHING, "backend": BACKEND, "spare": EVERYTHING}, {"spare": "page"}
    ),
}


@pytest.mark.parametrize("change", list(_WITHDRAWN))
def test_a_page_ends_with_the_rights_of_the_maker(site: Site, change: str) -> None:
    """A maker that loses its right or a glob takes its pages and unused tickets with it."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            unused = make_ticket(gateway)
            async with page(gateway, make_ticket(gateway)) as client:
                _WITHDRAWN[change](site)
                await gateway.reload()
                message, _ = await client.error()
                assert message == b"policy changed, reconnect"
            assert await refusal(gateway, unused) == b"ticket-invalid"

    run(test)


def test_pages_and_streams_end_within_5_s_of_a_changed_file(site: Site) -> None:
    """The gateway notices by itself that a maker is revoked or removed. Its pages, streams of values and unused tickets end."""
    site.policy({"anna": EVERYTHING, "backend": BACKEND, "spare": BACKEND})
    changes: dict[str, Callable[[], None]] = {
        "backend": lambda: site.revoke("backend"),
        "spare": lambda: site.policy({"anna": EVERYTHING, "backend": BACKEND}),
    }

    async def test() -> None:
        async with living(site, web=WEB, reload=ReloadSettings(), limits=Limits()) as gateway:
            for maker, change in changes.items():
                unused = make_ticket(gateway, maker)
                stream = await request_values(gateway, "/v1/values/live", make_ticket(gateway, maker))
                await read_answer(stream, b"event: sync")
                async with page(gateway, make_ticket(gateway, maker)) as client, within(5):
                    change()
                    assert (await client.error())[0] == b"policy changed, reconnect"
                    assert b"event: ended" in await read_answer(stream)
                    assert client.stream.closed is not None
                assert await refusal(gateway, unused) == b"ticket-invalid"

    run(test)


@ALONE
def test_a_page_stays_when_another_policy_grants_the_same(site: Site) -> None:
    """A reload that leaves the maker what its ticket grants ends nothing, and delivery goes on."""

    async def test() -> None:
        async with (
            living(site, web=WEB) as gateway,
            gateway.client("anna") as anna,
            page(gateway, make_ticket(gateway, receive=["X/Floor.*"])) as client,
        ):
            await client.subscribe("X/**")
            more = {"send": ["X/**"], "receive": ["X/**", "Y/**"], "admin": ["ticket"]}
            site.policy({"anna": EVERYTHING, "backend": more, "spare": EVERYTHING})
            await gateway.reload()
            await anna.send("X/Floor.1", b"new")
            assert await client.values(1) == {"X/Floor.1": b"new"}

    run(test)


def test_a_client_without_certificate_leaves_nothing_behind(site: Site) -> None:
    """A last will and a durable subscription are refused."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            async with page(gateway, make_ticket(gateway)) as client:
                await client.write(b"SUBSCRIBE\nid:1\ndestination:X/**\ndurable:true\n\n\0")
                message, _ = await client.error()
                assert message == b"not durable"
            stream = await dial(gateway)
            await stream.upgrade()
            await stream.send_all(connect(make_ticket(gateway)).replace(b"host", b"will-destination:X/a\nhost"))
            assert b"message:bad will\n" in await stream.receive_some()
            await stream.aclose()
            assert not gateway.gateway.broker.sessions

    run(test)


@ALONE
@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"subprotocols": ()}, 400),
        ({"subprotocols": ("v10.stomp", "mqtt")}, 400),
        ({"target": "/"}, 404),
        ({"target": "/stomp/"}, 404),
        ({"headers": [(b"origin", b"https://evil.example"), (b"origin", ORIGIN.encode())]}, 403),
    ],
)
def test_an_upgrade_that_is_refused_is_answered(site: Site, how: dict[str, Any], status: int) -> None:
    """A page of another origin, a wrong subprotocol and another path get a status and a code."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            stream = await dial(gateway)
            with pytest.raises(RefusedError) as refused:
                await stream.upgrade(**how)
            assert refused.value.status == status
            assert b'"code"' in refused.value.body
            await stream.aclose()

    run(test)


@ALONE
def test_the_log_has_the_origin_of_a_refused_page(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The line of a refused page has its origin, of which at most 100 characters are logged."""
    origins = ["http://localhost:3000", f"https://{'x' * 200}.example"]

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            for origin in origins:
                stream = await dial(gateway)
                with pytest.raises(RefusedError):
                    await stream.upgrade(origin=origin)
                await stream.aclose()
            await until(lambda: caplog.text.count("connection-refused ") == len(origins))

    with caplog.at_level(logging.INFO, "maxam"):
        run(test)
    short, long = origins
    assert f"origin={short}" in caplog.text
    assert long[:ORIGIN_CHARACTERS_MAX] in caplog.text
    assert long[: ORIGIN_CHARACTERS_MAX + 1] not in caplog.text


@ALONE
def test_the_best_subprotocol_is_taken_and_no_extension(site: Site) -> None:
    """1.2 is preferred in any order, and an offer to compress is not accepted."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            for offered, taken in (
                (("v10.stomp", "v11.stomp", "v12.stomp"), "v12.stomp"),
                (("v11.stomp",), "v11.stomp"),
            ):
                stream = await dial(gateway)
                await stream.upgrade(subprotocols=offered, extensions=[PerMessageDeflate()])
                assert stream.accepted is not None
                assert stream.accepted.subprotocol == taken
                assert not stream.accepted.extensions
                await stream.aclose()

    run(test)

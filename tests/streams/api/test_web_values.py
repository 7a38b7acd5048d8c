"""Values over HTTP on the web listener: who gets which, and who is refused."""

import json
from pathlib import Path

import pytest

from maxam.web_config import WebSettings
from tests.support.living_gateway import EVERYTHING, Living, Site, living, run
from tests.support.web_client import dial, make_ticket

ORIGIN = "https://floor.example"
WEB = WebSettings(listen="127.0.0.1:0", origins=(ORIGIN,))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with a publisher, and a backend that may make tickets."""
    site = Site(tmp_path, "anna", "backend")
    site.policy({"anna": EVERYTHING, "backend": {**EVERYTHING, "admin": ["ticket"]}})
    return site


async def ask(
    gateway: Living, path: str, ticket: str = "", method: str = "GET", origin: str = ""
) -> tuple[int, dict[str, str], bytes]:
    """Send one request and return status, headers and body of the answer."""
    stream = await dial(gateway)
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close"]
    lines += [f"authorization: Bearer {ticket}"] if ticket else []
    lines += [f"origin: {origin}"] if origin else []
    await stream.tls.send_all("\r\n".join([*lines, "", ""]).encode())
    answer = b""
    while data := await stream.tls.receive_some():
        answer += data
    await stream.aclose()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *listed = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in listed), body


def test_a_ticket_reads_the_values_of_its_globs_once(site: Site) -> None:
    """One request shows what the ticket grants. The next with it, and one without, get 401."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway, gateway.client("anna") as anna:
            for topic in ("X/Floor.1", "X/Cash.1"):
                await anna.send(topic, b"v")
            ticket = make_ticket(gateway, receive=["X/Floor.*"])
            status, headers, body = await ask(gateway, "/v1/values?glob=X/**", ticket, origin=ORIGIN)
            assert status == 200
            assert [row["destination"] for row in json.loads(body)["values"]] == ["X/Floor.1"]
            assert headers["access-control-allow-origin"] == ORIGIN
            status, _, body = await ask(gateway, "/v1/values?glob=X/**", ticket)
            assert (status, json.loads(body)["code"]) == (401, "ticket-invalid")
            status, _, body = await ask(gateway, "/v1/values/X/Floor.1")
            assert (status, json.loads(body)["code"]) == (401, "unauthenticated")
            ticket = make_ticket(gateway, receive=["X/Floor.*"])
            status, _, body = await ask(gateway, "/v1/values/X/Cash.1", ticket)
            assert (status, json.loads(body)["code"]) == (403, "withheld")

    run(test)


def test_only_listed_pages_read_values(site: Site) -> None:
    """A preflight of a listed origin is answered; a page of another origin is refused before its ticket is used."""

    async def test() -> None:
        async with living(site, web=WEB) as gateway:
            status, headers, _ = await ask(gateway, "/v1/values", method="OPTIONS", origin=ORIGIN)
            assert status == 200
            assert "authorization" in headers["access-control-allow-headers"]
            ticket = make_ticket(gateway)
            status, headers, body = await ask(gateway, "/v1/values?glob=X/**", ticket, origin="https://evil.example")
            assert (status, json.loads(body)["code"]) == (403, "cross-site")
            assert "access-control-allow-origin" not in headers
            assert (await ask(gateway, "/v1/values?glob=X/**", ticket))[0] == 200
            assert (await ask(gateway, "/v1/topics", make_ticket(gateway)))[0] == 404

    run(test)

"""Protection of an operator's browser from foreign web pages by names, sites and headers, and the console's files."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

import maxam.api
from maxam.api.application import ROUTES
from maxam.api.browsers import CONTENT_SECURITY_POLICY, ENTRANCES, SECURITY_HEADERS, KnownByName, is_known
from maxam.api.http1 import CARRIER, Carrier
from maxam.api.listener import CHAIN, FINGERPRINT
from maxam.api.routes.console import CONTENT_TYPES, console_files
from tests.unit.api.test_api import ADMIN, World, concrete

NAMES = {"gateway.example.org", "*.venue.example", "127.0.0.1"}
CONSOLE = Path(maxam.api.__file__).parent / "console"


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8643", "LOCALHOST.", "127.0.0.1:8643", "10.1.2.3", "[::1]:8643", "[fe80::1]",
     "gateway.example.org", "Gateway.Example.Org:443", "gateway.example.org.", "a.venue.example:1"],
)  # fmt: skip
def test_our_names(host: str) -> None:
    """Addresses, localhost and listed names are ours, with any port, in any case."""
    assert is_known(host, NAMES)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "gateway.example.org.evil.example", "a.b.venue.example", "venue.example",
     "127.0.0.1.evil.example", "1.2.3", "", ":8643", "gateway.example.org:8643:1", "evil.example\x00localhost",
     "gateway.example.org@evil.example", "[::1", "[evil.example]"],
)  # fmt: skip
def test_other_names(host: str) -> None:
    """No other name is, however much of one of ours it holds; unless any is allowed."""
    assert not is_known(host, NAMES)
    assert is_known(host, {"*"})


def ask(world: World, method: str, path: str, **headers: str) -> httpx.Response:
    """Ask the application as the listener serves it, as an operator."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        stopping = trio.Event()
        stopping.set()
        state = {FINGERPRINT: ADMIN, CHAIN: (), CARRIER: Carrier(trio.lowlevel.checkpoint, stopping)}
        await KnownByName(world.application, lambda: NAMES)({**scope, "state": state}, receive, send)

    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="https://localhost:8643") as client:
            return await client.request(
                method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
            )

    return trio.run(request)


@pytest.fixture
def world() -> World:
    """Return a new world."""
    return World()


def test_an_unknown_host_is_told_what_to_configure(world: World) -> None:
    """A name that is not ours gets nothing but how to make it ours; nothing is done for it."""
    response = ask(world, "GET", "/v1/about", host="evil.example:8643")
    assert (response.status_code, response.json()["error"]) == (421, "unknown-host")
    assert "'evil.example:8643'" in response.json()["detail"]
    assert "[admin] hosts" in response.json()["detail"]
    assert len(ask(world, "GET", "/v1/about", host="x" * 5000).content) < 500


PLACES = [(method, concrete(path).replace("{file:path}", "api.js")) for method, path, _, _ in ROUTES]


def test_every_answer_tells_browsers_how_to_treat_it(world: World) -> None:
    """Every route, whatever it answers, has every header, once; and so have errors before any route."""
    answers = [ask(world, method, path, maxam_admin="1") for method, path in PLACES]
    answers += [ask(world, "GET", "/v1/nothing"), ask(world, "GET", "/", host="evil.example")]
    for response in answers:
        for name, value in SECURITY_HEADERS.items():
            assert response.headers.get_list(name) == [value]
        assert "access-control-allow-origin" not in response.headers


def test_no_policy_lets_text_become_code() -> None:
    """Nothing inline, nothing evaluated, nothing from elsewhere, no frames, no plugins, no forms."""
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY
    for part in ("default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"):
        assert part in CONTENT_SECURITY_POLICY.split("; ")


FOREIGN = [
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},  # another port of this machine
    {"sec_fetch_site": "nonsense"},
    {"origin": "https://evil.example"},
    {"origin": "http://localhost:8643"},
    {"origin": "https://localhost:9999"},
    {"origin": "null"},
    {"origin": "https://evil.example", "sec_fetch_site": "same-origin"},
    {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"},  # a link to the API
    {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_what_a_foreign_page_asks_is_refused(world: World, headers: dict[str, str]) -> None:
    """No route, reading or writing, does anything for a page of another site, even with the header that writes need."""
    world.send("X/A.1", b"\x02v")
    for method, path in PLACES:
        if path not in ENTRANCES:
            response = ask(world, method, path, maxam_admin="1", **headers)
            assert (response.status_code, response.json()["error"]) == (403, "cross-site")
    assert world.broker.head_revision == 1


def test_our_own_pages_people_and_programs_are_served(world: World) -> None:
    """The console's own requests, an address that somebody typed, and clients that are no browsers get through; and so does a link."""
    followed = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    own = {"sec_fetch_site": "same-origin", "origin": "https://localhost:8643"}
    assert ask(world, "GET", "/v1/about", **own).status_code == 200
    assert ask(world, "GET", "/v1/about", sec_fetch_site="none").status_code == 200
    assert ask(world, "GET", "/v1/about").status_code == 200
    assert ask(world, "GET", "/", **followed).status_code == 307
    assert ask(world, "GET", "/console/", **followed).status_code == 200
    framed = followed | {"sec_fetch_dest": "iframe"}
    assert ask(world, "GET", "/console/", **framed).status_code == 403


def test_the_console_is_where_people_look_for_it(world: World) -> None:
    """`/` and `/console` lead to `/console/`, which is the page, without naming a host."""
    for path in ("/", "/console"):
        response = ask(world, "GET", path)
        assert (response.status_code, response.headers["location"]) == (307, "/console/")
    response = ask(world, "GET", "/console/")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert response.content == (CONSOLE / "index.html").read_bytes()


def test_every_file_is_served_as_what_it_is(world: World) -> None:
    """Each file of the folder has a type that is served, is packed into wheels, and a browser asks whether it is still the same."""
    found = console_files()
    on_disk = {path.relative_to(CONSOLE).as_posix() for path in CONSOLE.rglob("*") if path.is_file()}
    assert set(found) == on_disk
    assert {Path(name).suffix for name in found} <= set(CONTENT_TYPES)
    for name, file in found.items():
        response = ask(world, "GET", f"/console/{name}")
        assert response.content == file.body
        assert response.headers["content-type"] == CONTENT_TYPES[Path(name).suffix]
        assert response.headers["cache-control"] == "no-cache"
        etag = f'"{file.tag}"'
        for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            again = ask(world, "GET", f"/console/{name}", if_none_match=known)
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert ask(world, "GET", f"/console/{name}", if_none_match='"other"').status_code == 200
    head = ask(world, "HEAD", "/console/")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    "path",
    ["../console.py", "..%2fconsole.py", "%2e%2e/console.py", "/etc/passwd", "%2fetc%2fpasswd", "..\\console.py", "index.html%00.js",
     "index.html/", "INDEX.HTML", "%252e%252e/console.py", "a" * 4000, "\u202e", ".git/config"],
)  # fmt: skip
def test_no_path_leads_out_of_the_console(world: World, path: str) -> None:
    """A path that is not the name of one of the files is not found."""
    response = ask(world, "GET", "/console/" + path)
    assert response.status_code == 404, response.content
    assert b"import" not in response.content

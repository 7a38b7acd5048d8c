"""The answer to a browser that may not use the console: a page for people, JSON for programs, with nothing in it that could act."""

import re
from base64 import b64encode
from hashlib import sha256
from http import HTTPStatus

import pytest

from maxam.api.answers import ApiError
from maxam.api.refusal_page import refusal_page
from tests.unit.api.test_api import SENDER, STRANGER, World, run

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@pytest.fixture
def world() -> World:
    """A broker without clients, and the API."""
    return World()


@pytest.mark.parametrize("path", ["/", "/console", "/console/", "/console/main.js"])
@pytest.mark.parametrize(
    ("who", "status", "texts"),
    [
        (SENDER, 403, ["principal &#x27;sender&#x27;", "<dd><code>sender</code></dd>", "the admin right read", SENDER]),
        (STRANGER, 403, ["the policy does not know this certificate", "the fingerprint below", STRANGER]),
        (None, 401, ["showed the gateway no certificate", "Import a certificate"]),
    ],
)
def test_a_browser_gets_a_page(world: World, path: str, who: str | None, status: int, texts: list[str]) -> None:
    """It shows the owner of the certificate, the missing right and the remedy. The refusal is audited as usual."""

    async def test() -> None:
        answer = await world.ask("GET", path, who, headers={"accept": BROWSER})
        assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert answer.headers["cache-control"] == "no-store"
        for text in texts:
            assert text in answer.text

    run(test)


@pytest.mark.parametrize(
    ("path", "accept"),
    [
        ("/console/", "*/*"),
        ("/console/", ""),
        ("/console/", "application/json, text/*"),
        ("/console/", "text/html;q=0, application/json"),
        ("/console/", "text/html; q=0.000"),
        ("/v1/about", BROWSER),
        ("/v1/topics/console/", BROWSER),
    ],
)
def test_a_program_gets_json(world: World, path: str, accept: str) -> None:
    """A client that does not accept HTML, and a client of the API, is answered as by any route."""

    async def test() -> None:
        answer = await world.ask("GET", path, SENDER, headers={"accept": accept})
        assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")

    run(test)


def test_what_is_not_refused_is_no_page(world: World) -> None:
    """A caller with the right gets the console, and its errors as programs do."""

    async def test() -> None:
        assert (await world.ask("GET", "/console/nothing", headers={"accept": BROWSER})).json()["error"] == "not-found"
        assert "console.css" in (await world.ask("GET", "/console/", headers={"accept": BROWSER})).text

    run(test)


def test_a_page_of_another_site_is_told_too(world: World) -> None:
    """It is shown what happened, and who is asking."""

    async def test() -> None:
        headers = {"accept": BROWSER, "sec-fetch-site": "cross-site"}
        answer = await world.ask("GET", "/console/", headers=headers)
        assert "another site" in answer.text

    run(test)


@pytest.mark.parametrize("code", ["forbidden", "certificate-refused", "cross-site"])
def test_nothing_in_it_is_markup_or_may_act(code: str) -> None:
    """Names are text, what cannot be seen is an escape, and the policy for content allows the page's own style and nothing else."""
    hostile = "<script>alert(1)</script>\u202e\x1b&\"'"
    error = ApiError(HTTPStatus.FORBIDDEN, code, f"principal {hostile}")
    page = refusal_page(error, hostile, hostile, "f" * 64)
    text = bytes(page.body).decode()
    assert "<script" not in text
    assert not re.search("[\u202e\x1b]", text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e\\x1b&amp;&quot;&#x27;" in text
    (style,) = re.findall("<style>(.*)</style>", text)
    policy = page.headers["content-security-policy"]
    assert f"style-src 'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "script-src" not in policy
    assert "unsafe" not in policy

"""Browsers over real TLS to the gateway itself: pages of an allowed origin, and pages of another site that attack."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.operator_browser import require
from tests.interop.third_party import PROGRAMS
from tests.web.browsers import BROWSERS, Tab, until
from tests.web.node import PACKAGE
from tests.web.test_guide import block
from tests.web.tls_site import Pages, Site, open_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Site]:
    """Run one gateway and one server of pages for all browsers."""
    with open_site(tmp_path_factory.mktemp("site"), certificates) as site:
        yield site


@pytest.fixture(scope="module", params=BROWSERS)
def tab(request: pytest.FixtureRequest, certificates: Path) -> Iterator[Tab]:
    """Run each browser. It accepts the certificate of the tests."""
    with BROWSERS[request.param](certificates / "server.pem") as tab:
        yield tab


def opened(tab: Tab, address: str) -> None:
    """Load the page and wait for its program."""
    tab.open(address)
    until(tab, "typeof window.live", lambda kind: kind == "function")


def test_a_page_of_an_allowed_origin_has_live_values(tab: Tab, site: Site) -> None:
    """The page connects to the web listener by wss with a ticket, has the value, and gets its changes."""
    opened(tab, site.allowed)
    tab.run(f"window.live('wss://{site.web}/stomp', '{site.ticket()}')")
    until(tab, "window.map.get('X/a')?.value ?? ''")
    site.publisher.send("X/a", b"second")
    until(tab, "window.map.get('X/a').value", lambda value: value == "second")
    tab.run("window.client.close()")


def test_a_page_of_an_allowed_origin_reads_values_by_http(tab: Tab, site: Site) -> None:
    """A fetch of another origin with a ticket passes the browser's rules (CORS), and has the value."""
    opened(tab, site.allowed)
    status, answer = tab.run(f"window.get('https://{site.web}/v1/values?glob=X/*', '{site.ticket()}')")
    assert status == 200, answer
    assert [one["destination"] for one in answer["values"]] == ["X/a"]


def test_a_page_of_another_site_gets_nothing(tab: Tab, site: Site) -> None:
    """With a ticket that it has stolen, a page of another site gets neither a WebSocket nor values, and the ticket is not used up."""
    ticket = site.ticket()
    opened(tab, site.foreign)
    assert tab.run(f"window.raw('wss://{site.web}/stomp')") == "closed"
    tab.run(f"window.live('wss://{site.web}/stomp', '{ticket}')")
    until(tab, "window.client.state.error?.code ?? ''", lambda code: code == "unreachable")
    assert tab.run(f"window.get('https://{site.web}/v1/values', '{ticket}')") == ["refused", "TypeError"]
    assert any("HTTP 403 cross-site" in line and site.foreign in line for line in site.gateway.log().splitlines())
    opened(tab, site.allowed)
    tab.run(f"window.live('wss://{site.web}/stomp', '{ticket}')")
    until(tab, "window.map.synced")
    tab.run("window.client.close()")


def test_a_page_without_a_certificate_gets_no_socket_of_the_admin_listener(tab: Tab, site: Site) -> None:
    """The admin listener asks for a certificate. A browser that has none ends the attempt, and does not ask its user."""
    for address in (site.allowed, site.foreign):
        opened(tab, address)
        assert tab.run(f"window.raw('wss://localhost:{site.gateway.admin_port}/stomp')") == "closed"


def test_the_guide_program_for_stompjs_shows_values(tab: Tab, site: Site, tmp_path: Path) -> None:
    """The program of docs/integrate/web.md for stompjs runs as it stands, except for the address, and shows each value."""
    library = PROGRAMS / "node_modules" / "@stomp" / "stompjs"
    require(str(library) if library.is_dir() else None, "stompjs")
    text = block("js", "With stompjs:")
    assert text.count("gateway.example:61616") == 1
    program = tmp_path / "stompjs.js"
    program.write_text(
        "globalThis.show = (message) => (globalThis.shown = message.body);\n"
        + text.replace("gateway.example:61616", site.web)
    )
    esbuild = [str(PACKAGE / "node_modules" / ".bin" / "esbuild"), str(program), "--bundle", "--format=esm"]
    built = subprocess.run([*esbuild, f"--alias:@stomp/stompjs={library}"], check=True, capture_output=True)
    Pages.files |= {"stompjs.js": built.stdout, "stompjs.html": b'<script type="module" src="stompjs.js"></script>'}
    site.publisher.send("X/EGM.1", b"before")
    tab.open(f"{site.allowed}/stompjs.html")
    until(tab, "globalThis.shown ?? ''", lambda shown: shown == "before")
    site.publisher.send("X/EGM.1", b"after")
    until(tab, "globalThis.shown", lambda shown: shown == "after")
    site.publisher.send("X/EGM.1", b"")
    tab.open("about:blank")

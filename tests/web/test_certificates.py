"""Pages in a browser that has the certificate of an operator: the admin listener knows its own pages from others."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.console.operator_browser import WAIT_MS, open_browser
from tests.web.tls_site import Site, open_site

CONNECT = "CONNECT\\naccept-version:1.2\\nhost:MAXVAPI\\n\\n\\0"
SUBSCRIBE = "SUBSCRIBE\\nid:s\\ndestination:X/*\\neager:true\\n\\n\\0"
CONVERSE = f"""(url) => new Promise((done) => {{
  const socket = new WebSocket(url, ["v12.stomp"]);
  let text = "";
  socket.binaryType = "arraybuffer";
  socket.onopen = () => socket.send("{CONNECT}{SUBSCRIBE}");
  socket.onmessage = ({{ data }}) => {{
    text += new TextDecoder().decode(data);
    if (/MESSAGE[^]*\\0/.test(text)) done(text);
  }};
  socket.onclose = () => done("closed");
}})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Site]:
    """Run one gateway and one server of pages."""
    with open_site(tmp_path_factory.mktemp("site"), certificates) as site:
        yield site


@pytest.fixture(scope="module")
def page(site: Site, certificates: Path) -> Iterator[Page]:
    """Run Chromium with a certificate for the admin listener, which Playwright presents at each connection there."""
    with open_browser() as browser:
        context = browser.new_context(
            ignore_https_errors=True,
            client_certificates=[
                {
                    "origin": admin(site),
                    "certPath": certificates / "operator.pem",
                    "keyPath": certificates / "operator.key",
                }
            ],
        )
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        yield page


def admin(site: Site) -> str:
    """Return the origin of the admin listener."""
    return f"https://localhost:{site.gateway.admin_port}"


def test_a_page_of_the_admin_listener_has_the_rights_of_the_certificate(page: Page, site: Site) -> None:
    """A page from the same host and port connects without a ticket, subscribes, and has the value."""
    page.goto(f"{admin(site)}/console/")
    text = page.evaluate(CONVERSE, f"{admin(site)}/stomp".replace("https", "wss"))
    assert text.startswith("CONNECTED\n")
    assert "destination:X/a\n" in text


def test_a_page_of_another_site_cannot_use_the_certificate(page: Page, site: Site) -> None:
    """The browser presents the certificate for it too, and the admin listener refuses its origin with 403."""
    errors: list[str] = []

    def refused(error: str) -> None:
        errors.append(error)

    page.on("websocket", lambda socket: socket.on("socketerror", refused))
    for address in (site.allowed, site.foreign):
        page.goto(address)
        assert page.evaluate(CONVERSE, f"{admin(site)}/stomp".replace("https", "wss")) == "closed"
    assert len(errors) == 2
    assert all("403" in error for error in errors), errors

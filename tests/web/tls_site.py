"""A gateway and a server of pages, both over TLS.

As `https://localhost` the server is an allowed origin of the web listener, as `https://127.0.0.1` it is another site.
"""

import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxam.https_client import Credentials, Remote
from tests.support.gateway_process import GatewayProcess
from tests.support.raw_client import RawClient
from tests.web.node import require_package, run_node

SCHEMAS = {"registry.toml": '[[rule]]\ndestination = "X/**"\nencoding = "none"\n'}
POLICY = """
[capabilities.all]
send = ["X/*"]
receive = ["X/*"]
[capabilities.tickets]
receive = ["X/*"]
admin = ["ticket", "read"]
[[principals]]
name = "publisher"
fingerprints = ["{publisher}"]
capabilities = ["all"]
[[principals]]
name = "backend"
fingerprints = ["{operator}"]
capabilities = ["tickets"]
"""
PAGE = b"""<!doctype html><script type="module">
  import { Client } from "/index.js";
  window.live = (url, ticket) => {
    const client = new Client({ url, ticket: () => ticket, pause: { minMs: 1e9, maxMs: 1e9 } });
    window.client = client;
    window.map = client.values("X/*", { decode: (body) => new TextDecoder().decode(body) });
  };
  window.raw = (url) => new Promise((done) => {
    const socket = new WebSocket(url, ["v12.stomp"]);
    socket.onopen = () => done("open");
    socket.onclose = () => done("closed");
  });
  window.get = (url, ticket) => fetch(url, { headers: { authorization: "Bearer " + ticket } }).then(
    async (answer) => [answer.status, await answer.json()],
    (error) => ["refused", error.name],
  );
</script>"""


@dataclass(frozen=True)
class Site:
    """A gateway and the server of its pages.

    Attributes:
        gateway: With a publisher that has sent `X/a`.
        allowed: Address of the page in an allowed origin.
        foreign: Address of the same page in another one.
        publisher: Sends values.
    """

    gateway: GatewayProcess
    allowed: str
    foreign: str
    publisher: RawClient

    @property
    def web(self) -> str:
        """Host and port of the web listener."""
        return f"localhost:{self.gateway.web_port}"

    def ticket(self) -> str:
        """Make a ticket, as the backend of a page does."""
        folder = self.gateway.certificates
        address = f"127.0.0.1:{self.gateway.admin_port}"
        certificate, key, ca = (folder / name for name in ("operator.pem", "operator.key", "ca.pem"))
        with Remote(Credentials(address, certificate, key, ca)) as remote:
            ticket: str = remote.post("/v1/tickets", {"principal": "page", "receive": ["X/*"]})["ticket"]
            return ticket


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves the page and the client."""

    files: dict[str, bytes]
    ticket: Callable[[], str]

    def do_GET(self) -> None:
        """Serve a file."""
        name = self.path.removeprefix("/") or "index.html"
        self._reply(self.files.get(name, b""), "text/javascript" if name.endswith(".js") else "text/html")

    def do_POST(self) -> None:
        """Make a ticket."""
        self._reply(type(self).ticket().encode(), "text/plain")

    def _reply(self, body: bytes, kind: str) -> None:
        self.send_response(200 if body else 404)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class PageServer(http.server.ThreadingHTTPServer):
    """Serves the pages in threads."""

    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Report nothing: a browser that does not trust the certificate ends its handshake."""


@contextmanager
def open_site(folder: Path, certificates: Path) -> Iterator[Site]:
    """Run both for the length of a block."""
    require_package()
    run_node("build.mjs", "--out", str(folder / "client"))
    (folder / "gateway").mkdir()
    Pages.files = {path.name: path.read_bytes() for path in (folder / "client").glob("*.js")} | {"index.html": PAGE}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    policy = POLICY.format(**json.loads((certificates / "fingerprints.json").read_text()))
    with PageServer(("127.0.0.1", 0), Pages) as pages:
        pages.socket = context.wrap_socket(pages.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        allowed, foreign = (f"https://{host}:{pages.server_port}" for host in ("localhost", "127.0.0.1"))
        web = f'[web]\nlisten = "127.0.0.1:0"\norigins = ["{allowed}"]\n'
        gateway = GatewayProcess(folder / "gateway", certificates, policy, SCHEMAS, web)
        with gateway, RawClient(gateway, "publisher") as publisher:
            publisher.send("X/a", b"first")
            site = Site(gateway, allowed, foreign, publisher)
            Pages.ticket = site.ticket
            yield site
        pages.shutdown()

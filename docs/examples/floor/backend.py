"""The backend of the venue floor: it serves the page and makes tickets for it.

Only the standard library is used. A backend of your own first checks the session of its user.
"""

import argparse
import gzip
import http.client
import json
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from forward import forward  # type: ignore[import-not-found]  # the file beside this one

GLOBS: Final = ["X/EGM.*.EGMStatus"]
SAFE: Final = {"cache-control": "no-store", "content-security-policy": "frame-ancestors 'none'"}
PAGE: Final = {"content-type": "text/html; charset=utf-8", "content-encoding": "gzip"}
PLAIN: Final = {"content-type": "text/plain"}


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection, which stays open for the next one."""

    protocol_version = "HTTP/1.1"
    timeout = 60  # of a connection without a request
    wbufsize = -1  # one packet for an answer, not two
    options: argparse.Namespace

    def do_GET(self) -> None:
        """Serve the page, or forward its socket."""
        if self.path == "/stomp":
            forward(self, self.options.web, self.options.tls)
        elif self.path == "/":
            self.reply(200, self.options.page, PAGE)
        else:
            self.reply(404)

    def do_POST(self) -> None:
        """Make a ticket for a page of this backend."""
        if self.path != "/ticket" or self.headers["origin"] != self.options.origin:
            return self.reply(404)
        connection = http.client.HTTPSConnection(self.options.admin, context=self.options.tls, timeout=10)
        wish = {"principal": "floor-page", "receive": GLOBS, "origin": self.options.origin}
        try:
            connection.request("POST", "/v1/tickets", json.dumps(wish), {"maxam-admin": "1"})
            return self.reply(200, json.load(connection.getresponse())["ticket"].encode())
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return self.reply(503)
        finally:
            connection.close()

    def reply(self, status: int, body: bytes = b"", content: dict[str, str] = PLAIN) -> None:
        """Send an answer. `content` describes the body."""
        self.close_connection = status != 200  # the body of the request was not read
        self.send_response(status)
        for name, value in {**SAFE, **content, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, required=True, help="folder with the built page")
    parser.add_argument("--port", type=int, default=8090, help="port of the page on 127.0.0.1 [8090]")
    parser.add_argument("--admin", default="localhost:8643", help="admin listener of the gateway [localhost:8643]")
    parser.add_argument("--web", default="localhost:61616", help="web listener of the gateway [localhost:61616]")
    parser.add_argument("--certificates", type=Path, default=Path("certs-dev"), help="with ca and backend [certs-dev]")
    Handler.options = options = parser.parse_args()
    options.page = gzip.compress((options.page / "index.html").read_bytes(), mtime=0)
    options.tls = ssl.create_default_context(cafile=options.certificates / "ca.pem")
    options.tls.load_cert_chain(options.certificates / "backend.pem", options.certificates / "backend.key")
    with ThreadingHTTPServer(("127.0.0.1", options.port), Handler) as server:
        options.origin = f"http://127.0.0.1:{server.server_port}"
        print(f"{options.origin}/", flush=True)  # noqa: T201 - the address of the page
        server.serve_forever()

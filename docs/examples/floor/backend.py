"""The backend of the venue floor: it serves the page, makes tickets for it, and forwards its sockets to the gateway.

Only the standard library is used. A backend of your own first checks the session of its user. Behind a reverse proxy that serves
`/stomp` itself, or with a gateway whose certificate browsers trust, `forward` is not needed.
"""

import argparse
import asyncio
import http.client
import json
import ssl
from pathlib import Path
from typing import Final

GLOBS: Final = ["X/EGM.*.EGMStatus"]
TYPES: Final = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript"}


def make_ticket(options: argparse.Namespace, origin: str) -> str:
    """Ask the gateway for a ticket, with the certificate of this backend."""
    connection = http.client.HTTPSConnection(options.admin, context=options.tls, timeout=10)
    wish = {"principal": "floor-page", "receive": GLOBS, "origin": origin}
    headers = {"content-type": "application/json", "maxam-admin": "1"}
    try:
        connection.request("POST", "/v1/tickets", json.dumps(wish), headers)
        answer = json.load(connection.getresponse())
    finally:
        connection.close()
    return str(answer["ticket"])


async def forward(
    options: argparse.Namespace, head: bytes, reader: asyncio.StreamReader, out: asyncio.StreamWriter
) -> None:
    """Connect a socket of the page to the web listener of the gateway."""
    host, _, port = options.web.rpartition(":")
    back, there = await asyncio.open_connection(host, int(port), ssl=options.tls)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
        except OSError:
            pass  # one side is gone
        finally:
            target.close()

    there.write(head)
    await asyncio.gather(copy(reader, there), copy(back, out))


async def serve(options: argparse.Namespace, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request, and close its connection."""
    try:
        await answer(options, reader, writer)
    except (OSError, EOFError, ValueError):
        pass  # the browser or the gateway is gone, or it is no request: the page tries again
    finally:
        writer.close()


async def answer(options: argparse.Namespace, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request of the page."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    (method, path, *_), *lines = (line.split(" ") for line in head.decode("latin-1").split("\r\n"))
    headers = {line[0].lower(): " ".join(line[1:]) for line in lines}
    origin = f"http://127.0.0.1:{options.port}"
    file = options.page / ("index.html" if path == "/" else Path(path).name)
    status, kind, body = "404 Not Found", "text/plain", b""
    if path == "/stomp":
        await forward(options, head, reader, writer)
        return
    if (method, path) == ("POST", "/ticket") and headers.get("origin:") == origin:
        try:
            status, body = "200 OK", (await asyncio.to_thread(make_ticket, options, origin)).encode()
        except (OSError, KeyError):
            status = "503 Service Unavailable"
    elif method == "GET" and file.suffix in TYPES and file.is_file():
        status, kind, body = "200 OK", TYPES[file.suffix], file.read_bytes()
    start = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\ncache-control: no-store\r\n"
    policy = "; ".join(("default-src 'self'", "img-src data:", "frame-ancestors 'none'"))
    writer.write(f"{start}content-security-policy: {policy}\r\nconnection: close\r\n\r\n".encode() + body)
    await writer.drain()


async def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, required=True, help="folder with index.html, floor.css and floor.js")
    parser.add_argument("--port", type=int, default=8090, help="port of the page on 127.0.0.1 [8090]")
    parser.add_argument("--admin", default="localhost:8643", help="admin listener of the gateway [localhost:8643]")
    parser.add_argument("--web", default="localhost:61616", help="web listener of the gateway [localhost:61616]")
    parser.add_argument(
        "--certificates", type=Path, default=Path("certs-dev"), help="folder with ca, backend [certs-dev]"
    )
    options = parser.parse_args()
    options.tls = ssl.create_default_context(cafile=options.certificates / "ca.pem")
    options.tls.load_cert_chain(options.certificates / "backend.pem", options.certificates / "backend.key")
    server = await asyncio.start_server(
        lambda reader, writer: serve(options, reader, writer), "127.0.0.1", options.port
    )
    options.port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{options.port}/", flush=True)  # noqa: T201 - the address of the page
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

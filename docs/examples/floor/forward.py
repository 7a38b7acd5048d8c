"""Forwards a WebSocket of the page to the web listener of the gateway.

Only development needs this, because browsers do not trust the certificate of its gateway. In production the page connects to the gateway
itself, or a reverse proxy serves `/stomp`.
"""

import socket
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler


def forward(request: BaseHTTPRequestHandler, gateway: str, tls: ssl.SSLContext) -> None:
    """Forward a request for an upgrade, and then all bytes in both directions until one side ends."""
    request.close_connection = True
    page = request.connection
    page.settimeout(None)
    host, _, port = gateway.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port))) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with tls.wrap_socket(plain, server_hostname=host) as there:
            there.sendall(f"{request.requestline}\r\n{request.headers}".encode("latin-1"))
            threading.Thread(target=_copy, args=(there, page), daemon=True).start()
            _copy(page, there)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for side in (source, target):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)

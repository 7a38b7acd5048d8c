"""Certificates, and TLS clients over socket pairs, for tests of the gateway on a virtual clock.

A socket pair hands bytes over at once, so the autojump clock never jumps while something is under way.
"""

import datetime as dt
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from maxam.pki.certificates import Authority, issue_development_certificates
from tests.streams.tls_pairs import Client, client_context, context_of, tls_settings


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of development certificates, and beside them an expired, a revoked and a foreign client."""
    folder = tmp_path_factory.mktemp("certificates")
    now = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    issue_development_certificates(folder, now)
    authority = Authority.read(folder)
    authority.issue("expired", now - 2 * day, now - day).write(folder, "expired")
    revoked = authority.issue("revoked", now - day, now + day)
    revoked.write(folder, "revoked")
    (folder / "crl-revoked.pem").write_bytes(authority.revocation_list_pem([revoked.certificate], now))
    Authority.create("another authority", now).issue("foreign", now - day, now + day).write(folder, "foreign")
    return folder


@pytest.fixture(scope="session")
def context(certificates: Path) -> ssl.SSLContext:
    """The server's context."""
    return context_of(tls_settings(certificates))


@pytest.fixture(scope="session")
def lenient_context(certificates: Path) -> ssl.SSLContext:
    """The context of a server that takes TLS 1.2 too."""
    return context_of(replace(tls_settings(certificates), minimum="1.2"))


@pytest.fixture
def pair(certificates: Path) -> Callable[..., tuple[socket.socket, Client]]:
    """Make a connected pair: the server's raw socket, and the stream of a client that has not begun its handshake."""

    def make(name: str | None = "publisher", **changes: ssl.TLSVersion) -> tuple[socket.socket, Client]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        context = client_context(certificates, name)
        for key, value in changes.items():
            setattr(context, key, value)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        return ours, trio.SSLStream(stream, context, server_hostname="localhost")

    return make

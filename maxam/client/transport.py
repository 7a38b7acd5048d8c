"""Dial a gateway over mutual TLS, on asyncio or trio."""

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Protocol, final

import anyio
import anyio.abc

from maxam.client.errors import ConnectionLostError, TlsError, UnreachableError
from maxam.client_tls import client_context
from maxam.errors import ClientError

CLOSE_TIMEOUT_S: Final = 1.0  # for the peer to take our TLS close_notify
_CHUNK_BYTES: Final = 65_536  # read from the socket at a time


class Stream(Protocol):
    """Bytes to and from a server. One task may read while another one writes."""

    async def send_all(self, data: bytes) -> None:
        """Write all of `data`.

        Raises:
            anyio.BrokenResourceError: The connection is gone. Its `__cause__` is the reason, if one is known.
        """

    async def receive_some(self, bytes_max: int) -> bytes:
        """Wait for bytes and return up to `bytes_max` of them, or none at the end of the stream.

        Raises:
            anyio.BrokenResourceError: The connection is gone. Its `__cause__` is the reason, if one is known.
        """

    async def aclose(self) -> None:
        """Close it."""


@final
class TlsStream:
    """TLS over a TCP connection.

    Own code, because `TLSStream` of anyio reads one record at a time, and sends no close_notify without waiting for the other's.
    """

    def __init__(self, plain: anyio.abc.ByteStream, context: ssl.SSLContext, name: str | None) -> None:
        self._plain: Final = plain
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._tls: Final = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._sending: Final = anyio.Lock()

    async def shake_hands(self) -> None:
        """Set up TLS.

        Raises:
            anyio.BrokenResourceError: The handshake failed, for the reason in `__cause__`.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError as error:
                await self._flush()  # an alert
                raise anyio.BrokenResourceError from error
            else:
                await self._flush()
                return

    async def send_all(self, data: bytes) -> None:
        """Write all of `data`; see `Stream`."""
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise anyio.BrokenResourceError from error
        await self._flush()

    async def receive_some(self, bytes_max: int) -> bytes:
        """Return what has arrived; see `Stream`."""
        parts: list[bytes] = []
        while True:
            try:
                while bytes_max > 0 and (part := self._tls.read(bytes_max)):
                    parts.append(part)
                    bytes_max -= len(part)
            except ssl.SSLWantReadError:
                if self._outgoing.pending:
                    await self._flush()
                if parts:
                    break
                await self._fill()
            except ssl.SSLError as error:
                if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
                    break
                raise anyio.BrokenResourceError from error
            else:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def aclose(self) -> None:
        """Send close_notify and close the connection, without waiting for the other's."""
        with suppress(ssl.SSLError):  # it wants the other's close_notify
            self._tls.unwrap()
        try:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._flush()
        finally:
            await self._plain.aclose()  # also when cancelled: it closes first

    async def _flush(self) -> None:
        async with self._sending:  # records leave in the order of their numbers
            data = self._outgoing.read()
            if data:
                try:
                    await self._plain.send(data)
                except OSError as error:
                    raise anyio.BrokenResourceError from error

    async def _fill(self) -> None:
        try:
            self._incoming.write(await self._plain.receive(_CHUNK_BYTES))
        except anyio.EndOfStream:
            self._incoming.write_eof()
        except OSError as error:
            raise anyio.BrokenResourceError from error


@asynccontextmanager
async def dial(
    address: str,
    port: int,
    *,
    certificate: str | Path | None,
    key: str | Path | None,
    ca: str | Path | None,
    check_name: str | None,
    timeout_s: float,
) -> AsyncIterator[Stream]:
    """Open a TLS connection and close it at the end of the block, abruptly if that end is an exception.

    With TLS 1.3 the gateway's refusal of our certificate comes only with the first read.

    Raises:
        CertificateFileError: A file cannot be used.
        UnreachableError: No server answers there within `timeout_s`.
        TlsError: The handshake failed.
    """
    context = client_context(ca, certificate, key, name_checked=check_name is not None)
    where = f"{address}:{port}"
    stream: TlsStream | None = None
    plain: anyio.abc.SocketStream | None = None
    with anyio.move_on_after(timeout_s):
        try:
            plain = await anyio.connect_tcp(address, port)
        except OSError as error:
            raise UnreachableError(f"no gateway at {where}: {_reason(error)}. Is it running?") from error
        tls = TlsStream(plain, context, check_name)
        try:
            await tls.shake_hands()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            await anyio.aclose_forcefully(plain)
            raise loss(error) from error
        except BaseException:
            await anyio.aclose_forcefully(plain)
            raise
        stream = tls
    if stream is None or plain is None:
        raise UnreachableError(f"no answer from {where} within {timeout_s:g} s")
    try:
        yield stream
    except BaseException:
        await anyio.aclose_forcefully(plain)
        raise
    with anyio.move_on_after(CLOSE_TIMEOUT_S):
        await stream.aclose()


def clock() -> Callable[[], float]:
    """Return the function that returns the time of the running event loop, in seconds. That of anyio takes twice as long."""
    try:
        return asyncio.get_running_loop().time
    except RuntimeError:
        found: Callable[[], float] = sys.modules["trio"].current_time
        return found


def _reason(error: OSError) -> str:
    """Return why connecting failed. The error of anyio itself reports only that all attempts did."""
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.errno is not None):
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    if number is None or isinstance(cause, socket.gaierror):
        return str(cause or error)
    return os.strerror(number)


def loss(error: BaseException) -> ClientError:
    """Return the reason why a connection ended, from the exception of its stream."""
    cause = error.__cause__
    match cause:
        case ssl.SSLCertVerificationError():
            return TlsError(f"we do not accept the gateway's certificate: {cause.verify_message}")
        case ssl.SSLEOFError():
            return TlsError("the gateway closed the connection; does it speak TLS, and does it know our certificate?")
        case ssl.SSLError() if "ALERT" in (cause.reason or ""):
            return TlsError(f"the gateway does not accept our certificate or TLS version: {cause.reason}")
        case ssl.SSLError():
            return TlsError(f"TLS broke: {cause.reason or cause}. Is that a gateway?")
        case _:
            return ConnectionLostError(f"the connection broke: {cause or error}")

"""Dial a gateway over mutual TLS."""

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from maxam.client.errors import ConnectionLostError, TlsError, UnreachableError
from maxam.client_tls import client_context
from maxam.errors import ClientError

CLOSE_TIMEOUT_S: Final = 1.0  # for the peer to take our TLS close_notify


@asynccontextmanager
async def dial(
    address: str,
    port: int,
    *,
    certificate: str | Path,
    key: str | Path,
    ca: str | Path,
    check_name: str | None,
    timeout_s: float,
) -> AsyncIterator[trio.abc.Stream]:
    """Open a TLS connection and close it at the end of the block, abruptly if that end is an exception.

    With TLS 1.3 the gateway's refusal of our certificate comes only with the first read.

    Raises:
        CertificateFileError: A file cannot be used.
        UnreachableError: No server answers there within `timeout_s`.
        TlsError: The handshake failed.
    """
    context = client_context(ca, certificate, key, name_checked=check_name is not None)
    where = f"{address}:{port}"
    with trio.move_on_after(timeout_s) as patience:
        try:
            plain = await trio.open_tcp_stream(address, port)
        except OSError as error:
            raise UnreachableError(f"no gateway at {where}: {_reason(error)}. Is it running?") from error
        stream = trio.SSLStream(plain, context, server_hostname=check_name, https_compatible=True)
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError as error:
            await trio.aclose_forcefully(stream)
            raise loss(error) from error
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
    if patience.cancelled_caught:
        raise UnreachableError(f"no answer from {where} within {timeout_s:g} s")
    try:
        yield stream
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    with trio.move_on_after(CLOSE_TIMEOUT_S):
        await stream.aclose()


def _reason(error: OSError) -> str:
    """Return why connecting failed. The error of trio itself reports only that all attempts did."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    number = cause.errno if isinstance(cause, OSError) else error.errno
    return str(error) if number is None else os.strerror(number)


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

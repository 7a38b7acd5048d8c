"""Switch off the session cache of an `ssl.SSLContext`, and prove that it is off.

OpenSSL keeps the session of every TLS 1.2 handshake for two hours, with all certificates that the client sent. A client could fill the memory
of the gateway with it. A client that resumes such a session shows no verified chain, so it would be refused. Python's `ssl` has no setting for
the cache, so this module calls OpenSSL through `ctypes`. TLS 1.3 without tickets keeps nothing.
"""

import _ssl
import ctypes
import ssl
import sys
from collections.abc import Callable
from typing import Final

from maxam.errors import ConfigurationError

# openssl/ssl.h: SSL_CTX_set_session_cache_mode is a macro for SSL_CTX_ctrl.
_CTRL_SET_SESSION_CACHE_MODE: Final = 44
_CTRL_GET_SESSION_CACHE_MODE: Final = 45
_CTRL_GET_MIN_PROTO_VERSION: Final = 130
_SESSION_CACHE_OFF: Final = 0
_FLIGHTS_MAX: Final = 8  # exchanges of data in one handshake in memory; TLS 1.2 needs three


def switch_off_session_cache(context: ssl.SSLContext) -> None:
    """Switch off the session cache of a server context.

    Raises:
        ConfigurationError: This interpreter gives no safe access to OpenSSL's context.
    """
    try:
        _switch_off(context)
    except (OSError, AttributeError, ValueError) as error:
        raise _unusable(str(error)) from error


def prove_no_resumption(load_certificate: Callable[[ssl.SSLContext], None]) -> None:
    """Resume a TLS 1.2 session with a server context in memory, and check that it is not resumed.

    Args:
        load_certificate: Loads a certificate chain and its key into a context.

    Raises:
        ConfigurationError: `switch_off_session_cache` has no effect on this interpreter.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.maximum_version = server.minimum_version = ssl.TLSVersion.TLSv1_2
    server.options |= ssl.OP_NO_TICKET
    load_certificate(server)
    switch_off_session_cache(server)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    # OpenSSL forgets a session when its connection is freed without a close, so both server ends must live on here.
    _first_server, first = _shake_hands(server, client, None)
    _second_server, second = _shake_hands(server, client, first.session)
    kept = server.session_stats()["number"]
    if second.session_reused or kept:
        raise _unusable(f"it kept {kept} sessions, {'one' if second.session_reused else 'none'} was resumed")


def _switch_off(context: ssl.SSLContext) -> None:
    if sys.implementation.name != "cpython":
        raise ValueError(f"{sys.implementation.name} is not CPython")
    library = ctypes.CDLL(_ssl.__file__)  # finds what its OpenSSL exports, too
    library.SSL_CTX_get_options.argtypes = [ctypes.c_void_p]
    library.SSL_CTX_get_options.restype = ctypes.c_uint64
    library.SSL_CTX_ctrl.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p]
    library.SSL_CTX_ctrl.restype = ctypes.c_long
    # CPython's PySSLContext: the object's head, then the SSL_CTX*.
    pointer = ctypes.c_void_p.from_address(id(context) + object.__basicsize__).value
    if (
        not pointer
        or (library.SSL_CTX_get_options(pointer) ^ context.options) & 0xFFFFFFFF
        or library.SSL_CTX_ctrl(pointer, _CTRL_GET_MIN_PROTO_VERSION, 0, None) != context.minimum_version
    ):
        raise ValueError("the layout of its SSLContext is unknown")
    library.SSL_CTX_ctrl(pointer, _CTRL_SET_SESSION_CACHE_MODE, _SESSION_CACHE_OFF, None)
    if library.SSL_CTX_ctrl(pointer, _CTRL_GET_SESSION_CACHE_MODE, 0, None) != _SESSION_CACHE_OFF:
        raise ValueError("OpenSSL left the cache on")


def _shake_hands(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends of a connection in memory after its handshake, the server's first."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, session=session)
    for _ in range(_FLIGHTS_MAX):
        done = 0
        for end in (client, server):
            try:
                end.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                raise _unusable(f"a handshake of TLS 1.2 failed: {error}") from error
        if done == 2:  # both ends
            return server, client
    raise _unusable("a handshake of TLS 1.2 did not end")


def _unusable(cause: str) -> ConfigurationError:
    return ConfigurationError(
        '[tls] minimum = "1.2" cannot be used: the session cache of OpenSSL cannot be switched off with this Python'
        f' ({sys.version.split()[0]}, {ssl.OPENSSL_VERSION}): {cause}. Set it to "1.3", or use the Python of the system'
    )

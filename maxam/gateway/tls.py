"""TLS by hand over a non-blocking socket: whole batches in, whole batches out, and who is at the other end.

trio's SSLStream hands out one record per call and costs three times as much (docs/performance.md). The rule that makes
this simple: any task may decrypt, and nothing is sent while an earlier send waits for the kernel. What OpenSSL wants to send by itself (answers to a KeyUpdate,
alerts) waits in `unsent` until the sender takes it.
"""

import _ssl
import contextlib
import hashlib
import math
import os
import select
import socket
import ssl
import sys
from collections.abc import Iterator
from typing import Any, Final, final

import trio
from cryptography import x509

from maxam.errors import ConfigurationError
from maxam.gateway.revocation import UNREADABLE, Certificate, Chain, facts_of, shown_name

RECORD_BYTES_MAX: Final = 16_384  # plaintext of one TLS record
HANDSHAKE_READ_BYTES: Final = 4096
# Answers that a peer may make us write without sending data: a few thousand KeyUpdates in a connection's life.
REPLY_BYTES_MAX: Final = 65_536
_NOTHING: Final = memoryview(b"")


@final
class TransportClosedError(Exception):
    """Say why a connection cannot go on; internal to the gateway, never shown to a client."""


def fingerprint(der: bytes) -> str:
    """Return the identity of a certificate: SHA-256 of its DER, 64 lower-case hex digits. Computed nowhere else."""
    return hashlib.sha256(der).hexdigest()


@final
class ServerCertificate:
    """The server's certificate chain with its key, proven to belong together. Immutable.

    Attributes:
        name: Subject of the certificate, for people.
        dns_names: Names of hosts that it is for, in lower case; `*.example.org` is for one label more.
        valid_from: First moment of its validity.
        valid_until: Last moment of its validity.
    """

    __slots__ = ("_chain", "_key", "dns_names", "name", "valid_from", "valid_until")

    def __init__(self, chain: bytes, key: bytes, where: str) -> None:
        """Take PEM texts; `where` names their files.

        Raises:
            ConfigurationError: They are not a certificate chain and its key.
        """
        self._chain: Final = chain
        self._key: Final = key
        try:
            self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            leaf = x509.load_pem_x509_certificates(chain)[0]
        except (OSError, *UNREADABLE) as error:
            raise ConfigurationError(
                f"[tls] {where} do not work together: {error};"
                f" expected a PEM certificate chain and its PEM key without a password"
            ) from error
        self.name: Final = shown_name(leaf.subject)
        self.dns_names: Final = _dns_names(leaf)
        self.valid_from: Final = leaf.not_valid_before_utc
        self.valid_until: Final = leaf.not_valid_after_utc

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have a context present it. Python takes files only: these are in memory, so that what is used is what was checked."""
        with _in_memory(self._chain) as chain, _in_memory(self._key) as key:
            # An encrypted key must fail here, not ask on a terminal that a service does not have.
            context.load_cert_chain(chain, key, password=lambda: b"")


def _dns_names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, *UNREADABLE):
        return frozenset()
    return frozenset([name.lower() for name in names.get_values_for_type(x509.DNSName)])


@final
class Authorities:
    """Whose client certificates are accepted: the certificates of `client_ca`. Immutable.

    Attributes:
        certificates: All of them, in the order of the file.
        validity: Name of each authority, for people, and until when it is valid, in seconds since the epoch.
    """

    __slots__ = ("_pem", "_roots", "_valid_until_s", "certificates", "validity")

    def __init__(self, pem: bytes, where: str) -> None:
        """Take a PEM text; `where` names its file.

        Raises:
            ConfigurationError: It holds no authority that could be trusted.
        """
        expected = "expected PEM certificates of the authority that signs clients"
        try:
            self._pem: Final = pem.decode("ascii", "replace")
            if "BEGIN CERTIFICATE" not in self._pem:
                raise ConfigurationError(f"[tls] client_ca {where}: holds none; {expected}")
            self.certificates: Final = tuple(x509.load_pem_x509_certificates(pem))
            found = [facts_of(certificate) for certificate in self.certificates]
            self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except (OSError, *UNREADABLE) as error:
            raise ConfigurationError(f"[tls] client_ca {where}: {error}; {expected}") from error
        self._roots: Final = frozenset([(one.subject, one.public_key) for one in found if one.subject == one.issuer])
        if not self._roots:
            raise ConfigurationError(
                f"[tls] client_ca {where}: holds no self-signed authority, so nobody could connect; add it"
            )

        # An authority may have several certificates over one key: it is renewed by adding another.
        self._valid_until_s: Final[dict[tuple[bytes, bytes], float]] = {}
        names: dict[tuple[bytes, bytes], str] = {}
        for one, certificate in zip(found, self.certificates, strict=True):
            owner = (one.subject, one.public_key)
            names[owner] = shown_name(certificate.subject)
            self._valid_until_s[owner] = max(one.valid_until_s, self._valid_until_s.get(owner, 0.0))
        self.validity: Final = tuple((name, self._valid_until_s[owner]) for owner, name in names.items())

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have a context trust them."""
        context.load_verify_locations(cadata=self._pem)

    def trusts(self, chain: Chain) -> bool:
        """Say whether a chain that was verified, perhaps under authorities that were in force before, leads to one of these."""
        return any((certificate.subject, certificate.public_key) in self._roots for certificate in chain)

    def validity_of(self, chain: Chain) -> tuple[float, Certificate]:
        """Say until when a chain that leads to one of these is valid, in seconds since the epoch, and which certificate ends it.

        An authority counts for as long as its newest certificate here: it may have been renewed since the chain was verified.
        """
        ends = [
            (self._valid_until_s.get((one.subject, one.public_key), one.valid_until_s), at)
            for at, one in enumerate(chain)
        ]
        until_s, at = min(ends)
        return until_s, chain[at]


def server_context(certificate: ServerCertificate, authorities: Authorities) -> ssl.SSLContext:
    """Make the context of a listener that accepts only clients with a certificate of `authorities`.

    Revocation is not its business: see `revocation`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")  # of 1.2: forward secrecy, and none of the CBC suites
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0  # resumption would skip the certificate
    context.verify_mode = ssl.CERT_REQUIRED
    certificate.load_into(context)
    authorities.load_into(context)
    return context


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Give the path of a file that is nowhere on disk, for as long as the context lasts."""
    descriptor = os.memfd_create("maxam", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)  # to memory: all of it
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def tls_version(tls: ssl.SSLObject) -> str:
    """Return the version of TLS and the cipher of a connection whose handshake is complete."""
    cipher = tls.cipher()
    return f"{tls.version()}/{cipher[0] if cipher else '?'}"


def verified_chain(tls: ssl.SSLObject) -> list[bytes]:
    """Return the DER of a peer's certificates up to the trusted authority, its own first; none if it sent none.

    Public in Python 3.13; before, under the same name on the object that `SSLObject` wraps.
    """
    chain: Any = getattr(tls, "get_verified_chain", None)
    if chain is not None:
        return list(chain())
    certificates: Any = tls._sslobj.get_verified_chain()  # type: ignore[attr-defined]  # noqa: SLF001  # see above
    return [certificate.public_bytes(_ssl.ENCODING_DER) for certificate in certificates or ()]


_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate",
    "HTTP_REQUEST": "not TLS but plain HTTP",
    "HTTPS_PROXY_REQUEST": "not TLS but a plain CONNECT",
    "WRONG_VERSION_NUMBER": "not TLS, or a version of it unknown to us",
    "UNSUPPORTED_PROTOCOL": "the client offers only TLS below 1.2",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust our certificate (unknown authority)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept our certificate",
    "NO_SHARED_CIPHER": "no cipher in common",
}


def handshake_problem(error: ssl.SSLError) -> str:
    """Return why a handshake failed, in words for the operator's log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        # verify_message says "certificate has expired", "certificate revoked", "unable to get local issuer certificate"
        return f"client certificate refused: {error.verify_message}"
    return _REASONS.get(error.reason or "", f"TLS error {error.reason or error}")


@final
class TlsSocket:
    """One server-side TLS connection on a connected, non-blocking socket that it owns.

    `receive` may run in one task and `send` in another; `send` must not be cancelled but to close, because half a
    record makes the stream useless.
    """

    __slots__ = (
        "_backlog",
        "_ended",
        "_incoming",
        "_outgoing",
        "_poll",
        "_received_much",
        "_replied_bytes",
        "_socket",
        "_tls",
    )

    def __init__(self, context: ssl.SSLContext, connected: socket.socket) -> None:
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._tls: Final = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._socket: Final = connected
        self._poll: Final = select.poll()
        self._poll.register(connected, select.POLLOUT)
        self._backlog = _NOTHING  # encrypted, and not taken by the kernel
        self._received_much = False
        self._replied_bytes = 0
        self._ended = False  # the peer has said that it sends no more

    async def handshake(self, turns: trio.CapacityLimiter) -> None:
        """Complete the handshake; each costly step takes one of `turns`, which are never held while waiting for a peer.

        Sets no time-out of its own.

        Raises:
            ssl.SSLError: The handshake failed; the alert was sent if the socket took it at once.
            OSError: The socket failed.
            TransportClosedError: The peer went away.
        """
        while True:
            async with turns:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    done = False
                except ssl.SSLError:
                    self._send_now(self._outgoing.read())
                    raise
                else:
                    done = True
                await trio.lowlevel.checkpoint()  # one step, then the others have theirs
            await self.flush(math.inf)
            if done:
                return
            if sys.platform == "linux" and self._socket.family != socket.AF_UNIX:
                # TLS 1.3 answers nothing to the client's last flight: without TCP_NODELAY a client holds its CONNECT back
                # until that flight is acknowledged, and an acknowledgement may take 40 ms unless it is asked for.
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            data = await self._receive_raw(HANDSHAKE_READ_BYTES)
            if not data:
                raise TransportClosedError("closed during the TLS handshake")
            self._incoming.write(data)

    @property
    def peer_fingerprint(self) -> str:
        """The identity of the peer; the handshake must be complete."""
        der = self._tls.getpeercert(binary_form=True)
        if der is None:
            raise TransportClosedError("no client certificate")  # unreachable with CERT_REQUIRED, and must stay so
        return fingerprint(der)

    @property
    def peer_chain(self) -> list[bytes]:
        """DER of the peer's certificates up to the trusted authority, its own first; the handshake must be complete."""
        return verified_chain(self._tls)

    @property
    def version(self) -> str:
        """Version and cipher, for the log."""
        return tls_version(self._tls)

    @property
    def unsent(self) -> bool:
        """Encrypted bytes wait for the sender."""
        return self._outgoing.pending > 0 or len(self._backlog) > 0

    def decrypt(self) -> bytes | None:
        """Return all plaintext that has arrived and is complete; None when the peer closed its side before any.

        Raises:
            ssl.SSLError: The peer broke TLS.
            TransportClosedError: The peer asked for more answers than any real one does.
        """
        unsent = self._outgoing.pending
        parts: list[bytes] = []
        try:
            while part := self._tls.read(RECORD_BYTES_MAX):
                parts.append(part)
                if not self._incoming.pending and not self._tls.pending():
                    break  # to be told so by an exception costs as much as the record
            else:
                self._ended = True  # an empty read is the peer's close_notify
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._ended = True
        self._replied_bytes += self._outgoing.pending - unsent
        if self._replied_bytes > REPLY_BYTES_MAX:
            raise TransportClosedError("too many TLS control messages")
        if self._ended and not parts:
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def receive(self, bytes_max: int) -> bytes | None:
        """Wait for bytes and return what they decrypt to, at most `bytes_max`; None at the end of the stream.

        Returns b"" when nothing is complete yet. A cancellation loses nothing. Raises like `decrypt`, and OSError when
        the socket failed.
        """
        if self._ended:
            return None
        data = await self._receive_raw(bytes_max)
        if not data:
            return None
        self._incoming.write(data)
        return self.decrypt()

    async def _receive_raw(self, bytes_max: int) -> bytes:
        if self._received_much:
            # Then there is often more already: to try first costs less than to ask the kernel to tell us.
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._socket)
        while True:
            try:
                data = self._socket.recv(bytes_max)
            except (BlockingIOError, InterruptedError):
                await trio.lowlevel.wait_readable(self._socket)
            else:
                self._received_much = len(data) >= RECORD_BYTES_MAX
                return data

    def send(self, data: bytes | memoryview) -> bool:
        """Encrypt `data` and send all that is encrypted; False when the kernel did not take everything: `flush` then.

        Raises:
            OSError: The socket failed.
            AssertionError: The kernel has not taken yet what was sent before.
        """
        if self._backlog:
            raise AssertionError("bytes would overtake those that wait")
        written = self._tls.write(data)
        while written < len(data):
            written += self._tls.write(memoryview(data)[written:])
        return self._send_encrypted()

    def _send_encrypted(self) -> bool:
        data = self._outgoing.read()
        sent = self._send_now(data)
        if sent == len(data):
            return True
        self._backlog = memoryview(data)[sent:]
        return False

    def _send_now(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    async def flush(self, timeout_s: float) -> None:
        """Send all encrypted bytes: tried at once, waiting only when the kernel takes no more.

        Returns when the kernel has everything; reaches no checkpoint if it took them at once. Cancelled, the stream is
        unusable.

        Raises:
            OSError: The socket failed.
            TransportClosedError: The kernel did not take everything within `timeout_s`.
        """
        with trio.move_on_after(timeout_s):
            while self._backlog or (self._outgoing.pending and not self._send_encrypted()):
                await trio.lowlevel.wait_writable(self._socket)
                # an empty view would keep all that it was cut from
                self._backlog = self._backlog[self._send_now(self._backlog) :] or _NOTHING
        if self._backlog:
            raise TransportClosedError(f"the peer did not take {len(self._backlog)} bytes within {timeout_s:g} s")

    def has_room(self) -> bool:
        """Tell whether the kernel holds so little that it will take more: what is encrypted before can only grow stale."""
        return bool(self._poll.poll(0))

    async def wait_room(self, timeout_s: float) -> None:
        """Wait for room. A cancellation loses nothing.

        Raises:
            TransportClosedError: It did not come to that within `timeout_s`.
        """
        with trio.move_on_after(timeout_s) as waited:
            await trio.lowlevel.wait_writable(self._socket)
        if waited.cancelled_caught:
            raise TransportClosedError(f"the peer did not take what it was sent within {timeout_s:g} s")

    async def linger(self) -> None:
        """Close our side and discard what still arrives until the peer closes, so that it reads our last bytes.

        A close with unread input would reset the connection and take them away. Bound it with a time-out.
        """
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()  # WantRead: our close_notify is written, and we need not see the peer's
        await self.flush(math.inf)
        self._socket.shutdown(socket.SHUT_WR)
        while await self._receive_raw(RECORD_BYTES_MAX):
            pass

    def close(self, abort: bool = False) -> None:
        """Close the socket; with `abort` drop what the kernel still holds for the peer."""
        if abort:
            # l_onoff = 1, l_linger = 0: a reset instead of memory kept for a peer that takes nothing
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()

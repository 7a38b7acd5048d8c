"""TLS by hand over a non-blocking socket: whole batches in, whole batches out, and the identity of the peer.

trio's SSLStream hands out one record per call and takes three times as long (docs/develop/performance.md). The rule that makes
this simple: any task may decrypt, and nothing is sent while an earlier send waits for the kernel. Bytes that OpenSSL sends by itself
(answers to a KeyUpdate, alerts) wait in `unsent` until the sender takes them.
"""

import _ssl
import contextlib
import fcntl
import hashlib
import math
import select
import socket
import ssl
import struct
import sys
import termios
from typing import Any, Final, final

import trio

RECORD_BYTES_MAX: Final = 16_384  # plaintext of one TLS record
HANDSHAKE_READ_BYTES: Final = 4096
HANDSHAKE_TOO_LARGE: Final = (
    "the TLS handshake has too many bytes, most likely of certificates (limit tls_handshake_bytes_max)"
)
# Answers that a peer may make us write without sending data: a few thousand KeyUpdates in a connection's life.
REPLY_BYTES_MAX: Final = 65_536
# Bytes sent before the kernel is asked again whether it takes more. A client that stalls may find them stale, beside those of
# `send_unsent_bytes_max`, which are four times as many.
UNASKED_BYTES_MAX: Final = 2048
_NOTHING: Final = memoryview(b"")
_COUNT: Final = struct.Struct("i")
_NO_COUNT: Final = bytes(_COUNT.size)


@final
class TransportClosedError(Exception):
    """A connection cannot go on. Internal to the gateway, never shown to a client."""


def fingerprint(der: bytes) -> str:
    """Return the identity of a certificate: SHA-256 of its DER, 64 lower-case hex digits. Computed nowhere else."""
    return hashlib.sha256(der).hexdigest()


def tls_version(tls: ssl.SSLObject) -> str:
    """Return the version of TLS and the cipher of a connection whose handshake is complete."""
    cipher = tls.cipher()
    return f"{tls.version()}/{cipher[0] if cipher else '?'}"


def verified_chain(tls: ssl.SSLObject | ssl.SSLSocket) -> list[bytes]:
    """Return the DER of a peer's certificates up to the trusted authority, its own first; none if it sent none.

    Public in Python 3.13; before, under the same name on the object that `SSLObject` wraps.
    """
    chain: Any = getattr(tls, "get_verified_chain", None)
    if chain is not None:
        return list(chain())
    certificates: Any = tls._sslobj.get_verified_chain()  # type: ignore[union-attr]  # noqa: SLF001  # see above
    return [certificate.public_bytes(_ssl.ENCODING_DER) for certificate in certificates or ()]


_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate",
    "HTTP_REQUEST": "not TLS but plain HTTP",
    "HTTPS_PROXY_REQUEST": "not TLS but a plain CONNECT",
    "WRONG_VERSION_NUMBER": "not TLS, or a version of it unknown to us",
    "UNSUPPORTED_PROTOCOL": "the client offers only versions of TLS below [tls] minimum",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust our certificate (unknown authority)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept our certificate",
    "NO_SHARED_CIPHER": "no cipher in common",
}


def handshake_problem(error: ssl.SSLError) -> str:
    """Return why a handshake failed, in words for the operator's log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        # verify_message is "certificate has expired", "certificate revoked", "unable to get local issuer certificate"
        return f"client certificate refused: {error.verify_message}"
    return _REASONS.get(error.reason or "", f"TLS error {error.reason or error}")


@final
class TlsSocket:
    """One server-side TLS connection on a connected, non-blocking socket that it owns.

    Attributes:
        received_bytes: Encrypted bytes received, those of incomplete records included.

    `receive` may run in one task and `send` in another. `send` must not be cancelled except to close, because half a record makes
    the stream useless.
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
        "_unasked_bytes",
        "received_bytes",
    )

    def __init__(
        self,
        context: ssl.SSLContext,
        connected: socket.socket,
        established: "tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO] | None" = None,
    ) -> None:
        """Take over a socket.

        Args:
            context: Of the handshake.
            connected: The socket.
            established: TLS whose handshake is complete, with what it has received and what it is to send. None for a new one.
        """
        if established is None:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            established = (context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing)
        self._tls, self._incoming, self._outgoing = established
        self._socket: Final = connected
        self._poll: Final = select.poll()
        self._poll.register(connected, select.POLLOUT)
        self._backlog = _NOTHING  # encrypted, and not taken by the kernel
        self._received_much = False
        self._replied_bytes = 0
        self._unasked_bytes = 0  # sent since the kernel last reported room
        self.received_bytes = 0
        self._ended = False  # the peer has announced the end of its data

    async def handshake(self, turns: trio.CapacityLimiter, bytes_max: int) -> None:
        """Complete the handshake. Each costly step takes one of `turns`, which are never held while waiting for a peer.

        Sets no time-out of its own.

        Args:
            turns: Limits the costly handshake steps that run at a time.
            bytes_max: To be received before it is complete.

        Raises:
            ssl.SSLError: The handshake failed; the alert was sent if the socket took it at once.
            OSError: The socket failed.
            TransportClosedError: The peer went away, or sent too much.
        """
        while True:
            if not bytes_max:
                raise TransportClosedError(HANDSHAKE_TOO_LARGE)
            data = await self._receive_raw(min(HANDSHAKE_READ_BYTES, bytes_max))
            if not data:
                raise TransportClosedError("closed during the TLS handshake")
            bytes_max -= len(data)
            self._incoming.write(data)
            done = await self._handshake_step(turns)
            await self.flush(math.inf)
            if done:
                return
            if sys.platform == "linux" and self._socket.family != socket.AF_UNIX:
                # TLS 1.3 answers nothing to the client's last flight. Without TCP_NODELAY a client holds its CONNECT back until that
                # flight is acknowledged. An acknowledgement may take 40 ms unless it is asked for.
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    async def _handshake_step(self, turns: trio.CapacityLimiter) -> bool:
        """Process what has arrived of the handshake; return True if the handshake is complete."""
        try:
            turns.acquire_nowait()  # `async with` would let the loop pass here too
        except trio.WouldBlock:
            await turns.acquire()
        try:
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
        finally:
            turns.release()
        return done

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
                    break  # an exception would report that too, and cost as much as the record
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
            # Then there is often more already: to try first costs less than to wait for a notification of the kernel.
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
                self.received_bytes += len(data)
                return data

    def queue(self, data: bytes | bytearray) -> None:
        """Encrypt `data`, which then waits in `unsent`, like what TLS itself has to answer."""
        self._tls.write(data)

    def send(self, data: bytes | bytearray | memoryview, more: bool = False) -> bool:  # noqa: ARG002  # as of a WebSocket
        """Encrypt `data` and send all encrypted bytes. Return False if the kernel did not take everything, and call `flush` then.

        `more` of the same frame follow or not: this makes no difference here.

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
            self._unasked_bytes += sent
            return True
        self._backlog = memoryview(data)[sent:]
        self._unasked_bytes = UNASKED_BYTES_MAX + 1
        return False

    def _send_now(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    async def flush(self, timeout_s: float) -> None:
        """Send all encrypted bytes. They are tried at once, and the task waits only while the kernel takes none.

        Returns when the kernel has everything; reaches no checkpoint if it took them at once. Cancelled, the stream is
        unusable.

        Raises:
            OSError: The socket failed.
            TransportClosedError: The peer took nothing for `timeout_s`.
        """
        while self._backlog or (self._outgoing.pending and not self._send_encrypted()):
            await self.wait_room(timeout_s)
            # an empty view would keep all that it was cut from
            self._backlog = self._backlog[self._send_now(self._backlog) :] or _NOTHING

    @property
    def untaken_bytes(self) -> int:
        """Bytes sent that the peer's system has not acknowledged, or that wait here."""
        (queued,) = _COUNT.unpack(fcntl.ioctl(self._socket, termios.TIOCOUTQ, _NO_COUNT))
        return int(queued) + len(self._backlog)

    def has_input(self) -> bool:
        """Return True if the kernel holds bytes that the peer has sent."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def has_room(self) -> bool:
        """Return True if the kernel holds so little that it will take more: bytes encrypted before can only grow stale.

        The kernel is asked again after UNASKED_BYTES_MAX. A call of it for each message of 200 bytes would cost a sixth of the message.
        """
        if self._unasked_bytes > UNASKED_BYTES_MAX:
            if not self._poll.poll(0):
                return False
            self._unasked_bytes = 0
        return True

    async def wait_room(self, timeout_s: float) -> None:
        """Wait for room. A cancellation loses nothing.

        Raises:
            TransportClosedError: The peer took nothing for `timeout_s`. A slow peer that takes some is waited for.
        """
        untaken_bytes = self.untaken_bytes
        while True:
            with trio.move_on_after(timeout_s) as waited:
                await trio.lowlevel.wait_writable(self._socket)
            if not waited.cancelled_caught:
                return
            before, untaken_bytes = untaken_bytes, self.untaken_bytes
            if untaken_bytes >= before:
                raise TransportClosedError(f"the peer did not take {untaken_bytes} bytes within {timeout_s:g} s")

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

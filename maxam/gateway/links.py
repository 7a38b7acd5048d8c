"""Links of other gateways: the listener, who may use it, and a thread for each link.

A link never holds the gateway. Its thread reads the journal's files and the ring buffer, and waits for its peer by itself. The event loop
accepts, and decides who may replicate: when a link begins, and at each sign of life.
"""

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, final

import trio

from maxam import __version__
from maxam.broker.policy import Policy
from maxam.cluster import wire
from maxam.cluster.copying import give_copy
from maxam.cluster.feed import FeedRefusedError, JournalFeed, SchemaTexts, serve_feed
from maxam.cluster.link import Link, LinkLostError
from maxam.cluster.ring import Ring
from maxam.config import ListenerSettings, Settings
from maxam.errors import MaxamError
from maxam.gateway.audit import CONNECTED, DISCONNECTED, REFUSED, Audit
from maxam.gateway.clock import WallClock
from maxam.gateway.front_sources import FRONT_RIGHT
from maxam.gateway.link_credentials import LinkCredentials
from maxam.gateway.listener import AcceptFailures, Acceptor, address_text, listen
from maxam.gateway.log import LogLimit, log_bug, log_event
from maxam.gateway.tls import fingerprint, handshake_problem
from maxam.journal.disk import Disk
from maxam.journal.encoding import Position
from maxam.link_config import LinkSettings
from maxam.records import Identity

if TYPE_CHECKING:
    from maxam.gateway.remote_fronts import RemoteFronts

RIGHT: Final = "replicate"
_WISHES: Final = {wire.FEED: "feed", wire.COPY: "copy", wire.FRONT: "front", wire.RESUME: "front"}
_NAME_CHARACTERS_MAX: Final = 100  # of a peer
_HANDSHAKES_MAX: Final = 16  # links whose peer is not known yet
_SEND_BUFFER_BYTES: Final = 4_194_304
_FINISH_S: Final = 2.0  # of a graceful stop, until followers have what is committed


@dataclass(slots=True)
class LinkState:
    """One link, for operators.

    Attributes:
        principal: Whose certificate the peer showed.
        address: Of the peer.
        name: The peer's name for itself.
        software: Its version.
        wish: `feed`, `copy` or `front`.
        link: Its bytes, and the newest sign of life: how far the peer is.
        begun_s: When it began, on the event loop's clock.
    """

    principal: str
    address: str
    name: str
    software: str
    wish: str
    link: Link
    begun_s: float

    @property
    def position(self) -> Position | None:
        """Where the peer's journal ends, as it reported last."""
        beat = self.link.beat
        return None if beat is None else beat.position


@final
class Links:
    """The listener of links.

    Attributes:
        fronts: Serves fronts on other machines. None if this gateway has none.
        ring: Ring buffer with the newest blocks of the journal; its end is the newest committed position.
        states: The links that are served.
        address: Where it listens, `(host, port)`; None before that.
        role: Shown to peers: `serving` or `following`.
        now_us: Returns the time of the state that peers are shown: of an observer, that of its source.
    """

    def __init__(
        self,
        settings: LinkSettings,
        gateway: Settings,
        credentials: LinkCredentials,
        ring: Ring,
        disk: Disk,
        policy: Callable[[], Policy],
        clock: WallClock,
        audit: Audit,
    ) -> None:
        """Prepare to listen; `run` does."""
        self.ring: Final = ring
        self.states: Final[dict[Link, LinkState]] = {}
        self.address: tuple[str, int] | None = None
        self.fronts: RemoteFronts | None = None
        self.role = "serving"
        self.now_us: Callable[[], int] = clock.now_us
        self._settings: Final = settings
        self._limits: Final = gateway.limits
        self._folder: Final = str(gateway.journal.folder)
        self._credentials: Final = credentials
        self._disk: Final = disk
        self._policy: Final = policy
        self._audit: Final = audit
        self._log_limit: Final = LogLimit(gateway.limits.log_lines_per_minute_max)
        self._failures: Final = AcceptFailures(self._log_limit)
        self._unknown: Final[dict[socket.socket, None]] = {}  # in their handshake, oldest first; each a second handle
        self._threads: Final = trio.CapacityLimiter(settings.links_max + _HANDSHAKES_MAX)
        self._finishing: Final = threading.Event()
        self._finished: Final = trio.Event()

    async def run(self) -> None:
        """Listen and serve until cancelled.

        Raises:
            ConfigurationError: The address cannot be used.
        """
        port = self._settings.port if self.address is None else self.address[1]
        listening = listen(ListenerSettings(self._settings.host, port), "link")
        self.address = listening.getsockname()[:2]
        log_event(logging.INFO, "link-listening", address=address_text(*self.address))
        async with trio.open_nursery() as nursery:
            acceptor = Acceptor(listening, self._limits, self._failures)
            await acceptor.run(partial(self._accepted, nursery))

    async def finish(self) -> None:
        """Wait a short time until the followers have all of the journal, which no longer grows."""
        self._finishing.set()
        self._note_finished()
        with trio.move_on_after(_FINISH_S):
            await self._finished.wait()

    def _note_finished(self) -> None:
        if self._finishing.is_set() and not any(state.wish == "feed" for state in self.states.values()):
            self._finished.set()

    def _accepted(self, nursery: trio.Nursery, connected: socket.socket, host: str, port: int) -> None:
        if (
            len(self._unknown) >= _HANDSHAKES_MAX
        ):  # a legitimate one is known within milliseconds: the oldest is the least loss
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            _shut_down(oldest)
        # bytes in the kernel are not stale here: a feed sends all of them
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _SEND_BUFFER_BYTES)
        handle = connected.dup()  # TLS takes the other one
        self._unknown[handle] = None
        nursery.start_soon(self._serve, connected, handle, address_text(host, port), host)

    async def _serve(self, connected: socket.socket, handle: socket.socket, address: str, host: str) -> None:
        """Serve one connection on a thread. No error in it leaves this method."""
        reason = "ended"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_shut_down_at_end, handle)
                reason = await trio.to_thread.run_sync(self._run, connected, handle, address, limiter=self._threads)
                nursery.cancel_scope.cancel()
        except* Exception as group:  # noqa: BLE001  # a bug met by one link must not end the others
            log_bug("internal-error", group, address=address)
        finally:
            self._unknown.pop(handle, None)
            connected.close()
            handle.close()
        if self._log_limit.admit("link-ended", host, trio.current_time()):
            log_event(logging.INFO, "link-ended", address=address, reason=reason)

    # on the link's thread

    def _run(self, connected: socket.socket, handle: socket.socket, address: str) -> str:
        """Serve one connection, and return why it ended. An error that left the thread would keep all buffers for a while."""
        try:
            self._handshake(connected, handle, address)
        except (MaxamError, OSError) as error:
            return str(error)
        return "ended"

    def _handshake(self, connected: socket.socket, handle: socket.socket, address: str) -> None:
        connected.settimeout(self._limits.tls_handshake_timeout_s)
        try:
            tls = self._credentials.server().wrap_socket(connected, server_side=True)
        except ssl.SSLError as error:
            raise LinkLostError(f"TLS failed: {handshake_problem(error)}") from error
        certificate = tls.getpeercert(binary_form=True)
        of, denial = fingerprint(certificate or b""), self._credentials.denial_of(tls)

        def check(right: str = RIGHT) -> tuple[str, str]:
            principal, denied = trio.from_thread.run_sync(self._check, of, right)
            return principal, denied or denial()

        link = Link(tls, lambda: self.ring.end, lambda: trio.from_thread.run_sync(self.now_us), large=False)
        try:
            principal, denied = check()
            if denied:  # before anything is read of the peer
                trio.from_thread.run_sync(self._refused, principal, address, denied)
                self._refuse(link, wire.UNAUTHORISED, denied)
            link.denied = lambda: check()[1]
            hello = self._hello(link)
            of_front = hello.wish in {wire.FRONT, wire.RESUME}
            if of_front and (denied := check(FRONT_RIGHT)[1]):
                trio.from_thread.run_sync(self._refused, principal, address, denied)
                self._refuse(link, wire.UNAUTHORISED, denied)
            state = LinkState(
                principal,
                address,
                hello.name[:_NAME_CHARACTERS_MAX],
                hello.software[:_NAME_CHARACTERS_MAX],
                _WISHES[hello.wish],
                link,
                trio.from_thread.run_sync(trio.current_time),
            )
            trio.from_thread.run_sync(self._begun, handle, state)
            try:
                if of_front:
                    resumes = hello.wish == wire.RESUME
                    self._serve_front(link, state, resumes, lambda: check()[1] or check(FRONT_RIGHT)[1])
                else:
                    self._answer(link, hello)
            finally:
                trio.from_thread.run_sync(self._ended, state)
        finally:
            link.close()

    def _hello(self, link: Link) -> wire.Hello:
        frame = link.expect(self._limits.connect_timeout_s)
        if frame.type != wire.HELLO:
            raise wire.WireError(f"a frame of type {frame.type} instead of HELLO")
        try:
            return wire.read_hello(frame.body)
        except wire.WireError as error:
            self._refuse(link, wire.OTHER_VERSION, str(error))
            raise

    def _answer(self, link: Link, hello: wire.Hello) -> None:
        """Do what the peer wishes, until the link ends."""
        self._require_room(link)
        welcome = wire.Welcome(socket.gethostname(), __version__, self.role, self.ring.incarnation, self.ring.end)
        if hello.wish == wire.COPY:
            link.send(wire.encode_welcome(welcome))
            give_copy(link, self._folder, self._disk, self._settings.copy_bytes_per_s_max)
            return
        try:
            feed = JournalFeed(self._folder, self.ring, hello.position, hello.incarnation)
            try:
                texts = SchemaTexts(self._folder)
                texts.skip(hello.schemas)
                link.send(wire.encode_welcome(welcome))
                serve_feed(link, feed, texts, self._finishing)
            finally:
                feed.close()
        except FeedRefusedError as error:
            self._refuse(link, error.reason, str(error))

    def _require_room(self, link: Link) -> None:
        if len(self.states) > self._settings.links_max:
            self._refuse(link, wire.BUSY, f"{self._settings.links_max} links are served already ([link] links_max)")

    def _serve_front(self, link: Link, state: LinkState, resumes: bool, denial: Callable[[], str]) -> None:
        """Have a front served on the event loop, and end its link when its certificate or right is gone."""
        self._require_room(link)
        fronts = self.fronts
        problem = "this gateway serves no fronts now ([fronts])"
        if fronts is not None:
            problem = trio.from_thread.run_sync(fronts.problem, state.software)
        if fronts is None or problem:
            self._refuse(link, wire.BUSY, problem)
            return
        name = f"{state.name} ({state.address})"
        served = trio.from_thread.run_sync(fronts.serve, link, name, resumes, *link.hand_over())
        while not served.ended.wait(wire.BEAT_S):
            denied = denial()
            if denied:
                trio.from_thread.run_sync(served.end, denied)

    def _refuse(self, link: Link, code: str, text: str) -> None:
        """Send REFUSED and end the link; raises LinkLostError."""
        link.send(wire.encode_refused(wire.Refused(code, text)))
        link.flush()
        with contextlib.suppress(LinkLostError):  # let the peer read it before the connection is closed
            link.receive(wire.BEAT_S)
        raise LinkLostError(f"refused ({code}): {text}")

    # on the event loop

    def _check(self, of: str, right: str) -> tuple[str, str]:
        """Return the principal of a certificate, and why the policy does not give it a right; empty if it does."""
        policy = self._policy()
        principal = policy.principal_of(of) or ""
        if not principal:
            return "", "the policy does not list this certificate"
        if right not in policy.rights(principal).admin:
            return principal, f"the principal {principal} lacks the admin right {right}"
        return principal, ""

    def _begun(self, handle: socket.socket, state: LinkState) -> None:
        self._unknown.pop(handle, None)
        self.states[state.link] = state
        self._audit.record(CONNECTED, "accepted", Identity(state.principal, ""), state.address, f"link: {state.wish}")
        log_event(
            logging.INFO,
            "link-begun",
            address=state.address,
            principal=state.principal,
            name=state.name,
            software=state.software,
            wish=state.wish,
        )

    def _ended(self, state: LinkState) -> None:
        del self.states[state.link]
        self._note_finished()
        who = Identity(state.principal, "")
        self._audit.record(DISCONNECTED, "closed", who, state.address, f"link: {state.wish}")

    def _refused(self, principal: str, address: str, reason: str) -> None:
        self._audit.record(REFUSED, "refused", Identity(principal, ""), address, f"link: {reason}")


async def _shut_down_at_end(connected: socket.socket) -> None:
    """End a connection when this is cancelled, so that the thread that waits for it ends."""
    try:
        await trio.sleep_forever()
    finally:
        _shut_down(connected)


def _shut_down(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)

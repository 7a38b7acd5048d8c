"""Who may be connected, and whether that is still so: certificates, revocation lists and policy as they are now.

Theory of operation. A certificate is judged when CONNECT is answered and at each request of an operator, by what is in force in that
moment (`objection`). For whoever is connected already there are two occasions: something else came into force (`settle`, a part of each
reload), or time has passed (`run`). Both look at every connection and end those that are entitled no more; a client hears why. The whole
stays below five seconds: time is looked at four times a second, and whoever does not take its ERROR is cut off after `expel_timeout_s`.
Only the end of a certificate's validity is looked for: OpenSSL has seen the beginning, and a clock that is set back is no reason to shut
everybody out.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

import trio

from maxam.broker.broker import Broker
from maxam.broker.policy import Policy
from maxam.config import Settings
from maxam.errors import ProtocolError
from maxam.gateway.connection import ClientConnection, opening_number
from maxam.gateway.log import log_event
from maxam.gateway.peer import unknown_principal
from maxam.gateway.revocation import Chain, RevocationList
from maxam.gateway.sources import Sources

_LOOK_INTERVAL_S: Final = 0.25  # at what time alone makes invalid: twice that and expel_timeout_s are less than 5 s
_NOTICE_S: Final = 604_800  # how long before a certificate expires an operator is told
_PER_SLICE: Final = 100  # connections looked at before others have their turn: 1 to 2 ms
_UNDER_WAY_INTERVAL_S: Final = 0.01  # between looks whether a large message has left


@final
@dataclass(frozen=True, slots=True, eq=False)
class Visitor:
    """A connection of another listener than the clients', such as an operator's.

    Attributes:
        fingerprint: Its identity.
        chain: Its certificates, as they were verified.
        cut: Ends it at once, whatever is under way.
        address: The peer's `host:port`.
        tls_version: TLS version and cipher.
        number: In the order of opening, over all listeners.
        opened_at_us: Microseconds since the epoch.
        opened_at_s: The same, on the clock of the event loop.
    """

    fingerprint: str
    chain: Chain
    cut: Callable[[], None]
    address: str
    tls_version: str
    number: int = field(default_factory=opening_number)
    opened_at_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    opened_at_s: float = field(default_factory=trio.current_time)


@final
class Entitlement:
    """Judges certificates, and ends the connections of those that count no more.

    Attributes:
        visitors: Connections of other listeners, which keep them here while they last: those end too when their certificate counts no
            more, or their principal or its admin rights are gone.
        on_expelled: Told of each client whose connection ends for that, and why.
    """

    def __init__(
        self,
        settings: Settings,
        broker: Broker,
        connections: Mapping[ClientConnection, None],
        sources: Callable[[], Sources],
        touch: Callable[[], None],
    ) -> None:
        """Make it; `run` heeds time.

        Args:
            settings: Fixed.
            broker: Has the policy in force.
            connections: Of clients, as they are at each moment.
            sources: Gives what is in force.
            touch: Called when something may have been appended to the broker.
        """
        self.visitors: Final[dict[Visitor, None]] = {}
        self.on_expelled: Callable[[ClientConnection, ProtocolError], None] | None = None
        self._settings: Final = settings
        self._broker: Final = broker
        self._connections: Final = connections
        self._sources: Final = sources
        self._touch: Final = touch
        self._leaving: list[
            tuple[float, Callable[[], None]]
        ] = []  # until when somebody has time, and what ends them then
        self._next_expiry_s = math.inf  # of the certificates of whoever is connected

    def objection(self, chain: Chain) -> ProtocolError | None:
        """Say why a client with this verified chain of certificates may not be served (any more), or None."""
        sources = self._sources()
        if not sources.authorities.trusts(chain):
            return ProtocolError(
                "certificate not trusted", "the authority of this certificate is trusted no more; renew the certificate"
            )
        now_s = time.time()
        until_s, ends = sources.authorities.validity_of(chain)
        if until_s < now_s:
            whose = (
                "the certificate"
                if ends is chain[0]
                else f"that of an authority above the certificate, issued by {ends.issuer_name},"
            )
            return ProtocolError("certificate expired", f"{whose} was valid until {_said(until_s)}; renew it")
        refuse_expired = self._settings.tls.crl_expired == "refuse"
        problem = sources.revocations.problem(chain, now_s, refuse_expired)
        return None if problem is None else ProtocolError("certificate revoked", problem)

    def connects(self, chain: Chain) -> None:
        """Take note of somebody's certificates, so that their end is heeded."""
        self._heed(self._sources(), chain, time.time())

    def degraded_reasons(self) -> list[str]:
        """Say what has expired or is about to."""
        now_s = time.time()
        sources = self._sources()
        reasons = [
            f"crl: the revocation list of {one.name} has expired on {one.expires_at:%Y-%m-%d %H:%M}Z"
            for one in sources.revocations.expired(now_s)
        ]
        return reasons + [
            f"{item}: {what} is valid until {_said(until_s)}" for item, what, until_s in _ending(sources, now_s)
        ]

    async def run(self) -> None:
        """Act on what time alone has made invalid, and tell of it once; until cancelled."""
        told: set[tuple[object, ...]] = set()
        while True:
            now_s = time.time()
            sources = self._sources()
            for ending in _ending(sources, now_s):
                if ending not in told:
                    told.add(ending)
                    expires = _said(ending[2])
                    log_event(
                        logging.WARNING, "certificate-expires", whose=ending[1], expires=expires, action="renew it"
                    )
            overdue = [one for one in sources.revocations.expired(now_s) if (one.issuer, one.updated_at) not in told]
            for one in overdue:
                told.add((one.issuer, one.updated_at))
                self._tell_overdue(one)
            if self._next_expiry_s < now_s or (overdue and self._settings.tls.crl_expired == "refuse"):
                await self._expel(sources.policy)
            now_s = trio.current_time()
            late = [cut for until_s, cut in self._leaving if until_s <= now_s]
            self._leaving = [one for one in self._leaving if one[0] > now_s]
            for cut in late:
                cut()
            await trio.sleep(_LOOK_INTERVAL_S)

    def _tell_overdue(self, one: RevocationList) -> None:
        refuse = self._settings.tls.crl_expired == "refuse"
        action = "its clients are refused until there is a new one" if refuse else "it is used on; fetch its newest"
        log_event(logging.WARNING, "list-expired", authority=one.name, expired=one.expires_at, action=action)

    async def settle(self, before: Sources) -> None:
        """Take the connections along after a swap; when it returns, nothing more is done under what was in force before.

        Whoever may not be connected any more gets an ERROR, and is cut off after `expel_timeout_s`. A MESSAGE under way to somebody
        who may have lost the right to it is waited for as long, and cut off with its connection then: a stream cannot go on behind
        half a frame.
        """
        self._touch()
        deadline_s = trio.current_time() + self._settings.limits.expel_timeout_s
        for connection, number in await self._expel(before.policy):
            while connection.message_under_way and connection.large_messages == number:
                if trio.current_time() >= deadline_s:
                    connection.cut("took too long to read a message that it may not receive any more")
                    break
                await trio.sleep(_UNDER_WAY_INTERVAL_S)

    async def _expel(self, before: Policy) -> list[tuple[ClientConnection, int]]:
        """End whoever may not be connected any more; return whose large message under way may be none of theirs, with its number."""
        policy = self._broker.policy
        sources = self._sources()
        self._next_expiry_s = math.inf
        deadline_s = trio.current_time() + self._settings.limits.expel_timeout_s
        under_way: list[tuple[ClientConnection, int]] = []
        for at, connection in enumerate(list(self._connections), 1):
            failure = self._recheck(connection)
            if failure is None:
                self._heed(sources, connection.chain, time.time())
            else:
                connection.expel(failure)
                if self.on_expelled is not None:
                    self.on_expelled(connection, failure)
                self._leaving.append((deadline_s, partial(self._see_off, connection)))
            peer = connection.peer
            if connection.message_under_way and peer is not None:
                was, now = before.rights(peer.principal), policy.rights(peer.principal)
                if failure is not None or not now.receives_all_of(was):
                    under_way.append((connection, connection.large_messages))
            if at % _PER_SLICE == 0:
                await trio.lowlevel.checkpoint()
        for visitor in list(self.visitors):
            if self.objection(visitor.chain) is not None or _lost(visitor.fingerprint, before, policy):
                self._leaving.append((deadline_s, visitor.cut))  # its request under way is answered
            else:
                self._heed(sources, visitor.chain, time.time())
        return under_way

    def _heed(self, sources: Sources, chain: Chain, now_s: float) -> None:
        """Look again when a chain ends. What has ended is judged elsewhere: at CONNECT, or at the next request."""
        if chain:
            until_s = sources.authorities.validity_of(chain)[0]
            if now_s <= until_s < self._next_expiry_s:
                self._next_expiry_s = until_s

    def _recheck(self, connection: ClientConnection) -> ProtocolError | None:
        """Say why a connected client may not be any more; one that is not yet connected is judged then."""
        peer = connection.peer
        if peer is None or peer.connection is None:
            return None
        objection = self.objection(connection.chain)
        if objection is not None:
            return objection
        principal = self._broker.policy.principal_of(peer.fingerprint)
        if principal is None and self._settings.policy.unknown_clients == "refuse":
            return ProtocolError("unknown client", "the policy no longer names this certificate")
        if (principal or unknown_principal(peer.fingerprint)) != peer.principal:
            return ProtocolError(
                "policy changed, reconnect", "this certificate stands for another principal now; connect again"
            )
        return None

    def _see_off(self, connection: ClientConnection) -> None:
        """Cut off whoever has not taken its ERROR in time."""
        if connection in self._connections:
            connection.cut("did not take the ERROR that ended it")


def _lost(fingerprint: str, before: Policy, after: Policy) -> bool:
    """Say whether a certificate stands for another principal now, or that has lost an admin right."""
    was, now = before.principal_of(fingerprint), after.principal_of(fingerprint)
    if was is None:
        return False  # there is nothing that it could lose
    return now != was or not after.rights(was).admin >= before.rights(was).admin


def _ending(sources: Sources, now_s: float) -> list[tuple[str, str, float]]:
    """Return what has expired or is about to: its item, what it is, and until when it is valid."""
    certificate = ("certificate", "the server's certificate", sources.certificate.valid_until.timestamp())
    authorities = [("client_ca", f"the authority {name}", until_s) for name, until_s in sources.authorities.validity]
    return [one for one in (certificate, *authorities) if one[2] - now_s < _NOTICE_S]


def _said(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at_s))

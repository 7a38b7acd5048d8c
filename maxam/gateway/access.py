"""Decide which clients may be connected, by the certificates, CRLs and policy in force, and close the connections of others.

Theory of operation. A certificate is judged when CONNECT is answered and at each request of an operator, by the items in force at
that moment (`denial`). Connected clients are judged on two occasions: another item came into force (`settle`, a part of each
reload), or time has passed (`run`). Both check every connection and end those that lost their rights; a client gets the reason.
The whole stays below five seconds. Time is checked four times a second, and a client that does not take its ERROR is cut off after
`close_grace_s`. Only the end of a certificate's validity is checked. OpenSSL has checked the beginning, and a clock that is set
back is no reason to shut out all clients.
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
from maxam.gateway.grants import Grant, Grants
from maxam.gateway.handshake import unknown_principal
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.log import log_event
from maxam.gateway.revocation import Chain, RevocationList, Revocations
from maxam.gateway.server_connection import ServerConnection
from maxam.gateway.tls_credentials import Authorities
from maxam.gateway.transport import Transport, opening_number
from maxam.records import WillRecord

_CHECK_INTERVAL_S: Final = 0.25  # between checks for expired certificates: twice that and close_grace_s are below 5 s
_NOTICE_S: Final = 604_800  # how long before a certificate expires an operator is warned
_STALE_CHAINS: Final = 64  # beside as many as there are wills
_PER_BATCH: Final = 100  # connections checked before other tasks run: 1 to 2 ms
_UNDER_WAY_INTERVAL_S: Final = 0.01  # between checks whether a large message has left


@final
@dataclass(frozen=True, slots=True, eq=False)
class AdminConnection:
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


def chain_problem(
    chain: Chain, authorities: Authorities, revocations: Revocations, now_s: float, refuse_expired: bool
) -> ProtocolError | None:
    """Return why a verified chain of certificates does not count (any longer), or None.

    Args:
        chain: Of the peer.
        authorities: Those that are trusted now.
        revocations: Their CRLs.
        now_s: Seconds since the epoch.
        refuse_expired: A CRL whose successor is overdue does not count as one.
    """
    if not authorities.trusts(chain):
        return ProtocolError(
            "certificate not trusted", "the CA of this certificate is no longer trusted. Renew the certificate"
        )
    until_s, ends = authorities.validity_of(chain)
    if until_s < now_s:
        whose = "the certificate" if ends is chain[0] else f"that of a CA above it, issued by {ends.issuer_name},"
        return ProtocolError("certificate expired", f"{whose} was valid until {_shown_time(until_s)}; renew it")
    return revocations.problem(chain, now_s, refuse_expired)


@final
class AccessMonitor:
    """Judges certificates, and ends the connections of those that are no longer valid.

    Attributes:
        admin_connections: Connections of other listeners, which keep them here while they last. Those end too when their certificate is no
            longer valid, or their principal or its admin rights are gone.
        on_expelled: Called with each client whose connection ends for that, and the reason.
        grants: Rights of clients without a certificate.
    """

    def __init__(
        self,
        settings: Settings,
        broker: Broker,
        connections: Mapping[Transport, None],
        loaded: Callable[[], LoadedConfig],
        schedule_commit: Callable[[], None],
    ) -> None:
        """Make it. `run` watches the time.

        Args:
            settings: Fixed.
            broker: Has the policy in force.
            connections: Of clients, as they are at each moment.
            loaded: Returns the configuration in force.
            schedule_commit: Called when something may have been appended to the broker.
        """
        self.admin_connections: Final[dict[AdminConnection, None]] = {}
        self.on_expelled: Callable[[Transport, ProtocolError], None] | None = None
        self.grants: Final = Grants(settings.limits, lambda: broker.policy, self.denial, lambda: loaded().web_keys)
        self._settings: Final = settings
        self._broker: Final = broker
        self._connections: Final = connections
        self._loaded: Final = loaded
        self._schedule_commit: Final = schedule_commit
        self._leaving: list[tuple[float, Callable[[], None]]] = []  # deadlines, and what ends at each
        self._next_expiry_s = math.inf  # of the certificates of connected clients
        # Certificates that set a last will, by principal and client-id, with their fingerprint; also of wills that are gone.
        self._of_wills: dict[tuple[str, str], tuple[str, Chain]] = {}
        broker.last_wills.is_revoked = self._is_revoked

    def denial(self, chain: Chain) -> ProtocolError | None:
        """Return why a client with this verified chain of certificates may not be served (or no longer), or None."""
        loaded = self._loaded()
        refuse_expired = self._settings.tls.crl_expired == "refuse"
        return chain_problem(chain, loaded.authorities, loaded.revocations, time.time(), refuse_expired)

    def connects(self, chain: Chain) -> None:
        """Record the certificates of a new connection, so that their end is checked."""
        self._note_expiry(self._loaded(), chain, time.time())

    def valid_until(self, chain: Chain) -> str | None:
        """Return until when a chain of certificates is valid, in ISO 8601. None without one."""
        return _shown_time(self._loaded().authorities.validity_of(chain)[0]).replace(" ", "T") if chain else None

    def granted(self, grant: Grant) -> None:
        """Record the grant of a new connection without a certificate, so that its end is checked."""
        if grant.maker is not None:
            self._note_expiry(self._loaded(), grant.maker.chain, time.time())
        if grant.expires_s is not None:
            self._next_expiry_s = min(self._next_expiry_s, grant.expires_s)

    def connected(self, peer: ServerConnection, chain: Chain) -> None:
        """Keep the certificates of a client with a last will, so that they can be judged when it fires."""
        wills = self._broker.last_wills.wills
        key = (peer.principal, peer.client_id)
        if wills.has(key):
            self._of_wills[key] = (peer.fingerprint, chain)
            if len(self._of_wills) > 2 * len(wills) + _STALE_CHAINS:
                self._of_wills = {key: found for key, found in self._of_wills.items() if wills.has(key)}

    def _is_revoked(self, will: WillRecord) -> bool:
        """Return True if the certificate that set a will is revoked, or its CA no longer trusted. One that expired is neither."""
        fingerprint, chain = self._of_wills.get((will.principal, will.client_id), ("", ()))
        if fingerprint != will.publisher.fingerprint or not chain:
            return False
        loaded = self._loaded()
        return not loaded.authorities.trusts(chain) or loaded.revocations.problem(chain, 0, False) is not None

    def degraded_reasons(self) -> list[str]:
        """Return what has expired or is about to."""
        now_s = time.time()
        loaded = self._loaded()
        reasons = [
            f"crl: the CRL of {one.name} has expired on {one.expires_at:%Y-%m-%d %H:%M}Z"
            for one in loaded.revocations.expired(now_s)
        ]
        return reasons + [
            f"{item}: {what} is valid until {_shown_time(until_s)}" for item, what, until_s in _ending(loaded, now_s)
        ]

    async def run(self) -> None:
        """Act on certificates that time alone made invalid, and report each once. Until cancelled."""
        logged: set[tuple[object, ...]] = set()
        while True:
            now_s = time.time()
            loaded = self._loaded()
            for ending in _ending(loaded, now_s):
                if ending not in logged:
                    logged.add(ending)
                    expires = _shown_time(ending[2])
                    log_event(
                        logging.WARNING, "certificate-expires", whose=ending[1], expires=expires, action="renew it"
                    )
            overdue = [one for one in loaded.revocations.expired(now_s) if (one.issuer, one.updated_at) not in logged]
            for one in overdue:
                logged.add((one.issuer, one.updated_at))
                self._log_overdue(one)
            if self._next_expiry_s < now_s or (overdue and self._settings.tls.crl_expired == "refuse"):
                await self._expel(loaded.policy)
            now_s = trio.current_time()
            late = [cut for until_s, cut in self._leaving if until_s <= now_s]
            self._leaving = [one for one in self._leaving if one[0] > now_s]
            for cut in late:
                cut()
            await trio.sleep(_CHECK_INTERVAL_S)

    def _log_overdue(self, one: RevocationList) -> None:
        refuse = self._settings.tls.crl_expired == "refuse"
        action = "its clients are refused until there is a new one" if refuse else "it is used on; fetch its newest"
        log_event(logging.WARNING, "list-expired", authority=one.name, expired=one.expires_at, action=action)

    async def settle(self, before: LoadedConfig) -> None:
        """Take the connections along after a swap. On return, the items in force before have no effect any longer.

        A client that may not stay connected gets an ERROR, and is cut off after `close_grace_s`. A MESSAGE under way to a client
        that may have lost the right to it is waited for as long. Then it is cut off with its connection, because a stream cannot
        go on after half a frame.
        """
        self._schedule_commit()
        deadline_s = trio.current_time() + self._settings.limits.close_grace_s
        for connection, number in await self._expel(before.policy):
            while connection.message_under_way and connection.large_messages == number:
                if trio.current_time() >= deadline_s:
                    connection.cut("took too long to read a message that it may no longer receive")
                    break
                await trio.sleep(_UNDER_WAY_INTERVAL_S)

    async def _expel(self, before: Policy) -> list[tuple[Transport, int]]:
        """End clients that may not stay connected. Return the others whose large MESSAGE under way may be forbidden, with its number."""
        policy = self._broker.policy
        loaded = self._loaded()
        self._next_expiry_s = math.inf
        deadline_s = trio.current_time() + self._settings.limits.close_grace_s
        under_way: list[tuple[Transport, int]] = []
        for at, connection in enumerate(list(self._connections), 1):
            failure = self._recheck(connection)
            if failure is None:
                self._note_expiry(loaded, connection.chain, time.time())
                if connection.grant is not None:
                    self.granted(connection.grant)
            else:
                self._expel_one(connection, failure, deadline_s)
            peer = connection.peer
            if connection.message_under_way and peer is not None:
                was, now = before.rights(peer.principal), policy.rights(peer.principal)
                if failure is not None or not now.receives_all_of(was):
                    under_way.append((connection, connection.large_messages))
            if at % _PER_BATCH == 0:
                await trio.lowlevel.checkpoint()
        for admin_connection in list(self.admin_connections):
            if self.denial(admin_connection.chain) is not None or _lost(admin_connection.fingerprint, before, policy):
                self._leaving.append((deadline_s, admin_connection.cut))  # its request under way is answered
            else:
                self._note_expiry(loaded, admin_connection.chain, time.time())
        return under_way

    def recheck(self, connection: Transport) -> None:
        """Judge a client again that has waited for its session."""
        failure = self._recheck(connection)
        if failure is not None:
            self._expel_one(connection, failure, trio.current_time() + self._settings.limits.close_grace_s)

    def _expel_one(self, connection: Transport, failure: ProtocolError, deadline_s: float) -> None:
        if not connection.expelled:  # one that was expelled may still have to read its ERROR
            connection.expel(failure)
            if self.on_expelled is not None:
                self.on_expelled(connection, failure)
            self._leaving.append((deadline_s, partial(self._cut_overdue, connection)))

    def _note_expiry(self, loaded: LoadedConfig, chain: Chain, now_s: float) -> None:
        """Record when a valid chain ends, so that it is checked then. Others are refused at CONNECT, or at the next request."""
        if chain:
            until_s = loaded.authorities.validity_of(chain)[0]
            if now_s <= until_s < self._next_expiry_s:
                self._next_expiry_s = until_s

    def _recheck(self, connection: Transport) -> ProtocolError | None:
        """Return why a connected client may not stay connected, or None. One that is not yet connected is judged then."""
        peer = connection.peer
        if peer is None or peer.connection is None:
            return None
        if connection.grant is not None:
            return self.grants.problem(connection.grant, time.time())
        denial = self.denial(connection.chain)
        if denial is not None:
            return denial
        principal = self._broker.policy.principal_of(peer.fingerprint)
        if principal is None and self._settings.policy.unknown_clients == "refuse":
            return ProtocolError("unknown client", "the policy no longer lists this certificate")
        if (principal or unknown_principal(peer.fingerprint)) != peer.principal:
            return ProtocolError(
                "policy changed, reconnect", "this certificate stands for another principal now; connect again"
            )
        return None

    def _cut_overdue(self, connection: Transport) -> None:
        """Cut off a client that has not taken its ERROR in time."""
        if connection in self._connections:
            connection.cut("did not take the ERROR that ended it")


def _lost(fingerprint: str, before: Policy, after: Policy) -> bool:
    """Return True if a certificate stands for another principal now, or that has lost an admin right."""
    was, now = before.principal_of(fingerprint), after.principal_of(fingerprint)
    if was is None:
        return False  # there is nothing that it could lose
    return now != was or not after.rights(was).admin >= before.rights(was).admin


def _ending(loaded: LoadedConfig, now_s: float) -> list[tuple[str, str, float]]:
    """Return what has expired or is about to: its item, what it is, and until when it is valid."""
    certificate = ("certificate", "the server's certificate", loaded.certificate.valid_until.timestamp())
    authorities = [("client_ca", f"the authority {name}", until_s) for name, until_s in loaded.authorities.validity]
    return [one for one in (certificate, *authorities) if one[2] - now_s < _NOTICE_S]


def _shown_time(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at_s))

"""Tickets: secrets that one connection without a certificate may use once, within a short time.

A ticket is known by its hash only, in memory. A restart makes all tickets invalid that were not used, which pages ask for again.
"""

import hashlib
import heapq
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from maxam.errors import GlobError, MaxamError, ProtocolError
from maxam.gateway.grants import GLOBS_MAX, Grant, Grants, Maker, refusal
from maxam.records import Identity

VALIDITY_S: Final = 60
VALIDITY_S_MAX: Final = 3600
_OPEN_MAX: Final = 100_000  # tickets that wait to be used: some 60 MB
_OPEN_PER_MAKER_MAX: Final = 50_000
_USED_KEPT: Final = 1000  # used tickets whose end is kept in any case
_SECRET_BYTES: Final = 32
_LABEL_BYTES: Final = 6


@final
class TicketError(MaxamError):
    """A ticket cannot be made.

    Attributes:
        code: `beyond-maker`, `principal-exists`, `invalid-glob`, `invalid-request` or `too-many`.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code  # type: ignore[misc]  # mypyc wants a class variable in the compiled base


@final
@dataclass(frozen=True, slots=True)
class Ticket:
    """The stored part of a ticket that waits to be used.

    Attributes:
        grant: Identity and rights of the client that uses it.
        client_id: The only one that it may be used with; None for any.
        origin: Of the only pages that may use it; None for any.
        expires_s: When it is no longer valid, seconds since the epoch.
    """

    grant: Grant
    client_id: str | None
    origin: str | None
    expires_s: float


@final
class Tickets:
    """The tickets that wait to be used.

    Attributes:
        made: Number of tickets made since the start.
        used: Number of those that were used.
        refused: Number of uses that were refused.
    """

    def __init__(self, grants: Grants) -> None:
        """Begin without tickets."""
        self.made = 0
        self.used = 0
        self.refused = 0
        self._grants: Final = grants
        self._open: Final[dict[bytes, Ticket]] = {}  # by the hash of the secret
        self._ends: list[tuple[float, bytes]] = []  # a heap: when each ends, with some used ones
        self._of_makers: Final[dict[str, int]] = {}  # how many each maker has among them

    def __len__(self) -> int:
        return len(self._open)

    def make(
        self,
        maker: Maker,
        principal: str,
        receive: Sequence[str],
        send: Sequence[str],
        client_id: str | None,
        origin: str | None,
        validity_s: float,
        now_s: float,
    ) -> tuple[str, Ticket]:
        """Make a ticket.

        Args:
            maker: The client that asks for it, with the right to do so.
            principal: Name of the principal that its user becomes.
            receive: Globs of destinations that it may receive.
            send: Globs of destinations that it may send to.
            client_id: The only one that it may be used with; None for any.
            origin: Of the only pages that may use it; None for any.
            validity_s: For how long it can be used.
            now_s: Seconds since the epoch.

        Returns:
            The secret, which is kept nowhere, and the ticket.

        Raises:
            TicketError: The maker may not grant this, or has too many tickets.
        """
        problem = self._grants.name_problem(principal)
        if problem:
            code = "principal-exists" if "certificates" in problem else "invalid-request"
            raise TicketError(code, f"principal: {problem}")
        if len(receive) > GLOBS_MAX or len(send) > GLOBS_MAX:
            raise TicketError("invalid-request", f"receive and send: expected at most {GLOBS_MAX} globs each")
        try:
            rights = self._grants.rights(receive, send)
        except GlobError as error:
            raise TicketError("invalid-glob", str(error)) from error
        missing = self._grants.missing(self._grants.rights_of(maker.identity.principal), rights)
        if missing:
            raise TicketError("beyond-maker", f"{maker.identity.principal!r} cannot grant {missing}, as it lacks it")
        self._forget_expired(now_s)
        name = maker.identity.principal
        if len(self._open) >= _OPEN_MAX or self._of_makers.get(name, 0) >= _OPEN_PER_MAKER_MAX:
            raise TicketError("too-many", "too many tickets wait to be used; make them when pages ask for them")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        label = secrets.token_hex(_LABEL_BYTES)
        ticket = Ticket(Grant(Identity(principal, ""), rights, maker, label), client_id, origin, now_s + validity_s)
        digest = hash_of(secret.encode())
        self._open[digest] = ticket
        heapq.heappush(self._ends, (ticket.expires_s, digest))
        self._of_makers[name] = self._of_makers.get(name, 0) + 1
        self.made += 1
        return secret, ticket

    def take(self, secret: bytes, client_id: str | None, origin: str | None, now_s: float) -> Ticket:
        """Use up the ticket of a secret, whatever comes of it.

        Args:
            secret: The `passcode` of the client.
            client_id: That of its CONNECT; None for none.
            origin: Of its page; None for a client that is no browser.
            now_s: Seconds since the epoch.

        Raises:
            ProtocolError: There is no such ticket, or it cannot be used so. Which of the two is not shown.
        """
        ticket = self.take_hashed(hash_of(secret), client_id, origin, now_s)
        if ticket is None:
            raise invalid_ticket()
        return ticket

    def take_hashed(self, digest: bytes, client_id: str | None, origin: str | None, now_s: float) -> Ticket | None:
        """Use up the ticket with the hash of a secret, as `take`, and return it. None if it is refused."""
        ticket = self._open.pop(digest, None)
        if ticket is not None:
            self._released(ticket)
        if (
            ticket is None
            or ticket.expires_s <= now_s
            or (ticket.client_id is not None and client_id not in {None, ticket.client_id})
            or (ticket.origin is not None and origin != ticket.origin)
            or self._grants.problem(ticket.grant, now_s) is not None
        ):
            self.refused += 1
            return None
        self.used += 1
        return ticket

    def _released(self, ticket: Ticket) -> None:
        maker = ticket.grant.maker
        assert maker is not None  # noqa: S101 - each ticket has one
        name = maker.identity.principal
        count = self._of_makers.pop(name) - 1
        if count:
            self._of_makers[name] = count

    def _forget_expired(self, now_s: float) -> None:
        ends = self._ends
        while ends and ends[0][0] <= now_s:
            ticket = self._open.pop(heapq.heappop(ends)[1], None)
            if ticket is not None:
                self._released(ticket)
        if len(ends) > 2 * len(self._open) + _USED_KEPT:
            self._ends = [(ticket.expires_s, digest) for digest, ticket in self._open.items()]
            heapq.heapify(self._ends)


def hash_of(secret: bytes) -> bytes:
    """Return the hash by which the ticket of a secret is known."""
    return hashlib.sha256(secret).digest()


def invalid_ticket() -> ProtocolError:
    """Return the one answer to each ticket that is refused."""
    return refusal(
        "ticket invalid",
        "ticket-invalid",
        "the ticket is unknown, used, expired, or not for this client-id or page; connect with a new one",
    )

"""Rights of clients without a certificate, by a ticket or a token, and how long they last.

The rights of a grant are globs of their own. A grant counts as long as the principal that made it could make it again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from maxam.broker.policy import ANONYMOUS_PREFIX, Policy, Rights
from maxam.config import Limits
from maxam.errors import GlobError, ProtocolError
from maxam.gateway.revocation import Chain
from maxam.gateway.web_tokens import Token, TokenError, TokenKeys
from maxam.globs import compile_glob
from maxam.records import GATEWAY, Identity

TICKET_RIGHT: Final = "ticket"
GLOBS_MAX: Final = 64  # of one grant, to send and to receive each
_PRINCIPAL_CHARACTERS_MAX: Final = 128
_SETS_MAX: Final = 1000  # of globs, whose rights are shared by all grants with the same


@final
@dataclass(frozen=True, slots=True)
class Maker:
    """The client that made a ticket, as it was authenticated.

    Attributes:
        identity: Its principal and certificate.
        chain: Its certificates, as they were verified.
    """

    identity: Identity
    chain: Chain


@final
@dataclass(frozen=True, slots=True)
class Grant:
    """The identity and the rights of a connection without a certificate.

    Attributes:
        identity: Of the client. It has no fingerprint.
        rights: Its rights to receive and send.
        maker: The client that made the ticket. None for a token of an issuer.
        label: Name of the ticket or token in the audit log. It grants nothing.
        expires_s: When the connection ends, seconds since the epoch. None if no time is set.
        capability: The capability of the policy that bounds the rights of a token. Empty for a ticket.
        key: Digest of the key that signed a token. Empty for a ticket.
    """

    identity: Identity
    rights: Rights
    maker: Maker | None
    label: str
    expires_s: float | None = None
    capability: str = ""
    key: str = ""

    def facts(self) -> dict[str, object]:
        """Return what the audit log has about it."""
        maker = "" if self.maker is None else self.maker.identity.principal
        return {"grant": self.label, "maker": maker}


@final
class Grants:
    """Makes the rights of grants, and checks whether they still count."""

    def __init__(
        self,
        limits: Limits,
        policy: Callable[[], Policy],
        denial: Callable[[Chain], ProtocolError | None],
        keys: Callable[[], TokenKeys | None],
    ) -> None:
        """Begin without any.

        Args:
            limits: Limits of globs.
            policy: Returns the policy in force.
            denial: Returns why a verified chain of certificates does not count any longer, or None.
            keys: Returns the keys of the issuer of tokens that are in force.
        """
        self._keys: Final = keys
        self._limits: Final = limits
        self._policy: Final = policy
        self._denial: Final = denial
        self._sets: Final[dict[tuple[tuple[str, ...], tuple[str, ...]], Rights]] = {}
        self._missing: Final[dict[tuple[int, int], str]] = {}  # by the numbers of the rights of maker and grant

    def rights(self, receive: Sequence[str], send: Sequence[str]) -> Rights:
        """Return rights to receive and send globs; raises GlobError."""
        key = (tuple(sorted(set(receive))), tuple(sorted(set(send))))
        found = self._sets.get(key)
        if found is None:
            globs = [tuple([compile_glob(text, self._limits) for text in texts]) for texts in key]
            found = Rights(globs[1], globs[0], frozenset(), None, self._limits)
            if len(self._sets) >= _SETS_MAX:
                self._sets.clear()
            self._sets[key] = found
        return found

    def rights_of(self, principal: str) -> Rights:
        """Return the rights of a principal of the policy in force."""
        return self._policy().rights(principal)

    def missing(self, maker: Rights, wanted: Rights) -> str:
        """Return a right of `wanted` that a maker lacks, in words for people. Empty if it may grant all of them."""
        key = (maker.number, wanted.number)
        found = self._missing.get(key)
        if found is None:
            if len(self._missing) >= _SETS_MAX:
                self._missing.clear()
            found = self._missing[key] = maker.missing(wanted)
        return found

    def beyond_capability(self, name: str, wanted: Rights) -> str:
        """Return a right of `wanted` that a capability of the policy does not have, in words. Empty if it has all."""
        capability = self._policy().capabilities.get(name)
        if capability is None:
            return f"all, as the policy has no capability {name!r}"
        bound = self.rights([glob.text for glob in capability.receive], ())
        return self.missing(bound, wanted)

    def token(self, token: Token, capability: str) -> Grant:
        """Return the grant of a valid token; raises TokenError if it cannot have one."""
        problem = self.name_problem(token.principal)
        if problem:
            raise TokenError(f"its principal: {problem}")
        receive = token.receive
        if receive is None:
            found = self._policy().capabilities.get(capability)
            receive = () if found is None else tuple([glob.text for glob in found.receive])
        elif len(receive) > GLOBS_MAX:
            raise TokenError(f"it has {len(receive)} globs; expected at most {GLOBS_MAX}")
        try:
            rights = self.rights(receive, ())
        except GlobError as error:
            raise TokenError(f"a glob to receive: {error}") from error
        missing = self.beyond_capability(capability, rights)
        if missing:
            raise TokenError(f"the capability {capability!r} does not have {missing}")
        return Grant(Identity(token.principal, ""), rights, None, "jwt", token.expires_s, capability, token.key)

    def name_problem(self, principal: str) -> str:
        """Return why a client without a certificate cannot have a name, empty if it can."""
        if not 0 < len(principal) <= _PRINCIPAL_CHARACTERS_MAX or not principal.isprintable():
            return f"expected a name of 1 to {_PRINCIPAL_CHARACTERS_MAX} printable characters"
        if principal == GATEWAY.principal or principal.startswith(ANONYMOUS_PREFIX):
            return f"{principal!r} is reserved"
        if principal in self._policy().principals:
            return f"{principal!r} is a principal of the policy, which has certificates; choose another name"
        return ""

    def problem(self, grant: Grant, now_s: float) -> ProtocolError | None:
        """Return why a grant no longer counts, or None.

        Args:
            grant: The grant.
            now_s: Seconds since the epoch.
        """
        if grant.expires_s is not None and grant.expires_s <= now_s:
            return refusal("token expired, reconnect", "token-expired", "the token has expired; connect with a new one")
        if self.name_problem(grant.identity.principal):
            return ProtocolError(
                "policy changed, reconnect", "the policy has a principal of this name now; connect with another name"
            )
        policy = self._policy()
        maker = grant.maker
        if maker is None:
            keys = self._keys()
            if keys is None or grant.key not in keys.digests or self.beyond_capability(grant.capability, grant.rights):
                return ProtocolError(
                    "policy changed, reconnect", "the key or the rights of the token were withdrawn; get a new token"
                )
            return None
        rights = policy.rights(maker.identity.principal)
        if (
            self._denial(maker.chain) is not None
            or policy.principal_of(maker.identity.fingerprint) != maker.identity.principal
            or TICKET_RIGHT not in rights.admin
            or self.missing(rights, grant.rights)
        ):
            return ProtocolError(
                "policy changed, reconnect",
                "the client that made the ticket has lost its certificate or a right since; connect with a new ticket",
            )
        return None


def refusal(message: str, code: str, detail: str) -> ProtocolError:
    """Return an error with a header `code` for programs."""
    return ProtocolError(message, detail, None, ((b"code", code.encode()),))

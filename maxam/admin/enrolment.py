"""Enrolment: one-time tokens, and the certificates and rights that clients get for them; renewal of certificates.

Theory of operation. What a token came to is decided by one write: the token's line in `tokens.jsonl` is marked as used, with the key
and the certificate in it, and synced. Everything behind that (the index of the authority, the policy file, the reload) can be done
again from it, and is: when the client asks again with the same key, and at the next start. So a crash between any two steps gives no
second certificate, and loses none. A renewal is decided by its line in the index, which names what it renews, in the same way.

Nobody grants what he does not hold: the rights of whoever made a token are compared when it is made and again when it is used.
"""

import base64
import datetime as dt
import hashlib
import hmac
import ipaddress
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, final

import trio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from maxam.admin.authority import (
    LIST_FILE,
    AuthorityFolder,
    Entry,
    RequestError,
    json_lines,
    key_digest,
    read_passphrase,
    read_request,
    replace_durably,
    text_of,
    time_of,
)
from maxam.admin.certificates import fingerprint
from maxam.admin.enrolled_policy import EnrolledPolicy, EnrolledPrincipal
from maxam.broker.policy import Policy, load_policies
from maxam.config import Settings
from maxam.errors import ConfigurationError, MaxamError, PolicyError
from maxam.gateway.audit import ENROLMENT
from maxam.gateway.files import read_file
from maxam.gateway.log import log_event
from maxam.gateway.revocation import facts_of
from maxam.gateway.sources import Sources
from maxam.records import Identity

if TYPE_CHECKING:
    from maxam.gateway.server import Gateway

TOKENS_FILE: Final = "tokens.jsonl"
TOKEN_BYTES: Final = 32  # of randomness: nobody finds one by trying
TOKENS_MAX: Final = 1000  # that wait to be used
LINEAGE_MAX: Final = 4  # certificates of one line of renewals that count at a time: whoever stole one gets no more
_KEPT: Final = dt.timedelta(
    days=30
)  # tokens that were used or have expired, for operators, and for clients that ask again
_LOOK_S: Final = 600.0  # between looks for certificates whose overlap is over
_ENROL: Final = "enrol"
_NOBODYS: Final = "0" * 64  # stands for a certificate that is not made yet
_T = TypeVar("_T")


@final
class RefusedError(MaxamError):
    """Say why something was not done, to whom it may be told.

    Attributes:
        status: For HTTP.
        code: Short, for programs.
    """

    def __init__(self, status: HTTPStatus, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status: Final = status
        self.code: Final = code


@final
@dataclass(frozen=True, slots=True)
class Token:
    """What is kept of a token; the token itself is not.

    Attributes:
        id: Names it for operators.
        digest: SHA-256 of the token, lower-case hex.
        principal: Who its user will be.
        capabilities: What that may do, by name.
        owns: What its sends are narrowed to; None: they are not.
        made_by: The principal who made it.
        made_at, expires_at, used_at: As in the index; `used_at` is empty until then.
        key: SHA-256 of the public key that it was used with.
        certificate: What was issued for it, base64 of the DER.
        finished: The certificate is in the index and in the policy.
    """

    id: str
    digest: str
    principal: str
    capabilities: tuple[str, ...]
    owns: tuple[str, ...] | None
    made_by: str
    made_at: str
    expires_at: str
    used_at: str = ""
    key: str = ""
    certificate: str = ""
    finished: bool = False

    def load(self) -> x509.Certificate:
        """Return what was issued for it."""
        return x509.load_der_x509_certificate(base64.b64decode(self.certificate))


def open_authority(settings: Settings, sources: Sources) -> tuple[AuthorityFolder, x509.Certificate]:
    """Open the authority that signs clients; return it with the certificate that clients pin.

    Raises:
        ConfigurationError: It cannot be used, or what it signs would be refused, or clients could not know the server by it.
    """
    chosen, tls = settings.enrolment, settings.tls
    if chosen.folder is None or chosen.passphrase_file is None:
        raise AssertionError("enrolment is off")
    authority = AuthorityFolder(chosen.folder)
    authority.unlock(read_passphrase(chosen.passphrase_file))
    if not sources.authorities.trusts((facts_of(authority.certificate),)):
        raise ConfigurationError(
            f"[enrolment] folder {chosen.folder}: its authority is not in [tls] client_ca {tls.client_ca}, so nobody whom it"
            f" certifies could connect; append {chosen.folder / 'ca.pem'} to that file"
        )
    pinned, where = authority.certificate, str(chosen.folder / "ca.pem")
    try:
        if chosen.server_ca is not None:
            where = str(chosen.server_ca)
            pinned = x509.load_pem_x509_certificate(
                read_file(chosen.server_ca, "[enrolment] server_ca", "correct the path")
            )
        last = x509.load_pem_x509_certificates(read_file(tls.certificate, "[tls] certificate", "correct the path"))[-1]
        if last != pinned:
            last.verify_directly_issued_by(pinned)
    except Exception as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(
            f"[enrolment] server_ca: the server's certificate {tls.certificate} is not signed by {where}, which clients pin;"
            " set it to the certificate of whoever signed that"
        ) from error
    return authority, pinned


def check_enrolment(settings: Settings, sources: Sources) -> None:
    """Raise ConfigurationError if enrolment is configured and could not be served."""
    if settings.enrolment.folder is not None:
        open_authority(settings, sources)


@final
class Enrolment:
    """Tokens, and what clients get for them.

    Attributes:
        pinned: SHA-256 of the certificate by which new clients know the server, lower-case hex.
        authorities: Certificates that clients get: the pinned one first.
        address: Where the listener is, `(host, port)`.
        clock: Tells the time.
        audit: Where it is kept who did what.
    """

    def __init__(self, gateway: "Gateway", clock: Callable[[], dt.datetime] | None = None) -> None:
        """Open authority and tokens; raises ConfigurationError when they cannot be used."""
        settings = gateway.settings
        self._authority, pinned = open_authority(settings, gateway.reloader.sources)
        if settings.policy.enrolled is None:
            raise AssertionError("enrolment is off")
        self.pinned: Final = fingerprint(pinned)
        others = [] if pinned == self._authority.certificate else [self._authority.certificate]
        self.authorities: Final = (pinned, *others)
        self.address = (settings.enrolment.host, settings.enrolment.port)
        self.clock: Final = clock or (lambda: dt.datetime.now(dt.UTC))
        self._gateway: Final = gateway
        self.audit: Final = gateway.audit
        self._settings: Final = settings.enrolment
        self._policy_files: Final = (settings.policy.file, settings.policy.enrolled)
        self._tokens_file: Final = self._authority.folder / TOKENS_FILE
        self._tokens = _read_tokens(self._tokens_file)
        self._lock: Final = trio.Lock()
        try:
            if not settings.policy.enrolled.exists():  # from now on, that it is missing is a mistake
                replace_durably(settings.policy.enrolled, EnrolledPolicy().render(), 0o644)
        except OSError as error:
            raise ConfigurationError(
                f"[policy] enrolled: {settings.policy.enrolled} cannot be written: {error.strerror}; the gateway writes it"
            ) from error

    async def run(self) -> None:
        """Retire what has been renewed for long enough, until cancelled."""
        if not self._revocable():
            action = (
                f"add {self._authority.folder / LIST_FILE} to [tls] crl: until then a revoked certificate counts on"
            )
            log_event(logging.WARNING, "enrolment-without-revocation", authority=self._authority.folder, action=action)
        while True:
            try:
                await self.retire()
            except (RefusedError, ConfigurationError) as error:
                log_event(logging.ERROR, "enrolment-failed", error=error, action="tried again later")
            await trio.sleep(_LOOK_S)

    def _revocable(self) -> bool:
        """Say whether a revocation list of the authority is in force."""
        issuer = self._authority.certificate.subject.public_bytes()
        return any(one.issuer == issuer for one in self._gateway.reloader.sources.revocations.lists)

    async def recover(self) -> None:
        """Complete what a crash has left half done."""
        for token in list(self._tokens.values()):
            if token.used_at and not token.finished:
                try:
                    async with self._lock:
                        await self._complete(token)
                except (RefusedError, ConfigurationError) as error:
                    log_event(logging.ERROR, "enrolment-failed", principal=token.principal, error=error)

    # What operators do.

    async def make_token(
        self, maker: Identity, principal: str, capabilities: Iterable[str], owns: Iterable[str] | None, minutes: int
    ) -> tuple[Token, str]:
        """Make a token; return it with what is kept of it. Raises RefusedError."""
        if not 1 <= minutes <= self._settings.token_minutes_max:
            raise RefusedError(
                HTTPStatus.BAD_REQUEST,
                "invalid-token",
                f"minutes must be 1 to {self._settings.token_minutes_max} ([enrolment] token_minutes_max), found {minutes}",
            )
        secret = secrets.token_urlsafe(TOKEN_BYTES)
        now = self.clock()
        token = Token(
            id=secrets.token_hex(8),
            digest=_digest(secret),
            principal=principal,
            capabilities=tuple(capabilities),
            owns=None if owns is None else tuple(owns),
            made_by=maker.principal,
            made_at=text_of(now),
            expires_at=text_of(now + dt.timedelta(minutes=minutes)),
        )
        async with self._lock:
            await _in_thread(self._add_token, token, self._gateway.policy)
        self.audit.tell(
            ENROLMENT,
            "token-made",
            maker,
            id=token.id,
            enrols=principal,
            capabilities=",".join(token.capabilities),
            owns=None if token.owns is None else ",".join(token.owns),
            expires=token.expires_at,
        )
        log_event(
            logging.INFO,
            "token-made",
            id=token.id,
            principal=principal,
            capabilities=",".join(token.capabilities),
            by=maker.principal,
            expires=token.expires_at,
        )
        return token, secret

    def tokens(self) -> list[Token]:
        """Return all tokens that are remembered, oldest first."""
        return list(self._tokens.values())

    async def revoke_token(self, token_id: str) -> bool:
        """Make a token worthless that was not used yet, or not to the end; False when there is none."""
        async with self._lock:
            token = self._tokens.get(token_id)
            if token is None or token.finished:
                return False
            tokens = {key: one for key, one in self._tokens.items() if key != token_id}
            await _in_thread(self._save, tokens)
        self.audit.tell(ENROLMENT, "token-revoked", id=token_id, enrols=token.principal)
        log_event(logging.INFO, "token-revoked", id=token_id, principal=token.principal)
        return True

    async def enrolled(self) -> EnrolledPolicy:
        """Return who has been enrolled."""
        return await _in_thread(self._read_enrolled)

    async def remove(self, principal: str) -> bool:
        """Take an enrolled principal out of the policy, and make its token worthless; False when there is none."""
        async with self._lock:
            found = await _in_thread(self._remove, principal)
            if found:
                await self._gateway.reloader.reload("enrolment")
                self.audit.tell(ENROLMENT, "removed", Identity(principal, ""))
                log_event(logging.INFO, "enrolment-removed", principal=principal)
        return found

    # What clients do.

    async def enrol(self, secret: str, request: bytes, address: str) -> x509.Certificate:
        """Give the certificate for a token; it is in force when this returns. The same key gets the same one again.

        Raises:
            RefusedError: It gets none, or must ask again later.
        """
        async with self._lock:
            token = await _in_thread(self._consume, secret, request, self._gateway.policy)
            certificate = await self._complete(token)
        who = Identity(token.principal, fingerprint(certificate))
        self.audit.tell(ENROLMENT, "enrolled", who, address, id=token.id, by=token.made_by)
        log_event(
            logging.INFO,
            "enrolled",
            address=address,
            principal=token.principal,
            fingerprint=fingerprint(certificate),
            token=token.id,
            by=token.made_by,
        )
        return certificate

    async def renew(self, old: str, request: bytes, address: str) -> x509.Certificate:
        """Give the certificate that follows one that counts; it is in force when this returns, beside the old one.

        The same key gets the same one again.

        Args:
            old: Fingerprint of the certificate that its owner has just shown.
            request: A PKCS 10 with the new key, or the old one.
            address: Whose, for the log.

        Raises:
            RefusedError: It gets none, or must ask again later.
        """
        async with self._lock:
            policy = self._gateway.policy
            principal = policy.principal_of(old)
            if principal is None:
                raise RefusedError(
                    HTTPStatus.FORBIDDEN, "unknown", "the policy names no principal for this certificate"
                )
            certificate = await _in_thread(self._sign_renewal, old, principal, request, policy)
            new = fingerprint(certificate)
            if policy.principal_of(new) != principal:
                await _in_thread(self._change_policy, lambda policy: policy.renewed(old, new))
                await self._bring_into_force(new, principal)
        self.audit.tell(ENROLMENT, "renewed", Identity(principal, new), address, renews=old)
        log_event(logging.INFO, "renewed", address=address, principal=principal, renews=old, fingerprint=new)
        return certificate

    async def retire(self) -> None:
        """Let certificates stand for nobody any more that were renewed longer than the overlap ago."""
        async with self._lock:
            policy = self._gateway.policy
            entries = await _in_thread(self._authority.entries)
            limit = self.clock() - dt.timedelta(days=self._settings.overlap_days)
            old = [
                entry.renews
                for entry in entries
                if entry.renews and entry.by == "renewal" and not entry.revoked_at and time_of(entry.issued_at) <= limit
                if policy.principal_of(entry.fingerprint) is not None
                if policy.principal_of(entry.fingerprint) == policy.principal_of(entry.renews)
            ]
            if not old:
                return

            def retired(enrolled: EnrolledPolicy) -> EnrolledPolicy:
                for one in old:
                    enrolled = enrolled.retired(one)
                return enrolled

            await _in_thread(self._change_policy, retired)
            await self._gateway.reloader.reload("enrolment")
        for one in old:
            self.audit.tell(ENROLMENT, "retired", Identity(policy.principal_of(one) or "", one))
            log_event(logging.INFO, "certificate-retired", fingerprint=one, principal=policy.principal_of(one))

    # In a thread, one at a time.

    def _add_token(self, token: Token, policy: Policy) -> None:
        now = self.clock()
        open_ones = [one for one in self._tokens.values() if not one.used_at and time_of(one.expires_at) > now]
        if any(one.principal == token.principal for one in open_ones):
            raise RefusedError(
                HTTPStatus.CONFLICT,
                "token-exists",
                f"a token for {token.principal!r} waits to be used already; revoke it first",
            )
        if len(open_ones) >= TOKENS_MAX:
            raise RefusedError(HTTPStatus.CONFLICT, "too-many", f"{TOKENS_MAX} tokens wait to be used; revoke some")
        self._check_wanted(token, policy)
        kept = {
            key: one
            for key, one in self._tokens.items()
            if (one.used_at and not one.finished) or time_of(one.used_at or one.expires_at) + _KEPT > now
        }
        self._save({**kept, token.id: token})

    def _consume(self, secret: str, request: bytes, policy: Policy) -> Token:
        """Mark a token as used with a new certificate in it, or find what it was used for; synced when this returns."""
        token = self._known(secret)
        try:
            key = read_request(request)
        except RequestError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "bad-request", str(error)) from error
        digest = key_digest(key)
        if token.used_at:
            if not hmac.compare_digest(token.key, digest):
                raise RefusedError(
                    HTTPStatus.FORBIDDEN, "used", "the token was used already, with another key; ask for a new one"
                )
            return token
        now = self.clock()
        if time_of(token.expires_at) <= now:
            raise RefusedError(
                HTTPStatus.FORBIDDEN, "expired", f"the token has expired on {token.expires_at}; ask for a new one"
            )
        try:
            self._check_wanted(token, policy)
        except RefusedError as error:
            if error.code != "invalid-token":
                raise
            log_event(logging.WARNING, "enrolment-failed", principal=token.principal, error=error)
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "invalid-token",
                "what the token names is not in the policy any more; ask for a new one",
            ) from error
        self._check_key(digest, "", policy, self._authority.entries())
        certificate = self._authority.sign(token.principal, key, now, self._settings.certificate_days)
        used = replace(
            token,
            used_at=text_of(now),
            key=digest,
            certificate=base64.b64encode(certificate.public_bytes(Encoding.DER)).decode(),
        )
        self._save({**self._tokens, token.id: used})
        return used

    async def _complete(self, token: Token) -> x509.Certificate:
        """Do what follows from a token that was used, as far as that is not done."""
        certificate = token.load()
        if not token.finished:
            principal = EnrolledPrincipal(token.principal, (fingerprint(certificate),), token.capabilities, token.owns)
            used_at = time_of(token.used_at)
            await _in_thread(
                self._authority.add, certificate, token.principal, used_at, f"token {token.id} of {token.made_by}"
            )
            await _in_thread(self._change_policy, lambda policy: policy.with_principal(principal))
            await self._bring_into_force(fingerprint(certificate), token.principal)
            await _in_thread(self._save, {**self._tokens, token.id: replace(token, finished=True)})
        return certificate

    async def _bring_into_force(self, new: str, principal: str) -> None:
        outcomes = await self._gateway.reloader.reload("enrolment")
        if self._gateway.policy.principal_of(new) != principal:
            failure = next((one.detail for one in outcomes if one.item == "policy"), "")
            log_event(logging.ERROR, "enrolment-failed", principal=principal, error=failure or "not in force")
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "not-in-force",
                "the certificate was made and could not be put into force; ask again later with the same key",
            )

    def _sign_renewal(self, old: str, principal: str, request: bytes, policy: Policy) -> x509.Certificate:
        """Sign what follows a certificate, or find it; in the index, and synced, when this returns."""
        try:
            key = read_request(request)
        except RequestError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "bad-request", str(error)) from error
        digest = key_digest(key)
        now = self.clock()
        entries = self._authority.entries()
        for entry in entries:
            if entry.renews == old and entry.key == digest and entry.by == "renewal" and entry.counts(now):
                return entry.load()
        self._check_key(digest, principal, policy, entries)
        self._read_enrolled()  # what could not come into force would not count below: nobody fills the index with such ones
        line = _lineage(old, entries)
        if (
            sum(entry.counts(now) and policy.principal_of(entry.fingerprint) == principal for entry in line)
            >= LINEAGE_MAX
        ):
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too-often",
                f"{LINEAGE_MAX} certificates of this line count already; ask again when some of them have been retired",
            )
        certificate = self._authority.sign(principal, key, now, self._settings.certificate_days)
        try:
            return self._authority.add(certificate, principal, now, "renewal", old)
        except RequestError as error:  # the list that says so is not in force here yet
            raise RefusedError(HTTPStatus.FORBIDDEN, "revoked", str(error)) from error

    def _known(self, secret: str) -> Token:
        digest = _digest(secret)
        found: Token | None = None
        for token in self._tokens.values():  # all of them, whichever it is
            if hmac.compare_digest(token.digest, digest):
                found = token
        if found is None:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "unknown", "the token is unknown; ask for a new one")
        return found

    def _check_wanted(self, token: Token, policy: Policy) -> None:
        """Make sure that a token can lead to what it names, and that its maker holds all of that; raises RefusedError."""
        maker = policy.rights(token.made_by)
        if _ENROL not in maker.admin:
            raise RefusedError(
                HTTPStatus.FORBIDDEN, "maker", f"{token.made_by!r}, who made the token, may enrol nobody any more"
            )
        if token.principal in policy.principals:
            raise RefusedError(
                HTTPStatus.CONFLICT,
                "principal-exists",
                f"there is a principal {token.principal!r} already; choose another name, or take that one out first",
            )
        wanted = EnrolledPrincipal(token.principal, (_NOBODYS,), token.capabilities, token.owns)
        enrolled = self._read_enrolled()
        try:
            merged = self._merged(enrolled.with_principal(wanted).render())
        except PolicyError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "invalid-token", str(error)) from error
        missing = maker.missing(merged.rights(token.principal))
        if missing:
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "beyond-maker",
                f"{token.made_by!r} cannot grant {missing}, which it does not hold itself",
            )

    def _check_key(self, digest: str, principal: str, policy: Policy, entries: Iterable[Entry]) -> None:
        """Make sure that a key is nobody else's, and was not given up; raises RefusedError."""
        for entry in entries:
            if entry.key == digest:
                if entry.revoked_at:
                    raise RefusedError(
                        HTTPStatus.FORBIDDEN, "key-revoked", "a certificate of this key was revoked; make another key"
                    )
                if policy.principal_of(entry.fingerprint) not in {None, principal}:
                    raise RefusedError(
                        HTTPStatus.FORBIDDEN, "key-known", "this key stands for a principal already; make another key"
                    )

    def _read_enrolled(self) -> EnrolledPolicy:
        path = self._policy_files[1]
        text = path.read_bytes() if path.exists() else b""
        self._merged(text)
        return EnrolledPolicy.parse(text)

    def _merged(self, enrolled: bytes) -> Policy:
        file, other = self._policy_files
        return load_policies([(str(file), file.read_bytes()), (str(other), enrolled)], self._gateway.settings.limits)

    def _change_policy(self, change: Callable[[EnrolledPolicy], EnrolledPolicy]) -> None:
        before = self._read_enrolled()
        after = change(before)
        if after != before:
            text = after.render()
            self._merged(text)
            replace_durably(self._policy_files[1], text, 0o644)

    def _remove(self, principal: str) -> bool:
        enrolled = self._read_enrolled()
        if all(one.name != principal for one in enrolled.principals):
            return False
        # The token first: whoever used it must not get back in by asking again.
        self._save({key: one for key, one in self._tokens.items() if one.principal != principal})
        replace_durably(self._policy_files[1], enrolled.without(principal).render(), 0o644)
        return True

    def _save(self, tokens: dict[str, Token]) -> None:
        replace_durably(self._tokens_file, json_lines([asdict(token) for token in tokens.values()]), 0o600)
        self._tokens = tokens


@final
class Attempts:
    """Counts failures of each address within a minute, a bounded number of addresses."""

    _ADDRESSES_MAX: Final = 10_000
    _WINDOW_S: Final = 60.0

    def __init__(self, failures_per_minute_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures_max: Final = failures_per_minute_max
        self._clock: Final = clock
        self._began_s = clock()
        self._failures: dict[str, int] = {}

    def failed(self, address: str) -> None:
        """Count one failure."""
        self._roll()
        key = _network(address)
        # Further ones go free: nobody finds a token by trying, and a flood from everywhere must not lock out who has one.
        if key in self._failures or len(self._failures) < self._ADDRESSES_MAX:
            self._failures[key] = self._failures.get(key, 0) + 1

    def wait_s(self, address: str) -> int:
        """Return for how long an address must wait; 0: it need not."""
        self._roll()
        if self._failures.get(_network(address), 0) < self._failures_max:
            return 0
        return int(self._began_s + self._WINDOW_S - self._clock()) + 1

    def _roll(self) -> None:
        if self._clock() - self._began_s >= self._WINDOW_S:
            self._began_s = self._clock()
            self._failures.clear()


def _network(address: str) -> str:
    """Return what one party commonly has: an address of IPv4, or the first 64 bits of one of IPv6."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def _lineage(fingerprint_: str, entries: Iterable[Entry]) -> list[Entry]:
    """Return all certificates of the line of renewals that one belongs to."""
    by_fingerprint = {entry.fingerprint: entry for entry in entries}
    root = fingerprint_
    while root in by_fingerprint and by_fingerprint[root].renews:
        root = by_fingerprint[root].renews
    line = {root}
    for entry in by_fingerprint.values():  # whatever renews stands behind what it renews
        if entry.renews in line:
            line.add(entry.fingerprint)
    return [entry for entry in by_fingerprint.values() if entry.fingerprint in line]


def _read_tokens(path: Path) -> dict[str, Token]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(f"[enrolment] folder: {path} cannot be read: {error.strerror}") from error
    tokens: dict[str, Token] = {}
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            owns = values["owns"]
            token = Token(
                **{
                    **values,
                    "capabilities": tuple(values["capabilities"]),
                    "owns": None if owns is None else tuple(owns),
                }
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"[enrolment] folder: {path}: line {number}: not as it was written ({error}); restore the file, or delete it:"
                " tokens that were not used are worthless then"
            ) from error
        tokens[token.id] = token
    return tokens


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


async def _in_thread(function: Callable[..., _T], *arguments: object) -> _T:
    """Run what waits for the disk or computes for long; raises RefusedError where that cannot be done now."""
    try:
        return await trio.to_thread.run_sync(partial(function, *arguments))
    except (OSError, ConfigurationError) as error:
        log_event(logging.ERROR, "enrolment-failed", error=error)
        raise RefusedError(
            HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", "the gateway cannot do this now; its log says why"
        ) from error

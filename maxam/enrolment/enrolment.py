"""Enrolment gives clients certificates and rights for one-time tokens, and renews certificates.

Theory of operation. One write decides the outcome of a token: its line in `tokens.jsonl` is marked as used, and synced. The line has the
key and the certificate. All later steps can be repeated from that line: the index of the authority, the policy file, the
reload. They are repeated when the client asks again with the same key, and at the next start. So a crash between any two steps
gives no second certificate, and loses none. A renewal is decided in the same way, by its line in the index, which has the
fingerprint of the renewed certificate.

No principal grants rights that it does not hold. The rights of the maker of a token are compared when it is made and again when
it is used.
"""

import base64
import datetime as dt
import hmac
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final, TypeVar, final

import trio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from maxam.broker.policy import Policy, load_policies
from maxam.config import Settings
from maxam.durable_files import replace_durably
from maxam.enrolment.policy_file import EnrolledPolicy, EnrolledPrincipal
from maxam.enrolment.tokens import TOKENS_FILE, RefusedError, Token, TokenFile, digest_of
from maxam.errors import ConfigurationError, JournalError, PolicyError
from maxam.files import read_file
from maxam.gateway.audit import ENROLMENT
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.log import log_event
from maxam.gateway.revocation import facts_of
from maxam.gateway.server import Gateway
from maxam.pki.authority import (
    LIST_FILE,
    AuthorityFolder,
    Entry,
    RequestError,
    key_digest,
    read_passphrase,
    read_request,
    text_of,
    time_of,
)
from maxam.pki.certificates import fingerprint
from maxam.records import Identity

TOKEN_BYTES: Final = 32  # of randomness: too much to guess
LINEAGE_MAX: Final = 4  # certificates of one line of renewals that are valid at a time: a thief of one gets no further
_LOOK_S: Final = 600.0  # between checks for certificates whose overlap is over
_ROLE_S: Final = 1.0  # between two checks whether the gateway takes changes
_ENROL: Final = "enrol"
_NOBODYS: Final = "0" * 64  # stands for a certificate that is not made yet
_T = TypeVar("_T")


def open_authority(settings: Settings, loaded: LoadedConfig) -> tuple[AuthorityFolder, x509.Certificate]:
    """Open the authority that signs clients; return it with the certificate that clients pin.

    Raises:
        ConfigurationError: It cannot be used, or what it signs would be refused, or clients could not know the server by it.
    """
    chosen, tls = settings.enrolment, settings.tls
    if chosen.folder is None or chosen.passphrase_file is None:
        raise AssertionError("enrolment is off")
    authority = AuthorityFolder(chosen.folder)
    authority.unlock(read_passphrase(chosen.passphrase_file))
    if not loaded.authorities.trusts((facts_of(authority.certificate),)):
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


def check_enrolment(settings: Settings, loaded: LoadedConfig) -> None:
    """Raise ConfigurationError if enrolment is configured and could not be served."""
    if settings.enrolment.folder is not None:
        open_authority(settings, loaded)


@final
class Enrolment:
    """Tokens, and the certificates that clients get for them.

    Attributes:
        pinned: SHA-256 of the certificate by which new clients know the server, lower-case hex.
        authorities: Certificates that clients get: the pinned one first.
        address: Address of the listener, `(host, port)`.
        clock: Returns the time.
        audit: Log of the operations.
    """

    def __init__(self, gateway: Gateway, clock: Callable[[], dt.datetime] | None = None) -> None:
        """Open authority and tokens; raises ConfigurationError when they cannot be used."""
        settings = gateway.settings
        self._authority, pinned = open_authority(settings, gateway.reloader.loaded)
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
        self._tokens: Final = TokenFile(self._authority.folder / TOKENS_FILE)
        self._lock: Final = trio.Lock()
        try:
            if (
                gateway.role.member is None and not settings.policy.enrolled.exists()
            ):  # from now on, that it is missing is a mistake
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
            if not self._gateway.role.serves:
                await trio.sleep(_ROLE_S)
                continue
            try:
                await self.recover()
                await self.retire()
            except (RefusedError, ConfigurationError) as error:
                log_event(logging.ERROR, "enrolment-failed", error=error, action="tried again later")
            await trio.sleep(_LOOK_S)

    def _revocable(self) -> bool:
        """Return True if a CRL of the authority is in force."""
        issuer = self._authority.certificate.subject.public_bytes()
        return any(one.issuer == issuer for one in self._gateway.reloader.loaded.revocations.lists)

    async def recover(self) -> None:
        """Complete what a crash has left half done. A gateway that does not serve leaves it for later."""
        if not self._gateway.role.serves:
            return
        for token in self._tokens.all():
            if token.unfinished_use:
                try:
                    async with self._lock:
                        await self._complete(token)
                except (RefusedError, ConfigurationError) as error:
                    log_event(logging.ERROR, "enrolment-failed", principal=token.principal, error=error)

    # Requests of operators.

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
            digest=digest_of(secret),
            principal=principal,
            capabilities=tuple(capabilities),
            owns=None if owns is None else tuple(owns),
            made_by=maker.principal,
            made_at=text_of(now),
            expires_at=text_of(now + dt.timedelta(minutes=minutes)),
        )
        async with self._lock:
            await _in_thread(self._add_token, token, self._gateway.policy)
        self.audit.record(
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
        return self._tokens.all()

    async def revoke_token(self, token_id: str) -> bool:
        """Make a token worthless that was not used yet, or not to the end; False when there is none."""
        async with self._lock:
            token = self._tokens.get(token_id)
            if token is None or token.finished:
                return False
            await _in_thread(self._tokens.remove, token_id)
        self.audit.record(ENROLMENT, "token-revoked", id=token_id, enrols=token.principal)
        log_event(logging.INFO, "token-revoked", id=token_id, principal=token.principal)
        return True

    async def enrolled(self) -> EnrolledPolicy:
        """Return who has been enrolled, also while the operators' policy file is broken: nothing is changed."""
        return await _in_thread(self._read_own)

    async def remove(self, principal: str) -> bool:
        """Take an enrolled principal out of the policy, and make its token worthless; False when there is none."""
        async with self._lock:
            found = await _in_thread(self._remove, principal)
            if found:
                await self._gateway.reloader.reload("enrolment")
                self.audit.record(ENROLMENT, "removed", Identity(principal, ""))
                log_event(logging.INFO, "enrolment-removed", principal=principal)
        return found

    # Requests of clients.

    def is_principal(self, fingerprint_: str) -> bool:
        """Return True if the policy in force has a principal for a certificate."""
        return self._gateway.policy.principal_of(fingerprint_) is not None

    def token_id(self, secret: str) -> str | None:
        """Return the id of a known token, used and expired ones included; None for a guess."""
        token = self._tokens.find(secret)
        return None if token is None else token.id

    async def enrol(self, secret: str, request: bytes, address: str) -> x509.Certificate:
        """Give the certificate for a token; it is in force when this returns. The same key gets the same one again.

        Raises:
            RefusedError: It gets none, or must ask again later.
        """
        self._require_serving()
        async with self._lock:
            token = await _in_thread(self._consume, secret, request, self._gateway.policy)
            certificate = await self._complete(token)
        who = Identity(token.principal, fingerprint(certificate))
        self.audit.record(ENROLMENT, "enrolled", who, address, id=token.id, by=token.made_by)
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
        self._require_serving()
        async with self._lock:
            policy = self._gateway.policy
            principal = policy.principal_of(old)
            if principal is None:
                raise RefusedError(HTTPStatus.FORBIDDEN, "unknown", "the policy has no principal for this certificate")
            certificate = await _in_thread(self._sign_renewal, old, principal, request, policy)
            new = fingerprint(certificate)
            if policy.principal_of(new) != principal:
                await _in_thread(self._change_policy, lambda policy: policy.renewed(old, new))
                await self._bring_into_force(new, principal)
        self.audit.record(ENROLMENT, "renewed", Identity(principal, new), address, renews=old)
        log_event(logging.INFO, "renewed", address=address, principal=principal, renews=old, fingerprint=new)
        return certificate

    async def retire(self) -> None:
        """Retire certificates that were renewed longer than the overlap ago: they no longer stand for a principal."""
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
            self.audit.record(ENROLMENT, "retired", Identity(policy.principal_of(one) or "", one))
            log_event(logging.INFO, "certificate-retired", fingerprint=one, principal=policy.principal_of(one))

    def _require_serving(self) -> None:
        """Raise RefusedError if another gateway takes changes."""
        role = self._gateway.role
        if not role.serves:
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "following",
                f"this gateway follows another one and enrols no client. Ask the one that leads{role.where and f': {role.where}'}",
            )

    # In a thread, one at a time.

    def _add_token(self, token: Token, policy: Policy) -> None:
        self._check_wanted(token, policy)
        self._tokens.add(token, self.clock())

    def _consume(self, secret: str, request: bytes, policy: Policy) -> Token:
        """Mark a token as used with a new certificate in it, or find what it was used for; synced when this returns."""
        token = self._tokens.find(secret)
        if token is None:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "unknown", "the token is unknown; ask for a new one")
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
                "a capability or glob of the token is no longer in the policy. Ask for a new one",
            ) from error
        self._check_key(digest, "", policy, self._authority.entries())
        certificate = self._authority.sign(token.principal, key, now, self._settings.certificate_days)
        used = replace(
            token,
            used_at=text_of(now),
            key=digest,
            certificate=base64.b64encode(certificate.public_bytes(Encoding.DER)).decode(),
        )
        self._tokens.update(used)
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
            await _in_thread(self._tokens.finish, token)
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
        self._read_enrolled()  # without effect until it can come into force, so that the index does not fill up with such ones
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
        except RequestError as error:  # the CRL that has the revocation is not in force here yet
            raise RefusedError(HTTPStatus.FORBIDDEN, "revoked", str(error)) from error

    def _check_wanted(self, token: Token, policy: Policy) -> None:
        """Make sure that a token can lead to what it names, and that its maker holds all of that; raises RefusedError."""
        maker = policy.rights(token.made_by)
        if _ENROL not in maker.admin:
            raise RefusedError(
                HTTPStatus.FORBIDDEN, "maker", f"{token.made_by!r}, who made the token, may no longer enrol principals"
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
        """Make sure that a key belongs to no other client, and was not given up. Raises RefusedError."""
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
        self._merged(self._own_text())
        return self._read_own()

    def _read_own(self) -> EnrolledPolicy:
        try:
            return EnrolledPolicy.parse(self._own_text())
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigurationError(f"{self._policy_files[1]}: not as it was written ({error})") from error

    def _own_text(self) -> bytes:
        path = self._policy_files[1]
        return path.read_bytes() if path.exists() else b""

    def _merged(self, enrolled: bytes) -> Policy:
        file, other = self._policy_files
        return load_policies([(str(file), file.read_bytes()), (str(other), enrolled)], self._gateway.settings.limits)

    def _change_policy(self, change: Callable[[EnrolledPolicy], EnrolledPolicy]) -> None:
        before = self._read_enrolled()
        after = change(before)
        if after != before:
            text = after.render()
            self._merged(text)
            self._replace(text)

    def _remove(self, principal: str) -> bool:
        enrolled = self._read_enrolled()
        if all(one.name != principal for one in enrolled.principals):
            return False
        # The token first: its user must not get back in by asking again.
        self._tokens.remove_principal(principal)
        self._replace(enrolled.without(principal).render())
        return True

    def _replace(self, text: bytes) -> None:
        member = self._gateway.role.member
        if member is None:
            replace_durably(self._policy_files[1], text, 0o644)
        else:
            member.enrolled.write(text)


def _lineage(fingerprint_: str, entries: Iterable[Entry]) -> list[Entry]:
    """Return all certificates of the line of renewals that one belongs to."""
    by_fingerprint = {entry.fingerprint: entry for entry in entries}
    root = fingerprint_
    while root in by_fingerprint and by_fingerprint[root].renews:
        root = by_fingerprint[root].renews
    line = {root}
    for entry in by_fingerprint.values():  # a renewal stands after the certificate that it renews
        if entry.renews in line:
            line.add(entry.fingerprint)
    return [entry for entry in by_fingerprint.values() if entry.fingerprint in line]


async def _in_thread(function: Callable[..., _T], *arguments: object) -> _T:
    """Run what waits for the disk or computes for long; raises RefusedError where that cannot be done now."""
    try:
        return await trio.to_thread.run_sync(partial(function, *arguments))
    except (OSError, ConfigurationError, JournalError) as error:
        log_event(logging.ERROR, "enrolment-failed", error=error)
        raise RefusedError(
            HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", "the gateway cannot do this now. Its log has the reason"
        ) from error

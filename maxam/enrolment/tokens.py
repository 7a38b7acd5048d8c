"""One-time tokens of enrolment: what is kept of each, in a file that is replaced as a whole and synced."""

import base64
import datetime as dt
import hashlib
import hmac
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Final, final

from cryptography import x509

from maxam.durable_files import replace_durably
from maxam.errors import ConfigurationError, MaxamError
from maxam.pki.authority import json_lines, read_json_lines, time_of

TOKENS_FILE: Final = "tokens.jsonl"
OPEN_MAX: Final = 1000  # tokens that wait to be used
_KEPT: Final = dt.timedelta(days=30)  # used and expired tokens, for operators and for clients that ask again


@final
class RefusedError(MaxamError):
    """A request was refused, with a reason that its client may see.

    Attributes:
        status: For HTTP.
        code: Short, for programs.
    """

    def __init__(self, status: HTTPStatus, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status: Final = status
        self.code = code  # type: ignore[misc]  # mypyc wants a class variable in the compiled base


@final
@dataclass(frozen=True, slots=True)
class Token:
    """The stored part of a token, which does not include the token itself.

    Attributes:
        id: Identifier for operators.
        digest: SHA-256 of the token, lower-case hex.
        principal: Name of the principal that its user will be.
        capabilities: Names of the capabilities of that principal.
        owns: Globs to which its sends are narrowed. None does not narrow them.
        made_by: The principal who made it.
        made_at, expires_at, used_at: As in the index. `used_at` is empty until then.
        key: SHA-256 of the public key that it was used with.
        certificate: Certificate issued for it, base64 of the DER.
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

    @property
    def unfinished_use(self) -> bool:
        """True if the token was used and its certificate may not be in force."""
        return bool(self.used_at) and not self.finished

    def load(self) -> x509.Certificate:
        """Return the certificate issued for it."""
        return x509.load_der_x509_certificate(base64.b64decode(self.certificate))


@final
class TokenFile:
    """The tokens that are remembered. Each change replaces the file and is synced when the method returns; it raises OSError."""

    def __init__(self, path: Path) -> None:
        """Read the file, which may be missing. Raises ConfigurationError."""
        self._path: Final = path
        self._tokens = _read(path)

    def all(self) -> list[Token]:
        """Return all tokens, oldest first."""
        return list(self._tokens.values())

    def get(self, token_id: str) -> Token | None:
        """Return the token with an id, or None."""
        return self._tokens.get(token_id)

    def find(self, secret: str) -> Token | None:
        """Return the token of a secret, used and expired ones included; None for a guess."""
        digest = digest_of(secret)
        return next((one for one in self._tokens.values() if hmac.compare_digest(one.digest, digest)), None)

    def add(self, token: Token, now: dt.datetime) -> None:
        """Add a token, and forget old ones. Raises RefusedError if there are too many, or one for its principal."""
        open_ones = [one for one in self._tokens.values() if not one.used_at and time_of(one.expires_at) > now]
        if any(one.principal == token.principal for one in open_ones):
            raise RefusedError(
                HTTPStatus.CONFLICT,
                "token-exists",
                f"a token for {token.principal!r} waits to be used already; revoke it first",
            )
        if len(open_ones) >= OPEN_MAX:
            raise RefusedError(HTTPStatus.CONFLICT, "too-many", f"{OPEN_MAX} tokens wait to be used; revoke some")
        kept = {
            key: one
            for key, one in self._tokens.items()
            if one.unfinished_use or time_of(one.used_at or one.expires_at) + _KEPT > now
        }
        self._save({**kept, token.id: token})

    def update(self, token: Token) -> None:
        """Replace a token by another with its id."""
        self._save({**self._tokens, token.id: token})

    def finish(self, token: Token) -> None:
        """Record that the certificate of a token is in force."""
        self.update(replace(token, finished=True))

    def remove(self, token_id: str) -> None:
        """Remove a token."""
        self._save({key: one for key, one in self._tokens.items() if key != token_id})

    def remove_principal(self, principal: str) -> None:
        """Remove the tokens of a principal."""
        self._save({key: one for key, one in self._tokens.items() if one.principal != principal})

    def _save(self, tokens: dict[str, Token]) -> None:
        replace_durably(self._path, json_lines([asdict(token) for token in tokens.values()]), 0o600)
        self._tokens = tokens


def digest_of(secret: str) -> str:
    """Return the part of a token that is kept: SHA-256 in lower-case hex."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _read(path: Path) -> dict[str, Token]:
    remedy = "restore the file, or delete it: tokens that were not used are worthless then"
    try:
        return {token.id: token for token in read_json_lines(path, Token, remedy)}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(f"[enrolment] folder: {path} cannot be read: {error.strerror}") from error

"""JSON Web Tokens of an issuer that the configuration trusts: its keys, and the content of a valid token.

The header of a token chooses its key and nothing else. A key has one algorithm, from its own type. So no token can have a public key taken
for a secret, or a signature left out. Keys come from a file: the gateway makes no outgoing call.

Spec: RFC 7519, RFC 7517, RFC 8725 "JSON Web Token Best Current Practices"
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, final

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from maxam.errors import ConfigurationError, MaxamError
from maxam.web_config import JwtSettings

_KEYS_MAX: Final = 100
_RSA_BITS_MIN: Final = 2048
_P256_BITS: Final = 256
_SKEW_S: Final = 30  # that the issuer's clock may be ahead; `exp` is exact
EXPIRED: Final = "the token has expired"
_REMEDY: Final = "expected a JSON Web Key Set with public keys, as the issuer publishes it"


@final
class TokenError(MaxamError):
    """A token does not count. The text has the reason, and nothing of the token."""

    code = "token-invalid"


@final
@dataclass(frozen=True, slots=True)
class Token:
    """The content of a valid token.

    Attributes:
        principal: Name of the client.
        receive: Globs that it may receive. None if tokens do not name them.
        expires_s: Seconds since the epoch.
        key: Digest of the key that signed it.
    """

    principal: str
    receive: tuple[str, ...] | None
    expires_s: float
    key: str


@final
@dataclass(frozen=True, slots=True)
class _Key:
    """A public key of the issuer, with its digest and the `kid` in the header of its tokens."""

    jwk: jwt.PyJWK
    kid: str | None
    digest: str


@final
class TokenKeys:
    """The keys of a JWKS file that sign with an allowed algorithm. Immutable.

    Attributes:
        digests: Of all keys.
    """

    __slots__ = ("_keys", "digests")

    def __init__(self, text: bytes, settings: JwtSettings) -> None:
        """Read the text of the file. Raises ConfigurationError: it cannot be used."""
        where = f"[web.jwt] jwks {settings.jwks}"
        try:
            listed = json.loads(text)["keys"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigurationError(f"{where}: {error!r}; {_REMEDY}") from error
        if not isinstance(listed, list) or len(listed) > _KEYS_MAX:
            raise ConfigurationError(f"{where}: `keys` is no list of at most {_KEYS_MAX} keys; {_REMEDY}")
        found = [_read_key(where, at, one) for at, one in enumerate(listed)]
        self._keys: Final = tuple(
            [one for one in found if one is not None and one.jwk.algorithm_name in settings.algorithms]
        )
        if not self._keys:
            raise ConfigurationError(
                f"{where}: no key signs with {', '.join(settings.algorithms)} ([web.jwt] algorithms); {_REMEDY}"
            )
        self.digests: Final = frozenset([one.digest for one in self._keys])

    def find(self, kid: object, algorithm: object) -> _Key:
        """Return the key of a token; raises TokenError."""
        named = [one for one in self._keys if kid is None or one.kid == kid]
        fitting = [one for one in named if one.jwk.algorithm_name == algorithm]
        if len(fitting) != 1:
            raise TokenError(
                "the token is of no key in the JWKS file" if not named else "the token is not signed as its key signs"
            )
        return fitting[0]


def _read_key(where: str, at: int, listed: object) -> _Key | None:
    """Return a key of the set, None for one that is not for signatures of tokens; raises ConfigurationError."""
    if not isinstance(listed, dict):
        raise ConfigurationError(f"{where}: keys[{at}] is no object; {_REMEDY}")
    if listed.get("kty") == "oct" or "d" in listed:
        raise ConfigurationError(
            f"{where}: keys[{at}] is a secret, with which others could make tokens; replace it at the issuer. {_REMEDY}"
        )
    if listed.get("use", "sig") != "sig":
        return None
    try:
        jwk = jwt.PyJWK(listed)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
        return None  # of a kind that no algorithm here has: an issuer may have others too
    fits = {
        "RS256": isinstance(jwk.key, RSAPublicKey) and jwk.key.key_size >= _RSA_BITS_MIN,
        "ES256": isinstance(jwk.key, EllipticCurvePublicKey) and jwk.key.curve.key_size == _P256_BITS,
        "EdDSA": isinstance(jwk.key, Ed25519PublicKey),
    }
    if not fits.get(jwk.algorithm_name, False):
        return None
    kid = listed.get("kid")
    digest = sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()
    return _Key(jwk, kid if isinstance(kid, str) else None, digest)


def read_token(text: bytes, keys: TokenKeys, settings: JwtSettings, now_s: float) -> Token:
    """Verify a token and return its content.

    Args:
        text: The token.
        keys: The keys of the issuer.
        settings: Issuer, audience and names of claims.
        now_s: Seconds since the epoch.

    Raises:
        TokenError: It does not count.
    """
    try:
        header = jwt.get_unverified_header(text)
        key = keys.find(header.get("kid"), header.get("alg"))
        claims: Mapping[str, Any] = jwt.decode(
            text,
            key.jwk,
            algorithms=[key.jwk.algorithm_name],
            issuer=settings.issuer,
            audience=settings.audience,
            leeway=_SKEW_S,
            options={"require": ["exp", "iss", "aud", settings.principal_claim], "strict_aud": False},
        )
    except jwt.ExpiredSignatureError as error:
        raise TokenError(EXPIRED) from error
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise TokenError(f"the token is not valid here: {_shown(error)}") from error
    expires_s = float(claims["exp"])
    if not expires_s > now_s:
        raise TokenError(EXPIRED)
    principal = claims[settings.principal_claim]
    if not isinstance(principal, str):
        raise TokenError(f"the claim {settings.principal_claim} is no text")
    return Token(principal, _globs(claims, settings.receive_claim), expires_s, key.digest)


def _globs(claims: Mapping[str, Any], claim: str) -> tuple[str, ...] | None:
    if not claim:
        return None
    listed = claims.get(claim)
    if isinstance(listed, str):
        listed = listed.split()  # as scopes are written
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise TokenError(f"the claim {claim} is no list of globs")
    return tuple(listed)


def _shown(error: Exception) -> str:
    """Return the kind of an error of the library: its text may quote the token."""
    return {
        "InvalidAudienceError": "its audience is another",
        "InvalidIssuerError": "its issuer is another",
        "InvalidSignatureError": "its signature is wrong",
        "ImmatureSignatureError": "its time has not come",
        "MissingRequiredClaimError": "it lacks exp, iss, aud or the name of the principal",
    }.get(type(error).__name__, "it is malformed")

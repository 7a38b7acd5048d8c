"""Settings of the listener of web pages and of other clients without a certificate."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxam.link_config import link_address
from maxam.setting_values import MistakeError, bounded, shown

_ALGORITHMS: Final = ("ES256", "RS256", "EdDSA")
_ORIGIN: Final = re.compile(r"https?://([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """The issuer whose JSON Web Tokens are accepted, and what they allow."""

    issuer: str  # the claim `iss`
    audience: str  # must be in the claim `aud`
    jwks: Path  # JSON Web Key Set with the public keys of the issuer
    capability: str  # of the policy: its globs to receive are the most that a token can grant
    principal_claim: str = "sub"  # the claim with the name of the principal
    receive_claim: str = ""  # the claim with a list of globs to receive. Empty: all those of the capability
    algorithms: tuple[str, ...] = _ALGORITHMS  # that may sign tokens


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Where clients without a certificate connect: pages in browsers, over WebSocket. They show a ticket."""

    listen: str = "127.0.0.1:61616"  # host:port; port 0 picks a free port
    certificate: Path | None = None  # None takes that of [tls]. Browsers want one of an authority that they trust
    key: Path | None = None  # likewise
    origins: tuple[str, ...] = ()  # of the pages that may connect, such as https://floor.example. None: no browser can
    # Connections of this listener. They count towards `connections_max` of [limits] too
    connections_max: int = bounded(5000, 1, 1_000_000, "each takes some 60 KiB")

    connect_timeout_s: float = 15.0  # absolute, from the TLS handshake to CONNECT
    jwt: JwtSettings | None = None  # None: only tickets are accepted

    @property
    def files(self) -> dict[str, Path]:
        """Files that are read again when they change, by the name of their setting."""
        named = {"certificate": self.certificate, "key": self.key, "jwks": None if self.jwt is None else self.jwt.jwks}
        return {name: path for name, path in named.items() if path is not None}

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)


def check_web(web: WebSettings | None) -> None:
    """Raise MistakeError if the settings of the listener cannot be used."""
    if web is None:
        return
    if link_address(web.listen) is None and link_address(web.listen.removesuffix(":0") + ":1") is None:
        raise MistakeError(
            "web.listen", f"[web] listen: expected host:port, such as '0.0.0.0:61616', found {shown(web.listen)}"
        )
    if (web.certificate is None) != (web.key is None):
        there, missing = ("certificate", "key") if web.key is None else ("key", "certificate")
        raise MistakeError(
            f"web.{there}", f"[web] {there} needs [web] {missing} too; add it, or remove both to use those of [tls]"
        )
    for origin in web.origins:
        if not _ORIGIN.fullmatch(origin):
            raise MistakeError(
                "web.origins",
                "[web] origins: expected scheme, host in lower case and port if it is not the usual one, without a path,"
                f" such as 'https://floor.example', found {shown(origin)}",
            )
    for algorithm in () if web.jwt is None else web.jwt.algorithms:
        if algorithm not in _ALGORITHMS:
            raise MistakeError(
                "web.jwt.algorithms",
                f"[web.jwt] algorithms: expected some of {', '.join(_ALGORITHMS)}, found {shown(algorithm)}",
            )

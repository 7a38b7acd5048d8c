"""Credentials of a client without a certificate: a ticket, or a token of an issuer."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Final, final
from urllib.parse import urlsplit

from maxam.errors import ClientError

Secret = str | Callable[[], str | Awaitable[str]]

PORT: Final = 61616  # of the web listener
PATH: Final = "/stomp"


@final
class Credentials:
    """A ticket or a token.

    Attributes:
        login: `ticket` or `jwt`.
        renewable: True if each connection gets a new secret.
    """

    def __init__(self, login: str, secret: Secret) -> None:
        self.login: Final = login
        self.renewable: Final = not isinstance(secret, str)
        self._secret: Final = secret

    async def headers(self) -> tuple[str, str]:
        """Return `login` and `passcode` of the next CONNECT.

        Raises:
            ClientError: The program's function failed.
        """
        secret = self._secret
        if isinstance(secret, str):
            return self.login, secret
        try:
            given = secret()
            return self.login, await given if isawaitable(given) else str(given)
        except ClientError:
            raise
        except Exception as error:
            raise ClientError(f"no {self.login} for the next connection: {error!r}") from error


def credentials_of(ticket: Secret | None, token: Secret | None) -> Credentials | None:
    """Return the credentials among the arguments of `connect`, or None."""
    if ticket is not None and token is not None:
        raise ClientError("give either `ticket` or `token`, and not both")
    if ticket is not None:
        return Credentials("ticket", ticket)
    return None if token is None else Credentials("jwt", token)


def web_address(address: str) -> tuple[str, int | None, str] | None:
    """Return host, port and path of an address that begins with `wss://`, None for any other.

    Raises:
        ClientError: It is no such address.
    """
    if "://" not in address:
        return None
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ClientError(f"the address {address} is malformed: {error}") from error
    if parts.scheme != "wss" or not host or parts.query or parts.username:
        raise ClientError(
            f"the address {address} cannot be used; expected wss://<host>:<port>{PATH}, or a host and a port"
        )
    return host, port, parts.path.rstrip("/") or PATH

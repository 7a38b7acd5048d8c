"""Where and how to reach a gateway: over mutual TLS, or over the WebSocket of its web listener."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, final

from maxam.client import credentials
from maxam.client.addresses import Address
from maxam.client.credentials import Credentials, Secret, credentials_of, web_address
from maxam.client.transport import Stream, dial
from maxam.errors import ClientError

PORT: Final = 61614  # of STOMP over mutual TLS


@final
class Endpoint:
    """The addresses and credentials among the arguments of `connect`.

    Attributes:
        first: Host and port of the first address.
        credentials: The ticket or token. None with a certificate.
    """

    def __init__(
        self,
        address: str,
        port: int | None,
        certificate: str | Path | None,
        key: str | Path | None,
        ca: str | Path | None,
        check_name: str | None,
        ticket: Secret | None,
        token: Secret | None,
    ) -> None:
        self._certificate: Final = certificate
        self._key: Final = key
        self._ca: Final = ca
        self._check_name: Final = check_name
        self.credentials: Final[Credentials | None] = credentials_of(ticket, token)
        web = web_address(address)
        self._path: Final = None if web is None else web[2]
        if web is None:
            self.first: Address = (address, PORT if port is None else port)
            if self.credentials is not None:
                raise ClientError(
                    "tickets and tokens are for the web listener; give its address as wss://<host>:<port>"
                )
            if certificate is None or ca is None:
                raise ClientError("a connection over TLS needs `certificate`, `key` and `ca`")
        else:
            self.first = (web[0], port or web[1] or credentials.PORT)
            if self.credentials is None:
                raise ClientError("the web listener needs a `ticket` or a `token`")
            if certificate is not None:
                raise ClientError("the web listener takes no certificate; leave out `certificate` and `key`")

    def url(self, host: str, port: int) -> str:
        """Return the address of another host, as `connect` takes it."""
        return host if self._path is None else f"wss://{f'[{host}]' if ':' in host else host}:{port}{self._path}"

    def dial(self, host: str, port: int, timeout_s: float) -> AbstractAsyncContextManager[Stream]:
        """Return an open stream to host and port for the length of an `async with` block.

        Raises:
            ClientError: There is no library for WebSockets, or see `transport.dial`.
        """
        if self._path is None:
            return dial(
                host,
                port,
                certificate=self._certificate,
                key=self._key,
                ca=self._ca,
                check_name=self._check_name,
                timeout_s=timeout_s,
            )
        try:
            from maxam.client.web import dial_web  # noqa: PLC0415 - its library comes with an extra
        except ImportError as error:
            raise ClientError("wss:// needs wsproto, which is not here: pip install 'maxam[web]'") from error
        return dial_web(host, port, self._path, ca=self._ca, check_name=self._check_name, timeout_s=timeout_s)

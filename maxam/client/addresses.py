"""Several addresses of one gateway or its replicas: each attempt tries them in turn, beginning after the one that failed last."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Final, final

import anyio

from maxam.client.connection import Client
from maxam.client_tls import CertificateFileError
from maxam.errors import ClientError

SEARCH_S: Final = 1.0  # for one address to take a TCP connection

Address = tuple[str, int]  # host and port


@final
class Addresses:
    """Addresses, and the one to try first.

    Attributes:
        first: Index of the address that the next attempt begins with.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.first = 0
        self._addresses: Final = tuple(addresses)

    async def search(self) -> str:
        """Return an address, other than the one that the last attempt ended with, that takes TCP connections; empty for none."""
        for turn in range(len(self._addresses) - 1):
            host, port = self._addresses[(self.first + turn) % len(self._addresses)]
            with anyio.move_on_after(SEARCH_S), suppress(OSError):
                stream = await anyio.connect_tcp(host, port)
                await stream.aclose()
                return f"{host}:{port}"
        return ""

    @asynccontextmanager
    async def connect(self, dial: Callable[[str, int], AbstractAsyncContextManager[Client]]) -> AsyncIterator[Client]:
        """Connect to the first address at which that succeeds. The next attempt begins with the address after it.

        Raises:
            ClientError: No address can be connected to. The error is of the last one, with the texts of the others before it.
        """
        addresses, begin = self._addresses, self.first
        last = begin + len(addresses) - 1
        failed: list[str] = []
        async with AsyncExitStack() as stack:
            for turn in range(begin, last + 1):
                self.first = (turn + 1) % len(addresses)
                try:
                    client = await stack.enter_async_context(dial(*addresses[turn % len(addresses)]))
                except CertificateFileError:
                    raise
                except ClientError as error:
                    if turn == last:
                        error.args = ("; ".join([*failed, str(error)]),)
                        raise
                    failed.append(str(error))
                else:
                    client.address = addresses[turn % len(addresses)]
                    yield client
                    return

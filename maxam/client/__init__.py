"""The Python client of maxam, on asyncio or trio: `connect` opens one connection, `resuming` connects again after losses."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from maxam.client.addresses import Address, Addresses
from maxam.client.connection import HEART_BEAT_MS, Client, LastWill, converse
from maxam.client.errors import (
    ConnectionLostError,
    GatewayError,
    OutcomeUnknownError,
    PositionUnavailableError,
    TlsError,
    UnreachableError,
    VersionError,
)
from maxam.client.link import Posted
from maxam.client.progress import Kind
from maxam.client.resume import OnLoss, ResumingClient, ResumingSubscription, resume
from maxam.client.subscription import Message, Subscription
from maxam.client.transport import dial
from maxam.client_tls import CertificateFileError
from maxam.errors import ClientError
from maxam.stomp.answers import Receipt

__all__ = [
    "CertificateFileError",
    "Client",
    "ClientError",
    "ConnectionLostError",
    "GatewayError",
    "Kind",
    "LastWill",
    "Message",
    "OutcomeUnknownError",
    "PositionUnavailableError",
    "Posted",
    "Receipt",
    "ResumingClient",
    "ResumingSubscription",
    "Subscription",
    "TlsError",
    "UnreachableError",
    "VersionError",
    "connect",
    "resuming",
]


@asynccontextmanager
async def connect(
    address: str,
    port: int,
    *,
    certificate: str | Path,
    key: str | Path,
    ca: str | Path,
    check_name: str | None = None,
    client_id: str | None = None,
    host: str = "MAXVAPI",
    window: int | None = None,
    version: Literal["1.1", "1.2"] | None = None,
    heart_beat_ms: tuple[int, int] = HEART_BEAT_MS,
    timeout_s: float = 10.0,
    will: LastWill | None = None,
    others: Sequence[Address] = (),
) -> AsyncIterator[Client]:
    """Connect to a gateway for the length of an `async with` block, and leave gracefully at its end.

    If the block ends with an exception or is cancelled, the connection is cut instead. Requests under way have an
    unknown outcome, transient subscriptions end, and durable ones keep their un-acked topics.

    Args:
        address: Name or IP address of the gateway.
        port: Its STOMP port.
        certificate: PEM file of our certificate, with its chain.
        key: PEM file of its key, without a password.
        ca: PEM file of the authorities whose gateways we trust.
        check_name: The name that the gateway's certificate must carry. None accepts any name that `ca` signed, for site
            controllers whose names do not resolve.
        client_id: Identifier of the session, so that durable subscriptions can be resumed. None lets the gateway choose one.
        host: The virtual host.
        window: Maximum number of un-acked messages on this connection. None lets the gateway adapt it to us.
        version: The one STOMP version to speak. None selects the highest in common.
        heart_beat_ms: Intervals at which we can send and want to receive heart-beats, in ms. 0 disables a direction.
        timeout_s: For TCP and TLS together, and again for CONNECTED.
        will: SEND that the gateway makes if the connection ends without DISCONNECT, as when the block ends with an exception.
        others: Further addresses, host and port. They are tried in turn while no connection can be made.

    Raises:
        CertificateFileError: A file cannot be used.
        UnreachableError: No server answers at the address.
        TlsError: One side does not accept the other's certificate.
        VersionError: No version in common.
        GatewayError: The gateway refused the CONNECT.
        ConnectionLostError: It closed the connection without an ERROR.
    """

    @asynccontextmanager
    async def connect_one(host_there: str, port_there: int) -> AsyncIterator[Client]:
        async with (
            dial(
                host_there,
                port_there,
                certificate=certificate,
                key=key,
                ca=ca,
                check_name=check_name,
                timeout_s=timeout_s,
            ) as stream,
            converse(
                stream,
                client_id=client_id,
                host=host,
                window=window,
                version=version,
                heart_beat_ms=heart_beat_ms,
                timeout_s=timeout_s,
                will=will,
            ) as client,
        ):
            yield client

    async with Addresses(((address, port), *others)).connect(connect_one) as client:
        yield client


@asynccontextmanager
async def resuming(
    address: str,
    port: int,
    *,
    certificate: str | Path,
    key: str | Path,
    ca: str | Path,
    check_name: str | None = None,
    client_id: str | None = None,
    host: str = "MAXVAPI",
    window: int | None = None,
    on_loss: OnLoss | None = None,
    will: LastWill | None = None,
    others: Sequence[Address] = (),
) -> AsyncIterator[ResumingClient]:
    """Connect like `connect`, and again whenever the connection is lost, for the length of an `async with` block.

    It waits 0.25 s before the first attempt and up to 30 s between later ones, each shortened at random by up to half.
    The files are read again each time, so that renewed certificates are picked up. It gives up only when another
    connection takes over the session. `on_loss` gets the reason for each loss and the pause before the next attempt. With
    `others` each attempt tries all addresses in turn, and begins after the one that was lost. A connection whose heart-beats
    are late counts as lost once another address takes connections.

    Raises:
        ClientError: The first connection could not be made: see `connect`.
    """
    addresses = Addresses(((address, port), *others))

    def dial_again(session: str | None) -> AbstractAsyncContextManager[Client]:
        return addresses.connect(
            partial(
                connect,
                certificate=certificate,
                key=key,
                ca=ca,
                check_name=check_name,
                client_id=session,
                host=host,
                window=window,
                will=will,
            )
        )

    search = addresses.search if others else None
    async with resume(dial_again, client_id, on_loss, search) as client:
        yield client

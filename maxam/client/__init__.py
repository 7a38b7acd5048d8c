"""The Python client of maxam, on asyncio or trio: `connect` opens one connection, `resuming` connects again after losses."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from maxam.client.addresses import Address, Addresses
from maxam.client.connection import HEART_BEAT_MS, Client, LastWill, converse
from maxam.client.credentials import Secret
from maxam.client.endpoint import Endpoint
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
from maxam.client.resume import PAUSE_MAX_S, OnLoss, OnState, ResumingClient, ResumingSubscription, resume
from maxam.client.states import State, is_final
from maxam.client.subscription import Message, Subscription
from maxam.client.value_types import ValueTypeError
from maxam.client.values import Change, LiveValues
from maxam.client_tls import CertificateFileError
from maxam.errors import ClientError
from maxam.stomp.answers import Receipt

__all__ = [
    "CertificateFileError",
    "Change",
    "Client",
    "ClientError",
    "ConnectionLostError",
    "GatewayError",
    "Kind",
    "LastWill",
    "LiveValues",
    "Message",
    "OutcomeUnknownError",
    "PositionUnavailableError",
    "Posted",
    "Receipt",
    "ResumingClient",
    "ResumingSubscription",
    "State",
    "Subscription",
    "TlsError",
    "UnreachableError",
    "ValueTypeError",
    "VersionError",
    "connect",
    "resuming",
]


@asynccontextmanager
async def connect(
    address: str,
    port: int | None = None,
    *,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    ca: str | Path | None = None,
    ticket: Secret | None = None,
    token: Secret | None = None,
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
        address: Name or IP address of the gateway, or `wss://<host>:<port>` of its web listener.
        port: Its STOMP port. Without one: 61614, and 61616 for the web listener.
        certificate: PEM file of our certificate, with its chain. Not with `wss://`.
        key: PEM file of its key, without a password. None: the file of the certificate has it.
        ca: PEM file of the authorities whose gateways we trust. None, with `wss://` only: those of the system.
        ticket: For `wss://`: a ticket, or a function that returns a new one, which may be async.
        token: For `wss://`: a JSON Web Token, or a function that returns one, which may be async.
        check_name: The name that the gateway's certificate must carry. None accepts any name that `ca` signed, for site
            controllers whose names do not resolve. With `wss://` None means the host of the address.
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
    endpoint = Endpoint(address, port, certificate, key, ca, check_name, ticket, token)

    @asynccontextmanager
    async def connect_one(host_there: str, port_there: int) -> AsyncIterator[Client]:
        async with (
            endpoint.dial(host_there, port_there, timeout_s) as stream,
            converse(
                stream,
                client_id=client_id,
                host=host,
                window=window,
                version=version,
                heart_beat_ms=heart_beat_ms,
                timeout_s=timeout_s,
                will=will,
                credentials=endpoint.credentials,
            ) as client,
        ):
            yield client

    async with Addresses((endpoint.first, *others)).connect(connect_one) as client:
        yield client


@asynccontextmanager
async def resuming(
    address: str,
    port: int | None = None,
    *,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    ca: str | Path | None = None,
    ticket: Secret | None = None,
    token: Secret | None = None,
    check_name: str | None = None,
    client_id: str | None = None,
    host: str = "MAXVAPI",
    window: int | None = None,
    heart_beat_ms: tuple[int, int] = HEART_BEAT_MS,
    on_loss: OnLoss | None = None,
    on_state: OnState | None = None,
    will: LastWill | None = None,
    others: Sequence[Address] = (),
    pause_max_s: float = PAUSE_MAX_S,
) -> AsyncIterator[ResumingClient]:
    """Connect like `connect`, and again whenever the connection is lost, for the length of an `async with` block.

    It waits a random time before each attempt. The limit of that time is 0.25 s at first, and doubles with each attempt to
    `pause_max_s`, which is 0.25 or more. With `others` it is 0.4 s at most in the first 30 s after a loss. The files are read
    again each time, so that renewed certificates are picked up. It gives up only where no attempt can succeed: when another connection takes over the
    session, or when the gateway refuses what CONNECT asks for.
    `ResumingClient.state` shows this, and `on_state` gets each new state. `on_loss` gets the reason for each loss and the
    seconds until the next attempt. With `others` each attempt tries all addresses in turn, and begins after the one that was
    lost. A connection whose heart-beats are late counts as lost once another address takes connections.

    Raises:
        ClientError: The first connection could not be made: see `connect`.
    """
    endpoint = Endpoint(address, port, certificate, key, ca, check_name, ticket, token)
    if isinstance(ticket, str):
        raise ClientError("a ticket serves one connection: give a function that returns a new one, or use `connect`")
    addresses = Addresses((endpoint.first, *others))

    def dial_again(session: str | None) -> AbstractAsyncContextManager[Client]:
        return addresses.connect(
            lambda host_there, port_there: connect(
                endpoint.url(host_there, port_there),
                port_there,
                certificate=certificate,
                key=key,
                ca=ca,
                ticket=ticket,
                token=token,
                check_name=check_name,
                client_id=session,
                host=host,
                window=window,
                heart_beat_ms=heart_beat_ms,
                will=will,
            )
        )

    search = addresses.search if others else None
    final = partial(is_final, renewable=endpoint.credentials is None or endpoint.credentials.renewable)
    async with resume(dial_again, client_id, on_loss, search, on_state, final, pause_max_s) as client:
        yield client

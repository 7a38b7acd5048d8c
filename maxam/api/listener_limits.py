"""Limits of the peers of an HTTPS listener of the gateway."""

from dataclasses import dataclass
from typing import final

from maxam.config import LISTENER_PLACES


@final
@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Limits of the peers of one HTTPS listener.

    Attributes:
        connections_max: Connections after their handshake: operators, tabs and scrapers. As many more may be in their handshake.
        connections_per_principal_max: Connections that one principal may hold while others have no place.
        handshake_timeout_s: Duration of a handshake, absolute, so that a slow peer cannot extend it.
        handshake_bytes_max: Bytes received in a handshake: `[limits] tls_handshake_bytes_max`.
        handshakes_per_pass_max: TLS handshake steps (about 1 ms of CPU each) in one pass of the event loop.
        request_head_timeout_s: Time from the accept or the last response to the end of the next request's head.
        request_head_bytes_max: Bytes of a request's line and headers that may arrive before they are complete.
        linger_timeout_s: Time for a refused peer to read why: after a handshake, or a request that was not sent whole.
        write_timeout_s: Time after which a peer that takes nothing is closed.
        log_lines_per_minute_max: Log lines of one kind of event from one address.
        graceful_timeout_s: Time for requests under way when the listener stops.
        connections_per_address_max: Connections of one address, where unauthenticated clients are served. None disables the limit.
        oldest_makes_room: Whether the oldest connection makes room for its equals too, not only for those of a higher rank.
        name: Name of the listener in the log.
    """

    connections_max: int = LISTENER_PLACES // 2
    connections_per_principal_max: int = 16
    handshake_timeout_s: float = 10.0
    handshake_bytes_max: int = 16_384
    handshakes_per_pass_max: int = 2
    request_head_timeout_s: float = 15.0
    request_head_bytes_max: int = 16_384
    linger_timeout_s: float = 1.0
    write_timeout_s: float = 30.0
    log_lines_per_minute_max: int = 60
    graceful_timeout_s: float = 1.0
    connections_per_address_max: int | None = None
    oldest_makes_room: bool = False
    name: str = "admin"

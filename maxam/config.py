"""Settings as frozen, validated objects with units in their names."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit that protects the broker from one peer or one mistake.

    Each can be set under `[limits]` of the configuration file; the comment gives unit and reason.
    """

    # what one frame may hold
    frame_headers_max: int = 100  # header lines of one frame
    frame_header_line_bytes_max: int = 8192  # one header line without its end
    frame_headers_bytes_max: int = 65536  # command line and all header lines of one frame
    frame_body_bytes_max: int = 4_194_304  # body of one frame
    connect_frame_bytes_max: int = 8192  # a whole CONNECT: a stranger may not make us hold more
    destination_bytes_max: int = 512  # SEND destination and SUBSCRIBE glob, each
    subscription_id_bytes_max: int = 128  # SUBSCRIBE id
    glob_wildcards_max: int = 32  # `*`, `**`, `?` and sets of one glob, so that matching stays cheap
    # what one connection, session or principal may hold
    window: int = 100  # un-acked messages of one connection, whatever the link
    subscriptions_per_session_max: int = 1000
    sessions_per_principal_max: int = 1000
    takeovers_per_minute_max: int = 30  # of one session, so that two clients with one id cannot spin the broker
    receipts_pending_bytes_max: int = 262_144  # RECEIPTs waiting for one connection before its reading pauses
    connections_unauthenticated_max: int = 256  # before CONNECTED, apart from those behind it
    connections_max: int = 10_000
    # what the broker as a whole may hold
    topics_max: int = 5_000_000  # live topics: a runaway publisher stops here, not at the machine's memory
    # waits
    tls_handshake_timeout_s: float = 10.0  # absolute
    connect_timeout_s: float = 10.0  # absolute, from the handshake to CONNECTED
    write_timeout_s: float = 30.0  # a peer that takes nothing for so long is closed
    linger_timeout_s: float = 1.0  # after ERROR or the last RECEIPT, for the peer to read it
    session_expiry_s: float = 604_800.0  # a detached session with durable subscriptions
    acknowledgement_delay_s: float = 0.1  # an ACK without receipt is journalled within this time

"""The errors that the client raises. Each text states what happened, where, and what to do."""

from typing import Final, final

from maxam.errors import ClientError
from maxam.exit_codes import ExitCode


@final
class UnreachableError(ClientError):
    """No server answers at the address in time. Nothing was sent."""

    code = "gateway-unreachable"
    exit_code = ExitCode.UNREACHABLE


@final
class TlsError(ClientError):
    """One side does not accept the other's certificate or TLS version."""

    code = "tls-failed"
    exit_code = ExitCode.UNREACHABLE


class GatewayError(ClientError):
    """The gateway answered with an ERROR frame. The connection is over.

    Attributes:
        code: `stomp-error`, or the `code` header of the ERROR, such as `ticket-invalid`.
        message: Its `message` header.
        detail: Its body.
        receipt_id: The receipt id of the frame that it refuses, or None.
    """

    code = "stomp-error"

    def __init__(self, message: str, detail: str, receipt_id: bytes | None = None, code: str = "") -> None:
        super().__init__(f"the gateway ended the connection: {message}" + (f": {detail}" if detail else ""))
        if code:
            self.code = code  # type: ignore[misc] # narrower than that of the class
        self.message: Final = message
        self.detail: Final = detail
        self.receipt_id: Final = receipt_id


@final
class VersionError(GatewayError):
    """Client and gateway have no STOMP version in common."""

    code = "no-common-version"


@final
class ConnectionLostError(ClientError):
    """The connection is gone: closed, reset, silent for too long, or closed by ourselves.

    Raised by `send` it also means that nothing of the SEND was written.
    """

    code = "connection-lost"
    exit_code = ExitCode.UNREACHABLE


@final
class PositionUnavailableError(ClientError):
    """The gateway cannot resume a subscription from the position in `since`, and the client does not know the kept topics.

    The subscription has ended, and the connection goes on. Values that were kept with the position may lack deletes.
    """

    code = "position-unavailable"


@final
class OutcomeUnknownError(ClientError):
    """The connection went while a SEND had no RECEIPT yet. The SEND may have taken effect or not.

    `__cause__` is why the connection went. Whether to send again is the caller's decision: a repeated value may come after
    a newer one of another publisher.
    """

    code = "outcome-unknown"
    exit_code = ExitCode.UNREACHABLE

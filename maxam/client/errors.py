"""What the client raises; each text says what happened, where, and what to do."""

from typing import Final, final

from maxam.errors import ClientError


@final
class CertificateFileError(ClientError):
    """Say that a certificate, key or CA file is missing or is not what it should be."""


@final
class UnreachableError(ClientError):
    """Say that nobody answers at the address, or not in time. Nothing was sent."""


@final
class TlsError(ClientError):
    """Say that one side does not accept the other's certificate or TLS version."""


class GatewayError(ClientError):
    """Say what the gateway's ERROR frame says; the connection is over.

    Attributes:
        message: Its `message` header.
        detail: Its body.
        receipt_id: The receipt id of the frame that it refuses, or None.
    """

    def __init__(self, message: str, detail: str, receipt_id: bytes | None = None) -> None:
        super().__init__(f"the gateway ended the connection: {message}" + (f": {detail}" if detail else ""))
        self.message: Final = message
        self.detail: Final = detail
        self.receipt_id: Final = receipt_id


@final
class VersionError(GatewayError):
    """Say that client and gateway have no STOMP version in common."""


@final
class ConnectionLostError(ClientError):
    """Say that the connection is gone: closed, reset, silent for too long, or closed by ourselves.

    Raised by `send` it also says that nothing of the SEND was written.
    """


@final
class OutcomeUnknownError(ClientError):
    """Say that the connection went while a SEND had no RECEIPT yet: it may have taken effect or not.

    `__cause__` is why the connection went. Whether to send again is the caller's decision: a repeated value may come after
    a newer one of another publisher.
    """

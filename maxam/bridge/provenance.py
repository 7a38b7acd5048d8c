"""Headers of a forwarded value: where it comes from, and which gateways it has passed.

The first bridge on the way sets `origin-gateway`, `origin-publisher` and `origin-timestamp`. Each bridge appends the gateway that
it reads from to `via`. So the last name in `via` identifies the bridge that wrote a value.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

ORIGIN_GATEWAY: Final = "origin-gateway"
ORIGIN_PUBLISHER: Final = "origin-publisher"
ORIGIN_TIMESTAMP: Final = "origin-timestamp"
VIA: Final = "via"
_OURS: Final = frozenset((ORIGIN_GATEWAY, ORIGIN_PUBLISHER, ORIGIN_TIMESTAMP, VIA))
# Headers that a gateway adds to a MESSAGE, and those of the condition under which we send.
_LOCAL: Final = frozenset(
    (
        "ack",
        "conflated",
        "content-length",
        "destination",
        "kind",
        "message-id",
        "publisher",
        "schema",
        "source",
        "source-revision",
        "subscription",
        "timestamp",
    )
)
_NOT_COMPARED: Final = _LOCAL | _OURS
DIGEST_BYTES: Final = 16


def forwarded(headers: Mapping[str, str], sender: str, target: str) -> dict[str, str] | None:
    """Return the headers with which to send a message on, or None if it has been at the target already.

    Args:
        headers: Of a MESSAGE with metadata.
        sender: Name of the gateway that it comes from.
        target: Name of the gateway that it goes to.
    """
    via = headers.get(VIA, "")
    if headers.get(ORIGIN_GATEWAY) == target or (via and target in via.split(",")):
        return None
    found = {name: value for name, value in headers.items() if name not in _LOCAL}
    if headers.get("kind") == "delete":
        found.pop("reason", None)  # the gateway's, not the publisher's
    if ORIGIN_GATEWAY not in found:
        found[ORIGIN_GATEWAY] = sender
        found[ORIGIN_PUBLISHER] = headers.get("publisher", "")
        found[ORIGIN_TIMESTAMP] = headers.get("timestamp", "")
    found[VIA] = f"{via},{sender}" if via else sender
    return found


def written_by(headers: Mapping[str, str], sender: str) -> bool:
    """Return True if the bridge that reads from `sender` wrote a value with these headers."""
    return headers.get(VIA, "").rpartition(",")[2] == sender


def digest(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a digest of body and user headers. It is the same on both sides of a bridge."""
    found = hashlib.blake2b(body, digest_size=DIGEST_BYTES)
    for name in sorted(headers):
        if name not in _NOT_COMPARED:
            found.update(f"\n{name}\n{headers[name]}".encode())
    return found.digest()

"""The text of a position: the journal's incarnation, a revision, and a digest of what the principal may receive.

A position holds for one journal and for the same rights to receive. With other rights it cannot be used, because the client may lack older
values of topics that were granted since. So nothing need be remembered of policies that were in force before.
"""

from maxam.broker.policy import Rights
from maxam.stomp.events import parse_number


def position_text(incarnation: str, revision: int, rights: Rights) -> str:
    """Return a position; empty if the journal has no incarnation."""
    return f"{incarnation}.{revision}.{rights.receive_digest}" if incarnation else ""


def void_position(incarnation: str) -> str:
    """Return a position that can never be used; empty if the journal has no incarnation."""
    return f"{incarnation}.0.0" if incarnation else ""


def usable_revision(text: bytes, incarnation: str, rights: Rights, floor: int, head: int) -> int:
    """Return the revision of a position after which all changes are known, or -1.

    Args:
        text: The `since` header.
        incarnation: Of the journal; empty if it has none.
        rights: Of the principal now.
        floor: Revision of the newest delete that was forgotten.
        head: Revision of the newest change.
    """
    parts = text.split(b".")
    if not incarnation or len(parts) != 3 or parts[0] != incarnation.encode():
        return -1
    revision = parse_number(parts[1])
    if not floor <= revision <= head or parts[2] != rights.receive_digest.encode():
        return -1
    return revision

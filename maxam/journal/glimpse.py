"""Records that damaged bytes still show: names for a report, never a value.

A block whose check is wrong is not believed. When it is left out, an operator wants to know its topics and sessions. Mostly a
few bytes of it are wrong and all others right. A place counts as a record if it has a missing revision with a
possible time, followed by a topic or a session. By chance that happens once in some 10^15 bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from maxam.content import read_unsigned, skip_headers, skip_text
from maxam.journal.encoding import (
    KIND_ACKNOWLEDGEMENT,
    KIND_DELETE,
    KIND_OWED,
    KIND_SESSION_END,
    KIND_SUBSCRIPTION,
    KIND_UNSUBSCRIPTION,
    KIND_VALUE,
    KIND_WILL,
    KIND_WILL_END,
    SESSION_MIDDLE,
    WILL_MIDDLE,
    WILL_NULLS,
)
from maxam.journal.repair_plan import SessionLoss

_SESSION_KINDS: Final = {
    KIND_SUBSCRIPTION: "subscription",
    KIND_UNSUBSCRIPTION: "unsubscription",
    KIND_ACKNOWLEDGEMENT: "acknowledgement",
    KIND_OWED: "owed",
    KIND_SESSION_END: "session_end",
    KIND_WILL: "will",
    KIND_WILL_END: "will_end",
}
_EARLIEST_US: Final = 10**15  # 2001: when the time before is unknown
_SPAN_US: Final = 10**15  # 31 years: when the time after is unknown
_NAME_BYTES_MAX: Final = 4096  # longer than any destination, principal or client-id


@dataclass(frozen=True, slots=True)
class LostChange:
    """A value or delete that damaged bytes speak of."""

    revision: int
    destination: bytes
    deleted: bool


def glimpse(data: bytes, first: int, last: int, since_us: int, until_us: int) -> Iterator[LostChange | SessionLoss]:
    """Yield what can be made out.

    Args:
        data: The damaged bytes.
        first: First revision that is missing.
        last: The last one; below `first` when only records of sessions are.
        since_us: Time of the record before, 0 when unknown; microseconds since the epoch.
        until_us: Of the one behind, 0 when unknown.
    """
    low_us = since_us or _EARLIEST_US
    high_us = until_us or low_us + _SPAN_US
    place = 0
    while place < len(data):
        try:
            revision, at = read_unsigned(data, place)
            if first - 1 <= revision >> 1 <= last or revision >> 1 == first - 1:
                at_us, at = read_unsigned(data, at)
                if low_us <= at_us >> 1 <= high_us and not (revision | at_us) & 1:
                    found, behind = _record(data, at, revision >> 1)
                    if not isinstance(found, LostChange) or found.revision >= first:
                        yield found
                    place = behind
                    continue
        except (ValueError, IndexError):
            pass
        place += 1


def _record(data: bytes, place: int, revision: int) -> tuple[LostChange | SessionLoss, int]:
    """Return the record whose kind is at a place, and the place after the bytes that were read of it."""
    kind = data[place]
    if kind in {KIND_VALUE, KIND_DELETE}:
        destination, place = _name(data, place + 1)
        if not destination:
            raise ValueError("no destination")
        return LostChange(revision, destination, kind == KIND_DELETE), place
    if kind not in _SESSION_KINDS:
        raise ValueError("not a record")
    _, place = _name(data, place + 1)  # its glob
    principal, place = _name(data, place)
    middle = SESSION_MIDDLE
    if kind == KIND_WILL:
        _, place = _name(data, place)  # its fingerprint
        place = skip_text(data, skip_headers(data, place + len(WILL_MIDDLE)))
        middle = WILL_NULLS
    if not data.startswith(middle, place):
        raise ValueError("not a record of a session")
    client_id, place = _name(data, place + len(middle))
    subscription, place = _name(data, place)
    return SessionLoss(
        principal.decode(), client_id.decode(), subscription.decode(errors="replace"), _SESSION_KINDS[kind]
    ), place


def _name(data: bytes, place: int) -> tuple[bytes, int]:
    length, place = read_unsigned(data, place)
    end = place + (length >> 1)
    if length & 1 or length >> 1 > _NAME_BYTES_MAX or end > len(data):
        raise ValueError("not a name")
    name = data[place:end]
    name.decode()  # raises ValueError
    return name, end

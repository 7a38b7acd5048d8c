"""Records for the journal's tests, and how to compare them."""

from maxam.content import pack
from maxam.records import (
    UNJUDGED,
    AcknowledgementRecord,
    Change,
    Identity,
    OwedRecord,
    Record,
    RejectedSend,
    Rejection,
    SessionEndRecord,
    SubscriptionRecord,
    UnsubscriptionRecord,
    Validation,
    WillEndRecord,
    WillRecord,
)

SYNC = b"0123456789abcdef"
NOW_US = 1_790_000_000_000_000
ALICE = Identity("alice", "a1" * 32)
BOB = Identity("fingerprint:" + "b2" * 32, "b2" * 32)
DATUM = Validation("datum", "egm.EGMStatus_v1", "1.2", b"\x01\x02\x03\x04\x05\x06\x07\xff")
SINGLE_OBJECT = Validation("single-object", "egm.EGMStatus_v1", "1.0", b"12345678", 10)

MISMATCH = Rejection("schema-mismatch", "egm.EGMStatus_v1 1.0: from.venueId: cut short — byte 7")
EXPECTED = Validation("datum", "egm.EGMStatus_v1", "", b"", 0, 0)


def change(
    revision: int,
    destination: bytes = b"X/EGM.Q.1.EGMStatus",
    body: bytes = b"body",
    validation: Validation = DATUM,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    publisher: Identity = ALICE,
    deleted: bool = False,
    at_us: int | None = None,
) -> Change:
    """Make a change, a millisecond after the one before."""
    at_us = NOW_US + 1000 * revision if at_us is None else at_us
    return Change(revision, at_us, destination, deleted, publisher, validation, *pack(headers, body))


def rejected(revision: int, body: bytes = b"no such body", at_us: int | None = None) -> RejectedSend:
    """Make an invalid SEND, a millisecond after the one before."""
    return RejectedSend(
        revision,
        NOW_US + 1000 * revision if at_us is None else at_us,
        "X/EGM.Q.1.EGMStätus".encode(),
        not body,
        ALICE,
        EXPECTED,
        ((b"schema-version", b"1.0"),),
        body,
        "rejected-invalid",
        MISMATCH,
    )


def one_of_each() -> list[Record]:
    """Return records of every kind and shape, as they could follow each other from revision 1."""
    at = NOW_US + 1_000_000
    long_topic = b"X/EGM.Q." + b"9" * 500 + b".EGMStatus"
    return [
        SubscriptionRecord(NOW_US, "alice", "pump", b"s1", b"X/EGM.*", True),
        change(1),
        change(2, long_topic, b"", UNJUDGED, deleted=True),
        change(3, "X/Öre.1.Größe".encode(), b"x" * 5000, SINGLE_OBJECT, ((b"a", b"1"), ("ü".encode(), b""))),
        change(
            4, body=b"[[datum]]", validation=Validation("envelope", "egm.S_v1", "1.0", b"f" * 32, 2, 5), publisher=BOB
        ),
        change(5, validation=Validation("envelope", "", "", b"", tombstone=True), body=b"", deleted=True),
        change(6, body=b"\0" * 63, validation=Validation("none", "n" * 70, "1.0", b"", 100), at_us=at),
        AcknowledgementRecord(at, "alice", "pump", b"s1", ((b"X/EGM.Q.1.EGMStatus", 4), (long_topic, 2))),
        OwedRecord(at, "alice", "pump", b"s1", ((long_topic, 2),)),
        SubscriptionRecord(at, "bob", "b", b"s" * 128, b"**", False, 5),
        UnsubscriptionRecord(at, "alice", "pump", b"s1"),
        change(7, publisher=Identity("", ""), at_us=at + 1),
        SessionEndRecord(at + 2, "bob", "b"),
        AcknowledgementRecord(at + 2, "alice", "pump", b"s1", ()),
        WillRecord(at + 2, "pump", ALICE, b"X/EGM.Q.1.EGMStatus", *pack(((b"a", b"1"),), b"\x06bye"), 3600),
        WillRecord(at + 2, "", Identity("", ""), b"", *pack((), b""), 0),
        WillEndRecord(at + 2, "alice", "pump"),
        WillRecord(at + 2, "p" * 128, BOB, long_topic, *pack((), b"x" * 5000), 0),
    ]


def plain(value: object) -> object:
    """Return a record as nested tuples, without its caches, to compare and to show."""
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    slots = getattr(type(value), "__slots__", None) or getattr(type(value), "__mypyc_attrs__", None)  # if compiled
    if slots is None:
        return value
    fields = [(name, plain(getattr(value, name))) for name in sorted(slots) if name not in {"encoded", "wire"}]
    return (type(value).__name__, *fields)


def plain_all(records: list[Record]) -> list[object]:
    """Return records as nested tuples."""
    return [plain(record) for record in records]

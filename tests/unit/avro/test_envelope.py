"""GenericEnvelope: finding the items that matter to the broker."""

import io
import json

import fastavro
import pytest

from maxam.avro.envelope import ENVELOPE_TEXT, Envelope, EnvelopeKeys, Item, open_envelope
from maxam.avro.explainer import Fault

KEYS = EnvelopeKeys()


def envelope(*items: tuple[int, bytes]) -> bytes:
    """Write an envelope as fastavro does."""
    stream = io.BytesIO()
    schema = fastavro.parse_schema(json.loads(ENVELOPE_TEXT))
    fastavro.schemaless_writer(stream, schema, {"content": [{"key": key, "value": value} for key, value in items]})
    return stream.getvalue()


def opened(body: bytes, keys: EnvelopeKeys = KEYS) -> Envelope:
    """Open an envelope that is one."""
    found = open_envelope(body, keys)
    assert isinstance(found, Envelope)
    return found


def place(item: Item | None) -> tuple[int, int, int, int] | None:
    """Give index, key, offset and length of an item."""
    return None if item is None else (item.index, item.key, item.offset, item.length)


def test_golden_bytes() -> None:
    """An envelope with topic and body has these bytes and no others."""
    body = envelope((3, b"X/A"), (1, b"\x02\x04"))
    assert body == b"\x04" + b"\x06\x06X/A" + b"\x02\x04\x02\x04" + b"\x00"
    found = opened(body)
    assert (place(found.topic), place(found.body)) == ((0, 3, 3, 3), (1, 1, 8, 2))


def test_items_in_any_order_and_unknown_keys_in_any_number() -> None:
    """All four items are found wherever they stand, and other keys are skipped, repeated or not."""
    body = envelope((9, b"a"), (4, b""), (9, b"b"), (2, b"12345678"), (-5, b""), (3, b"X/A"), (1, b"datum"))
    found = opened(body)
    values = {
        item.index: body[item.offset : item.offset + item.length]
        for item in (found.tombstone, found.fingerprint, found.topic, found.body)
        if item is not None
    }
    assert values == {1: b"", 3: b"12345678", 5: b"X/A", 6: b"datum"}
    assert found.duplicate is None


def test_blocks_may_state_their_size() -> None:
    """Items in several blocks, some with their size in bytes, are the same envelope."""
    found = opened(b"\x01\x0a\x06\x06X/A" + b"\x01\x06\x02\x02\x07" + b"\x00")
    assert (place(found.topic), place(found.body)) == ((0, 3, 4, 3), (1, 1, 11, 1))


def test_an_empty_envelope_holds_nothing() -> None:
    """An envelope without items has neither body nor tombstone."""
    found = opened(b"\x00")
    assert (found.body, found.tombstone, found.fingerprint, found.topic) == (None, None, None, None)


def test_an_empty_body_item_is_a_body_item() -> None:
    """A body of no bytes is there: it is the value of a record without fields."""
    assert place(opened(envelope((1, b""))).body) == (0, 1, 3, 0)


@pytest.mark.parametrize("key", [1, 2, 3, 4])
def test_a_repeated_item_is_told(key: int) -> None:
    """Each of the four items may be there once only; the first that repeats another is reported."""
    assert place(opened(envelope((key, b""), (9, b""), (key, b"!"), (key, b""))).duplicate) == (2, key, 7, 1)


def test_keys_are_a_setting() -> None:
    """The numbers of the registry decide which item is which."""
    found = opened(envelope((1, b"a"), (70, b"b")), EnvelopeKeys(body=70, fingerprint=71, topic=1, tombstone=-3))
    assert (place(found.topic), place(found.body)) == ((0, 1, 3, 1), (1, 70, 7, 1))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x02\x02\x06ab", "content[0].value: expected bytes, found length 3 with 2 bytes left"),
        (b"\x00\x00", "expected the end of the value"),
        (b"\x03\x80", "content: expected array's block size"),
        (b"\xfe\xff\xff\xff\xff\x0f\x00", "content: expected array of at most one item per byte"),
    ],
)
def test_what_is_no_envelope_is_told_with_its_place(body: bytes, reason: str) -> None:
    """Bytes that are no envelope give the fault."""
    fault = open_envelope(body, KEYS)
    assert isinstance(fault, Fault)
    assert reason in str(fault)

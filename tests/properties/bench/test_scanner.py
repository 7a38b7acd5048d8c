"""The load tool's scanner sees what the decoder sees, however the bytes are cut."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.bench.errors import LoadError
from maxam.bench.histogram import Histogram
from maxam.bench.scanner import STAMP_BYTES, Counter, Receipts, Scanner, Tally, mark, stamp, topic_part
from maxam.config import Limits
from maxam.stomp.frames import SERVER_COMMANDS, Decoder

RUN = "a1b2c3"
MARK = mark(RUN)

_STAMPS = st.builds(
    lambda final, sequence, time_ns, topic: stamp(final, sequence, time_ns) + topic_part(topic),
    st.booleans(),
    st.integers(0, 999_999_999),
    st.integers(0, 10**15 - 1),
    st.integers(0, 9_999_999),
)
_BODIES = st.binary(max_size=60).filter(lambda body: MARK not in body)


def _message(stamp: bytes | None, ack: bytes | None, body: bytes, length: bool, end: bytes) -> bytes:
    if not length:
        body = body.replace(b"\0", b"-")
    lines = [b"MESSAGE", b"subscription:s0", b"message-id:7", b"destination:X/a.b"]
    lines += [b"ack:" + ack] if ack is not None else []
    lines += [MARK[1:] + stamp] if stamp is not None else []
    lines += [b"content-length:%d" % len(body)] if length else []
    return b"\n".join(lines) + b"\n\n" + body + b"\0" + end


_MESSAGES = st.builds(
    _message,
    st.none() | _STAMPS,
    st.none() | st.sampled_from([b"s0 7", b"T_1@@session", b"a\\cb"]),
    _BODIES,
    st.booleans(),
    st.sampled_from([b"", b"\n", b"\n\n", b"\r\n"]),
)
_OTHERS = st.sampled_from(
    [b"RECEIPT\nreceipt-id:set-up\n\n\0", b"ERROR\nmessage:no\ncontent-length:3\n\na\0b\0", b"\n"]
)
_STREAMS = st.lists(_MESSAGES | _OTHERS, max_size=12).map(b"".join)


def _cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    places = sorted({position % (len(data) + 1) for position in at})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@given(_STREAMS, st.lists(st.integers(0, 5000), max_size=20))
def test_the_scanner_agrees_with_the_decoder(data: bytes, at: list[int]) -> None:
    """In any pieces: the same MESSAGEs with the same stamps and acks in the same order, and the same other frames."""
    scanner = Scanner(MARK, acked=True)
    taken = [message for piece in _cut(data, at) for message in scanner.feed(piece)]
    frames = list(Decoder(Limits(), dict(SERVER_COMMANDS)).feed(data))
    messages = [frame for frame in frames if frame.command == b"MESSAGE"]
    name = b"bench"
    assert [found for found, _ in taken] == [frame.headers.get(name, b"")[len(RUN) :] for frame in messages]
    assert [ack.replace(b"\\c", b":") for _, ack in taken] == [frame.headers.get(b"ack", b"") for frame in messages]
    others = [(frame.command, frame.body) for frame in frames if frame.command != b"MESSAGE"]
    assert [(command, body) for command, _, body in scanner.others] == others
    assert scanner.partial == b""


@given(_STREAMS, st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=20))
def test_counting_and_reading_mix(data: bytes, cuts: list[tuple[int, bool]]) -> None:
    """However the pieces are cut, and whichever are read in full, each stamp counts once; those read are in order."""
    expected = [found for found, _ in Scanner(MARK, acked=True).feed(data) if found]
    counter = Counter(MARK)
    count = 0
    read: list[bytes] = []
    pieces = _cut(data, [position for position, _ in cuts])
    for number, piece in enumerate(pieces):
        if cuts and cuts[number % len(cuts)][1]:
            stamps = counter.read(piece)
            read += stamps
            count += len(stamps)
        else:
            count += counter.feed(piece)
    assert count == len(expected)
    remaining = iter(expected)
    assert all(found in remaining for found in read)
    assert all(len(found) == STAMP_BYTES for found in read)


@given(
    st.lists(st.sampled_from(["accepted", "rejected-schema", "rejected-unauthorised", ""]), max_size=30),
    st.lists(st.integers(0, 5000), max_size=10),
)
def test_receipts_add_up(dispositions: list[str], at: list[int]) -> None:
    """In any pieces: as many RECEIPTs as came, each accepted or counted under its disposition with a reason."""
    frames = []
    for disposition in dispositions:
        line = b"disposition:%b\ncontent-disposition:%b\n" % ((disposition.encode(),) * 2) if disposition else b""
        reason = b"reason:because\n" if disposition.startswith("rejected") else b""
        frames.append(b"RECEIPT\nreceipt-id:r\n" + line + reason + b"\n\0")
    receipts = Receipts()
    assert sum(receipts.feed(piece) for piece in _cut(b"".join(frames), at)) == len(dispositions)
    assert receipts.accepted == sum(disposition in ("", "accepted") for disposition in dispositions)
    assert {name.decode(): count for name, (count, _) in receipts.rejected.items()} == {
        name: dispositions.count(name) for name in set(dispositions) if name.startswith("rejected")
    }
    assert all(reason == b"because" for _, reason in receipts.rejected.values())


def test_an_error_ends_the_counting_of_receipts() -> None:
    """It is raised with the broker's text."""
    with pytest.raises(LoadError, match="too fast"):
        Receipts().feed(b"RECEIPT\nreceipt-id:r\n\n\0ERROR\nmessage:too fast\n\nslow down\0")


@pytest.mark.parametrize("head", [b"content-length:2\n\nabc\0", b"content-length:x\n\nabc\0"])
def test_a_wrong_length_is_an_error(head: bytes) -> None:
    """A body that is longer than its content-length, and a length that is no number."""
    with pytest.raises(LoadError):
        Scanner(MARK, acked=True).feed(b"MESSAGE\n" + head + b"MESSAGE\n")


def test_a_tally_sees_order_ages_and_last_values() -> None:
    """A value after a newer one is counted, a last value remembered, an age is the time less the stamp's."""
    tally, ages = Tally(), Histogram()
    values = [(False, 1, 100), (True, 2, 200), (False, 2, 150)]
    tally.note([stamp(final, n, time_ns) + topic_part(5) for final, n, time_ns in values], 300, ages)
    assert tally.disordered == 1
    assert tally.finals == {topic_part(5)}
    assert (ages.count, ages.quantile_ns(1.0), ages.quantile_ns(0.0)) == (3, 200, 100)

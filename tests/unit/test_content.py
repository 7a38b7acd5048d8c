"""The content of a value: packed as the journal has it, and unpacked to the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.content import (
    long,
    pack,
    read_long,
    read_text,
    skip_headers,
    skip_text,
    text,
    unpack_headers,
    unsigned,
)
from maxam.records import UNJUDGED, Change, Identity

headers_of_any = st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=200)), max_size=8).map(tuple)


def test_a_body_alone() -> None:
    """Without headers a content is an empty array, the body's length and the body."""
    assert pack((), b"abc") == (b"\0\x06abc", 2)
    assert pack((), b"") == (b"\0\0", 2)


def test_headers_and_body() -> None:
    """Headers are an Avro array in one part of records of two strings."""
    assert pack(((b"a", b"12"), (b"b", b"")), b"xyz") == (b"\x04\x02a\x0412\x02b\0\0\x06xyz", 11)


@given(headers_of_any, st.integers(0, 5000).map(bytes))
def test_what_was_packed_comes_back(headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> None:
    """A change shows the headers and the body of which its content was made, and the length of the body."""
    content, body_at = pack(headers, body)
    change = Change(1, 1, b"X/a", not body, Identity("a", ""), UNJUDGED, content, body_at)
    assert change.headers == headers
    assert change.body == body
    assert change.body_bytes == len(body)
    behind = skip_headers(content, 0)
    assert unpack_headers(content) == (headers, behind)
    assert read_text(content, behind) == (body, len(content))
    assert skip_text(content, behind) == len(content)
    assert text(body) == content[behind:]


@given(st.integers(0, 2**62))
def test_numbers(number: int) -> None:
    """A long is twice the number in base 128, and is read back with the place after it."""
    assert long(number) == unsigned(2 * number)
    assert read_long(b"\xff" + long(number) + b"\xff", 1) == (number, 1 + len(long(number)))


@pytest.mark.parametrize("read", [unpack_headers, skip_headers])
def test_headers_that_pack_does_not_make(read: object) -> None:
    """Headers that are cut, of a negative count or length, or in two parts are refused."""
    assert callable(read)
    content, body_at = pack(((b"name", b"value"), (b"n", b"v")), b"")
    for end in range(1, body_at - 1):
        with pytest.raises(IndexError):
            read(content[:end], 0)
    for garbled in (b"\1", b"\2\1a\0\0", b"\2\0\0\2", b"\x80" * 11):
        with pytest.raises(ValueError, match=r"negative|two parts|too long"):
            read(garbled, 0)

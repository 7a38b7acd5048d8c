"""The content of a value: user headers and body in one piece of bytes, in Avro's encoding, in memory as in the journal.

A broker keeps a million of them, and each SEND replaces one. One object takes half of the memory of a tuple of pairs and a body,
and the journal writes it as it is. Reading it costs one cache miss instead of five.

Numbers here are Avro's longs that are not negative: base 128, seven bits in each byte, the lowest first.
"""

from typing import Final

_LENGTHS: Final[list[bytes]] = []  # small longs, as nearly all lengths and counts are


def unsigned(number: int) -> bytes:
    """Return the base-128 bytes of a number that is not negative."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def long(number: int) -> bytes:
    """Return an Avro long that is not negative."""
    return _LENGTHS[number] if number < len(_LENGTHS) else unsigned(number << 1)


def text(value: bytes) -> bytes:
    """Return Avro bytes, or an Avro string of UTF-8."""
    return long(len(value)) + value


_LENGTHS.extend([unsigned(length << 1) for length in range(4096)])
_BODY_ALONE: Final = [b"\0" + length for length in _LENGTHS]  # no headers, length of body

EMPTY_CONTENT: Final = _BODY_ALONE[0]


def read_unsigned(data: bytes, place: int) -> tuple[int, int]:
    """Return a base-128 number and the place after it.

    Raises:
        IndexError: The data ends within it.
        ValueError: It is longer than 10 bytes.
    """
    byte = data[place]
    number = byte & 127
    shift = 7
    place += 1
    while byte > 127:
        if shift > 63:
            raise ValueError("number too long")
        byte = data[place]
        number |= (byte & 127) << shift
        shift += 7
        place += 1
    return number, place


def read_long(data: bytes, place: int) -> tuple[int, int]:
    """Return an Avro long and the place after it.

    Raises:
        IndexError: The data ends within it.
        ValueError: It is negative, or longer than 10 bytes.
    """
    number, place = read_unsigned(data, place)
    if number & 1:
        raise ValueError("negative number")
    return number >> 1, place


def read_text(data: bytes, place: int) -> tuple[bytes, int]:
    """Return Avro bytes and the place after them. Errors are those of `read_long`."""
    length, place = read_long(data, place)
    end = place + length
    if end > len(data):
        raise IndexError
    return data[place:end], end


def pack(headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> tuple[bytes, int]:
    """Return the content of a value, and the offset of the body in it: an Avro array of headers, then the body as Avro bytes."""
    length = len(body)
    if not headers:
        head = _BODY_ALONE[length] if length < len(_BODY_ALONE) else b"\0" + unsigned(length << 1)
        return head + body, len(head)
    parts = [long(len(headers))]
    for name, value in headers:  # four appends take half as long as adding a tuple
        parts.append(long(len(name)))
        parts.append(name)
        parts.append(long(len(value)))
        parts.append(value)
    parts += (b"\0", long(length), body)
    content = b"".join(parts)
    return content, len(content) - length


def pack_named(names: list[bytes], values: list[bytes], body: bytes) -> tuple[bytes, int]:
    """Return what `pack` does. Each of `names` is the `text` of a name; there is at least one header."""
    parts = [long(len(names))]
    for name, value in zip(names, values):  # noqa: B905  # mypyc knows only this form
        parts.append(name)
        parts.append(long(len(value)))
        parts.append(value)
    length = len(body)
    parts.append(b"\0")
    parts.append(long(length))
    parts.append(body)
    content = b"".join(parts)
    return content, len(content) - length


def unpack_headers(data: bytes, place: int = 0) -> tuple[tuple[tuple[bytes, bytes], ...], int]:
    """Return the headers of a content that begins at a place, and the place after them.

    Raises:
        IndexError: The data ends within them.
        ValueError: `pack` does not write such headers.
    """
    count, place = read_long(data, place)
    if not count:
        return (), place
    headers: list[tuple[bytes, bytes]] = []
    for _ in range(count):
        name, place = read_text(data, place)
        value, place = read_text(data, place)
        headers.append((name, value))
    if data[place]:
        raise ValueError("headers in two parts")
    return tuple(headers), place + 1


def skip_text(data: bytes, place: int) -> int:
    """Return the place after a string."""
    length = data[place]
    if length > 127:
        length, place = read_unsigned(data, place)
        return place + (length >> 1)
    return place + 1 + (length >> 1)


def skip_headers(data: bytes, place: int) -> int:
    """Return the place after headers, without reading them.

    Raises:
        IndexError: The data ends within them.
        ValueError: `pack` does not write such headers.
    """
    count, place = read_long(data, place)
    if not count:
        return place
    for _ in range(2 * count):
        length, place = read_long(data, place)
        place += length
    if data[place]:
        raise ValueError("headers in two parts")
    return place + 1

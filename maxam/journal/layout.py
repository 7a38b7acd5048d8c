"""The layout of a record, read without making objects: where the fields of a change begin and end.

`decoding` makes records of these places, `splice` copies bytes between them, and `newest` only skips them. `encoding` writes the
layout; docs/develop/journal-format.md describes it byte by byte.
"""

from typing import Final, final

from maxam.content import read_text, read_unsigned, skip_headers, skip_text
from maxam.journal.encoding import (
    CHECK_BYTES,
    KIND_DELETE,
    KIND_SEQUENCES,
    KIND_VALUE,
    KIND_WILL,
    LOW,
    NULLS_OF_CHANGE,
    SESSION_MIDDLE,
    WILL_MIDDLE,
    WILL_NULLS,
)

_NO_STAMP: Final = b"\xff" * 10  # in no record: a number ends within ten bytes, with one below 0x80


@final
class RecordCursor:
    """Goes over the records of one checked block, a stretch of fields at a time.

    Call `next_record` for each record. For a change call `destination` then, move `place` from its publisher to its value_length,
    and call `value`. For any other record move `place` to its end.

    Every method raises ValueError or IndexError if the bytes are not what an `Encoder` writes.

    Attributes:
        place: Where the next field begins.
        start: Where the record begins.
        revision: Of the last change read, or of a record of sequences after it.
        at_us: accepted_at of the record; microseconds since the epoch.
        kind: Of the record, as it is written.
        value_length: Bytes of the datum of the change.
        headers: Where its headers begin.
        body: Where the bytes of its body begin.
        body_end: Where they end.
        check: Where the field `check` begins, the last one of the record.
    """

    __slots__ = (
        "_data",
        "_gapless",
        "_stamp",
        "at_us",
        "body",
        "body_end",
        "check",
        "headers",
        "kind",
        "place",
        "revision",
        "start",
        "value_length",
    )

    def __init__(self, data: bytes, revision: int, gapless: bool = True) -> None:
        """Begin with the first record of a block.

        Args:
            data: The block without count, size and sync marker.
            revision: Of the change before.
            gapless: False for a snapshot, see `Encoder`.
        """
        self._data: Final = data
        self._gapless: Final = gapless
        self._stamp = _NO_STAMP  # high part of the revision, and accepted_at, of the record before
        self.revision = revision
        self.place = self.start = 0
        self.at_us = 0
        self.kind = 0
        self.value_length = self.headers = self.body = self.body_end = self.check = 0

    def next_record(self) -> bool:
        """Read revision, time and kind of the next record. Return True if it is a change."""
        data = self._data
        place = self.start = self.place
        last = self.revision
        revision = last + 1
        stamp = self._stamp
        low = (revision << 1) & 16383
        end = place + 2 + len(stamp)
        if low and data[place : place + 2] == LOW[low] and data[place + 2 : end] == stamp:
            place = end  # the next change, received with the one before
        else:
            end = place + 2
            number, place = read_unsigned(data, place)
            high_end = place
            at, place = read_unsigned(data, place)
            if (number | at) & 1:
                raise ValueError("negative number")
            revision = number >> 1
            self.at_us = at >> 1
            # a revision of less than three bytes has no high part: no stamp that could match
            self._stamp = data[end:place] if high_end > end else _NO_STAMP
        kind = self.kind = data[place]
        self.place = place + 1
        if kind == KIND_VALUE or kind == KIND_DELETE:  # noqa: PLR1714, SIM109 - twice as fast as a set
            if revision != last + 1 and (self._gapless or revision <= last):
                raise ValueError(f"revision {revision} after {last}")
            self.revision = revision
            return True
        if revision != last:
            if self._gapless or kind != KIND_SEQUENCES or revision < last:
                raise ValueError(f"revision {revision} of a session record after change {last}")
            self.revision = revision
        return False

    def text(self) -> bytes:
        """Return the string at `place`, and move to the next field."""
        found, self.place = read_text(self._data, self.place)
        return found

    def destination(self) -> bytes:
        """Return the destination of a change, and move to its publisher."""
        data = self._data
        place = self.place
        length = data[place]
        place += 1
        if length > 127:
            length, place = read_unsigned(data, place - 1)
        end = self.place = place + (length >> 1)
        return data[place:end]

    def value(self) -> None:
        """Read the places from value_length to the end of a change, and move there."""
        self.content()
        data = self._data
        place = self.check = self.body_end + len(NULLS_OF_CHANGE)
        if data[self.body_end : place] != NULLS_OF_CHANGE:
            raise ValueError("not a change")
        self.end_at(place)

    def content(self) -> None:
        """Read the places from value_length to the end of the body, and move there."""
        data = self._data
        place = self.place
        length = data[place]
        place += 1
        if length > 127:
            if data[place] < 128:  # most lengths have one byte or two
                length += (data[place] << 7) - 128
                place += 1
            else:
                length, place = read_unsigned(data, place - 1)
        self.value_length = length >> 1
        self.headers = place
        place = skip_headers(data, place) if data[place] else place + 1
        length = data[place]
        place += 1
        if length > 127:
            if data[place] < 128:
                length += (data[place] << 7) - 128
                place += 1
            else:
                length, place = read_unsigned(data, place - 1)
        if length & 1:
            raise ValueError("negative number")  # it would be written again as it is
        self.body = place
        self.place = self.body_end = place + (length >> 1)

    def end_at(self, place: int) -> None:
        """Move to the end of the record, whose `check` is at a place. That of the last record was examined with the block."""
        self.place = place + 1 + CHECK_BYTES if self._data[place] else place + 1

    def skip_other(self) -> None:
        """Move to the end of a record that is no change."""
        data = self._data
        self.place = skip_text(data, skip_text(data, self.place))
        self.middle()
        place = skip_text(data, skip_text(data, self.place)) + 1
        place = read_unsigned(data, place + 1)[1] if data[place] else place + 1
        count, place = read_unsigned(data, place)
        if count & 1:
            raise ValueError("negative number")
        if count:
            for _ in range(count >> 1):
                place = read_unsigned(data, skip_text(data, place))[1]
            if data[place]:
                raise ValueError("positions in two parts")
            place += 1
        self.end_at(place)

    def middle(self) -> bytes:
        """Move from the fingerprint of a record that is no change to its client_id. Return the fingerprint, which only a will has.

        Of a will, `headers`, `body` and `body_end` are read.
        """
        data = self._data
        if self.kind != KIND_WILL:
            if not data.startswith(SESSION_MIDDLE, self.place):
                raise ValueError("not a session record")
            self.place += len(SESSION_MIDDLE)
            return b""
        fingerprint = self.text()
        if not data.startswith(WILL_MIDDLE, self.place):
            raise ValueError("not a will")
        self.place += len(WILL_MIDDLE) - 1
        self.content()
        if not data.startswith(WILL_NULLS, self.place):
            raise ValueError("not a will")
        self.place += len(WILL_NULLS)
        return fingerprint

    def require_end(self) -> None:
        """Raise ValueError if bytes follow the last record."""
        if self.place != len(self._data):
            raise ValueError("bytes follow the last record")


def skip_identity(data: bytes, place: int) -> int:
    """Return the place after publisher and fingerprint."""
    length = data[place]
    end = place + 1 + (length >> 1)
    if length < 128 and data[end] == 0x80 and data[end + 1] == 1:
        return end + 66  # a fingerprint of 64 characters
    return skip_text(data, skip_text(data, place))


def skip_validation(data: bytes, place: int) -> int:
    """Return the place after value_offset, for the place of encoding."""
    # mostly five short fields: four strings and an offset of one byte
    one = data[place]
    end = place + 1 + (one >> 1)
    two = data[end] if one < 128 else 128
    end += 1 + (two >> 1)
    three = data[end] if two < 128 else 128
    end += 1 + (three >> 1)
    four = data[end] if three < 128 else 128
    end += 1 + (four >> 1)
    if four < 128 and data[end] < 128:
        return end + 1
    for _ in range(4):  # encoding, schema, schema_version, schema_fingerprint
        place = skip_text(data, place)
    return read_unsigned(data, place)[1]


def first_record(data: bytes) -> tuple[int, int, int]:
    """Return revision of the first change in or after a block, and time and kind of the block's first record. 0, 0, 0 if garbled."""
    try:
        revision, place = read_unsigned(data, 0)
        at_us, place = read_unsigned(data, place)
        kind = data[place]
    except (ValueError, IndexError):
        return 0, 0, 0
    return (revision >> 1) + (kind not in {KIND_VALUE, KIND_DELETE}), at_us >> 1, kind

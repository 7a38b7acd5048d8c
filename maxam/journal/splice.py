"""Records to rows of one schema each, by copying: blocks of the journal in, rows with typed values out.

A row is Avro: what a change begins with (revision, accepted_at, kind, destination, publisher) is the same bytes there as in the
journal, then come the string `schema_version` and the union `[null, <the type>]`, whose index stands before the stored datum.
Nothing is decoded. What no schema is known for becomes another row: behind the publisher the strings `encoding`, `schema` and
`schema_version`, the bytes `schema_fingerprint`, and the union `[null, bytes]` with the body as it was sent.
"""

from collections.abc import Callable
from typing import Final, final

from maxam.content import behind_headers, behind_text, read_unsigned, text
from maxam.journal.decoding import NO_STAMP
from maxam.journal.encoding import CHANGE_TAIL, CHECK_BYTES, KIND_DELETE, KIND_VALUE, LOW, SESSION_MIDDLE

_NULLS_OF_CHANGE: Final = CHANGE_TAIL[:-1]  # all but `check`
_NULL: Final = b"\0"  # index of null in the union of a row's value
_VALUE: Final = b"\2"
_SHARED_MAX: Final = 65_536  # destinations, and kinds of changes, that are remembered: more cost memory only


@final
class Rows:
    """Rows of one kind that were spliced and not yet taken.

    Attributes:
        typed: The value is a datum, not a body as it was sent.
        convert: Makes the datum another, or says with None that it cannot be read; None when it is copied as it is.
    """

    __slots__ = ("_parts", "convert", "typed")

    def __init__(self, typed: bool, convert: Callable[[bytes], bytes | None] | None = None) -> None:
        self.typed: Final = typed
        self.convert: Final = convert
        self._parts: Final[list[bytes]] = []

    def parts(self) -> list[bytes]:
        """Give the list that rows are put on, three parts each; it stays the same."""
        return self._parts

    def count(self) -> int:
        """Count the rows there are."""
        return len(self._parts) // 3

    def take(self) -> list[bytes]:
        """Return the parts of the rows there are, in order, and forget them."""
        taken = self._parts.copy()
        self._parts.clear()
        return taken


@final
class _Shared:
    """What changes of one publisher, schema and place of the datum have in common.

    Attributes:
        told: Their bytes from publisher to value_offset.
        length: Of `told`.
        publisher_length: The bytes of `told` that a row has too.
        middle: What a row has between publisher and datum.
        offset: The datum's place in the body.
        rows: Where they go; None for nowhere.
        parts: Those of `rows`.
        plain: The datum is copied as it is.
    """

    __slots__ = ("length", "middle", "offset", "parts", "plain", "publisher_length", "rows", "told")

    def __init__(self, told: bytes, publisher_length: int, middle: bytes, offset: int, rows: Rows | None) -> None:
        self.told: Final = told
        self.length: Final = len(told)
        self.publisher_length: Final = publisher_length
        self.middle: Final = middle
        self.offset: Final = offset
        self.rows: Final = rows
        self.parts: Final[list[bytes] | None] = rows.parts() if rows is not None else None
        self.plain: Final = rows is not None and rows.typed and rows.convert is None


@final
class Splicer:
    """Splices the changes of one stretch of the journal.

    Attributes:
        revision: Of the last change read; while `choose` runs, of the one that it is asked for.
        unreadable: Revisions whose datum `Rows.convert` could not read; they are among the untyped rows.
    """

    __slots__ = (
        "_after",
        "_choose",
        "_deleted",
        "_destinations",
        "_until",
        "_untyped",
        "_values",
        "revision",
        "unreadable",
    )

    def __init__(
        self,
        revision: int,
        after: int,
        until: int,
        choose: Callable[[str, str, bytes, bool], Rows | None],
        untyped: Callable[[str], Rows | None],
    ) -> None:
        """Start behind a change.

        Args:
            revision: Of the change before.
            after: Changes up to this revision are read and passed over.
            until: And those above this one.
            choose: Tells where changes go by schema, minor, fingerprint, and whether they are deletions; None for nowhere.
                Asked once for each publisher and judgement.
            untyped: Tells where a change of a schema goes that cannot be read.
        """
        self.revision = revision
        self.unreadable: Final[list[int]] = []
        self._after: Final = after
        self._until: Final = until
        self._choose: Final = choose
        self._untyped: Final = untyped
        self._destinations: Final[dict[bytes, _Shared]] = {}
        self._values: Final[dict[bytes, _Shared]] = {}
        self._deleted: Final[dict[bytes, _Shared]] = {}

    def splice(self, data: bytes, count: int) -> None:  # noqa: C901, PLR0912, PLR0915 - one loop without calls: it runs for all that was ever accepted
        """Put the changes of a checked block on the rows that they belong to.

        Args:
            data: The block without count, size and sync marker.
            count: Of records in it.

        Raises:
            ValueError: It is not what the journal writes, or revisions do not follow. Rows of it may be there.
            IndexError: The same.
        """
        destinations = self._destinations
        revision = self.revision
        after = self._after
        until = self._until
        place = 0
        stamp = NO_STAMP  # high part of the revision, and accepted_at, of the record before
        for _ in range(count):
            start = place
            low = ((revision + 1) << 1) & 16383
            end = place + 2 + len(stamp)
            if low and data[place : place + 2] == LOW[low] and data[place + 2 : end] == stamp:
                number = revision + 1
                place = end
            else:
                end = place + 2
                number, place = read_unsigned(data, place)
                number >>= 1
                high_end = place
                place = read_unsigned(data, place)[1]
                # a revision of less than three bytes has no high part: no stamp that could match
                stamp = data[end:place] if high_end > end else NO_STAMP
            kind = data[place]
            if kind != KIND_VALUE and kind != KIND_DELETE:  # noqa: PLR1714 - twice as fast as a set
                place = behind_session_record(data, place)
                continue
            if number != revision + 1:
                raise ValueError(f"revision {number} after {revision}")
            revision = number

            length = data[place + 1]
            place += 2
            if length > 127:
                length, place = read_unsigned(data, place - 1)
            end = place + (length >> 1)
            destination = data[place:end]
            place = end
            shared = destinations.get(destination)
            if shared is None or kind == KIND_DELETE or not data.startswith(shared.told, place):
                self.revision = revision  # for whoever is asked
                shared = self._shared(data, place, kind == KIND_DELETE)
                if kind == KIND_VALUE:
                    if len(destinations) >= _SHARED_MAX:
                        destinations.clear()
                    destinations[destination] = shared
            publisher_end = place + shared.publisher_length
            place += shared.length

            value_length = data[place]
            place += 1
            if value_length > 127:
                if data[place] < 128:
                    value_length += (data[place] << 7) - 128
                    place += 1
                else:
                    value_length, place = read_unsigned(data, place - 1)
            if data[place]:
                place = behind_headers(data, place)
            else:
                place += 1
            length = data[place]
            place += 1
            if length > 127:
                if data[place] < 128:
                    length += (data[place] << 7) - 128
                    place += 1
                else:
                    length, place = read_unsigned(data, place - 1)
            body = place
            end = place + (length >> 1)
            place = end + 8
            if data[end:place] != _NULLS_OF_CHANGE:
                raise ValueError("not a change")
            # the check of the last record was examined with the block
            place += 1 + CHECK_BYTES if data[place] else 1

            parts = shared.parts
            if parts is None or revision <= after or revision > until:
                continue
            if kind == KIND_DELETE:
                parts += (data[start:publisher_end], shared.middle, b"")
            elif shared.plain:
                body += shared.offset
                value_end = body + (value_length >> 1)
                if value_end > end:
                    raise ValueError("the datum ends behind the body")
                parts += (data[start:publisher_end], shared.middle, data[body:value_end])
            else:
                body_end = end
                self._splice_unlike(data, start, publisher_end, body, value_length >> 1, body_end, shared, revision)
        if place != len(data):
            raise ValueError("bytes follow the last record")
        self.revision = revision

    def _splice_unlike(
        self,
        data: bytes,
        start: int,
        publisher_end: int,
        body: int,
        length: int,
        end: int,
        shared: _Shared,
        revision: int,
    ) -> None:
        """Put one change, whose datum is not copied as it is."""
        rows = shared.rows
        if rows is None:
            return
        if rows.typed and rows.convert is not None:
            place = body + shared.offset
            if place + length > end:
                raise ValueError("the datum ends behind the body")
            datum = rows.convert(data[place : place + length])
            if datum is not None:
                rows.parts().extend((data[start:publisher_end], shared.middle, datum))
                return
            self.unreadable.append(revision)
            schema = _fields(shared.told)[3]
            instead = self._untyped(schema.decode())
            if instead is None:
                return
            middle = _untyped_middle(shared.told, shared.publisher_length)
            instead.parts().extend((data[start:publisher_end], middle, text(data[body:end])))
            return
        rows.parts().extend((data[start:publisher_end], shared.middle, text(data[body:end])))

    def _shared(self, data: bytes, place: int, deleted: bool) -> _Shared:
        """Find or make what the change has in common with others whose publisher stands at a place."""
        known = self._deleted if deleted else self._values
        end = place
        for _ in range(6):  # publisher, fingerprint, encoding, schema, schema_version, schema_fingerprint
            end = behind_text(data, end)
        end = read_unsigned(data, end)[1]
        if end > len(data):
            raise IndexError
        told = data[place:end]
        shared = known.get(told)
        if shared is None:
            if len(known) >= _SHARED_MAX:
                known.clear()
            shared = known[told] = self._make(told, deleted)
        return shared

    def _make(self, told: bytes, deleted: bool) -> _Shared:
        fields = _fields(told)
        publisher_length = behind_text(told, 0)
        offset = read_unsigned(told, len(told) - len(fields[6]))[0] >> 1
        rows = self._choose(fields[3].decode(), fields[4].decode(), fields[5], deleted)
        if rows is not None and not rows.typed:
            middle = _untyped_middle(told, publisher_length)
            if deleted:
                middle = middle[:-1] + _NULL
            return _Shared(told, publisher_length, middle, offset, rows)
        middle = text(fields[4]) + (_NULL if deleted else _VALUE)
        return _Shared(told, publisher_length, middle, offset, rows)


def _untyped_middle(told: bytes, publisher_length: int) -> bytes:
    """Give what stands between publisher and body in an untyped row: encoding to schema_fingerprint as they are."""
    start = behind_text(told, publisher_length)
    end = start
    for _ in range(4):
        end = behind_text(told, end)
    return told[start:end] + _VALUE


def _fields(told: bytes) -> list[bytes]:
    """Cut publisher to schema_fingerprint, without their lengths, and the bytes of value_offset."""
    fields: list[bytes] = []
    place = 0
    for _ in range(6):
        length, place = read_unsigned(told, place)
        end = place + (length >> 1)
        fields.append(told[place:end])
        place = end
    fields.append(told[place:])
    return fields


def behind_session_record(data: bytes, place: int) -> int:
    """Return the place behind the record whose kind is at a place."""
    place = behind_text(data, behind_text(data, place + 1))
    if not data.startswith(SESSION_MIDDLE, place):
        raise ValueError("not a session record")
    place = behind_text(data, behind_text(data, place + len(SESSION_MIDDLE))) + 1
    place = read_unsigned(data, place + 1)[1] if data[place] else place + 1
    count, place = read_unsigned(data, place)
    if count & 1:
        raise ValueError("negative number")
    if count:
        for _ in range(count >> 1):
            place = read_unsigned(data, behind_text(data, place))[1]
        if data[place]:
            raise ValueError("positions in two parts")
        place += 1
    return place + 1 + CHECK_BYTES if data[place] else place + 1

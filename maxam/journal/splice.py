"""Records to rows of one schema each, by copying: blocks of the journal in, rows with typed values out.

A row is Avro. It begins with the same bytes as the change in the journal: revision, accepted_at, kind, destination, publisher.
Then come the string `schema_version` and the union `[null, <the type>]`, whose index stands before the stored datum. Nothing is
decoded. A change without a known schema becomes another row. After the publisher it has the strings `encoding`, `schema` and
`schema_version`, the bytes `schema_fingerprint`, and the union `[null, bytes]` with the body as it was sent.
"""

from collections.abc import Callable
from typing import Final, final

from maxam.content import read_unsigned, skip_text, text
from maxam.journal.encoding import KIND_DELETE
from maxam.journal.layout import RecordCursor, skip_identity, skip_validation

_NULL: Final = b"\0"  # index of null in the union of a row's value
_VALUE: Final = b"\2"
_SHARED_MAX: Final = 65_536  # destinations, and kinds of changes, that are remembered: more cost memory only


@final
class Rows:
    """Rows of one kind that were spliced and not yet taken.

    Attributes:
        typed: The value is a datum, not a body as it was sent.
        convert: Converts the datum, or returns None if it cannot be read. None to copy the datum as it is.
    """

    __slots__ = ("_parts", "convert", "typed")

    def __init__(self, typed: bool, convert: Callable[[bytes], bytes | None] | None = None) -> None:
        self.typed: Final = typed
        self.convert: Final = convert
        self._parts: Final[list[bytes]] = []

    def parts(self) -> list[bytes]:
        """Return the list to which rows are appended, three parts each. It stays the same object."""
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
    """The common part of changes of one publisher, schema and place of the datum.

    Attributes:
        common: Their bytes from publisher to value_offset.
        length: Of `common`.
        publisher_length: The bytes of `common` that a row has too.
        middle: Bytes of a row between publisher and datum.
        offset: The datum's place in the body.
        rows: Destination of the rows, None for nowhere.
        parts: Those of `rows`.
        plain: The datum is copied as it is.
    """

    __slots__ = ("common", "length", "middle", "offset", "parts", "plain", "publisher_length", "rows")

    def __init__(self, common: bytes, publisher_length: int, middle: bytes, offset: int, rows: Rows | None) -> None:
        self.common: Final = common
        self.length: Final = len(common)
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
        """Start after a change.

        Args:
            revision: Of the change before.
            after: Changes up to this revision are read and skipped.
            until: Changes above this revision are read and skipped.
            choose: Returns the rows for changes of a schema, minor, fingerprint and kind, or None to drop them. Called once for
                each publisher and validation.
            untyped: Returns the rows for a change whose schema cannot be read.
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

    def splice(self, data: bytes, count: int) -> None:
        """Append the changes of a checked block to the rows that they belong to.

        Args:
            data: The block without count, size and sync marker.
            count: Of records in it.

        Raises:
            ValueError: It is not what the journal writes, or revisions do not follow. Rows of it may be there.
            IndexError: The same.
        """
        destinations = self._destinations
        after = self._after
        until = self._until
        cursor = RecordCursor(data, self.revision)
        for _ in range(count):
            if not cursor.next_record():
                cursor.skip_other()
                continue
            revision = cursor.revision
            deleted = cursor.kind == KIND_DELETE
            destination = cursor.destination()
            place = cursor.place
            shared = destinations.get(destination)
            if shared is None or deleted or not data.startswith(shared.common, place):
                self.revision = revision  # for the callables above
                shared = self._shared(data, place, deleted)
                if not deleted:
                    if len(destinations) >= _SHARED_MAX:
                        destinations.clear()
                    destinations[destination] = shared
            cursor.place = place + shared.length
            cursor.value()
            parts = shared.parts
            if parts is None or revision <= after or revision > until:
                continue
            head = data[cursor.start : place + shared.publisher_length]
            if deleted:
                parts += (head, shared.middle, b"")
            elif shared.plain:
                body = cursor.body + shared.offset
                value_end = body + cursor.value_length
                if value_end > cursor.body_end:
                    raise ValueError("the datum ends after the body")
                parts += (head, shared.middle, data[body:value_end])
            else:
                self._splice_unlike(data, cursor, head, shared)
        cursor.require_end()
        self.revision = cursor.revision

    def _splice_unlike(self, data: bytes, cursor: RecordCursor, head: bytes, shared: _Shared) -> None:
        """Append one change whose datum is converted, or which has no known schema."""
        rows = shared.rows
        if rows is None:
            return
        middle = shared.middle
        if rows.typed and rows.convert is not None:
            place = cursor.body + shared.offset
            if place + cursor.value_length > cursor.body_end:
                raise ValueError("the datum ends after the body")
            datum = rows.convert(data[place : place + cursor.value_length])
            if datum is not None:
                rows.parts().extend((head, middle, datum))
                return
            self.unreadable.append(cursor.revision)
            rows = self._untyped(_fields(shared.common)[3].decode())
            if rows is None:
                return
            middle = _untyped_middle(shared.common, shared.publisher_length)
        rows.parts().extend((head, middle, text(data[cursor.body : cursor.body_end])))

    def _shared(self, data: bytes, place: int, deleted: bool) -> _Shared:
        """Find or make what the change has in common with others whose publisher stands at a place."""
        known = self._deleted if deleted else self._values
        end = skip_validation(data, skip_identity(data, place))
        if end > len(data):
            raise IndexError
        common = data[place:end]
        shared = known.get(common)
        if shared is None:
            if len(known) >= _SHARED_MAX:
                known.clear()
            shared = known[common] = self._make(common, deleted)
        return shared

    def _make(self, common: bytes, deleted: bool) -> _Shared:
        fields = _fields(common)
        publisher_length = skip_text(common, 0)
        offset = read_unsigned(common, len(common) - len(fields[6]))[0] >> 1
        rows = self._choose(fields[3].decode(), fields[4].decode(), fields[5], deleted)
        if rows is not None and not rows.typed:
            middle = _untyped_middle(common, publisher_length)
            if deleted:
                middle = middle[:-1] + _NULL
            return _Shared(common, publisher_length, middle, offset, rows)
        middle = text(fields[4]) + (_NULL if deleted else _VALUE)
        return _Shared(common, publisher_length, middle, offset, rows)


def _untyped_middle(common: bytes, publisher_length: int) -> bytes:
    """Return the bytes between publisher and body of an untyped row: encoding to schema_fingerprint, unchanged."""
    start = skip_text(common, publisher_length)
    end = start
    for _ in range(4):
        end = skip_text(common, end)
    return common[start:end] + _VALUE


def _fields(common: bytes) -> list[bytes]:
    """Return the fields from publisher to schema_fingerprint, without their lengths, and the bytes of value_offset."""
    fields: list[bytes] = []
    place = 0
    for _ in range(6):
        length, place = read_unsigned(common, place)
        end = place + (length >> 1)
        fields.append(common[place:end])
        place = end
    fields.append(common[place:])
    return fields

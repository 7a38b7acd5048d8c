"""The newest change of each topic in stretches of the journal, found by scanning its blocks without decoding them."""

from collections.abc import Callable
from typing import Final, final

from maxam.content import read_long, read_text, read_unsigned, skip_text
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import CHANGE_TAIL, KIND_DELETE
from maxam.journal.layout import RecordCursor, skip_identity, skip_validation
from maxam.records import Change, Validation

_NO_CHECK: Final = CHANGE_TAIL[-1:]
_NO_PERIOD: Final = -1

Found = tuple[list[bytes], list[int], list[int], list[bytes]]
"""Destinations, periods, revisions and records of newest changes."""


@final
class _Topic:
    """The known changes of a topic in one period.

    Attributes:
        common: The bytes of its last change from publisher to value_offset.
        record: Its newest change so far, all but `check`. Empty if there is none.
        revision: Of that change.
        wanted: Whether its changes count.
    """

    __slots__ = ("common", "record", "revision", "wanted")

    def __init__(self, wanted: bool) -> None:
        self.common = b""
        self.record = b""
        self.revision = 0
        self.wanted: Final = wanted


@final
class NewestChanges:
    """Reads blocks in order of revision, and keeps the bytes of the newest change of each topic, value or delete.

    Attributes:
        revision: Of the last change read.
        length: Bytes that are kept.
    """

    __slots__ = (
        "_commons",
        "_first",
        "_last",
        "_period_us",
        "_periods",
        "_since_us",
        "_until_us",
        "_wanted",
        "length",
        "revision",
    )

    def __init__(
        self,
        since_us: int,
        until_us: int,
        first: int,
        last: int,
        period_us: int,
        wanted: Callable[[bytes], bool] | None,
    ) -> None:
        """Set which changes count.

        Args:
            since_us: Changes accepted earlier do not count; microseconds since the epoch.
            until_us: Changes accepted then or later do not count.
            first: Changes of lower revisions do not count.
            last: Changes of higher revisions do not count.
            period_us: The newest change of each topic in each period of that length is kept, counted from the epoch. 0 for one
                period of all.
            wanted: Returns True if a destination's changes count. Called once for each. None if all count.
        """
        self._since_us: Final = since_us
        self._until_us: Final = until_us
        self._first: Final = first
        self._last: Final = last
        self._period_us: Final = period_us
        self._wanted: Final = wanted
        self._periods: Final[dict[int, dict[bytes, _Topic]]] = {}
        self._commons: Final[dict[bytes, bytes]] = {}  # most topics share one
        self.revision = 0
        self.length = 0

    def add(self, data: bytes, count: int) -> None:
        """Read the changes of a checked block that follows the change of `revision`.

        Args:
            data: The block without count, size and sync marker.
            count: Of records in it.

        Raises:
            ValueError: It is not what the journal writes, or revisions do not follow.
            IndexError: The same.
        """
        first = self._first
        last = self._last
        wanted = self._wanted
        commons = self._commons
        length = self.length
        counts = False
        at_us = -1
        topics: dict[bytes, _Topic] = {}
        cursor = RecordCursor(data, self.revision)
        for _ in range(count):
            if not cursor.next_record():
                cursor.skip_other()
                continue
            if cursor.at_us != at_us:
                at_us = cursor.at_us
                counts = self._since_us <= at_us < self._until_us
                topics = self._topics(at_us)
            destination = cursor.destination()
            topic = topics.get(destination)
            if topic is None:
                topic = topics[destination] = _Topic(wanted is None or wanted(destination))
                length += len(destination)
            place = cursor.place
            if topic.common and data.startswith(topic.common, place):
                cursor.place = place + len(topic.common)
            else:
                end = cursor.place = skip_validation(data, skip_identity(data, place))
                common = data[place:end]
                shared = commons.get(common)
                if shared is None:
                    shared = commons[common] = common
                    length += len(common)
                topic.common = shared
            cursor.value()
            if counts and topic.wanted and first <= cursor.revision <= last:
                length += cursor.check - cursor.start - len(topic.record)
                topic.record = data[cursor.start : cursor.check]
                topic.revision = cursor.revision
        cursor.require_end()
        self.revision = cursor.revision
        self.length = length

    def take(self) -> Found:
        """Return all that was kept, in no order, and forget it."""
        destinations: list[bytes] = []
        periods: list[int] = []
        revisions: list[int] = []
        records: list[bytes] = []
        for period, topics in self._periods.items():
            for destination, topic in topics.items():
                if topic.record:
                    destinations.append(destination)
                    periods.append(period)
                    revisions.append(topic.revision)
                    records.append(topic.record)
        self._periods.clear()
        self._commons.clear()
        self.length = 0
        return destinations, periods, revisions, records

    def _topics(self, at_us: int) -> dict[bytes, _Topic]:
        period = at_us // self._period_us if self._period_us else _NO_PERIOD
        topics = self._periods.get(period)
        if topics is None:
            topics = self._periods[period] = {}
        return topics


@final
class NewestRows:
    """Fields of the changes that `NewestChanges.take` gave, a list for each field, in the order of the records.

    Attributes:
        destinations: Of the topics.
        revisions: Of the changes.
        times_us: accepted_at; microseconds since the epoch.
        deleted: Whether the change is a delete.
        origins: For `origin_of`.
        value_lengths: Bytes of the datum in the body.
        bodies: As they were sent.
    """

    __slots__ = ("bodies", "deleted", "destinations", "origins", "revisions", "times_us", "value_lengths")

    def __init__(self, records: list[bytes], deleted: bool) -> None:
        """Read records; `deleted` is False to leave out deletes.

        Raises:
            ValueError: One is not what the journal writes.
            IndexError: The same.
        """
        self.destinations: Final[list[bytes]] = []
        self.revisions: Final[list[int]] = []
        self.times_us: Final[list[int]] = []
        self.deleted: Final[list[bool]] = []
        self.origins: Final[list[bytes]] = []
        self.value_lengths: Final[list[int]] = []
        self.bodies: Final[list[bytes]] = []
        known: dict[bytes, bytes] = {}
        for record in records:
            cursor = RecordCursor(record, 0, gapless=False)
            if not cursor.next_record():
                raise ValueError("not a change")
            is_delete = cursor.kind == KIND_DELETE
            if is_delete and not deleted:
                continue
            self.destinations.append(cursor.destination())
            place = cursor.place
            end = cursor.place = skip_validation(record, skip_identity(record, place))
            origin = record[place:end]
            cursor.content()
            self.revisions.append(cursor.revision)
            self.times_us.append(cursor.at_us)
            self.deleted.append(is_delete)
            self.origins.append(known.setdefault(origin, origin))
            self.value_lengths.append(cursor.value_length)
            self.bodies.append(record[cursor.body : cursor.body_end])


def origin_of(encoded: bytes) -> tuple[str, Validation]:
    """Return the publisher of a change, and how its body was judged. The length of the datum is that of each change."""
    publisher, place = read_text(encoded, 0)
    encoding, place = read_text(encoded, skip_text(encoded, place))
    schema, place = read_text(encoded, place)
    version, place = read_text(encoded, place)
    fingerprint, place = read_text(encoded, place)
    offset, _ = read_long(encoded, place)
    return publisher.decode(), Validation(encoding.decode(), schema.decode(), version.decode(), fingerprint, offset)


def decode_records(records: list[bytes]) -> list[Change]:
    """Return the changes that `NewestChanges.take` gave, in order of revision.

    Raises:
        ValueError: One is not what the journal writes, or two have one revision.
        IndexError: The same.
    """
    parts: list[bytes] = []
    for _, record in sorted([(read_unsigned(record, 0)[0], record) for record in records]):
        parts += (record, _NO_CHECK)
    decoder = Decoder(0, 0)
    decoder.gapless = False
    return [record for record in decoder.decode(b"".join(parts), len(records)) if isinstance(record, Change)]

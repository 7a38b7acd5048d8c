"""The newest change of each topic in stretches of the journal, found by walking its blocks without decoding them."""

from collections.abc import Callable
from typing import Final, final

from maxam.content import behind_headers, behind_text, read_unsigned
from maxam.journal.decoding import NO_STAMP, Decoder
from maxam.journal.encoding import CHANGE_TAIL, CHECK_BYTES, KIND_DELETE, KIND_VALUE, LOW
from maxam.journal.splice import behind_session_record
from maxam.records import Change

_NULLS_OF_CHANGE: Final = CHANGE_TAIL[:-1]  # all but `check`
_NO_CHECK: Final = CHANGE_TAIL[-1:]
_NO_PERIOD: Final = -1


@final
class _Topic:
    """What is known of a topic in one period.

    Attributes:
        told: The bytes of its last change from publisher to value_offset.
        record: Its newest change so far, all but `check`; empty without one.
        wanted: Whether its changes count.
    """

    __slots__ = ("record", "told", "wanted")

    def __init__(self, wanted: bool) -> None:
        self.told = b""
        self.record = b""
        self.wanted: Final = wanted


@final
class NewestChanges:
    """Takes blocks in order of revision, and keeps of the changes of each topic the newest one, value or delete, as its bytes.

    Attributes:
        revision: Of the last change read.
        length: Bytes that are kept, as of the last call of `measure`.
    """

    __slots__ = ("_first", "_last", "_period_us", "_periods", "_since_us", "_until_us", "_wanted", "length", "revision")

    def __init__(
        self,
        since_us: int,
        until_us: int,
        first: int,
        last: int,
        period_us: int,
        wanted: Callable[[bytes], bool],
    ) -> None:
        """Say which changes count.

        Args:
            since_us: Those accepted earlier do not; microseconds since the epoch.
            until_us: Nor do those accepted then or later.
            first: Nor those of lower revisions.
            last: Nor those of higher ones.
            period_us: The newest of each topic in each period of that length is kept, counted from the epoch; 0 for one of all.
            wanted: Tells whether a destination's changes count; asked once for each.
        """
        self._since_us: Final = since_us
        self._until_us: Final = until_us
        self._first: Final = first
        self._last: Final = last
        self._period_us: Final = period_us
        self._wanted: Final = wanted
        self._periods: Final[dict[int, dict[bytes, _Topic]]] = {}
        self.revision = 0
        self.length = 0

    def add(self, data: bytes, count: int) -> None:  # noqa: C901, PLR0912, PLR0915 - one loop without calls: it runs for all that was ever accepted
        """Take the changes of a checked block that follows the change of `revision`.

        Args:
            data: The block without count, size and sync marker.
            count: Of records in it.

        Raises:
            ValueError: It is not what the journal writes, or revisions do not follow.
            IndexError: The same.
        """
        first = self._first
        last = self._last
        revision = self.revision
        counts = False
        topics: dict[bytes, _Topic] = {}
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
                at_us, place = read_unsigned(data, place)
                # a revision of less than three bytes has no high part: no stamp that could match
                stamp = data[end:place] if high_end > end else NO_STAMP
                at_us >>= 1
                counts = self._since_us <= at_us < self._until_us
                topics = self._topics(at_us)
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
            topic = topics.get(destination)
            if topic is None:
                topic = topics[destination] = _Topic(self._wanted(destination))
            if topic.told and data.startswith(topic.told, place):
                place += len(topic.told)
            else:
                end = place
                for _ in range(6):  # publisher, fingerprint, encoding, schema, schema_version, schema_fingerprint
                    end = behind_text(data, end)
                end = read_unsigned(data, end)[1]
                topic.told = data[place:end]
                place = end

            if data[place] < 128:  # value_length
                place += 1
            elif data[place + 1] < 128:
                place += 2
            else:
                place = read_unsigned(data, place)[1]
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
            end = place + (length >> 1)
            place = end + 8
            if data[end:place] != _NULLS_OF_CHANGE:
                raise ValueError("not a change")
            if counts and topic.wanted and first <= revision <= last:
                topic.record = data[start:place]
            # the check of the last record was examined with the block
            place += 1 + CHECK_BYTES if data[place] else 1
        if place != len(data):
            raise ValueError("bytes follow the last record")
        self.revision = revision

    def measure(self) -> None:
        """Count the bytes that are kept into `length`."""
        length = 0
        for topics in self._periods.values():
            for destination, topic in topics.items():
                length += len(destination) + len(topic.told) + len(topic.record)
        self.length = length

    def take(self) -> list[tuple[bytes, int, int, bytes]]:
        """Return destination, period, revision and record of all that was kept, in no order, and forget it."""
        found: list[tuple[bytes, int, int, bytes]] = []
        for period, topics in self._periods.items():
            for destination, topic in topics.items():
                if topic.record:
                    found.append((destination, period, read_unsigned(topic.record, 0)[0] >> 1, topic.record))
        self._periods.clear()
        return found

    def _topics(self, at_us: int) -> dict[bytes, _Topic]:
        period = at_us // self._period_us if self._period_us else _NO_PERIOD
        topics = self._periods.get(period)
        if topics is None:
            topics = self._periods[period] = {}
        return topics


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

"""Find this run's stamps in what a subscriber receives, at the least cost; plain annotated Python that mypyc compiles.

Each SEND carries a header `bench:`, in fixed width and without gaps. It begins with the number of the run (6 characters), then `F` for
the last value of its topic or `0`. The sequence number of the topic (9 digits) follows. Then come the time (15 digits, ns since the run's origin)
and the number of the topic (7 digits). `Scanner` cuts the stream into frames and hands out every MESSAGE. `Counter` counts MESSAGEs by
the mark alone, for rates at which reading them all would cost more than receiving them. It reads stamps in full when asked, and relies
on the load's bodies never holding the mark.
"""

from typing import Final, final

from maxam.bench.errors import LoadError
from maxam.bench.histogram import Histogram
from maxam.stomp.events import parse_number

STAMP_BYTES: Final = 32  # after the mark
_TIME: Final = 10  # where the time begins, and so on
_TOPIC: Final = 25
_FINAL: Final = 70  # F
_LF: Final = 10
_NUL: Final = 0
_HEAD_BYTES_MAX: Final = 65_536
_LENGTH: Final = b"\ncontent-length:"

Taken = tuple[bytes, bytes]  # the stamp, empty when this run did not send it; the ack header as it came, or empty


def mark(run: str) -> bytes:
    """Return what stands before each stamp of a run: no other bytes of a frame are equal to it."""
    return b"\nbench:" + run.encode()


def stamp(final: bool, sequence: int, time_ns: int) -> bytes:
    """Return a stamp except its last part, `topic_part`."""
    return b"%c%09d%015d" % (_FINAL if final else 48, sequence, time_ns)


def topic_part(number: int) -> bytes:
    """Return the part of a stamp that identifies the topic."""
    return b"%07d" % number


def stamp_time_ns(stamp: bytes) -> int:
    """Return when a value was sent, in ns since the run's origin."""
    return int(stamp[_TIME:_TOPIC])


@final
class Scanner:
    """Cut what one connection receives into frames.

    Attributes:
        others: Frames that are no MESSAGE, as (command, head, body), for the caller to read and clear.
        partial: Bytes of an unfinished frame.
    """

    __slots__ = ("_acked", "_mark", "others", "partial")

    def __init__(self, mark: bytes, acked: bool) -> None:
        """Make one for stamps after `mark`. With `acked` the MESSAGEs carry ack headers that are wanted."""
        self._mark: Final = mark
        self._acked: Final = acked
        self.others: list[tuple[bytes, bytes, bytes]] = []
        self.partial = b""

    def feed(self, data: bytes) -> list[Taken]:
        """Return the MESSAGEs that `data` completes.

        Raises:
            LoadError: It is no STOMP.
        """
        taken: list[Taken] = []
        if self.partial:
            data = self.partial + data
        size = len(data)
        position = 0
        mark = self._mark
        mark_bytes = len(mark)
        while True:
            while position < size and (data[position] == _LF or data[position] == 13):  # heart-beats
                position += 1
            head_end = data.find(b"\n\n", position)
            if head_end < 0:
                if size - position > _HEAD_BYTES_MAX:
                    raise LoadError("the broker sent a head without end")
                break
            found = data.find(mark, position, head_end)
            start = found + mark_bytes + STAMP_BYTES
            # MaXaM writes the length right after the stamp
            if found < 0 or not data.startswith(_LENGTH, start):
                start = data.find(_LENGTH, position, head_end)
            end = _body_end(data, start, head_end)
            if end < 0:
                break
            if data.startswith(b"MESSAGE\n", position):
                stamp = data[found + mark_bytes : found + mark_bytes + STAMP_BYTES] if found >= 0 else b""
                ack = b""
                if self._acked:
                    start = data.find(b"\nack:", position, head_end)
                    if start >= 0:
                        ack = data[start + 5 : data.find(b"\n", start + 5)]
                taken.append((stamp, ack))
            else:
                line_end = data.find(b"\n", position)
                self.others.append((data[position:line_end], data[position : head_end + 1], data[head_end + 2 : end]))
            position = end + 1
        self.partial = data[position:]
        return taken


def _body_end(data: bytes, length_start: int, head_end: int) -> int:
    """Return where the NUL stands, or -1 when it has not come yet."""
    if length_start < 0:
        return data.find(b"\0", head_end + 2)
    start = length_start + len(_LENGTH)
    length = parse_number(data[start : data.find(b"\n", start)])
    if length < 0:
        raise LoadError("the broker sent a content-length that is no number")
    end = head_end + 2 + length
    if end >= len(data):
        return -1
    if data[end] != _NUL:
        raise LoadError("the broker sent a body whose length differs from its content-length")
    return end


@final
class Counter:
    """Count MESSAGEs by their mark.

    Attributes:
        partial: The newest bytes, in which a mark or stamp may have begun.
    """

    __slots__ = ("_mark", "partial")

    def __init__(self, mark: bytes) -> None:
        self._mark: Final = mark
        self.partial = b""

    def feed(self, data: bytes) -> int:
        """Return how many stamps `data` completes, without reading them."""
        joined = self.partial + data
        # One stamp counts when all of it is there: count the marks that end early enough.
        last = len(joined) - STAMP_BYTES
        if last <= 0:
            self.partial = joined
            return 0
        count = joined.count(self._mark, 0, last)
        self.partial = joined[max(0, last - len(self._mark) + 1) :]
        return count

    def read(self, data: bytes) -> list[bytes]:
        """Return the stamps that `data` completes."""
        joined = self.partial + data
        last = len(joined) - STAMP_BYTES
        if last <= 0:
            self.partial = joined
            return []
        mark = self._mark
        mark_bytes = len(mark)
        stamps = []
        found = joined.find(mark, 0, last)
        while found >= 0:
            found += mark_bytes
            stamps.append(joined[found : found + STAMP_BYTES])
            found = joined.find(mark, found, last)
        self.partial = joined[max(0, last - mark_bytes + 1) :]
        return stamps


@final
class Receipts:
    """Count what a publisher is answered.

    Attributes:
        accepted: RECEIPTs without a disposition, or with the one of acceptance.
        rejected: The others by disposition: how many, and the reason that the first of them gave.
    """

    __slots__ = ("_partial", "accepted", "rejected")

    def __init__(self) -> None:
        self.accepted = 0
        self.rejected: Final[dict[bytes, tuple[int, bytes]]] = {}
        self._partial = b""

    def feed(self, data: bytes) -> int:
        """Return how many RECEIPTs `data` completes.

        Raises:
            LoadError: An ERROR is among them.
        """
        joined = self._partial + data
        end = joined.rfind(b"\0") + 1
        self._partial = joined[end:]
        whole = joined[:end]
        frames = whole.count(b"\0")
        if whole.count(b"\ndisposition:accepted\n") == frames:
            self.accepted += frames
            return frames
        return self._read(whole)

    def _read(self, whole: bytes) -> int:
        count = 0
        for frame in whole.split(b"\0")[:-1]:
            head, _, body = frame.lstrip(b"\r\n").partition(b"\n\n")
            if head.startswith(b"ERROR"):
                raise LoadError(error_text(head, body))
            if not head.startswith(b"RECEIPT"):
                continue
            count += 1
            disposition = header(head, b"disposition")
            if disposition in (b"", b"accepted"):
                self.accepted += 1
            else:
                before, reason = self.rejected.get(disposition, (0, header(head, b"reason")))
                self.rejected[disposition] = (before + 1, reason)
        return count


def header(head: bytes, name: bytes) -> bytes:
    """Return the value of a header as written, or nothing."""
    for line in head.split(b"\n")[1:]:
        if line.startswith(name + b":"):
            return line[len(name) + 1 :]
    return b""


def error_text(head: bytes, body: bytes) -> str:
    """Return the text of an ERROR, on one line."""
    said = header(head, b"message") + b": " + body.strip()
    return "the broker answered ERROR: " + said.decode("utf-8", "replace").replace("\n", " ")


@final
class Tally:
    """The observations of one subscriber.

    Attributes:
        finals: Topics whose last value has come.
        disordered: Values that came after a newer one of their topic, or again.
    """

    __slots__ = ("_newest", "disordered", "finals")

    def __init__(self) -> None:
        self.finals: Final[set[bytes]] = set()
        self.disordered = 0
        self._newest: Final[dict[bytes, bytes]] = {}

    def note(self, stamps: list[bytes], now_ns: int, ages: Histogram) -> None:
        """Record stamps in their order. `now_ns` is the time since the run's origin."""
        newest = self._newest
        for stamp in stamps:
            topic = stamp[_TOPIC:]
            sequence = stamp[1:_TIME]
            ages.record(now_ns - int(stamp[_TIME:_TOPIC]))
            before = newest.get(topic)
            if before is not None and sequence <= before:
                self.disordered += 1
            newest[topic] = sequence
            if stamp[0] == _FINAL:
                self.finals.add(topic)

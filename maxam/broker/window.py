"""The delivery window of one connection: as few messages in flight as keep its link and its consumer busy.

Theory of operation. A value is freshest when it is read from the store as late as possible. Messages in flight beyond those that keep the
consumer busy only age. The product of BBR shows how few may be enough: the rate of ACKs times the smallest time from MESSAGE to ACK, plus
one. A round trip that varies for other reasons than our own queue makes it far too small, and no later measurement shows that. So
the product only proposes. A smaller size is tried for a while and kept if the rate of ACKs holds. A larger one is kept if the rate rises.

One such measurement is a *spell*. It begins when a message sent under the present size is acked. It lasts whole rounds, as ACKs come in
bursts. One round is enough when the link decides, which means that nearly all in flight is on its way. Else a spell lasts longer, as the
times of a consumer vary. Spells of the usual size alternate with trials, one with fewer messages, the next with more. When both
were in vain, the size is right, and it rests. A trial with too few costs about half a round, so rests are counted in rounds. A trial with
more must show a higher rate twice, unless the link decides, as once may be chance. A trial ends early when it can no longer reach the
rate. When the rate of the usual size changes much, the consumer or the link has changed, and earlier trials are forgotten. Messages after
which nothing waited show nothing about the consumer, and void the spell.

Nothing is known before the first ACK, and at most one flight can grow old. So the first flight is larger than the size after it, as a page
that loads waits for a round trip for each flight. The ACKs of it do not raise the floor: a client covers at once what came at once.

One message in flight is enough for a slow consumer on a near link. A client may also acknowledge a message when the next one has come.
Then one message in flight is never acknowledged, and is not tried again.

Invariants: floor <= size <= limit. The floor is 1 while each ACK covers one message, else one more than the most that one ACK has covered.
"""

from typing import Final, final

WINDOW_FIRST: Final = 64  # before the first ACK
WINDOW_INITIAL: Final = 10  # after it
STALL_TIMEOUT_MIN_S: Final = 0.1
_SPELL_MESSAGES: Final = 128  # enough to compare rates, or
_SPELL_S: Final = 0.5  # this long for a slow consumer, but never less than a round
_ROUND_MESSAGES: Final = 16  # enough to compare rates when the link decides,
_ON_THE_WAY: Final = 0.75  # which it does when so much of what is in flight is on its way
_PARTLY: Final = 0.5  # on its way: then no second trial is needed
_REST_S: Final = 1.0  # after trials in vain both ways, and
_REST_ROUNDS: Final = 16  # at least: half a round in this many is some 3 %
_KEEPS: Final = 0.93  # of the rate: then fewer in flight are as good
_RISES: Final = 1.08  # of the rate: then more in flight are better
_CHANGED: Final = 0.7  # of the rate, or less, or the other way round: no chance, but a change
_ROUND_TRIP_SPAN_S: Final = 5.0  # a minimum older than one to two spans is forgotten

Stamp = tuple[float, int, bool]  # sent at, messages acked before it, nothing waited after it


@final
class Window:
    """The number of messages of one connection that may be un-acked.

    Attributes:
        size: How many messages may be in flight now.
        limit: The largest size.
        round_trip_s: Smallest recent time from MESSAGE to its ACK; 0.0 before the first.
    """

    __slots__ = (
        "_acked",
        "_alone",
        "_covered_max",
        "_first",
        "_fixed",
        "_from_acked",
        "_from_s",
        "_once",
        "_rate",
        "_rest_until_s",
        "_round_end",
        "_round_trip_since_s",
        "_round_trip_span_s",
        "_size_since_acked",
        "_stalled",
        "_started",
        "_too_few",
        "_trial",
        "_up",
        "_usual",
        "_vain",
        "limit",
        "round_trip_s",
        "size",
    )

    def __init__(self, limit: int, fixed: bool, now_s: float) -> None:
        self.limit: Final = limit
        self._fixed: Final = fixed
        self._first = 0 if fixed else min(WINDOW_FIRST, limit)  # messages whose ACKs do not raise the floor
        self.size = self._first or limit
        self.round_trip_s = 0.0
        self._round_trip_span_s = 0.0  # smallest of the present span
        self._round_trip_since_s = now_s
        self._acked = 0
        self._covered_max = 1
        self._alone = True  # one message in flight has never stalled
        self._usual = limit if fixed else min(WINDOW_INITIAL, limit)  # the size that trials depart from
        self._rate = 0.0  # of the last spell of the usual size, messages per second
        self._trial = False
        self._once = False  # this trial of more has shown a higher rate, once
        self._up = False  # where the next trial goes
        self._vain = False  # the last trial was in vain, and it was not yet the other way's turn
        self._rest_until_s = now_s  # no trial before
        self._too_few = 0  # tried in vain since `_usual` changed, by more than a quarter fewer; 0 if none was
        self._size_since_acked = 0  # a message stamped with at least this was sent under the present size
        self._started = False  # the spell has begun
        self._stalled = not fixed  # the size is larger until the next ACK
        self._from_s = now_s  # when it began, and
        self._from_acked = 0  # how many messages were acked then
        self._round_end = 0  # how many more are acked when the present round of it is complete

    @property
    def floor(self) -> int:
        """The least size: one more than the most messages that one ACK has covered, or 1 while one in flight may be enough."""
        return 1 if self._covered_max == 1 and self._alone else min(self._covered_max + 1, self.limit)

    @property
    def stall_timeout_s(self) -> float:
        """Seconds without an ACK after which a full window doubles."""
        return max(4 * self.round_trip_s, STALL_TIMEOUT_MIN_S)

    def sent(self, now_s: float, idle: bool) -> Stamp:
        """Return what `acked` needs to know of a message sent now; `idle` means that nothing waited after it."""
        return (now_s, self._acked, idle)

    def acked(self, stamp: Stamp, covered: int, now_s: float) -> None:
        """Learn from an ACK.

        Args:
            stamp: Of the newest message that the ACK covers.
            covered: Messages that it covers.
            now_s: When it was read.
        """
        self._acked += covered
        if self._acked > self._first:
            self._covered_max = max(self._covered_max, covered)
        if self._fixed:
            return
        sent_s, acked_then, idle = stamp
        self._learn_round_trip(max(now_s - sent_s, 1e-6), now_s)
        if idle or self._stalled:
            self._stalled = False
            self._resize(self._usual)
        elif not self._started:
            if acked_then >= self._size_since_acked:
                self._started = True
                self._from_s = now_s
                self._from_acked = self._acked
                self._round_end = self.size
        else:
            count = self._acked - self._from_acked
            elapsed_s = now_s - self._from_s
            if count >= self._round_end:
                if elapsed_s > 0 and (
                    count >= _SPELL_MESSAGES
                    or elapsed_s >= _SPELL_S
                    or (count >= _ROUND_MESSAGES and self._on_the_way(count / elapsed_s, _ON_THE_WAY))
                ):
                    self._conclude(count / elapsed_s, now_s)
                else:
                    self._round_end += self.size
            elif self._trial and elapsed_s * self._asked > max(self._round_end, _SPELL_MESSAGES + self.size):
                self._conclude(count / elapsed_s, now_s)
        if self.size < self.floor:
            self._usual = max(self._usual, self.floor)
            self._resize(self._usual)

    def stalled(self) -> None:
        """Double the size until the next ACK: the window is full, values wait, none has come for `stall_timeout_s`.

        If the client waits for more messages before it acks, that ACK will show in the floor. If it was only slow, the next ACK
        restores the size.
        """
        if self.size == 1:
            self._alone = False
        self._resize(min(self.size * 2, self.limit))
        self._stalled = True

    @property
    def _asked(self) -> float:
        """The rate that a trial must reach to be kept."""
        return self._rate * (_RISES if self.size > self._usual else _KEEPS)

    def _on_the_way(self, rate: float, share: float) -> bool:
        """Return whether so much of what is in flight is on its way; the rest waits for the consumer."""
        return rate * self.round_trip_s >= share * self.size

    def _conclude(self, rate: float, now_s: float) -> None:
        if not self._trial:
            if not self._rate * _CHANGED < rate < self._rate / _CHANGED:
                self._rest_until_s = now_s
                self._vain = False
                self._too_few = 0
                self._up = rate > self._rate > 0
            self._rate = rate
            self._resize(self._usual if now_s < self._rest_until_s else self._propose())
        elif rate >= self._asked and self.size > self._usual and not self._once and not self._on_the_way(rate, _PARTLY):
            self._once = True
            self._started = False
        elif rate >= self._asked:
            self._up = self.size > self._usual  # on the same way
            self._usual = self.size
            self._rate = rate
            self._vain = False
            self._too_few = 0
            self._resize(self._propose())
        else:
            fewer = self.size < self._usual
            self._up = fewer  # the other way next time
            if fewer:
                self._too_few = self.size if self.size < self._quarter_fewer else 0
            if self._vain or (self._propose() < self._usual) == fewer:
                self._rest_until_s = now_s + max(_REST_S, _REST_ROUNDS * self.round_trip_s)
                self._vain = False
            else:
                self._vain = True
            self._resize(self._usual)

    def _propose(self) -> int:
        """Return the size to try: the product, half the way back to it, or a quarter fewer. Upwards it is half as many again."""
        usual = self._usual
        product = int(self._rate * self.round_trip_s + 0.5) + 1
        fewer = product if self._too_few == 0 else max(product, (self._too_few + usual) // 2)
        fewer = max(self.floor, min(fewer, self._quarter_fewer))
        more = min(self.limit, usual + max(1, usual // 2))
        if self._up:
            return more if more > usual else fewer
        return fewer if fewer < usual else more

    @property
    def _quarter_fewer(self) -> int:
        """The smallest step down: smaller ones, too small to compare, would be kept one after the other, each losing a little."""
        return self._usual - max(1, self._usual // 4)

    def _resize(self, size: int) -> None:
        """Begin a new spell with `size`."""
        if size != self.size:
            self._size_since_acked = self._acked
            self.size = size
        self._trial = size != self._usual
        self._started = False
        self._once = False

    def _learn_round_trip(self, round_trip_s: float, now_s: float) -> None:
        if self.round_trip_s == 0.0 or round_trip_s < self.round_trip_s:
            self.round_trip_s = round_trip_s
        if self._round_trip_span_s == 0.0 or round_trip_s < self._round_trip_span_s:
            self._round_trip_span_s = round_trip_s
        if now_s - self._round_trip_since_s > _ROUND_TRIP_SPAN_S:
            self.round_trip_s, self._round_trip_span_s = self._round_trip_span_s, round_trip_s
            self._round_trip_since_s = now_s

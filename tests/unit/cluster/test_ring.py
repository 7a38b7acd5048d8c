"""The lag of readers of the ring buffer."""

from maxam.cluster.ring import Ring
from maxam.journal.encoding import START, Encoder, Position
from tests.support.journal_records import SYNC, change


def test_the_lag_is_that_of_the_blocks_after_a_position() -> None:
    """Bytes and age of each place; seals count as nothing, and what is no longer kept is not known."""
    encoder = Encoder(START, SYNC)
    blocks = [encoder.encode([change(revision)]) for revision in range(1, 9)]
    size = len(blocks[0].data)
    for kept in range(1, 9):
        ring = Ring(START, "a", kept * (size + 200) + 100)
        assert ring.lag(START) == (0.0, 0)
        for block in blocks:
            ring.wrote(block, begins=False)
        ring.sealed(SYNC)
        assert ring.lag(blocks[-1].after) == (0.0, 0)
        lags = [ring.lag(block.before) for block in blocks]
        known = [lag for lag in lags if lag is not None]
        assert lags == [None] * (len(blocks) - len(known)) + known
        assert [lag[1] - len(SYNC) for lag in known] == [
            sum(len(one.data) for one in blocks[-count:]) for count in range(len(known), 0, -1)
        ]
        assert all(lag[0] >= 0 for lag in known)
        assert ring.lag(Position(9, 0, 1)) is None
        assert abs(len(known) - kept) <= 1

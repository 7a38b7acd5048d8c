"""The records of a block that was decoded, as a block has them: for those who read records where they lie."""

from maxam.content import read_unsigned
from maxam.journal.encoding import SYNC_BYTES, Encoder, Position
from maxam.journal.reading import Block
from maxam.records import Change, RejectedSend


def encoded(records: Block) -> tuple[int, bytes, int] | None:
    """Encode the records of a block again, rejected SENDs left out.

    Returns:
        The revision before its first change, the bytes of the records, and how many they are; None when no change is among them.
    """
    first = next((record.revision for record in records if isinstance(record, Change)), 0)
    if not first:
        return None
    encoder = Encoder(Position(first - 1, 0, 0), bytes(SYNC_BYTES), gapless=False)
    data = encoder.encode([record for record in records if not isinstance(record, RejectedSend)]).data
    count, start = read_unsigned(data, 0)
    _, start = read_unsigned(data, start)
    return first - 1, data[start:-SYNC_BYTES], count >> 1

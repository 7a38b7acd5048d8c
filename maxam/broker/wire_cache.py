"""Bytes of MESSAGEs that several subscribers get: encoded once, and kept while those who keep up ask for them."""

from typing import Final, final

from maxam.broker.session import Topic
from maxam.records import Change
from maxam.stomp.encoder import message_shared

# Shared bytes of MESSAGEs kept for the next subscriber. All who keep up ask within a batch or two, while a processor's cache
# still holds them.
_BYTES_MAX: Final = 4_194_304
_SHARED_MIN: Final = 3  # subscriptions of a topic from which on keeping its bytes pays
_CHUNKS_MAX: Final = 64  # of some 16 KiB


@final
class Chunk:
    """Values that were handed out together, for the next subscription with the same id in ack mode auto that is owed the same.

    Dashboards of one make are many, and those that keep up are always owed the same.
    """

    __slots__ = ("data", "prefix", "size", "topics", "variant")

    def __init__(self, prefix: bytes, variant: int, topics: list[Topic], size: int, data: bytes) -> None:
        self.prefix: Final = prefix
        self.variant: Final = variant
        self.topics: Final = topics  # in reverse
        self.size: Final = size  # as VALUES_BYTES_MAX counts
        self.data: Final = data  # of the newest changes: void after the next commit


@final
class WireCache:
    """The encoded MESSAGEs of one broker.

    Attributes:
        chunks: Values that were handed out since the last commit, by their first topic.
    """

    __slots__ = ("_encoded", "_encoded_bytes", "chunks")

    def __init__(self) -> None:
        self.chunks: Final[dict[Topic, Chunk]] = {}
        self._encoded: Final[list[Change]] = []  # with `wire`
        self._encoded_bytes = 0

    def encode(self, topic: Topic, variant: int) -> bytes:
        """Return the shared bytes of a topic's MESSAGE, kept for the next subscriber while there is room."""
        change = topic.change
        shared = message_shared(
            variant >> 1, variant & 1 == 1, change.destination, change.revision, change.content, change.body_at
        )
        if len(topic.routes) >= _SHARED_MIN:
            if self._encoded_bytes > _BYTES_MAX:
                for kept in self._encoded:
                    kept.wire = None
                self._encoded.clear()
                self._encoded_bytes = 0
            change.wire = (variant, shared)
            self._encoded.append(change)
            self._encoded_bytes += len(shared)
        return shared

    def keep_chunk(self, chunk: Chunk) -> None:
        """Keep what was handed out until the next commit."""
        if len(self.chunks) >= _CHUNKS_MAX:
            self.chunks.clear()
        self.chunks[chunk.topics[-1]] = chunk

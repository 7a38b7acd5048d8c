"""Bytes of MESSAGEs that several subscribers get: encoded once, and kept while those who keep up ask for them."""

from typing import Final, final

from maxam.broker.json_values import JsonContent
from maxam.broker.session import Topic
from maxam.content import EMPTY_CONTENT
from maxam.records import GATEWAY, Change
from maxam.stomp.encoder import escape, kind_lines, message_shared, metadata_lines

METADATA: Final = 4  # added to a variant whose MESSAGEs have the metadata of their change
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
        version = variant >> 1 & 1
        content, body_at, metadata = change.content, change.body_at, b""
        if variant >= METADATA:
            metadata = change_lines(version, change, b"delete" if change.deleted else b"value")
            if change.publisher.principal == GATEWAY.principal and change.deleted:
                content, body_at = EMPTY_CONTENT, len(EMPTY_CONTENT)  # its only header is the reason
        shared = message_shared(
            version, variant & 1 == 1, change.destination, change.revision, content, body_at, metadata, change.plain
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

    @staticmethod
    def encode_kind(topic: Topic, variant: int, kind: bytes, reason: bytes, content: bytes, body_at: int) -> bytes:
        """Return the bytes after the prefix of a MESSAGE of another kind than a value or a delete, for one subscriber.

        Args:
            topic: Its change gives revision and metadata.
            variant: The subscriber's.
            kind: `left` or `fresh`; empty for no metadata at all.
            reason: Header of that name; empty for none.
            content: User headers and body, as `pack` of maxam/content.py makes it.
            body_at: Where in it the body begins.
        """
        change = topic.change
        version = variant >> 1 & 1
        if variant >= METADATA:
            lines = change_lines(version, change, kind, reason)
        else:
            lines = kind_lines(kind, reason) if kind else b""
        return message_shared(version, variant & 1 == 1, change.destination, change.revision, content, body_at, lines)

    @staticmethod
    def encode_json(topic: Topic, variant: int, fresh: bool, value: JsonContent) -> bytes:
        """Return the shared bytes of a topic's MESSAGE with its value as JSON; `fresh` for the value of a topic that was stale."""
        wire = value.wire
        if wire is not None and wire[0] == variant and not fresh:
            return wire[1]
        change = topic.change
        version = variant >> 1 & 1
        if variant >= METADATA:
            lines = change_lines(version, change, b"fresh" if fresh else b"value")
        else:
            lines = b"schema:%b\n" % escape(version, _schema(change)) + (kind_lines(b"fresh", b"") if fresh else b"")
        acknowledged = variant & 1 == 1
        shared = message_shared(
            version,
            acknowledged,
            change.destination,
            change.revision,
            value.content,
            value.body_at,
            lines + value.lines,
        )
        if not fresh:
            value.wire = (variant, shared)
        return shared

    def keep_chunk(self, chunk: Chunk) -> None:
        """Keep what was handed out until the next commit."""
        if len(self.chunks) >= _CHUNKS_MAX:
            self.chunks.clear()
        self.chunks[chunk.topics[-1]] = chunk


def change_lines(version: int, change: Change, kind: bytes, reason: bytes = b"") -> bytes:
    """Return the header lines with the metadata of a change."""
    publisher = change.publisher.principal
    if change.deleted:
        reason = b"expired" if publisher == GATEWAY.principal else b"deleted"
    return metadata_lines(version, change.accepted_at_us, publisher.encode(), _schema(change), kind, reason)


def _schema(change: Change) -> bytes:
    """Return type and version by which the body of a change was judged, empty if nothing was checked."""
    validation = change.validation
    return f"{validation.schema} {validation.schema_version}".encode() if validation.schema else b""

"""The log of a cluster: what an engine must do to keep one order of entries for several gateways.

Theory of operation. The log is a sequence of entries and one *head*. The head has the index of the newest entry and the name of the
member that leads. Each append, each sign of life (`beat`) and each claim of leadership is one transaction. It compares the head with
what the caller last saw, and replaces it. So the head is lock, lease and fence. At most one of several tries with the same `before`
takes effect. So a call whose outcome is unknown may be repeated for ever, and nothing depends on how the engine recognises repetitions.

`Log` is implemented by `cluster.etcd` and by the simulator of the tests.
"""

from collections.abc import Iterator
from typing import Final, Protocol, final

from maxam.cluster.entry import encode_position, read_position
from maxam.errors import MaxamError
from maxam.journal.encoding import Position

ID_BYTES: Final = 16  # of a cluster
NONCE_BYTES: Final = 8
_MAGIC: Final = b"MXH1"
_FIXED_BYTES: Final = 73
_NAME_BYTES_MAX: Final = 255


class LogError(MaxamError):
    """A call to the log failed."""


@final
class SupersededError(LogError):
    """The head is another one than the caller compared with. Nothing of the call is in the log.

    Attributes:
        head: The head that was found; None if there is none.
    """

    code = "log-superseded"

    def __init__(self, head: "Head | None") -> None:
        self.head: Final = head
        super().__init__(
            "the log of the cluster is gone"
            if head is None
            else f"member {head.leader!r} leads with term {head.term} at index {head.index}"
        )


@final
class LogFullError(LogError):
    """The engine has no room. Nothing of the call is in the log."""

    code = "log-full"


@final
class LogLostError(LogError):
    """The engine gave no answer, so the outcome of the call is unknown. Repeat the same call."""

    code = "log-lost"


@final
class LogTrimmedError(LogError):
    """The log has forgotten entries that were asked for.

    Attributes:
        first: Index of the oldest entry that is held.
    """

    code = "log-trimmed"

    def __init__(self, first: int) -> None:
        self.first: Final = first
        super().__init__(f"the log begins at index {first}")


@final
class LogDamagedError(LogError):
    """An entry is not one, or an index is missing."""

    code = "log-damaged"


@final
class Head:
    """The head of the log: what every write compares and replaces.

    Attributes:
        cluster: Identifier of the cluster, 16 bytes.
        term: Reign of the leader; each new leader's is higher by one. 0 before the first.
        index: Of the newest entry, from 1.
        leader: Name of the member that leads; empty before the first.
        position: Position of the journals after the newest entry.
        format: Format of the records in force.
        beat: Number of heads that this leader has written without an entry.
        nonce: 8 random bytes of the writer, so that it recognises its own head.
        version: The engine's version of the head. It is not part of the encoded head; 0 for one that was not written yet.
    """

    __slots__ = ("beat", "cluster", "format", "index", "leader", "nonce", "position", "term", "version")

    def __init__(
        self,
        cluster: bytes,
        term: int,
        index: int,
        leader: str,
        position: Position,
        format_: int,
        beat: int,
        nonce: bytes,
        version: int = 0,
    ) -> None:
        self.cluster: Final = cluster
        self.term: Final = term
        self.index: Final = index
        self.leader: Final = leader
        self.position: Final = position
        self.format: Final = format_
        self.beat: Final = beat
        self.nonce: Final = nonce
        self.version: Final = version

    def encode(self) -> bytes:
        """Return the bytes that the engine stores."""
        name = self.leader.encode()
        return b"".join(
            (
                _MAGIC,
                self.cluster,
                self.term.to_bytes(8, "big"),
                self.index.to_bytes(8, "big"),
                encode_position(self.position),
                self.format.to_bytes(2, "big"),
                self.beat.to_bytes(6, "big"),
                self.nonce,
                bytes((len(name),)),
                name,
            )
        )

    def wrote(self, other: "Head") -> bool:
        """Return True if `other`, read from the engine, is the head that was written as this one."""
        return self.encode() == other.encode()


def read_head(data: bytes, version: int) -> Head:
    """Return the head of these bytes.

    Args:
        data: As `Head.encode` returned them.
        version: The engine's version of the head.

    Raises:
        LogDamagedError: They are not a head of this release.
    """
    if len(data) < _FIXED_BYTES or data[:4] != _MAGIC or len(data) != _FIXED_BYTES + data[72]:
        raise LogDamagedError("the head of the log is not one of this release")
    try:
        position = read_position(data, 36)
        leader = data[73:].decode()
    except (MaxamError, UnicodeDecodeError) as error:
        raise LogDamagedError(f"the head of the log is damaged: {error}") from error
    return Head(
        data[4:20],
        int.from_bytes(data[20:28], "big"),
        int.from_bytes(data[28:36], "big"),
        leader,
        position,
        int.from_bytes(data[56:58], "big"),
        int.from_bytes(data[58:64], "big"),
        data[64:72],
        version,
    )


@final
class LogSize:
    """The size of the log, and the state of the engine.

    Attributes:
        bytes: Size of its data.
        in_use: Bytes of it that are in use.
        quota: Limit on the size; 0 if it is unknown.
        nodes: For each node that was asked: its address, and its version if it answers, else an empty text.
        full: The engine refuses all writes until an operator ends that.
    """

    __slots__ = ("bytes", "full", "in_use", "nodes", "quota")

    def __init__(
        self, size: int, in_use: int, quota: int, nodes: tuple[tuple[str, str], ...], *, full: bool = False
    ) -> None:
        self.bytes: Final = size
        self.in_use: Final = in_use
        self.quota: Final = quota
        self.nodes: Final = nodes
        self.full: Final = full


class Log(Protocol):
    """A replicated sequence of entries with one head. Calls block. Several threads may call at once."""

    @property
    def failures(self) -> int:
        """Number of tries to which no node of the engine gave an answer."""

    def head(self) -> Head | None:
        """Return the head, linearizably; None if the cluster has no log. Raises LogLostError, LogDamagedError."""

    def append(self, entry: bytes, head: Head, before: Head | None) -> Head:
        """Append an entry and replace the head, if the head is still `before`.

        Args:
            entry: Bytes of the entry whose index is `head.index`.
            head: The new head.
            before: The head that is compared, as this log returned it; None if there must be none.

        Returns:
            The new head with its version. It is returned also if an earlier try of this very call took effect.

        Raises:
            SupersededError: The head is another one.
            LogFullError: The engine has no room, and no try of this call is under way.
            LogLostError: The outcome is unknown: make the same call again.
        """

    def beat(self, head: Head, before: Head) -> Head:
        """Replace the head alone, likewise."""

    def read(self, first: int, bytes_max: int) -> list[bytes]:
        """Return entries from an index on, contiguous, at least one if there is one; [] after the newest.

        Raises:
            LogTrimmedError: The first one is no longer held.
            LogLostError, LogDamagedError: It cannot be read now.
        """

    def follow(self, first: int) -> Iterator[bytes | Head | None]:
        """Yield entries from an index on, and heads as they change. Yield None when a second has passed without either.

        A head is yielded after the entry that it names. The iterator raises what `read` raises, and ends with `close`.
        """

    def trim(self, last: int) -> None:
        """Forget the entries up to an index. Raises LogLostError."""

    def announce(self, name: str, text: bytes) -> None:
        """Publish what others see of a member. It may be lost. Raises LogLostError, LogFullError."""

    def announced(self) -> dict[str, bytes]:
        """Return what each member announced last. Raises LogLostError."""

    def forget(self, name: str) -> None:
        """Remove what a member announced. Raises LogLostError."""

    def size(self) -> LogSize:
        """Return what the engine holds, and which of its nodes answer. Raises LogLostError."""

    def close(self) -> None:
        """End all connections; calls that are under way raise LogLostError."""

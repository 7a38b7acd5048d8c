"""The plan of a repair: bytes that are left out, what they held as far as it is known, and the files that change."""

from dataclasses import asdict, dataclass
from typing import Any

from maxam.journal.encoding import Position
from maxam.journal.names import Segment


@dataclass(frozen=True, slots=True)
class Drop:
    """Bytes that are left out.

    Attributes:
        path: The file.
        offset: Place of the first byte.
        length: Number of bytes. 0 when something is missing between two blocks, or all of a file.
        fault: Description of the fault.
        first: First revision that was in them, 0 for none.
        last: The last one.
        exact: Nothing but these revisions can have been in them. If False, `last` is an upper bound.
        needed: A start needs them: topics and sessions are affected.
    """

    path: str
    offset: int
    length: int
    fault: str
    first: int
    last: int
    exact: bool
    needed: bool


@dataclass(frozen=True, slots=True)
class TopicLoss:
    """A topic that will show an older value than the one that was accepted last.

    Attributes:
        destination: Its name.
        lost: The newest revision of it that is known to be lost.
        deleted: That was a delete. None when only its revision is known.
        shown: The revision whose value, or delete, takes its place. 0 when the topic will be unknown.
        shown_at_us: When that was accepted; microseconds since the epoch.
        shown_deleted: That is a delete: the topic will have no value.
        certain: A whole record holds the name. If False, the name is from damaged bytes and may be wrong.
    """

    destination: str
    lost: int
    deleted: bool | None
    shown: int
    shown_at_us: int
    shown_deleted: bool
    certain: bool


@dataclass(frozen=True, slots=True)
class SessionLoss:
    """Lost operations of a durable session, as far as they are known."""

    principal: str
    client_id: str
    subscription: str
    kind: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Revisions that no file holds, in one of the folders `segments` and `rejected`."""

    folder: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Run:
    """Whole blocks of one file that follow each other.

    Attributes:
        path: The file.
        offset: Of the first block.
        end: Place after the last one. The mark of a finished file is not part of it.
        sync_marker: Of the file.
        before: Position at which the first block belongs.
        after: Position after the last one.
        records: In them.
        whole: The file is these blocks, with the header and end mark that belong to them, and nothing else.
        sealed: The file is finished.
    """

    path: str
    offset: int
    end: int
    sync_marker: bytes
    before: Position
    after: Position
    records: int
    whole: bool
    sealed: bool


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment that will be written: blocks of an old one after a header of their own, or none."""

    path: str
    run: Run | None
    before: Position
    sealed: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps and losses of a repair.

    Attributes:
        folder: The journal's.
        drops: Bytes that cannot be kept.
        gaps: Revisions that no file holds, except those that earlier repairs have lost.
        topics: Topics that are known to be affected, in order of their names.
        sessions: Operations of durable sessions that are known to be lost.
        unknown: Upper bound of the lost revisions whose topic is unknown.
        candidates: Topics that these can be of, because their newest known change is older. Also topics that only damaged bytes
            mention.
        notes: Further steps, and files that are left alone.
        removed: Files that will be moved to `damaged/`.
        written: Segments that will be written.
        snapshot: Revision of the snapshot that will be written, 0 for none.
        head: Revisions given from now on are above it.
        reindexed: Segments whose index will be made again.
    """

    folder: str
    drops: tuple[Drop, ...]
    gaps: tuple[Gap, ...]
    topics: tuple[TopicLoss, ...]
    sessions: tuple[SessionLoss, ...]
    unknown: int
    candidates: int
    notes: tuple[str, ...]
    removed: tuple[str, ...]
    written: tuple[NewSegment, ...]
    snapshot: int
    head: int
    reindexed: tuple[Segment, ...]

    @property
    def empty(self) -> bool:
        """True if there is nothing to do."""
        return not (self.removed or self.written or self.gaps or self.snapshot)

    def report(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "folder": self.folder,
            "dropped": [asdict(drop) for drop in self.drops],
            "lost": [asdict(gap) for gap in self.gaps],
            "topics": [asdict(topic) for topic in self.topics],
            "sessions": [asdict(session) for session in self.sessions],
            "unknown_revisions_max": self.unknown,
            "candidate_topics": self.candidates,
            "notes": list(self.notes),
            "removed": list(self.removed),
            "written": [one.path for one in self.written],
            "snapshot": self.snapshot,
            "head": self.head,
        }

"""Which subscriptions want a topic: an index over globs."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar, final

from maxam.globs import Glob

T = TypeVar("T")

_TRY_EACH_MAX: Final = 16  # this many newer globs are tried one by one sooner than found by segment
_DEAD_MIN: Final = 64  # fewer discarded items than this are never worth a compaction
_OWNED_MIN: Final = 16  # globs of one owner that cost more to try than to ask whether the owner may see the topic


@final
class _Group(Generic[T]):
    """All items of one glob, so that it is tried once for a thousand clients that subscribe to the same."""

    __slots__ = ("bucket", "glob", "owner", "positions", "shared")

    def __init__(self, glob: Glob, owner: str) -> None:
        self.glob: Final = glob
        self.owner: Final = owner  # of the first item
        self.shared = False  # another owner has an item too
        self.positions: Final[list[int]] = []  # ascending
        self.bucket: _Bucket[T] | None = None

    def share(self) -> None:
        """Note that another owner has an item."""
        if not self.shared:
            self.shared = True
            if self.bucket is not None:
                self.bucket.shared.setdefault(self.owner, []).append(self)


@final
class _Bucket(Generic[T]):
    """Groups that are tried for the same topics.

    Attributes:
        by_owner: All groups, by the owner of their first item.
        shared: Those of them in which another owner has an item.
    """

    __slots__ = ("by_owner", "shared")

    def __init__(self) -> None:
        self.by_owner: Final[dict[str, list[_Group[T]]]] = {}
        self.shared: Final[dict[str, list[_Group[T]]]] = {}

    def __len__(self) -> int:
        return sum([len(groups) for groups in self.by_owner.values()])

    def add(self, group: _Group[T]) -> None:
        """Add a group."""
        group.bucket = self
        self.by_owner.setdefault(group.owner, []).append(group)
        if group.shared:
            self.shared.setdefault(group.owner, []).append(group)


@final
class MatchIndex(Generic[T]):
    """Items under globs, found by destination.

    Every item has a position; later ones have higher positions. A caller may keep the matches of a topic together with
    `epoch` and `position`, and later ask for those added since. When `epoch` has changed, it must start over. Its list may hold items
    that were discarded meanwhile, which it must recognise.

    A glob is filed under the literal segment of it that the fewest globs hold. A topic without that segment cannot match the
    glob. Memory and time are bounded by the items present, not by how many came and went.

    Items have owners. The globs of an owner that may not see a topic are not tried for it. So one owner costs the others little.

    Attributes:
        epoch: Grows when positions are assigned again.
    """

    __slots__ = ("_anywhere", "_buckets", "_entries", "_frequencies", "_groups", "_positions", "epoch")

    def __init__(self) -> None:
        self.epoch = 0
        self._entries: list[tuple[Glob, T, str] | None] = []  # by position; None was discarded
        self._positions: dict[T, int] = {}
        self._groups: dict[Glob, _Group[T]] = {}
        self._buckets: dict[str, _Bucket[T]] = {}
        self._anywhere: _Bucket[T] = _Bucket()  # no literal segment
        self._frequencies: dict[str, int] = {}  # how many groups hold a literal segment

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def position(self) -> int:
        """The position that the next item gets."""
        return len(self._entries)

    def add(self, glob: Glob, item: T, owner: str = "") -> None:
        """Add an item, which must not be present; `owner` is who is asked about in `matches`."""
        if item in self._positions:
            raise ValueError(f"{item!r} is in the index already")
        group = self._groups.get(glob)
        if group is None:
            group = self._groups[glob] = _Group(glob, owner)
            for segment in glob.literals:
                self._frequencies[segment] = self._frequencies.get(segment, 0) + 1
            self._file(group)
        elif group.owner != owner:
            group.share()
        position = len(self._entries)
        group.positions.append(position)
        self._positions[item] = position
        self._entries.append((glob, item, owner))

    def discard(self, item: T) -> None:
        """Remove an item if it is present. Now and then this assigns all positions again and changes `epoch`."""
        position = self._positions.pop(item, None)
        if position is None:
            return
        self._entries[position] = None
        dead = len(self._entries) - len(self._positions)
        if dead > max(_DEAD_MIN, len(self._positions)):
            self._compact()

    def matches(self, destination: str, since: int = 0, may_see: Callable[[str, str], bool] | None = None) -> list[T]:
        """List the items whose glob matches, in order of adding.

        Args:
            destination: Of a topic.
            since: Only items from this position on, one that this epoch's `position` gave.
            may_see: Called with an owner and the destination; where it returns False, items of that owner may be left out.
        """
        if len(self._entries) - since <= _TRY_EACH_MAX:
            late = self._entries[since:] if since else self._entries
            return [entry[1] for entry in late if entry is not None and entry[0].matches(destination)]
        found: list[int] = []
        for segment in set(destination.replace("/", ".").split(".")):
            bucket = self._buckets.get(segment)
            if bucket is not None:
                self._collect(bucket, destination, since, may_see, found)
        self._collect(self._anywhere, destination, since, may_see, found)
        found.sort()
        items: list[T] = []
        for position in found:
            entry = self._entries[position]
            if entry is not None:
                items.append(entry[1])
        return items

    def added_since(self, position: int) -> Sequence[tuple[Glob, T]]:
        """List what was added at or after a position of this epoch and is still present, in order of adding."""
        return [(entry[0], entry[1]) for entry in self._entries[position:] if entry is not None]

    def _collect(
        self,
        bucket: _Bucket[T],
        destination: str,
        since: int,
        may_see: Callable[[str, str], bool] | None,
        found: list[int],
    ) -> None:
        for owner, groups in bucket.by_owner.items():
            if len(groups) >= _OWNED_MIN and may_see is not None and not may_see(owner, destination):
                groups = bucket.shared.get(owner, [])  # noqa: PLW2901  # the others are left out
            for group in groups:
                positions = group.positions
                if positions[-1] >= since and group.glob.matches(destination):
                    found.extend(positions[bisect_left(positions, since) :] if since else positions)

    def _file(self, group: _Group[T]) -> None:
        literals = group.glob.literals
        if not literals:
            self._anywhere.add(group)
            return
        rarest = literals[-1]  # among equals the last is the most telling
        for segment in literals:
            if self._frequencies[segment] < self._frequencies[rarest]:
                rarest = segment
        bucket = self._buckets.get(rarest)
        if bucket is None:
            bucket = self._buckets[rarest] = _Bucket()
        bucket.add(group)

    def _compact(self) -> None:
        entries = [entry for entry in self._entries if entry is not None]
        groups: dict[Glob, _Group[T]] = {}
        for position, (glob, item, owner) in enumerate(entries):
            self._positions[item] = position
            group = groups.get(glob)
            if group is None:
                group = groups[glob] = _Group(glob, owner)
            elif group.owner != owner:
                group.share()
            group.positions.append(position)
        self._entries = [*entries]
        self._groups = groups
        self._frequencies = {}
        for glob in groups:
            for segment in glob.literals:
                self._frequencies[segment] = self._frequencies.get(segment, 0) + 1
        self._buckets = {}
        self._anywhere = _Bucket()
        for group in groups.values():
            self._file(group)
        self.epoch += 1

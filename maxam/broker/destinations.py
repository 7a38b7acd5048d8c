"""Which subscriptions want a topic: an index over globs."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Generic, TypeVar, final

from maxam.globs import Glob

T = TypeVar("T")

_TRY_EACH_MAX: Final = 16  # so many newer globs are tried one by one sooner than looked up
_DEAD_MIN: Final = 64  # fewer discarded items than this are never worth a compaction


@final
class _Group(Generic[T]):
    """All items of one glob, so that it is tried once for a thousand clients that subscribe to the same."""

    __slots__ = ("glob", "positions")

    def __init__(self, glob: Glob) -> None:
        self.glob: Final = glob
        self.positions: Final[list[int]] = []  # ascending


@final
class MatchIndex(Generic[T]):
    """Items under globs, found by destination.

    Every item has a position; later ones have higher positions. A caller may keep the matches of a topic together with
    `epoch` and `position` and later ask for those added since; when `epoch` has changed, it must start over. What it
    kept may hold items that were discarded meanwhile: it must be able to tell.

    A glob is filed under the one of its literal segments that the fewest globs hold: what a topic has no segment of
    cannot match it. Memory and time are bounded by the items present, not by how many came and went.

    Attributes:
        epoch: Grows when positions are given anew.
    """

    __slots__ = ("_anywhere", "_buckets", "_entries", "_frequencies", "_groups", "_positions", "epoch")

    def __init__(self) -> None:
        self.epoch = 0
        self._entries: list[tuple[Glob, T] | None] = []  # by position; None was discarded
        self._positions: dict[T, int] = {}
        self._groups: dict[Glob, _Group[T]] = {}
        self._buckets: dict[str, list[_Group[T]]] = {}
        self._anywhere: list[_Group[T]] = []  # no literal segment
        self._frequencies: dict[str, int] = {}  # how many groups hold a literal segment

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def position(self) -> int:
        """The position that the next item gets."""
        return len(self._entries)

    def add(self, glob: Glob, item: T) -> None:
        """Add an item, which must not be present."""
        if item in self._positions:
            raise ValueError(f"{item!r} is in the index already")
        group = self._groups.get(glob)
        if group is None:
            group = self._groups[glob] = _Group(glob)
            for segment in glob.literals:
                self._frequencies[segment] = self._frequencies.get(segment, 0) + 1
            self._file(group)
        position = len(self._entries)
        group.positions.append(position)
        self._positions[item] = position
        self._entries.append((glob, item))

    def discard(self, item: T) -> None:
        """Remove an item if it is present. Now and then this gives all positions anew and changes `epoch`."""
        position = self._positions.pop(item, None)
        if position is None:
            return
        self._entries[position] = None
        dead = len(self._entries) - len(self._positions)
        if dead > max(_DEAD_MIN, len(self._positions)):
            self._compact()

    def matches(self, destination: str, since: int = 0) -> list[T]:
        """List the items whose glob matches, in order of adding.

        Args:
            destination: Of a topic.
            since: Only items from this position on, one that this epoch's `position` gave.
        """
        if len(self._entries) - since <= _TRY_EACH_MAX:
            late = self._entries[since:] if since else self._entries
            return [entry[1] for entry in late if entry is not None and entry[0].matches(destination)]
        found: list[int] = []
        for segment in set(destination.replace("/", ".").split(".")):
            bucket = self._buckets.get(segment)
            if bucket is not None:
                self._collect(bucket, destination, since, found)
        self._collect(self._anywhere, destination, since, found)
        found.sort()
        items: list[T] = []
        for position in found:
            entry = self._entries[position]
            if entry is not None:
                items.append(entry[1])
        return items

    def added_since(self, position: int) -> Sequence[tuple[Glob, T]]:
        """List what was added at or after a position of this epoch and is still present, in order of adding."""
        return [entry for entry in self._entries[position:] if entry is not None]

    def _collect(self, groups: list[_Group[T]], destination: str, since: int, found: list[int]) -> None:
        for group in groups:
            positions = group.positions
            if positions[-1] >= since and group.glob.matches(destination):
                found.extend(positions[bisect_left(positions, since) :] if since else positions)

    def _file(self, group: _Group[T]) -> None:
        literals = group.glob.literals
        if not literals:
            self._anywhere.append(group)
            return
        rarest = literals[-1]  # among equals the last is the most telling
        for segment in literals:
            if self._frequencies[segment] < self._frequencies[rarest]:
                rarest = segment
        self._buckets.setdefault(rarest, []).append(group)

    def _compact(self) -> None:
        entries = [entry for entry in self._entries if entry is not None]
        groups: dict[Glob, _Group[T]] = {}
        for position, (glob, item) in enumerate(entries):
            self._positions[item] = position
            group = groups.get(glob)
            if group is None:
                group = groups[glob] = _Group(glob)
            group.positions.append(position)
        self._entries = [*entries]
        self._groups = groups
        self._frequencies = {}
        for glob in groups:
            for segment in glob.literals:
                self._frequencies[segment] = self._frequencies.get(segment, 0) + 1
        self._buckets = {}
        self._anywhere = []
        for group in groups.values():
            self._file(group)
        self.epoch += 1

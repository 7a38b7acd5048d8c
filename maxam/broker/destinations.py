"""Which subscriptions want a topic: an index over globs."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar, final

from maxam.broker.glob_trie import GlobTrie, weight
from maxam.globs import Glob

T = TypeVar("T")

_TRY_EACH_MAX: Final = 16  # this many newer globs are tried one by one sooner than found in the tries
_DEAD_MIN: Final = 64  # fewer discarded items than this are never worth a compaction
_COMMON_MAX: Final = 16  # weight of the items of one owner in the trie of all. The others are in a trie of the owner
STEPS_PER_ITEM: Final = 8  # of a search in the trie of an owner: more take longer than to try each glob
STEPS_MAX: Final = 200  # of such a search that may be cut off: some 10 us
_NO_LIMIT: Final = 1 << 60


@final
class _Owned:
    """The items of one owner that are not in the trie of all."""

    __slots__ = ("positions", "trie")

    def __init__(self) -> None:
        self.trie: Final = GlobTrie()
        self.positions: Final[list[int]] = []  # ascending


@final
class MatchIndex(Generic[T]):
    """Items under globs, found by destination.

    Every item has a position; later ones have higher positions. A caller may keep the matches of a topic together with
    `epoch` and `position`, and later ask for those added since. When `epoch` has changed, it must start over. Its list may hold items
    that were discarded meanwhile, which it must recognise.

    Memory and time are bounded by the items present, not by how many came and went.

    Items have owners. The first few globs of each owner share a trie, if they are such that a lookup always takes few steps. All others are in a
    trie of the owner. It is not searched for a topic that the owner may not see. A search that takes more than `STEPS_MAX` steps is cut off if that is
    allowed. Otherwise it is given up after `STEPS_PER_ITEM` steps for each item, and each glob of the owner is tried. So no choice of globs
    makes a lookup take more than twice as long as to try each.

    Attributes:
        epoch: Grows when positions are assigned again.
        cut: Owners whose items beyond the first few the last lookup has left out, as it would have taken too long.
    """

    __slots__ = ("_common", "_entries", "_owned", "_positions", "_renumbered", "_weights", "cut", "epoch")

    def __init__(self) -> None:
        self.epoch = 0
        self.cut: Final[list[str]] = []
        self._renumbered: list[int] = []  # the positions in the epoch before, in the order of now
        self._entries: list[tuple[Glob, T, str] | None] = []  # by position; None was discarded
        self._positions: dict[T, int] = {}
        self._common = GlobTrie()
        self._owned: dict[str, _Owned] = {}
        self._weights: dict[str, int] = {}  # by owner: of the items that were added to the trie of all in this epoch

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
        position = len(self._entries)
        self._positions[item] = position
        self._entries.append((glob, item, owner))
        self._file(glob, position, owner)

    def discard(self, item: T) -> None:
        """Remove an item if it is present. Now and then this assigns all positions again and changes `epoch`."""
        position = self._positions.pop(item, None)
        if position is None:
            return
        self._entries[position] = None
        dead = len(self._entries) - len(self._positions)
        if dead > max(_DEAD_MIN, len(self._positions)):
            self._compact()

    def matches(
        self,
        destination: str,
        since: int = 0,
        may_see: Callable[[str, str], bool] | None = None,
        may_cut: bool = False,
    ) -> list[T]:
        """List the items whose glob matches, in order of adding.

        Args:
            destination: Of a topic.
            since: Only items from this position on, one that this epoch's `position` gave.
            may_see: Called with an owner and the destination; where it returns False, items of that owner may be left out.
            may_cut: A search for the items of an owner that takes too long is cut off, see `cut`.
        """
        self.cut.clear()
        if len(self._entries) - since <= _TRY_EACH_MAX:
            late = self._entries[since:] if since else self._entries
            return [entry[1] for entry in late if entry is not None and entry[0].matches(destination)]
        found: list[int] = []
        self._common.collect(destination, since, found, _NO_LIMIT)
        for owner, owned in self._owned.items():
            if owned.trie.newest < since or (may_see is not None and not may_see(owner, destination)):
                continue
            known = len(found)
            steps = STEPS_MAX if may_cut else STEPS_PER_ITEM * len(owned.positions)
            if owned.trie.collect(destination, since, found, steps):
                continue
            del found[known:]
            if may_cut:
                self.cut.append(owner)
            else:
                self._try_each(owned, destination, since, found)
        found.sort()
        items: list[T] = []
        for position in found:
            entry = self._entries[position]
            if entry is not None:
                items.append(entry[1])
        return items

    def owned(self, owner: str) -> Sequence[int]:
        """Return the positions of the items that `cut` concerns, ascending, with those of items that were discarded."""
        owned = self._owned.get(owner)
        return [] if owned is None else owned.positions

    def at(self, position: int) -> tuple[Glob, T] | None:
        """Return a glob and its item, None if the item was discarded."""
        entry = self._entries[position]
        return None if entry is None else (entry[0], entry[1])

    def renumbered(self, position: int) -> int:
        """Return what has become of a position of the epoch before."""
        return bisect_left(self._renumbered, position)

    def _try_each(self, owned: _Owned, destination: str, since: int, found: list[int]) -> None:
        """Append the positions of the matching items of an owner. A glob that has several items is tried once."""
        tried: dict[Glob, bool] = {}
        for position in owned.positions[bisect_left(owned.positions, since) :]:
            entry = self._entries[position]
            if entry is None:
                continue
            glob = entry[0]
            matches = tried.get(glob)
            if matches is None:
                matches = tried[glob] = glob.matches(destination)
            if matches:
                found.append(position)

    def _file(self, glob: Glob, position: int, owner: str) -> None:
        total = self._weights.get(owner, 0) + weight(glob)
        if total <= _COMMON_MAX:
            self._weights[owner] = total
            self._common.add(glob, position)
            return
        owned = self._owned.get(owner)
        if owned is None:
            owned = self._owned[owner] = _Owned()
        owned.positions.append(position)
        owned.trie.add(glob, position)

    def _compact(self) -> None:
        self._renumbered = [position for position, entry in enumerate(self._entries) if entry is not None]
        entries = [entry for entry in self._entries if entry is not None]
        self._entries = [*entries]
        self._common = GlobTrie()
        self._owned = {}
        self._weights = {}
        for position, (glob, item, owner) in enumerate(entries):
            self._positions[item] = position
            self._file(glob, position, owner)
        self.epoch += 1

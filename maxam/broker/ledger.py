"""Whose operation is at which position: the operations of fronts in the order of all operations.

Each operation of a front appends exactly one operation to the log of the broker that orders it. The ledger notes runs of them. When a
batch is taken, it makes the origins of the batch: which records are whose, and what was refused.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, final

from maxam.broker.operations import Operation, Proof, Refusal, TransientSubscribe
from maxam.broker.origins import ENDED, Origin, RefusedOperation, Run

DISK_FULL: Final = "disk-full"
NO_ROOM: Final = "the journal has no room; try again later"


@final
class _Stretch:
    """Operations of one front at consecutive positions, with consecutive numbers.

    Attributes:
        front: Identifier of the front.
        position: Of the first one.
        number: Of the first one.
        count: How many.
        refused: The one that it is was refused; None if they take effect.
    """

    __slots__ = ("count", "front", "number", "position", "refused")

    def __init__(
        self, front: bytes, position: int, number: int, count: int, refused: RefusedOperation | None = None
    ) -> None:
        self.front: Final = front
        self.position: Final = position
        self.number: Final = number
        self.count = count
        self.refused: Final = refused


@final
class Ledger:
    """The operations of fronts that are not taken, or not done, in their order."""

    __slots__ = ("_stretches", "_taken", "_under_way")

    def __init__(self, position: int) -> None:
        """Begin empty; `position` is that of the last operation that was taken."""
        self._taken = position
        self._stretches: deque[_Stretch] = deque()
        self._under_way: list[_Stretch] = []  # of the batch that was taken last

    def note(self, front: bytes, number: int, position: int) -> None:
        """Note that an operation of a front was appended at a position."""
        if self._stretches:
            last = self._stretches[-1]
            goes_on = last.number + last.count == number and last.position + last.count == position
            if goes_on and last.front == front and last.refused is None:
                last.count += 1
                return
        self._stretches.append(_Stretch(front, position, number, 1))

    def note_refused(self, front: bytes, refused: RefusedOperation, position: int) -> None:
        """Note that an operation was refused. The Proof at the position stands for it, after all that it was compared with."""
        self._stretches.append(_Stretch(front, position, refused.number, 1, refused))

    def note_end(self, front: bytes, position: int) -> None:
        """Note that a front has ended. The Proof at the position stands for that."""
        self._stretches.append(_Stretch(front, position, ENDED, 1))

    def forget(self, front: bytes) -> None:
        """Forget a front that has ended."""
        self._stretches = deque([one for one in self._stretches if one.front != front])

    def take(self, operations: list[Operation]) -> list[Origin]:
        """Return the origins of the batch that is taken next."""
        first = self._taken + 1
        self._taken += len(operations)
        stretches = self._stretches
        origins: dict[bytes, Origin] = {}
        self._under_way.clear()
        position = first
        place = 0  # records before `position`
        while stretches and stretches[0].position <= self._taken:
            stretch = stretches.popleft()
            left = stretch.position + stretch.count - 1 - self._taken
            if left > 0:  # the batch ends within it
                taken = stretch.count - left
                rest = _Stretch(stretch.front, stretch.position + taken, stretch.number + taken, left)
                stretches.appendleft(rest)
                stretch.count = taken
            self._under_way.append(stretch)
            while position < stretch.position:
                place += _has_record(operations[position - first])
                position += 1
            origin = origins.get(stretch.front)
            if origin is None:
                origin = origins[stretch.front] = Origin(stretch.front)
            origin.done = stretch.number + stretch.count - 1
            if stretch.refused is not None:
                origin.refusals.append(stretch.refused)
                position += 1
                continue
            for number in range(stretch.number, stretch.number + stretch.count):
                if _has_record(operations[position - first]):
                    _extend(origin.runs, place, number)
                    place += 1
                position += 1
        return list(origins.values())

    def roll_back(self, refusal: Refusal, applied_seq: int) -> list[Origin]:
        """Follow the broker in giving back the batch that was taken last and all after it; return what that refuses.

        Args:
            refusal: Operations that the broker gave back, and new positions of the others.
            applied_seq: Position of the last operation that is done, after that.
        """
        before = [*self._under_way, *self._stretches]
        self._under_way.clear()
        self._stretches = deque()
        self._taken = applied_seq
        origins: dict[bytes, Origin] = {}
        for stretch in before:
            for at in range(stretch.count):
                position = refusal.moved.get(stretch.position + at, 0)
                number = stretch.number + at
                if stretch.refused is not None and position:  # what it was compared with may be gone
                    self.note_refused(stretch.front, RefusedOperation(number, DISK_FULL, NO_ROOM), position)
                elif position:
                    self.note(stretch.front, number, position)
                else:
                    origin = origins.setdefault(stretch.front, Origin(stretch.front))
                    origin.refusals.append(RefusedOperation(number, DISK_FULL, NO_ROOM))
        return list(origins.values())

    def numbers(self, front: bytes) -> Iterator[int]:
        """Iterate over the numbers of a front's operations that are not done."""
        for stretch in (*self._under_way, *self._stretches):
            if stretch.front == front:
                yield from range(stretch.number, stretch.number + stretch.count)


def _has_record(operation: Operation) -> bool:
    return type(operation) is not Proof and type(operation) is not TransientSubscribe


def _extend(runs: list[Run], place: int, number: int) -> None:
    if runs:
        last = runs[-1]
        if last.place + last.count == place and last.number + last.count == number:
            last.count += 1
            return
    runs.append(Run(place, number, 1))

"""Drills: a cut of the line on request, and the proof afterwards that both sides are equal."""

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import final

from maxam.bridge.flow import Item
from maxam.links import LinkDrill, Wanted


class Step(Enum):
    """Where a drill is."""

    NONE = 0
    ASKED = 1  # Link is to show it
    CUT = 2
    CATCHING_UP = 3  # the sessions hand over what they have collected
    COMPARING = 4  # an inventory counts differences


@final
class Drills:
    """The drill under way, or the last one.

    Attributes:
        drill: Its figures, or None.
        step: Where it is.
    """

    def __init__(self) -> None:
        self.drill: LinkDrill | None = None
        self.step = Step.NONE
        self._seen: set[str] | None = None  # ids; None until the first run
        self._connected_s = 0.0
        self._sent = 0
        self._outstanding: set[Item] | None = None

    def ask(self, wanted: Iterable[Wanted]) -> bool:
        """Begin a drill that is wanted and new. Return True if there is one. Requests from before the start are not new."""
        asked = [each.drill for each in wanted if each.drill is not None]
        if self._seen is None:
            self._seen = {each.id for each in asked}
        for wanted_drill in asked:
            name = wanted_drill.id
            if name not in self._seen and self.step is Step.NONE:
                self._seen.add(name)
                self.drill = LinkDrill(name, wanted_drill.seconds, False, 0, 0, 0)
                self.step = Step.ASKED
                return True
        return False

    def connected(self, now_s: float, sent: int) -> None:
        """Record that all lanes are connected. `sent` is the number of SENDs so far."""
        if self.step is Step.CUT:
            self.step = Step.CATCHING_UP
            self._connected_s = now_s
            self._sent = sent
        self._outstanding = None

    def caught_up(self, now_s: float, sent: int, items: Iterable[Item]) -> bool:
        """Record the SENDs that have no answer yet. Return True when all that the sessions had collected are answered."""
        if self.step is not Step.CATCHING_UP or self.drill is None:
            return False
        now = set(items)
        self._outstanding = now if self._outstanding is None else self._outstanding & now
        if self._outstanding:
            return False
        self.step = Step.COMPARING
        converged_ms = int((now_s - self._connected_s) * 1000)
        self.drill = replace(self.drill, moved=sent - self._sent, converged_ms=converged_ms)
        return True

    def differ(self, count: int) -> None:
        """Record topics that differ."""
        if self.step is Step.COMPARING and self.drill is not None:
            self.drill = replace(self.drill, differences=self.drill.differences + count)

    def compared(self) -> bool:
        """Record that an inventory is complete. Return True if that ends the drill."""
        if self.step is not Step.COMPARING or self.drill is None:
            return False
        self.step = Step.NONE
        self.drill = replace(self.drill, done=True)
        return True

"""The process of a bridge: its lanes, its clock, and the relay between them."""

import logging
import socket
import time
from collections.abc import Callable
from typing import Final, final

import trio

from maxam.bridge.config import Configuration
from maxam.bridge.lane import Lane, TakenOverError
from maxam.bridge.relay import Phase, Relay
from maxam.bridge.wishes import CENTRE, GUEST, PRIORITIES, Ack, Close, End, Log, Open
from maxam.gateway.log import log_event

TICK_S: Final = 0.25
_ERRORS: Final = frozenset(("bridge-not-allowed", "bridge-link-rejected"))
_NOTES: Final = frozenset(("bridge-drill-done",))


@final
class DoubledError(Exception):
    """Another venue with our name is connected to the centre."""


@final
class Bridge:
    """A running bridge.

    Attributes:
        relay: Its decisions.
        lanes: Its connections.
    """

    def __init__(self, configuration: Configuration, ready: Callable[[], None] = lambda: None) -> None:
        """Make one that has no connection yet. `ready` is called when both sides are equal for the first time."""
        self.relay: Final = Relay(configuration.plan(socket.gethostname()))
        self.lanes: Final[dict[int, Lane]] = {}
        self._ready: Callable[[], None] | None = ready
        self._phase = Phase.WAITING
        self._started_s: Final = time.time() - trio.current_time()
        self._open: list[Lane] = []
        self._opened: Final = trio.Event()
        self._wake = trio.Event()
        self._ended = ""
        name = configuration.venue.name
        self._add(GUEST, configuration, None)
        self._add(CENTRE, configuration, f"bridge-{name}")
        for lane in self.relay.plan.lanes():
            self._add(lane, configuration, f"bridge-{name}-{PRIORITIES[lane - CENTRE - 1]}")

    async def run(self) -> None:
        """Forward until cancelled.

        Raises:
            TakenOverError: Another bridge has connected under our name. May be in a group.
            DoubledError: Another venue is connected under our name.
        """
        async with trio.open_nursery() as nursery:
            self.relay.start(self._now())
            self._pump()
            nursery.start_soon(self._tick)
            while True:
                for lane in self._open:
                    nursery.start_soon(lane.keep)
                self._open.clear()
                if self._ended:
                    raise DoubledError(self._ended)
                self._wake = trio.Event()
                await self._wake.wait()

    async def _tick(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self.relay.tick(self._now())
            self._pump()

    def _add(self, number: int, configuration: Configuration, client_id: str | None) -> None:
        side = configuration.centre if number in (CENTRE, GUEST) else configuration.venue
        self.lanes[number] = Lane(number, side, client_id, self.relay, self._now, self._pump)

    def _now(self) -> float:
        """Return seconds since the epoch that never run backwards."""
        return self._started_s + trio.current_time()

    def _pump(self) -> None:
        """Carry out what the relay wishes."""
        for wish in self.relay.take_wishes():
            match wish:
                case Ack():
                    any(lane.acknowledge(wish) for lane in self.lanes.values())
                case Open():
                    self._open.append(self.lanes[wish.lane])
                    self._wake.set()
                case Close():
                    self.lanes[wish.lane].close(wish.wait_s)
                case Log():
                    level = (
                        logging.ERROR
                        if wish.event in _ERRORS
                        else logging.INFO
                        if wish.event in _NOTES
                        else logging.WARNING
                    )
                    log_event(level, wish.event, **wish.fields)
                case End():
                    self._ended = wish.reason
                    self._wake.set()
                case _:
                    self.lanes[wish.lane].do(wish)
        phase = self.relay.phase
        if phase is not self._phase:
            self._phase = phase
            if phase in (Phase.RUNNING, Phase.PAUSED, Phase.MARKING, Phase.RESUMING, Phase.WAITING):
                log_event(logging.INFO, "bridge-state", state=phase.name.lower(), sent=self.relay.sent)
            if phase in (Phase.RUNNING, Phase.PAUSED) and self._ready is not None:
                self._ready()
                self._ready = None


__all__ = ["Bridge", "DoubledError", "TakenOverError"]

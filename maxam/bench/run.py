"""One run from its plan to its report: processes are started, synchronised, watched, and asked for their results."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any, Final, final

from maxam.bench.errors import LoadError
from maxam.bench.plan import Plan, wanted_topics
from maxam.bench.publishing import Published, publish
from maxam.bench.relay import Relay
from maxam.bench.report import GroupResult, Report, sum_up
from maxam.bench.subscribing import Received, subscribe
from maxam.bench.worker import Times, Worker

_READY_TIMEOUT_S: Final = 600.0  # for all connections
_HEADSTART_NS: Final = 100_000_000  # for the word that it begins to come round
_FINALS_SLACK_NS: Final = 100_000_000
_TICK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    phase: str  # connecting, warming up, measuring, settling
    elapsed_s: float  # since the publishers began
    span_s: float  # how long they send
    sent: int
    messages: int


Show = Callable[[Progress], None]


def run(plan: Plan, show: Show | None = None, at_measure: Callable[[bool], None] | None = None) -> Report:
    """Do one run.

    Args:
        plan: The work to do.
        show: Called some four times a second.
        at_measure: Called with True when the measurement begins and with False when it ends, to measure the broker.

    Raises:
        LoadError: It cannot be done, or broke off; nothing of it is left but the values that the broker keeps.
    """
    plan.check()
    wanted = wanted_topics(plan)
    name = os.urandom(3).hex()
    with _relays(plan) as relays, _workers(plan, name, wanted, relays) as (publishers, subscribers):
        return _Run(plan, publishers, subscribers, list(relays.values()), show, at_measure).run(wanted)


@contextmanager
def _relays(plan: Plan) -> Iterator[dict[str, Relay]]:
    """Start a relay for each group of subscribers that is far away; they are found by its name."""
    relays: dict[str, Relay] = {}
    try:
        for group in plan.groups:
            if group.round_trip_ms:
                relays[group.name] = Relay(plan.target, group.round_trip_ms, group.jitter_ms, plan.cores)
        yield relays
    finally:
        for relay in relays.values():
            relay.end()


@contextmanager
def _workers(
    plan: Plan, name: str, wanted: dict[str, Sequence[int]], relays: Mapping[str, Relay]
) -> Iterator[tuple[list[Worker], list[list[Worker]]]]:
    publishers: list[Worker] = []
    subscribers: list[list[Worker]] = []
    try:
        for group in plan.groups:
            subscribers.append([])
            relay = relays.get(group.name)
            theirs = plan if relay is None else replace(plan, target=relay.target)
            subscribers[-1].extend(
                Worker(group.name, subscribe, theirs, name, group, process, wanted, cores=plan.cores)
                for process in range(min(group.processes, group.connections))
            )
        publishers.extend(
            Worker("publishers", publish, plan, name, process, cores=plan.cores)
            for process in range(min(plan.publisher_processes, plan.publishers))
        )
        yield publishers, subscribers
    finally:
        for worker in (*publishers, *(worker for of_group in subscribers for worker in of_group)):
            worker.end()


@final
class _Run:
    def __init__(
        self,
        plan: Plan,
        publishers: list[Worker],
        subscribers: list[list[Worker]],
        relays: Sequence[Relay],
        show: Show | None,
        at_measure: Callable[[bool], None] | None,
    ) -> None:
        self._plan: Final = plan
        self._publishers: Final = publishers
        self._subscribers: Final = subscribers
        self._relays: Final = relays
        self._all: Final = [*publishers, *(worker for of_group in subscribers for worker in of_group)]
        self._show: Final = show
        self._at_measure: Final = at_measure
        self._counts: Final[dict[Worker, tuple[int, int]]] = {}
        self._ready: Final[set[Worker]] = set()
        self._settled: Final[set[Worker]] = set()
        self._answers: Final[dict[Worker, Any]] = {}
        self._times = Times(0, 0, 0, 0)

    def run(self, wanted: dict[str, Sequence[int]]) -> Report:
        plan = self._plan
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        self._until(lambda: len(self._ready) == len(self._all), deadline_s, "connecting")
        if len(self._ready) < len(self._all):
            raise LoadError(f"the connections were not set up within {_READY_TIMEOUT_S:g} s")
        self._times = times = self._plan_times()
        for worker in self._all:
            worker.send(times)
        for relay in self._relays:
            relay.begin(times)
        self._until(lambda: False, times.measure_ns / 1e9, "warming up")
        if self._at_measure is not None:
            self._at_measure(True)
        self._until(self._published, times.end_ns / 1e9, "measuring")
        if self._at_measure is not None:
            self._at_measure(False)
        deadline_s = time.monotonic() + plan.settle_s + 1.0
        self._until(self._published, deadline_s + 1.0, "settling")
        deadline_s = min(deadline_s, time.monotonic() + plan.settle_s)
        receivers = [worker for of_group in self._subscribers for worker in of_group]
        self._until(lambda: all(worker in self._settled for worker in receivers), deadline_s, "settling")
        for worker in receivers:
            worker.send("stop")
        self._until(lambda: len(self._answers) == len(self._all), time.monotonic() + plan.settle_s + 5.0, "settling")
        silent = {worker.name for worker in self._all if worker not in self._answers}
        if silent:
            raise LoadError(
                f"no answer came from the processes of the {', '.join(sorted(silent))}; is the machine out of processor time?"
            )
        published: list[Published] = [self._answers[worker] for worker in self._publishers]
        groups: list[GroupResult] = []
        for group, of_group in zip(plan.groups, self._subscribers, strict=True):
            received: list[Received] = [self._answers[worker] for worker in of_group]
            groups.append(GroupResult(group, received))
        return sum_up(plan, times, wanted, published, groups, [relay.finish() for relay in self._relays])

    def _published(self) -> bool:
        return all(worker in self._answers for worker in self._publishers)

    def _plan_times(self) -> Times:
        plan = self._plan
        origin_ns = time.monotonic_ns() + _HEADSTART_NS
        end_ns = origin_ns + int(plan.span_s * 1e9)
        finals_ns = end_ns - _FINALS_SLACK_NS
        if plan.per_second:
            finals_ns -= int(plan.topics / plan.per_second * 1e9)
        elif plan.once:
            finals_ns = origin_ns
        return Times(origin_ns, origin_ns + int(plan.warm_up_s * 1e9), end_ns, finals_ns)

    def _until(self, done: Callable[[], bool], deadline_s: float, phase: str) -> None:
        """Listen until something is done, but no longer than to a point in time.

        Raises:
            LoadError: A process failed.
        """
        while not done() and (rest_s := deadline_s - time.monotonic()) > 0:
            listening = {worker.connection: worker for worker in self._all if worker not in self._answers}
            if not listening:
                time.sleep(min(rest_s, _TICK_S))
            for connection in wait(list(listening), min(rest_s, _TICK_S)):
                worker = listening[connection]  # type: ignore[index]  # they are the connections that we gave
                self._heard(worker, *worker.hear())
            if self._show is not None:
                counts = self._counts.values()
                elapsed_s = max(0.0, time.monotonic() - self._times.origin_ns / 1e9) if self._times.origin_ns else 0.0
                self._show(
                    Progress(
                        phase, elapsed_s, self._plan.span_s, sum(sent for sent, _ in counts), sum(m for _, m in counts)
                    )
                )

    def _heard(self, worker: Worker, what: str, value: Any) -> None:  # noqa: ANN401  # as the work has it
        if what == "ready":
            self._ready.add(worker)
        elif what == "progress":
            self._counts[worker] = value
        elif what == "settled":
            self._settled.add(worker)
        else:
            self._answers[worker] = value

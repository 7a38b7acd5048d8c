"""All globs are put off: each new topic is compared with them in the background, one glob after the other."""

import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from maxam.broker.broker import Broker
from maxam.broker.operations import Operation
from maxam.broker.scans import Scanner
from tests.simulation import model
from tests.simulation.overtaken import overtaken
from tests.simulation.refined_histories import refined, selective
from tests.simulation.walks import directed, walk

pytestmark = pytest.mark.interpreted  # compiled, the constants are part of the code

HISTORIES = (walk, directed, overtaken, refined, selective)


@pytest.fixture(autouse=True)
def late() -> Iterator[None]:
    """Make each new topic late for all owners."""
    limits: dict[str, Any] = {"_COMMON_MAX": 0, "_TRY_EACH_MAX": 0, "STEPS_MAX": 0}
    with patch.multiple("maxam.broker.destinations", **limits), patch.object(model.Model, "_check_order"):
        yield


@pytest.mark.parametrize("history", HISTORIES)
def test_nothing_is_lost_or_doubled_if_all_is_compared_after_each_commit(
    history: Callable[[random.Random], None],
) -> None:
    """Only the order of topics differs from what it is without late topics."""
    applied = Broker.apply_batch

    def apply(broker: Broker, batch: list[Operation]) -> None:
        applied(broker, batch)
        while broker.late:
            broker.find_late(1)

    with patch.object(Broker, "apply_batch", apply):
        for seed in range(4):
            history(random.Random(seed))  # noqa: S311 - a simulation, not a secret


@pytest.mark.parametrize("history", [overtaken, refined, selective])
def test_nothing_is_lost_or_doubled_if_it_is_compared_at_any_time(history: Callable[[random.Random], None]) -> None:
    """Positions, markers and deletes are right while topics are late."""
    scan = Scanner.scan

    def scan_both(scanner: Scanner, topics: int) -> bool:
        scanner._routing.find_late(topics)
        return scan(scanner, topics)

    scanning = property(lambda s: s._active or s._routing.clearing or len(s._routing.late) > 0)
    with patch.object(Scanner, "scan", scan_both), patch.object(Scanner, "scanning", scanning):
        for seed in range(4):
            history(random.Random(seed))  # noqa: S311 - a simulation, not a secret

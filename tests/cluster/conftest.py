"""Implementations of `Log` for the conformance suite."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from maxam.cluster.log import Log
from tests.cluster.log_site import LogSite
from tests.simulation.simulated_log import Engine, Faults, SimulatedLog
from tests.support.cutting_relay import CuttingRelay
from tests.support.etcd_cluster import EtcdCluster

_NUMBERS: Final = itertools.count(1)
_REQUEST_BYTES: Final = 400  # of a transaction, beside its entry: head, keys, and frames of HTTP/2 and TLS


class EtcdSite:
    """A log of its own on real etcd."""

    def __init__(self, cluster: EtcdCluster, stack: ExitStack) -> None:
        """Use nodes that run.

        Args:
            cluster: The nodes.
            stack: Closes what is opened.
        """
        self._cluster: Final = cluster
        self._stack: Final = stack
        self._relays: Final[list[CuttingRelay]] = []
        self._name: Final = f"site-{next(_NUMBERS)}"
        self._cuts = 0

    def log(self) -> Log:
        """Return a further client."""
        made = self._cluster.log(self._name)
        self._stack.callback(made.close)
        return made

    def lossy_log(self) -> Log:
        """Return a client that connects through relays."""
        for address in self._cluster.endpoints:
            self._relays.append(self._stack.enter_context(CuttingRelay(int(address.rpartition(":")[2]))))
        made = self._cluster.log(self._name, [f"https://127.0.0.1:{relay.port}" for relay in self._relays])
        self._stack.callback(made.close)
        return made

    def lose_answer(self, entry_bytes: int) -> None:
        """Cut the connection within the request, at its end, or before the answer, in turn."""
        self._cuts += 1
        for relay in self._relays:
            relay.cut_after(max(1, (entry_bytes + _REQUEST_BYTES) * (self._cuts % 4) // 3))


class SimulatedSite:
    """A log of its own on a simulated engine."""

    def __init__(self) -> None:
        """Begin with an empty engine."""
        self._engine: Final = Engine()

    def log(self) -> Log:
        """Return a further client."""
        return SimulatedLog(self._engine)

    def lossy_log(self) -> Log:
        """Return a client that loses requests and answers at random, and whose requests may arrive late."""
        return SimulatedLog(self._engine, faults=Faults(lost=0.2, late=0.2, late_s=0.01, unheard=0.3))

    def lose_answer(self, entry_bytes: int) -> None:
        """Do nothing: the client loses enough by itself."""


@pytest.fixture(scope="session")
def etcd_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Run three nodes for all tests of a worker. A test that harms one repairs it."""
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(params=["etcd", "simulated"])
def site(request: pytest.FixtureRequest) -> Iterator[LogSite]:
    """Return a log that does not exist yet, of each implementation."""
    if request.param == "simulated":
        yield SimulatedSite()
        return
    with ExitStack() as stack:
        yield EtcdSite(request.getfixturevalue("etcd_cluster"), stack)

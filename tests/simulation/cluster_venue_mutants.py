"""Bugs put in on purpose into a gateway of a cluster; the simulation of gateways, disks and clients must notice each."""

import types

from maxam.broker import following, outbox, publishing
from maxam.cluster import keeper
from maxam.gateway import member
from maxam.journal import files
from tests.simulation.mutants import Mutant


def _mutant(name: str, module: types.ModuleType, old: str, new: str, first: int = 0) -> Mutant:
    return Mutant(name, module, old, new, first=first)


_PUT = "            journal.put(block, entry.marker, entry.begins)\n"

CLUSTER_VENUE_MUTANTS = (
    _mutant("receipt before the log answered", outbox, "receipts and receipts[0][0] <= done and", "receipts and"),
    _mutant("a plain rejection waits for a proof", publishing, "            if position < 0:\n", "            if position < -1:\n", first=27),
    _mutant("serves suspended", member, "self.suspended = self._gateway.clients.closed = suspended", "self.suspended = suspended"),
    _mutant("roll decided by each member", keeper, _PUT, _PUT.replace("entry.begins)", "entry.begins or len(self._unshown) > 2)")),
    _mutant("schemas are not logged first", member, "        if not await self._log_schemas() or self._ending:  # it was cut off meanwhile\n            return\n", ""),
    _mutant("queue of a replica grows", following, "                subscription.tidy()\n", "                pass\n"),
    _mutant("synced before it is", keeper, "            self._journal.sync()\n", "            pass\n", first=1),
    _mutant("incarnation of a journal without segments is forgotten", files, "        if segment is None or self._committed.revision < segment.first:\n            try:\n                self._files.set_incarnation", "        if segment is not None and self._committed.revision < segment.first:\n            try:\n                self._files.set_incarnation", first=5),
)  # fmt: skip

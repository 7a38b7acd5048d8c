"""Bugs put in on purpose into the room that is allocated ahead of the blocks of an open segment."""

import types

from maxam.journal import replay, scan, segments
from tests.simulation.mutants import Mutant


def _mutant(name: str, module: types.ModuleType, old: str, new: str, first: int = 0) -> Mutant:
    return Mutant(name, module, old, new, first=first, ahead=True)


AHEAD_MUTANTS = (
    _mutant("room not cut off at a seal", segments, "            self._disk.truncate(segment.handle, segment.size)  # durable with the end mark\n", ""),
    _mutant("room not cut off at a start", segments, "        if found.end < self._disk.size(segment.path):  # also zeros\n", "        if found.end < found.size:\n"),
    _mutant("end mark after the room", segments, "            self._disk.truncate(segment.handle, segment.size)  # durable with the end mark\n", "            segment.size = segment.allocated\n"),
    _mutant("end mark cut off with the room", segments, "        self._syncs.file(segment.handle)\n        self._name_sealed", "        self._disk.truncate(segment.handle, segment.size)\n        self._syncs.file(segment.handle)\n        self._name_sealed"),
    _mutant("blocks written after the room", segments, "        write_at(self._disk, segment.handle, data, segment.size)\n", "        segment.size = max(segment.size, segment.allocated)\n        write_at(self._disk, segment.handle, data, segment.size)\n"),
    _mutant("zeros not left out by readers", replay, "            scanner.leave_out_zeros()\n", "            pass\n"),
    _mutant("a byte too many left out with the zeros", scan, "            return start + len(written)\n", "            return start + len(written) - 1\n"),
    _mutant("blocks in the room not synced", segments, "        if sync:\n            self._syncs.file(segment.handle, data_only=True)", "        if sync and segment.size + len(data) > segment.allocated - self._ahead_bytes:\n            self._syncs.file(segment.handle, data_only=True)"),
)  # fmt: skip
